"""`CapsuleClassifier` against scikit-learn's classifiers: error, and time to fit and to predict."""

import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cappronet.benchmark import machine, spread
from cappronet.estimator import CapsuleClassifier
from cappronet.extras import require
from cappronet.feature_files import FeatureData

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Split", "digits", "from_file", "made_features", "markdown", "measure", "rivals", "run", "tables"]

# Speed is told as a multiple of this one's.
REFERENCE = "LogisticRegression"
# Whatever takes longer than this many seconds to fit sits out all rounds but the first; the reference never does.
SLOW = 20.0
HEADINGS = ("classifier", "error %", "fit, s", "10 to 90 %", f"times as fast as {REFERENCE}", "predict 1,000, ms")


class Split(NamedTuple):
    """Features and classes to fit on, and others to predict."""

    x: NDArray[Any]
    y: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]


def rivals() -> dict[str, Callable[[], Any]]:
    """From name to constructor, with default settings but for two.

    The reference ends by its tolerance alone, and QDA gets the regularization without which it refuses digits, whose
    pixels at the edge never change.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
    from sklearn.svm import LinearSVC

    return {
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
    but 0.12 times as long, and a second spread along directions of its own, 0.1 times as wide. So there is something
    to find for linear classifiers and for those that model spread, and none finds all, as with those features. Then
    comes ReLU, of features shifted by 0.7 standard deviations. Their mean square is 1.
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
        raise ValueError(f"{data.path} has too few samples to hold out a fifth of each class: add a test part")
    parts = train_test_split(data.x_train, data.y_train, test_size=0.2, stratify=data.y_train, random_state=0)
    return Split(parts[0], parts[2], parts[1], parts[3])


def digits() -> Iterator[Split]:
    """Scikit-learn's digits in five folds."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import StratifiedKFold

    x, y = load_digits(return_X_y=True)
    for fit, test in StratifiedKFold(5, shuffle=True, random_state=0).split(x, y):
        yield Split(x[fit], y[fit], x[test], y[test])


@dataclass
class Tally:
    """What was seen of one rival: seconds to fit, milliseconds to predict 1,000 samples, errors."""

    fit: list[float] = field(default_factory=list)
    predict: list[float] = field(default_factory=list)
    wrong: int = 0
    tested: int = 0
    converged: bool = True
    refused: str = ""

    def take(self, model: Any, split: Split) -> None:
        """Fit and predict, and note times and errors; of a rival that can't be fitted, note why."""
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                model.fit(split.x, split.y)
            except ValueError as error:
                self.refused = str(error).strip().partition("\n")[0]
                return
        middle = time.perf_counter()
        self.wrong += int((model.predict(split.x_test) != split.y_test).sum())
        self.predict.append(1e6 * (time.perf_counter() - middle) / len(split.y_test))
        self.fit.append(middle - start)
        self.tested += len(split.y_test)
        self.converged &= all(warning.category.__name__ != "ConvergenceWarning" for warning in caught)

    def summary(self, reference: "Tally") -> dict[str, Any]:
        """Error, and median and 10 to 90 % range of the times and of how many times faster than the reference."""
        if self.refused:
            return {"refused": self.refused}
        return {
            "error": 100 * self.wrong / self.tested,
            "fit_seconds": spread(self.fit),
            "predict_ms_per_1000": spread(self.predict),
            "times_as_fast": spread([a / b for a, b in zip(reference.fit, self.fit, strict=False)]),
            "rounds": len(self.fit),
            "converged": self.converged,
        }


def measure(
    makers: Mapping[str, Callable[[], Any]],
    rounds: Sequence[Split],
    on_fit: Callable[[str, int], None] = lambda _name, _round: None,
) -> dict[str, Any]:
    """Fit every rival in each round, in an order drawn anew, so that what else the machine does hits all alike."""
    order = random.Random(0)
    tallies = {name: Tally() for name in makers}
    for number, split in enumerate(rounds):
        for name in order.sample(list(makers), len(makers)):
            tally = tallies[name]
            on_fit(name, number)
            slow = name != REFERENCE and tally.fit and tally.fit[0] > SLOW
            if not slow and not tally.refused:
                tally.take(makers[name](), split)
    return {name: tally.summary(tallies[REFERENCE]) for name, tally in tallies.items()}


def run(
    data: FeatureData | None = None,
    *,
    rounds: int = 3,
    on_fit: Callable[[str, int, int], None] = lambda _text, _done, _total: None,
) -> dict[str, Any]:
    """Compare all rivals on digits, and on the features of a file or made ones; a dictionary that JSON can hold."""
    import sklearn

    makers, folds = rivals(), list(digits())
    split = from_file(data) if data else made_features()
    name = data.path.name if data else "made features"
    total = len(makers) * (len(folds) + rounds)
    done = iter(range(total + 1))
    results: dict[str, Any] = {"machine": machine("cpu") | {"scikit-learn": sklearn.__version__}, "rounds": rounds}
    results["data"] = {}
    # As many threads for NumPy as for PyTorch, so that all rivals have the same.
    with require("threadpoolctl", "sklearn").threadpool_limits(torch.get_num_threads()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for make in makers.values():  # what is imported at a first fit should not count
                make().fit(folds[0].x, folds[0].y)
        for title, splits in (("digits, 5 folds", folds), (name, [split] * rounds)):
            found = measure(makers, splits, lambda rival, _: on_fit(rival, next(done), total))
            x, y, _, y_test = splits[0]
            sizes = {"n": len(y), "d": x.shape[1], "classes": len(np.unique(y)), "tested": len(y_test)}
            results["data"][title] = {**sizes, "rivals": found}
    return results


def tables(costs: Mapping[str, Any]) -> "Iterator[Table]":
    """One table for each set of features."""
    from rich.table import Table

    for name, found in costs["data"].items():
        threads = costs["machine"]["threads"]
        title = f"{name}: {found['n']:,} x {found['d']}, {found['classes']} classes, {threads} threads"
        grid = Table(title=title, title_justify="left")
        for heading in HEADINGS:
            grid.add_column(heading, justify="left" if heading == HEADINGS[0] else "right")
        for row in _rows(found["rivals"]):
            grid.add_row(*row)
        yield grid


def markdown(costs: Mapping[str, Any]) -> str:
    """All numbers as one table for a page."""
    rows = ["| features | " + " | ".join(HEADINGS) + " |", "|---|---|--:|--:|--:|--:|--:|"]
    for name, found in costs["data"].items():
        title = f"{name}, {found['n']:,} x {found['d']}"
        rows += [f"| {title} | " + " | ".join(row) + " |" for row in _rows(found["rivals"])]
    return "\n".join(rows)


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, result in found.items():
        if "refused" in result:
            yield (f"{name} (refused)", *[""] * (len(HEADINGS) - 1))
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
