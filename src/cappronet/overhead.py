"""What each head adds to each backbone (Section 4.3): parameters, time of a training step, time of inference."""

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from cappronet.benchmark import machine, spread
from cappronet.grid import Grid
from cappronet.ingredients import build_optimizer
from cappronet.model import CapProNet
from cappronet.recipe import Recipe

__all__ = ["BACKBONES", "HEADS", "grid", "run"]

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
HEADS: Mapping[str, tuple[str, int]] = {
    "linear": ("linear", 1),
    "group c=8": ("group", 8),
    "capsule c=2": ("capsule", 2),
    "capsule c=8": ("capsule", 8),
}


def run(
    backbones: Sequence[str] = tuple(BACKBONES),
    *,
    batch: int = 16,
    rounds: int = 5,
    known: Mapping[str, Any] | None = None,
    on_round: Callable[[str, int, int], None] = lambda *_: None,
    on_backbone: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Time steps and predictions of every backbone with every head, heads in turn, in an order drawn for each round.

    Args:
        backbones: names of `BACKBONES`.
        batch: images in a step.
        rounds: how often each is timed.
        known: what an earlier call found; if it is of such a machine, its backbones are kept and not measured again.
        on_round: is told the backbone, the rounds done and those to do.
        on_backbone: is given all that is found so far, after each backbone.
    """
    found: dict[str, Any] = {"machine": machine("cpu"), "batch": batch, "rounds": rounds, "backbones": {}}
    if known is not None and {**known, "backbones": {}} == found:
        found["backbones"] |= known["backbones"]
    missing = [name for name in backbones if name not in found["backbones"]]
    total, done = len(missing) * (rounds + 1), itertools.count()
    for name in missing:
        found["backbones"][name] = _measure(name, batch, rounds, lambda name: on_round(name, next(done), total))
        found["backbones"] = {name: found["backbones"][name] for name in BACKBONES if name in found["backbones"]}
        on_backbone(found)
    return found


def _measure(backbone: str, batch: int, rounds: int, on_round: Callable[[str], None]) -> dict[str, Any]:
    size, classes = BACKBONES[backbone]
    x, y = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last), torch.arange(batch) % classes
    models = {
        name: CapProNet(backbone, classes, dim, head=head).to(memory_format=torch.channels_last)
        for name, (head, dim) in HEADS.items()
    }
    optimizers = {name: build_optimizer(Recipe(), model) for name, model in models.items()}

    def step(name: str) -> None:
        F.cross_entropy(models[name].train()(x), y).backward()
        optimizers[name].step()
        optimizers[name].zero_grad()

    @torch.no_grad()
    def infer(name: str) -> None:
        models[name].eval()(x)

    times: dict[str, dict[str, list[float]]] = {name: {"step": [], "inference": []} for name in models}
    order = random.Random(0)
    for number in range(rounds + 1):  # the first warms up
        on_round(backbone)
        for name in order.sample(list(models), len(models)):
            for kind, work in (("step", step), ("inference", infer)):
                start = time.perf_counter()
                work(name)
                if number:
                    times[name][kind].append(time.perf_counter() - start)
    linear = times["linear"]
    parameters = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    return {
        name: {
            "parameters": parameters[name],
            "added": parameters[name] - parameters["linear"],
            **{
                kind: {
                    "ms": spread([1e3 * t for t in mine]),
                    "ratio": spread([a / b for a, b in zip(mine, linear[kind], strict=True)]),
                }
                for kind, mine in times[name].items()
            },
        }
        for name in models
    }


COLUMNS = ("backbone", "head", "parameters", "added", "step, ms", "against linear", "inference, ms", "against linear")


def grid(found: Mapping[str, Any]) -> Grid:
    """Parameters and times, with the 10 to 90 % range of the ratios within a round."""
    title = f"batch of {found['batch']}, {found['rounds']} rounds, {found['machine']['threads']} threads"
    return Grid(COLUMNS, _cells(found), names=2, title=title)


def _cells(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for backbone, heads in found["backbones"].items():
        for name, cost in heads.items():
            times: list[str] = []
            for kind in ("step", "inference"):
                ratio = cost[kind]["ratio"]
                times += [
                    f"{cost[kind]['ms']['median']:.0f}",
                    f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if name != "linear" else "",
                ]
            added = f"{cost['added']:+,}" if name != "linear" else ""
            lines.append((backbone, name, f"{cost['parameters']:,}", added, *times))
    return lines
