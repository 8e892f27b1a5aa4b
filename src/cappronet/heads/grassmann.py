"""SGD on subspaces: an optimizer for the bases of capsule heads, and several optimizers as one object."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer

from cappronet import projection

__all__ = ["CombinedOptimizer", "GrassmannSGD", "Retraction"]

Retraction = Literal["geodesic", "qr"]


class GrassmannSGD(Optimizer):
    """SGD with momentum for the bases of capsule heads, along geodesics of the Grassmann manifold.

    A capsule length depends on the subspace of a class alone. This optimizer moves the subspace and keeps its basis
    orthonormal, so that a head with `solver="orthonormal"` computes lengths without any factorization. A step with
    gradient D, momentum buffer M, orthonormal basis S and learning rate r is

        M <- momentum M + D,    H = -r (I - S S') M,    S <- the geodesic from S with velocity H, at time 1

    The buffer is an ordinary tensor of the size of the weight: a step leaves it as it is, and the next one projects it
    at the new basis. It still belongs to the same basis vectors, because a geodesic moves them in parallel. Rounding is
    removed after each step. Weight decay would change nothing, since it is orthogonal to all tangent vectors.

    Args:
        params: weights `(L, c, d)` with orthonormal bases, or parameter groups of them.
        lr: the learning rate; singular values of H are angles in radians.
        momentum: the factor of the buffer.
        nesterov: step along `D + momentum M` instead of M.
        retraction: `"geodesic"`, or `"qr"`: S + H, orthonormalized by Gram-Schmidt, which agrees with the geodesic to
            first order in H.

    Example:
        >>> from cappronet import CapsuleProjection
        >>> head = CapsuleProjection(64, 10, capsule_dim=8, solver="orthonormal")
        >>> optimizer = GrassmannSGD([head.weight], lr=0.1, momentum=0.9)
        >>> head(torch.randn(32, 64)).square().mean().backward()
        >>> optimizer.step()
        >>> (head.weight @ head.weight.mT - torch.eye(8)).abs().max() < 1e-6
        tensor(True)
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.1,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        retraction: Retraction = "geodesic",
    ) -> None:
        if not lr >= 0 or not 0 <= momentum < 1:
            raise ValueError(f"lr must be at least 0 and momentum at least 0 and below 1, got {lr} and {momentum}")
        if nesterov and not momentum:
            raise ValueError("Nesterov momentum needs a momentum above 0")
        if retraction not in get_args(Retraction):
            raise ValueError(f"retraction must be 'geodesic' or 'qr', got {retraction!r}")
        settings = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "retraction": retraction}
        super().__init__(params, settings)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take more weights, if they are orthonormal bases."""
        super().add_param_group(param_group)
        for weight in param_group["params"]:
            _check_orthonormal(weight)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every subspace that has a gradient."""
        loss = _evaluated(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    direction = self._direction(weight, group["momentum"], group["nesterov"])
                    if group["lr"] != 0:  # 0 leaves the weights as they are, to the last bit
                        _move(_local(weight), _local(direction), group["lr"], group["retraction"])
        return loss

    def _direction(self, weight: Tensor, momentum: float, nesterov: bool) -> Tensor:
        gradient = weight.grad
        assert gradient is not None
        if not momentum:
            return gradient
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        buffer: Tensor = state["momentum_buffer"].mul_(momentum).add_(gradient)
        return gradient.add(buffer, alpha=momentum) if nesterov else buffer


class CombinedOptimizer(Optimizer):
    """Several optimizers, each for its own parameters, that a training loop steps, saves and restores as one.

    It holds the parameter groups and the state of all of them, so learning-rate schedulers, gradient scalers,
    `state_dict` and `load_state_dict` work as with any other optimizer. The optimizers share both with it and are not
    to be used on their own any more.

    Example:
        >>> from torch import nn
        >>> from cappronet import CapsuleProjection
        >>> model = nn.Sequential(nn.Linear(20, 64), CapsuleProjection(64, 10, solver="orthonormal"))
        >>> optimizer = CombinedOptimizer(
        ...     torch.optim.AdamW(model[0].parameters(), lr=1e-3), GrassmannSGD([model[1].weight], lr=0.1, momentum=0.9)
        ... )
        >>> model(torch.randn(32, 20)).square().mean().backward()
        >>> optimizer.step()
        >>> len(optimizer.param_groups)
        2
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})
        self.optimizers = optimizers
        for optimizer in optimizers:
            self.state.update(optimizer.state)
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse further groups, which could belong to any of the optimizers."""
        if "optimizers" in self.__dict__:
            raise ValueError("add a parameter group to one of the optimizers before they are combined")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of each optimizer."""
        loss = _evaluated(closure)
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def _share(self) -> None:
        """Let each optimizer work on its part of the groups, and on the state of all."""
        first = 0
        for optimizer in self.optimizers:
            last = first + len(optimizer.param_groups)
            optimizer.__setstate__({"state": self.state, "param_groups": self.param_groups[first:last]})
            first = last

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "optimizers": self.optimizers}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Loading a state replaces groups and state with new objects."""
        super().__setstate__(dict(state))
        self._share()


def _evaluated(closure: Callable[[], float] | None) -> float | None:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _move(weight: Tensor, direction: Tensor, lr: float, retraction: Retraction) -> None:
    """One step from orthonormal bases, in float32 at the least."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    basis = weight.to(dtype)
    velocity = projection.tangent(basis, direction.to(dtype)).mul_(-lr)
    moved = projection.geodesic(basis, velocity) if retraction == "geodesic" else basis + velocity
    # The factor of Gram-Schmidt has a positive diagonal: no vector of a basis turns around, and its momentum with it.
    weight.copy_(projection.bases(moved))


def _check_orthonormal(weight: Tensor) -> None:
    """Refuse a weight whose bases are not orthonormal to about half of its digits."""
    if weight.ndim != 3:
        raise ValueError(f"GrassmannSGD takes bases (L, c, d), got a parameter {tuple(weight.shape)}")
    if weight.is_meta:
        return
    basis = _local(weight.detach())
    basis = basis.to(torch.promote_types(basis.dtype, torch.float32))
    gram = torch.bmm(basis, basis.mT)
    error = (gram - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)).abs()
    if error.numel() and not error.max() <= torch.finfo(weight.dtype).eps ** 0.5:
        raise ValueError(
            f"GrassmannSGD needs orthonormal bases, but W'W differs from I by up to {error.max().item():.2g}: make the "
            f"head with solver='orthonormal', or copy cappronet.projection.bases(weight) into its weight"
        )


def _local(x: Tensor) -> Tensor:
    """This process's part of a sharded weight: whole classes, since weights are split along their first dimension."""
    to_local: Callable[[], Tensor] | None = getattr(x, "to_local", None)  # of a DTensor, whose module loads slowly
    return x if to_local is None else to_local()
