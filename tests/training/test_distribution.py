"""Two processes on the CPU end with the weights of one, for the same global batch."""

import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from cappronet.cli import app

TRAIN = ["train", "--accelerator", "cpu", "--epochs", "1", "--flip", "--padding", "1"]
COMMAND = [sys.executable, "-m", "cappronet.cli", *TRAIN]


def trained_by_one(folder, *options):
    """The weights that a run of the command ends with, in this process."""
    app([*TRAIN, "--run", str(folder), *options], result_action="return_value")
    return load_file(folder / "model.safetensors")


def trained_by_two(folder, *options):
    """The same in two others."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*COMMAND, "--run", str(folder), "--devices", "2", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        # Batch statistics are shared. In float32 rounding grows a thousandfold in a ResNet's first steps.
        ("ddp", ["--backbone", "resnet8", "--precision", "64-true", "--train-size", "512"]),
        ("ddp", ["--backbone", "pixels"]),
        ("fsdp", ["--backbone", "pixels"]),
        ("fsdp", ["--backbone", "pixels", "--head-optimizer", "grassmann"]),
    ],
)
def test_two_processes_train_as_one(tmp_path, strategy, model):
    one = trained_by_one(tmp_path / "one", *model)
    two = trained_by_two(tmp_path / "two", *model, "--strategy", strategy)
    assert one.keys() == two.keys()
    for name in one:
        assert (one[name] - two[name]).abs().max() <= 1e-5, name


@pytest.mark.slow
def test_a_batch_that_does_not_divide_is_refused(tmp_path):
    command = [*COMMAND, "--run", str(tmp_path / "run"), "--batch-size", "33", "--devices", "2", "--strategy", "ddp"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "a batch size of 33 can't be divided by 2 processes" in done.stderr
