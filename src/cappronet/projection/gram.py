"""Gram matrices of the class bases and their inverses: `G = W'W`, its Cholesky factor, the hyper-power sequence."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "cast",
    "check_arguments",
    "full_precision",
    "hyper_power_step",
    "inverse_factor",
    "is_autocast",
    "normalization_matrix",
    "promoted",
    "regularized_gram",
    "smallest_ridge",
]

# Of a Gram matrix with its diagonal scaled to 1, in units in the last place. Rounding moves it by up to eight.
SMALLEST_EIGENVALUE = 16


def regularized_gram(weight: Tensor, eps: float = 0.0) -> Tensor:
    """`G_l = W_l' W_l (L, c, c)` with its ridge, in float32 at the least: what the hyper-power sequence inverts."""
    check_arguments(None, weight, eps)
    with full_precision(weight):
        eye = _identity(weight)
        return _raised(_gram(weight, eps, eye), eye, _rounding(weight))


def normalization_matrix(weight: Tensor, eps: float = 0.0) -> Tensor:
    """The normalization matrices `Sigma_l = (W_l'W_l)^-1 (L, c, c)` of Eq. (2): inverses of `regularized_gram`."""
    check_arguments(None, weight, eps)
    with full_precision(weight):
        root = inverse_factor(weight, eps, guarded=False)
        return torch.bmm(root.mT, root)


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
    with full_precision(gram):
        error = eye - torch.bmm(gram, sigma)
        series = eye + error if order == 2 else eye + error + torch.bmm(error, error)
        return torch.bmm(sigma, series), torch.linalg.matrix_norm(error)


def inverse_factor(weight: Tensor, eps: float, *, guarded: bool = True) -> Tensor:
    """`R^-1 (L, c, c)` with `G = R R'`; zero, and so are the capsules, for a class whose Gram matrix overflowed.

    Args:
        weight: bases `(L, c, d)`.
        eps: the ridge.
        guarded: raise the diagonal only of classes whose columns depend on each other to within rounding. Otherwise
            that of every class, as products in half precision and the hyper-power sequence need it.
    """
    eye = _identity(weight)
    gram = _gram(weight, eps, eye)
    if guarded and weight.dtype == eye.dtype and _can_branch(gram):
        root = _inverse_root(gram, eye)
        if _well_conditioned(gram, root):
            return root
    finite = None
    if torch.is_grad_enabled():  # no derivative may pass through the factor of a matrix that overflowed
        finite = gram.isfinite().all(-1).all(-1)[..., None, None]
        gram = torch.where(finite, gram, eye)
    if not guarded or weight.dtype != eye.dtype:
        gram = _raised(gram, eye, _rounding(weight))
    elif weight.shape[1] > 1:
        gram = _raised(gram, eye * _dependent(gram.detach(), eye), _rounding(weight))
    root = _inverse_root(gram, eye)
    return root.nan_to_num(0.0, 0.0, 0.0) if finite is None else root * finite


def _inverse_root(gram: Tensor, eye: Tensor) -> Tensor:
    """`R^-1 (L, c, c)` with `G = R R'`, whatever becomes of a G that has no such factor."""
    factor, _ = torch.linalg.cholesky_ex(gram)
    return torch.linalg.solve_triangular(factor, eye, upper=False)


def _can_branch(x: Tensor) -> bool:
    """Whether Python may look at values at no cost: plain tensors on the CPU, neither traced nor transformed."""
    plain = type(x) is Tensor and x.device.type == "cpu" and x.numel() > 0 and not torch.compiler.is_compiling()
    return plain and not torch._C._is_tracing() and not torch._C._are_functorch_transforms_active()


def _well_conditioned(gram: Tensor, root: Tensor) -> bool:
    """Whether no class can need a ridge, by a bound that holds for all of them at once.

    With its diagonal scaled to 1, the smallest eigenvalue of any G is at least `1 / (|R^-1|^2 max G)`. Twice the limit
    of `_dependent` leaves room for rounding; whatever is not finite fails.
    """
    norm = torch.linalg.vector_norm(root.detach()).item()
    return norm * norm * gram.detach().amax().item() * 2 * SMALLEST_EIGENVALUE * torch.finfo(gram.dtype).eps < 1


def _gram(weight: Tensor, eps: float, eye: Tensor) -> Tensor:
    """`W'W (L, c, c)` with the ridge `eps`, or the smallest one."""
    weight = cast(weight, eye.dtype)
    return torch.baddbmm(eye, weight, weight.mT, beta=max(eps, smallest_ridge(weight.dtype)))


def _raised(gram: Tensor, diagonal: Tensor, share: float) -> Tensor:
    """G with this share of its diagonal added, for the classes whose `diagonal (L, c, c)` is the identity, not 0."""
    return torch.addcmul(gram, gram, diagonal, value=share)


def _rounding(weight: Tensor) -> float:
    """What rounding can take from the diagonal of G, relative to it, with a margin.

    The dot products of length d and the factorization of order c each disturb G by some units in the last place.
    """
    _, c, d = weight.shape
    return 2 * (c + math.sqrt(d)) * torch.finfo(torch.promote_types(weight.dtype, torch.float32)).eps


def _dependent(gram: Tensor, eye: Tensor) -> Tensor:
    """Whether the columns of a class depend on each other to within rounding `(L, 1, 1)`.

    With its diagonal scaled to 1, G then has an eigenvalue below some units in the last place: taken from the diagonal,
    they leave nothing that could be factorized.
    """
    lowered = _raised(gram, eye, -SMALLEST_EIGENVALUE * torch.finfo(gram.dtype).eps)
    _, info = torch.linalg.cholesky_ex(lowered)
    return (info != 0)[..., None, None]


def smallest_ridge(dtype: torch.dtype) -> float:
    """7e-16 in float32: a column of W shorter than 3e-8 counts as zero.

    Z'T grows with |x| / |W|^2. This keeps it in range for features up to 1e20.
    """
    return torch.finfo(dtype).tiny ** 0.4


def _identity(weight: Tensor) -> Tensor:
    """The identity for each class `(L, c, c)`, in the weight's precision, or float32 where that is half."""
    L, c, _ = weight.shape
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return torch.eye(c, dtype=dtype, device=weight.device).expand(L, c, c)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x.to(dtype)`, without the call where nothing changes."""
    return x if x.dtype == dtype else x.to(dtype)


def promoted(x: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the higher of their two precisions."""
    dtype = torch.promote_types(x.dtype, basis.dtype)
    return cast(x, dtype), cast(basis, dtype)


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Under autocast the large products may be in half; Gram matrices and what is solved with them may not."""
    return torch.autocast(x.device.type, enabled=False) if is_autocast(x) else nullcontext()


def is_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the device of x."""
    device = x.device.type
    # torch.compile of PyTorch 2.6 and 2.7 cannot trace is_autocast_available, and the devices it compiles for have it.
    available = device != "meta" and (torch.compiler.is_compiling() or torch.amp.is_autocast_available(device))
    return available and torch.is_autocast_enabled(device)


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
