"""`cappronet.train`: a network trained from Python, without a folder and with one."""

import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import cappronet
from cappronet.data.datasets import load_dataset
from cappronet.explorer import capsule_table
from cappronet.models.network import CapProNet
from cappronet.training import loop
from cappronet.training.run_folder import Run
from cappronet.training.trained import train

DIGITS = load_dataset("digits")
X, Y = DIGITS.train.pixels[:300, 0].numpy(), DIGITS.train.labels[:300].numpy()
QUICK = {"backbone": "pixels", "epochs": 2, "accelerator": "cpu"}


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def result():
    return train((X, Y + 5), test=(X[:100], Y[:100] + 5), epochs=5, backbone="pixels", accelerator="cpu")


def test_it_is_public():
    assert cappronet.train is train


def test_nothing_is_left_behind_without_a_folder(temporary, monkeypatch):
    work = temporary / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    before, state = torch.get_rng_state(), torch.rand(3)
    torch.set_rng_state(before)
    result = train((X, Y), **QUICK)
    assert [*work.iterdir(), *temporary.glob("cappronet-*")] == []
    assert torch.equal(torch.rand(3), state)  # the caller's random numbers are as they were
    assert result.folder is None
    assert result.error == result.history[-1]["error"]


def test_the_result_shows_predicts_and_is_a_model(result):
    shown = str(result)
    assert "pixels with capsule c=4 on images, 2,560 parameters" in shown
    assert f"| {result.error:.2f} |" in shown
    assert repr(result) == shown
    predicted = result.predict(X)
    assert (predicted == Y + 5).mean() > 0.9
    with torch.no_grad():
        scores = result.model(result.model.normalize(torch.from_numpy(X)[:, None]))
    assert np.array_equal(scores.argmax(-1).numpy() + 5, predicted)
    assert 100 * (predicted[:100] != Y[:100] + 5).mean() == pytest.approx(result.error)
    assert np.array_equal(result.predict(X / 255), predicted)


def test_files_are_predicted_too(result, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for path, image in zip(paths, X, strict=False):
        Image.fromarray(image).save(path)
    assert np.array_equal(result.predict(paths), result.predict(X[:3]))
    assert result.predict(str(paths[0])) == result.predict(X[:1])


def test_the_history_is_a_frame_and_a_figure(result):
    frame = result.to_frame()
    assert list(frame["epoch"]) == [1, 2, 3, 4, 5]
    assert frame["error"].iloc[-1] == result.error
    left, right = result.figure.axes
    assert list(left.lines[0].get_ydata()) == list(frame["train_loss"])
    assert right.get_title(loc="left") == "test error, %"


def test_a_saved_result_is_the_folder_of_a_run(result, tmp_path):
    result.save(tmp_path / "saved")
    run = Run.open(tmp_path / "saved")
    assert run.summary == result.summary
    assert run.metrics() == result.history
    assert run.recipe == result.recipe.changed(data=str(tmp_path.resolve() / "saved" / "images.npz"))
    assert len(capsule_table(tmp_path / "saved")) == 100  # the page finds the images
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(CapProNet.from_pretrained(tmp_path / "saved")(x), result.model(x))
    with pytest.raises(FileExistsError, match="folder="):
        result.save(tmp_path / "saved")


def test_a_name_and_a_torch_dataset_train_as_arrays_do(tmp_path):
    named = train("digits", **QUICK)
    arrays = [(part.pixels, part.labels) for part in (DIGITS.train, DIGITS.test)]
    given = train(arrays[0], test=arrays[1], **QUICK)
    dataset = train(TensorDataset(*arrays[0]), test=TensorDataset(*arrays[1]), **QUICK)
    assert named.error == given.error == dataset.error
    assert named.predict(X[:2]).dtype.kind == "U"  # names of classes
    assert given.predict(X[:2]).dtype.kind == "i"
    path = tmp_path / "data.npz"
    sides = {"x_train": X, "y_train": Y, "x_test": X[:50], "y_test": Y[:50]}
    np.savez(path, **sides)
    assert train(path, **QUICK).error == train((X, Y), test=(X[:50], Y[:50]), **QUICK).error


def test_a_finished_run_is_read_and_another_recipe_refused(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    first = train((X, Y), folder=folder, **QUICK)
    assert {"images.npz", "summary.json", "model.safetensors"} <= {path.name for path in folder.iterdir()}
    assert first.folder == folder
    monkeypatch.setattr(loop.Trainer, "train_step", None)  # nothing is trained any more
    again = train((X, Y), folder=folder, **QUICK)
    assert again.summary == first.summary
    assert np.array_equal(again.predict(X), first.predict(X))
    with pytest.raises(FileExistsError, match="lr differ"):
        train((X, Y), folder=folder, lr=0.05, **QUICK)
    with pytest.raises(FileExistsError, match="other images"):
        train((255 - X, Y), folder=folder, **QUICK)
    with pytest.raises(FileExistsError, match="finished run"):
        train((X, Y), folder=folder, resume=False, **QUICK)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(FileExistsError, match="holds no run"):
        train((X, Y), folder=tmp_path, **QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_mistake_in_the_set_up_leaves_the_folder_usable(tmp_path):
    with pytest.raises(ValueError, match="resnat8"):
        train((X, Y), folder=tmp_path / "run", backbone="resnat8", accelerator="cpu")
    assert train((X, Y), folder=tmp_path / "run", **QUICK).error < 90


@pytest.mark.parametrize("kept", [True, False])
def test_an_interruption_is_an_error_and_a_folder_resumes(temporary, monkeypatch, kept):
    step = loop.Trainer.train_step

    def interrupted(self, x, y):
        step(self, x, y)
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    folder = temporary / "run" if kept else None
    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "train_step", interrupted)
        with pytest.raises(InterruptedError, match=r"saved; to resume.*run'" if kept else "with a folder"):
            train((X, Y), folder=folder, batch_size=50, **QUICK)
    if not kept:
        assert list(temporary.glob("cappronet-*")) == []
        return
    resumed = train((X, Y), folder=folder, batch_size=50, **QUICK)
    whole = train((X, Y), batch_size=50, **QUICK)
    weights, expected = resumed.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())


def test_options_are_those_of_a_recipe(tmp_path):
    (tmp_path / "mine.toml").write_text('epochs = 1\nbackbone = "pixels"\nhead = "linear"\n')
    result = train((X, Y), recipe=tmp_path / "mine.toml", lr=np.float32(0.5), seed=np.int64(3), accelerator="cpu")
    assert (result.recipe.head, result.recipe.lr, result.recipe.seed) == ("linear", 0.5, 3)
    part = train((X, Y + 5), classes=(7, 2), **QUICK)
    assert set(part.predict(X)) <= {12, 7}
    assert part.labels.tolist() == [12, 7]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epoch": 3}, TypeError, "did you mean 'epochs'"),
        ({"head": "capsul"}, ValueError, "did you mean 'capsule'"),
        ({"data": "digits", "test": (X, Y)}, ValueError, "test images of its own"),
        ({"devices": 2}, ValueError, "2 processes need one run folder"),
        ({"recipe": "no/such"}, FileNotFoundError, "no recipe no/such"),
    ],
)
def test_what_makes_no_sense_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        train(options.pop("data", (X, Y)), **options)


def test_progress_is_reported_to_the_caller(capsys):
    reports = []
    train((X, Y), report=lambda *now: reports.append(now), **QUICK)
    assert reports[-1][1] == reports[-1][2] > 0
    assert "epoch 2/2" in reports[-1][0]
    assert capsys.readouterr() == ("", "")  # this is no terminal
