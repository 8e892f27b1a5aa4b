"""From run folders to tables: means over seeds with their intervals, and differences to the linear head."""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cappronet.data.files import write_atomically
from cappronet.extras import require
from cappronet.reporting import Table
from cappronet.training.run_folder import environment

if TYPE_CHECKING:
    from cappronet.training.recipe import Recipe

__all__ = ["Difference", "Row", "comparison", "comparison_table", "difference", "interval", "read_rows", "write_rows"]


@dataclass(frozen=True)
class Row:
    """The runs of one backbone with one head, an entry for each seed."""

    data: str
    backbone: str
    head: str
    errors: tuple[float, ...]
    parameters: int
    seconds: float
    seeds: tuple[int, ...] = ()
    best_errors: tuple[float, ...] = ()
    published: float | None = None

    @property
    def mean(self) -> float:
        """Mean test error of the last epoch, in percent."""
        return statistics.mean(self.errors)

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the mean; infinite for one run."""
        return interval(self.errors)


@dataclass(frozen=True)
class Difference:
    """How much higher one head's error is than another's on the same seeds, and Student's paired test of it."""

    mean: float
    half_width: float
    p: float
    n: int


def interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean, by Student's t."""
    if len(values) < 2:
        return math.inf
    student = require("scipy.stats", "train").t
    return float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def difference(row: Row, control: Row) -> Difference | None:
    """The paired difference over the seeds that both have; None where fewer than two are shared."""
    ours, theirs = dict(zip(row.seeds, row.errors, strict=True)), dict(zip(control.seeds, control.errors, strict=True))
    gaps = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if len(gaps) < 2:
        return None
    if len(set(gaps)) == 1:  # no spread: the test has nothing to divide by
        return Difference(gaps[0], 0.0, float(gaps[0] == 0), len(gaps))
    test = require("scipy.stats", "train").ttest_1samp(gaps, 0.0)
    return Difference(statistics.mean(gaps), interval(gaps), float(test.pvalue), len(gaps))


def comparison(summaries: Iterable[dict[str, Any]]) -> list[Row]:
    """Finished runs gathered over their seeds, in the order in which backbones and heads first appear."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for summary in summaries:
        groups.setdefault((summary["data"], summary["backbone"], summary["head"]), []).append(summary)
    return [
        Row(
            *key,
            errors=tuple(run["error"] for run in group),
            parameters=group[0]["parameters"],
            seconds=statistics.mean(run["seconds"] for run in group),
            seeds=tuple(run["seed"] for run in group),
            best_errors=tuple(run["best_error"] for run in group),
        )
        for key, group in groups.items()
    ]


def write_rows(rows: Sequence[Row], recipe: "Recipe", path: Path) -> None:
    """Write a comparison with the recipe that its runs share and what they ran on."""
    shared = recipe.changed(pretrained=Path(recipe.pretrained).name).to_dict()  # no path of this machine
    content = {"recipe": shared, "environment": environment(), "rows": [dataclasses.asdict(r) for r in rows]}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def read_rows(path: Path) -> list[Row]:
    """The rows of a file that `write_rows` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [row_from(values) for values in content["rows"]]


def row_from(values: dict[str, Any]) -> Row:
    """A row from JSON; keys that a row does not have are ignored."""
    names = {field.name for field in dataclasses.fields(Row)}
    plain: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if name in names
    }
    return Row(**plain)


def comparison_table(rows: Sequence[Row], *, measured: str = "test", title: str = "") -> Table:
    """Mean errors over seeds with their intervals, and what each head costs; `measured` says on which images."""
    headings = ("data", "backbone", "head", f"{measured} error %", "95 %", "n", "parameters", "seconds")
    cells: list[tuple[str, ...]] = [
        (
            row.data,
            row.backbone,
            row.head,
            f"{row.mean:.2f}",
            f"± {row.half_width:.2f}" if len(row.errors) > 1 else "",
            str(len(row.errors)),
            f"{row.parameters:,}",
            f"{row.seconds:.0f}",
        )
        for row in rows
    ]
    return Table(headings, cells, names=3, title=title)
