"""`cappronet.compare`: heads compared from Python, in processes that do not run the caller's script again."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import cappronet
from cappronet.data.datasets import load_dataset
from cappronet.training import comparison
from cappronet.training.compared import compare
from cappronet.training.run_folder import Run

DIGITS = load_dataset("digits")
X, Y = DIGITS.train.pixels[:300, 0].numpy(), DIGITS.train.labels[:300].numpy()
QUICK = {"backbones": "pixels", "heads": ["linear", "capsule"], "seeds": 2, "epochs": 2, "accelerator": "cpu"}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Runs one after the other without worker processes, which take seconds to start; returns what was trained."""
    trained = []

    def run_jobs(unfinished, work, processes, report, text, assigned):
        for number, job in enumerate(unfinished):
            work(assigned(job, number), report)
            trained.append(job[0].folder.name)

    monkeypatch.setattr(comparison, "run_jobs", run_jobs)
    return trained


def test_it_is_public():
    assert cappronet.compare is compare


def test_the_result_is_the_table_of_the_command_and_has_every_model(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = compare((X, Y + 5), test=(X[:100], Y[:100] + 5), **QUICK)
    assert list(tmp_path.glob("cappronet-*")) == []
    shown = str(result)
    assert shown.startswith("images, 2 epochs\n| backbone | head | test error % | 95 % | n |")
    assert "| pixels | capsule c=4 |" in shown
    assert list(result.runs) == [f"pixels-{head}-seed{seed}" for head in ("linear", "capsule") for seed in (0, 1)]
    frame = result.to_frame()
    assert list(frame["seed"]) == [0, 1, 0, 1]
    assert frame.groupby("head")["error"].mean().to_dict() == pytest.approx({row.head: row.mean for row in result.rows})
    lowest = min(result.rows, key=lambda row: row.mean)
    assert result.best.summary["head"] == lowest.head
    assert result.best.error == min(lowest.errors)
    assert result.model is result.best.model
    assert np.array_equal(result.predict(X), result.best.predict(X))
    assert set(result.predict(X)) <= set(range(5, 15))
    assert len(result.figure.axes) == 1


def test_a_folder_keeps_finished_runs_and_is_what_save_writes(tmp_path, in_this_process):
    folder = tmp_path / "all"
    first = compare((X, Y), folder=folder, **QUICK)
    assert len(in_this_process) == 4
    names = {path.name for path in folder.iterdir()}
    assert names == {*first.runs, "images.npz", "comparison.json", "comparison.png", "comparison-dark.png"}
    compare((X, Y), folder=folder, **{**QUICK, "seeds": 3})
    assert in_this_process[4:] == ["pixels-linear-seed2", "pixels-capsule-seed2"]

    first.save(tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == names
    rows = [json.loads((path / "comparison.json").read_text())["rows"] for path in (folder, tmp_path / "saved")]
    assert rows[0][0]["errors"][:2] == rows[1][0]["errors"]
    again = compare((X, Y), folder=tmp_path / "saved", **QUICK)  # nothing is left to train
    assert len(in_this_process) == 6
    assert again.best.error == first.best.error
    assert Run.open(tmp_path / "saved" / "pixels-linear-seed0").selection.load().classes == tuple("0123456789")


def test_backbones_are_the_commands(in_this_process):
    options = {"heads": ["linear"], "seeds": 1, "epochs": 1, "train_size": 100, "accelerator": "cpu"}
    assert [row.backbone for row in compare("digits", **options).rows] == ["pixels", "resnet8"]
    assert [row.backbone for row in compare("digits", backbone="pixels", **options).rows] == ["pixels"]
    reports = []
    compare(backbones=["pixels"], report=lambda *now: reports.append(now), **options)
    assert reports[0] == ("1 run; 1 at a time on the CPU", 0, 1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"heads": ["linaer"]}, ValueError, "did you mean 'linear'"),
        ({"seeds": 0}, ValueError, "seeds must be at least 1"),
        ({"epoch": 2}, TypeError, "did you mean 'epochs'"),
    ],
)
def test_what_makes_no_sense_is_refused(options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        compare((X, Y), folder=tmp_path / "all", **options)
    assert not (tmp_path / "all").exists()


SCRIPT = """
    from sklearn.datasets import load_digits
    import cappronet

    print("the script runs")
    digits = load_digits()
    options = {"backbones": "pixels", "heads": ["linear", "capsule"], "seeds": 1, "epochs": 1, "jobs": 2}
    result = cappronet.compare((digits.images / 16, digits.target), accelerator="cpu", **options)
    print(len(result.rows), result.predict(digits.images[:3] / 16).shape)
"""


@pytest.mark.slow
def test_a_script_needs_no_guard(tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.stdout == "the script runs\n2 (3,)\n", done.stderr
    assert done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
