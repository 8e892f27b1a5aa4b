"""`cappronet.probe`: the comparison of heads from Python."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import cappronet
from cappronet.models.network import CapProNet
from cappronet.probing.comparison import ProbeRow
from cappronet.probing.result import probe
from cappronet.probing.settings import Setting


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = rng.standard_normal((120, 6)) + 6 * np.eye(3, 6)[y]
    return x, y


@pytest.fixture(scope="module")
def result(blobs):
    x, y = blobs
    return probe(x[:90], y[:90] + 5, x[90:], y[90:] + 5, heads=["linear", "knn", "capsule"], folds=2, settings=1)


def test_it_is_public():
    assert cappronet.probe is probe


def test_the_result_shows_predicts_and_is_a_model(result, blobs):
    x, y = blobs
    shown = str(result)
    assert "90 features of 6 numbers, 3 classes" in shown
    assert all(f"| {head} |" in shown for head in ("linear", "knn", "capsule"))
    assert result.best.setting.head in ("linear", "capsule")
    assert np.array_equal(result.predict(x), y + 5)
    scores = result.model(torch.from_numpy(x).float())
    assert np.array_equal(scores.argmax(-1).numpy(), y)


def test_the_frame_has_numbers(result):
    frame = result.to_frame()
    assert list(frame["head"]) == ["linear", "knn", "capsule"]
    assert frame["error"].between(0, 100).all()


def test_a_saved_result_is_the_folder_of_the_command(result, blobs, tmp_path):
    x, y = blobs
    result.save(tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "probe.json").read_text())
    assert written["best"] == result.best.setting.head
    model = CapProNet.from_pretrained(tmp_path / "saved")
    assert np.array_equal(model(torch.from_numpy(x).float()).argmax(-1).numpy(), y)
    with pytest.raises(FileExistsError):
        result.save(tmp_path / "saved")


def test_a_file_holds_everything(blobs, tmp_path):
    x, y = blobs
    np.savez(tmp_path / "f.npz", x_train=x, y_train=np.array(["a", "b", "c"])[y])
    from_file = probe(tmp_path / "f.npz", heads=["linear"], folds=2, settings=1)
    assert set(from_file.predict(x)) == {"a", "b", "c"}
    with pytest.raises(ValueError, match="leave out the arrays"):
        probe(str(tmp_path / "f.npz"), y)


def test_what_makes_no_sense_is_refused(blobs):
    x, y = blobs
    with pytest.raises(ValueError, match="x_test together with y_test"):
        probe(x, y, x)
    with pytest.raises(ValueError, match="need labels"):
        probe(x)
    with pytest.raises(ValueError, match="did you mean 'linear'"):
        probe(x, y, heads=["linaer"])
    with pytest.raises(ValueError, match=r"'9' of test arrays is not among"):
        probe(x, y, x[:3], [0, 1, 9])
    alone = probe(x, y, heads=["knn"], folds=2, settings=1)
    for refused in (lambda: alone.model, lambda: alone.predict(x), lambda: alone.save("nowhere")):
        with pytest.raises(ValueError, match="nearest neighbours"):
            refused()


def row(head, validated, parameters=10):
    return ProbeRow(Setting(head), validated, validated, 1, 100, {}, parameters, 0.0, 0.0)


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ([row("capsule", 3.0), row("mlp", 2.5)], "mlp is taken, with 2.50 % on held-out samples against 3.00 %"),
        ([row("capsule", 2.5), row("logistic", 2.5, 5)], "logistic, with the same 2.50 %"),
        ([row("capsule", 2.0), row("mlp", 2.5)], None),
        ([row("linear", 2.0), row("mlp", 2.5)], None),
    ],
)
def test_a_better_head_than_the_capsule_is_taken_and_named(result, rows, note):
    notes = [line for line in replace(result, rows=rows).notes if "Capsules" in line]
    assert len(notes) == (note is not None)
    assert all(note in line for line in notes)
