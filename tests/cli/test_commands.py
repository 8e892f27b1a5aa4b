"""train, compare, evaluate, predict and list as users call them: real processes on real digits."""

import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

from cappronet.cli import app
from cappronet.cli.shared import folder_name
from cappronet.data.datasets import load_dataset
from cappronet.models.network import CapProNet
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run

PROGRAM = [sys.executable, "-m", "cappronet.cli"]
QUICK = ["--accelerator", "cpu", "--epochs", "1", "--train-size", "200"]


def cappronet(*arguments, cwd=None):
    return subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=300)


def started(*arguments, **options):
    """A process that can be interrupted: a test run in the background may ignore SIGINT, which children inherit."""
    return subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def wait_for(process, is_ready):
    """Wait until the process has come so far."""
    deadline = time.monotonic() + 120
    while not is_ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def refused(done):
    """The one line that reports a mistake."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


# One worker trains what these tests use.
with_a_run = pytest.mark.xdist_group("finished run")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of the default model."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    app(["train", "--accelerator", "cpu", "--epochs", "8", "--run", str(folder)], result_action="return_value")
    return folder


@pytest.mark.slow
def test_train_reports_its_error_and_where_everything_is(tmp_path, mistake, monkeypatch):
    done = cappronet("train", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "digits-resnet8-capsule4-seed0-train-size200-epochs1"
    shown = " ".join(done.stdout.split())
    summary = Run(folder).summary
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("epoch 1/1  loss ")]  # off a terminal
    assert re.search(rf"  error {summary['error']:.2f} %  [\d,]+ images/s$", line)
    assert "resnet8 with capsule c=4 on digits, 76,912 parameters" in shown
    assert f"test error {summary['error']:.2f} %" in shown
    assert "Written to runs/digits-resnet8-capsule4-seed0-train-size200-epochs1" in shown
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.chdir(tmp_path)
    assert "finished run" in mistake("train", *QUICK)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "digits-resnet8-capsule4-seed0"),
        ({"lr": 0.05}, "digits-resnet8-capsule4-seed0-lr0.05"),
        ({"head": "linear", "seed": 3, "data": "/some/where/mine.npz"}, "mine-resnet8-linear-seed3"),
        ({"normalize": True, "scale": "learned"}, "digits-resnet8-unit-capsule4-scaled-seed0"),
        ({"head": "linear", "capsule_dim": 8}, "digits-resnet8-linear-seed0-capsule-dim8"),
        ({"flip": True, "nesterov": False, "milestones": (5, 8)},
         "digits-resnet8-capsule4-seed0-no-nesterov-milestones5-8-flip"),
    ],
)  # fmt: skip
def test_a_folder_is_named_after_what_differs(changes, name):
    assert folder_name(Recipe(**changes)) == name


def test_folders_of_many_differences_do_not_collide():
    many = {"flip": True, "padding": 2, "epochs": 5, "optimizer": "adamw"}
    names = [folder_name(Recipe(**many, lr=rate)) for rate in (0.1, 0.2, 0.2000001)]
    assert len(set(names)) == 3
    assert all(len(name) < 60 for name in names)


@pytest.mark.slow
def test_options_override_the_recipe_and_the_effective_one_is_saved(tmp_path, shown, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('backbone = "pixels"\nlr = 0.3\nepochs = 9\nmilestones = [1]\n')
    shown("train", "--recipe", "mine.toml", *QUICK, "--head", "linear", "--run", "out")
    expected = Recipe(backbone="pixels", lr=0.3, epochs=1, milestones=(1,), head="linear", train_size=200)
    assert Run(tmp_path / "out").recipe == expected


LONG = ["--accelerator", "cpu", "--epochs", "5", "--train-size", "300", "--batch-size", "60", "--flip"]


def begun(folder):
    """A run that has written its first checkpoint."""
    process = started("train", *LONG, "--run", folder)
    wait_for(process, (folder / "checkpoint.pt").exists)
    return process


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(tmp_path, mistake):
    assert cappronet("train", *LONG, "--run", tmp_path / "whole").returncode == 0
    process = begun(tmp_path / "killed")
    process.kill()
    process.wait()
    assert not Run(tmp_path / "killed").finished
    done = cappronet("train", "--resume", tmp_path / "killed", "--accelerator", "cpu")
    assert done.returncode == 0, done.stderr
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(whole[name].equal(killed[name]) for name in whole)
    assert "--run" in mistake("train", "--resume", tmp_path / "killed")


@pytest.mark.slow
def test_a_run_in_progress_keeps_everyone_else_out(tmp_path, mistake, shown):
    """Two processes in one folder once left the recipe of the first with the weights of the second."""
    folder = tmp_path / "all" / "resnet8-capsule-seed0"
    process = begun(folder)
    process.send_signal(signal.SIGSTOP)  # it does not finish while the others are refused
    try:
        contents = (folder / "recipe.toml").read_bytes()
        others = [
            ["train", "--run", folder, "--seed", "1", "--capsule-dim", "8"],
            ["train", "--resume", folder],
            ["compare", "--folder", folder.parent, "--backbones", "resnet8", "--heads", "capsule", "--seeds", "1"],
        ]
        for other in others:
            assert "in progress" in mistake(*other)
        assert process.poll() is None
        assert (folder / "recipe.toml").read_bytes() == contents
    finally:
        process.kill()
        process.communicate()
    shown("train", "--resume", folder, "--accelerator", "cpu")  # the lock went with the process
    assert Run(folder).finished
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_of_two_that_start_at_once_one_trains(tmp_path):
    runs = [started("train", *LONG[:-1], "--run", tmp_path / "mix", "--seed", str(seed)) for seed in (0, 1)]
    errors = [process.communicate(timeout=300)[1] for process in runs]
    assert sorted(process.returncode for process in runs) == [0, 1], errors
    (winner,) = [seed for seed, process in enumerate(runs) if process.returncode == 0]
    assert "in progress" in errors[1 - winner] or "finished" in errors[1 - winner]
    assert Run(tmp_path / "mix").recipe.seed == Run(tmp_path / "mix").summary["seed"] == winner


@pytest.mark.slow
def test_control_c_saves_and_says_how_to_resume(tmp_path):
    process = begun(tmp_path / "run")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.startswith("stopped and saved; resume with: ")  # not an error
    assert f"cappronet train --resume {tmp_path / 'run'}" in " ".join(errors.split())
    assert Run(tmp_path / "run").load_checkpoint()["step"] > 0


@pytest.mark.slow
def test_compare_prints_a_table_and_keeps_what_is_done(tmp_path, shown, mistake):
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
    assert "run 4/4" in first.stdout
    again = shown(*command)
    assert again.startswith("4 runs, 4 of them finished")
    assert again.partition("\n")[2] == first.stdout[first.stdout.index("digits, 2 epochs") :]
    assert {path: path.stat().st_mtime_ns for folder in folders for path in folder.iterdir()} == before
    assert "another recipe" in mistake(*command, "--lr", "0.5")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_resumes(tmp_path, number, shown):
    command = ["compare", "--epochs", "4", "--train-size", "300", "--seeds", "2", "--heads", "capsule",
               "--backbones", "resnet8", "--jobs", "1", "--folder", tmp_path / "all"]  # fmt: skip
    process = started(*command)
    wait_for(process, lambda: list(tmp_path.glob("all/*/checkpoint.pt")))
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "same command" in errors
    assert "Traceback" not in errors
    assert len(list(tmp_path.glob("all/*/recipe.toml"))) == 1  # and no other run was started
    shown(*command)
    assert all(Run(folder).finished for folder in (tmp_path / "all").iterdir() if folder.is_dir())


def ended(group):
    """Whether every process of a group ends by itself: those that only clean up notice the end of the others."""
    deadline = time.monotonic() + 30
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return members(group) == []


def members(session):
    """The processes of a session that have not ended."""
    listed = subprocess.run(["ps", "-e", "-o", "sid=,stat=,pid="], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in listed.splitlines())
    return [pid for sid, state, pid in rows if int(sid) == session and not state.startswith("Z")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "target", "signals"),
    [
        ("imports", "group", [signal.SIGINT]),
        ("workers start", "both", [signal.SIGTERM] * 3),
        ("training", "process", [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]),
        ("training", "group", [signal.SIGINT] * 3),
        ("training", "both", [signal.SIGTERM]),
    ],
)
def test_signals_at_any_moment_end_a_comparison_in_one_line(tmp_path, stage, target, signals):
    process = started(
        "compare", "--epochs", "60", "--seeds", "2", "--backbones", "resnet8", "--heads", "capsule", "--jobs", "2",
        "--folder", tmp_path / "all", start_new_session=True,
    )  # fmt: skip
    if stage == "imports":
        time.sleep(0.3)
    elif stage == "workers start":
        wait_for(process, lambda: len(members(process.pid)) > 2)
    else:
        wait_for(process, lambda: len(list(tmp_path.glob("all/*/checkpoint.pt"))) == 2)
    for number in signals:
        if target in ("process", "both"):
            process.send_signal(number)
        if target in ("group", "both"):
            with suppress(ProcessLookupError):  # it has ended already
                os.killpg(process.pid, number)
        time.sleep(0.6)  # after a second, training takes another signal for a command to leave at once
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert len(errors.strip().splitlines()) == 1, errors
    assert errors.startswith("stopped")
    assert ended(process.pid)
    for folder in tmp_path.glob("all/*/"):
        assert Run(folder).load_checkpoint() is not None or stage != "training"
        assert not list(folder.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_group_end_a_probe_in_one_line(tmp_path, number, shown):
    """Its workers, and what ends them, once were hit too, and it waited for them for ever."""
    shown("embed", "pixels", "-o", tmp_path / "digits")
    process = started(
        "probe", tmp_path / "digits", "--jobs", "2", "--folder", tmp_path / "probe", start_new_session=True
    )
    wait_for(process, lambda: len(members(process.pid)) > 4)  # two workers, two trackers
    time.sleep(2)
    for _ in range(3):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        time.sleep(0.05)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert len(errors.strip().splitlines()) == 1, errors
    assert ended(process.pid)
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]


@pytest.mark.slow
@with_a_run
def test_evaluate_measures_what_training_measured(run, shown):
    text = shown("evaluate", run)
    summary = Run(run).summary
    rows = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in text.splitlines() if "│" in line}
    assert rows["accuracy"] == f"{100 - summary['error']:.2f} %"
    assert rows["error"] == f"{summary['error']:.2f} % ({round(3.6 * summary['error'])} of 360)"
    assert "360 test images" in text
    assert ("errors by class" in text) == (summary["error"] > 0)
    measured = json.loads(shown("evaluate", run, "--json", "--ood", "noise"))
    assert {name: measured[name] for name in ("error", "loss", "condition")} == pytest.approx(
        {name: summary[name] for name in ("error", "loss", "condition")}, rel=1e-3
    )
    assert sum(row["errors"] for row in measured["classes"]) == round(3.6 * summary["error"])
    assert 50 < measured["ood"]["class residual"]["noise"]["auroc"] <= 100
    assert not measured["mirror"]


@pytest.mark.slow
@with_a_run
def test_evaluate_averages_images_and_their_mirror_images(run, shown):
    assert "360 test images, each with its mirror image" in shown("evaluate", run, "--mirror")
    measured, plain = (json.loads(shown("evaluate", run, "--json", *option)) for option in (["--mirror"], []))
    assert measured["mirror"]
    model, data = CapProNet.from_pretrained(run), Run(run).selection.load(None).test
    x = model.normalize(data.pixels)
    with torch.no_grad():
        mean = (model(x).softmax(-1) + model(x.flip(-1)).softmax(-1)) / 2
    assert measured["loss"] == pytest.approx(F.nll_loss(mean.log(), data.labels).item(), rel=1e-4)
    assert measured["loss"] != pytest.approx(plain["loss"], rel=1e-2)  # most digits are other shapes in a mirror


@pytest.mark.slow
@with_a_run
def test_evaluate_measures_out_of_distribution_detection(run, tmp_path, shown, mistake):
    Image.fromarray(torch.randint(256, (9, 9, 3), dtype=torch.uint8).numpy()).save(tmp_path / "a.png")
    for name in ("train/x", "train/y", "test/x"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "a.png").write_bytes((tmp_path / "a.png").read_bytes())
    text = shown("evaluate", run, "--ood", "noise", "--ood", tmp_path / "data", "--workers", 0)
    assert "out-of-distribution images: 2,000 of noise, 1 of" in text
    last = text[text.index("out-of-distribution images") :]
    rows = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in last.splitlines() if "│" in line}
    assert {"residual, angle", "length energy", "class residual", "max softmax", "mahalanobis", "vim"} <= set(rows)
    assert float(rows["class residual"][0]) > 95  # AUROC of noise
    assert float(rows["class residual"][1]) < 30
    assert "--classes" in mistake("evaluate", run, "--ood", "held-out")
    assert "did you mean 'cifar10'" in mistake("evaluate", run, "--ood", "cifar1")


@pytest.mark.slow
@with_a_run
def test_predict_names_the_class_of_an_image(run, tmp_path, shown):
    digits = load_dataset("digits").test
    right, files = 0, []
    for i in range(6):
        files.append(tmp_path / f"{i}.png")
        Image.fromarray(digits.pixels[i, 0].numpy()).save(files[-1])
    lines = shown("predict", run, *files).splitlines()
    for i, line in enumerate(line for line in lines if line.startswith("│")):
        _, _, label, probability, length, angle, residual, _ = (cell.strip() for cell in line.split("│"))
        right += label == str(digits.labels[i].item())
        assert 0 < float(probability) <= 1
        assert float(length) > 0
        assert 0 <= float(angle.removesuffix("°")) < 90
        assert float(residual) == pytest.approx(math.sin(math.radians(float(angle.removesuffix("°")))), abs=2e-3)
    assert right >= 5


@pytest.mark.slow
@with_a_run
def test_predict_refuses_what_is_no_image(run, tmp_path, mistake):
    (tmp_path / "text.png").write_text("no image")
    assert "text.png" in mistake("predict", run, tmp_path / "text.png")


@pytest.mark.slow
def test_a_disk_that_fills_up_is_one_line_and_keeps_what_was_there(tmp_path):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))

    command = [*PROGRAM, "train", *QUICK, "--run", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, preexec_fn=small_files, check=False)
    assert "disk full" in refused(done)
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


@pytest.mark.slow
def test_an_npz_file_trains(tmp_path, shown, monkeypatch):
    monkeypatch.chdir(tmp_path)
    npz("data.npz")
    Path("digits").mkdir()  # a dataset's name stays its name
    text = shown("train", "--data", "data.npz", "--backbone", "pixels", "--epochs", "2", "--run", "run")
    assert "capsule c=4 on data," in text
    assert "50 test images" in shown("evaluate", "run")
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
def test_bad_data_is_one_line_and_leaves_no_folder(tmp_path, kind, message, mistake):
    path = broken(kind, tmp_path)
    assert message in mistake("train", "--data", path, "--run", tmp_path / "run", *QUICK[:4])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "missing.npz"], "missing.npz"),
        (["--data", "cifar1"], "cifar1"),
        (["--backbone", "resnet9"], "6n+2"),
        (["--backbone", "resnett20"], "resnet20"),
        (["--head", "capsul"], "did you mean 'capsule'"),
        (["--capsule-dim", "65"], "1 to 64, got capsule dimension 65"),
        (["--recipe", "none.toml"], "none.toml"),
        (["--resume", "."], "recipe.toml"),
        (["--resume", ".", "--lr", "1"], "--resume"),
        (["--lr", "1e20", "--epochs", "2"], "finite"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, arguments, message, mistake, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in mistake("train", *arguments)


def test_an_unknown_option_suggests_the_nearest(tmp_path):
    done = cappronet("train", "--epoch", "1", cwd=tmp_path)
    assert done.returncode != 0
    assert "--epochs" in done.stdout + done.stderr
    done = cappronet("train", f"--{'very-' * 30}long", "1", cwd=tmp_path)
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()  # of more than 80 columns, which is what a pipe counts as
    assert f"--{'very-' * 30}long" in line
    assert list(Path(tmp_path).iterdir()) == []
