"""What each head adds to each backbone (Section 4.3): parameters, time of a training step, time of inference."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cappronet.data.files import write_atomically
from cappronet.models.network import CapProNet
from cappronet.reporting import Report, Table, silent
from cappronet.training.builders import build_optimizer
from cappronet.training.recipe import Recipe
from experiments.benchmarks.timing import Laps, Timing, Turn, machine, part_of, seconds, spread, take_turns

__all__ = ["BACKBONES", "VARIANTS", "run", "select", "table"]

# Image size and classes of each backbone, as in the paper's tables.
BACKBONES: Mapping[str, tuple[int, int]] = {
    "resnet8": (32, 10),
    "resnet20": (32, 10),
    "resnet110": (32, 10),
    "preact_resnet164": (32, 10),
    "wrn_16_4": (32, 10),
    "wrn_16_8": (32, 10),
    "wrn_28_10": (32, 10),
    "densenet_bc_100_12": (32, 10),
    "resnet50": (224, 1000),
    "resnet101": (224, 1000),
}
# The head and its capsule dimension, by the name in the table.
VARIANTS: Mapping[str, tuple[str, int]] = {
    "linear": ("linear", 1),
    "group c=8": ("group", 8),
    "capsule c=2": ("capsule", 2),
    "capsule c=8": ("capsule", 8),
}
PHASES = ("step", "inference")


def select(words: Sequence[str]) -> list[str]:
    """The backbones whose name contains one of the words; all of them without words."""
    backbones = [name for name in BACKBONES if not words or any(word in name for word in words)]
    if not backbones:
        raise ValueError(f"no backbone matches {' or '.join(words)}; choose from {', '.join(BACKBONES)}")
    return backbones


def run(
    backbones: Sequence[str] = tuple(BACKBONES),
    *,
    batch: int = 16,
    rounds: int = 5,
    record: Path | None = None,
    report: Report = silent,
) -> dict[str, Any]:
    """Time training steps and predictions of every backbone with every head.

    Args:
        backbones: names of `BACKBONES`.
        batch: images in a step.
        rounds: how often each is timed.
        record: a file that is written after each backbone. What it already holds is not measured again, if it was
            measured on the same kind of machine with the same settings.
        report: is told the backbone and how far the measurement is.
    """
    results: dict[str, Any] = {"machine": machine(), "batch": batch, "rounds": rounds, "backbones": {}}
    if record is not None and record.exists():
        earlier = json.loads(record.read_text(encoding="utf-8"))
        if {**earlier, "backbones": {}} == results:
            results = earlier
    missing = [name for name in backbones if name not in results["backbones"]]
    for number, name in enumerate(missing):
        costs = _measure(name, batch, rounds, part_of(report, number, len(missing), name))
        together = {**results["backbones"], name: costs}
        results["backbones"] = {name: together[name] for name in BACKBONES if name in together}
        if record is not None:
            record.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(record, (json.dumps(results, indent=1) + "\n").encode())
    return results


def _measure(backbone: str, batch: int, rounds: int, report: Report) -> dict[str, Any]:
    """Parameters and times of one backbone with each head."""
    size, classes = BACKBONES[backbone]
    x, y = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last), torch.arange(batch) % classes
    models = {
        name: CapProNet(backbone, classes, dim, head=head).to(memory_format=torch.channels_last)
        for name, (head, dim) in VARIANTS.items()
    }
    turns = {name: _step_and_inference(model, x, y) for name, model in models.items()}
    timing = take_turns(turns, rounds, warm_up=1, report=report)
    parameters = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    return {
        name: {
            "parameters": parameters[name],
            "added": parameters[name] - parameters["linear"],
            **{phase: _costs(timing, name, phase) for phase in PHASES},
        }
        for name in models
    }


def _step_and_inference(model: CapProNet, x: Tensor, y: Tensor) -> Turn:
    optimizer = build_optimizer(Recipe(), model)

    def step() -> None:
        F.cross_entropy(model.train()(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.no_grad()
    def infer() -> None:
        model.eval()(x)

    def turn(_round: int) -> Laps:
        return {"step": seconds(step), "inference": seconds(infer)}

    return turn


def _costs(timing: Timing, name: str, phase: str) -> dict[str, Any]:
    return {
        "ms": spread([1e3 * t for t in timing.seconds(name, phase)]),
        "ratio": spread(timing.ratios(name, "linear", phase)),
    }


HEADINGS = (
    *("backbone", "head", "parameters", "added parameters", "training step, ms", "relative to linear"),
    *("inference, ms", "relative to linear"),
)


def table(results: Mapping[str, Any]) -> Table:
    """Parameters and times, with the 10 to 90 % range of the ratios within a round."""
    rows: list[tuple[str, ...]] = []
    for backbone, heads in results["backbones"].items():
        for name, costs in heads.items():
            times: list[str] = []
            for phase in PHASES:
                ratio = costs[phase]["ratio"]
                relative = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
                times += [f"{costs[phase]['ms']['median']:.0f}", relative if name != "linear" else ""]
            added = f"{costs['added']:+,}" if name != "linear" else ""
            rows.append((backbone, name, f"{costs['parameters']:,}", added, *times))
    title = f"batch of {results['batch']}, {results['rounds']} rounds, {results['machine']['threads']} threads"
    return Table(HEADINGS, rows, names=2, title=title)
