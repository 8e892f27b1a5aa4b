"""What a training step costs: with each head, inside the training loop and without it, and its augmentation alone."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cappronet.reporting import Report, Table, silent
from cappronet.training import loop as training
from cappronet.training.builders import build_model, build_optimizer, load_data, training_batches
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run
from experiments.benchmarks.timing import machine, spread, take_turns, timed

__all__ = ["RATIOS", "run", "table"]

BATCH = 128
# The name of each ratio, and which step is divided by which.
RATIOS = {
    "capsule head / linear head": ("bare step, capsule", "bare step, linear"),
    "Grassmann step / plain SGD": ("bare step, Grassmann", "bare step, capsule"),
    "Grassmann step / grouped neurons": ("bare step, Grassmann", "bare step, group"),
    "loop / bare step": ("loop, capsule", "bare step, capsule"),
    "augmentation / bare step": ("augmentation", "bare step, capsule"),
}


def run(
    backbone: str = "resnet20",
    capsule_dim: int = 8,
    *,
    rounds: int = 15,
    image_size: int = 32,
    report: Report = silent,
) -> dict[str, Any]:
    """Time single steps of random images: with each head, inside the training loop, and the augmentation alone."""
    recipe = Recipe(backbone=backbone, capsule_dim=capsule_dim, flip=True, padding=4, epochs=rounds + 2)
    with TemporaryDirectory() as folder:
        recipe = recipe.changed(data=str(_random_images(Path(folder), image_size)))
        steps = {
            "bare step, linear": _bare(recipe.changed(head="linear")),
            "bare step, group": _bare(recipe.changed(head="group")),
            "bare step, capsule": _bare(recipe),
            "bare step, Grassmann": _bare(recipe.changed(head_optimizer="grassmann")),
            "loop, capsule": _loop(recipe, Path(folder) / "run"),
            "augmentation": _augmentation(recipe),
        }
        turns = {name: timed("step", step) for name, step in steps.items()}
        timing = take_turns(turns, rounds, warm_up=1, report=report)
    return {
        "machine": machine(),
        "backbone": backbone,
        "capsule_dim": capsule_dim,
        "rounds": rounds,
        "ms": {name: spread([1e3 * t for t in timing.seconds(name)]) for name in steps},
        "ratios": {name: spread(timing.ratios(top, bottom)) for name, (top, bottom) in RATIOS.items()},
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
        silent,
        checkpoint_minutes=1e9,
        interruption=training.Interruption(),
    )


def _bare(recipe: Recipe) -> Callable[[], None]:
    """Forward, backward and update on a batch that is in memory."""
    data = load_data(recipe)
    model = build_model(recipe, data).to(memory_format=torch.channels_last)
    optimizer = build_optimizer(recipe, model)
    x = torch.randn(BATCH, 3, *data.train.pixels.shape[2:]).to(memory_format=torch.channels_last)  # type: ignore[union-attr]
    y = torch.arange(BATCH) % 10

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
        trainer.show_progress(1.0)
        trainer.must_stop()

    return step


def _augmentation(recipe: Recipe) -> Callable[[], None]:
    """The next batch of augmented images."""
    data = load_data(recipe)
    batches = _endless(training_batches(recipe, data).epoch)

    def load() -> None:
        next(batches)

    return load


def _endless(epoch: Callable[[int], Iterator[tuple[Tensor, Tensor]]]) -> Iterator[tuple[Tensor, Tensor]]:
    number = 0
    while True:
        yield from epoch(number)
        number += 1


def table(costs: Mapping[str, Any]) -> Table:
    """Milliseconds and ratios with their 10 to 90 % range."""
    rows: list[tuple[str, ...]] = [(f"{name}, ms", *_cells(value, 1)) for name, value in costs["ms"].items()]
    rows += [(name, *_cells(value, 3)) for name, value in costs["ratios"].items()]
    heading = f"{costs['backbone']}, c={costs['capsule_dim']}, batch of {BATCH}, {costs['machine']['threads']} threads"
    return Table((heading, "median", "10 to 90 %"), rows)


def _cells(value: Mapping[str, float], digits: int) -> tuple[str, str]:
    median, low, high = (f"{value[name]:.{digits}f}" for name in ("median", "low", "high"))
    return median, f"{low} to {high}"
