"""The Grassmann manifold, whose points are subspaces: tangent vectors at orthonormal bases, and geodesics from them."""

import torch
from torch import Tensor

__all__ = ["geodesic", "tangent"]


def tangent(basis: Tensor, direction: Tensor) -> Tensor:
    """The part of a direction that moves the subspaces: `(I - S S') D`, for orthonormal bases.

    What is left out, `S S'D`, only mixes the vectors of a basis among themselves.

    Args:
        basis: orthonormal bases `(L, c, d)`; row j of `basis[l]` is column j of `S_l`.
        direction: `(L, c, d)`, in the same layout, such as a gradient.
    """
    return torch.baddbmm(direction, torch.bmm(direction, basis.mT), basis, alpha=-1)


def geodesic(basis: Tensor, velocity: Tensor) -> Tensor:
    """Where the geodesic from each subspace with this velocity arrives at time 1: orthonormal bases `(L, c, d)`.

    With the thin singular value decomposition `H = U diag(s) V'` of the velocity it is

        S V cos(s) V' + U sin(s) V' = S cos(A^(1/2)) + H A^(-1/2) sin(A^(1/2)),    A = H'H = V diag(s^2) V'

    The right side needs the eigenvalues of the small matrices A alone. Both functions of A are power series in it, so
    nothing is lost by squaring the singular values, however small they are, and none is divided by. The factor V' at
    the end moves each vector of the basis in parallel: what a Euclidean buffer holds for it, such as a momentum,
    still belongs to it.

    Args:
        basis: orthonormal bases `(L, c, d)`.
        velocity: tangent vectors at them `(L, c, d)`, from `tangent`; its singular values are the angles to move by.

    Example:
        >>> basis, velocity = torch.tensor([[[1.0, 0.0, 0.0]]]), torch.tensor([[[0.0, torch.pi / 3, 0.0]]])
        >>> geodesic(basis, velocity).round(decimals=4)
        tensor([[[0.5000, 0.8660, 0.0000]]])
    """
    gram = torch.bmm(velocity, velocity.mT)
    # The decomposition refuses numbers that are not finite. Without it they reach the result, as in any other step.
    values, vectors = torch.linalg.eigh(gram.nan_to_num(0.0, 0.0, 0.0))
    angles = values.clamp_min(0).sqrt().unsqueeze(-2)
    along = torch.bmm(vectors * angles.cos(), vectors.mT)
    across = torch.bmm(vectors * torch.sinc(angles / torch.pi), vectors.mT)
    return torch.baddbmm(torch.bmm(along, basis), across, velocity)
