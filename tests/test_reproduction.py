"""Tables of the paper: what they need is run, what is there is kept, and the best epoch is not taken for the last."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cappronet import comparison
from cappronet.commands.reproducing import reproduce
from cappronet.reproduction import tables

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
tries = [{ lr = 0.0 }, { lr = 0.3 }]
heads = [{ head = "linear" }, { head = "capsule", capsule_dim = 2 }]
"""
PROGRAM = """
import sys
from pathlib import Path
from cappronet.reproduction import tables
from cappronet.cli import app, main
if __name__ == "__main__":
    tables.shipped = lambda path: Path(sys.argv[1]) / path
    app(sys.argv[2:])
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder that stands in for the project, with a table of tiny runs."""
    (tmp_path / "recipes" / "cpu").mkdir(parents=True)
    (tmp_path / "recipes" / "cpu" / "tiny.toml").write_text(RECIPE)
    (tmp_path / "recipes" / "cpu.toml").write_text(TABLES)
    monkeypatch.setattr(tables, "shipped", lambda path: tmp_path / path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measured(path):
    """What does not depend on time or place."""
    rows = tables.read(path)
    return [{name: value for name, value in row.items() if name not in ("seconds", "commits")} for row in rows]


def test_a_table_is_run_written_and_kept(project, capsys):
    reproduce("table3", jobs=2)
    path = project / "results" / "table3-cpu.json"
    rows = tables.read(path)
    assert [row["head"] for row in rows] == ["linear", "capsule c=2"]
    for row in rows:
        assert row["seeds"] == [0, 1]
        assert row["recipe"]["lr"] == 0.3  # a learning rate of 0 loses on the held-out images
        assert [len(found["validation_errors"]) for found in row["tries"]] == [3, 3]
        assert row["epochs"] == [1, 2, 3, 4]
        assert [curve[-1] for curve in row["curves"]] == row["errors"]
        assert [min(curve) for curve in row["curves"]] == row["best_errors"]
        assert row["recipe"]["data"] == "digits"
        assert row["train_losses"] == [
            json.loads((project / f"runs/reproduce/tiny/{slug}-seed{seed}/summary.json").read_text())["train_loss"]
            for slug in [{"linear": "linear", "capsule c=2": "capsule2"}[row["head"]]]
            for seed in range(2)
        ]
    tried = tables.tried(rows)
    assert tried.headings == ("head", "lr 0.0", "lr 0.3", "taken")
    assert [(line[0], line[-1]) for line in tried.lines] == [("linear", "lr 0.3"), ("capsule c=2", "lr 0.3")]
    errors = rows[1]["tries"][0]["validation_errors"]
    assert tried.lines[1][1] == f"{sum(errors) / 3:.2f}"
    assert "of each try" in capsys.readouterr().out
    for name in ("epochs", "epochs-dark", "c", "c-dark", "tries", "tries-dark"):
        assert (project / "results" / f"table3-cpu-{name}.png").stat().st_size > 5000
    files = sorted((project / "runs").rglob("summary.json"))
    times = [file.stat().st_mtime_ns for file in files]
    assert len(files) == 2 * 2 * 3 + 2 * 2
    capsys.readouterr()
    reproduce("table3", jobs=2)
    assert [file.stat().st_mtime_ns for file in files] == times  # nothing was trained again
    assert tables.read(path) == rows
    assert "capsule c=2" in capsys.readouterr().out


def test_a_table_that_is_stopped_shows_what_is_finished(project, monkeypatch, capsys):
    def stop(planned, jobs, hardware, display, text):
        if text.endswith("try"):
            execute(planned, jobs, hardware, display, text)
        else:
            execute(planned[:1], jobs, hardware, display, text)
            raise InterruptedError("stopped and saved")

    execute = comparison.execute
    monkeypatch.setattr(comparison, "execute", stop)
    with pytest.raises(InterruptedError):
        reproduce("table3", seeds=2, jobs=1)
    (row,) = tables.read(project / "results" / "table3-cpu.json")
    assert (row["head"], row["seeds"]) == ("linear", [0])
    assert "linear" in capsys.readouterr().out


def test_a_table_grows_and_leaves_the_runs_of_others(project):
    reproduce("table3", seeds=1, jobs=1, only=["linear"])
    path = project / "results" / "table3-cpu.json"
    one = tables.read(path)
    assert [(row["head"], row["seeds"]) for row in one] == [("linear", [0])]
    reproduce("table3", seeds=2, jobs=1, only=["linear"])
    assert [row["seeds"] for row in tables.read(path)] == [[0, 1]]
    content = json.loads(path.read_text())
    content["rows"][0]["errors"][0] += 1  # as if measured elsewhere
    path.write_text(json.dumps(content))
    reproduce("table3", seeds=2, jobs=1, only=["linear"])
    assert json.loads(path.read_text()) == content
    assert (project / "results" / "table3-cpu-2.json").is_file()


def children(pid):
    """Processes that a process started, where the system shows them."""
    states = {path.parent.name: path.read_text() for path in Path("/proc").glob("[0-9]*/stat")}
    return [child for child, state in states.items() if int(state.rpartition(")")[2].split()[1]) == pid]


def test_a_killed_table_ends_as_one_that_was_not(project):
    (project / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", str(project), "reproduce", "table3", "--jobs", "1", "--only", "capsule"]
    killed = subprocess.Popen([*command, "--folder", "a", "--output", "out-a"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((project / "a").rglob("summary.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    others = children(killed.pid)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in others) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in others)
    done = len(list((project / "a").rglob("summary.json")))
    assert 0 < done < 8
    for folder, output in (("a", "out-a"), ("b", "out-b")):
        subprocess.run([*command, "--folder", folder, "--output", output], check=True, stdout=subprocess.DEVNULL)
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

    found = [row("a", "linear", [4.0, 5.0, 6.0]), row("b", "linear", [1, 1, 1]), row("a", "capsule", [3.5, 4.0, 5.5])]
    lines = tables.grid(found).lines
    assert lines[2][7].startswith("-0.67 ± ")
    assert lines[0][7] == lines[1][7] == ""
    shown = tables.grid(found).markdown()
    assert "| d | b | capsule | 5 | 4.33 ± " in shown
    assert "against linear" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"what": "table2"}, "table2 can't be run at the scale 'cpu', only table3"),
        ({"what": "table3", "only": ["vgg"]}, "no row of table3 has vgg; there are tiny"),
        ({"what": "table3", "seeds": 0}, "--seeds must be at least 1, got 0"),
        ({"what": "figure2", "only": ["linear"]}, "figure2 needs a row with capsule c=2"),
    ],
)
def test_a_mistake_is_one_line(project, arguments, message):
    with pytest.raises(ValueError, match=message):
        reproduce(arguments.pop("what"), **arguments)


def test_a_missing_file_is_named(project):
    with pytest.raises(FileNotFoundError, match="there is no file nowhere"):
        reproduce("table3", cifar10=Path("nowhere.npz"))


def test_cifar10_is_read_from_where_it_is():
    found = tables.entries("table3", "cpu", cifar10="/there.npz")
    assert {entry.recipe.data for entry in found} == {"digits", "/there.npz"}
    assert {entry.recipe.train_size for entry in found if entry.group == "cifar10-5000"} == {5000}


def test_the_papers_tables_carry_its_values():
    found = {(e.group, e.label): e for e in tables.entries("table3", "paper")}
    assert found["cifar10-resnet110", "capsule c=8"].published == 5.19
    assert found["cifar10-resnet110", "group c=2"].published == 6.26
    assert found["cifar10-resnet110", "linear"].recipe.epochs == 500


def test_figures_are_drawn_from_a_step_and_a_run(project):
    reproduce("figure1")
    reproduce("figure2")
    for name in ("figure1", "figure2-tiny", "figure2-tiny-lengths"):
        for theme in ("", "-dark"):
            assert (project / "results" / f"{name}{theme}.png").stat().st_size > 5000
