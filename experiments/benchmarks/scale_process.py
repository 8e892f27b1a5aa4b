"""One of the processes of the benchmark of many classes: steps of a sharded head, timed and counted.

Started by `experiments.benchmarks.scale` as `python -m experiments.benchmarks.scale_process POINT RANK STORE OUTPUT`.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cappronet.heads import CapsuleProjection
from cappronet.heads.collectives import leave_together
from cappronet.heads.sampling import sampled_cross_entropy
from cappronet.heads.sharded_scores import sharded_cross_entropy
from cappronet.heads.sharding import ShardedProjection, shard_classes
from experiments.benchmarks.head import peak_of
from experiments.benchmarks.scale import is_message
from experiments.benchmarks.timing import seconds

__all__ = ["Payloads", "loss_of", "resident_peak", "sharded_head"]


class Payloads(TorchDispatchMode):
    """Counts the bytes that are handed to each kind of collective operation while the block runs."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        if func.namespace in ("c10d", "_c10d_functional") and is_message(name):
            # The whole of what is reduced or gathered: of several tensors, the largest.
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            name = name.replace("_", "").removesuffix("base").removesuffix("coalesced")
            self.bytes[name] += max((t.numel() * t.element_size() for t in tensors), default=0)
        return func(*args, **(kwargs or {}))


def sharded_head(point: dict[str, Any], mesh: DeviceMesh) -> nn.Module:
    """The head that is measured, with its classes spread over the processes."""
    L, d, c = point["L"], point["d"], point["c"]
    with torch.device("meta"):
        capsules, linear = CapsuleProjection(d, L, max(c, 1)), nn.Linear(d, L)
    if c:
        return shard_classes(capsules, mesh, gather=point["gather"])
    head = parallelize_module(linear, mesh, ColwiseParallel(output_layouts=Shard(-1), use_local_output=False))
    head.to_empty(device="cpu")
    for parameter in head.parameters():
        nn.init.uniform_(parameter.to_local(), -(d**-0.5), d**-0.5)  # type: ignore[attr-defined]
    return head


def loss_of(head: nn.Module, x: Tensor, y: Tensor, share: float) -> Tensor:
    """The loss over all classes, or over a share of those that are not in the batch."""
    if isinstance(head, ShardedProjection):
        return sampled_cross_entropy(head, x, head.gather_labels(y), share)
    return sharded_cross_entropy(head(x), y)


def resident_peak() -> int:
    """The most bytes of memory that this process has occupied so far; 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def measured(point: dict[str, Any], mesh: DeviceMesh) -> dict[str, Any]:
    """Seconds of each step, the most bytes that were allocated at once, and what a step hands to collectives."""
    steps: list[Callable[[], None]] = []
    x, y = _batch(point, mesh)
    losses = []

    def prepare() -> None:
        head = sharded_head(point, mesh)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            loss = loss_of(head, x, y, point["share"])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

        steps.append(step)
        step()
        step()  # the first that has both gradients and momentum

    peak = peak_of(prepare)
    step = steps[0]
    with Payloads() as payloads:
        step()
    laps = []
    for _ in range(point["rounds"]):
        dist.barrier()
        laps.append(seconds(lambda: (step(), dist.barrier())))
    return {
        "seconds": laps,
        "peak_bytes": peak,
        "resident_bytes": resident_peak(),
        "payloads": dict(payloads.bytes),
        "losses": losses,
    }


def _batch(point: dict[str, Any], mesh: DeviceMesh) -> tuple[Tensor, Tensor]:
    """Made features and labels: the same in all processes or, where they are gathered, this process's part of them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(point["B"], point["d"], generator=generator)
    y = torch.randint(point["L"], (point["B"],), generator=generator)
    if point["gather"]:
        rows = point["B"] // mesh.size()
        part = slice(rows * mesh.get_local_rank(), rows * (mesh.get_local_rank() + 1))
        x, y = x[part].clone(), y[part]
    return x.requires_grad_(), y


def main(point: dict[str, Any], rank: int, store: str, output: Path) -> None:
    """Measure one point as process number `rank`, and write the result."""
    torch.set_num_threads(point["threads"])
    processes = point["processes"]
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, processes),  # type: ignore[attr-defined]
        rank=rank,
        world_size=processes,
        timeout=timedelta(minutes=30),
    )
    torch.manual_seed(0)
    results = measured(point, init_device_mesh("cpu", (processes,)))
    output.write_text(json.dumps(results), encoding="utf-8")
    leave_together()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
