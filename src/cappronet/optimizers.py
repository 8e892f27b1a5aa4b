"""Optimizers of a head whose classes change: go on with the new weight, or refuse to train the old one."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

__all__ = ["carry_over", "refuse_from_now_on"]


@torch.no_grad()
def carry_over(optimizer: Optimizer, old: nn.Parameter, new: nn.Parameter, rows: Tensor) -> None:
    """Have an optimizer go on with a weight of other classes; `rows` are their old numbers, L for a new class."""
    places = [
        (group["params"], i) for group in optimizer.param_groups for i, p in enumerate(group["params"]) if p is old
    ]
    if not places:
        raise ValueError("the optimizer does not hold this head's weight: give the one that trains it")
    state = {}
    for name, value in optimizer.state.get(old, {}).items():
        if value is None or isinstance(value, int | float) or (isinstance(value, Tensor) and value.ndim == 0):
            state[name] = value  # such as the number of steps
        elif isinstance(value, Tensor) and value.ndim == old.ndim and len(value) == len(old):
            # A mean of squared gradients that starts at 0 would make the first steps of the new class too long.
            of_new = value.mean(0, keepdim=True) if (value >= 0).all() else torch.zeros_like(value[:1])
            state[name] = torch.cat([value, of_new])[rows]
        else:
            kind = type(optimizer).__name__
            raise ValueError(
                f"{kind} keeps {name!r} in a form that classes can't be added to or removed from: make it anew"
            )
    for parameters, i in places:
        parameters[i] = new
    if optimizer.state.pop(old, None) is not None:
        optimizer.state[new] = state


def refuse_from_now_on(old: nn.Parameter) -> None:
    """Have every optimizer that still holds a replaced weight refuse to step.

    Otherwise it would leave the new weight as it is, and nobody would notice.
    """
    old.replaced = True  # type: ignore[attr-defined]
    _watch()


@cache
def _watch() -> None:
    """Ask optimizers before their steps, from the first change of classes on."""
    register_optimizer_step_pre_hook(_check)


def _check(optimizer: Optimizer, *_: Any) -> None:
    if any(getattr(p, "replaced", False) for group in optimizer.param_groups for p in group["params"]):
        raise RuntimeError(
            "this optimizer holds the weight that a capsule head had before add_class or remove_class: make it anew "
            "from the model's parameters, or pass it to the change as optimizer="
        )
