"""Tables of the paper: missing runs are trained, finished ones reused, and the last epoch is reported."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cappronet.data.datasets import load_dataset
from cappronet.training import comparison
from cappronet.training.figures import drawn
from cappronet.training.loop import train
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run
from experiments.reproduction import commands, entries, figures
from experiments.reproduction.commands import RunOptions, figure1, figure2, pictures, table1, table2
from experiments.reproduction.entries import read_entries
from experiments.reproduction.outcomes import Finished, read_rows
from experiments.reproduction.tables import error_table, tuning_table

ROOT = Path(__file__).parents[2]
RECIPE = """# Tiny.
data = "digits"
train_size = 300
backbone = "pixels"
epochs = 4
lr = 0.3
"""
TABLES = """
[[table3]]
recipe = "cpu/tiny"
seeds = 2
validation = 100
trials = [{ lr = 0.0 }, { lr = 0.3 }]
heads = [{ head = "linear" }, { head = "capsule", capsule_dim = 2 }]
"""
PROGRAM = """
import sys
from pathlib import Path
from experiments.__main__ import app
from experiments.reproduction import entries
if __name__ == "__main__":
    entries.TABLES, entries.RECIPES = {"cpu": Path("cpu.toml")}, Path("recipes")
    app(sys.argv[1:])
"""


def table3(cifar10=None, **options):
    commands.table3(cifar10=cifar10, runs=RunOptions(**options))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder that stands in for the repository, with a table of tiny runs."""
    (tmp_path / "recipes" / "cpu").mkdir(parents=True)
    (tmp_path / "recipes" / "cpu" / "tiny.toml").write_text(RECIPE)
    (tmp_path / "cpu.toml").write_text(TABLES)
    monkeypatch.setattr(entries, "TABLES", {"cpu": tmp_path / "cpu.toml", "paper": tmp_path / "cpu.toml"})
    monkeypatch.setattr(entries, "RECIPES", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measured(path):
    """What does not depend on time or place."""
    rows = read_rows(path)
    return [{name: value for name, value in row.items() if name not in ("seconds", "commits")} for row in rows]


class Training:
    """Trains runs in this process, which is quicker for tiny ones, and notes their folders.

    A run that should be compiled is noted as such and trained as it is: to compile takes far longer than to train.
    """

    def __init__(self):
        self.folders, self.compiled, self.limit = [], [], None

    def train_all(self, runs, jobs, hardware, report, text):
        for run in runs:
            if len(self.folders) == self.limit:
                raise InterruptedError("stopped and saved")
            train(run.recipe.changed(compile=False), Run(run.folder), hardware)
            self.folders.append(run.folder.as_posix().removeprefix("runs/reproduce/"))
            self.compiled.append(run.recipe.compile)

    def interrupt(self, count, command, **options):
        """Run a command that is interrupted after so many runs, as by Ctrl-C."""
        self.limit = len(self.folders) + count
        with pytest.raises(InterruptedError):
            command(**options)
        self.folders, self.compiled, self.limit = [], [], None


@pytest.fixture
def training(monkeypatch):
    training = Training()
    monkeypatch.setattr(comparison, "train_all", training.train_all)
    return training


@pytest.mark.slow
def test_a_table_is_run_written_and_reused(project, capsys):
    table3(jobs=2)
    path = project / "results" / "table3-cpu.json"
    rows = read_rows(path)
    assert [row["head"] for row in rows] == ["linear", "capsule c=2"]
    for row in rows:
        assert row["seeds"] == [0, 1]
        assert row["recipe"]["lr"] == 0.3  # a learning rate of 0 loses on the held-out images
        assert [len(trial["validation_errors"]) for trial in row["tries"]] == [3, 3]
        assert row["epochs"] == [1, 2, 3, 4]
        assert [curve[-1] for curve in row["curves"]] == row["errors"]
        assert [min(curve) for curve in row["curves"]] == row["best_errors"]
        assert row["recipe"]["data"] == "digits"
        assert row["train_losses"] == [
            json.loads((project / f"runs/reproduce/tiny/{slug}-seed{seed}/summary.json").read_text())["train_loss"]
            for slug in [{"linear": "linear", "capsule c=2": "capsule2"}[row["head"]]]
            for seed in range(2)
        ]
    tuning = tuning_table(rows)
    assert tuning.headings == ("head", "lr 0.0", "lr 0.3", "chosen")
    assert [(row[0], row[-1]) for row in tuning.rows] == [("linear", "lr 0.3"), ("capsule c=2", "lr 0.3")]
    errors = rows[1]["tries"][0]["validation_errors"]
    assert tuning.rows[1][1] == f"{sum(errors) / 3:.2f}"
    assert "validation error" in capsys.readouterr().out
    for name in ("epochs", "epochs-dark", "tuning", "tuning-dark"):
        assert (project / "results" / f"table3-cpu-{name}.png").stat().st_size > 5000
    files = sorted((project / "runs").rglob("summary.json"))
    times = [file.stat().st_mtime_ns for file in files]
    assert len(files) == 2 * 2 * 3 + 2 * 2
    capsys.readouterr()
    table3(jobs=2)
    assert [file.stat().st_mtime_ns for file in files] == times  # nothing was trained again
    assert read_rows(path) == rows
    assert "capsule c=2" in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_table_shows_what_is_finished(project, training, capsys):
    training.interrupt(13, table3)
    linear, capsule = read_rows(project / "results" / "table3-cpu.json")
    assert (linear["head"], linear["seeds"]) == ("linear", [0])
    assert (capsule["seeds"], capsule["errors"], capsule["recipe"]["lr"]) == ([], [], 0.3)
    assert "linear" in capsys.readouterr().out


def test_a_row_that_is_being_tuned_is_written_and_read(project, training):
    training.interrupt(4, table3)
    (row,) = read_rows(project / "results" / "table3-cpu.json")
    assert (row["head"], row["errors"], row["seeds"]) == ("linear", [], [])
    assert [len(trial["validation_errors"]) for trial in row["tries"]] == [3, 1]
    assert row["parameters"] == 650
    assert error_table([row]).markdown().splitlines()[2].startswith("| digits, 300 images | pixels | linear |")
    (cells,) = tuning_table([row]).rows
    assert (cells[0], cells[-1]) == ("linear", "")
    assert cells[2] == f"{row['tries'][1]['validation_errors'][0]:.2f}"


def test_tuning_tables_name_backbones_that_differ():
    tries = [{"changes": {"lr": rate}, "validation_errors": [error]} for rate, error in ((0.1, 9.0), (0.2, 8.0))]
    narrow, wide = ({"backbone": name, "head": "linear", "tries": tries} for name in ("resnet8", "resnet8_d64"))
    assert tuning_table([narrow, narrow]).headings == ("head", "lr 0.1", "lr 0.2", "chosen")
    assert tuning_table([narrow, wide]).rows[1] == ("resnet8_d64", "linear", "9.00", "8.00", "lr 0.2")


@pytest.mark.slow
def test_a_fresh_machine_continues_from_the_result_file(project, training):
    training.interrupt(14, table3)
    path = project / "results" / "table3-cpu.json"
    first = read_rows(path)
    assert [row["seeds"] for row in first] == [[0], [0]]
    shutil.rmtree(project / "runs")
    table3()
    assert training.folders == ["tiny/linear-seed1", "tiny/capsule2-seed1"]
    rows = read_rows(path)
    for before, row in zip(first, rows, strict=True):
        assert row["seeds"] == [0, 1]
        assert row["errors"][0] == before["errors"][0]
        assert row["tries"] == before["tries"]
    shutil.rmtree(project / "runs")
    content = path.read_text()
    table3()
    assert len(training.folders) == 2
    assert path.read_text() == content  # nothing new, nothing written
    assert sorted(file.name for file in path.parent.glob("*.json")) == ["table3-cpu.json"]


@pytest.mark.slow
def test_tuning_continues_from_the_result_file(project, training):
    training.interrupt(4, table3, only=["linear"])
    shutil.rmtree(project / "runs")
    table3(only=["linear"], seeds=1)
    assert training.folders == ["tiny/tries/linear-try1-seed1", "tiny/tries/linear-try1-seed2", "tiny/linear-seed0"]


@pytest.mark.slow
def test_compiled_networks_are_trained_and_count_as_the_same(project, training):
    table3(seeds=1, only=["linear"])
    assert len(training.folders) == 7
    assert not any(training.compiled)
    table3(seeds=2, only=["linear"], compile=True)
    assert training.folders[7:] == ["tiny/linear-seed1"]
    assert training.compiled[7:] == [True]
    shutil.rmtree(project / "runs")
    table3(seeds=2, only=["linear"])
    assert len(training.folders) == 8


@pytest.mark.slow
def test_another_precision_makes_other_results(project, training):
    path = project / "results" / "table3-cpu.json"
    for head in ("linear", "capsule"):
        table3(seeds=1, only=[head], precision="bf16-mixed")
    assert [row["recipe"]["precision"] for row in read_rows(path)] == ["bf16-mixed", "bf16-mixed"]
    with pytest.raises(FileExistsError, match="recipe"):
        table3(seeds=1, only=["linear"])
    assert len(training.folders) == 14
    table3(seeds=1, only=["linear"], folder=Path("others"))
    assert len(training.folders) == 21
    (row,) = read_rows(path.with_name("table3-cpu-2.json"))
    assert row["recipe"]["precision"] == "32-true"
    assert len(read_rows(path)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "retrained"),
    [
        ("epochs = 4", "epochs = 3", 7),  # another recipe
        ("validation = 100", "validation = 90", 6),  # other trials, whose choice is the same
    ],
)
def test_results_of_other_settings_are_not_reused(project, training, old, new, retrained):
    table3(seeds=1, only=["linear"])
    shutil.rmtree(project / "runs")
    for file in (project / "cpu.toml", project / "recipes" / "cpu" / "tiny.toml"):
        file.write_text(file.read_text().replace(old, new))
    training.folders.clear()
    table3(seeds=1, only=["linear"])
    assert len(training.folders) == retrained
    assert (project / "results" / "table3-cpu-2.json").is_file()


@pytest.mark.slow
def test_committed_results_are_recognized(tmp_path, training):
    shutil.copy(ROOT / "results" / "table3-cpu.json", tmp_path)
    (tmp_path / "cifar10.npz").write_bytes(b"")  # not read, because nothing is trained
    table3(folder=tmp_path / "runs", output=tmp_path, cifar10=tmp_path / "cifar10.npz")
    assert training.folders == []
    results = {path.name for path in tmp_path.glob("*.json")}
    assert results == {"table3-cpu.json"}
    ours, theirs = (read_rows(folder / "table3-cpu.json") for folder in (tmp_path, ROOT / "results"))
    for row in (*ours, *theirs):  # settings that are newer than the file have their defaults
        row.pop("tuning", None)
        row["recipe"] = Recipe.from_dict(row["recipe"], row["head"])
    assert ours == theirs


@pytest.mark.slow
def test_a_later_stage_is_trained_after_the_runs_of_an_earlier_one(project, training):
    tables = project / "cpu.toml"
    later = TABLES.replace("seeds = 2", "seeds = 1\nstage = 2").replace("trials = [{ lr = 0.0 }, { lr = 0.3 }]\n", "")
    first = TABLES.replace(', { head = "capsule", capsule_dim = 2 }', "")
    tables.write_text(first + later.replace('{ head = "linear" }, ', ""))
    table3(seeds=1)
    assert training.folders[-2:] == ["tiny/linear-seed0", "tiny/capsule2-seed0"]
    assert [row["head"] for row in read_rows(project / "results" / "table3-cpu.json")] == ["linear", "capsule c=2"]


@pytest.mark.slow
def test_a_table_grows_and_leaves_other_results_alone(project, training):
    table3(seeds=1, only=["linear"])
    path = project / "results" / "table3-cpu.json"
    one = read_rows(path)
    assert [(row["head"], row["seeds"]) for row in one] == [("linear", [0])]
    table3(seeds=2, only=["linear"])
    assert [row["seeds"] for row in read_rows(path)] == [[0, 1]]
    content = json.loads(path.read_text())
    content["rows"][0]["errors"][0] += 1  # as if measured elsewhere
    path.write_text(json.dumps(content))
    table3(seeds=2, only=["linear"])
    assert json.loads(path.read_text()) == content
    assert (project / "results" / "table3-cpu-2.json").is_file()


@pytest.mark.slow
def test_chosen_rows_leave_the_others_in_the_result_file(project, training):
    table3(seeds=1)
    path = project / "results" / "table3-cpu.json"
    content = json.loads(path.read_text())
    for row in content["rows"]:
        row["recipe"]["compile"] = True
    path.write_text(json.dumps(content))
    linear, capsule = read_rows(path)
    shutil.rmtree(project / "runs")
    table3(seeds=2, only=["capsule"])
    assert training.folders[-1] == "tiny/capsule2-seed1"
    after, grown = read_rows(path)
    assert after == linear  # the recipe too, although this command did not compile
    assert (grown["seeds"], grown["errors"][:1]) == ([0, 1], capsule["errors"])
    assert [file.name for file in path.parent.glob("*.json")] == ["table3-cpu.json"]


def running():
    """From each process that has not ended to its parent, where the system shows them."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in listed.splitlines())
    return {int(pid): int(parent) for pid, parent, state in rows if not state.startswith("Z")}


@pytest.mark.slow
def test_a_killed_table_ends_as_one_that_was_not(project, training, monkeypatch):
    (project / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", "table3", "--jobs", "1", "--only", "capsule"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", paths)
    killed = subprocess.Popen([*command, "--folder", "a", "--output", "out-a"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((project / "a").rglob("summary.json")) and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    others = {child for child, parent in running().items() if parent == killed.pid}
    assert others
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    while others & running().keys() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not others & running().keys()
    done = len(list((project / "a").rglob("summary.json")))
    assert 0 < done < 8
    for name in ("a", "b"):
        table3(only=["capsule"], folder=Path(name), output=Path(f"out-{name}"))
    ours, theirs = (measured(project / output / "table3-cpu.json") for output in ("out-a", "out-b"))
    assert ours == theirs


def test_the_control_is_the_linear_head_of_the_group():
    def row(group, head, errors):
        values = {"data": "d", "backbone": "b", "parameters": 1, "seconds": 1.0, "published": 5.0, "seeds": [0, 1, 2]}
        return {
            "group": group,
            "head": head,
            "errors": errors,
            "best_errors": errors,
            "recipe": {"head": head},
            **values,
        }

    rows = [row("a", "linear", [4.0, 5.0, 6.0]), row("b", "linear", [1, 1, 1]), row("a", "capsule", [3.5, 4.0, 5.5])]
    cells = error_table(rows).rows
    assert cells[2][7].startswith("-0.67 ± ")
    assert cells[0][7] == cells[1][7] == ""
    shown = error_table(rows).markdown()
    assert "| d | b | capsule | 5 | 4.33 ± " in shown
    assert "difference to linear" in shown


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (table1, {}, "table1.*cpu.*table3"),
        (table2, {}, "table2.*paper.*table3"),
        (table3, {"only": ["vgg"]}, "vgg.*tiny"),
        (table3, {"seeds": 0}, "--seeds must be at least 1, got 0"),
        (figure2, {"only": ["linear"]}, "capsule c=2"),
    ],
)
def test_a_mistake_is_one_line(project, command, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        command(**options)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(project):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz.*--cifar10"):
        table3(cifar10=Path("nowhere.npz"))


def test_cifar10_is_read_from_the_file_that_is_given():
    rows = read_entries("table3", "cpu", files={"cifar10": "/there.npz"})
    assert {entry.recipe.data for entry in rows} == {"digits", "/there.npz"}
    assert {entry.recipe.train_size for entry in rows if entry.group == "cifar10-5000"} == {5000}


def test_the_papers_tables_carry_its_values():
    rows = {(entry.group, entry.label): entry for entry in read_entries("table3", "paper")}
    assert rows["cifar10-resnet110", "capsule c=8"].published == 5.19
    assert rows["cifar10-resnet110", "group c=2"].published == 6.26
    assert rows["cifar10-resnet110", "linear"].recipe.epochs == 500


def test_runs_keep_their_folders():
    entries = {entry.label: entry for entry in read_entries("end-to-end", "cpu")}
    entry = entries["unit capsule c=8, scale 25"]
    root = Path("runs")
    assert entry.run(root, 2).folder == root / "cifar100-resnet8-d512" / "unit-capsule8-scale-25-seed2"
    trial = entry.trial(root, 3, 0)
    assert trial.folder == root / "cifar100-resnet8-d512" / "tries" / "unit-capsule8-scale-25-try3-seed0"
    assert (trial.recipe.lr, trial.recipe.epochs, trial.recipe.evaluate_every, trial.recipe.validation) == (
        *(0.8, 5, 5, 5000),
    )


def test_five_heads_trained_end_to_end_come_first_and_are_tuned_alike():
    entries = read_entries("end-to-end", "cpu")
    assert [entry.label for entry in entries if entry.stage == 1] == [
        "linear",
        "cosine, scale 25",
        "unit capsule c=8, scale 25",
        "unit capsule c=8, scale 25, Grassmann step",
        "group c=8",
    ]
    assert [entry.label for entry in entries if entry.stage == 2] == [
        "unit capsule c=1, scale 25",
        "unit capsule c=16, scale 25",
        "capsule c=8",
        "weightnorm",
    ]
    plain, geodesic = entries[2].recipe, entries[3].recipe
    assert geodesic == plain.changed(head_optimizer="grassmann")
    for entry in entries:
        assert (entry.trials, entry.tuning, entry.validation) == (entries[0].trials, {"epochs": 5}, 5000)


def test_recorded_results_of_heads_trained_end_to_end_are_recognized(tmp_path):
    recorded = read_rows(ROOT / "results" / "end-to-end-cpu.json")
    entries, finished = read_entries("end-to-end", "cpu"), Finished(tmp_path, recorded)
    runs = finished.missing_trials(entries)
    missing = {(run.recipe.head_label, run.recipe.lr) for run in runs}
    for row in recorded:
        for trial in row["tries"]:
            if trial["validation_errors"]:
                assert (row["head"], trial["changes"]["lr"]) not in missing
    assert len(runs) < len(Finished(tmp_path).missing_trials(entries))
    outcomes = {entry.label: [finished.outcome(finished.tuned(entry), seed) for seed in range(3)] for entry in entries}
    for row in recorded:
        assert [outcome.error for outcome in outcomes[row["head"]] if outcome is not None] == row["errors"]


TUNED = ("end-to-end", "widths", "superclasses", "tuned-cifar10", "label-noise", "fine-tuned-heads")
END_TO_END = (*TUNED, "longer-schedule")


@pytest.mark.parametrize("table", TUNED)
def test_heads_of_a_group_differ_in_nothing_but_the_head_and_are_tuned_alike(table):
    groups = _by_group(table)
    shared = {"head": "linear", "capsule_dim": 4, "normalize": False, "scale": "none", "decay_head": True}
    shared |= {"head_optimizer": "same"}
    for members in groups.values():
        assert members[0].label == "linear"
        assert len({entry.recipe.changed(**shared) for entry in members}) == 1
        assert len({(entry.seeds, entry.validation, entry.trial_seeds, str(entry.trials)) for entry in members}) == 1
        assert {entry.seeds for entry in members} == {3}


def test_the_longer_schedule_differs_in_its_length_and_has_the_chosen_learning_rates():
    rates = {row["head"]: row["recipe"]["lr"] for row in read_rows(ROOT / "results" / "end-to-end-cpu.json")}
    short = {entry.label: entry.recipe for entry in read_entries("end-to-end", "cpu")}
    longer = {entry.label: entry.recipe for entry in read_entries("longer-schedule", "cpu")}
    assert longer.keys() == {"linear", "cosine, scale 25", "unit capsule c=8, scale 25"}
    for head, recipe in longer.items():
        assert recipe == short[head].changed(epochs=24, lr=rates[head])


def _folders(entry):
    return [entry.run(Path(), 0).folder, *([entry.trial(Path(), 0, 0).folder] if entry.trials else [])]


def test_no_two_rows_share_a_run_folder():
    tables = ["table1", "table3", "settings", *END_TO_END]
    entries = [entry for table in tables for entry in read_entries(table, "cpu")]
    folders = [planned for entry in entries for planned in _folders(entry)]
    assert len(set(folders)) == len(folders)


def test_rows_change_their_recipe():
    d64, d1024 = (members[0] for members in _by_group("widths").values())
    assert (d64.recipe.backbone, d1024.recipe.backbone) == ("resnet8_d64", "resnet8_d1024")
    wide = read_entries("end-to-end", "cpu")[0].recipe
    assert d64.recipe.changed(backbone=wide.backbone) == wide
    assert d1024.recipe.changed(backbone=wide.backbone, precision="32-true") == wide
    files = {"cifar10-noise40": "/there/cifar10-noise40.npz", "timm": "/there/lite0.pth", "cifar100": "/there/c.npz"}
    noisy = read_entries("label-noise", "cpu", only=["noise40"], files=files)
    assert {entry.recipe.data for entry in noisy} == {"/there/cifar10-noise40.npz"}
    tuned = read_entries("fine-tuned-heads", "cpu", files=files)
    assert {(entry.recipe.pretrained, entry.recipe.data) for entry in tuned} == {("/there/lite0.pth", "/there/c.npz")}


def _by_group(table):
    groups = {}
    for entry in read_entries(table, "cpu"):
        groups.setdefault(entry.group, []).append(entry)
    return groups


@pytest.mark.slow
def test_wrong_labels_are_trained_on_and_recognized_in_the_result_file(project, training):
    digits = load_dataset("digits")
    parts = (("train", digits.train), ("test", digits.test))
    arrays = {f"x_{name}": part.pixels[:, 0].numpy() for name, part in parts}
    np.savez(project / "made.npz", **arrays, **{f"y_{name}": part.labels.numpy() for name, part in parts})
    row = TABLES.replace("table3", "label-noise").replace("seeds = 2", 'seeds = 1\ngroup = "noisy"\nCHANGES')
    (project / "cpu.toml").write_text(row.replace("CHANGES", 'changes = { data = "cifar10-noise40" }'))
    commands.label_noise(cifar10=project / "made.npz", runs=RunOptions())
    path = project / "results" / "label-noise-cpu.json"
    assert training.folders[-1] == "noisy/capsule2-seed0"
    assert {row["data"] for row in read_rows(path)} == {"cifar10-noise40, 300 images"}
    assert {row["recipe"]["data"] for row in read_rows(path)} == {"cifar10-noise40"}
    shutil.rmtree(project / "runs")
    training.folders.clear()
    commands.label_noise(cifar10=project / "made.npz", runs=RunOptions())
    assert training.folders == []


def check_pictures(folder, *names):
    for name in names:
        for theme in ("", "-dark"):
            assert (folder / f"{name}{theme}.png").stat().st_size > 5000


@pytest.mark.slow
def test_figures_are_drawn_from_a_step_and_a_run(project, training):
    figure1()
    figure2()
    check_pictures(project / "results", "figure1", "figure2-tiny", "figure2-tiny-lengths")
    table3(seeds=1, only=["capsule"])
    shutil.rmtree(project / "runs")
    training.folders.clear()
    figure2()
    assert training.folders == ["tiny/capsule2-seed0"]  # the result file has its settings


def head_row(name, **recipe):
    settings = {"head": name.split()[0], "normalize": False, **recipe}
    return {"head": name, "recipe": settings, "errors": [1.0], "tries": []}


def test_a_kind_of_head_has_a_colour_and_a_head_a_style():
    unit = [head_row(f"unit capsule c={c}", head="capsule", normalize=True) for c in (1, 8)]
    paper = [head_row(f"capsule c={c}") for c in (1, 2, 4, 8, 16)]
    rows = [*map(head_row, ("linear", "cosine", "weightnorm", "subcenter c=4", "group c=8")), *paper, *unit]
    styles = figures._styles(rows, "black")
    assert list(styles) == [row["head"] for row in rows]
    assert len(set(styles.values())) == len(rows)
    assert styles["linear"] == ("black", "o-")
    assert len({colour for colour, _ in styles.values()}) == 7
    assert len({styles[row["head"]][0] for row in paper}) == len({styles[row["head"]][0] for row in unit}) == 1


@pytest.mark.parametrize("errors", [(35, 78), (49, 66), (20, 24), (0.4, 21), (6, 60)])
def test_an_axis_of_errors_has_enough_numbers_to_read_them(errors):
    row = {**head_row("linear"), "data": "made", "backbone": "pixels"}

    def draw(figure, ink):
        figures._draw_lines(figure.subplots(), [row], {"linear": ((1, 2), errors)}, ink)

    (axes,) = drawn((7, 3.6), draw).axes
    low, high = axes.get_ylim()
    labels = axes.yaxis.get_ticklabels(minor=False)
    shown = [float(label.get_text()) for label in labels if low <= label.get_position()[1] <= high]
    assert 3 <= len(shown) <= 12
    assert axes.yaxis.get_ticklabels(minor=True) == []
    assert shown == pytest.approx([y for y in axes.get_yticks() if low <= y <= high])


@pytest.mark.slow
def test_pictures_are_drawn_from_result_files(tmp_path):
    pictures(results=ROOT / "results", output=tmp_path)
    tables = ("table1-cpu-epochs", *(f"table3-cpu-{x}" for x in ("epochs", "c", "tuning")), "end-to-end-cpu-tuning")
    names = ("figure1", "compare_digits", "probes", *tables)
    check_pictures(tmp_path, *names)
    drawn = {path.stem.removesuffix("-dark") for path in tmp_path.iterdir()}
    check_pictures(tmp_path, *drawn)
