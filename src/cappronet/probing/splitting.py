"""Which training samples of a probe serve for what: folds to choose settings on, and a fifth to compare heads on."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from cappronet.data.features import FeatureData
from cappronet.probing.settings import ProbeOptions

__all__ = ["TUNING_SAMPLES", "Rows", "Split"]

# Settings are chosen on about this many samples, or on all if there are fewer; every class has at least four a fold.
TUNING_SAMPLES = 6000
# With so many of them, a fold is enough to drop the worse half of the settings.
HALVING_SAMPLES = 1000

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Which training samples serve for what, as indices.

    Attributes:
        tuning: the samples that settings are chosen on.
        folds: for each fold, the samples to fit to and those to validate on.
        smallest: the fewest samples of a class that are fitted to in any fold.
        held_out: of many samples, the fifth that heads are compared on; None if there are fewer.
        rest: all the others of these.
    """

    tuning: Rows
    folds: list[tuple[Rows, Rows]]
    smallest: int
    held_out: Rows | None = None
    rest: Rows | None = None

    def rounds(self, settings: int) -> list[int]:
        """For each fold, how many settings of a head are judged on it.

        With few samples, all on every fold. With more, half of them, rounded up, remain after each: successive halving.
        The last one is validated on all folds, unless samples are held out to compare heads on; then one that is left
        alone needs no further fold.
        """
        if len(self.tuning) < HALVING_SAMPLES:
            return [settings] * len(self.folds)
        counts = [-(-settings // 2**fold) for fold in range(len(self.folds))]
        return [count for count in counts if count > 1 or self.held_out is None]

    @classmethod
    def of(cls, data: FeatureData, options: ProbeOptions) -> "Split":
        y, L = data.y_train, len(data.classes)
        _check_counts(data, np.bincount(y, minlength=L), options.folds)
        rows = np.random.default_rng(options.seed).permutation(len(y))
        rows = rows[np.argsort(y[rows], kind="stable")]  # class after class, in random order within each
        held_out = rest = None
        if len(rows) > TUNING_SAMPLES:
            held_out, rest = rows[::5], np.delete(rows, np.s_[::5])
            rows = rest
        share = min(1.0, TUNING_SAMPLES / len(rows))
        by_class = np.split(rows, np.cumsum(np.bincount(y[rows], minlength=L))[:-1])
        tuning = np.concatenate([own[: max(int(np.ceil(share * len(own))), 4 * options.folds)] for own in by_class])
        splitter = StratifiedKFold(options.folds, shuffle=True, random_state=options.seed)
        with warnings.catch_warnings():  # that a class has fewer samples than folds, once a fifth is held out
            warnings.simplefilter("ignore", UserWarning)
            folds = [(tuning[fitted], tuning[others]) for fitted, others in splitter.split(tuning, y[tuning])]
        counts = np.min([np.bincount(y[fitted], minlength=L) for fitted, _ in folds], axis=0)
        if counts.min() < 1:
            _check_counts(data, counts + options.folds - 1, options.folds)
        return cls(tuning, folds, int(counts.min()), held_out, rest)


def _check_counts(data: FeatureData, counts: NDArray[Any], folds: int) -> None:
    """Refuse a single class, and classes that have too few samples for the folds."""
    if len(counts) < 2:
        raise ValueError(f"{data.path} has a single class, {data.classes[0]!r}: expected at least two")
    smallest = int(counts.argmin())
    if counts[smallest] < folds:
        count = int((data.y_train == smallest).sum())
        raise ValueError(
            f"class {data.classes[smallest]!r} of {data.path} has {count} training samples, too few for {folds} folds: "
            "add samples, or use fewer --folds (at least 2)"
        )
