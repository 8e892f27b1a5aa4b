"""The comparison of heads on frozen features: linear ones, an MLP, nearest neighbours, grouped neurons and capsules.

Every head has the same tuning budget: the same number of settings, each judged by stratified cross-validation on
training samples. From 1,000 samples on, the folds are rounds of successive halving: after each fold, the better half of
a head's settings remains. Of many training samples, some serve to choose settings, and the heads are then compared on a
fifth that was held out. Test samples, if there are any, only measure the heads that were chosen.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cappronet.data.features import FeatureData
from cappronet.extras import require
from cappronet.heads.controls import unit
from cappronet.probing.settings import Amount, ProbeOptions, Setting, first_settings
from cappronet.reporting import Report, silent
from cappronet.training.metrics import classification_metrics

require("sklearn", "sklearn")

from scipy.stats import binomtest  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402

from cappronet.probing.candidates import fit, folded, new_head, resolved  # noqa: E402
from cappronet.probing.splitting import Rows, Split  # noqa: E402
from cappronet.probing.workers import Workers, cpu_count  # noqa: E402

__all__ = ["ProbeRow", "best_row", "probe"]

# As many samples at a time as in `cappronet evaluate` and `embed`, so that scores agree bit for bit.
BATCH_SIZE = 500
# With more numbers than this in the training features, starting processes is worth it.
NUMBERS_FOR_PROCESSES = 2_000_000

Weights = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class ProbeRow:
    """A head with the setting that was chosen for it, and how it performed.

    Attributes:
        setting: the chosen setting.
        validated: error in percent on held-out training samples: over all folds, or on a fifth of many samples.
        error: error in percent on the test samples; without any, the validated one.
        wrong: how many of the samples that the error was measured on were wrong.
        count: how many samples it was measured on.
        metrics: error, cross-entropy and calibration error on them; empty if the error is that of cross-validation.
        parameters: how many numbers the head stores.
        fit_seconds: time to fit it to all training samples, on one core.
        sample_ms: time to classify one sample.
    """

    setting: Setting
    validated: float
    error: float
    wrong: int
    count: int
    metrics: dict[str, float]
    parameters: int
    fit_seconds: float
    sample_ms: float

    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the error, in percent."""
        interval = binomtest(self.wrong, self.count).proportion_ci(method="wilson")
        return 100 * float(interval.low), 100 * float(interval.high)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "interval": list(self.interval())}


def best_row(rows: Sequence[ProbeRow]) -> ProbeRow | None:
    """The lowest validated error, not counting nearest neighbours, which store samples instead of weights."""
    models = [row for row in rows if row.setting.head != "knn"]
    return min(models, key=lambda row: (row.validated, row.parameters), default=None)


def probe(data: FeatureData, options: ProbeOptions, report: Report = silent) -> tuple[list[ProbeRow], nn.Module | None]:
    """Choose settings for each head, fit the heads and measure them.

    Args:
        data: the features.
        options: the heads and their tuning budget.
        report: called with `"fitting"`, the fits done and their number.

    Returns:
        A row for each head in the order of the options, and the fitted head of `best_row`, or None if there is none.
    """
    split = Split.of(data, options)
    amount = Amount(len(data.y_train), data.dim, len(data.classes), split.fewest)
    settings = [first_settings(head, options.settings, amount) for head in options.heads]
    samples = _Samples(data.x_train, data.y_train, data.x_test, data.y_test, len(data.classes), options.seed)
    apart, tested = split.held_out is not None, data.y_test is not None
    rounds = split.rounds(options.settings)
    fits = len(options.heads) * (sum(rounds) + apart + (tested or not apart))
    fits += apart and not tested and options.heads != ("knn",)
    with Workers(_number_of_jobs(data, options), fits, report) as workers:
        tuned = _tuned(workers, samples, split, settings, rounds)
        chosen = [setting for setting, _ in tuned]
        validated = [(wrong, split.validated) for _, wrong in tuned]
        if split.held_out is not None:
            measured = _measured(workers, samples, chosen, split.rest, split.held_out)
            validated = [(row.wrong, row.count) for row, _ in measured]
        if tested or not apart:
            measured = _measured(workers, samples, chosen)
        rows = [_with_validation(row, *counts) for (row, _), counts in zip(measured, validated, strict=True)]
        best = best_row(rows)
        if best is None:
            return rows, None
        at = rows.index(best)
        _, weights = measured[at]
        if apart and not tested:  # the samples that were held out take part in the final fit
            ((final, weights),) = _measured(workers, samples, [chosen[at]])
            rows[at] = replace(best, setting=final.setting)
    head = new_head(rows[at].setting, data.dim, len(data.classes))
    head.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return rows, head.eval()


def _number_of_jobs(data: FeatureData, options: ProbeOptions) -> int:
    return options.jobs or (1 if data.x_train.size < NUMBERS_FOR_PROCESSES else cpu_count())


def _tuned(
    workers: Workers, samples: "_Samples", split: Split, settings: list[list[Setting]], rounds: Sequence[int]
) -> list[tuple[Setting, int]]:
    """The best setting of each head, and how many samples it got wrong in all rounds."""
    remaining = [dict.fromkeys(of_head, 0) for of_head in settings]
    for count, fold in zip(rounds, split.folds, strict=False):
        # Dictionaries keep the order of the settings, in which the first of equally good ones is preferred.
        remaining = [dict(sorted(wrong.items(), key=lambda item: item[1])[:count]) for wrong in remaining]
        tasks = [(samples, setting, *fold) for wrong in remaining for setting in wrong]
        for (_, setting, *_), errors in zip(tasks, workers.run(_wrong_in_fold, tasks), strict=True):
            wrong = next(of_head for of_head in remaining if setting in of_head)
            wrong[setting] += errors
    return [min(wrong.items(), key=lambda item: item[1]) for wrong in remaining]


def _measured(
    workers: Workers,
    samples: "_Samples",
    settings: Sequence[Setting],
    fitted: Rows | None = None,
    others: Rows | None = None,
) -> "list[tuple[ProbeRow, Weights]]":
    """What `_fit_and_measure` gives for each setting."""
    return workers.run(_fit_and_measure, [(samples, setting, fitted, others) for setting in settings])


def _with_validation(row: ProbeRow, wrong: int, count: int) -> ProbeRow:
    """The row with its validated error, which is also its error if there are no test samples."""
    row = replace(row, validated=100 * wrong / count)
    return row if row.count else replace(row, error=row.validated, wrong=wrong, count=count)


@dataclass(frozen=True, eq=False)
class _Samples:
    """What every fit needs: the arrays, the number of classes and the seed."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    x_test: NDArray[np.float32] | None
    y_test: NDArray[np.int64] | None
    num_classes: int
    seed: int

    def training(self, rows: Rows | None) -> tuple[Tensor, Tensor]:
        """Features and labels of some training samples, or of all."""
        x, y = torch.from_numpy(self.x), torch.from_numpy(self.y)
        return (x, y) if rows is None else (x[torch.from_numpy(rows)], y[torch.from_numpy(rows)])

    def test(self) -> tuple[Tensor, Tensor] | None:
        """Features and labels of the test samples, if there are any."""
        if self.x_test is None or self.y_test is None:
            return None
        return torch.from_numpy(self.x_test), torch.from_numpy(self.y_test)


def _wrong_in_fold(samples: _Samples, setting: Setting, fitted: Rows, others: Rows) -> int:
    """How many samples of a fold are misclassified by a head that was fitted to the other folds."""
    score, _ = _fitted(samples, setting, *samples.training(fitted))
    x, y = samples.training(others)
    return int((score(x).argmax(-1) != y).sum())


def _fit_and_measure(
    samples: _Samples, setting: Setting, fitted: Rows | None, others: Rows | None
) -> tuple[ProbeRow, Weights]:
    """A head fitted to some training samples, or all, and measured on others, or on the test samples; its weights."""
    x, y = samples.training(fitted)
    started = time.process_time()  # of one thread: what a free core takes, however busy the machine is
    score, head = _fitted(samples, setting, x, y)
    seconds = time.process_time() - started
    metrics: dict[str, float] = {}
    wrong = count = 0
    held_out = samples.test() if others is None else samples.training(others)
    if held_out is not None:
        x_test, y_test = held_out
        scores = torch.cat([score(batch) for batch in x_test.split(BATCH_SIZE)])
        wrong, count = int(scores.argmax(-1).ne(y_test).sum()), len(y_test)
        metrics = dict(classification_metrics(scores, y_test)) if head else {}
    parameters = sum(tensor.numel() for tensor in head.state_dict().values()) if head else x.numel()
    setting = resolved(setting, head) if head else setting
    error, sample_ms = 100 * wrong / max(1, count), _sample_ms(folded(head) if head else score, x)
    row = ProbeRow(setting, 0.0, error, wrong, count, metrics, parameters, seconds, sample_ms)
    # Arrays go from process to process without shared memory.
    return row, {name: value.numpy() for name, value in head.state_dict().items()} if head else {}


def _fitted(
    samples: _Samples, setting: Setting, x: Tensor, y: Tensor
) -> tuple[Callable[[Tensor], Tensor], nn.Module | None]:
    """A function from features to scores, and the head, unless it is nearest neighbours."""
    if setting.head == "knn":
        return _nearest(setting, x, y), None
    head = fit(setting, x, y, samples.num_classes, samples.seed)
    return torch.no_grad()(head), head


def _nearest(setting: Setting, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    scaled: Callable[[Tensor], Tensor] = unit if setting.features == "unit" else lambda features: features
    neighbors = KNeighborsClassifier(setting.neighbors, algorithm="brute").fit(scaled(x).numpy(), y.numpy())

    def score(features: Tensor) -> Tensor:
        return torch.from_numpy(neighbors.predict_proba(scaled(features).numpy()))

    return score


@torch.no_grad()
def _sample_ms(score: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The median time for one sample, in milliseconds."""
    sample = x[:1].clone()
    times: list[float] = []
    until = time.perf_counter() + 0.5
    while len(times) < 5 or (time.perf_counter() < until and len(times) < 1000):
        started = time.perf_counter()
        score(sample)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)
