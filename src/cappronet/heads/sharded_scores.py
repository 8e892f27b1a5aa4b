"""Loss, predictions and errors from scores that are sharded over classes: no process ever has the scores of all."""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from cappronet.heads.collectives import check_labels, summed

__all__ = ["class_losses", "sharded_cross_entropy", "sharded_errors", "sharded_topk"]


def sharded_cross_entropy(
    scores: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "none"] = "mean",
    check: bool = True,
) -> Tensor:
    """The cross-entropy of scores `(B, L)` that are sharded over classes, the same in all processes.

    It equals `F.cross_entropy(scores, labels)` inside `loss_parallel`, with two differences: labels are checked, where
    `loss_parallel` lets one that is out of range count as a loss of 0, and label smoothing is supported.

    Args:
        scores: from a head of `shard_classes`.
        labels: `(B,)`, the same in all processes.
        label_smoothing: share of the target that is spread over all classes.
        reduction: the mean, or, with `"none"`, the loss of each sample `(B,)`.
        check: refuse labels that are out of range or differ between processes, with the same error in all of them.
    """
    local, mesh, start = _parts(scores)
    if check:
        check_labels(labels, scores.shape[0], scores.shape[1], mesh)
    losses = class_losses(local, labels - start, mesh, label_smoothing / scores.shape[1], label_smoothing)
    return losses.mean() if reduction == "mean" else losses


def class_losses(scores: Tensor, own: Tensor, mesh: DeviceMesh, uniform: float = 0.0, smoothing: float = 0.0) -> Tensor:
    """The cross-entropy of each sample `(B,)` from this process's scores `(B, n)`.

    Args:
        scores: of this process's classes.
        own: each label as a column of `scores` `(B,)`; any other number where another process has it.
        mesh: the processes that have the other classes.
        uniform: the target of every class, q/L.
        smoothing: q, the share of the target that all classes get together.
    """
    return _CrossEntropy.apply(scores, own, uniform, smoothing, mesh)


@torch.no_grad()
def sharded_topk(scores: Tensor, k: int = 1) -> tuple[Tensor, Tensor]:
    """The k largest of scores `(B, L)` that are sharded over classes, and their classes, both `(B, k)` and plain.

    Each process sends k numbers and classes for each sample. For k = 1 and equal scores it is the first class, as
    `argmax` has it.
    """
    local, mesh, start = _parts(scores)
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(f"k must be 1 to {scores.shape[1]}, the number of classes; got {k}")
    if k == 1:
        classes = local.argmax(1, keepdim=True)
        values = local.gather(1, classes)
    else:
        values, classes = local.topk(min(k, local.shape[1]))
    # The share of the last process can be smaller than k: all send as much as the first.
    width = min(k, -(-scores.shape[1] // mesh.size()))
    missing = (0, width - values.shape[1])
    values = _columns(torch.nn.functional.pad(values, missing, value=-torch.inf), mesh)
    classes = _columns(torch.nn.functional.pad(classes + start, missing), mesh)
    if k == 1:
        best = values.argmax(1, keepdim=True)
        return values.gather(1, best), classes.gather(1, best)
    values, positions = values.topk(k)
    return values, classes.gather(1, positions)


def sharded_errors(scores: Tensor, labels: Tensor, k: int = 1) -> Tensor:
    """Whether the label is not among the k largest scores `(B,)`, for scores `(B, L)` that are sharded over classes."""
    return (sharded_topk(scores, k)[1] != labels.unsqueeze(1)).all(1)


def _parts(scores: Tensor) -> tuple[Tensor, DeviceMesh, int]:
    """This process's scores, the processes that have the others, and the number of its first class."""
    if not isinstance(scores, DTensor) or scores.ndim != 2 or not scores.placements[0].is_shard(1):
        raise TypeError(f"scores must be a DTensor (B, L) sharded over classes, got {type(scores).__name__}")
    mesh = scores.device_mesh
    return scores.to_local(), mesh, -(-scores.shape[1] // mesh.size()) * mesh.get_local_rank()


def _columns(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The columns of all processes, next to each other in their order."""
    parts = [torch.empty_like(x) for _ in range(mesh.size())]
    dist.all_gather(parts, x.contiguous(), group=mesh.get_group())
    return torch.cat(parts, 1)


class _CrossEntropy(torch.autograd.Function):
    """`log sum_l exp s_bl - (1 - q) s_by - q/L sum_l s_bl` with the smoothing q, from some classes' scores.

    With `p = exp(s - log sum exp s)`, its derivative is `p - (1 - q) [l = y] - q/L`, which needs no message.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, own: Tensor, uniform: float, smoothing: float, mesh: DeviceMesh) -> Tensor:
        dtype = torch.promote_types(scores.dtype, torch.float32)
        s = scores.to(dtype)
        largest = s.amax(1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=mesh.get_group())
        exponentials = (s - largest.unsqueeze(1)).exp()
        rows = torch.arange(len(s), device=s.device)
        here = (own >= 0) & (own < s.shape[1])
        own = own.clamp(0, s.shape[1] - 1)
        target = torch.where(here, s[rows, own], 0.0)
        total, target, sums = summed(torch.stack([exponentials.sum(1), target, s.sum(1)]), mesh)
        ctx.save_for_backward(exponentials.div_(total.unsqueeze(1)), own, here)
        ctx.smoothing, ctx.uniform, ctx.dtype = smoothing, uniform, scores.dtype
        return total.log() + largest - (1 - smoothing) * target - ctx.uniform * sums

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None, None]:
        p, own, here = ctx.saved_tensors
        p = p - ctx.uniform
        p[torch.arange(len(p), device=p.device), own] -= (1 - ctx.smoothing) * here
        return (p * g.unsqueeze(1)).to(ctx.dtype), None, None, None, None
