"""The run folder: nothing is overwritten, nothing half-written is left, nothing in it is executed."""

import errno
import pickle
from pathlib import Path

import pytest
import torch

from cappronet.recipe import Recipe
from cappronet.runs import Run, environment, write_atomically


def begun(folder, recipe):
    run = Run.new(folder)
    run.begin(recipe)
    return run


def test_an_existing_folder_is_not_touched(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.toml").write_text("precious")
    with pytest.raises(FileExistsError, match="exists; continue it with --resume"):
        Run.new(tmp_path / "mine")
    with pytest.raises(FileExistsError):
        Run(tmp_path / "mine").begin(Recipe())
    assert (tmp_path / "mine" / "recipe.toml").read_text() == "precious"


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a run folder: it has no recipe\.toml"):
        Run.open(tmp_path)


def test_the_recipe_and_the_checkpoint_come_back(tmp_path):
    run = begun(tmp_path / "run", Recipe(epochs=7))
    assert Run.open(run.folder).recipe == Recipe(epochs=7)
    assert run.load_checkpoint() is None
    run.save_checkpoint({"step": 3, "model": {"w": torch.arange(3.0)}})
    assert run.load_checkpoint()["model"]["w"].tolist() == [0, 1, 2]


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    run = begun(tmp_path / "run", Recipe())
    run.save_checkpoint({"step": 1})

    def full(_state, path):
        Path(path).write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        run.save_checkpoint({"step": 2})
    assert run.load_checkpoint() == {"step": 1}
    assert sorted(path.name for path in run.folder.iterdir()) == ["checkpoint.pt", "recipe.toml"]


def test_writing_is_all_or_nothing(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


class Trap:
    def __reduce__(self):
        return (Path.touch, (Path("trap-was-sprung"),))


def test_a_checkpoint_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = begun(tmp_path / "run", Recipe())
    torch.save({"step": 1, "trap": Trap()}, run.folder / "checkpoint.pt")
    with pytest.raises(ValueError, match="can't be read"):
        run.load_checkpoint()
    (run.folder / "checkpoint.pt").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="can't be read"):
        run.load_checkpoint()
    assert not Path("trap-was-sprung").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 truncated"])
def test_a_damaged_checkpoint_is_refused(tmp_path, content):
    run = begun(tmp_path / "run", Recipe())
    (run.folder / "checkpoint.pt").write_bytes(content)
    with pytest.raises(ValueError, match="can't be read"):
        run.load_checkpoint()


def test_the_environment_names_versions_and_commit():
    found = environment(device="cpu")
    assert torch.__version__.startswith(found["versions"]["torch"])
    assert found["device"] == "cpu"
    assert found["commit"] is None or len(found["commit"]) >= 40


def test_an_unfinished_run_has_no_summary(tmp_path):
    run = begun(tmp_path / "run", Recipe())
    assert not run.finished
    with pytest.raises(FileNotFoundError, match="is not finished; continue it with: cappronet train --resume"):
        _ = run.summary
