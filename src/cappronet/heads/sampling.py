"""Training against a sample of the other classes: cheaper than all of them, and no longer exact.

As partial FC does it: each process keeps the classes of the batch that it holds, and draws others up to a share.
"""

import math

import torch
from torch import Tensor

from cappronet import projection
from cappronet.heads.controls import scaled
from cappronet.heads.sharded_scores import class_losses, sharded_cross_entropy
from cappronet.heads.sharding import ShardedProjection, class_range

__all__ = ["sample_classes", "sampled_cross_entropy"]


def sampled_cross_entropy(
    head: ShardedProjection, x: Tensor, labels: Tensor, share: float, *, generator: torch.Generator | None = None
) -> Tensor:
    """The mean cross-entropy over the classes of the batch and a sample of all others, in place of all classes.

    Forward and backward cost about `share` of what they do with all classes. The gradient of a class that was not drawn
    is 0, but an optimizer with momentum or weight decay still moves it. The loss is too small, since its denominator
    lacks classes, and it is not corrected. Lengths are always computed by Cholesky factor.

    Args:
        head: from `shard_classes`.
        x: features `(B, d)`, as for the head.
        labels: of the batch whose lengths the head returns, after `gather_labels`.
        share: of each process's classes, above 0. At 1 nothing is sampled, and the loss is that of
            `sharded_cross_entropy`.
        generator: for the draws; by default PyTorch's own.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    if share == 1:
        return sharded_cross_entropy(head(x), labels, check=head.check)
    x = head.shared_features(x)
    head.check_labels(labels, len(x))
    start, end = class_range(head.num_classes, head.mesh)
    drawn = sample_classes(labels, start, end, share, generator)
    weight, scale = head.shared_parameters()
    features = head._features(x)
    lengths = scaled(projection.capsule_lengths(features, weight.index_select(0, drawn), head.eps), scale)
    # Where each label is among the drawn classes; -1 if another process has it.
    positions = torch.full((end - start,), -1, device=labels.device)
    positions[drawn] = torch.arange(len(drawn), device=labels.device)
    here = (labels >= start) & (labels < end)
    own = torch.where(here, positions[(labels - start).clamp(0, end - start - 1)], -1)
    return class_losses(lengths, own, head.class_mesh).mean()


def sample_classes(
    labels: Tensor, start: int, end: int, share: float, generator: torch.Generator | None = None
) -> Tensor:
    """Some of the classes `start` to `end - 1`, counted from `start`, in order: those of the labels, and others."""
    own = labels[(labels >= start) & (labels < end)].unique() - start
    count = max(len(own), math.ceil(share * (end - start)))
    order = torch.rand(end - start, generator=generator, device=labels.device)
    order[own] = 2.0  # first of all
    return order.topk(count).indices.sort().values
