"""Two processes that share the classes of a head train, stop and resume as one process does."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from cappronet import CapProNet
from cappronet.cli import app
from cappronet.training.loop import Hardware

TRAIN = [sys.executable, "-m", "cappronet.cli", "train", "--accelerator", "cpu"]
RECIPE = ["--backbone", "pixels", "--scale", "learned", "--flip", "--padding", "1", "--label-smoothing", "0.1"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def finished(*command, code=0):
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300, check=False)
    assert done.returncode == code, done.stderr[-2000:]
    return done.stderr


def trained_here(*options):
    """A run in the process of the tests."""
    app(["train", "--accelerator", "cpu", *map(str, options)], result_action="return_value")


def same(one, two, tolerance=1e-5):
    one, two = (load_file(folder / "model.safetensors") for folder in (one, two))
    assert one.keys() == two.keys()
    for name in one:
        assert (one[name] - two[name]).abs().max() <= tolerance, name


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process that holds the whole head."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    trained_here(*RECIPE, "--epochs", "40", "--run", folder)
    return folder


def killed_in_the_middle(folder):
    """A run of two processes, the second of which is killed once there is a checkpoint; what the first one prints."""
    command = [*TRAIN, *RECIPE, "--epochs", "40", "--run", str(folder), "--devices", "2", "--shard-head"]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=ENVIRONMENT)
    deadline = time.monotonic() + 200
    while not (folder / "checkpoint.pt").exists():
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    # Only a child of the process above, and the one that Fabric started: others are short-lived, such as git.
    (second,) = (child for child in children if b"\0LOCAL_RANK=1\0" in Path(f"/proc/{child}/environ").read_bytes())
    os.kill(int(second), signal.SIGKILL)
    _, stderr = first.communicate(timeout=60)  # seconds within which it must end
    assert first.returncode != 0
    return stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the second process in /proc")
def test_a_killed_process_ends_the_others_and_one_process_resumes(tmp_path, alone):
    run = tmp_path / "run"
    stderr = killed_in_the_middle(run)
    assert "another process of this run has ended" in stderr
    assert "--resume" in stderr
    assert not (run / "summary.json").exists()
    (shards,) = run.glob("checkpoint-*.safetensors")
    content = shards.read_bytes()
    shards.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused = finished(*TRAIN, "--resume", str(run), "--shard-head", code=1)
    assert shards.name in refused
    assert "SHA-256" in refused
    shards.write_bytes(content)
    with pytest.raises(ValueError, match="--shard-head"):
        trained_here("--resume", run)
    finished(*TRAIN, "--resume", str(run), "--shard-head")  # in one process
    same(alone, run)
    assert not list(run.glob("checkpoint*"))
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (run, alone))
    for name in ("error", "error_top5", "parameters", "head_parameters"):
        assert ours[name] == pytest.approx(theirs[name]), name
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
    CapProNet.from_pretrained(run)


@pytest.mark.slow
def test_a_backbone_with_parameters_is_sharded_too(tmp_path):
    recipe = ["--backbone", "resnet8", "--train-size", "128", "--batch-size", "64", "--epochs", "1", "--lr", "0.01"]
    recipe += ["--clip-norm", "1", "--head-start", "orthonormal", "--solver", "hyperpower"]
    trained_here(*recipe, "--run", tmp_path / "one")
    finished(*TRAIN, *recipe, "--run", str(tmp_path / "two"), "--devices", "2", "--shard-head")
    same(tmp_path / "one", tmp_path / "two", 1e-4)  # float32, and batch statistics summed in another order


def test_a_strategy_that_keeps_the_model_whole_is_refused():
    with pytest.raises(ValueError, match=r"--shard-head.*--strategy ddp"):
        Hardware(strategy="ddp", devices=2, shard_head=True).fabric("32-true")


@pytest.mark.slow
def test_other_heads_are_refused(tmp_path):
    stderr = finished(*TRAIN, "--head", "linear", "--shard-head", "--run", str(tmp_path / "run"), code=1)
    assert "capsule head" in stderr
    assert not (tmp_path / "run").exists()
