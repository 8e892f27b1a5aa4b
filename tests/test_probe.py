"""Heads on fixed features: chosen on training samples, measured on test samples, saved as a model."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cappronet import probe as probing
from cappronet.commands.features import probe as command
from cappronet.commands.models import evaluate
from cappronet.control_heads import GroupedNeurons
from cappronet.datasets import load_dataset
from cappronet.embedding import embed
from cappronet.feature_files import FeatureData, read_features
from cappronet.model import CapProNet
from cappronet.probe import MANY, Plan, _Split, probe
from cappronet.probe_folder import save
from cappronet.probe_heads import HEADS, Setting, fit, tries
from cappronet.recipe import Recipe
from cappronet.runs import Run

QUICK = ["--tries", "2", "--folds", "2"]


def cappronet(*arguments, cwd=None):
    program = [sys.executable, "-m", "cappronet.cli", *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, cwd=cwd, timeout=300)


def refused(done):
    """The one line that a user sees of their mistake."""
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def arrays(path, n=60, classes=3, d=6, **more):
    """Classes that lie along different axes, easy to tell apart."""
    rng = np.random.default_rng(1)
    y = np.arange(n) % classes
    x = (0.1 * rng.normal(size=(n, d)) + np.eye(d)[y] * rng.uniform(0.5, 2, (n, 1))).astype(np.float32)
    return FeatureData(path, tuple(map(str, range(classes))), x, y, **more)


@pytest.fixture(scope="module")
def pixels(tmp_path_factory):
    """The pixels of digits, in a file of `embed`."""
    path = tmp_path_factory.mktemp("pixels") / "digits.npz"
    embed("pixels", Recipe(data="digits"), path)
    return path


@pytest.fixture(scope="module")
def probed(pixels, tmp_path_factory):
    """A probe on them by the command, and where it wrote the model."""
    folder = tmp_path_factory.mktemp("probed") / "run"
    done = cappronet("probe", pixels, "--folder", folder, *QUICK)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_capsules_beat_a_linear_head_on_the_pixels_of_digits(pixels):
    rows, head = probe(read_features(pixels), Plan(("linear", "capsule"), folds=3, tries=3))
    linear, capsule = rows
    assert [row.setting.head for row in rows] == ["linear", "capsule"]
    assert capsule.validated < 2
    assert linear.validated > capsule.validated + 1
    assert capsule.wrong < linear.wrong
    assert capsule.setting.features == "unit"
    assert type(head).__name__ == "CapsuleProjection"


def test_the_table_shows_what_the_file_holds(probed):
    folder, shown = probed
    found = json.loads((folder / "probe.json").read_text())
    assert [row["setting"]["head"] for row in found["heads"]] == list(HEADS)
    assert found["measured_on"] == "360 test samples"
    for row in found["heads"]:
        assert row["count"] == 360
        assert row["error"] == pytest.approx(100 * row["wrong"] / 360)
        low, high = row["interval"]
        assert 0 <= low < row["error"] < high
        line = next(line for line in shown.splitlines() if line.startswith(f"│ {row['setting']['head']} "))
        assert f"{row['error']:.2f}" in line
    knn = found["heads"][1]
    assert knn["parameters"] == 1437 * 64


def test_evaluate_finds_the_error_that_the_table_said(probed):
    folder, _ = probed
    done = cappronet("evaluate", folder)
    assert done.returncode == 0, done.stderr
    summary = Run(folder).summary
    best = json.loads((folder / "probe.json").read_text())
    row = next(row for row in best["heads"] if row["setting"]["head"] == best["best"])
    assert summary["error"] == row["error"]
    assert float(re.search(r"│ error +│ +([\d.]+) │", done.stdout)[1]) == pytest.approx(row["error"], abs=5e-4)
    assert float(re.search(r"│ loss +│ +([\d.]+) │", done.stdout)[1]) == pytest.approx(summary["loss"], rel=1e-3)


def test_predict_classifies_an_image(probed, tmp_path):
    folder, _ = probed
    digits = load_dataset("digits")
    model = CapProNet.from_pretrained(folder)
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for path, pixels in zip(paths, digits.test.pixels, strict=False):
        Image.fromarray(pixels[0].numpy()).save(path)
    done = cappronet("predict", folder, *(path.name for path in paths), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = model(digits.test.pixels[:5] / 255).argmax(-1).tolist()
    shown = re.findall(r"\.png +│ (\d) ", done.stdout)
    assert [int(name) for name in shown] == expected


def test_a_folder_that_exists_is_left_alone(pixels, probed):
    folder, _ = probed
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert "exists and is left as it is" in refused(cappronet("probe", pixels, "--folder", folder))
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_table_of_ones_own_with_a_test_table_becomes_a_model_that_evaluates(tmp_path):
    digits, names = load_dataset("digits"), ["zero", "one", "two"]
    for name, images in (("train.csv", digits.train), ("test.csv", digits.test)):
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*(f"p{i}" for i in range(64)), "label"])
            for image, label in zip(images.pixels.flatten(1).tolist(), images.labels.tolist(), strict=True):
                if label < 3:
                    writer.writerow([*image, names[label]])
    command = ["probe", "train.csv", "--test", "test.csv", "--heads", "linear", "--heads", "capsule", *QUICK]
    done = cappronet(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "probe-train"
    summary = Run(folder).summary
    assert summary["backbone"] == "features"
    done = cappronet("evaluate", folder, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"│ error +│ +([\d.]+) │", done.stdout)[1]) == pytest.approx(summary["error"], abs=5e-4)
    model = CapProNet.from_pretrained(folder)
    assert model.config["classes"] == ["one", "two", "zero"]
    with torch.no_grad():
        found = model(digits.test.pixels[digits.test.labels == 2].flatten(1).float()).argmax(-1)
    assert (found == 1).double().mean() > 0.9
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    assert "takes feature vectors of 64 numbers, no images" in refused(cappronet("predict", folder, tmp_path / "a.png"))


def test_without_test_samples_the_error_is_cross_validated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", X=arrays(tmp_path).x_train, y=arrays(tmp_path).y_train)
    command(Path("a.npz"), heads=["capsule"], tries=2, folds=3)
    shown = " ".join(capsys.readouterr().out.split())
    assert "60 samples by 3-fold cross-validation, which chose the settings too" in shown
    found = json.loads(Path("runs/probe-a/probe.json").read_text())["heads"][0]
    assert found["count"] == 60
    assert found["error"] == found["validated"]
    with pytest.raises(ValueError, match="has no test part to measure on"):
        evaluate(Path("runs/probe-a"))


def test_nearest_neighbours_alone_leave_no_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", X=arrays(tmp_path).x_train, y=arrays(tmp_path).y_train)
    command(Path("a.npz"), heads=["knn"], tries=2, folds=3)
    assert "they keep samples, not a model" in " ".join(capsys.readouterr().out.split())
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"y": np.zeros(60, int)}, {}, "has a single class, '0': expected at least two"),
        ({"y": np.arange(60) // 59}, {}, "class '1' of a.npz has 1 training samples, but 5 folds need 5"),
        ({}, {"heads": ["svm"]}, "unknown head 'svm' to probe with; known are linear, knn, group, capsule"),
        ({}, {"folds": 1}, "folds must be at least 2"),
        ({}, {"tries": 0}, "tries and jobs at least 1"),
        ({}, {"tries": 1000}, "linear has only 16 settings for these features"),
        ({}, {"test": Path("b.npz")}, "there is no feature file b.npz"),
        ({}, {"label_column": "label"}, "--label-column is for tables"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, change, options, message):
    monkeypatch.chdir(tmp_path)
    data = arrays(tmp_path)
    np.savez("a.npz", **{"X": data.x_train, "y": data.y_train, **change})
    with pytest.raises((ValueError, OSError), match=re.escape(message)) as caught:
        command(Path("a.npz"), **options)
    assert "\n" not in str(caught.value)
    assert not Path("runs").exists()


@pytest.mark.parametrize("head", HEADS)
def test_tries_are_different_and_fit_the_features(head):
    found = tries(head, 12, dim=64, smallest=100)
    assert len(set(found)) == 12
    assert found[:5] == tries(head, 5, dim=64, smallest=100)
    small = tries(head, 6, dim=3, smallest=4)
    assert all(setting.capsule_dim <= 3 and setting.neighbors <= 4 for setting in small)


def test_folds_and_samples_that_settings_are_chosen_on_keep_every_class(tmp_path):
    data = arrays(tmp_path, n=60)
    split = _Split.of(data, Plan(folds=5))
    assert sorted(split.chosen.tolist()) == list(range(60))
    for fold in range(5):
        assert np.bincount(data.y_train[split.chosen[split.folds == fold]]).tolist() == [4, 4, 4]
    assert split.smallest == 16
    assert split.fifth is None


def test_of_many_samples_some_choose_and_a_fifth_is_never_seen(tmp_path):
    n = MANY + 5000
    y = np.zeros(n, np.int64)
    y[:30] = 1
    data = FeatureData(tmp_path, ("0", "1"), np.zeros((n, 4), np.float32), y)
    split = _Split.of(data, Plan(folds=5))
    assert len(split.fifth) == n // 5
    assert sorted([*split.fifth, *split.others]) == list(range(n))
    assert set(split.chosen) <= set(split.others)
    assert abs(len(split.chosen) - MANY) <= 20
    assert (y[split.chosen] == 1).sum() >= 20


@pytest.mark.parametrize(
    "setting",
    [
        Setting("linear", lr=0.03, features="standard"),
        Setting("linear", lr=0.03, features="plain"),
        Setting("group", 2, 0.03, features="standard"),
        Setting("capsule", 2, 0.03, features="plain"),
        Setting("capsule", 2, 0.03, features="unit"),
    ],
)
def test_a_fitted_head_takes_features_as_they_are_at_any_size(setting, tmp_path):
    data = arrays(tmp_path)
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    state = torch.get_rng_state()
    head = fit(setting, x, y, 3)
    assert torch.get_rng_state().equal(state)
    assert (head(x).argmax(-1) == y).all()
    # one number times all features changes nothing, whatever was taken off and divided by in between
    large = fit(setting, 1024 * x, y, 3)
    torch.testing.assert_close(large(1024 * x), head(x), rtol=1e-3, atol=1e-3)


def test_scaling_is_folded_into_the_weights_exactly(tmp_path):
    data = arrays(tmp_path)
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    head = fit(Setting("group", 2, 0.03, features="standard"), x + 5, y, 3)
    assert isinstance(head, GroupedNeurons)
    near = fit(Setting("group", 2, 0.03, features="standard"), x, y, 3)
    torch.testing.assert_close(head(x + 5), near(x), rtol=1e-3, atol=1e-3)


def test_processes_find_what_one_process_finds(pixels):
    data = read_features(pixels)
    plain = FeatureData(data.path, data.classes, *(np.array(getattr(data, n)) for n in
                        ("x_train", "y_train", "x_test", "y_test")))  # fmt: skip
    plan = {"heads": ("linear", "knn"), "folds": 2, "tries": 1}
    (one, head), (two, other) = probe(data, Plan(jobs=1, **plan)), probe(plain, Plan(jobs=2, **plan))
    assert [(row.wrong, row.validated) for row in one] == [(row.wrong, row.validated) for row in two]
    assert all(a.equal(b) for a, b in zip(head.state_dict().values(), other.state_dict().values(), strict=True))


def test_a_wide_margin_of_neighbours_still_saves_the_best_head(tmp_path):
    data = arrays(tmp_path / "a.npz")
    np.savez(data.path, X=data.x_train, y=data.y_train)
    rows, head = probe(data, Plan(("knn", "group"), folds=2, tries=1))
    save(tmp_path / "run", data, rows, head, Plan(("knn", "group"), folds=2, tries=1))
    assert json.loads((tmp_path / "run" / "probe.json").read_text())["best"] == "group"
    model = CapProNet.from_pretrained(tmp_path / "run")
    x = torch.from_numpy(data.x_train)
    assert model(x).equal(head(x))
    assert Run(tmp_path / "run").finished


@pytest.mark.parametrize("has_test", [False, True])
def test_many_samples_are_compared_on_a_fifth_and_the_best_head_has_seen_all(tmp_path, monkeypatch, has_test):
    monkeypatch.setattr(probing, "MANY", 100)
    some = arrays(tmp_path, n=300)
    test = {"x_test": some.x_train[:7], "y_test": (some.y_train[:7] + 1) % 3} if has_test else {}
    data = arrays(tmp_path, n=300, **test)
    steps = []
    (row,), head = probe(data, Plan(("linear",), folds=2, tries=1), lambda *now: steps.append(now))
    assert steps[-1][0] == steps[-1][1] >= len(steps)
    assert row.validated < 5
    # test labels are wrong on purpose: they measure, and decide nothing
    assert row.count == (7 if has_test else 60)
    assert row.error > 50 if has_test else row.error == row.validated
    again = fit(row.setting, torch.from_numpy(data.x_train), torch.from_numpy(data.y_train), 3)
    assert head.weight.equal(again.weight)
