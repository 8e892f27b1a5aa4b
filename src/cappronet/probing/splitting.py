"""Which training samples of a probe serve for what: folds to choose settings on, and a fifth to compare heads on."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from cappronet.data.features import FeatureData
from cappronet.probing.settings import ProbeOptions

__all__ = ["HALVING_SAMPLES", "TUNING_SAMPLES", "Rows", "Split", "number_of_folds"]

# Settings are chosen on about this many samples, or on all if there are fewer; every class has at least four a fold.
TUNING_SAMPLES = 6000
# With so many of them, a fold is enough to drop the worse half of the settings.
HALVING_SAMPLES = 1000

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Which training samples serve for what, as indices.

    The only sample of a class is never held out, so that every head is fitted to all classes.

    Attributes:
        tuning: the samples that settings are chosen on.
        folds: for each fold, the samples to fit to and those to validate on.
        held_out: of many samples, the fifth that heads are compared on; None if there are fewer.
        rest: all the others of these.
    """

    tuning: Rows
    folds: list[tuple[Rows, Rows]]
    held_out: Rows | None = None
    rest: Rows | None = None

    @property
    def validated(self) -> int:
        """How many samples all folds together are validated on."""
        return sum(len(others) for _, others in self.folds)

    @property
    def fewest(self) -> int:
        """The number of samples that the smallest fit has."""
        return min(len(fitted) for fitted, _ in self.folds)

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
        counts = _checked_counts(data)
        rows = np.random.default_rng(options.seed).permutation(len(y))
        rows = rows[np.argsort(y[rows], kind="stable")]  # class after class, in random order within each
        held_out = rest = None
        if len(rows) > TUNING_SAMPLES:
            apart = (np.arange(len(rows)) % 5 == 0) & (counts[y[rows]] > 1)
            held_out, rest = rows[apart], rows[~apart]
            rows = rest
        share = min(1.0, TUNING_SAMPLES / len(rows))
        by_class = np.split(rows, np.cumsum(np.bincount(y[rows], minlength=L))[:-1])
        tuning = np.concatenate([own[: max(int(np.ceil(share * len(own))), 4 * options.folds)] for own in by_class])
        return cls(tuning, _folds(tuning, y, options), held_out, rest)


def number_of_folds(y: Rows, folds: int) -> int:
    """As many folds as asked for, or as the largest class has samples."""
    return min(folds, int(np.bincount(y).max()))


def _folds(tuning: Rows, y: Rows, options: ProbeOptions) -> list[tuple[Rows, Rows]]:
    """Stratified folds. A class of fewer samples than folds is validated in as many as it has samples."""
    alone = np.bincount(y[tuning])[y[tuning]] == 1
    always, shared = tuning[alone], tuning[~alone]
    splitter = StratifiedKFold(number_of_folds(y[shared], options.folds), shuffle=True, random_state=options.seed)
    with warnings.catch_warnings():  # that a class has fewer samples than there are folds
        warnings.simplefilter("ignore", UserWarning)
        return [
            (np.concatenate([shared[fitted], always]), shared[others])
            for fitted, others in splitter.split(shared, y[shared])
        ]


def _checked_counts(data: FeatureData) -> Rows:
    """The number of training samples of each class `(L,)`; refuses a single class, and classes of one sample each."""
    counts = np.bincount(data.y_train, minlength=len(data.classes))
    if len(counts) < 2:
        raise ValueError(f"{data.path} has a single class, {data.classes[0]!r}: expected at least two")
    if counts.max() < 2:
        raise ValueError(
            f"every class of {data.path} has a single training sample, so none can be held out to compare heads on: "
            "add samples, or fit one head without a comparison, such as CapsuleClassifier()"
        )
    return counts
