"""The tables of the probes."""

from collections.abc import Mapping
from typing import Any

from cappronet.reporting import Table
from cappronet.training.results import Difference
from experiments.probes.comparing import Result, Results, compare, results, verdict
from experiments.probes.rivals import CAPSULE, LOGISTIC, MLP, RIVALS, TUNED_CAPSULE
from experiments.probes.sets import ALL, SETS

__all__ = ["all_table", "compared_table", "rivals_table", "samples_table"]


def compared_table(content: Mapping[str, Any], samples: str = "") -> Table:
    """Capsules next to logistic regression and the MLP on every set, with paired differences.

    Args:
        content: of the result file.
        samples: only this number of samples of each class; by default every number.
    """
    measured = results(content)
    shown = (LOGISTIC, MLP, CAPSULE, TUNED_CAPSULE)
    headings = ("features", "samples per class", *shown, "default against logistic regression", "default against MLP")
    rows = []
    for name, size in dict.fromkeys(key[:2] for key in measured):
        if samples in ("", size):
            cells = (_cell(measured.get((name, size, rival))) for rival in shown)
            ours = measured.get((name, size, CAPSULE))
            against = (_difference(ours, measured.get((name, size, rival))) for rival in (LOGISTIC, MLP))
            rows.append((name, size, *cells, *against))
    return Table(headings, rows, names=2, title="test error %")


def rivals_table(content: Mapping[str, Any]) -> Table:
    """On how many sets the default makes fewer errors than each rival, no clear difference, and more errors."""
    measured = results(content)
    sizes = _sizes(measured)
    rows: list[tuple[str, ...]] = [
        (rival, *(_counts(measured, rival, size) for size in sizes)) for rival in RIVALS if rival != CAPSULE
    ]
    rows = [row for row in rows if any(row[1:])]
    return Table(("the default against", *sizes), rows, names=1, title="sets with fewer / as many / more errors")


def samples_table(content: Mapping[str, Any]) -> Table:
    """Errors of every rival on every set, a column for each number of samples of each class."""
    measured = results(content)
    sizes = _sizes(measured)
    rows = [
        (name, rival, *(_cell(measured.get((name, size, rival))) for size in sizes))
        for name in SETS
        for rival in RIVALS
        if any((name, size, rival) in measured for size in sizes)
    ]
    return Table(("features", "classifier", *sizes), rows, names=2, title="test error %, by samples per class")


def all_table(content: Mapping[str, Any]) -> Table:
    """Errors and costs of every rival from all samples."""
    measured = results(content)
    headings = (
        *("features", "classifier", "error %", "against logistic regression", "against MLP", "fit, s", "tuning, s"),
        *("parameters", "one sample, ms", "calibration error %"),
    )
    rows = []
    for (name, size, rival), result in measured.items():
        if size == ALL:
            against = (_difference(result, measured.get((name, size, other)), other) for other in (LOGISTIC, MLP))
            costs = (f"{result.fit:.3g}", f"{result.tuning:.3g}", f"{result.row.parameters:,}")
            calibration = "" if result.calibration is None else f"{result.calibration:.1f}"
            times = (f"{1e3 * result.sample:.2g}", calibration)
            rows.append((_title(content, name), rival, result.cell, *against, *costs, *times))
    return Table(headings, rows, names=2, title="all samples; CPU seconds on one thread")


def _sizes(measured: Results) -> list[str]:
    """All numbers of samples of a class in order: those of one set are, but not every set has all."""
    order = {"imbalanced": 10**9, ALL: 10**9 + 1}
    return sorted({key[1] for key in measured}, key=lambda size: order.get(size) or int(size))


def _counts(measured: Results, rival: str, size: str) -> str:
    """In how many sets each verdict holds: `5 / 2 / 0`; nothing where the rival was not measured."""
    pairs = [(measured.get((name, size, CAPSULE)), measured.get((name, size, rival))) for name in SETS]
    verdicts = [verdict(compare(ours, theirs)) for ours, theirs in pairs if ours is not None and theirs is not None]
    counts = (verdicts.count(word) for word in ("fewer errors", "no clear difference", "more errors"))
    return " / ".join(map(str, counts)) if verdicts else ""


def _title(content: Mapping[str, Any], name: str) -> str:
    sizes = content["sets"][name]
    return f"{name}, {sizes['n']:,} x {sizes['d']}, {sizes['classes']} classes"


def _cell(result: Result | None) -> str:
    return "" if result is None else result.cell


def _difference(ours: Result | None, theirs: Result | None, other: str = "") -> str:
    """A paired difference in percentage points and in words; nothing where one is missing or both are the same."""
    if ours is None or theirs is None or ours.row.head == other:
        return ""
    gap: Difference | None = compare(ours, theirs)
    return "" if gap is None else f"{gap.mean:+.2f} ± {gap.half_width:.2f}: {verdict(gap)}"
