"""Sizes of feature arrays, and the scale that makes probabilities of capsule lengths."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

__all__ = [
    "Floats",
    "Integers",
    "features_by_class",
    "fitted_origin",
    "fitted_scale",
    "in_range",
    "rms_length",
    "rows_by_class",
    "unit_rows",
]

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.intp]

# Without unit features, lengths must have squares in float64 that can be summed.
SMALLEST_SIZE = 1e-140


def fitted_scale(lengths: Floats, codes: Integers, weights: Floats | None = None) -> float:
    """The scale of `lengths (n, L)` at which softmax gives the classes `codes (n,)` the highest likelihood.

    The targets are smoothed as in Platt's scaling, by one part in n + 2, which keeps the scale finite where every
    sample is classified correctly. A weight `(n,)` counts as copies of a sample.
    """
    weights = np.ones(len(codes)) if weights is None else weights
    size = float(np.sqrt(np.average(np.mean(lengths**2, axis=1), weights=weights))) or 1.0
    target = lengths[np.arange(len(codes)), codes]
    target = target + (lengths.mean(axis=1) - target) / (weights.sum() + 2)

    def loss(log_scale: float) -> float:
        scale = np.exp(log_scale) / size
        return float(np.average(logsumexp(scale * lengths, axis=1) - scale * target, weights=weights))

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 9.0), method="bounded").x) / size)


def fitted_origin(
    x: Floats, weights: Floats, center: bool, intercept: bool, normalize: bool
) -> tuple[Floats | None, float]:
    """The mean to subtract, if any, and the constant a to append, with which the mean holds a third of E|x|^2.

    From `|Ex|^2 + a^2 = (E|x|^2 + a^2) / 3` follows `a^2 = (E|x|^2 - 3 |Ex|^2) / 2`; none where that is negative. For
    centred features it is 0.7 times their root mean square length.
    """
    size = rms_length(x, weights)
    if not normalize and not SMALLEST_SIZE < size < 1 / SMALLEST_SIZE:
        raise ValueError(f"features of length {size:.0e} are out of range: rescale them, or set normalize=True")
    mean = (weights.astype(x.dtype) @ x).astype(np.float64) / weights.sum()
    relative = mean / size  # the square of the size itself may not be a number
    free = (1 - (1 if center else 3) * float(relative @ relative)) / 2
    return mean if center else None, size * float(np.sqrt(free)) if intercept and free > 0 else 0.0


def unit_rows(x: Floats) -> Floats:
    """Rows of length 1; zero stays zero."""
    squared = np.einsum("nd,nd->n", x, x)
    smallest = np.finfo(x.dtype).tiny / np.finfo(x.dtype).eps
    if not ((squared >= smallest) & np.isfinite(squared)).all():  # squares overflowed, vanished, or are zero
        x = x / np.abs(x).max(axis=1, keepdims=True, initial=0).clip(min=np.finfo(x.dtype).tiny)
        squared = np.einsum("nd,nd->n", x, x)
    return x / np.sqrt(np.where(squared > 0, squared, 1))[:, None]


def in_range(x: Floats) -> Floats:
    """Features in float32 whose squares could overflow or vanish there, in float64; others as they are."""
    largest = _largest(x)
    return x if x.dtype != np.float32 or largest == 0 or 1e-12 < largest < 1e12 else x.astype(np.float64)


def _largest(x: Floats) -> float:
    return max(float(x.max(initial=0)), -float(x.min(initial=0)))


def rms_length(features: Floats, weights: Floats | None = None) -> float:
    """The root mean square of the lengths of `features (n, d)`; 1 where all are zero."""
    squares = np.einsum("nd,nd->n", features, features, dtype=np.float64)
    squared = float(np.average(squares, weights=weights))
    if 1e-200 < squared < np.inf:
        return float(np.sqrt(squared))
    largest = _largest(features)  # all zero, or squares that overflowed or vanished
    return largest * rms_length(features / largest, weights) if largest > 0 else 1.0


def features_by_class(features: Floats, codes: Integers) -> Iterator[tuple[int, Floats]]:
    """Each class that occurs in `codes (n,)`, with its features."""
    yield from ((code, features[rows]) for code, rows in rows_by_class(codes))


def rows_by_class(codes: Integers) -> Iterator[tuple[int, Integers]]:
    """Each class that occurs in `codes (n,)`, with the rows of its samples."""
    present, counts = np.unique(codes, return_counts=True)
    rows = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    yield from ((int(code), own) for code, own in zip(present, rows, strict=True))
