"""What a training step costs: with either head, inside the loop and without it, and its augmentation alone."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cappronet import training
from cappronet.benchmark import machine, spread
from cappronet.ingredients import build_model, build_optimizer, prepare, training_batches
from cappronet.recipe import Recipe
from cappronet.runs import Run

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["markdown", "run", "table"]

# What is divided by what, and what that says.
RATIOS = {
    "capsule head / linear head": ("bare step, capsule", "bare step, linear"),
    "loop / bare step": ("loop, capsule", "bare step, capsule"),
    "augmentation / bare step": ("augmentation", "bare step, capsule"),
}


def run(
    backbone: str = "resnet20",
    capsule_dim: int = 8,
    *,
    rounds: int = 15,
    image_size: int = 32,
    on_round: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Time single steps of 128 random images in turn, in an order drawn anew for each round."""
    recipe = Recipe(backbone=backbone, capsule_dim=capsule_dim, flip=True, padding=4, epochs=rounds + 2)
    order = random.Random(0)
    with TemporaryDirectory() as folder:
        recipe = recipe.changed(data=str(_random_images(Path(folder), image_size)))
        steps: dict[str, Callable[[], None]] = {
            "bare step, linear": _bare(recipe.changed(head="linear")),
            "bare step, capsule": _bare(recipe),
            "loop, capsule": _loop(recipe, Path(folder) / "run"),
            "augmentation": _augmentation(recipe),
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        for step in steps.values():
            step()
        for number in range(rounds):
            on_round(number)
            for name in order.sample(list(steps), len(steps)):
                start = time.perf_counter()
                steps[name]()
                times[name].append(time.perf_counter() - start)
    return {
        "machine": machine("cpu"),
        "backbone": backbone,
        "capsule_dim": capsule_dim,
        "rounds": rounds,
        "ms": {name: spread([1e3 * t for t in values]) for name, values in times.items()},
        "ratios": {
            name: spread([a / b for a, b in zip(times[top], times[bottom], strict=True)])
            for name, (top, bottom) in RATIOS.items()
        },
    }


def _random_images(folder: Path, size: int) -> Path:
    generator = np.random.default_rng(0)
    path = folder / "random.npz"
    images, labels = generator.integers(0, 256, (256, size, size, 3), np.uint8), np.arange(256) % 10
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return path


def _trainer(recipe: Recipe, folder: Path) -> training.Trainer:
    hardware = training.Hardware(accelerator="cpu")
    fabric = hardware.fabric(recipe.precision)
    return training.Trainer(
        recipe,
        Run(folder),
        hardware,
        fabric,
        lambda _: None,
        checkpoint_minutes=1e9,
        interruption=training.Interruption(),
    )


def _bare(recipe: Recipe) -> Callable[[], None]:
    """Forward, backward and update on a batch that is there already."""
    data = prepare(recipe)
    model = build_model(recipe, data).to(memory_format=torch.channels_last)
    optimizer = build_optimizer(recipe, model)
    x = torch.randn(128, 3, *data.train.pixels.shape[2:]).to(memory_format=torch.channels_last)  # type: ignore[union-attr]
    y = torch.arange(128) % 10

    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _loop(recipe: Recipe, folder: Path) -> Callable[[], None]:
    """What the training loop does for a step: batch, update, and its own bookkeeping."""
    trainer = _trainer(recipe, folder)
    batches = _endless(trainer.batches.epoch)

    def step() -> None:
        trainer.train_step(*next(batches))
        trainer.report(1.0)
        trainer.must_stop()

    return step


def _augmentation(recipe: Recipe) -> Callable[[], None]:
    data = prepare(recipe)
    batches = _endless(training_batches(recipe, data).epoch)
    return lambda: (next(batches), None)[1]


def _endless(epoch: Callable[[int], Iterator[tuple[Tensor, Tensor]]]) -> Iterator[tuple[Tensor, Tensor]]:
    number = 0
    while True:
        yield from epoch(number)
        number += 1


def table(costs: Mapping[str, Any]) -> "Table":
    """Milliseconds and ratios with their 10 to 90 % range."""
    from rich.table import Table

    title = f"{costs['backbone']}, c={costs['capsule_dim']}, batch of 128, {costs['machine']['threads']} threads"
    grid = Table(title=title, title_justify="left")
    for heading in ("", "median", "10 to 90 %"):
        grid.add_column(heading, justify="right" if heading else "left")
    for name, value in costs["ms"].items():
        grid.add_row(f"{name}, ms", f"{value['median']:.1f}", f"{value['low']:.1f} to {value['high']:.1f}")
    grid.add_section()
    for name, value in costs["ratios"].items():
        grid.add_row(name, f"{value['median']:.3f}", f"{value['low']:.3f} to {value['high']:.3f}")
    return grid


def markdown(costs: Mapping[str, Any]) -> str:
    """The ratios as a table for a page."""
    rows = [f"| of a {costs['backbone']} step, c={costs['capsule_dim']} | median | 10 to 90 % |", "|---|--:|--:|"]
    for name, value in costs["ratios"].items():
        rows.append(f"| {name} | {value['median']:.3f} | {value['low']:.3f} to {value['high']:.3f} |")
    return "\n".join(rows)
