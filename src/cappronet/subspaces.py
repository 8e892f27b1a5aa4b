"""Capsule subspaces in closed form, on NumPy arrays: a class's leading directions, lengths, and the scale of lengths.

Energy is squared length, summed over the features of a class.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

__all__ = [
    "Floats",
    "Integers",
    "capsule_lengths",
    "contrasted_directions",
    "extended",
    "features_by_class",
    "fitted_scale",
    "leading_directions",
    "leading_directions_of_moment",
    "orthonormal",
    "rms_length",
    "unit",
]

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.intp]

# How far a class's subspace may avoid what other classes are along, and how finely that is chosen.
LARGEST_CONTRAST, CONTRAST_STEPS = 16.0, 9


def leading_directions(rows: Floats, dim: int | Literal["auto"], energy: float = 1.0) -> tuple[Floats, Floats]:
    """Of all subspaces of their dimension, the one that keeps most of the energy of `rows (n, d)`.

    Args:
        rows: the features of one class.
        dim: how many directions, or `"auto"` for the fewest that keep `energy`. There are never more than the features
            span, and, but for d = 1, never more than d - 1: a subspace of d dimensions contains everything.
        energy: the share to keep.

    Returns:
        The energy along each direction `(dim,)`, in falling order, and the directions `(dim, d)`, orthonormal. Their
        signs are such that the largest entry is positive.
    """
    n, d = rows.shape
    if n >= d:
        return leading_directions_of_moment(rows.T @ rows, dim, energy)
    # The Gram matrix of the samples is the smaller one, and each of its eigenvectors u gives the direction X'u.
    energies, vectors = _eigenvectors(rows @ rows.T, dim, energy, d - 1)
    return energies, _signed(np.linalg.qr(rows.T.astype(np.float64) @ vectors)[0].T)


def leading_directions_of_moment(moment: Floats, dim: int | Literal["auto"], energy: float) -> tuple[Floats, Floats]:
    """The same, from the second moment `X'X (d, d)` of the features."""
    energies, vectors = _eigenvectors(moment, dim, energy, len(moment) - 1)
    return energies, _signed(vectors.T)


def extended(basis: Floats, rows: Floats, dim: int) -> Floats:
    """A basis of up to `dim` directions: the given ones, then the leading ones of what they miss of `rows`."""
    missing = min(dim, max(1, rows.shape[1] - 1)) - len(basis)
    if missing <= 0:
        return basis
    return np.concatenate([basis, leading_directions(rows - rows @ basis.T @ basis, missing)[1]])


def contrasted_directions(rows: Floats, dim: int, shared: Floats, length: float) -> Floats:
    """The `dim` directions along which `rows (n, d)` are long and samples of second moment `shared (d, d)` are not.

    They are the leading eigenvectors of `X'X/n - k shared`. The larger k, the shorter the features become in their
    subspace. It is chosen by bisection so that their mean length is `length`, measured on each half of the features in
    the subspace of the other half: in one of their own, a few features are longer than those to come.
    """
    halves = (rows[::2], rows[1::2]) if len(rows) > 1 else (rows, rows)
    moments = [half.T @ half / len(half) for half in halves]

    def directions(moment: Floats, k: float) -> Floats:
        difference = (moment - k * shared).astype(np.float64)
        _, vectors = eigh(difference, subset_by_index=[len(shared) - dim, len(shared) - 1])
        return vectors[:, ::-1].T

    low, high = 0.0, LARGEST_CONTRAST
    for _ in range(CONTRAST_STEPS):
        k = (low + high) / 2
        pairs = zip(moments, reversed(halves), strict=True)
        reached = np.mean([capsule_lengths(half, directions(moment, k)[None]).mean() for moment, half in pairs])
        low, high = (k, high) if reached > length else (low, k)
    return _signed(directions((moments[0] + moments[1]) / 2, (low + high) / 2))


def _eigenvectors(gram: Floats, dim: int | Literal["auto"], energy: float, largest: int) -> tuple[Floats, Floats]:
    """Leading eigenvalues of a Gram matrix and eigenvectors as columns: as many as wished, `largest` and rank allow."""
    size, most = len(gram), max(1, min(len(gram), largest))
    rounding = np.finfo(gram.dtype).eps * np.sqrt(size)
    if dim == "auto":
        values, vectors = eigh(gram.astype(np.float64), driver="evd")
    else:
        values, vectors = eigh(gram.astype(np.float64), subset_by_index=[size - min(dim, most), size - 1])
    values, vectors = values[::-1], vectors[:, ::-1]
    count = min(most, int((values > rounding * values[0]).sum())) if values[0] > 0 else 0
    if dim == "auto":
        count = min(count, 1 + int(np.searchsorted(np.cumsum(values), energy * np.trace(gram))))
    return values[:count], vectors[:, :count]


def _signed(basis: Floats) -> Floats:
    """Rows whose largest entry is positive: an eigenvector's sign is arbitrary."""
    largest = np.take_along_axis(basis, np.abs(basis).argmax(axis=1)[:, None], axis=1)
    return basis * np.where(largest < 0, -1.0, 1.0)


def orthonormal(weight: Floats) -> Floats:
    """`(W'W)^(-1/2) W' (c, d)`, the basis nearest to the given one; that of `CapsuleProjection.coordinates`."""
    u, _, vt = np.linalg.svd(weight, full_matrices=False)
    return u @ vt


def capsule_lengths(features: Floats, bases: Floats) -> Floats:
    """Lengths `(n, L)` of the projections of `features (n, d)`, by orthonormal `bases (L, c, d)` or rows of zeros."""
    L, c, d = bases.shape
    coordinates = (features @ bases.reshape(L * c, d).T).reshape(len(features), L, c)
    return np.sqrt(np.einsum("nlc,nlc->nl", coordinates, coordinates))


def fitted_scale(lengths: Floats, codes: Integers) -> float:
    """The scale of `lengths (n, L)` under which softmax finds the classes `codes (n,)` most likely.

    The targets are smoothed as in Platt's scaling, by one part in n + 2, which keeps the scale finite where every
    sample is right.
    """
    n = len(codes)
    size = float(np.sqrt(np.mean(lengths**2))) or 1.0
    target = lengths[np.arange(n), codes]
    target = target + (lengths.mean(axis=1) - target) / (n + 2)

    def loss(log_scale: float) -> float:
        scale = np.exp(log_scale) / size
        return float(np.mean(logsumexp(scale * lengths, axis=1) - scale * target))

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 9.0), method="bounded").x) / size)


def unit(x: Floats) -> Floats:
    """Rows of length 1; zero stays zero."""
    size = np.sqrt(np.einsum("nd,nd->n", x, x))
    if not np.isfinite(size).all():  # their squares overflowed
        return unit(x / np.abs(x).max(axis=1, keepdims=True).clip(min=np.finfo(x.dtype).tiny))
    return x / np.where(size > 0, size, 1)[:, None]


def rms_length(features: Floats) -> float:
    """The root mean square of the lengths; 1 where all are zero."""
    return float(np.sqrt(np.einsum("nd,nd->", features, features, dtype=np.float64) / len(features))) or 1.0


def features_by_class(features: Floats, codes: Integers) -> Iterator[tuple[int, Floats]]:
    """Each class that there is, with its features."""
    found, counts = np.unique(codes, return_counts=True)
    rows = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    yield from ((int(code), features[own]) for code, own in zip(found, rows, strict=True))
