"""The rows of a table as it is shown: errors with their intervals and tests, and the validation errors of tuning."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from cappronet.reporting import Table
from cappronet.training.results import Row, difference, row_from
from experiments.reproduction.outcomes import best_trial

__all__ = ["difference_cells", "error_cell", "error_table", "tuning_table"]

HEADINGS = (
    *("data", "backbone", "head", "published error %", "error %, last epoch", "runs", "error %, best test epoch"),
    *("difference to linear", "p", "parameters"),
)


def error_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Mean errors with 95 % intervals and the paired difference to the linear head; empty columns are left out."""
    whole = Table(HEADINGS, [_cells(row, _control(row, rows)) for row in rows], names=3, title=title)
    empty = [heading for i, heading in enumerate(HEADINGS) if not any(cells[i] for cells in whole.rows)]
    return whole.without(*empty)


def _control(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The linear head of the same group."""
    return next(
        (other for other in rows if other["group"] == row["group"] and other["recipe"]["head"] == "linear"), None
    )


def _cells(values: Mapping[str, Any], linear: Mapping[str, Any] | None) -> tuple[str, ...]:
    row = row_from(dict(values))
    control = row_from(dict(linear)) if linear is not None and linear is not values else None
    return (
        row.data,
        row.backbone,
        row.head,
        f"{row.published:g}" if row.published is not None else "",
        error_cell(row),
        str(len(row.errors)),
        f"{statistics.mean(row.best_errors):.2f}" if row.best_errors else "",
        *difference_cells(row, control),
        f"{row.parameters:,}",
    )


def error_cell(row: Row) -> str:
    """The mean error with its 95 % interval, which one run does not have."""
    interval = f" ± {row.half_width:.2f}" if len(row.errors) > 1 else ""
    return f"{row.mean:.2f}{interval}" if row.errors else ""


def difference_cells(row: Row, control: Row | None) -> tuple[str, str]:
    """The paired difference to the control with its 95 % interval, and p; both empty without two seeds in common."""
    gap = difference(row, control) if control is not None else None
    if gap is None:
        return "", ""
    return f"{gap.mean:+.2f} ± {gap.half_width:.2f}", "< 0.001" if gap.p < 0.001 else f"{gap.p:.3f}"


def tuning_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> Table | None:
    """The validation error of every trial, mean over seeds, for rows with the same trials; None if nothing was tuned.

    The last column is the chosen setting, once all trials of a head are finished. Backbones are named if they differ.
    """
    tuned = [row for row in rows if row["tries"]]
    if not tuned:
        return None
    names = [", ".join(f"{name} {value}" for name, value in trial["changes"].items()) for trial in tuned[0]["tries"]]
    lines = []
    for row in tuned:
        errors = [trial["validation_errors"] for trial in row["tries"]]
        means = [f"{statistics.mean(of_trial):.2f}" if of_trial else "" for of_trial in errors]
        complete = len({len(of_trial) for of_trial in errors}) == 1
        lines.append((row["backbone"], row["head"], *means, names[best_trial(errors)] if complete else ""))
    whole = Table(("backbone", "head", *names, "chosen"), lines, names=2, title=title)
    return whole if len({row["backbone"] for row in tuned}) > 1 else whole.without("backbone")
