"""`cappronet.probe`: heads compared on features from Python, and what comes of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from cappronet.data.features import FeatureData, feature_arrays, read_features
from cappronet.extras import require
from cappronet.models.network import CapProNet
from cappronet.probing import comparison
from cappronet.probing.comparison import ProbeRow, best_row
from cappronet.probing.folder import fitted_model, measured_on, save, validated_on
from cappronet.probing.settings import PROBE_HEADS, ProbeOptions
from cappronet.reporting import Report, Result, Table, progress_for

__all__ = ["ProbeResult", "probe"]

BATCH_SIZE = 1000


@dataclass(frozen=True, eq=False, repr=False)
class ProbeResult(Result):
    """Heads that were compared on features. `print` shows the table.

    Attributes:
        data: the features.
        options: the heads and their tuning budget.
        rows: for each head the chosen setting, its errors and its cost.
        head: the head with the lowest error on held-out samples, which takes features as they are; None if only nearest
            neighbours were compared.
        labels: the label of each class `(L,)`, as `predict` returns it.
    """

    data: FeatureData
    options: ProbeOptions
    rows: list[ProbeRow]
    head: nn.Module | None
    labels: NDArray[Any]

    @property
    def best(self) -> ProbeRow | None:
        """The row of the head with the lowest error on held-out samples, not counting nearest neighbours."""
        return best_row(self.rows)

    @property
    def table(self) -> Table:
        """The errors and costs of every head."""
        headings = ("head", "valid %", "error %", "95 %", "parameters", "fit s", "ms")
        cells: list[tuple[str, ...]] = []
        for row in self.rows:
            low, high = row.interval()
            milliseconds = f"{row.sample_ms:.2g}" if row.sample_ms < 100 else f"{row.sample_ms:.0f}"
            errors = (f"{row.validated:.2f}", f"{row.error:.2f}", f"{low:.2f}-{high:.2f}")
            costs = (f"{row.parameters:,}", f"{row.fit_seconds:.1f}", milliseconds)
            cells.append((row.setting.head, *errors, *costs))
        data = self.data
        title = f"{len(data.y_train):,} features of {data.dim:,} numbers, {len(data.classes)} classes"
        return Table(headings, cells, title=title)

    @property
    def notes(self) -> list[str]:
        """What the columns of the table mean, and which settings were chosen: a line each."""
        lines = [
            f"Error: {measured_on(self.data, self.rows, self.options)}, with Wilson's 95 % interval.",
            f"Valid: the error by {validated_on(self.data, self.options)}.",
            "Fit s: on one core. ms: for one sample.",
            f"Settings: {', '.join(f'{row.setting.head} ({row.setting.label})' for row in self.rows)}.",
        ]
        alone = np.flatnonzero(np.bincount(self.data.y_train) == 1)
        if len(alone):
            rest = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
            names = f"{self.data.classes[alone[0]]!r}{rest}"
            lines.append(f"Classes with a single training sample, on which heads can't be compared: {names}.")
        best = self.best
        lowest = min((row.validated, row.parameters) for row in self.rows)
        if best is None or lowest < (best.validated, best.parameters):
            better = "Nearest neighbours have the lowest error on held-out samples"
            lines.append(f"{better}, but they store samples and are not saved.")
        capsule = next((row for row in self.rows if row.setting.head == "capsule"), None)
        if best is not None and capsule is not None and capsule is not best:
            lines.append(_not_the_capsule(best, capsule))
        return lines

    def to_frame(self) -> Any:
        """The rows as a pandas `DataFrame`, with numbers instead of text."""
        pandas = require("pandas", "tables")
        rows = [row.to_dict() for row in self.rows]
        return pandas.DataFrame([{**row.pop("setting"), **row.pop("metrics"), **row} for row in rows])

    @property
    def model(self) -> CapProNet:
        """The best head as a model: of the network that made the features, if it is known, else of feature vectors."""
        if self.head is None or self.best is None:
            raise ValueError("nearest neighbours have no weights: probe with another head too")
        return fitted_model(self.data, self.best.setting, self.head)

    @torch.no_grad()
    def predict(self, x: ArrayLike) -> NDArray[Any]:
        """The labels of features `(n, d)`, by the best head."""
        if self.head is None:
            raise ValueError("nearest neighbours are not kept: probe with another head too")
        features = torch.from_numpy(np.asarray(x, dtype=np.float32))
        numbers = [self.head(batch).argmax(-1) for batch in features.split(BATCH_SIZE)]
        return self.labels[torch.cat(numbers).numpy()]

    def save(self, folder: str | Path) -> CapProNet:
        """Write the folder that `cappronet probe` writes, which must not exist yet, and return the model in it."""
        if self.head is None:
            raise ValueError("nearest neighbours have no weights to save: probe with another head too")
        return save(Path(folder), self.data, self.rows, self.head, self.options)


def _not_the_capsule(best: ProbeRow, capsule: ProbeRow) -> str:
    """That another head than the capsule is taken, and why."""
    head, errors = best.setting.head, f"{best.validated:.2f} % on held-out samples"
    if best.validated == capsule.validated:
        return f"Capsules are not better here: {head}, with the same {errors} and fewer parameters, is taken."
    return f"Capsules are not the best head here: {head} is taken, with {errors} against {capsule.validated:.2f} %."


def probe(
    x: ArrayLike | str | Path,
    y: ArrayLike | None = None,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    heads: Sequence[str] = PROBE_HEADS,
    folds: int = 5,
    settings: int = 6,
    seed: int = 0,
    jobs: int | None = None,
    quiet: bool = False,
    report: Report | None = None,
) -> ProbeResult:
    """Compare heads on frozen features, each with the same tuning budget: what `cappronet probe` does.

    Args:
        x: features `(n, d)`, or the path of a feature file or folder, which also has the labels.
        y: their labels `(n,)`: numbers or text.
        x_test: features to measure errors on; without them, errors are those of the cross-validation.
        y_test: their labels.
        heads: some of `linear`, `logistic`, `mlp`, `knn`, `group`, `capsule`.
        folds: of the cross-validation that chooses settings; no more than the largest class has samples.
        settings: how many settings each head may choose from.
        seed: decides the folds and the order of samples.
        jobs: processes; by default one for each core, or one if there is little to do.
        quiet: whether to show no progress, which terminals and notebooks show otherwise.
        report: called with `"fitting"`, the fits done and their number, instead of showing progress.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> result = probe(x[:500], y[:500], x[500:], y[500:], heads=["linear", "capsule"], folds=2, settings=1)
        >>> result.best.setting.head
        'capsule'
        >>> result.predict(x[500:503]), y[500:503]
        (array([8, 2, 2]), array([8, 2, 2]))
    """
    options = ProbeOptions(tuple(heads), folds, settings, seed, jobs)
    if isinstance(x, str | Path):
        if not (y is None and x_test is None and y_test is None):
            raise ValueError(f"{x} names a feature file, which has the labels and test samples: leave out the arrays")
        data = read_features(Path(x))
        labels = np.array(data.classes)
    elif y is None or (x_test is None) != (y_test is None):
        raise ValueError("features need labels: pass x and y, and x_test together with y_test")
    else:
        labels = np.unique(np.asarray(y))
        data = feature_arrays(np.asarray(x), np.asarray(y))
        if x_test is not None:
            data = feature_arrays(np.asarray(x_test), np.asarray(y_test), training=data)
    with progress_for(report, quiet=quiet) as shown:
        return ProbeResult(data, options, *comparison.probe(data, options, shown), labels)
