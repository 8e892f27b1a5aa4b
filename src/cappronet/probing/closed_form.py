"""Class subspaces of feature arrays: `cappronet.projection` for NumPy arrays and for classes of different dimension.

A basis here has as many rows as its class spans, and energy is squared length, summed over the features of a class.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cappronet import projection
from cappronet.probing.scale import Floats

__all__ = [
    "ClassSubspace",
    "as_tensor",
    "class_subspace",
    "extended",
    "held_out_weights",
    "leading_of_features",
    "leading_of_moment",
    "lengths_by_bases",
    "orthonormal",
]


def as_tensor(array: Floats) -> Tensor:
    """The array in float64 as a tensor; a read-only one is copied, as torch needs memory that it could write to."""
    return torch.from_numpy(np.require(array, np.float64, "W"))


def lengths_by_bases(features: Floats, bases: Floats) -> Floats:
    """Capsule lengths `(n, L)` of `features (n, d)`, by orthonormal bases `(L, c, d)` that may have rows of zeros."""
    L, c, d = bases.shape
    coordinates = as_tensor(features) @ as_tensor(bases).view(L * c, d).mT
    return coordinates.view(len(features), L, c).norm(dim=2).numpy()


def orthonormal(weight: Tensor, dims: NDArray[np.intp]) -> list[Floats]:
    """The orthonormal bases nearest to the given `(L, c, d)`, of which each class has the first rows, `dims (L,)`."""
    bases: list[Floats] = [weight[code, :0].numpy() for code in range(len(weight))]
    for dim in np.unique(dims[dims > 0]):  # those of one dimension together
        codes = np.flatnonzero(dims == dim)
        nearest = projection.coordinate_bases(weight[torch.from_numpy(codes), : int(dim)]).numpy()
        for code, basis in zip(codes, nearest, strict=True):
            bases[code] = basis
    return bases


def leading_of_features(features: Floats, dim: int | Literal["auto"], energy: float = 1.0) -> tuple[Floats, Floats]:
    """Energies `(c,)` and directions `(c, d)` of the subspace that keeps the most energy of `features (n, d)`.

    c is `dim`, or for `"auto"` the fewest dimensions that keep the share `energy`; but at most what the features span,
    and, except for d = 1, at most d - 1, because a subspace of d dimensions contains everything.
    """
    n, d = features.shape
    most = max(1, min(n, d - 1))
    leading = projection.leading_directions(as_tensor(features), most if dim == "auto" else min(dim, most))
    total = float(np.einsum("nd,nd->", features, features, dtype=np.float64))
    rounding = np.finfo(features.dtype).eps * np.sqrt(min(n, d))
    return _trimmed(*leading, rounding, energy * total if dim == "auto" else np.inf)


def leading_of_moment(moment: Floats, dim: int | Literal["auto"], energy: float) -> tuple[Floats, Floats]:
    """The same from the second moment `X'X (d, d)` of the features."""
    most = max(1, len(moment) - 1)
    leading = projection.leading_eigenvectors(as_tensor(moment), most if dim == "auto" else min(dim, most))
    rounding = np.finfo(moment.dtype).eps * np.sqrt(len(moment))
    return _trimmed(*leading, rounding, energy * float(np.trace(moment)) if dim == "auto" else np.inf)


def _trimmed(energies: Tensor, directions: Tensor, rounding: float, enough: float) -> tuple[Floats, Floats]:
    """The leading directions that are more than rounding, and no more of them than keep `enough` energy."""
    values = energies.numpy()
    count = int((values > rounding * values[0]).sum()) if values[0] > 0 else 0
    count = min(count, 1 + int(np.searchsorted(np.cumsum(values), enough)))
    return values[:count], directions.numpy()[:count]


class ClassSubspace(NamedTuple):
    """The subspace of a class, and what is needed to judge it on samples that it was not fitted to.

    Attributes:
        energies: the energy along each direction `(c,)`.
        basis: the directions `(c, d)`.
        basis_of_rest: those of the samples that are not held out.
        held_out: how much of the weight of each sample `(n,)` is held out.
    """

    energies: Floats
    basis: Floats
    basis_of_rest: Floats
    held_out: Floats


def class_subspace(
    features: Floats, weights: Floats, dim: int | Literal["auto"], energy: float, step: int
) -> ClassSubspace:
    """The subspace of the features `(n, d)` of a class, and that of all but one in `step` of them."""
    weights = weights.astype(features.dtype)  # or moments of single precision would be computed in double
    held_out = held_out_weights(features, weights, step)
    if len(features) >= 2 * features.shape[1]:
        moment = (features.T * weights) @ features
        rest = moment - (features.T * held_out) @ features
        return ClassSubspace(*leading_of_moment(moment, dim, energy), leading_of_moment(rest, dim, energy)[1], held_out)
    rest = weights - held_out
    whole = leading_of_features(features * np.sqrt(weights)[:, None], dim, energy)
    rows = rest > 0
    if not rows.any():
        return ClassSubspace(*whole, whole[1][:0], held_out)
    part = leading_of_features(features[rows] * np.sqrt(rest[rows])[:, None], dim, energy)
    return ClassSubspace(*whole, part[1], held_out)


def held_out_weights(features: Floats, weights: Floats, step: float) -> Floats:
    """How much of the weight of each sample `(n,)` of a class to hold out, to hold out one sample in `step`.

    The order depends on the samples alone, and a weight counts as copies. A single sample is not held out.
    """
    order = np.argsort((features * np.linspace(1, 2, features.shape[1])).sum(axis=1), kind="stable")
    ends = np.cumsum(weights[order], dtype=np.float64)
    held_out = np.zeros_like(weights)
    counts = np.floor((np.append(0, ends) + step - 2) / step)
    held_out[order] = np.minimum(np.diff(counts), weights[order])
    return held_out


def extended(basis: Floats, features: Floats, dim: int) -> Floats:
    """A basis of up to `dim` directions: the given ones, then the leading ones of what they miss of the features."""
    missing = min(dim, max(1, features.shape[1] - 1)) - len(basis)
    if missing <= 0:
        return basis
    return np.concatenate([basis, leading_of_features(features - features @ basis.T @ basis, missing)[1]])
