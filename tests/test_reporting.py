"""Tables for pages and terminals, every number whole; progress for callers of the library."""

import sys
from types import ModuleType

import pytest
from rich.console import Console

from cappronet import reporting
from cappronet.reporting import Result, Table, progress_for

GRID = Table(
    ("net", "method", "5 images of each", "all"),
    [("linear", "refit", "28.55 ± 0.82", "14.3"), ("capsule", "added", "27.23 ± 2.11", "12.0")],
    names=2,
    title="errors",
)


def test_markdown():
    assert GRID.markdown() == (
        "| net | method | 5 images of each | all |\n|---|---|--:|--:|\n"
        "| linear | refit | 28.55 ± 0.82 | 14.3 |\n| capsule | added | 27.23 ± 2.11 | 12.0 |"
    )


@pytest.mark.parametrize(("width", "parts"), [(80, 1), (40, 2), (36, 2)])
def test_a_narrow_terminal_gets_more_tables_and_no_cut_number(width, parts):
    tables = GRID.for_terminal(width)
    assert len(tables) == parts
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as shown:
        for table in tables:
            console.print(table)
    text = shown.get()
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for line in GRID.rows:
        assert all(cell in text for cell in line)
    assert text.count("capsule") == parts
    assert text.count("errors") == 1


def test_columns_can_be_left_out():
    less = GRID.without("net", "all")
    assert less.headings == ("method", "5 images of each")
    assert less.rows == [("refit", "28.55 ± 0.82"), ("added", "27.23 ± 2.11")]
    assert less.names == 1


class Line:
    """A notebook's output that is replaced."""

    def __init__(self):
        self.shown = []

    def update(self, data, raw):
        assert raw
        self.shown.append(data["text/plain"])


@pytest.fixture
def notebook(monkeypatch):
    """What rich takes for a notebook, and its output."""
    line, seconds = Line(), [0.0]
    displays = ModuleType("IPython.display")
    displays.display = lambda data, raw, display_id: line.shown.append(data["text/plain"]) or line
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(reporting.time, "monotonic", lambda: seconds[0])
    return line, seconds


def test_a_notebook_has_a_line_that_changes_and_disappears(notebook):
    line, seconds = notebook
    with progress_for(None, quiet=False) as report:
        report("epoch 1/2", 0, 10)
        seconds[0] = 4.0
        report("epoch 1/2  loss 0.5 \x1b", 4, 10)
        report("epoch 1/2  loss 0.4", 5, 10)  # too soon after the last
    assert line.shown == ["loading", "epoch 1/2  loss 0.5 \\x1b  about 6 s left", ""]


def test_progress_is_for_those_who_see_it(notebook, monkeypatch, capsys):
    line, _ = notebook
    reports = []

    def mine(*now):
        reports.append(now)

    with progress_for(mine, quiet=False) as report:
        assert report is mine
    with progress_for(None, quiet=True) as report:
        report("epoch 1/2", 1, 2)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: False)
    with progress_for(None, quiet=False) as report:  # here is no terminal either
        report("epoch 1/2", 1, 2)
    assert line.shown == []
    assert capsys.readouterr() == ("", "")


class Counted(Result):
    table = Table(("head", "error"), [("linear", "1.50")], title="digits")
    notes = ["Error: in percent."]


def test_a_result_prints_and_shows_its_table():
    result = Counted()
    assert str(result) == repr(result) == "digits\n| head | error |\n|---|--:|\n| linear | 1.50 |\nError: in percent."
    assert result._repr_markdown_().split("\n\n")[1].startswith("| head | error |\n|---|--:|\n")
