"""One measurement: the choice of a rival's setting for a set and a number of samples, or a fit with it to one draw."""

import base64
import statistics
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from cappronet.training.metrics import calibration_error
from experiments.probes.rivals import RIVALS, Setting, parameters
from experiments.probes.sets import load, rows_of_draw

__all__ = ["FEW", "FOLDS", "TUNING_SAMPLES", "Unit", "choose", "measure", "packed", "unpacked", "validation"]

# Settings are compared in so many folds of up to FEW samples; above, on a fifth of at most TUNING_SAMPLES.
FOLDS, FEW, TUNING_SAMPLES = 3, 2_500, 10_000
# A fit that takes fewer CPU seconds than this is repeated so many times, and the median counts.
SHORT, REPETITIONS = 0.5, 7
# Predictions of single samples that are timed.
SINGLE = 20
# With these a classifier refuses samples that it can't be fitted to, such as one of each class.
REFUSALS = (ValueError, np.linalg.LinAlgError)

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Unit:
    """A rival on a set, from so many samples of each class; the folder holds the features."""

    set: str
    samples: str
    rival: str
    folder: Path | None

    @property
    def key(self) -> dict[str, str]:
        """What identifies its rows in the result file."""
        return {"set": self.set, "samples": self.samples, "rival": self.rival}

    def candidates(self) -> list[dict[str, Any]]:
        """The settings to choose from."""
        n = len(rows_of_draw(load(self.set, self.folder).y, self.samples, 0))
        return [dict(setting) for setting in RIVALS[self.rival].settings(n)]


def validation(y: Rows) -> list[tuple[Rows, Rows]]:
    """Which samples settings are fitted to and which they are compared on; none where a class has a single sample.

    Folds share the classes evenly. A class of two samples has at least one in every part that is fitted to.
    """
    counts = np.bincount(y)
    if counts.min() < 2:
        return []
    if len(y) <= FEW:
        folds = StratifiedKFold(min(FOLDS, int(counts.max())), shuffle=True, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a class may have fewer samples than there are folds
            return list(folds.split(y, y))
    ranks = _ranks(y)
    share = min(1.0, TUNING_SAMPLES / len(y))
    held_out, fitted = ranks < 0.2 * share, (ranks >= 0.2 * share) & (ranks < share)
    return [(np.flatnonzero(fitted), np.flatnonzero(held_out))]


def _ranks(y: Rows) -> NDArray[np.float64]:
    """A number from 0 to 1 for each sample, such that those below any share are about that share of every class."""
    ranks = np.empty(len(y))
    chance = np.random.default_rng(0)
    for label in range(int(y.max()) + 1):
        rows = np.flatnonzero(y == label)
        ranks[rows] = chance.permutation((np.arange(len(rows)) + 0.5) / len(rows))
    return ranks


def choose(unit: Unit) -> dict[str, Any]:
    """Compare the settings of a rival on held-out training samples of the first draw, which all draws then use.

    Returns:
        The settings, their validation errors in percent (None where it refused), the best one and the CPU seconds.
    """
    x, y, _, _ = load(unit.set, unit.folder)
    rows = rows_of_draw(y, unit.samples, 0)
    x, y, candidates = x[rows], y[rows], unit.candidates()
    splits = validation(y) if len(candidates) > 1 else []
    _warm_up(unit.rival)
    start = time.process_time()
    errors = [_validation_error(unit.rival, setting, x, y, splits) for setting in candidates] if splits else []
    seconds = time.process_time() - start
    scores = [np.inf if error is None else error for error in errors]
    best = candidates[int(np.argmin(scores))] if errors else candidates[0]
    return {**unit.key, "settings": candidates, "errors": errors, "best": best, "seconds": round(seconds, 3)}


def _validation_error(
    rival: str, setting: Setting, x: NDArray[np.float32], y: Rows, splits: Sequence[tuple[Rows, Rows]]
) -> float | None:
    wrong = 0
    for fitted, held_out in splits:
        try:
            predicted = _fit(rival, setting, x[fitted], y[fitted]).predict(x[held_out])
        except REFUSALS:
            return None
        wrong += int((predicted != y[held_out]).sum())
    return 100 * wrong / sum(len(held_out) for _, held_out in splits)


def measure(unit: Unit, draw: int, setting: Setting) -> dict[str, Any]:
    """Fit a rival to one draw and test it: error in percent, calibration, CPU seconds, size."""
    x, y, x_test, y_test = load(unit.set, unit.folder)
    rows = rows_of_draw(y, unit.samples, draw)
    x, y = x[rows], y[rows]
    row = {**unit.key, "draw": draw, "setting": dict(setting), "n": len(y)}
    _warm_up(unit.rival)
    try:
        model, fit_seconds = _timed_fit(lambda: _fit(unit.rival, setting, x, y))
        predicted, test_seconds = _timed(lambda: model.predict(x_test))
    except REFUSALS as refusal:
        return {**row, "refused": str(refusal).strip().partition("\n")[0]}
    wrong = predicted != y_test
    return {
        **row,
        "error": 100 * float(wrong.mean()),
        "calibration_error": _calibration(model, x_test, y_test),
        "fit_seconds": fit_seconds,
        "test_seconds": test_seconds,
        "sample_seconds": _single(model, x_test),
        "parameters": parameters(model),
        "wrong": packed(wrong) if unit.samples == "all" else None,
    }


def _fit(rival: str, setting: Setting, x: NDArray[np.float32], y: Rows) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of iterations, and of matrices that are close to singular
        return RIVALS[rival].make(**setting).fit(x, y)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def _timed_fit(fit: Callable[[], Any]) -> tuple[Any, float]:
    model, seconds = _timed(fit)
    repetitions = REPETITIONS if seconds < SHORT else 1
    return model, statistics.median([seconds, *(_timed(fit)[1] for _ in range(repetitions - 1))])


def _single(model: Any, x_test: NDArray[np.float32]) -> float:
    """CPU seconds to predict one sample: the median over some."""
    return statistics.median(_timed(partial(model.predict, row))[1] for row in x_test[:SINGLE, None])


def _calibration(model: Any, x_test: NDArray[np.float32], y_test: Rows) -> float | None:
    """Expected calibration error in percent; None for a classifier without probabilities."""
    if not hasattr(model, "predict_proba"):
        return None
    logs = np.log(np.maximum(model.predict_proba(x_test), 1e-12))
    return 100 * calibration_error(torch.from_numpy(logs), torch.from_numpy(y_test))


@lru_cache
def _warm_up(rival: str) -> None:
    """Fit to a few numbers first: what happens once in a process should not count."""
    y = np.arange(48) % 4
    x = np.random.default_rng(0).standard_normal((48, 8), dtype=np.float32)
    with suppress(*REFUSALS):
        _fit(rival, RIVALS[rival].settings(len(y))[0], x, y).predict(x[:1])


def packed(wrong: NDArray[np.bool_]) -> str:
    """Which test samples were misclassified, as text; a paired test of two rivals needs it."""
    return base64.b64encode(zlib.compress(np.packbits(wrong).tobytes(), 9)).decode()


def unpacked(text: str, n: int) -> NDArray[np.bool_]:
    """What `packed` was given, for n test samples."""
    bits = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return np.unpackbits(bits, count=n).astype(bool)
