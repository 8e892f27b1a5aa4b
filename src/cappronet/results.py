"""From run folders to tables: means over seeds with their intervals."""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cappronet.extras import require
from cappronet.runs import environment, write_atomically

if TYPE_CHECKING:
    from cappronet.recipe import Recipe

__all__ = ["Row", "comparison", "interval", "markdown", "read_rows", "write_rows"]


@dataclass(frozen=True)
class Row:
    """The runs of one backbone with one head."""

    data: str
    backbone: str
    head: str
    errors: tuple[float, ...]
    parameters: int
    seconds: float

    @property
    def mean(self) -> float:
        """Mean test error of the last epoch, in percent."""
        return statistics.mean(self.errors)

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the mean; infinite for one run."""
        return interval(self.errors)


def interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean, by Student's t."""
    if len(values) < 2:
        return math.inf
    student = require("scipy.stats", "train").t
    return float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


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
        )
        for key, group in groups.items()
    ]


def write_rows(rows: Sequence[Row], recipe: "Recipe", path: Path) -> None:
    """Write a comparison with the recipe that its runs share and what they ran on."""
    content = {"recipe": recipe.to_dict(), "environment": environment(), "rows": [dataclasses.asdict(r) for r in rows]}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def read_rows(path: Path) -> list[Row]:
    """The rows of a file that `write_rows` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [Row(**{**row, "errors": tuple(row["errors"])}) for row in content["rows"]]


def markdown(rows: Sequence[Row]) -> str:
    """A comparison as a table for a page."""
    lines = ["| data | backbone | head | test error % | 95 % | n | parameters |", "|---|---|---|--:|--:|--:|--:|"]
    lines += [
        f"| {row.data} | {row.backbone} | {row.head} | {row.mean:.2f} | ± {row.half_width:.2f} | {len(row.errors)} "
        f"| {row.parameters:,} |"
        for row in rows
    ]
    return "\n".join(lines)
