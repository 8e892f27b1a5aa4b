"""`CapsuleClassifier` against scikit-learn's classifiers: error, and time to fit and to predict."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cappronet.data.features import FeatureData
from cappronet.extras import require
from cappronet.probing.classifier import CapsuleClassifier
from cappronet.reporting import Report, Table, silent
from experiments.benchmarks.timing import Laps, Timing, machine, part_of, seconds, spread, take_turns

__all__ = ["Split", "classifiers", "digits", "from_file", "made_features", "measure", "run", "select", "table"]

# Speed is given relative to this one's.
REFERENCE = "LogisticRegression"
# A classifier that takes longer than this many seconds takes part in the first round only; the reference in all.
SLOW = 20.0


class Split(NamedTuple):
    """Features and classes to fit on, and others to predict."""

    x: NDArray[Any]
    y: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]


def classifiers() -> dict[str, Callable[[], Any]]:
    """From name to constructor, all with default settings except two.

    The reference may iterate until it converges, and QDA gets the regularization without which it refuses digits,
    whose pixels at the edge never change.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
    from sklearn.svm import LinearSVC

    return {
        "capsule, default": CapsuleClassifier,
        "capsule, gradient, c=8": lambda: CapsuleClassifier(8),
        "capsule, svd, c=8": lambda: CapsuleClassifier(8, solver="svd"),
        "capsule, svd, c=auto": lambda: CapsuleClassifier("auto", solver="svd"),
        REFERENCE: lambda: LogisticRegression(max_iter=10_000),
        "LogisticRegression, 100 iterations": LogisticRegression,
        "LinearSVC": LinearSVC,
        "LinearDiscriminantAnalysis": LinearDiscriminantAnalysis,
        "QuadraticDiscriminantAnalysis": lambda: QuadraticDiscriminantAnalysis(reg_param=0.01),
        "NearestCentroid": NearestCentroid,
        "KNeighborsClassifier": KNeighborsClassifier,
    }


def made_features(
    n: int = 50_000, n_test: int = 10_000, *, features: int = 512, classes: int = 10, seed: int = 0
) -> Split:
    """Draw features that resemble those of a network which was trained on other classes.

    All classes share a spread along random orthogonal directions. The j-th has a standard deviation of j^-0.75, which
    gave the spectrum of a ResNet-8's features of CIFAR-10 images. A class has a mean of its own, drawn like a sample
    but 0.12 times as long, and a second spread along directions of its own, 0.1 times as wide. So linear classifiers
    and those that model spread both have something to learn, and neither learns everything, as with those features.
    The features are shifted by 0.7 standard deviations, rectified, and scaled to a mean square of 1.
    """
    draw = np.random.default_rng(seed)
    size = np.arange(1, features + 1, dtype=np.float32)[:, None] ** -0.75

    def directions() -> NDArray[np.float32]:
        return size * np.linalg.qr(draw.standard_normal((features, features)))[0].astype(np.float32)

    shared, own = directions(), [directions() for _ in range(classes)]
    means = 0.12 * draw.standard_normal((classes, features), dtype=np.float32) @ shared
    y = draw.integers(classes, size=n + n_test)
    x = draw.standard_normal((n + n_test, features), dtype=np.float32) @ shared + means[y]
    for label in range(classes):
        rows = np.flatnonzero(y == label)
        x[rows] += 0.1 * draw.standard_normal((len(rows), features), dtype=np.float32) @ own[label]
    x = np.maximum(x + 0.7 * x.std(), 0)
    x /= np.sqrt(np.mean(x**2))
    return Split(x[:n], y[:n], x[n:], y[n:])


def from_file(data: FeatureData) -> Split:
    """A file's training and test features; without a test part, a fifth of each class, drawn by chance, is held out."""
    if data.x_test is not None and data.y_test is not None:
        return Split(data.x_train, data.y_train, data.x_test, data.y_test)
    from sklearn.model_selection import train_test_split

    counts = np.bincount(data.y_train)
    if counts[counts > 0].min() < 2 or len(data.y_train) < 5 * len(counts):
        raise ValueError(f"{data.path} has too few samples to hold out a fifth of each class; add a test part to it")
    parts = train_test_split(data.x_train, data.y_train, test_size=0.2, stratify=data.y_train, random_state=0)
    return Split(parts[0], parts[2], parts[1], parts[3])


def digits() -> Iterator[Split]:
    """Scikit-learn's digits in five folds."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import StratifiedKFold

    x, y = load_digits(return_X_y=True)
    for fit, test in StratifiedKFold(5, shuffle=True, random_state=0).split(x, y):
        yield Split(x[fit], y[fit], x[test], y[test])


class Trial:
    """A classifier that is fitted to a split in each round; notes its errors, and whether it converged."""

    def __init__(self, make: Callable[[], Any], splits: Sequence[Split]) -> None:
        self.make, self.splits = make, splits
        self.wrong = self.tested = 0
        self.converged, self.refused = True, ""

    def turn(self, number: int) -> Laps:
        """Fit and predict; a classifier that refuses its data gets no laps, and the reason is noted."""
        if self.refused:
            return {}
        split, model = self.splits[number], self.make()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                fit = seconds(lambda: model.fit(split.x, split.y))
            except ValueError as error:
                self.refused = str(error).strip().partition("\n")[0]
                return {}
        self.converged &= all(warning.category.__name__ != "ConvergenceWarning" for warning in caught)
        predict = seconds(lambda: self._count(model.predict(split.x_test), split.y_test))
        return {"fit": fit, "predict": predict}

    def _count(self, predicted: NDArray[Any], labels: NDArray[Any]) -> None:
        self.wrong += int((predicted != labels).sum())
        self.tested += len(labels)


def measure(
    makers: Mapping[str, Callable[[], Any]], splits: Sequence[Split], report: Report = silent
) -> dict[str, dict[str, Any]]:
    """Fit every classifier to each split, a round for each: errors, times and speed relative to the reference."""
    trials = {name: Trial(make, splits) for name, make in makers.items()}
    turns = {name: trial.turn for name, trial in trials.items()}
    timing = take_turns(turns, len(splits), slow=SLOW, never_slow=[REFERENCE], report=report)
    return {name: _summary(name, trial, timing) for name, trial in trials.items()}


def _summary(name: str, trial: Trial, timing: Timing) -> dict[str, Any]:
    if trial.refused:
        return {"refused": trial.refused}
    turns = timing.turns[name].items()
    per_1000 = [1e6 * laps["predict"] / len(trial.splits[number].y_test) for number, laps in turns]
    return {
        "error": 100 * trial.wrong / trial.tested,
        "fit_seconds": spread(timing.seconds(name, "fit")),
        "predict_ms_per_1000": spread(per_1000),
        "times_as_fast": spread([1 / ratio for ratio in timing.ratios(name, REFERENCE, "fit")]),
        "rounds": timing.rounds(name),
        "converged": trial.converged,
    }


def select(words: Sequence[str]) -> dict[str, Callable[[], Any]]:
    """The classifiers whose name contains one of the words, and the reference; all of them without words."""
    makers = classifiers()
    for word in words:
        if not any(word in name for name in makers):
            raise ValueError(f"no classifier matches {word}; choose from {', '.join(makers)}")
    return {n: make for n, make in makers.items() if not words or n == REFERENCE or any(word in n for word in words)}


def run(
    data: FeatureData | None = None, *, only: Sequence[str] = (), rounds: int = 3, report: Report = silent
) -> dict[str, Any]:
    """Compare classifiers on digits, and on the features of a file or made ones; the result is ready for JSON."""
    import sklearn

    makers, folds = select(only), list(digits())
    split = from_file(data) if data else made_features()
    sets = {"digits, 5 folds": folds, data.path.name if data else "made features": [split] * rounds}
    results: dict[str, Any] = {"machine": machine() | {"scikit-learn": sklearn.__version__}, "rounds": rounds}
    results["data"] = {}
    # As many threads for NumPy as for PyTorch, so that all classifiers have the same.
    with require("threadpoolctl", "sklearn").threadpool_limits(torch.get_num_threads()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for make in makers.values():  # what is imported at a first fit should not count
                make().fit(folds[0].x, folds[0].y)
        for number, (title, splits) in enumerate(sets.items()):
            measured = measure(makers, splits, part_of(report, number, len(sets), title))
            x, y, _, y_test = splits[0]
            sizes = {"n": len(y), "d": x.shape[1], "classes": len(np.unique(y)), "tested": len(y_test)}
            results["data"][title] = {**sizes, "rivals": measured}
    return results


HEADINGS = (
    *("features", "classifier", "error %", "fit, s", "10 to 90 %", f"speed relative to {REFERENCE}"),
    "predict 1,000 samples, ms",
)


def table(results: Mapping[str, Any]) -> Table:
    """Errors and times of every classifier on every set of features."""
    rows = [
        (f"{name}, {measured['n']:,} x {measured['d']}", *cells)
        for name, measured in results["data"].items()
        for cells in _cells(measured["rivals"])
    ]
    return Table(HEADINGS, rows, names=2, title=f"{results['machine']['threads']} threads")


def _cells(rivals: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, result in rivals.items():
        if "refused" in result:
            yield (f"{name} (refused)", *[""] * (len(HEADINGS) - 2))
            continue
        fit, fast, predict = (result[key] for key in ("fit_seconds", "times_as_fast", "predict_ms_per_1000"))
        yield (
            name if result["converged"] else f"{name} (did not converge)",
            f"{result['error']:.2f}",
            f"{fit['median']:.3g}",
            f"{fit['low']:.3g} to {fit['high']:.3g}",
            f"{fast['median']:.3g} ({fast['low']:.3g} to {fast['high']:.3g})",
            f"{predict['median']:.3g}",
        )
