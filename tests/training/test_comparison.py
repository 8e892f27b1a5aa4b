"""Comparisons of runs: which device each takes, what is said before and during them."""

import json

import pytest
import torch

from cappronet.training import comparison
from cappronet.training.comparison import HEAD_VARIANTS, PlannedRun, find_devices, plan_text, planned_runs, train_all
from cappronet.training.loop import Hardware
from cappronet.training.recipe import Recipe
from cappronet.training.workers import pace


@pytest.fixture
def gpus(monkeypatch):
    def fake(count):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    return fake


def test_all_gpus_are_used_unless_fewer_are_asked_for(gpus):
    gpus(3)
    assert find_devices("auto") == ("cuda", [0, 1, 2])
    assert find_devices("gpu", 2) == ("cuda", [0, 1])
    assert find_devices("cpu") == ("cpu", [])
    gpus(0)
    assert find_devices("auto") == ("cpu", [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cuda", None), "--accelerator cpu"),
        (("tpu", None), "auto, cpu, cuda or mps, got 'tpu'"),
        (("cpu", 2), "--jobs 2"),
        (("cpu", 0), "at least 1, got 0"),
    ],
)
def test_devices_that_are_not_there_are_refused(gpus, arguments, message):
    gpus(0)
    with pytest.raises(ValueError, match=message):
        find_devices(*arguments)
    gpus(1)
    with pytest.raises(ValueError, match="there are 1 of cuda"):
        find_devices("cuda", 4)


def test_heads_on_unit_features_are_compared_with_one_fixed_scale(tmp_path):
    runs = planned_runs(Recipe(scale="learned"), ["pixels"], list(HEAD_VARIANTS), 1, tmp_path)
    labels = {run.recipe.head_label for run in runs}
    assert {label for label in labels if "scale" in label} == {
        *("cosine, scale 25", "subcenter c=4, scale 25", "unit capsule c=4, scale 25")
    }
    assert {"linear", "capsule c=4", "group c=4"} < labels


def record(job, report):
    """In place of training: writes down which device the run was given."""
    planned, hardware = job
    planned.folder.mkdir(parents=True)
    (planned.folder / "device.json").write_text(json.dumps(hardware.device))
    report("training", 1, 1)


def test_each_process_takes_a_device_of_its_own(tmp_path, monkeypatch):
    """The list of devices is made up; nothing here touches a GPU."""
    monkeypatch.setattr(comparison, "_train", record)
    jobs = []
    run_jobs = comparison.run_jobs

    def in_this_process(unfinished, work, processes, report, text, assigned):
        jobs.extend(assigned(job, number % processes) for number, job in enumerate(unfinished))
        for job in jobs:
            work(job, report)

    monkeypatch.setattr(comparison, "run_jobs", in_this_process)
    runs = [PlannedRun(Recipe(seed=n), tmp_path / str(n)) for n in range(6)]
    train_all(runs, 3, Hardware(accelerator="cuda"), devices=[4, 7])
    given = [json.loads((run.folder / "device.json").read_text()) for run in runs]
    assert given == [4, 7, 4, 4, 7, 4]
    assert all(hardware.accelerator == "cuda" for _, hardware in jobs)
    assert run_jobs is not comparison.run_jobs


def test_fabric_is_given_the_device(monkeypatch):
    import lightning_fabric

    given = {}
    monkeypatch.setattr(lightning_fabric, "Fabric", lambda **options: given.update(options))
    Hardware(accelerator="cuda", device=3).fabric("bf16-mixed")
    assert given["devices"] == [3]
    assert given["precision"] == "bf16-mixed"
    Hardware(accelerator="cpu").fabric("32-true")
    assert given["devices"] == 1


def test_the_plan_counts_runs_and_devices(tmp_path):
    runs = [PlannedRun(Recipe(seed=n), tmp_path / str(n)) for n in range(4)]
    assert plan_text(runs, 8, "cpu") == "4 runs; 4 at a time on the CPU"
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "summary.json").write_text("{}")
    text = plan_text(runs, 2, "cuda", [0, 1])
    assert "1 of them finished" in text
    assert "2 at a time on 2 cuda devices" in text


def test_the_pace_is_that_of_what_is_done():
    assert pace(60, 2, 4, 2) == "  60 s each, about 2 min left"
    assert pace(30, 1.5, 0.5, 1) == "  20 s each, about 10 s left"
    assert pace(7200, 1, 3, 1) == "  2.0 h each, about 6.0 h left"


def test_the_first_pace_is_printed_once(capsys):
    from cappronet.cli.training import _with_first_pace

    reports = []
    report = _with_first_pace(lambda *values: reports.append(values))
    texts = ("run 1/3", "run 2/3  5 s each, about 10 s left", "run 3/3  5 s each, about 5 s left")
    for done, text in enumerate(texts):
        report(text, done, 3)
    assert len(reports) == 3
    assert capsys.readouterr().out == "run 2/3  5 s each, about 10 s left\n"
