"""The console of the commands, and the tables, JSON and CSV that they print. Progress and text are `reporting`'s."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from cappronet.reporting import Table, print_text, printable, progress_bar

__all__ = [
    "CommandConsole",
    "print_csv",
    "print_json",
    "print_table",
    "print_text",
    "printable",
    "progress_bar",
]


class CommandConsole(Console):
    """The console of the commands; `--quiet` sets `shows_progress` to False."""

    shows_progress = True


def print_table(table: Table, console: Console) -> None:
    """Print a table in as many parts as the terminal's width needs."""
    headings = tuple(map(printable, table.headings))
    rows = [tuple(map(printable, row)) for row in table.rows]
    shown = replace(table, headings=headings, rows=rows, title=printable(table.title))
    for part in shown.for_terminal(console.width):
        console.print(part, markup=False, emoji=False, highlight=False)


def print_json(value: Any, console: Console) -> None:
    """Print a value for another program: ASCII, so that it is the same in every terminal and file."""
    console.file.write(json.dumps(value, indent=1) + "\n")


def print_csv(headings: Sequence[str], rows: Iterable[Sequence[object]], console: Console) -> None:
    """Print a table for another program; None is an empty cell, what is not UTF-8 in a name an escape."""
    writer = csv.writer(console.file, lineterminator="\n")
    writer.writerow(headings)
    for row in rows:
        cells = ("" if cell is None else cell for cell in row)
        writer.writerow(
            [cell.encode(errors="backslashreplace").decode() if isinstance(cell, str) else cell for cell in cells]
        )
