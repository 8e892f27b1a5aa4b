"""The sets of features that probes are compared on, and how training samples are drawn from them."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cappronet.data.datasets import load_dataset
from cappronet.data.features import read_features
from cappronet.data.samples import Images, Samples

__all__ = [
    "ALL",
    "DRAWS",
    "IMBALANCED",
    "SETS",
    "Features",
    "available",
    "describe",
    "draws",
    "load",
    "rows_of_draw",
    "same_features",
]

# The name of a set, which is that of its file, and what it holds. Digits come with the package and need no file.
SETS: Mapping[str, str] = {
    "digits": "pixels of 8 x 8 digits",
    "banking77": "questions to a bank, by MiniLM",
    "clinc150": "questions to an assistant, by MiniLM",
    "cifar10-mobilenet_v2": "CIFAR-10 by MobileNetV2",
    "cifar10-lite0": "CIFAR-10 by EfficientNet-Lite0",
    "cifar100-mobilenet_v2": "CIFAR-100 by MobileNetV2",
    "cifar100-lite0": "CIFAR-100 by EfficientNet-Lite0",
}
ALL, IMBALANCED = "all", "imbalanced"
# Samples of each class, and how many draws of them are measured. There is one way to take all.
DRAWS: Mapping[str, int] = {"1": 5, "2": 5, "5": 5, "20": 5, "100": 3, IMBALANCED: 3, ALL: 1}
# Imbalanced classes have sizes between these, in geometric progression; which class has which is drawn.
LARGEST_CLASS, SMALLEST_CLASS = 100, 2
# Up to such relative differences of their lengths, features made on two machines are taken for the same.
TOLERANCE = 1e-4


class Features(NamedTuple):
    """Training and test features `(n, d)` in float32, with classes numbered from 0."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]


def available(folder: Path | None, only: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The sets that can be read, and those that are missing from the folder.

    Args:
        folder: holds a `NAME.npz` for each name of `SETS` but digits.
        only: words, one of which a name must contain.
    """
    wanted = [name for name in SETS if not only or any(word in name for word in only)]
    if not wanted:
        raise ValueError(f"no set of features matches {' or '.join(only)}; choose from {', '.join(SETS)}")
    present = [name for name in wanted if name == "digits" or (folder is not None and _file(folder, name).is_file())]
    return present, [name for name in wanted if name not in present]


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz"


@lru_cache(maxsize=1)
def load(name: str, folder: Path | None) -> Features:
    """Read a set; a process keeps the last one in memory."""
    if name == "digits":
        data = load_dataset("digits")
        return Features(*_pixels(data.train), *_pixels(data.test))
    assert folder is not None
    read = read_features(_file(folder, name))
    if read.x_test is None or read.y_test is None:
        raise ValueError(f"{_file(folder, name)} has no test part: add x_test and y_test to it")
    return Features(read.x_train, read.y_train, read.x_test, read.y_test)


def _pixels(images: Samples) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Pixels from 0 to 1 `(n, d)`, and classes."""
    assert isinstance(images, Images)
    assert images.pixels is not None
    return images.pixels.flatten(1).float().div(255).numpy(), images.labels.numpy()


def describe(name: str, folder: Path | None) -> dict[str, Any]:
    """What identifies a set in the result file: its sizes, the digest of its labels, and lengths of its features."""
    x, y, x_test, y_test = load(name, folder)
    return {
        "n": len(y),
        "d": x.shape[1],
        "classes": int(y.max()) + 1,
        "tested": len(y_test),
        "labels": hashlib.sha256(y.tobytes() + y_test.tobytes()).hexdigest(),
        "lengths": [_length(rows) for rows in (x, x.mean(0), x_test, x_test.mean(0))],
    }


def _length(rows: NDArray[np.float32]) -> float:
    """The root of the sum of squares, in float64: rounding errors of millions in float32 depend on the processor."""
    return float(np.linalg.norm(np.linalg.norm(rows, axis=-1).astype(np.float64)))


def same_features(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two descriptions are of one set, whose features two machines may have rounded differently."""
    exact, others = (
        {name: value for name, value in described.items() if name != "lengths"} for described in (one, other)
    )
    pairs = zip(one.get("lengths", ()), other.get("lengths", ()), strict=False)
    return exact == others and all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in pairs)


def draws(y: NDArray[np.int64], samples: str) -> int:
    """How many draws of so many samples are measured: none where no class has more, which are all samples."""
    if samples.isdecimal() and int(samples) >= np.bincount(y).max():
        return 0
    return DRAWS.get(samples, DRAWS["20"])


def rows_of_draw(y: NDArray[np.int64], samples: str, draw: int) -> NDArray[np.int64]:
    """The training samples of a draw, class after class; a class that has fewer gives all of its own.

    Args:
        y: the class of each training sample `(n,)`.
        samples: samples of each class: a number, `"imbalanced"` or `"all"`.
        draw: the number of the draw, which decides which samples are taken.
    """
    if samples == ALL:
        return np.arange(len(y))
    chance = np.random.default_rng(draw)
    order = chance.permutation(len(y))
    L = int(y.max()) + 1
    if samples == IMBALANCED:
        sizes = chance.permutation(np.geomspace(LARGEST_CLASS, SMALLEST_CLASS, L).round().astype(int))
    else:
        sizes = np.full(L, int(samples))
    return np.concatenate([order[y[order] == label][: sizes[label]] for label in range(L)])
