"""Capsule lengths, the paper's Eq. (2), with the closed-form backward of Eq. (3)."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cappronet.projection.gram import cast, check_arguments, full_precision, inverse_factor, is_autocast

__all__ = ["capsule_lengths", "lengths_and_gradient"]


def capsule_lengths(
    x: Tensor, weight: Tensor, eps: float = 0.0, *, sigma: Tensor | None = None, orthonormal: bool = False
) -> Tensor:
    """Lengths of the projections of `x` onto the L capsule subspaces: Eq. (2), with the backward of Eq. (3).

    Args:
        x: features `(..., d)`.
        weight: bases of the capsule subspaces `(L, c, d)`; row j of `weight[l]` is the paper's column j of `W_l`.
        eps: the ridge added to `W'W`. At 0 the projection is exact up to rounding, see below, and columns that depend
            on each other are safe.
        sigma: an estimate of the normalization matrices `(W'W)^-1` `(L, c, c)`, from `hyper_power_step`, to use in
            place of the factorization. It counts as a function of `weight`: the gradient is that of the inverse.
        orthonormal: the bases are known to be orthonormal, so that `W'W = I` needs no factorization. The gradient is
            still that of the projection, Eq. (3), which is tangent to the manifold of subspaces.

    Returns:
        The capsule lengths `(..., L)`, between 0 and `|x|`. In float32 under autocast, else in the dtype of the inputs.

    Accuracy in float32, relative to the exact length and for `W'W` of condition number k: better than 1e-4 for k up to
    100, 1e-3 for 1e3, 1e-2 for 1e4; relative to `|x|`, better than 1e-6 k up to 1e5. From about 1e6 on, columns depend
    on each other to within rounding, and directions that only they distinguish are shortened. In float64 all of this is
    5e8 times better.

    Example:
        >>> x, weight = torch.eye(3), torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 3.0, 4.0]]])  # d = 3, L = 2, c = 1
        >>> capsule_lengths(x, weight)
        tensor([[1.0000, 0.0000],
                [0.0000, 0.6000],
                [0.0000, 0.8000]])
    """
    check_arguments(x, weight, eps)
    if x.ndim != 2:
        lengths = capsule_lengths(x.reshape(-1, x.shape[-1]), weight, eps, sigma=sigma, orthonormal=orthonormal)
        return lengths.reshape(*x.shape[:-1], weight.shape[0])
    function = _function()
    if is_autocast(x):
        x = x.to(torch.get_autocast_dtype(x.device.type))
        with full_precision(x):
            return function(x, weight, eps, sigma, orthonormal)[0]
    x = x.to(torch.promote_types(x.dtype, weight.dtype))
    return cast(function(x, weight, eps, sigma, orthonormal)[0], x.dtype)


def _function() -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    """What computes lengths here: with the derivatives that can be asked for, or without any where none can."""
    if torch.compiler.is_compiling():
        return _CapsuleLengths.apply  # torch.compile refuses a Function that has a forward-mode derivative
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return _WithForwardMode.apply
    if torch.is_grad_enabled():
        return _CapsuleLengths.apply
    return _CapsuleLengths.forward


def lengths_and_gradient(x: Tensor, weight: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Capsule lengths without autograd: for loops over steps so small that recording them takes most of the time.

    Args:
        x: features `(B, d)` whose squares can be summed in their precision, which is that of the weight.
        weight: bases `(L, c, d)`.

    Returns:
        The lengths `(L, B)`, classes first, and the function that takes `dl/d|v| (L, B)` to `dl/dW (L, c, d)`, Eq. (3).
    """
    x, weight = x.detach(), weight.detach()
    root = inverse_factor(weight, 0.0, guarded=False)  # the guard would take longer than the factorization
    y = torch.bmm(root, torch.mm(weight.reshape(-1, weight.shape[-1]), x.mT).view(*weight.shape[:2], -1))
    z, squared = torch.bmm(root.mT, y), (y * y).sum(1)

    def gradient(g: Tensor) -> Tensor:
        return _weight_gradient(_weighted(g.detach(), z, squared), x, weight, z)

    return squared.sqrt(), gradient


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
    def forward(
        x: Tensor, weight: Tensor, eps: float, sigma: Tensor | None, orthonormal: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        m = x.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        x = x / m
        z, squared = _solve(x, weight, eps, sigma, orthonormal)
        # A projection is never longer than x; rounding can make it so where columns nearly depend on each other.
        norm = torch.linalg.vector_norm(x, dim=-1, dtype=torch.promote_types(x.dtype, squared.dtype))
        return (torch.minimum(squared.sqrt(), norm).mT * m).contiguous(), z, squared, m

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, eps, *_ = inputs
        _, z, squared, m = output
        ctx.mark_non_differentiable(z, squared, m)
        ctx.save_for_backward(x, weight, z, squared, m)
        ctx.set_materialize_grads(False)
        ctx.eps = eps

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        if g is None:
            return None, None, None, None, None
        # The backward of a compiled network runs under the autocast of its forward, whatever is on while it is traced.
        if torch.compiler.is_compiling() or is_autocast(g):
            with torch.autocast(g.device.type, enabled=False):
                return *_backward(ctx, g), None, None, None
        return *_backward(ctx, g), None, None, None


class _WithForwardMode(_CapsuleLengths):
    """The same with a forward-mode derivative: `d|v| = (z'W'dx + z'dW'x - z'W'dW z) / |v|`, with terms as above."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _CapsuleLengths.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:2], *output[1:])

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dw: Tensor | None, *_: None) -> tuple[Tensor, None, None, None]:
        if _forward_modes() > 1:
            raise RuntimeError(
                "PyTorch cannot nest forward-mode derivatives of a custom Function (it would return 0): use "
                "torch.func.jacfwd(jacrev(f)) or jacrev(jacfwd(f)) instead of jacfwd(jacfwd(f))"
            )
        x, weight, _, _, m = ctx.saved_tensors
        L, c, d = weight.shape
        z, squared = _solve_again(x, weight, ctx.eps, m)  # always: nothing here tells whether this is differentiated
        total = torch.zeros_like(squared)
        if dx is not None:
            total = total + (z * torch.mm(cast(weight, x.dtype).reshape(L * c, d), dx.mT).view_as(z)).sum(1)
        if dw is not None:
            turned = torch.bmm(torch.bmm(weight, dw.mT).to(z.dtype), z) * m.mT
            total = total + (z * (torch.mm(cast(dw, x.dtype).reshape(L * c, d), x.mT).view_as(z) - turned)).sum(1)
        return (squared.clamp_min(torch.finfo(squared.dtype).tiny).rsqrt() * total).mT, None, None, None


class _AllPositional(inspect.Signature):
    """A signature that is quick to bind for calls with all arguments, by position."""

    class Bound(inspect.BoundArguments):
        """Nothing is left to look up: the arguments are those of the call."""

        args = property(lambda self: tuple(self.arguments.values()))
        kwargs = property(lambda _: {})

        def apply_defaults(self) -> None:
            """No argument is missing."""

    def bind(self, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        if kwargs or len(args) != len(self.parameters):
            return super().bind(*args, **kwargs)
        return self.Bound(self, dict(zip(self.parameters, args, strict=True)))


# `apply` binds its arguments to the signature of `forward` at every call, which otherwise takes longer than a product
# of small matrices. The subclass has the same function.
_CapsuleLengths.forward.__signature__ = _AllPositional(  # type: ignore[attr-defined]
    list(inspect.signature(_CapsuleLengths.forward).parameters.values())
)


def _forward_modes() -> int:
    """How many forward-mode transforms of `torch.func` are active."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack)


def _solve(
    x: Tensor, weight: Tensor, eps: float, sigma: Tensor | None = None, orthonormal: bool = False
) -> tuple[Tensor, Tensor]:
    """`z = G^-1 W'x (L, c, B)` and `|v|^2 = x'W z (L, B)`: by Cholesky factor, with `sigma` for `G^-1`, or G = I."""
    L, c, d = weight.shape
    # W times X' instead of X times W' puts the classes first, which is how the batched (c, c) products want them.
    u = torch.mm(cast(weight, x.dtype).reshape(L * c, d), x.mT).view(L, c, -1)
    if orthonormal:
        u = cast(u, torch.promote_types(u.dtype, torch.float32))
        return u, (u * u).sum(1)
    if sigma is None:
        half = u.dtype != torch.promote_types(u.dtype, torch.float32)
        root = inverse_factor(weight if half else cast(weight, u.dtype), eps, guarded=not half)
        u = cast(u, root.dtype).nan_to_num(0.0, 0.0, 0.0) if half else u  # a product that overflowed counts as zero
        y = torch.bmm(root, u)
        return torch.bmm(root.mT, y), (y * y).sum(1)
    dtype = torch.promote_types(u.dtype, sigma.dtype)
    u, sigma = cast(u, dtype), cast(sigma, dtype)
    z = torch.bmm(sigma, u)
    return z, (u * z).sum(1).clamp_min(0)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """`dl/dx` and `dl/dW` from what the forward saved, or, if they may be differentiated themselves, anew."""
    x, weight, z, squared, m = ctx.saved_tensors
    if torch.is_grad_enabled():
        z, squared = _solve_again(x, weight, ctx.eps, m)
    return _gradients(g, x, weight, z, squared, m, ctx.needs_input_grad)


def _solve_again(x: Tensor, weight: Tensor, eps: float, m: Tensor) -> tuple[Tensor, Tensor]:
    """The z and |v|^2 of x/m for a derivative that may be differentiated itself: they depend on x and weight again."""
    z, squared = _solve(x / m, weight, eps)
    return z, squared.masked_fill(squared == 0, torch.inf)  # the derivative is 0 there, and so are its derivatives


def _gradients(
    g: Tensor, x: Tensor, weight: Tensor, z: Tensor, squared: Tensor, m: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """Eq. (3) for a batch: `dl/dx (B, d)` and `dl/dW (L, c, d)` from `g (B, L)`, with the z and |v|^2 of x/m."""
    L, c, d = weight.shape
    t = _weighted(g.mT, z, squared)
    t_flat = cast(t, x.dtype).view(L * c, -1)
    dx = torch.mm(t_flat.mT, cast(weight, x.dtype).reshape(L * c, d)) if needed[0] else None  # W t
    return dx, _weight_gradient(t, x, weight, z, m) if needed[1] else None


def _weighted(g: Tensor, z: Tensor, squared: Tensor) -> Tensor:
    """`t = g z / |v| (L, c, B)` from `g (L, B)`."""
    # In this order the product takes the layout of its first factor, in which classes come first as in z.
    return (squared.clamp_min(torch.finfo(squared.dtype).tiny).rsqrt() * g).unsqueeze(1) * z


def _weight_gradient(t: Tensor, x: Tensor, weight: Tensor, z: Tensor, m: Tensor | None = None) -> Tensor:
    """`dl/dW = X'T - W (Z'T)`, with the z of x/m."""
    L, c, d = weight.shape
    zt = cast(torch.bmm(t if m is None else t * m.mT, z.mT), weight.dtype)  # Z'T
    dw = cast(torch.mm(cast(t, x.dtype).view(L * c, -1), x).view(L, c, d), weight.dtype)  # X'T
    if torch.is_grad_enabled():
        return torch.baddbmm(dw, zt, weight, alpha=-1)
    return dw.baddbmm_(zt, weight, alpha=-1)  # - W (Z'T), in place: no second tensor of the weight's size
