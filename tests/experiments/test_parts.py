"""Studies in parts: each is measured once, also over interruptions and on other machines."""

import json
import shutil

import pytest

from cappronet.reporting import silent
from experiments.studies import parts
from experiments.studies.parts import Part, rows_of, run_parts


class Study:
    """Measures parts in this process, notes them, and fails at one of them."""

    def __init__(self, folder):
        self.folder, self.measured, self.failing = folder, [], None

    def run(self, *names, identity=1):
        chosen = [Part(name, {"settings": (identity,)}, name) for name in names]
        path = self.folder / "results" / "study.json"
        return run_parts("study", chosen, self.measure, self.folder / "parts", path, jobs=1, report=silent)

    def measure(self, job, report):
        report(job, 0, 1)
        if job == self.failing:
            raise InterruptedError("stopped")
        self.measured.append(job)
        return [{"part": job, "number": len(self.measured)}]


@pytest.fixture
def study(tmp_path, monkeypatch):
    def run_jobs(jobs, work, processes, report, text):
        for job in jobs:
            work(job, report)

    monkeypatch.setattr(parts, "run_jobs", run_jobs)
    return Study(tmp_path)


def test_finished_parts_are_not_measured_again(study):
    content = study.run("a", "b")
    assert [row["part"] for row in rows_of(content)] == ["a", "b"]
    path = study.folder / "results" / "study.json"
    before = path.read_text()
    assert study.run("a", "b") == content == json.loads(before)
    shutil.rmtree(study.folder / "parts")
    study.run("b", "a", "c")
    assert study.measured == ["a", "b", "c"]  # the result file has the others


def test_an_interrupted_study_has_what_was_finished(study):
    study.failing = "b"
    with pytest.raises(InterruptedError):
        study.run("a", "b")
    path = study.folder / "results" / "study.json"
    assert [part["name"] for part in json.loads(path.read_text())["parts"]] == ["a"]
    study.failing = None
    study.run("a", "b")
    assert study.measured == ["a", "b"]


def test_other_settings_are_measured_again_and_other_parts_stay(study):
    study.run("a", "b")
    content = study.run("a", identity=2)
    assert study.measured == ["a", "b", "a"]
    assert [(row["part"], row["number"]) for row in rows_of(content)] == [("a", 3), ("b", 2)]


def test_nothing_is_written_where_nothing_was_measured(study):
    assert rows_of(study.run()) == []
    assert not (study.folder / "results").exists()


def test_a_damaged_result_file_is_named(study):
    study.run("a")
    (study.folder / "results" / "study.json").write_text("{")
    with pytest.raises(ValueError, match=r"study\.json.*fix or delete it"):
        study.run("a")
