"""The capsule projection on plain tensors: lengths with a closed-form backward, capsules, coordinates, hyper-power.

Shapes are written the same way everywhere: `B` batch, `L` classes, `d` features, `c` capsule dimension;
`x (..., d)`, `weight (L, c, d)`. The paper's basis `W_l (d, c)` of class l is `weight[l].T`.

With `G = W'W` and its Cholesky factor `G = R R'`, the capsule is `v = P x = W G^-1 W'x`. Let `u = W'x` and
`y = R^-1 u`. Then `|v|^2 = x'W G^-1 W'x = |y|^2` (the paper's Eq. 2), and a sum of squares can't turn negative as the
quadratic form can. Everything after `u` is of size `(L, c, B)` or `(L, c, c)`: no tensor of size `B x L x d` exists
unless capsules are asked for.
"""

import inspect
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "bases",
    "capsule_lengths",
    "capsules",
    "coordinates",
    "hyper_power_step",
    "normalization_matrix",
    "projections",
    "regularized_gram",
    "residuals",
]


def capsule_lengths(x: Tensor, weight: Tensor, eps: float = 0.0, *, sigma: Tensor | None = None) -> Tensor:
    """Lengths of the projections of `x` onto the L capsule subspaces: Eq. (2), with the backward of Eq. (3).

    Args:
        x: features `(..., d)`.
        weight: bases of the capsule subspaces `(L, c, d)`; row j of `weight[l]` is the paper's column j of `W_l`.
        eps: the ridge added to `W'W`. At 0 the projection is exact, and columns that depend on each other to within
            rounding are still safe.
        sigma: an estimate of the normalization matrices `(W'W)^-1` `(L, c, c)`, from `hyper_power_step`, to use in
            place of the factorization. It counts as a function of `weight`: the gradient is that of the inverse.

    Returns:
        The capsule lengths `(..., L)`, between 0 and `|x|`. In float32 under autocast, else in the dtype of the inputs.

    Example:
        >>> x, weight = torch.eye(3), torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 3.0, 4.0]]])  # d = 3, L = 2, c = 1
        >>> capsule_lengths(x, weight)
        tensor([[1.0000, 0.0000],
                [0.0000, 0.6000],
                [0.0000, 0.8000]])
    """
    check_arguments(x, weight, eps)
    if x.ndim != 2:
        lengths = capsule_lengths(x.reshape(-1, x.shape[-1]), weight, eps, sigma=sigma)
        return lengths.reshape(*x.shape[:-1], weight.shape[0])
    if _is_autocast(x):
        x = x.to(torch.get_autocast_dtype(x.device.type))
        with _full_precision(x):
            return _CapsuleLengths.apply(x, weight, eps, sigma)[0]
    x = x.to(torch.promote_types(x.dtype, weight.dtype))
    return _cast(_CapsuleLengths.apply(x, weight, eps, sigma)[0], x.dtype)


class _CapsuleLengths(torch.autograd.Function):
    """`(x (B, d), weight (L, c, d)) -> lengths (B, L)`; the other outputs are what the backward needs.

    Notation, for one sample and one class: `G` is W'W with its ridge, `u = W'x`, `z = G^-1 u` (so that v = W z and
    z = W^+ x), `|v| = sqrt(u'z)`. From `d(G^-1) = -G^-1 dG G^-1`:

        2 |v| d|v| = d(u' G^-1 u) = 2 z'du - z'dG z,    du = W'dx + dW'x,    dG = dW'W + W'dW
          |v| d|v| = z'W' dx + z'dW'x - z'W'dW z

    With `g = dl/d|v|` and `t = g z / |v|`, summed over the batch:

        dl/dx = W t
        dl/dW = x t' - W z t' = (x - v) t' = g (I - P) x x' W^{+T} / |v|                      the paper's Eq. (3)

    For a batch, `x t'` is the product that a linear layer does, and `z t'` is only (c, c): `dl/dW = X'T - W (Z'T)`.
    At |v| = 0 the length has no derivative; t = 0 is the subgradient that is used.

    x enters as x/m with m = max|x_i| for each sample, and lengths leave as m |v|: u and |v|^2 then stay in range for
    features of any size. m cancels in t.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, eps: float, sigma: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        m = x.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        z, squared = _solve(x / m, weight, eps, sigma)
        return (squared.sqrt().mT * m).contiguous(), z, squared, m

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, eps, _ = inputs
        _, z, squared, m = output
        ctx.mark_non_differentiable(z, squared, m)
        ctx.save_for_backward(x, weight, z, squared, m)
        ctx.set_materialize_grads(False)
        ctx.eps = eps

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: None) -> tuple[Tensor | None, Tensor | None, None, None]:
        if g is None:
            return None, None, None, None
        x, weight, z, squared, m = ctx.saved_tensors
        if _is_autocast(x):
            with _full_precision(x):
                return _CapsuleLengths.backward(ctx, g)
        if torch.is_grad_enabled():  # the gradient will be differentiated too: z must depend on x and weight again
            z, squared = _solve(x / m, weight, ctx.eps, None)
            squared = squared.masked_fill(squared == 0, torch.inf)  # t = 0 there, and so are its derivatives
        return *_gradients(g, x, weight, z, squared, m, ctx.needs_input_grad), None, None


# `apply` asks for the signature of `forward` at every call; an attribute is found in a tenth of the time.
_CapsuleLengths.forward.__signature__ = inspect.signature(_CapsuleLengths.forward)  # type: ignore[attr-defined]


def _solve(x: Tensor, weight: Tensor, eps: float, sigma: Tensor | None) -> tuple[Tensor, Tensor]:
    """`z = G^-1 W'x (L, c, B)` and `|v|^2 = x'W z (L, B)`, by Cholesky factor or with the given `sigma` for `G^-1`."""
    L, c, d = weight.shape
    # W times X' instead of X times W' puts the classes first, which is how the batched (c, c) products want them.
    u = torch.mm(_cast(weight, x.dtype).reshape(L * c, d), x.mT).view(L, c, -1)
    if sigma is None:
        root = _inverse_factor(weight, eps)
        y = torch.bmm(root, _cast(u, root.dtype))
        return torch.bmm(root.mT, y), (y * y).sum(1)
    u = _cast(u, sigma.dtype)
    z = torch.bmm(sigma, u)
    return z, (u * z).sum(1).clamp_min(0)


def _gradients(
    g: Tensor, x: Tensor, weight: Tensor, z: Tensor, squared: Tensor, m: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """Eq. (3) for a batch: `dl/dx (B, d)` and `dl/dW (L, c, d)` from `g (B, L)`, with the z and |v|^2 of x/m."""
    L, c, d = weight.shape
    # In this order the product takes the layout of its first factor, in which classes come first as in z.
    t = (squared.clamp_min(torch.finfo(squared.dtype).tiny).rsqrt() * g.mT).unsqueeze(1) * z
    t_flat = _cast(t, x.dtype).view(L * c, -1)
    dx = torch.mm(t_flat.mT, _cast(weight, x.dtype).reshape(L * c, d)) if needed[0] else None  # W t
    if not needed[1]:
        return dx, None
    zt = _cast(torch.bmm(t * m.mT, z.mT), weight.dtype)  # Z'T
    dw = _cast(torch.mm(t_flat, x).view(L, c, d), weight.dtype)  # X'T
    if torch.is_grad_enabled():
        return dx, torch.baddbmm(dw, zt, weight, alpha=-1)
    return dx, dw.baddbmm_(zt, weight, alpha=-1)  # - W (Z'T), in place: no second tensor of the weight's size


def _inverse_factor(weight: Tensor, eps: float) -> Tensor:
    """`R^-1 (L, c, c)` with `G = R R'`; zero, and so are the capsules, for a class whose Gram matrix overflowed."""
    eye = _identity(weight)
    factor, _ = torch.linalg.cholesky_ex(_gram(weight, eps, eye))
    return torch.linalg.solve_triangular(factor, eye, upper=False).nan_to_num(0.0, 0.0, 0.0)


def _gram(weight: Tensor, eps: float, eye: Tensor) -> Tensor:
    """`W'W` with its ridge: `eps`, and what rounding needs.

    The dot products of length d and the factorization of order c each disturb G by some units in the last place of its
    diagonal.
    """
    weight = _cast(weight, eye.dtype)
    _, c, d = weight.shape
    gram = torch.baddbmm(eye, weight, weight.mT, beta=max(eps, _smallest_ridge(weight.dtype)))
    gram.diagonal(dim1=-2, dim2=-1).mul_(1 + 2 * (c + math.sqrt(d)) * torch.finfo(weight.dtype).eps)
    return gram


def _smallest_ridge(dtype: torch.dtype) -> float:
    """7e-16 in float32: a column of W shorter than 3e-8 counts as zero.

    Z'T grows with |x| / |W|^2. This keeps it in range for features up to 1e20.
    """
    return torch.finfo(dtype).tiny ** 0.4


def _identity(weight: Tensor) -> Tensor:
    """The identity for each class `(L, c, c)`, in the weight's precision, or float32 where that is half."""
    L, c, _ = weight.shape
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return torch.eye(c, dtype=dtype, device=weight.device).expand(L, c, c)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


def _full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Under autocast the large products may be in half; Gram matrices and what is solved with them may not."""
    return torch.autocast(x.device.type, enabled=False) if _is_autocast(x) else nullcontext()


def _is_autocast(x: Tensor) -> bool:
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def regularized_gram(weight: Tensor, eps: float = 0.0) -> Tensor:
    """`G_l = W_l' W_l (L, c, c)` with its ridge, in float32 at the least."""
    check_arguments(None, weight, eps)
    with _full_precision(weight):
        return _gram(weight, eps, _identity(weight))


def normalization_matrix(weight: Tensor, eps: float = 0.0) -> Tensor:
    """The exact normalization matrices `Sigma_l = (W_l'W_l)^-1 (L, c, c)` of Eq. (2)."""
    check_arguments(None, weight, eps)
    with _full_precision(weight):
        root = _inverse_factor(weight, eps)
        return torch.bmm(root.mT, root)


def bases(weight: Tensor, eps: float = 0.0) -> Tensor:
    """An orthonormal basis of each capsule subspace, `(R^-1 W')_l (L, c, d)`: `|bases x| = |v|`."""
    check_arguments(None, weight, eps)
    with _full_precision(weight):
        root = _inverse_factor(weight, eps)
        return torch.bmm(root, _cast(weight, root.dtype)).to(weight.dtype)


def capsules(x: Tensor, weight: Tensor, eps: float = 0.0) -> Tensor:
    """The capsules `v_l = P_l x (..., L, d)`. This builds all L of them: lengths alone are far cheaper."""
    check_arguments(x, weight, eps)
    basis = bases(weight, eps)
    return torch.einsum("...lc,lcd->...ld", torch.einsum("...d,lcd->...lc", x, basis), basis)


def residuals(x: Tensor, weight: Tensor, eps: float = 0.0) -> Tensor:
    """`x - v_l (..., L, d)`: the component orthogonal to each subspace, novel to it (Section 2.3)."""
    return x.unsqueeze(-2) - capsules(x, weight, eps)


def coordinates(x: Tensor, weight: Tensor, eps: float = 0.0) -> Tensor:
    """`(W'W)^(-1/2) W' x (..., L, c)`: the capsule within its own subspace, with its length (Section 4.4)."""
    check_arguments(x, weight, eps)
    root = _InverseRoot.apply(regularized_gram(weight, eps))[0]
    with _full_precision(weight):
        basis = torch.bmm(root, _cast(weight, root.dtype)).to(weight.dtype)
    return torch.einsum("...d,lcd->...lc", x, basis)


def projections(weight: Tensor, eps: float = 0.0) -> Tensor:
    """The projection matrices `P_l = W_l W_l^+ (L, d, d)`."""
    basis = bases(weight, eps)
    return torch.matmul(basis.mT, basis)


def hyper_power_step(sigma: Tensor, gram: Tensor, order: int = 2) -> tuple[Tensor, Tensor]:
    """One step of the hyper-power sequence towards `G^-1` (Section 3.1), and the residual it started from.

    With `E = I - G Sigma`, order 2 is `Sigma (I + E) = 2 Sigma - Sigma G Sigma`, the paper's sequence, and order 3 is
    `Sigma (I + E + E^2)`. A step raises E to its order: it converges from any start with |E| < 1.

    Args:
        sigma: the estimate so far `(L, c, c)`.
        gram: `G (L, c, c)`, from `regularized_gram`.
        order: 2 or 3.

    Returns:
        The new estimate `(L, c, c)`, and `|I - G Sigma|` of the old one `(L,)`, as Frobenius norm.
    """
    if order not in (2, 3):
        raise ValueError(f"order must be 2 or 3, got {order}")
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    with _full_precision(gram):
        error = eye - torch.bmm(gram, sigma)
        series = eye + error if order == 2 else eye + error + torch.bmm(error, error)
        return torch.bmm(sigma, series), torch.linalg.matrix_norm(error)


class _InverseRoot(torch.autograd.Function):
    """`G^(-1/2)` of symmetric positive definite matrices, differentiable where eigenvalues coincide.

    In the eigenbasis of `G = Q diag(l) Q'` a function f of G has the derivative `(Q'dF Q)_ij = f[l_i, l_j] (Q'dG Q)_ij`
    with the divided differences of f. For f = l^(-1/2) they are

        (l_i^(-1/2) - l_j^(-1/2)) / (l_i - l_j) = -1 / (sqrt(l_i) sqrt(l_j) (sqrt(l_i) + sqrt(l_j)))

    where the right side has no pole at l_i = l_j. The derivative of `torch.linalg.eigh` has one, and a head that starts
    from orthonormal bases has G = I.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(gram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        eigenvalues, q = torch.linalg.eigh(gram)
        roots = eigenvalues.clamp_min(_smallest_ridge(gram.dtype)).sqrt()
        return torch.matmul(q / roots.unsqueeze(-2), q.mT), roots, q

    @staticmethod
    def setup_context(ctx: Any, _inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
        _, roots, q = output
        ctx.mark_non_differentiable(roots, q)
        ctx.save_for_backward(roots, q)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> Tensor:
        roots, q = ctx.saved_tensors
        i, j = roots.unsqueeze(-1), roots.unsqueeze(-2)
        inner = torch.matmul(torch.matmul(q.mT, (g + g.mT) / 2), q)
        return torch.matmul(torch.matmul(q, -inner / (i * j * (i + j))), q.mT)


def check_arguments(x: Tensor | None, weight: Tensor, eps: float) -> None:
    """Refuse what has no projection, with the numbers in the message."""
    if weight.ndim != 3:
        raise ValueError(f"weight must be (L, c, d): classes, capsule dimension, features; got {tuple(weight.shape)}")
    _, c, d = weight.shape
    if not 1 <= c <= d:
        raise ValueError(f"a capsule subspace of {d} features has dimension 1 to {d}, got capsule dimension {c}")
    if not eps >= 0 or not math.isfinite(eps):
        raise ValueError(f"eps must be finite and at least 0, got {eps}")
    if not weight.is_floating_point():
        raise TypeError(f"weight must be floating point, got {weight.dtype}")
    if x is None:
        return
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point, got {x.dtype}: convert it, for example with x.float()")
    if x.ndim == 0 or x.shape[-1] != d:
        raise ValueError(f"x must be (..., {d}) to match weight {tuple(weight.shape)}, got {tuple(x.shape)}")
