"""From the rows of the result file to means, intervals and paired tests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cappronet.extras import require
from cappronet.training.results import Difference, Row, difference
from experiments.probes.measuring import unpacked
from experiments.probes.rivals import RIVALS
from experiments.probes.sets import DRAWS, SETS

__all__ = ["Result", "compare", "results", "verdict", "wilson"]

# A difference is statistically significant where its p is below this.
SIGNIFICANT = 0.05


@dataclass(frozen=True, eq=False)
class Result:
    """A rival on a set, from so many samples of each class.

    Attributes:
        row: errors in percent, an entry for each draw.
        tested: the number of test samples.
        calibration: expected calibration error in percent, mean over draws.
        fit: CPU seconds of a fit, mean over draws.
        tuning: CPU seconds of the choice of settings.
        sample: CPU seconds to predict a single sample.
        wrong: which test samples were misclassified, where all samples were fitted to.
    """

    row: Row
    tested: int
    calibration: float | None
    fit: float
    tuning: float
    sample: float
    wrong: NDArray[np.bool_] | None = None

    @property
    def error(self) -> float:
        """Mean over draws, in percent."""
        return self.row.mean

    @property
    def cell(self) -> str:
        """The error with its 95 % interval: over draws by Student's t, of a single one by Wilson's."""
        if len(self.row.errors) > 1:
            return f"{self.error:.2f} ± {self.row.half_width:.2f}"
        low, high = wilson(self.error / 100, self.tested)
        return f"{self.error:.2f} ({100 * low:.2f} to {100 * high:.2f})"


# Results by set, samples of each class and rival, in the order of their lists.
Results = dict[tuple[str, str, str], Result]


def results(content: Mapping[str, Any]) -> Results:
    """All results of a result file; a rival that refused a draw has none there."""
    tuning = {(row["set"], row["samples"], row["rival"]): row["seconds"] for row in content["tuning"]}
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(content["fits"], key=lambda row: row["draw"]):
        groups.setdefault((row["set"], row["samples"], row["rival"]), []).append(row)
    complete = {key: rows for key, rows in groups.items() if key in tuning and not any("refused" in r for r in rows)}
    return {
        key: _result(complete[key], tuning[key], content["sets"][key[0]]["tested"])
        for key in sorted(complete, key=_order)
    }


def _order(key: tuple[str, str, str]) -> tuple[int, int, int]:
    """Sets and rivals in the order of their lists; numbers of samples by size, then imbalanced, then all."""
    name, samples, rival = key
    size = int(samples) if samples.isdecimal() else 10**9 + list(DRAWS).index(samples)
    return list(SETS).index(name), size, list(RIVALS).index(rival)


def _result(rows: list[Mapping[str, Any]], tuning: float, tested: int) -> Result:
    def mean(name: str) -> float:
        return float(np.mean([row[name] for row in rows]))

    first = rows[0]
    errors, numbers = tuple(row["error"] for row in rows), tuple(row["draw"] for row in rows)
    sizes = round(mean("parameters"))
    row = Row(first["set"], first["samples"], first["rival"], errors, sizes, mean("fit_seconds"), seeds=numbers)
    calibration = None if first["calibration_error"] is None else mean("calibration_error")
    wrong = None if first["wrong"] is None else unpacked(first["wrong"], tested)
    return Result(row, tested, calibration, mean("fit_seconds"), tuning, mean("sample_seconds"), wrong)


def compare(ours: Result, theirs: Result) -> Difference | None:
    """How much higher our error is, in percentage points, with a paired test.

    Student's over draws, where there are several; on one test set McNemar's exact test of the samples that only one of
    the two misclassified.
    """
    if ours.wrong is None or theirs.wrong is None:
        return difference(ours.row, theirs.row)
    only_ours, only_theirs = int((ours.wrong & ~theirs.wrong).sum()), int((theirs.wrong & ~ours.wrong).sum())
    n, gap, either = ours.tested, only_ours - only_theirs, only_ours + only_theirs
    p = float(require("scipy.stats", "train").binomtest(only_ours, either).pvalue) if either else 1.0
    return Difference(100 * gap / n, 196 * math.sqrt(either - gap**2 / n) / n, p, 1)


def verdict(gap: Difference | None) -> str:
    """A paired difference in words."""
    if gap is None or gap.p >= SIGNIFICANT or math.isnan(gap.p):
        return "no clear difference"
    return "fewer errors" if gap.mean < 0 else "more errors"


def wilson(rate: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate that was observed in n samples."""
    middle = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    return middle - half, middle + half
