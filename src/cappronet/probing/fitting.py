"""Fit any head to frozen features, by minibatch gradient descent over arrays in memory."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cappronet.reporting import Report, silent

__all__ = ["check_settings", "fit_head", "learning_rate"]

# The learning rate rises linearly over this share of the steps, then falls to 0 as half a cosine.
WARM_UP = 0.1


def fit_head(
    head: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    weights: Tensor | None = None,
    epochs: int = 50,
    batch_size: int = 256,
    lr: float = 0.01,
    weight_decay: float = 0.0,
    seed: int = 0,
    report: Report = silent,
) -> nn.Module:
    """Train a head on frozen features with cross-entropy, by AdamW with a linear warm-up and a cosine decay.

    Training starts from the weights of the head. The order of the samples comes from a generator of its own: the same
    seed and head give the same result, and the global random state is not touched.

    Args:
        head: a head of `cappronet.heads`, or any module from features `(B, d)` to scores `(B, L)`.
        x: features `(n, d)`; they are converted to the head's precision and device.
        y: their classes `(n,)`, integers from 0.
        weights: what each sample counts `(n,)`; by default all count the same.
        epochs: passes over the features.
        batch_size: samples in a step; where there are fewer features, all of them.
        lr: the highest learning rate. A learned scale takes steps in proportion to where it starts.
        weight_decay: decoupled weight decay of the weights; a learned scale and biases have none.
        seed: of the order of the samples.
        report: called with `"fitting"`, the epochs done and their number.

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
    if weights is not None:
        weights = (weights / weights.mean()).to(x)
    per_epoch = math.ceil(n / batch_size)
    optimizer = _optimizer(parameters, lr, weight_decay)
    peaks = [group["lr"] for group in optimizer.param_groups]
    order = torch.Generator().manual_seed(seed)
    head.train()
    for epoch in range(epochs):
        total = torch.zeros((), device=x.device)
        # Chunks of nearly equal size: no step is left with a handful of samples.
        for step, rows in enumerate(torch.randperm(n, generator=order).to(x.device).tensor_split(per_epoch)):
            rate = learning_rate(epoch * per_epoch + step, epochs * per_epoch)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * rate
            if weights is None:
                loss = F.cross_entropy(head(x[rows]), y[rows])
            else:
                loss = (F.cross_entropy(head(x[rows]), y[rows], reduction="none") * weights[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if not math.isfinite(total):
            raise ValueError(
                f"the loss became {total.item()} in epoch {epoch + 1}: check that all features are finite and not "
                f"extremely large, or use an lr below {lr}"
            )
        report("fitting", epoch + 1, epochs)
    return head.eval()


def _optimizer(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW with a group for weights, one for biases, and one for each scale.

    Adam moves every number by about lr in a step, whatever its size: a scale of 16 would hardly change while weights of
    0.05 do. The learning rate of a scale is lr times its initial value.
    """
    groups: list[dict[str, object]] = [
        {"params": [p for p in parameters if p.ndim > 1], "lr": lr, "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "lr": lr, "weight_decay": 0.0},
        *({"params": [p], "lr": lr * max(1.0, abs(p.item())), "weight_decay": 0.0} for p in parameters if p.ndim == 0),
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], fused=True)


def learning_rate(step: int, steps: int) -> float:
    """The share of the highest learning rate at a step, from 0: above 0 at the first and at the last."""
    now, warm = (step + 0.5) / steps, WARM_UP
    return now / warm if now < warm else 0.5 + 0.5 * math.cos(math.pi * (now - warm) / (1 - warm))


def _check(x: Tensor, y: Tensor, *, epochs: int, batch_size: int, lr: float, weight_decay: float) -> None:
    if x.ndim != 2 or not x.is_floating_point() or len(x) == 0:
        raise ValueError(f"features must be floating point (n, d) with n at least 1, got {x.dtype} {tuple(x.shape)}")
    if y.shape != x.shape[:1] or y.is_floating_point():
        raise ValueError(f"{len(x)} features need as many integer classes (n,), got {y.dtype} {tuple(y.shape)}")
    check_settings(epochs=epochs, batch_size=batch_size, lr=lr, weight_decay=weight_decay)


def check_settings(*, epochs: int, batch_size: int, lr: float, weight_decay: float) -> None:
    """Refuse settings with which nothing can be fitted."""
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
