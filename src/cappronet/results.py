"""From run folders to tables: means over seeds with their intervals."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cappronet.extras import require

__all__ = ["Row", "comparison", "interval"]


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
