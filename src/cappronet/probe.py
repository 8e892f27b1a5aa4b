"""Heads on fixed features, side by side: linear, nearest neighbours, grouped neurons and capsules.

Every head has the same number of tries. A try is a setting, judged by stratified cross-validation on training samples.
Where there are many of these, settings are chosen on some of them, and heads are compared on a fifth that took no part
in it. Test samples, if there are any, only measure what was chosen.
"""

import multiprocessing
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cappronet.control_heads import unit
from cappronet.evaluation import classification_metrics
from cappronet.extras import require
from cappronet.feature_files import FeatureData
from cappronet.heads import CapsuleProjection
from cappronet.probe_heads import HEADS, Setting, fit, new_head, tries

__all__ = ["Measured", "Plan", "probe"]

# Settings are chosen on about so many samples, or on all if there are fewer; every class keeps four for each fold.
MANY = 6000
# As `cappronet evaluate` and `embed` cut them, so that scores agree bit for bit.
CHUNK = 500
# Above this many numbers the work is worth starting processes for.
WORTH_PROCESSES = 2_000_000


@dataclass(frozen=True)
class Plan:
    """How much effort goes into a probe, the same for each head."""

    heads: tuple[str, ...] = HEADS
    folds: int = 5
    tries: int = 6
    seed: int = 0
    jobs: int | None = None

    def __post_init__(self) -> None:
        for name in self.heads:
            if name not in HEADS:
                raise ValueError(f"unknown head {name!r} to probe with; known are {', '.join(HEADS)}")
        if not self.heads or len(set(self.heads)) < len(self.heads):
            raise ValueError(f"heads to probe with must be different ones of {', '.join(HEADS)}, got {self.heads}")
        if self.folds < 2 or self.tries < 1 or (self.jobs is not None and self.jobs < 1):
            raise ValueError(
                f"folds must be at least 2, tries and jobs at least 1, got {self.folds}, {self.tries}, {self.jobs}"
            )


@dataclass(frozen=True)
class Measured:
    """A head with the setting that was chosen for it, and what it is worth.

    Attributes:
        validated: error in percent on training samples that were held out: over all folds, or on a fifth of many.
        error: error in percent on the test samples; without any, the validated one.
        wrong: how many of the samples were wrong that the error was measured on.
        count: how many these are.
        metrics: error, cross-entropy and calibration error on them; empty if heads were fitted fold by fold.
        parameters: numbers that the head keeps.
        fit_seconds: to fit it to all training samples, on one core.
        sample_ms: for one sample.
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
        """The 95 % interval of the error in percent, Wilson's for a share of the samples it was measured on."""
        found = require("scipy.stats", "train").binomtest(self.wrong, self.count).proportion_ci(method="wilson")
        return 100 * float(found.low), 100 * float(found.high)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "interval": list(self.interval())}


def probe(
    data: FeatureData, plan: Plan, on_step: Callable[[int, int], None] = lambda *_: None
) -> tuple[list[Measured], nn.Module | None]:
    """Choose settings for each head, fit and measure them.

    Returns:
        The heads in the order of the plan, and the fitted one of those whose validated error is the lowest, not
        counting nearest neighbours, which keep samples instead of weights.
    """
    counts = np.bincount(data.y_train, minlength=len(data.classes))
    if len(counts) < 2:
        raise ValueError(f"{data.path} has a single class, {data.classes[0]!r}: expected at least two")
    if counts.min() < plan.folds:
        name = data.classes[int(counts.argmin())]
        raise ValueError(
            f"class {name!r} of {data.path} has {counts.min()} training samples, but {plan.folds} folds need "
            f"{plan.folds}: give more, or fewer --folds (at least 2)"
        )
    split = _Split.of(data, plan)
    settings = {head: tries(head, plan.tries, data.dim, split.smallest) for head in plan.heads}
    trials = [(setting, fold) for head in plan.heads for setting in settings[head] for fold in range(plan.folds)]
    rounds = len(plan.heads) * (1 + (split.fifth is not None and data.y_test is not None))
    steps = _Steps(len(trials) + rounds + 1, on_step)
    with _workers(data, split, plan) as work:
        wrong = {setting: 0 for setting, _ in trials}
        for (setting, _), found in steps.counted(work(_trial, trials)):
            wrong[setting] += found
        best = [min(settings[head], key=wrong.__getitem__) for head in plan.heads]
        if split.fifth is None:
            folds = {setting: (wrong[setting], len(split.chosen)) for setting in best}
        else:
            compared = _measured(steps.counted(work(_measure, [(setting, True) for setting in best])))
            folds = {setting: (row.wrong, row.count) for setting, (row, _) in compared.items()}
        if split.fifth is None or data.y_test is not None:
            compared = _measured(steps.counted(work(_measure, [(setting, False) for setting in best])))
        rows = {setting: _with_validation(row, *folds[setting]) for setting, (row, _) in compared.items()}
        models = [setting for setting in best if setting.head != "knn"]
        winner = min(models, key=lambda setting: (rows[setting].validated, rows[setting].parameters), default=None)
        weights = compared[winner][1] if winner else {}
        if winner and split.fifth is not None and data.y_test is None:  # what was held out is now there to fit
            ((_, weights),) = work(_final, [(winner,)])
        steps.finish()
    if winner is None:
        return [rows[setting] for setting in best], None
    head = new_head(winner, data.dim, len(data.classes))
    head.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return [rows[setting] for setting in best], head.eval()


class _Steps:
    """Counts what is done and passes it on."""

    def __init__(self, total: int, on_step: Callable[[int, int], None]) -> None:
        self.done, self.total, self.on_step = 0, total, on_step

    def counted(self, results: "Results") -> "Results":
        for result in results:
            self.done += 1
            self.on_step(self.done, self.total)
            yield result

    def finish(self) -> None:
        self.on_step(self.total, self.total)


def _measured(results: "Results") -> dict[Setting, tuple[Measured, dict[str, Any]]]:
    return {task[0]: found for task, found in results}


def _with_validation(row: Measured, wrong: int, count: int) -> Measured:
    """The row with its error on samples held out, which is also its error if there are no others."""
    row = replace(row, validated=100 * wrong / count)
    return row if row.count else replace(row, error=row.validated, wrong=wrong, count=count)


@dataclass(frozen=True)
class _Split:
    """Which training samples serve for what, as indices.

    Attributes:
        chosen: on which settings are chosen.
        folds: the fold of each of them.
        smallest: samples of the smallest class when one fold is held out.
        fifth: of many samples, those that heads are compared on; None if there are fewer.
        others: the rest of these.
    """

    chosen: NDArray[np.int64]
    folds: NDArray[np.int64]
    smallest: int
    fifth: NDArray[np.int64] | None = None
    others: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, data: FeatureData, plan: Plan) -> "_Split":
        y, n = data.y_train, len(data.y_train)
        order = np.random.default_rng(plan.seed).permutation(n)
        order = order[np.argsort(y[order], kind="stable")]  # class after class, random inside each
        fifth = others = None
        if n > MANY:
            fifth, others = order[::5], np.delete(order, np.s_[::5])
            order = others
        counts = np.bincount(y[order])
        quotas = np.maximum(-(-counts * MANY // len(order)), np.minimum(counts, 4 * plan.folds))
        place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        chosen = order[place < quotas[y[order]]]
        folds = np.arange(len(chosen)) % plan.folds
        fewest = int(np.minimum(counts, quotas).min())
        return cls(chosen, folds, fewest - -(-fewest // plan.folds), fifth, others)


ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class _Samples:
    """What a worker has: the arrays as tensors, and the split."""

    def __init__(self, arrays: Mapping[str, NDArray[Any] | None], split: _Split, classes: int, seed: int) -> None:
        tensors: list[Any] = [None if array is None else torch.from_numpy(array) for array in arrays.values()]
        self.x, self.y, self.x_test, self.y_test = tensors
        self.split, self.classes, self.seed = split, classes, seed

    def at(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Features and labels of some training samples."""
        indices = torch.from_numpy(rows)
        return self.x[indices], self.y[indices]

    def parts(self, hold_out: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
        """What a head is fitted to, and what it is measured on: the fifth that is held out, or test samples, if any."""
        if hold_out:
            assert self.split.others is not None
            assert self.split.fifth is not None
            return self.at(self.split.others), self.at(self.split.fifth)
        return (self.x, self.y), None if self.x_test is None else (self.x_test, self.y_test)


_samples: _Samples


def _trial(setting: Setting, fold: int) -> int:
    """How many samples of a fold a head gets wrong that was fitted to the other folds."""
    split = _samples.split
    score, _ = _predictor(setting, *_samples.at(split.chosen[split.folds != fold]))
    x, y = _samples.at(split.chosen[split.folds == fold])
    return int((score(x).argmax(-1) != y).sum())


def _measure(setting: Setting, hold_out: bool) -> tuple[Measured, dict[str, Any]]:
    """A head fitted to training samples and measured on others, with its weights as arrays."""
    (x, y), test = _samples.parts(hold_out)
    started = time.process_time()  # of one thread: what a free core takes, however busy the machine is
    score, head = _predictor(setting, x, y)
    seconds = time.process_time() - started
    metrics: dict[str, float] = {}
    wrong = count = 0
    if test is not None:
        scores = torch.cat([score(part) for part in test[0].split(CHUNK)])
        wrong, count = int(scores.argmax(-1).ne(test[1]).sum()), len(test[1])
        metrics = dict(classification_metrics(scores, test[1])) if head else {}
    parameters = sum(p.numel() for p in head.parameters()) if head else x.numel()
    fast = head.fold() if isinstance(head, CapsuleProjection) else head or score
    error = 100 * wrong / max(1, count)
    measured = Measured(setting, 0.0, error, wrong, count, metrics, parameters, seconds, _sample_ms(fast, x))
    return measured, _arrays(head) if head else {}


def _final(setting: Setting) -> dict[str, Any]:
    return _arrays(fit(setting, _samples.x, _samples.y, _samples.classes, _samples.seed))


def _arrays(head: nn.Module) -> dict[str, Any]:
    """Weights in a form that goes from process to process without shared memory."""
    return {name: value.numpy() for name, value in head.state_dict().items()}


def _predictor(setting: Setting, x: Tensor, y: Tensor) -> tuple[Callable[[Tensor], Tensor], nn.Module | None]:
    """From features to scores; and the head, if it is one."""
    if setting.head == "knn":
        return _nearest(setting, x, y), None
    head = fit(setting, x, y, _samples.classes, _samples.seed)
    return torch.no_grad()(head), head


def _nearest(setting: Setting, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    seen: Callable[[Tensor], Tensor] = unit if setting.features == "unit" else lambda features: features
    neighbors = require("sklearn.neighbors", "sklearn").KNeighborsClassifier(setting.neighbors, algorithm="brute")
    neighbors.fit(seen(x).numpy(), y.numpy())

    def score(features: Tensor) -> Tensor:
        return torch.from_numpy(neighbors.predict_proba(seen(features).numpy()))

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


# Tasks and what came out of them.
Results = Iterator[tuple[tuple[Any, ...], Any]]
Work = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Results]


@contextmanager
def _workers(data: FeatureData, split: _Split, plan: Plan) -> Iterator[Work]:
    """A function that runs tasks, one for each core with one thread each, and gives results as they come."""
    arrays = {name: getattr(data, name) for name in ARRAYS}
    small = data.x_train.size < WORTH_PROCESSES
    jobs = plan.jobs or (1 if small else multiprocessing.cpu_count())
    if jobs == 1:
        threads = torch.get_num_threads()
        try:
            with require("threadpoolctl", "sklearn").threadpool_limits(1):
                _begin(arrays, split, len(data.classes), plan.seed)
                yield lambda work, tasks: ((task, work(*task)) for task in tasks)
        finally:
            torch.set_num_threads(threads)
        return
    with tempfile.TemporaryDirectory() as scratch:
        places = {name: _place(array, Path(scratch) / f"{name}.npy") for name, array in arrays.items()}
        context = multiprocessing.get_context("spawn")
        given = (places, split, len(data.classes), plan.seed)
        pool = ProcessPoolExecutor(jobs, context, _begin_worker, given)

        def run(work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Results:
            futures = {pool.submit(work, *task): task for task in tasks}
            for future in as_completed(futures):
                yield futures[future], future.result()

        try:
            yield run
        except BaseException:
            for worker in multiprocessing.active_children():
                if worker.name.startswith("SpawnProcess"):
                    worker.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _place(array: NDArray[Any] | None, path: Path) -> tuple[str, int, str, tuple[int, ...]] | None:
    """Where another process finds an array: in the file that it is mapped from, or in one that is written for it."""
    if array is None:
        return None
    if not isinstance(array, np.memmap):
        np.save(path, array)
        array = np.load(path, mmap_mode="r")
    mapped: Any = array
    return str(mapped.filename), mapped.offset, mapped.dtype.str, mapped.shape


def _begin_worker(places: Mapping[str, Any], split: _Split, classes: int, seed: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the first one ends the others
    arrays = {
        name: None if place is None else np.memmap(place[0], place[2], "c", place[1], place[3])
        for name, place in places.items()
    }
    require("threadpoolctl", "sklearn").threadpool_limits(1)
    _begin(arrays, split, classes, seed)


def _begin(arrays: Mapping[str, NDArray[Any] | None], split: _Split, classes: int, seed: int) -> None:
    global _samples
    torch.set_num_threads(1)
    _samples = _Samples(arrays, split, classes, seed)
