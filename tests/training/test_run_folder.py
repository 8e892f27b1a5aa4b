"""The run folder: nothing is overwritten, nothing half-written is left, nothing in it is executed."""

import errno
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import cappronet
from cappronet.data.files import write_atomically
from cappronet.training.loop import Trainer
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run, environment


def dead_process():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def begun(folder, recipe):
    run = Run.new(folder)
    run.begin(recipe)
    return run


def test_an_existing_folder_is_not_touched(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.toml").write_text("precious")
    with pytest.raises(FileExistsError, match=r"unfinished run: resume it with: cappronet train --resume .* --run"):
        Run.new(tmp_path / "mine")
    with pytest.raises(FileExistsError):
        Run(tmp_path / "mine").begin(Recipe())
    assert (tmp_path / "mine" / "recipe.toml").read_text() == "precious"


def test_a_folder_that_appears_in_the_meantime_is_not_taken(tmp_path):
    late = Run.new(tmp_path / "run")
    with Run.new(tmp_path / "run").claimed(Recipe(seed=1)):
        pass
    with pytest.raises(FileExistsError, match="unfinished run"), late.claimed(Recipe()):
        pass
    assert Run(tmp_path / "run").recipe == Recipe(seed=1)


def test_a_claimed_folder_is_refused_until_it_is_released(tmp_path):
    folder = tmp_path / "run"
    with Run.new(folder).claimed(Recipe()):
        for attempt in (lambda: Run.new(folder), lambda: Run(folder).claimed(Recipe()).__enter__()):
            with pytest.raises(BlockingIOError, match="in progress"):
                attempt()
    assert sorted(path.name for path in folder.iterdir()) == ["recipe.toml"]
    with Run(folder).claimed(Recipe()):
        assert Run(folder).begun
    with pytest.raises(FileExistsError, match="another recipe: lr differ"), Run(folder).claimed(Recipe(lr=0.5)):
        pass


@pytest.mark.parametrize("rank", [0, 1])
def test_all_processes_of_a_run_are_refused_when_the_first_one_is(tmp_path, rank):
    refusals = []

    def broadcast(refusal):
        """What the first process sends, and the others get."""
        refusals.append(refusal)
        return refusal if rank == 0 else BlockingIOError("the run is in progress in another process")

    fabric = SimpleNamespace(is_global_zero=rank == 0, world_size=2, broadcast=broadcast)
    run = Run(tmp_path / "run")
    process = SimpleNamespace(fabric=fabric, run=run, recipe=Recipe(), ran_on={})
    with Run.new(run.folder).claimed(Recipe()):
        before = sorted(path.name for path in run.folder.iterdir())
        with pytest.raises(BlockingIOError, match="in progress"), Trainer.folder_claimed(process):
            pytest.fail("two runs in one folder")
        assert sorted(path.name for path in run.folder.iterdir()) == before
    assert [type(refusal) for refusal in refusals] == [BlockingIOError if rank == 0 else type(None)]


def test_a_folder_that_got_no_recipe_is_taken(tmp_path):
    """A process that was killed after it made the folder leaves this."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / f".recipe.toml.{dead_process()}").write_text("half")
    with Run.new(tmp_path / "run").claimed(Recipe()):
        pass
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["recipe.toml"]


def test_a_finished_run_is_not_trained_again(tmp_path):
    run = begun(tmp_path / "run", Recipe())
    run.write_json("summary.json", {})
    with pytest.raises(FileExistsError, match="finished"), Run(run.folder).claimed(Recipe()):
        pass


def test_a_killed_process_leaves_no_lock(tmp_path):
    """Nor does a child that outlives it, such as a reader of image files."""
    code = (
        "import os, sys, time\n"
        "from cappronet.training.recipe import Recipe\n"
        "from cappronet.training.run_folder import Run\n"
        "claim = Run.new(sys.argv[1]).claimed(Recipe())\n"
        "claim.__enter__()\n"
        "child = os.fork()\n"
        "os.write(1, f'{child}\\n'.encode())\n"  # whole lines; the child's 0 once it gave up what it inherited
        "time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = max(int(process.stdout.readline()), int(process.stdout.readline()))
    try:
        with pytest.raises(BlockingIOError, match="in progress"):
            Run(tmp_path / "run").refuse_in_progress()
        process.kill()
        process.wait()
        with Run(tmp_path / "run").claimed(Recipe()):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.stdout.close()


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


def test_no_flipped_bit_of_a_checkpoint_is_silent(tmp_path):
    run = begun(tmp_path / "run", Recipe())
    run.save_checkpoint({"step": 3, "model": {"w": torch.arange(300.0)}})
    path = run.folder / "checkpoint.pt"
    content = path.read_bytes()
    rng = random.Random(0)
    ends = [*range(8), *range(8 * (len(content) - 96), 8 * len(content), 7)]  # the digest and its mark are there
    for bit in [*ends, *(rng.randrange(8 * len(content)) for _ in range(100))]:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"can't be read.*delete it to train from the beginning"):
            run.load_checkpoint()
    for size in (0, 21, 70, 71, len(content) - 1, len(content) // 2):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="can't be read"):
            run.load_checkpoint()
    path.write_bytes(content)
    assert run.load_checkpoint()["step"] == 3


def test_a_checkpoint_without_a_digest_loads_and_one_with_it_is_a_file_of_torch(tmp_path):
    run = begun(tmp_path / "run", Recipe())
    torch.save({"step": 4}, run.folder / "checkpoint.pt")  # as earlier versions wrote it
    assert run.load_checkpoint() == {"step": 4}
    run.save_checkpoint({"step": 5})
    assert torch.load(run.folder / "checkpoint.pt", weights_only=True) == {"step": 5}


def test_the_environment_names_versions_and_commit():
    found = environment(device="cpu")
    assert torch.__version__.startswith(found["versions"]["torch"])
    assert found["device"] == "cpu"
    assert found["commit"] is None or len(found["commit"]) >= 40


def test_an_unfinished_run_has_no_summary(tmp_path):
    run = begun(tmp_path / "run", Recipe())
    assert not run.finished
    with pytest.raises(FileNotFoundError, match="is not finished; resume it with: cappronet train --resume"):
        _ = run.summary


@pytest.mark.slow
def test_a_package_installed_inside_another_repository_has_no_commit(tmp_path):
    """An environment in the folder of someone's project: its commit says nothing about this package."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "theirs"], check=True)
    package = Path(cappronet.__file__).parent
    shutil.copytree(package, tmp_path / "site" / "cappronet", ignore=shutil.ignore_patterns("__pycache__"))
    code = "from cappronet.training.run_folder import environment; print(environment()['commit'])"
    there = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], env=there, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None", done.stderr
