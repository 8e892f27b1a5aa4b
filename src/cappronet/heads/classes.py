"""Changing the classes of a capsule head: the basis of a new class, and what optimizers remember of the old ones."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from cappronet import projection

if TYPE_CHECKING:
    from cappronet.heads.capsule import CapsuleProjection

__all__ = ["carry_over", "check_changeable", "new_basis", "replace_weight"]


def check_changeable(head: "CapsuleProjection") -> None:
    """Refuse to change the classes of a head whose weight cannot simply be replaced."""
    if parametrize.is_parametrized(head, "weight"):
        raise ValueError(
            "the classes of a head with a parametrized weight can't be changed: call "
            "torch.nn.utils.parametrize.remove_parametrizations(head, 'weight') first"
        )
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise ValueError(
            f"classes can't be changed in one of {distributed.get_world_size()} processes, whose weights would differ: "
            "change them in a single process, save the model, and load it in all"
        )


def new_basis(own: Tensor, weight: Tensor, eps: float, others: Tensor | None, contrast: float | None) -> Tensor:
    """An orthonormal basis `(c, d)` for a class with features `own (n, d)`, next to the classes of `weight (L, c, d)`.

    Args:
        own: features of the new class, as the head projects them.
        weight: bases of the classes that are there.
        eps: the head's ridge.
        others: features `(m, d)` of those classes, as the head projects them.
        contrast: how strongly to avoid the directions of the others. None chooses it so that features of the new class
            are as long in its subspace as the others are in theirs, and needs nothing where there are no others.
    """
    c = weight.shape[1]
    if others is None:
        return projection.leading_directions(own, c)[1]
    moment = others.mT @ others / len(others)
    if contrast is not None:
        return projection.leading_eigenvectors(own.mT @ own / len(own) - contrast * moment, c)[1]
    length = projection.capsule_lengths(others, weight.to(others), eps).amax(-1).mean().item()
    return projection.contrasted_directions(own, c, moment, length)


def replace_weight(head: "CapsuleProjection", weight: nn.Parameter, rows: Tensor, optimizer: Optimizer | None) -> None:
    """Give a head the bases of other classes: `rows` are their old numbers, and L stands for a new class."""
    old = head.weight
    if optimizer is not None:  # first, because it may refuse
        carry_over(optimizer, old, weight, rows)
    weight.requires_grad_(old.requires_grad)
    head.weight, head.num_classes = weight, len(weight)
    if head.solver == "hyperpower":
        estimated = head.sigma.any()  # all zero: no estimate yet
        head.sigma = torch.cat([head.sigma, head.sigma.new_zeros(1, *head.sigma.shape[1:])])[rows]
        if estimated and len(weight) > len(old):
            head.sigma[-1] = projection.normalization_matrix(weight[-1:], head.eps)[0]


@torch.no_grad()
def carry_over(optimizer: Optimizer, old: nn.Parameter, new: nn.Parameter, rows: Tensor) -> None:
    """Let an optimizer continue with a weight of other classes; `rows` are their old numbers, L for a new class.

    What it remembers of each class, such as a momentum, starts at 0 for a new one. What cannot be negative, such as a
    mean of squared gradients, starts at the other classes' mean: at 0 the first steps would be several times too long.
    """
    positions = [
        (group["params"], i) for group in optimizer.param_groups for i, p in enumerate(group["params"]) if p is old
    ]
    if not positions:
        raise ValueError("the optimizer does not hold this head's weight: pass the one that trains it")
    state = {}
    for name, value in optimizer.state.get(old, {}).items():
        if value is None or isinstance(value, int | float) or (isinstance(value, Tensor) and value.ndim == 0):
            state[name] = value  # such as the number of steps
        elif isinstance(value, Tensor) and value.ndim == old.ndim and len(value) == len(old):
            of_new = value.mean(0, keepdim=True) if (value >= 0).all() else torch.zeros_like(value[:1])
            state[name] = torch.cat([value, of_new])[rows]
        else:
            raise ValueError(
                f"the state {name!r} of {type(optimizer).__name__} does not go by class, so it can't be carried over: "
                "make a new optimizer after the change"
            )
    for parameters, i in positions:
        parameters[i] = new
    if optimizer.state.pop(old, None) is not None:
        optimizer.state[new] = state
