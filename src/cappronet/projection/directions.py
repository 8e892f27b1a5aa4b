"""A class subspace in closed form, from the class's own features: the directions along which these are long.

Energy is squared length, summed over features. Everything is computed in float64, where a Gram matrix of features in
float32 is exact enough, and directions have the sign that makes their largest entry positive.
"""

import torch
from torch import Tensor

__all__ = ["contrasted_directions", "leading_directions", "leading_eigenvectors"]

# How strongly a subspace may avoid the directions of other samples, and in how many bisections that is chosen.
LARGEST_CONTRAST, BISECTIONS = 16.0, 9


def leading_directions(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of all subspaces of dimension `count`, the one that keeps the most energy of the features `x (n, d)`.

    These are the leading right singular vectors of x, found from the smaller of its two Gram matrices.

    Returns:
        The energy along each direction `(count,)`, in falling order, and orthonormal directions `(count, d)`. Where the
        features span fewer dimensions, the last energies are 0 up to rounding and their directions arbitrary.
    """
    n, d = x.shape
    if not 1 <= count <= min(n, d):
        raise ValueError(f"{n} features of {d} numbers have 1 to {min(n, d)} leading directions, got {count}")
    x = x.double()
    if n >= d:
        return leading_eigenvectors(x.mT @ x, count)
    values, vectors = _descending(x @ x.mT, count)
    return values, _signed(torch.linalg.qr(x.mT @ vectors).Q.mT)


def leading_eigenvectors(moment: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same from a second moment `X'X (d, d)`, or a difference of two: `(count,)` and `(count, d)`."""
    if not 1 <= count <= len(moment):
        raise ValueError(f"a moment of {len(moment)} features has 1 to {len(moment)} directions, got {count}")
    values, vectors = _descending(moment.double(), count)
    return values, _signed(vectors.mT)


def contrasted_directions(x: Tensor, count: int, others: Tensor, length: float) -> Tensor:
    """The directions `(count, d)` along which `x (n, d)` is long, but samples of second moment `others (d, d)` are not.

    They are the leading eigenvectors of `X'X/n - k others`. The larger k, the shorter the features become in their own
    subspace. It is chosen by bisection so that their mean length is `length`, the mean length of the other classes'
    features in theirs. Each half of the features is measured in the subspace of the other half: a few features are
    always longer in a subspace of their own than those to come.
    """
    x, others = x.double(), others.double()
    halves = (x[::2], x[1::2]) if len(x) > 1 else (x, x)
    moments = [half.mT @ half / len(half) for half in halves]

    def mean_length(k: float) -> float:
        pairs = zip(moments, reversed(halves), strict=True)
        lengths = [(half @ leading_eigenvectors(m - k * others, count)[1].mT).norm(dim=1) for m, half in pairs]
        return torch.cat(lengths).mean().item()

    low, high = 0.0, LARGEST_CONTRAST
    for _ in range(BISECTIONS):
        k = (low + high) / 2
        low, high = (k, high) if mean_length(k) > length else (low, k)
    return leading_eigenvectors((moments[0] + moments[1]) / 2 - (low + high) / 2 * others, count)[1]


def _descending(gram: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues `(count,)` and their eigenvectors `(size, count)`."""
    values, vectors = torch.linalg.eigh(gram)
    return values[-count:].flip(0), vectors[:, -count:].flip(1)


def _signed(directions: Tensor) -> Tensor:
    """Rows whose largest entry is positive: the sign of an eigenvector is arbitrary."""
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return directions * torch.where(largest < 0, -1.0, 1.0)
