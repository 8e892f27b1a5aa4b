"""Where a run takes place: devices and processes, through Lightning Fabric."""

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cappronet.extras import require
from cappronet.models.network import CapProNet
from cappronet.training.distribution import sharded, share_batch_norm

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Hardware"]


@dataclass(frozen=True)
class Hardware:
    """The devices and processes of a run. They decide the time it takes, not its outcome."""

    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    workers: int = 0
    cache: str | None = None
    shard_head: bool = False
    device: int | None = None  # the number of the one device to use, where there are several

    @property
    def shards(self) -> bool:
        """Whether each process holds only a part of the parameters."""
        return self.shard_head or self.strategy == "fsdp"

    def fabric(self, precision: str) -> "Fabric":
        """Lightning Fabric for these devices."""
        if self.shard_head and self.strategy not in ("auto", "fsdp"):
            raise ValueError(f"--shard-head shards the backbone too: remove --strategy {self.strategy}")
        fabric: Fabric = _lightning_fabric().Fabric(
            accelerator=self.accelerator,
            devices=self.devices if self.device is None else [self.device],
            num_nodes=self.num_nodes,
            strategy=sharded(self.devices * self.num_nodes) if self.shards else self.strategy,
            precision=precision,
        )
        return fabric

    def check_launcher(self) -> None:
        """Refuse to be one of several processes of a launcher that would train without knowing of each other."""
        by_torchrun = os.environ.get("WORLD_SIZE", "1") if "TORCHELASTIC_RUN_ID" in os.environ else "1"
        started = max(int(by_torchrun), int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")))
        if started > 1 and self.devices * self.num_nodes == 1:
            raise ValueError(
                f"the launcher started {started} processes, but --devices and --num-nodes are 1: set them to what was "
                f"launched, with --strategy ddp"
            )

    def prepared(self, network: CapProNet, fabric: "Fabric") -> CapProNet:
        """The network as these processes need it: with batch statistics over all of them."""
        if fabric.world_size > 1:
            share_batch_norm(network, fabric.device)
        return network


def _lightning_fabric() -> Any:
    """Lightning Fabric, which asks for the version of torchmetrics by importing it, for a class that is not used here.

    Where it is installed, that would import torchvision, transformers and SciPy, which takes seconds.
    """
    hidden = "torchmetrics" not in sys.modules
    if hidden:
        sys.modules["torchmetrics"] = None  # type: ignore[assignment]
    try:
        return require("lightning_fabric", "train")
    finally:
        if hidden:
            del sys.modules["torchmetrics"]
