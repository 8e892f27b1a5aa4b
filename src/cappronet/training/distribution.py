"""What many processes need so that they compute what one would."""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import Tensor, nn

if TYPE_CHECKING:
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

__all__ = ["SharedBatchNorm2d", "sharded", "share_batch_norm"]


class SharedBatchNorm2d(nn.BatchNorm2d):
    """Batch normalization with the statistics of the whole batch, over all processes and on any device.

    `nn.SyncBatchNorm` does the same, faster, but on GPUs alone. Every process must hold as many images as every other.
    """

    def forward(self, x: Tensor) -> Tensor:
        """`(B, C, H, W) -> (B, C, H, W)`."""
        if not self.training or torch.distributed.get_world_size() == 1:
            return super().forward(x)
        mean = _mean_over_processes(x.mean((0, 2, 3)))
        centred = x - mean[:, None, None]
        variance = _mean_over_processes(centred.square().mean((0, 2, 3)))
        self._update(mean.detach(), variance.detach(), x.numel() // x.shape[1] * torch.distributed.get_world_size())
        scale = torch.rsqrt(variance + self.eps) * self.weight
        return centred * scale[:, None, None] + self.bias[:, None, None]

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor, count: int) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var.dtype), share)


def share_batch_norm(module: nn.Module, device: torch.device) -> None:
    """Replace every `nn.BatchNorm2d` inside with one that shares its statistics; names and states stay."""
    if device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return
    for name, child in module.named_children():
        if type(child) is nn.BatchNorm2d and child.affine:
            shared = SharedBatchNorm2d(child.num_features, child.eps, child.momentum)
            shared.load_state_dict(child.state_dict())
            setattr(module, name, shared.train(child.training))
        else:
            share_batch_norm(child, device)


def sharded(processes: int) -> "ModelParallelStrategy":
    """FSDP2 over all processes: each keeps a part of every parameter. It runs on CPUs too.

    A head whose classes are already spread over the processes stays as it is.
    """
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    def shard(module: nn.Module, mesh: Any) -> nn.Module:
        done: set[nn.Parameter] = {parameter for parameter in module.parameters() if isinstance(parameter, DTensor)}
        for part in (*module.backbone.children(), module):  # type: ignore[union-attr]
            if any(parameter not in done for parameter in part.parameters()):
                fully_shard(part, mesh=mesh["data_parallel"], ignored_params=done)
        return module

    return ModelParallelStrategy(shard, data_parallel_size=processes, tensor_parallel_size=1)


class _MeanOverProcesses(torch.autograd.Function):
    """The mean of all processes' tensors. Each enters every process's loss, so the gradients are averaged too."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        torch.distributed.all_reduce(total)
        return total / torch.distributed.get_world_size()

    @staticmethod
    def backward(_ctx: Any, g: Tensor) -> Tensor:
        return _MeanOverProcesses.forward(None, g.contiguous())


def _mean_over_processes(x: Tensor) -> Tensor:
    return _MeanOverProcesses.apply(x)
