"""Class subspaces: their bases, what they contain of a feature vector, and the angles between them.

`x (..., d)` are features, `weight (L, c, d)` are bases of any kind, `basis (L, c, d)` orthonormal ones.
"""

import torch
from torch import Tensor

from cappronet.projection.gram import cast, check_arguments, full_precision, inverse_factor, promoted
from cappronet.projection.rotation import orthogonal_factor

__all__ = [
    "bases",
    "capsules",
    "coordinate_bases",
    "coordinates",
    "principal_angles",
    "projections",
    "relative_residuals",
    "residuals",
]


def bases(weight: Tensor, eps: float = 0.0) -> Tensor:
    """An orthonormal basis of each capsule subspace, `(R^-1 W')_l (L, c, d)`: `|bases x| = |v|`."""
    check_arguments(None, weight, eps)
    with full_precision(weight):
        root = inverse_factor(weight, eps)
        return torch.bmm(root, cast(weight, root.dtype)).to(weight.dtype)


def capsules(x: Tensor, weight: Tensor, eps: float = 0.0) -> Tensor:
    """The capsules `v_l = P_l x (..., L, d)`. This builds all L of them: lengths alone are far cheaper."""
    check_arguments(x, weight, eps)
    x, basis = promoted(x, bases(weight, eps))
    return torch.einsum("...lc,lcd->...ld", torch.einsum("...d,lcd->...lc", x, basis), basis)


def residuals(x: Tensor, weight: Tensor, eps: float = 0.0) -> Tensor:
    """`x - v_l (..., L, d)`: the component orthogonal to each subspace, novel to it (Section 2.3)."""
    return x.unsqueeze(-2) - capsules(x, weight, eps)


def coordinates(x: Tensor, weight: Tensor, eps: float = 0.0) -> Tensor:
    """`(W'W)^(-1/2) W' x (..., L, c)`: the capsule within its own subspace, with its length (Section 4.4)."""
    check_arguments(x, weight, eps)
    x, basis = promoted(x, coordinate_bases(weight, eps))
    return _at_most(torch.einsum("...d,lcd->...lc", x, basis), x)


def coordinate_bases(weight: Tensor, eps: float = 0.0) -> Tensor:
    """`(W'W)^(-1/2) W' (L, c, d)`, from features to `coordinates`: the orthonormal bases nearest to the given.

    With `G = R R'` this is `G^(-1/2) R` times `bases`. The first factor is orthogonal whatever G is: coordinates have
    the length of the capsule even where columns nearly depend on each other.
    """
    check_arguments(None, weight, eps)
    with full_precision(weight):
        root = inverse_factor(weight, eps)
        basis = torch.bmm(orthogonal_factor(root.mT), torch.bmm(root, cast(weight, root.dtype)))
        return basis.to(weight.dtype)


def _at_most(coordinates: Tensor, x: Tensor) -> Tensor:
    """Coordinates `(..., L, c)` that rounding made longer than `x (..., d)`, shortened to its length."""
    with torch.no_grad():
        m = x.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)  # squares must not overflow
        dtype = torch.promote_types(x.dtype, torch.float32)
        norms = torch.linalg.vector_norm(x / m, dim=-1, dtype=dtype)[..., None, None]
        lengths = torch.linalg.vector_norm(coordinates / m.unsqueeze(-1), dim=-1, keepdim=True, dtype=dtype)
        factor = (norms / lengths.clamp_min(torch.finfo(dtype).tiny)).clamp_max(1.0)
    return coordinates * cast(factor, coordinates.dtype)


def projections(weight: Tensor, eps: float = 0.0) -> Tensor:
    """The projection matrices `P_l = W_l W_l^+ (L, d, d)`."""
    basis = bases(weight, eps)
    return torch.matmul(basis.mT, basis)


def relative_residuals(lengths: Tensor, norms: Tensor) -> Tensor:
    """`|x - v| / |x| = sqrt(1 - |v|^2 / |x|^2)` from capsule lengths `|v|` and feature norms `|x|`, of any shape.

    It is the sine of the angle between x and the subspace: 0 inside it, 1 orthogonal to it, and 1 for x = 0. Small
    residuals need lengths in float64: in float32 one below 3e-4 is rounding.
    """
    cosines = torch.where(norms > 0, lengths / norms, 0.0)
    return (1 - cosines.square()).clamp(0, 1).sqrt()


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """Principal angles in radians, smallest first, between all pairs of subspaces: `(K, c, d), (L, c, d) -> (K, L, c)`.

    Both are orthonormal bases. The cosines are the singular values of `A B'`, here as roots of the eigenvalues of
    `A B'B A'`, which come much faster in large batches.
    """
    products = torch.einsum("kcd,led->klce", a, b)
    squared = torch.linalg.eigvalsh(products @ products.mT).flip(-1)
    return squared.clamp(0, 1).sqrt().acos()
