"""Tables for pages and terminals: every number whole."""

import pytest
from rich.console import Console

from cappronet.grid import Grid

GRID = Grid(
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
    tables = GRID.tables(width)
    assert len(tables) == parts
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as shown:
        for table in tables:
            console.print(table)
    text = shown.get()
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for line in GRID.lines:
        assert all(cell in text for cell in line)
    assert text.count("capsule") == parts
    assert text.count("errors") == 1


def test_columns_can_be_left_out():
    less = GRID.without("net", "all")
    assert less.headings == ("method", "5 images of each")
    assert less.lines == [("refit", "28.55 ± 0.82"), ("added", "27.23 ± 2.11")]
    assert less.names == 1
