"""The orthogonal factor of a matrix, `(A A')^(-1/2) A`, with derivatives of every order."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["orthogonal_factor"]


def orthogonal_factor(a: Tensor) -> Tensor:
    """The orthogonal matrices `O = (A A')^(-1/2) A` nearest to square ones `A (L, c, c)`: `A = H O` with H symmetric.

    H has the singular values of A. Where they coincide, as for A = I, O is still smooth, but the derivative of an
    eigenvalue decomposition has a pole there: this one is written without it.
    """
    return _OrthogonalFactor.apply(a)


class _OrthogonalFactor(torch.autograd.Function):
    """`A = H O -> O`.

    `dO = K O` with an antisymmetric K, because O stays orthogonal. From `H = A O'`, which stays symmetric,

        H K + K H = dA O' - O dA'

    This Sylvester equation is its own adjoint: with `g = dl/dO`, `dl/dA = K O` where `H K + K H = g O' - O g'`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        u, _, vh = torch.linalg.svd(a)
        return torch.bmm(u, vh)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        a, o = ctx.saved_tensors
        turn = torch.bmm(g, o.mT)
        return torch.bmm(_Sylvester.apply(torch.bmm(a, o.mT), turn - turn.mT)[0], o)


class _Sylvester(torch.autograd.Function):
    """`(H, C) -> K` with `H K + K H = C`, for symmetric positive definite H; the other outputs are for the backward.

    In the eigenbasis of `H = Q diag(h) Q'` it is `(Q'K Q)_ij = (Q'C Q)_ij / (h_i + h_j)`. From
    `H dK + dK H = dC - dH K - K dH`, with `g = dl/dK` and `H Y + Y H = g`: `dl/dC = Y`, `dl/dH = -(Y K' + K' Y)`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, q = torch.linalg.eigh((h + h.mT) / 2)
        return _solve(values, q, c), values, q

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        k, values, q = output
        ctx.mark_non_differentiable(values, q)
        ctx.save_for_backward(inputs[0], k, values, q)

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        h, k, values, q = ctx.saved_tensors
        y = _Sylvester.apply(h, g)[0] if torch.is_grad_enabled() else _solve(values, q, g)
        return -(torch.bmm(y, k.mT) + torch.bmm(k.mT, y)), y


def _solve(values: Tensor, q: Tensor, c: Tensor) -> Tensor:
    sums = values.unsqueeze(-1) + values.unsqueeze(-2)
    sums = sums.masked_fill(sums <= 0, torch.inf)  # H = 0, of a class whose Gram matrix overflowed: K = 0
    inner = torch.bmm(torch.bmm(q.mT, c), q) / sums
    return torch.bmm(torch.bmm(q, inner), q.mT)
