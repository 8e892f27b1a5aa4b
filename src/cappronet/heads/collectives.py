"""What processes that share the classes of a head send each other: sums, gathered rows, and checks of their batches."""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "check_labels",
    "check_same_batch",
    "gathered",
    "leave_together",
    "summed",
    "used_in_parts",
    "with_averaged_gradient",
]

# Features of the same batch may differ by rounding, where kernels are not deterministic: relative to a row's L1 norm.
LARGEST_DIFFERENCE = 1e-3
# What the threads of Gloo need to free the tensors of the last message.
SECONDS_TO_LEAVE = 0.2


def used_in_parts(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """A tensor that is the same in all processes, each of which uses it for its own classes: gradients are summed."""
    return _WithSummedGradient.apply(x, mesh.get_group(), 1)


def gathered(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The rows of all processes, in their order; the gradient of each is the sum, for an average to be taken later.

    The mean loss of all rows depends on the rows of each process. An average of what each process derives from its own
    rows, as DDP takes it, would divide by the number of processes once too often, so the gradient is multiplied by it.
    """
    return _Gathered.apply(x, mesh.get_group())


def with_averaged_gradient(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """A tensor with copies along the first of two dimensions of the mesh, whose gradients are averaged there."""
    if mesh.ndim == 1:
        return x
    group = mesh.get_group(0)
    return _WithSummedGradient.apply(x, group, group.size())


def summed(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum over processes, without a derivative."""
    x = x.contiguous()
    dist.all_reduce(x, group=mesh.get_group())
    return x


def leave_together() -> None:
    """Wait for all processes, then end the process group: the last call before a process ends.

    A process that leaves early takes its connections with it. And a thread of Gloo that frees a tensor while Python is
    finalizing aborts the process, so that each waits a moment for its threads.
    """
    dist.barrier()
    time.sleep(SECONDS_TO_LEAVE)
    dist.destroy_process_group()


def check_same_batch(x: Tensor, mesh: DeviceMesh, *, contents: bool) -> None:
    """An error in every process if batches differ in shape between them or, where asked, in what they contain.

    Contents are compared by one number for each row: features by an alternating sum, labels by themselves.
    """
    group = mesh.get_group()
    _check_same_shape(x, group)
    if not contents or not x.numel():
        return
    values = x.double()
    marks, tolerance = values, torch.full_like(values, 0.5)
    if x.ndim > 1:
        values = values.flatten(1)
        marks = values[:, ::2].sum(1) - values[:, 1::2].sum(1)
        tolerance = LARGEST_DIFFERENCE * values.abs().sum(1)
    marks, tolerance = marks.nan_to_num(), tolerance.nan_to_num()
    extremes = torch.stack([marks, -marks, tolerance])
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group)
    differs = extremes[0] + extremes[1] > extremes[2]
    if differs.any():
        what = "features" if x.ndim > 1 else "labels"
        raise ValueError(
            f"the processes of a sharded head have different {what}, first in row {differs.nonzero()[0].item()}: give "
            "all the same batch, or shard_classes(..., gather=True) if each has its own part of it"
        )


def _check_same_shape(x: Tensor, group: dist.ProcessGroup) -> None:
    """An error in every process if the shapes or kinds of their batches differ."""
    shape = (len(x) if x.ndim else 0, x.ndim, x[:1].numel() if x.ndim > 1 else 0, int(x.is_floating_point()))
    extremes = torch.tensor([*shape, *(-number for number in shape)], device=x.device)
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group)
    most, least = extremes.tolist()[:4], [-number for number in extremes.tolist()[4:]]
    if most[0] != least[0]:
        raise ValueError(
            f"the processes of a sharded head have batches of {least[0]} to {most[0]} samples, this one {shape[0]}: "
            "give all the same number, for example with drop_last=True in the loader"
        )
    if most != least:
        raise ValueError(
            f"the processes of a sharded head have batches of different shapes or types, this one {x.dtype} "
            f"{tuple(x.shape)}: give all the same"
        )


def check_labels(labels: Tensor, rows: int, num_classes: int, mesh: DeviceMesh) -> None:
    """An error in every process if labels are not classes, or differ between processes."""
    check_same_batch(labels, mesh, contents=True)  # after this, what one process finds all find
    if labels.is_floating_point() or labels.shape != (rows,):
        raise ValueError(f"labels must be whole numbers ({rows},), got {labels.dtype} {tuple(labels.shape)}")
    if labels.numel() and not (labels.min() >= 0 and labels.max() < num_classes):
        wrong = labels[(labels < 0) | (labels >= num_classes)][0].item()
        raise ValueError(f"labels must be 0 to {num_classes - 1} for {num_classes} classes, got {wrong}")


class _WithSummedGradient(torch.autograd.Function):
    """The same numbers, with the sum over processes of their gradients, divided by a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, divisor: int) -> Tensor:
        ctx.group, ctx.divisor = group, divisor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        g = (g / ctx.divisor).contiguous()
        dist.all_reduce(g, group=ctx.group)
        return g, None, None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.rows = group, len(x)
        rows = x.new_empty(group.size() * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(rows, x.contiguous(), group=group)
        return rows

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        own = g.new_empty(ctx.rows, *g.shape[1:])
        dist.reduce_scatter_tensor(own, g.contiguous(), group=ctx.group)
        return own * ctx.group.size(), None
