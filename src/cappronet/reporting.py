"""What the library tells its caller: progress as it works, results as tables, and the name that was meant.

Names of classes and files come from elsewhere. What is printed here is text, never markup, and nothing in it controls
the terminal. A table is plain text in rows. It becomes Markdown for a page, or as many parts as a terminal's width
needs, with no number cut.
"""

import os
import re
import textwrap
import time
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import rich.table
    from rich.console import Console

__all__ = [
    "IS_MAIN_PROCESS",
    "Report",
    "Result",
    "Table",
    "did_you_mean",
    "duration",
    "print_text",
    "printable",
    "progress_bar",
    "progress_for",
    "silent",
    "tracked",
]

# Of the processes of a distributed run, only the first one prints.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
IS_MAIN_PROCESS = not any(int(os.environ.get(name, "0")) for name in RANK_VARIABLES)
# Unicode's controls, invisible formats such as those that reverse the order of letters, halves of characters from names
# that are not UTF-8, and ends of lines. Two formats join letters in ordinary words, and stay.
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
JOINERS = "\u200c\u200d"
# Off a terminal, work that is not counted in epochs or runs gets a line this often; a notebook's line changes as often.
LINE_SECONDS, NOTEBOOK_SECONDS = 60.0, 0.2
# The first steps include loading and compiling: before this share of the work, they say nothing of the time left.
LEAST_SHARE = 0.01

T = TypeVar("T")

# The one form of progress callback: what is being done, how much of it is done, and how much there is.
Report = Callable[[str, int, int], None]


def silent(_text: str, _done: int, _total: int) -> None:
    """The `Report` of a caller who does not want to know."""


def tracked(items: Iterable[T], text: str, total: int, report: Report) -> Iterator[T]:
    """Pass items on, and report how many were finished."""
    report(text, 0, total)
    for number, item in enumerate(items, 1):
        yield item
        report(text, number, total)


def did_you_mean(word: object, names: Iterable[str]) -> str:
    """The end of an error message about a wrong name: the nearest right one, or nothing if none is near.

    Example:
        >>> did_you_mean("cifar1", ["digits", "cifar10"])
        "; did you mean 'cifar10'?"
    """
    originals = {name.lower(): name for name in names}
    nearest = get_close_matches(str(word).lower(), originals, n=1)
    return f"; did you mean {originals[nearest[0]]!r}?" if nearest else ""


def duration(seconds: float) -> str:
    """A length of time as people say it.

    Example:
        >>> duration(20), duration(150), duration(7200)
        ('20 s', '2 min', '2.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Table:
    """Headings and rows of text.

    Attributes:
        headings: one for each column.
        rows: one cell for each column.
        names: how many of the first columns name a row; the others are numbers.
        title: what a terminal shows above it.
    """

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    names: int = 1
    title: str = ""

    def markdown(self) -> str:
        """The table for a page."""
        rule = ["---" if i < self.names else "--:" for i in range(len(self.headings))]
        text = [f"| {' | '.join(self.headings)} |", f"|{'|'.join(rule)}|"]
        return "\n".join(text + [f"| {' | '.join(row)} |" for row in self.rows])

    def without(self, *headings: str) -> "Table":
        """The same without these columns."""
        columns = [i for i, heading in enumerate(self.headings) if heading not in headings]
        rows = [tuple(row[i] for i in columns) for row in self.rows]
        names = sum(i < self.names for i in columns)
        return Table(tuple(self.headings[i] for i in columns), rows, names, self.title)

    def for_terminal(self, width: int) -> "list[rich.table.Table]":
        """The table for a terminal of this width; what does not fit beside the names comes below, with them again."""
        widths = [self._width(i) for i in range(len(self.headings))]
        room = width - 1 - sum(wide + 3 for wide in widths[: self.names])
        parts: list[list[int]] = [[]]
        for i in range(self.names, len(widths)):
            if parts[-1] and sum(widths[j] + 3 for j in [*parts[-1], i]) > room:
                parts.append([])
            parts[-1].append(i)
        return [self._part([*range(self.names), *part], self.title if part is parts[0] else "") for part in parts]

    def _width(self, column: int) -> int:
        """Of the longest cell, or the longest word of the heading, which may take several lines."""
        words = self.headings[column].split()
        return max(map(len, [*words, *(row[column] for row in self.rows)]), default=0)

    def _part(self, columns: list[int], title: str) -> "rich.table.Table":
        from rich.table import Table as RichTable
        from rich.text import Text

        # As `Text`, cells are never parsed as markup.
        table = RichTable(title=Text(title, "table.title") if title else None, title_justify="left")
        for i in columns:
            heading = "\n".join(textwrap.wrap(self.headings[i], max(1, self._width(i))))
            name = i < self.names
            table.add_column(Text(heading), justify="left" if name else "right", no_wrap=not name)
        grouped = self.names > 1 and len({row[0] for row in self.rows}) < len(self.rows)
        for number, row in enumerate(self.rows):
            if grouped and number and row[0] != self.rows[number - 1][0]:
                table.add_section()
            table.add_row(*(Text(row[i]) for i in columns))
        return table


class Result(ABC):
    """What a job returns: a table, and lines that say what it means. `print` shows both, and so does a notebook."""

    @property
    @abstractmethod
    def table(self) -> Table:
        """The figures."""

    @property
    @abstractmethod
    def notes(self) -> list[str]:
        """What the table does not say, a line each."""

    def __str__(self) -> str:
        return "\n".join(filter(None, [self.table.title, self.table.markdown(), *self.notes]))

    def __repr__(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        return "\n\n".join(filter(None, [self.table.title, self.table.markdown(), *self.notes]))


def printable(text: str) -> str:
    """Text in one line that does not control the terminal: ESC becomes a backslash and x1b."""
    if text.isprintable():
        return text
    return "".join(_escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    if unicodedata.category(letter) not in HIDDEN or letter in JOINERS:
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def print_text(text: str, console: "Console", *, highlight: bool = True) -> None:
    """Print a line that may hold names from elsewhere; a terminal wraps it, not we."""
    console.print(printable(text), markup=False, emoji=False, highlight=highlight, soft_wrap=True)


@contextmanager
def progress_for(report: Report | None, *, quiet: bool, log: bool = False) -> Iterator[Report]:
    """The `Report` of a function that is called from Python.

    It is the caller's own, if there is one. Otherwise progress is shown in terminals and notebooks, unless `quiet`, and
    with `log` elsewhere too.
    """
    if report is not None or quiet or not IS_MAIN_PROCESS:
        yield report or silent
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter or log):
        yield silent
        return
    with progress_bar(console) as shown:
        yield shown


@contextmanager
def progress_bar(console: "Console") -> Iterator[Report]:
    """Show progress while the block runs; yields the `Report` that takes it.

    In a terminal it is a bar and in a notebook a line, which disappear; elsewhere it is lines for a log. Nothing is
    shown on a console whose `shows_progress` is False.
    """
    if not getattr(console, "shows_progress", True):
        yield silent
    elif console.is_jupyter:
        with _notebook_line() as report:
            yield report
    elif not console.is_terminal:
        lines = _Lines(console)
        yield lines.report
        lines.end_step()
    else:
        with _terminal_bar(console) as report:
            yield report


@contextmanager
def _terminal_bar(console: "Console") -> Iterator[Report]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("loading", total=None)

        def report(text: str, done: int, total: int) -> None:
            bar.update(task, description=printable(text), completed=done, total=total)

        yield report


@contextmanager
def _notebook_line() -> Iterator[Report]:
    """A line that changes in place. Rich's bar would need ipywidgets, and shows nothing without them."""
    from IPython.display import display

    line: Any = display({"text/plain": "loading"}, raw=True, display_id=True)
    timer, shown = _Timer(), time.monotonic()

    def report(text: str, done: int, total: int) -> None:
        nonlocal shown
        timed = timer.timed(text, done, total)
        if time.monotonic() - shown > NOTEBOOK_SECONDS:
            line.update({"text/plain": printable(timed)}, raw=True)
            shown = time.monotonic()

    try:
        yield report
    finally:
        line.update({"text/plain": ""}, raw=True)


class _Timer:
    """Adds the time left to reports. What is counted comes first in a text, up to two spaces: `epoch 3/30  loss`."""

    def __init__(self) -> None:
        self.step = ""
        self.started = time.monotonic()
        self.first = 0

    def timed(self, text: str, done: int, total: int) -> str:
        """The text with the time left, estimated since the first report of work that is counted alike."""
        step, now = text.partition("  ")[0], time.monotonic()
        if step != self.step:
            if not _counted(step) or _counted(step) != _counted(self.step):
                self.started, self.first = now, done
            self.step = step
        work, rest = done - self.first, total - done
        if work <= LEAST_SHARE * total or not rest or text.endswith(" left"):
            return text
        return f"{text}  about {duration((now - self.started) / work * rest)} left"


class _Lines:
    """Progress for a log: a line at the end of each epoch or run, and one each minute for work that has neither.

    The last report of an epoch or run is its line.
    """

    def __init__(self, console: "Console") -> None:
        self.console, self.timer = console, _Timer()
        self.text, self.shown, self.printed = "", "", time.monotonic()

    def report(self, text: str, done: int, total: int) -> None:
        if text.partition("  ")[0] != self.timer.step:
            self.end_step()
        self.text = self.timer.timed(text, done, total)
        if time.monotonic() - self.printed > LINE_SECONDS:
            self._print()

    def end_step(self) -> None:
        """Print the line of a step that is counted; others are too short to be worth one."""
        if _counted(self.timer.step) and self.text != self.shown:
            self._print()

    def _print(self) -> None:
        print_text(self.text, self.console, highlight=False)
        self.console.file.flush()  # a log is read while the job runs
        self.shown, self.printed = self.text, time.monotonic()


def _counted(step: str) -> str:
    """What a step counts, with its total: `epoch /30` of `epoch 3/30`; nothing where it counts nothing."""
    found = re.fullmatch(r"(.*?)\d+(/\d+)", step)
    return found[1] + found[2] if found else ""
