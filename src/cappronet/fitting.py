"""Fit any head on features that stay as they are: minibatch gradient over arrays in memory."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["fit_head"]

# The learning rate rises linearly over this share of the steps, then falls to 0 as half a cosine.
WARM_UP = 0.1


def fit_head(
    head: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int = 50,
    batch_size: int = 256,
    lr: float = 0.01,
    weight_decay: float = 0.0,
    seed: int = 0,
    on_epoch: Callable[[int, int], None] = lambda _done, _total: None,
) -> nn.Module:
    """Train a head on fixed features with cross-entropy, by AdamW with one rise and one fall of the learning rate.

    The head starts from the weights it has. The order of the samples comes from a generator of its own: the same seed
    and head give the same result, and the global random state is not touched.

    Args:
        head: a head of `cappronet.heads`, or any module from features `(B, d)` to scores `(B, L)`.
        x: features `(n, d)`; they are taken to the head's precision and device.
        y: their classes `(n,)`, integers from 0.
        epochs: passes over the features.
        batch_size: samples in a step; where there are fewer features, all of them.
        lr: the highest learning rate. A learned scale takes steps in proportion to where it starts.
        weight_decay: decoupled: what share of a weight is taken off at each step, times the learning rate. A learned
            scale and biases keep theirs.
        seed: of the order of the samples.
        on_epoch: called with the epochs done and their number.

    Returns:
        The same head, in eval mode.
    """
    parameters = [p for p in head.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the head has no weights to fit: call requires_grad_() on those that should change")
    _check(x, y, epochs=epochs, batch_size=batch_size, lr=lr, weight_decay=weight_decay)
    x, y = x.detach().to(parameters[0]), y.detach().to(parameters[0].device, torch.int64)
    _check_classes(head, x, y)
    n = len(x)
    per_epoch = math.ceil(n / batch_size)
    optimizer = _optimizer(parameters, lr, weight_decay)
    peaks = [group["lr"] for group in optimizer.param_groups]
    order = torch.Generator().manual_seed(seed)
    head.train()
    for epoch in range(epochs):
        total = torch.zeros((), device=x.device)
        # Chunks of nearly equal size: no step is left with a handful of samples.
        for step, rows in enumerate(torch.randperm(n, generator=order).to(x.device).tensor_split(per_epoch)):
            rate = _rate(epoch * per_epoch + step, epochs * per_epoch)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * rate
            loss = F.cross_entropy(head(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if not math.isfinite(total):
            raise ValueError(
                f"the loss became {total.item()} in epoch {epoch + 1}: are all features finite and of ordinary size? "
                f"If so, try an lr below {lr}"
            )
        on_epoch(epoch + 1, epochs)
    return head.eval()


def _optimizer(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW with a group for weights, one for biases, and one for each scale.

    Adam moves every number by about lr a step, whatever its size: a scale of 16 would hardly move among weights of
    0.05. Its rate is lr times what it starts from.
    """
    groups: list[dict[str, object]] = [
        {"params": [p for p in parameters if p.ndim > 1], "lr": lr, "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "lr": lr, "weight_decay": 0.0},
        *({"params": [p], "lr": lr * max(1.0, abs(p.item())), "weight_decay": 0.0} for p in parameters if p.ndim == 0),
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], fused=True)


def _rate(step: int, steps: int) -> float:
    """The share of the highest learning rate at a step, from 0: above 0 at the first and at the last."""
    now, warm = (step + 0.5) / steps, WARM_UP
    return now / warm if now < warm else 0.5 + 0.5 * math.cos(math.pi * (now - warm) / (1 - warm))


def _check(x: Tensor, y: Tensor, *, epochs: int, batch_size: int, lr: float, weight_decay: float) -> None:
    if x.ndim != 2 or not x.is_floating_point() or len(x) == 0:
        raise ValueError(f"features must be floating point (n, d) with n at least 1, got {x.dtype} {tuple(x.shape)}")
    if y.shape != x.shape[:1] or y.is_floating_point():
        raise ValueError(f"{len(x)} features need as many integer classes (n,), got {y.dtype} {tuple(y.shape)}")
    if epochs < 0 or batch_size < 1:
        raise ValueError(f"epochs must be at least 0 and batch_size at least 1, got {epochs} and {batch_size}")
    if not (0 < lr < math.inf and 0 <= weight_decay < math.inf):
        raise ValueError(f"lr must be above 0 and weight_decay at least 0, got {lr} and {weight_decay}")


@torch.no_grad()
def _check_classes(head: nn.Module, x: Tensor, y: Tensor) -> None:
    classes = head.eval()(x[:1]).shape[-1]
    low, high = y.min().item(), y.max().item()
    if low < 0 or high >= classes:
        raise ValueError(f"classes must be 0 to {classes - 1} for a head of {classes} classes, got {low} to {high}")
