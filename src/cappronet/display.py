"""What people see while they wait, and the tables after it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from cappronet.recipe import Recipe

if TYPE_CHECKING:
    from cappronet.results import Row

__all__ = ["Bar", "comparison_table", "progress_bar"]

T = TypeVar("T")


class Bar:
    """A live bar that takes what the library reports."""

    def __init__(self, bar: Progress) -> None:
        self.bar, self.task = bar, bar.add_task("loading", total=None, detail="")

    def __call__(self, now: Any) -> None:
        """Show a `training.Progress`."""
        error = "" if now.error is None else f"  error {now.error:.2f} %"
        detail = f"loss {now.loss:.3f}  {now.images_per_second:,.0f} images/s{error}"
        self.count(f"epoch {now.epoch}/{now.epochs}", now.step, now.steps, detail)

    def count(self, text: str, done: int, total: int, detail: str = "") -> None:
        """Show how much of something is done."""
        self.bar.update(self.task, description=text, completed=done, total=total, detail=detail)

    def track(self, items: Iterable[T], total: int) -> Iterator[T]:
        """Pass items on and count them."""
        for number, item in enumerate(items):
            self.count("evaluating", number, total)
            yield item


@contextmanager
def progress_bar(console: Console) -> Iterator[Bar]:
    """A bar that is gone when its job is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        yield Bar(bar)


def comparison_table(rows: "list[Row]", recipe: Recipe) -> Table:
    """Mean errors of each backbone with each head, and what they cost."""
    measured = "validation" if recipe.validation else "test"
    table = Table(title=f"{rows[0].data}, {recipe.epochs} epochs", title_justify="left")
    for heading in ("backbone", "head", f"{measured} error %", "95 %", "n", "parameters", "seconds"):
        table.add_column(heading, justify="left" if heading in ("backbone", "head") else "right")
    for i, row in enumerate(rows):
        width = f"± {row.half_width:.2f}" if len(row.errors) > 1 else ""
        numbers = (f"{row.mean:.2f}", width, str(len(row.errors)), f"{row.parameters:,}", f"{row.seconds:.0f}")
        last = i + 1 == len(rows) or rows[i + 1].backbone != row.backbone
        table.add_row(row.backbone, row.head, *numbers, end_section=last)
    return table
