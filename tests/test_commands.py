"""train, compare, evaluate, predict and list as a user calls them: real processes on real digits."""

import json
import math
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from cappronet.datasets import load_dataset
from cappronet.recipe import Recipe
from cappronet.runs import Run

PROGRAM = [sys.executable, "-m", "cappronet.cli"]
QUICK = ["--accelerator", "cpu", "--epochs", "1", "--train-size", "200"]


def cappronet(*arguments, cwd=None):
    return subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=300)


def refused(done):
    """The one line that a user sees of their mistake."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of the default model."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    done = cappronet("train", "--accelerator", "cpu", "--epochs", "8", "--run", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_train_reports_its_error_and_where_everything_is(tmp_path):
    done = cappronet("train", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "digits-resnet8-capsule4-seed0"
    shown = " ".join(done.stdout.split())
    summary = Run(folder).summary
    assert "resnet8 with capsule c=4 on digits, 76,912 parameters" in shown
    assert f"test error {summary['error']:.2f} %" in shown
    assert "Written to runs/digits-resnet8-capsule4-seed0" in shown
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert "exists; continue it with --resume" in refused(cappronet("train", *QUICK, cwd=tmp_path))
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_options_override_the_recipe_and_the_effective_one_is_saved(tmp_path):
    (tmp_path / "mine.toml").write_text('backbone = "pixels"\nlr = 0.3\nepochs = 9\nmilestones = [1]\n')
    done = cappronet("train", "--recipe", "mine.toml", *QUICK, "--head", "linear", "--run", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = Recipe(backbone="pixels", lr=0.3, epochs=1, milestones=(1,), head="linear", train_size=200)
    assert Run(tmp_path / "out").recipe == expected


LONG = ["--accelerator", "cpu", "--epochs", "12", "--train-size", "600", "--batch-size", "60", "--flip"]


def begun(folder):
    """A run that has written its first checkpoint."""
    process = subprocess.Popen(
        [*PROGRAM, "train", *LONG, "--run", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not (folder / "checkpoint.pt").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def test_a_killed_run_resumes_to_the_same_weights(tmp_path):
    assert cappronet("train", *LONG, "--run", tmp_path / "whole").returncode == 0
    process = begun(tmp_path / "killed")
    process.kill()
    process.wait()
    assert not Run(tmp_path / "killed").finished
    done = cappronet("train", "--resume", tmp_path / "killed", "--accelerator", "cpu")
    assert done.returncode == 0, done.stderr
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(whole[name].equal(killed[name]) for name in whole)
    assert "is finished; its result is in" in refused(cappronet("train", "--resume", tmp_path / "killed"))


def test_control_c_saves_and_says_how_to_go_on(tmp_path):
    process = begun(tmp_path / "run")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"stopped and saved; continue with: cappronet train --resume {tmp_path / 'run'}" in " ".join(errors.split())
    assert Run(tmp_path / "run").load_checkpoint()["step"] > 0


def test_compare_prints_a_table_and_keeps_what_is_done(tmp_path):
    command = ["compare", "--epochs", "2", "--train-size", "300", "--seeds", "2", "--folder", tmp_path / "all",
               "--backbones", "pixels", "--heads", "linear", "--heads", "capsule"]  # fmt: skip
    first = cappronet(*command)
    assert first.returncode == 0, first.stderr
    folders = sorted(path for path in (tmp_path / "all").iterdir() if path.is_dir())
    summaries = [Run(path).summary for path in folders]
    assert [(s["head"], s["seed"]) for s in summaries] == [
        ("capsule c=4", 0),
        ("capsule c=4", 1),
        ("linear", 0),
        ("linear", 1),
    ]
    mean = (summaries[2]["error"] + summaries[3]["error"]) / 2
    (row,) = [line for line in first.stdout.splitlines() if "linear" in line]
    assert f"{mean:.2f}" in row
    assert "650" in row
    assert {"comparison.json", "comparison.png"} <= {path.name for path in (tmp_path / "all").iterdir()}
    before = {path: path.stat().st_mtime_ns for folder in folders for path in folder.iterdir()}
    assert cappronet(*command).stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for folder in folders for path in folder.iterdir()} == before
    assert "holds a run of another recipe" in refused(cappronet(*command, "--lr", "0.5"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_goes_on_where_it_was(tmp_path, number):
    command = [*PROGRAM, "compare", "--epochs", "12", "--train-size", "600", "--seeds", "2", "--heads", "capsule",
               "--backbones", "resnet8", "--jobs", "1", "--folder", str(tmp_path / "all")]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("all/*/checkpoint.pt")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped and saved; the same command goes on from here" in errors
    assert "Traceback" not in errors
    assert len(list(tmp_path.glob("all/*/recipe.toml"))) == 1  # and no other run was begun
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert all(Run(folder).finished for folder in (tmp_path / "all").iterdir() if folder.is_dir())


def test_evaluate_measures_what_training_measured(run):
    done = cappronet("evaluate", run)
    assert done.returncode == 0, done.stderr
    summary = Run(run).summary
    rows = {line.split("│")[1].strip(): float(line.split("│")[2]) for line in done.stdout.splitlines() if "│" in line}
    assert rows["error"] == pytest.approx(summary["error"], rel=1e-3)
    assert rows["condition"] == pytest.approx(summary["condition"], rel=1e-3)
    assert "360 test images" in done.stdout


def test_evaluate_tells_unknown_images_from_known_ones(run, tmp_path):
    Image.fromarray(torch.randint(256, (9, 9, 3), dtype=torch.uint8).numpy()).save(tmp_path / "a.png")
    for name in ("train/x", "train/y", "test/x"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "a.png").write_bytes((tmp_path / "a.png").read_bytes())
    done = cappronet("evaluate", run, "--ood", "noise", "--ood", tmp_path / "data", "--workers", 0)
    assert done.returncode == 0, done.stderr
    assert "unknown images: 2,000 of noise, 1 of" in done.stdout
    last = done.stdout[done.stdout.index("unknown images") :]
    rows = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in last.splitlines() if "│" in line}
    assert {"residual, angle", "length energy", "class residual", "max softmax", "mahalanobis", "vim"} <= set(rows)
    assert float(rows["class residual"][0]) > 95  # AUROC of noise
    assert float(rows["class residual"][1]) < 30
    assert "needs a run on some classes" in refused(cappronet("evaluate", run, "--ood", "held-out"))
    assert "did you mean 'cifar10'" in refused(cappronet("evaluate", run, "--ood", "cifar1"))


def test_predict_names_the_class_of_an_image(run, tmp_path):
    digits = load_dataset("digits").test
    right, files = 0, []
    for i in range(6):
        files.append(tmp_path / f"{i}.png")
        Image.fromarray(digits.pixels[i, 0].numpy()).save(files[-1])
    done = cappronet("predict", run, *files)
    assert done.returncode == 0, done.stderr
    for i, line in enumerate(line for line in done.stdout.splitlines() if line.startswith("│")):
        _, _, label, probability, length, angle, residual, _ = (cell.strip() for cell in line.split("│"))
        right += label == str(digits.labels[i].item())
        assert 0 < float(probability) <= 1
        assert float(length) > 0
        assert 0 <= float(angle.removesuffix("°")) < 90
        assert float(residual) == pytest.approx(math.sin(math.radians(float(angle.removesuffix("°")))), abs=2e-3)
    assert right >= 5


def test_predict_refuses_what_is_no_image(run, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    assert "text.png can't be read as an image" in refused(cappronet("predict", run, tmp_path / "text.png"))
    assert "there is no image file" in refused(cappronet("predict", run, tmp_path / "none.png"))


def test_list_names_everything():
    shown = cappronet("list").stdout
    for name in ("resnet110", "densenet_bc_100_12", "fashion_mnist", "subcenter", "cpu/digits"):
        assert name in shown
    assert "resnet110" not in cappronet("list", "heads").stdout


def test_a_disk_that_fills_up_is_one_line_and_keeps_what_was_there(tmp_path):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))

    command = [*PROGRAM, "train", *QUICK, "--run", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, preexec_fn=small_files, check=False)
    assert "could not be written" in refused(done)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"recipe.toml", "environment.json", "metrics.jsonl"} <= names
    assert not any("checkpoint" in name for name in names)


def npz(path, **changes):
    data = load_dataset("digits")
    arrays = {
        "x_train": data.train.pixels[:100, 0].numpy(), "y_train": data.train.labels[:100].numpy(),
        "x_test": data.test.pixels[:50, 0].numpy(), "y_test": data.test.labels[:50].numpy(), **changes,
    }  # fmt: skip
    import numpy as np

    np.savez(path, **arrays)
    return path


def test_an_npz_file_trains(tmp_path):
    npz(tmp_path / "data.npz")
    (tmp_path / "digits").mkdir()  # a dataset's name stays its name
    done = cappronet(
        "train", "--data", "data.npz", "--backbone", "pixels", "--epochs", "2", "--run", "run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "capsule c=4 on data," in done.stdout
    assert "50 test images" in cappronet("evaluate", tmp_path / "run").stdout
    assert json.loads((tmp_path / "run" / "config.json").read_text())["num_classes"] == 10


def broken(kind, folder):
    if kind == "truncated":
        path = npz(folder / "data.npz")
        path.write_bytes(path.read_bytes()[:3000])
        return path
    if kind == "labels":
        return npz(folder / "data.npz", y_train=torch.full((100,), -1).numpy())
    if kind == "one class":
        (folder / "images" / "cat").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "images" / "cat" / "a.png")
        return folder / "images"
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (8, 8)).save(folder / "images" / name / f"{i}.png")
    (folder / "images" / "dog" / "broken.png").write_text("no image")
    return folder / "images"


@pytest.mark.parametrize(
    ("kind", "message"),
    [("truncated", "data.npz"), ("labels", "-1"), ("one class", "class"), ("unreadable", "broken.png")],
)
def test_bad_data_is_one_line_and_leaves_no_folder(tmp_path, kind, message):
    path = broken(kind, tmp_path)
    line = refused(cappronet("train", "--data", path, "--run", tmp_path / "run", *QUICK[:4]))
    assert message in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "missing.npz"], "missing.npz"),
        (["--data", "cifar1"], "cifar1"),
        (["--backbone", "resnet9"], "6n+2"),
        (["--backbone", "resnett20"], "resnet20"),
        (["--head", "capsul"], "did you mean 'capsule'"),
        (["--capsule-dim", "65"], "64 features has dimension 1 to 64, got capsule dimension 65"),
        (["--recipe", "none.toml"], "there is no recipe none.toml"),
        (["--resume", "."], "is not a run folder"),
        (["--resume", ".", "--lr", "1"], "--resume continues a run as it was started"),
        (["--lr", "1e20", "--epochs", "2"], "the loss is no longer a finite number"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, arguments, message):
    assert message in refused(cappronet("train", *arguments, cwd=tmp_path))


def test_an_unknown_option_suggests_the_nearest(tmp_path):
    done = cappronet("train", "--epoch", "1", cwd=tmp_path)
    assert done.returncode != 0
    assert "--epochs" in done.stdout + done.stderr
    assert list(Path(tmp_path).iterdir()) == []
