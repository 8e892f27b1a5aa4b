"""Heads on frozen features: chosen on training samples, measured on test samples, saved as a model."""

import csv
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cappronet
from cappronet.cli import app
from cappronet.cli.features import probe as command
from cappronet.cli.models import evaluate, predict
from cappronet.data.datasets import load_dataset
from cappronet.data.features import FeatureData, read_features
from cappronet.data.selection import Selection
from cappronet.explorer import capsule_table
from cappronet.heads import CapsuleProjection, GroupedNeurons
from cappronet.models.export import export
from cappronet.models.network import CapProNet
from cappronet.models.prediction import predict_features
from cappronet.probing import comparison, splitting
from cappronet.probing.candidates import fit
from cappronet.probing.comparison import probe
from cappronet.probing.embedding import embed
from cappronet.probing.folder import save
from cappronet.probing.settings import PROBE_HEADS, Amount, ProbeOptions, Setting, first_settings
from cappronet.probing.splitting import TUNING_SAMPLES, Split
from cappronet.probing.workers import Workers
from cappronet.reporting import silent
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run

QUICK = ["--tries", "2", "--folds", "2"]


def arrays(path, n=60, classes=3, d=6, **more):
    """Classes that lie along different axes, easy to tell apart."""
    rng = np.random.default_rng(1)
    y = np.arange(n) % classes
    x = (0.1 * rng.normal(size=(n, d)) + np.eye(d)[y] * rng.uniform(0.5, 2, (n, 1))).astype(np.float32)
    return FeatureData(path, tuple(map(str, range(classes))), x, y, **more)


@pytest.fixture(scope="module")
def pixels(tmp_path_factory):
    """The pixels of digits, in a folder of `embed`."""
    path = tmp_path_factory.mktemp("pixels") / "digits"
    embed("pixels", Selection("digits"), path)
    return path


def with_a_probe(test):
    """Slow, and in one worker, which fits what these tests use."""
    return pytest.mark.slow(pytest.mark.xdist_group("probed")(test))


@pytest.fixture(scope="module")
def probed(pixels, tmp_path_factory):
    """A probe of them by the command: the folder with the model, and what the command showed."""
    folder = tmp_path_factory.mktemp("probed") / "run"
    with redirect_stdout(StringIO()) as shown:
        command(pixels, folder=folder, tries=2, folds=2, jobs=1)
    return folder, shown.getvalue()


@pytest.mark.slow
def test_capsules_beat_a_linear_head_on_the_pixels_of_digits(pixels):
    rows, head = probe(read_features(pixels), ProbeOptions(("linear", "capsule"), folds=3, settings=3))
    linear, capsule = rows
    assert [row.setting.head for row in rows] == ["linear", "capsule"]
    assert capsule.validated < 2
    assert linear.validated > capsule.validated + 1
    assert capsule.wrong < linear.wrong
    assert capsule.setting.features == "centred"
    assert isinstance(head[1], CapsuleProjection)


@with_a_probe
def test_the_table_shows_what_the_file_holds(probed):
    folder, shown = probed
    described = json.loads((folder / "probe.json").read_text())
    assert [row["setting"]["head"] for row in described["heads"]] == list(PROBE_HEADS)
    assert described["measured_on"] == "360 test samples"
    for row in described["heads"]:
        assert row["count"] == 360
        assert row["error"] == pytest.approx(100 * row["wrong"] / 360)
        low, high = row["interval"]
        assert 0 <= low < row["error"] < high
        line = next(line for line in shown.splitlines() if line.startswith(f"│ {row['setting']['head']} "))
        assert f"{row['error']:.2f}" in line
    knn = next(row for row in described["heads"] if row["setting"]["head"] == "knn")
    assert knn["parameters"] == 1437 * 64


def shown_error(output):
    return re.search(r"│ error +│ +([\d.]+) %", output)[1]


@with_a_probe
def test_evaluate_measures_the_error_that_the_table_shows(probed, capsys):
    folder, _ = probed
    evaluate(folder)
    shown = capsys.readouterr().out
    summary = Run(folder).summary
    best = json.loads((folder / "probe.json").read_text())
    row = next(row for row in best["heads"] if row["setting"]["head"] == best["best"])
    assert summary["error"] == row["error"]
    assert shown_error(shown) == f"{row['error']:.2f}"
    assert float(re.search(r"│ cross-entropy +│ +([\d.]+) nats", shown)[1]) == pytest.approx(summary["loss"], abs=5e-5)


@with_a_probe
def test_predict_classifies_an_image(probed, tmp_path, monkeypatch, capsys):
    folder, _ = probed
    digits = load_dataset("digits")
    model = CapProNet.from_pretrained(folder)
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for path, pixels in zip(paths, digits.test.pixels, strict=False):
        Image.fromarray(pixels[0].numpy()).save(path)
    monkeypatch.chdir(tmp_path)
    predict(folder, *(Path(path.name) for path in paths))
    shown = capsys.readouterr().out
    with torch.no_grad():
        expected = model(digits.test.pixels[:5] / 255).argmax(-1).tolist()
    assert [int(name) for name in re.findall(r"\.png +│ (\d) ", shown)] == expected


@with_a_probe
def test_a_folder_that_exists_is_left_alone(pixels, probed):
    folder, _ = probed
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(FileExistsError, match="--folder"):
        command(pixels, folder=folder)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.slow
def test_a_csv_with_a_second_one_of_test_samples_becomes_a_model_that_evaluates(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    digits, names = load_dataset("digits"), ["zero", "one", "two"]
    for name, images in (("train.csv", digits.train), ("test.csv", digits.test)):
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*(f"p{i}" for i in range(64)), "label"])
            for image, label in zip(images.pixels.flatten(1).tolist(), images.labels.tolist(), strict=True):
                if label < 3:
                    writer.writerow([*image, names[label]])
    command = ["probe", "train.csv", "--test", "test.csv", "--heads", "linear", "--heads", "capsule", *QUICK]
    app(command, result_action="return_value")
    folder = Path("runs/probe-train")
    summary = Run(folder).summary
    assert summary["backbone"] == "features"
    capsys.readouterr()
    app(["evaluate", str(folder)], result_action="return_value")
    assert shown_error(capsys.readouterr().out) == f"{summary['error']:.2f}"
    model = CapProNet.from_pretrained(folder)
    assert model.config["classes"] == ["one", "two", "zero"]
    with torch.no_grad():
        predicted = model(digits.test.pixels[digits.test.labels == 2].flatten(1).float()).argmax(-1)
    assert (predicted == 1).double().mean() > 0.9
    Image.new("L", (8, 8)).save("a.png")
    with pytest.raises(ValueError, match="takes features 64 wide"):
        app(["predict", str(folder), "a.png"], result_action="return_value")


def test_without_test_samples_the_error_is_cross_validated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", X=arrays(tmp_path).x_train, y=arrays(tmp_path).y_train)
    command(Path("a.npz"), heads=["capsule"], tries=2, folds=3)
    shown = " ".join(capsys.readouterr().out.split())
    assert "60 samples by 3-fold cross-validation" in shown
    row = json.loads(Path("runs/probe-a/probe.json").read_text())["heads"][0]
    assert row["count"] == 60
    assert row["error"] == row["validated"]
    with pytest.raises(ValueError, match="no test part"):
        evaluate(Path("runs/probe-a"))


def test_nearest_neighbours_alone_leave_no_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", X=arrays(tmp_path).x_train, y=arrays(tmp_path).y_train)
    command(Path("a.npz"), heads=["knn"], tries=2, folds=3)
    assert "store samples and are not saved" in " ".join(capsys.readouterr().out.split())
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"y": np.zeros(60, int)}, {}, "single class, '0'"),
        ({"y": np.arange(60)}, {}, "every class of a.npz has a single training sample, so none can be held out"),
        ({}, {"heads": ["svm"]}, "'svm' to probe with, expected one of linear, logistic, mlp, knn, group, capsule"),
        ({}, {"folds": 1}, "folds must be at least 2"),
        ({}, {"tries": 0}, "must be at least 1, got 0"),
        ({}, {"tries": 1000}, "--tries 16"),
        ({}, {"test": Path("b.npz")}, "b.npz"),
        ({}, {"label_column": "label"}, "--label-column"),
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


@pytest.mark.parametrize("head", PROBE_HEADS)
def test_settings_are_different_and_fit_the_features(head):
    amount = Amount(samples=1250, dim=64, classes=10, fewest=1000)
    settings = first_settings(head, 12, amount)
    assert len(set(settings)) == 12
    assert settings[:5] == first_settings(head, 5, amount)
    small = first_settings(head, 6, Amount(samples=10, dim=3, classes=2, fewest=8))
    assert all(setting.capsule_dim <= 3 and setting.neighbors <= 4 for setting in small)
    fewer = first_settings(head, 6, Amount(samples=10, dim=3, classes=5, fewest=5))
    assert all(setting.neighbors <= 5 for setting in fewer)


def test_folds_keep_the_shares_of_the_classes(tmp_path):
    data = arrays(tmp_path, n=60)
    split = Split.of(data, ProbeOptions(folds=5))
    assert sorted(split.tuning.tolist()) == list(range(60))
    assert len(split.folds) == 5
    for fitted, others in split.folds:
        assert sorted([*fitted, *others]) == list(range(60))
        assert np.bincount(data.y_train[others]).tolist() == [4, 4, 4]
    assert sorted(np.concatenate([others for _, others in split.folds])) == list(range(60))
    assert (split.fewest, split.validated) == (48, 60)
    assert split.held_out is None
    again, other = (Split.of(data, ProbeOptions(folds=5, seed=seed)) for seed in (0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(split.folds[0], again.folds[0], strict=True))
    assert not np.array_equal(split.folds[0][1], other.folds[0][1])


def test_of_many_samples_some_choose_settings_and_a_fifth_is_never_seen(tmp_path):
    n = TUNING_SAMPLES + 5000
    y = np.zeros(n, np.int64)
    y[:30] = 1
    data = FeatureData(tmp_path, ("0", "1"), np.zeros((n, 4), np.float32), y)
    split = Split.of(data, ProbeOptions(folds=5))
    assert len(split.held_out) == n // 5
    assert sorted([*split.held_out, *split.rest]) == list(range(n))
    assert set(split.tuning) <= set(split.rest)
    assert abs(len(split.tuning) - TUNING_SAMPLES) <= 20
    assert (y[split.tuning] == 1).sum() >= 20


def test_every_fit_has_all_classes_however_small_they_are(tmp_path, monkeypatch):
    y = np.r_[0, 1, 1, 2, 2, 2, np.arange(60) % 2 + 3]
    data = FeatureData(tmp_path, tuple("abcde"), np.zeros((66, 4), np.float32), y)
    for most in (splitting.TUNING_SAMPLES, 50):
        monkeypatch.setattr(splitting, "TUNING_SAMPLES", most)
        split = Split.of(data, ProbeOptions(folds=5))
        assert (split.held_out is None) == (most > 66)
        assert len(split.folds) == 5
        parts = [fitted for fitted, _ in split.folds] + ([] if split.rest is None else [split.rest])
        assert all(set(y[fitted]) == set(y) for fitted in parts)
        assert 0 not in y[np.concatenate([others for _, others in split.folds])]
    assert 0 not in y[split.held_out]


@pytest.mark.parametrize(("each", "folds"), [(2, 2), (3, 3), (5, 5), (9, 5)])
def test_there_are_no_more_folds_than_a_class_has_samples(tmp_path, each, folds):
    split = Split.of(arrays(tmp_path, n=3 * each), ProbeOptions(folds=5))
    assert len(split.folds) == folds
    assert split.validated == 3 * each


def test_classes_of_very_different_sizes_are_compared(tmp_path):
    data = arrays(tmp_path)
    rows = np.concatenate([np.flatnonzero(data.y_train == label)[:n] for label, n in enumerate((20, 2, 1))])
    result = cappronet.probe(data.x_train[rows], data.y_train[rows], settings=2, quiet=True)
    assert [row.count for row in result.rows] == [22] * len(PROBE_HEADS)
    assert "Classes with a single training sample, on which heads can't be compared: '2'." in result.notes
    assert "5-fold cross-validation" in result.notes[1]
    pair = cappronet.probe(data.x_train[:6], data.y_train[:6], quiet=True)
    assert "2-fold cross-validation" in pair.notes[1]
    assert pair.predict(data.x_train[:6]).tolist() == data.y_train[:6].tolist()


@pytest.mark.parametrize(
    "setting",
    [
        Setting("linear", lr=0.03, features="standard"),
        Setting("linear", lr=0.03, features="plain"),
        Setting("group", 2, 0.03, features="standard"),
        Setting("logistic", C=1.0, features="standard"),
        Setting("logistic", C=1.0, features="plain"),
        Setting("mlp", lr=0.01, features="standard", width=32, dropout=0.2),
        Setting("capsule", 2, 0.01, features="centred"),
        Setting("capsule", 2, 0.01, features="centred", scale=100.0),
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


@pytest.mark.slow
def test_processes_give_the_results_of_one_process(pixels):
    data = read_features(pixels)
    parts = (np.array(getattr(data, name)) for name in ("x_train", "y_train", "x_test", "y_test"))
    in_memory = FeatureData(data.path, data.classes, *parts)
    budget = {"heads": ("linear", "knn"), "folds": 2, "settings": 1}
    one, head = probe(data, ProbeOptions(jobs=1, **budget))
    two, other = probe(in_memory, ProbeOptions(jobs=2, **budget))
    assert [(row.wrong, row.validated) for row in one] == [(row.wrong, row.validated) for row in two]
    assert all(a.equal(b) for a, b in zip(head.state_dict().values(), other.state_dict().values(), strict=True))


def test_a_worker_that_is_started_anew_is_no_news():
    def report(*_):
        warnings.warn("A worker stopped while some jobs were given to the executor.", stacklevel=1)
        warnings.warn("another warning", stacklevel=1)

    with pytest.warns(UserWarning, match="another warning") as shown, Workers(1, 1, report) as workers:
        assert workers.run(max, [(1, 2)]) == [2]
    assert not [warning for warning in shown if "worker stopped" in str(warning.message)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["report", "signal"])
def test_an_interrupted_probe_ends_its_own_workers_and_no_other_child(pixels, how):
    done = threading.Event()
    bystander = multiprocessing.get_context("spawn").Process(target=_sleep)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    bystander.start()

    def stop(text, fits, total):
        if fits == 1 and how == "report":
            raise KeyboardInterrupt
        if fits == 1:
            os.kill(os.getpid(), signal.SIGINT)
            done.wait(0.1)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        before = _children() - {bystander.pid, other.pid}
        with pytest.raises(KeyboardInterrupt):
            probe(read_features(pixels), ProbeOptions(("linear",), folds=5, settings=6, jobs=2), stop)
        assert bystander.is_alive()
        assert other.poll() is None
        workers = _children() - before - {bystander.pid, other.pid}
        assert not [pid for pid in workers if "loky.backend.popen_loky" in _command_line(pid)]
    finally:
        signal.signal(signal.SIGINT, previous)
        bystander.terminate()
        other.kill()
        bystander.join()
        other.wait()


def _sleep():
    threading.Event().wait(60)


def _children():
    """Processes that this one started and that still run."""
    listed = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return {int(line.split()[0]) for line in listed.stdout.splitlines() if "Z" not in line.split()[1]}


def _command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except FileNotFoundError:
        return ""


def test_the_best_head_is_saved_even_if_nearest_neighbours_are_better(tmp_path):
    data = arrays(tmp_path / "a.npz")
    np.savez(data.path, X=data.x_train, y=data.y_train)
    options = ProbeOptions(("knn", "group"), folds=2, settings=1)
    rows, head = probe(data, options)
    save(tmp_path / "run", data, rows, head, options)
    assert json.loads((tmp_path / "run" / "probe.json").read_text())["best"] == "group"
    model = CapProNet.from_pretrained(tmp_path / "run")
    x = torch.from_numpy(data.x_train)
    assert model(x).equal(head(x))
    assert Run(tmp_path / "run").finished


@pytest.mark.parametrize("has_test", [False, True])
def test_many_samples_are_compared_on_a_fifth_and_the_best_head_is_fitted_to_all(tmp_path, monkeypatch, has_test):
    monkeypatch.setattr(splitting, "TUNING_SAMPLES", 100)
    samples = arrays(tmp_path, n=300)
    test = {"x_test": samples.x_train[:7], "y_test": (samples.y_train[:7] + 1) % 3} if has_test else {}
    data = arrays(tmp_path, n=300, **test)
    reports = []
    (row,), head = probe(data, ProbeOptions(("linear",), folds=2, settings=1), lambda *now: reports.append(now))
    assert reports == [("fitting", done, 4) for done in range(1, 5)]
    assert row.validated < 5
    # test labels are wrong on purpose: they measure, and decide nothing
    assert row.count == (7 if has_test else 60)
    assert row.error > 50 if has_test else row.error == row.validated
    again = fit(row.setting, torch.from_numpy(data.x_train), torch.from_numpy(data.y_train), 3)
    assert head.weight.equal(again.weight)


@with_a_probe
def test_the_folder_describes_the_probe_and_not_a_training(probed):
    folder, _ = probed
    files = {"README.md", "config.json", "environment.json", "model.safetensors", "probe.json", "summary.json"}
    assert {file.name for file in folder.iterdir()} == files
    described = json.loads((folder / "probe.json").read_text())
    assert Selection.from_dict(described["data"]) == Selection("digits")
    assert described["plan"] == {"heads": list(PROBE_HEADS), "folds": 2, "tries": 2, "seed": 0, "jobs": 1}
    card = (folder / "README.md").read_text()
    assert "How the head was fitted" in card
    assert "backbone_dropout" not in card
    assert Run.open(folder).selection == Selection("digits")


@with_a_probe
def test_a_probe_folder_of_earlier_versions_still_evaluates(probed, tmp_path, capsys):
    folder, _ = probed
    old = tmp_path / "old"
    old.mkdir()
    for name in ("config.json", "model.safetensors", "README.md", "summary.json", "environment.json"):
        (old / name).write_bytes((folder / name).read_bytes())
    described = json.loads((folder / "probe.json").read_text())
    del described["data"]
    (old / "probe.json").write_text(json.dumps(described))
    recipe = Recipe(data="digits", backbone="pixels", optimizer="adamw", schedule="cosine")  # with made-up training
    (old / "recipe.toml").write_text(recipe.to_toml())
    shown = []
    for run in (folder, old):
        evaluate(run)
        shown.append(capsys.readouterr().out.partition(":")[2])
    assert shown[0] == shown[1]
    assert "360 test" in shown[0]


@pytest.mark.parametrize(
    ("samples", "held_out", "settings", "rounds"),
    [
        (900, None, 6, [6, 6, 6, 6, 6]),
        (1000, None, 6, [6, 3, 2, 1, 1]),
        (6000, np.arange(3), 6, [6, 3, 2]),
        (6000, np.arange(3), 1, []),
        (6000, None, 1, [1, 1, 1, 1, 1]),
    ],
)
def test_with_enough_samples_half_of_the_settings_remain_after_each_fold(samples, held_out, settings, rounds):
    folds = [(np.arange(3), np.arange(3))] * 5
    assert Split(np.arange(samples), folds, held_out).rounds(settings) == rounds


def test_halving_keeps_the_settings_with_the_fewest_errors_so_far(tmp_path, monkeypatch):
    errors = {0: [9, 0, 0], 1: [5, 9, 0], 2: [6, 1, 1], 3: [9, 0, 0]}
    calls = []

    def wrong_in_fold(_samples, setting, fold, _others):
        calls.append((setting.neighbors, fold))
        return errors[setting.neighbors][fold]

    monkeypatch.setattr(comparison, "_wrong_in_fold", wrong_in_fold)
    settings = [Setting("knn", neighbors=k) for k in errors]
    split = Split(np.arange(2000), [(fold, None) for fold in range(3)])
    with comparison.Workers(1, 9, silent) as workers:
        tuned = comparison._tuned(workers, None, split, [settings], split.rounds(4))
    assert calls == [(0, 0), (1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (2, 2)]
    assert tuned == [(settings[2], 8)]


@pytest.fixture
def winner(tmp_path, request):
    """A folder that the command wrote where this head alone was compared, and the features."""
    data = arrays(tmp_path / "a.npz", n=90)
    x, y = data.x_train, data.y_train
    np.savez(data.path, x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    with redirect_stdout(StringIO()):
        command(data.path, folder=tmp_path / request.param, heads=[request.param], tries=1, folds=2)
    return tmp_path / request.param, x


@pytest.mark.parametrize("winner", ["logistic", "mlp", "capsule"], indirect=True)
def test_whichever_head_wins_is_a_model_for_the_other_commands(winner, tmp_path, capsys):
    folder, x = winner
    evaluate(folder)
    assert shown_error(capsys.readouterr().out) == f"{Run(folder).summary['error']:.2f}"
    np.savetxt(tmp_path / "rows.csv", x[:4], delimiter=",", header=",".join("abcdef"), comments="")
    predict(folder, tmp_path / "rows.csv", as_json=True)
    assert [record["label"] for record in json.loads(capsys.readouterr().out)] == ["0", "1", "2", "0"]
    exported = export(CapProNet.from_pretrained(folder), tmp_path / "model.safetensors", "safetensors")
    assert exported.deviation < 1e-4
    if folder.name == "capsule":
        table = capsule_table(folder)
        assert np.array_equal(table.predictions, CapProNet.from_pretrained(folder)(torch.from_numpy(x[60:])).argmax(-1))
        assert table.basis.shape[2] == 7
    else:
        with pytest.raises(ValueError, match="has no subspaces"):
            capsule_table(folder)


@pytest.mark.slow
@pytest.mark.parametrize("winner", ["logistic", "mlp", "capsule"], indirect=True)
def test_whichever_head_wins_runs_as_onnx(winner, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    folder, x = winner
    model = CapProNet.from_pretrained(folder)
    export(model, tmp_path / "model.onnx")
    (scores,) = runtime.InferenceSession(tmp_path / "model.onnx").run(["scores"], {"features": x})
    torch.testing.assert_close(torch.from_numpy(scores), model(torch.from_numpy(x)).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_capsule_head_on_images_keeps_its_centring(pixels, tmp_path, capsys):
    """The network that made the features is part of the model; only the head takes centred ones."""
    with redirect_stdout(StringIO()):
        command(pixels, folder=tmp_path / "run", heads=["capsule"], tries=1, folds=2)
    model = CapProNet.from_pretrained(tmp_path / "run")
    assert (model.config["centered"], model.feature_dim, model.head.in_features) == (True, 64, 65)
    evaluate(tmp_path / "run")
    assert shown_error(capsys.readouterr().out) == f"{Run(tmp_path / 'run').summary['error']:.2f}"
    images = load_dataset("digits").test.pixels[:5]
    as_rows = predict_features(model, model.head_inputs(model.normalize(images).flatten(1)))
    assert [p.label for p in as_rows] == [str(i) for i in model(model.normalize(images)).argmax(-1).tolist()]
    evaluate(tmp_path / "run", ood=["noise"])
    assert "residual" in capsys.readouterr().out
