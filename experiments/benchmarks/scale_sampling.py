"""What sampled classes cost and save: training with all classes, and with a share of those outside the batch.

Samples are made: each class is a random direction, and a sample is its direction plus noise. A small network and a
capsule head learn to tell the classes apart, in one process, with the same batches, steps and learning rate for every
share; errors are measured over all classes.
"""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from cappronet.data.files import write_atomically
from cappronet.heads import CapsuleProjection
from cappronet.heads.sampling import sampled_cross_entropy
from cappronet.heads.sharded_scores import sharded_cross_entropy, sharded_errors
from cappronet.heads.sharding import ShardedProjection, shard_classes
from cappronet.reporting import Report, Table, silent
from cappronet.training.results import interval
from cappronet.training.run_folder import environment
from experiments.benchmarks.timing import machine

__all__ = ["SHARES", "Setting", "run", "table"]

SHARES = (1.0, 0.3, 0.1)
TEST_BATCH = 500


@dataclass(frozen=True)
class Setting:
    """The made task, and how it is trained.

    Attributes:
        classes: L.
        inputs: numbers in a sample.
        d: features.
        c: capsule dimension.
        noise: the standard deviation of each number, where those of a direction have 1.
        batch: B.
        steps: of AdamW, whose learning rate falls to 0 along half a cosine.
        lr: the learning rate at the start.
        test: samples that errors are measured on.
    """

    classes: int = 10_000
    inputs: int = 64
    d: int = 64
    c: int = 2
    noise: float = 0.65
    batch: int = 128
    steps: int = 700
    lr: float = 0.01
    test: int = 10_000


def run(
    seeds: Sequence[int],
    setting: Setting | None = None,
    shares: Sequence[float] = SHARES,
    *,
    record: Path | None = None,
    report: Report = silent,
) -> dict[str, Any]:
    """Train once for each seed and share.

    Args:
        seeds: of the directions, the samples, the first weights and the draws.
        setting: the task; by default 10,000 classes.
        shares: of the classes outside the batch; 1 is exact.
        record: a file that is written after each run. What it already holds is not trained again, if it was by the same
            code with the same settings.
        report: is told the run and how many are done.
    """
    setting = setting or Setting()
    results: dict[str, Any] = {
        "machine": machine(),
        "commit": environment()["commit"],
        "setting": asdict(setting),
        "runs": [],
    }
    if record is not None and record.exists():
        earlier = json.loads(record.read_text(encoding="utf-8"))
        if {**earlier, "runs": []} == results:
            results = earlier
    done = [(entry["seed"], entry["share"]) for entry in results["runs"]]
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        todo = [(seed, share) for seed in seeds for share in shares]
        for number, (seed, share) in enumerate(todo):
            report(f"seed {seed}, {share:.0%} of classes", number, len(todo))
            if (seed, share) in done:
                continue
            results["runs"].append({"seed": seed, "share": share, **_trained(setting, share, seed, mesh)})
            if record is not None:
                record.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(record, (json.dumps(results, indent=1) + "\n").encode())
    finally:
        dist.destroy_process_group()
    return results


def _trained(setting: Setting, share: float, seed: int, mesh: DeviceMesh) -> dict[str, float]:
    """Train a network; its error and loss over all classes, and the seconds of the training steps."""
    torch.manual_seed(seed)
    width = setting.d
    backbone = nn.Sequential(nn.Linear(setting.inputs, width), nn.ReLU(), nn.Linear(width, width))
    with torch.device("meta"):
        capsules = CapsuleProjection(width, setting.classes, setting.c, normalize=True, scale="learned")
    head = shard_classes(capsules, mesh)
    optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=setting.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setting.steps)
    samples, drawing = _Samples(setting, seed), torch.Generator().manual_seed(seed)
    seconds = []
    for _ in range(setting.steps):
        x, y = samples.draw(setting.batch)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = sampled_cross_entropy(head, backbone(x), y, share, generator=drawing)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        schedule.step()
    return {
        **_measured(backbone, head, samples, setting.test),
        "train_loss": loss.item(),
        "step_ms": 1e3 * statistics.median(seconds),
        "seconds": sum(seconds),
    }


@torch.no_grad()
def _measured(backbone: nn.Module, head: ShardedProjection, samples: "_Samples", count: int) -> dict[str, float]:
    """Error in percent and cross-entropy over all classes, on new samples."""
    wrong, losses = [], []
    for _ in range(-(-count // TEST_BATCH)):
        x, y = samples.draw(min(TEST_BATCH, count))
        scores = head(backbone(x))
        wrong.append(sharded_errors(scores, y))
        losses.append(sharded_cross_entropy(scores, y, reduction="none"))
    return {"error": 100 * torch.cat(wrong).double().mean().item(), "loss": torch.cat(losses).mean().item()}


class _Samples:
    """A stream of samples, the same for every share."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.directions = torch.randn(setting.classes, setting.inputs, generator=self.generator)
        self.noise = setting.noise

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(len(self.directions), (count,), generator=self.generator)
        noise = torch.randn(count, self.directions.shape[1], generator=self.generator)
        return self.directions[y] + self.noise * noise, y


def table(results: Mapping[str, Any]) -> Table:
    """Error and time of each share: the mean over seeds with its 95 % interval, and differences from the exact loss."""
    runs = {(entry["seed"], entry["share"]): entry for entry in results["runs"]}
    seeds = sorted({seed for seed, _ in runs})
    shares = sorted({share for _, share in runs}, reverse=True)
    rows: list[tuple[str, ...]] = []
    for share in shares:
        errors = [runs[seed, share]["error"] for seed in seeds]
        more = [error - runs[seed, shares[0]]["error"] for seed, error in zip(seeds, errors, strict=True)]
        rows.append(
            (
                f"{share:.0%}",
                _mean(errors),
                _mean(more) if share < shares[0] else "",
                _mean([runs[seed, share]["loss"] for seed in seeds]),
                f"{statistics.median(runs[seed, share]['step_ms'] for seed in seeds):.0f}",
                f"{statistics.median(runs[seed, share]['seconds'] for seed in seeds):.0f}",
            )
        )
    headings = ("classes", "error, %", "difference", "loss over all classes", "ms for a step", "seconds for all steps")
    setting = results["setting"]
    title = f"{setting['classes']:,} made classes, {setting['steps']:,} steps of {setting['batch']}, {len(seeds)} seeds"
    return Table(headings, rows, title=title)


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f}" + (f" ± {interval(values):.2f}" if len(values) > 1 else "")
