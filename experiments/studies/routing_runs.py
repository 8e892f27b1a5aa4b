"""Networks with dynamic routing next to linear and capsule heads: errors, parameters, and the time of a step.

All are trained by one loop with recipes of the library; only network and loss differ. Learning rates are tuned on
held-out training images, except for the capsule network on CIFAR-10, which has the rate of its paper: it costs as much
as all the others together.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cappronet.data.files import replace_file
from cappronet.data.samples import Dataset
from cappronet.data.splits import mixed_seed
from cappronet.models.backbones import create_backbone
from cappronet.models.network import CapProNet
from cappronet.reporting import Report, Table
from cappronet.training.builders import (
    build_model,
    build_optimizer,
    evaluation_batches,
    learning_rate,
    load_data,
    training_batches,
)
from cappronet.training.recipe import Recipe
from cappronet.training.results import Row
from experiments.benchmarks.timing import machine, spread, take_turns, timed
from experiments.reproduction.tables import difference_cells, error_cell
from experiments.studies.parts import Part, rows_of, run_parts
from experiments.studies.routing import CapsuleNetwork, RoutedFeatures, margin_loss

__all__ = ["CONTESTANTS", "Contestant", "Plan", "measure", "measure_steps", "run", "table"]

# By its name, what makes the network for a recipe and its data.
Build = Callable[[Recipe, Dataset], nn.Module]
SEEDS, ROUNDS = 3, 20


def _capsule_network(_recipe: Recipe, data: Dataset, **options: Any) -> nn.Module:
    return CapsuleNetwork(data.in_channels, data.input_shape[-1], len(data.classes), **options)


def _routed(recipe: Recipe, data: Dataset, *, feature_map: bool) -> nn.Module:
    backbone = create_backbone(recipe.backbone, data.in_channels)
    assert isinstance(backbone, nn.Sequential)
    image = torch.zeros(1, *data.input_shape)
    return RoutedFeatures(backbone, image, len(data.classes), feature_map=feature_map)


# The paper's sizes for CIFAR-10; digits have 8 x 8 pixels, too few for two convolutions of 9 x 9.
BUILDERS: Mapping[str, Build] = {
    "ours": build_model,
    "capsule network": partial(_capsule_network, types=64, none=True, crop=24),
    "small capsule network": partial(_capsule_network, kernel=3),
    "routed map": partial(_routed, feature_map=True),
    "routed features": partial(_routed, feature_map=False),
}


@dataclass(frozen=True)
class Contestant:
    """A network, how it is trained, and the learning rates it is tried with.

    Attributes:
        label: in the table.
        build: a name of `BUILDERS`; those but `ours` have the margin loss.
        recipe: data, schedule and augmentation; its learning rate is used where there are no others to choose from.
        rates: to choose from.
        validation: training images that rates are compared on.
    """

    label: str
    build: str
    recipe: Recipe
    rates: tuple[float, ...] = ()
    validation: int = 0

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy for our heads, the margin loss for routing."""
        return F.cross_entropy(scores, y) if self.build == "ours" else margin_loss(scores, y)

    def network(self, recipe: Recipe, data: Dataset) -> nn.Module:
        """With weights drawn from the recipe's seed."""
        torch.manual_seed(recipe.seed)
        return BUILDERS[self.build](recipe, data).to(memory_format=torch.channels_last)


UNIT: Mapping[str, Any] = {"head": "capsule", "capsule_dim": 8, "normalize": True, "scale": 25.0, "decay_head": False}
ROUTED: Mapping[str, Any] = {"decay_head": False}
HEADS: Sequence[tuple[str, str, Mapping[str, Any], tuple[float, ...]]] = (
    ("ResNet-8, linear", "ours", {"head": "linear"}, (0.2, 0.4, 0.8)),
    ("ResNet-8, unit capsule c=8, scale 25", "ours", UNIT, (0.2, 0.4, 0.8)),
    ("ResNet-8, routing of features", "routed features", ROUTED, (0.2, 0.4, 0.8)),
    ("ResNet-8, routing of the feature map", "routed map", ROUTED, (0.2, 0.4, 0.8)),
)
# Adam, whose learning rate decays exponentially, as in the paper of the capsule network.
ADAM: Mapping[str, Any] = {
    "optimizer": "adamw",
    "weight_decay": 0.0,
    "lr": 1e-3,
    "schedule": "step",
    "step_epochs": 1,
    "gamma": 0.9,
}
DIGITS = Recipe(data="digits", epochs=30, lr=0.4)
CIFAR10 = Recipe(data="cifar10", train_size=5000, epochs=30, lr=0.4, flip=True, padding=4)
CONTESTANTS: Sequence[Contestant] = (
    *(Contestant(label, build, DIGITS.changed(**head), rates, 287) for label, build, head, rates in HEADS),
    Contestant("capsule network", "small capsule network", DIGITS.changed(**ADAM, padding=1), (3e-4, 1e-3, 3e-3), 287),
    *(Contestant(label, build, CIFAR10.changed(**head), rates, 5000) for label, build, head, rates in HEADS),
    Contestant("capsule network", "capsule network", CIFAR10.changed(**ADAM, padding=0)),
)


@dataclass(frozen=True)
class Plan:
    """One run of a contestant.

    Attributes:
        contestant: what is trained.
        folder: where an interrupted run and the results of finished ones are kept.
        files: by the name of a dataset, a file to read it from.
        cache: the folder of downloaded datasets.
        seed: of the run.
        lr: its learning rate.
        trial: whether the error is measured on held-out training images.
    """

    contestant: Contestant
    folder: Path
    files: Mapping[str, str] = field(default_factory=dict)
    cache: str | None = None
    seed: int = 0
    lr: float = 0.0
    trial: bool = False

    @property
    def name(self) -> str:
        """Of the run: network, data, and seed or learning rate."""
        label = "-".join(self.contestant.label.replace(",", "").replace("=", "").split())
        return f"{self.contestant.recipe.data}-{label}-{f'lr{self.lr:g}' if self.trial else f'seed{self.seed}'}"

    @property
    def settings(self) -> Recipe:
        """What is trained; the data go by their name."""
        validation = self.contestant.validation if self.trial else 0
        return self.contestant.recipe.changed(seed=self.seed, lr=self.lr, validation=validation)

    @property
    def recipe(self) -> Recipe:
        """The same, reading the data where they are."""
        return self.settings.changed(data=self.files.get(self.settings.data, self.settings.data))

    @property
    def part(self) -> Part:
        """The part of the study that trains it."""
        return Part(self.name, {"build": self.contestant.build, "recipe": self.settings.to_dict()}, self)


def run(
    plans: Sequence[Plan], path: Path, *, seeds: int = SEEDS, steps: bool = False, jobs: int, report: Report
) -> dict[str, Any]:
    """Compare learning rates, train with the best ones, measure steps; what the result file has is left as it is.

    Args:
        plans: one for each contestant.
        path: the result file.
        seeds: runs of each.
        steps: measure the time of a step too, which needs a machine that does nothing else.
        jobs: runs at the same time, each with one thread.
        report: is told how far it is.
    """
    folder = plans[0].folder
    trials = [replace(plan, lr=rate, trial=True) for plan in plans for rate in plan.contestant.rates]
    parts = [trial.part for trial in trials]
    content = run_parts("routing", parts, measure, folder, path, jobs=jobs, report=report)
    tuned = [replace(plan, lr=_best_rate(plan, content)) for plan in plans]
    parts += [replace(plan, seed=seed).part for seed in range(seeds) for plan in tuned]
    content = run_parts("routing", parts, measure, folder, path, jobs=jobs, report=report)
    if not steps:
        return content
    for data in dict.fromkeys(plan.contestant.recipe.data for plan in tuned):
        of_data = [plan for plan in tuned if plan.contestant.recipe.data == data]
        identity = {"networks": [plan.contestant.label for plan in of_data], "rounds": ROUNDS}
        parts.append(Part(f"{data}-steps", identity, of_data))
    return run_parts("routing", parts, measure_steps, folder, path, jobs=1, report=report)


def _best_rate(plan: Plan, content: Mapping[str, Any]) -> float:
    """The learning rate with the lowest error on held-out images, the first of several."""
    contestant = plan.contestant
    if not contestant.rates:
        return contestant.recipe.lr
    errors = {
        row["lr"]: row["validation_error"]
        for row in rows_of(content)
        if "validation_error" in row and (row["data"], row["network"]) == (contestant.recipe.data, contestant.label)
    }
    return min(contestant.rates, key=errors.__getitem__)


def measure(plan: Plan, report: Report) -> list[dict[str, Any]]:
    """Train from the start, or after the last whole epoch of an interrupted run, and measure the error in percent."""
    contestant, recipe = plan.contestant, plan.recipe
    data = load_data(recipe, plan.cache)
    model = contestant.network(recipe, data)
    optimizer = _optimizer(recipe, model)
    batches = training_batches(recipe, data)
    steps = recipe.epochs * len(batches)
    checkpoint = plan.folder / f"{plan.name}.pt"
    settings = json.dumps(plan.part.identity)
    for epoch in range(_resume(checkpoint, settings, model, optimizer), recipe.epochs):
        torch.manual_seed(mixed_seed("routing", recipe.seed, epoch))  # for the crops
        model.train()
        for number, (x, y) in enumerate(batches.epoch(epoch)):
            step = epoch * len(batches) + number
            report(plan.name, step, steps)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, step, steps) * group["multiple"]
            _step(contestant, model, optimizer, x, y)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        replace_file(checkpoint, partial(torch.save, {**state, "settings": settings, "epochs": epoch + 1}))
    error = round(_error(model, evaluation_batches(recipe, data).epoch(0)), 4)
    checkpoint.unlink(missing_ok=True)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    about = {"data": contestant.recipe.data, "network": contestant.label, "seed": plan.seed, "lr": plan.lr}
    return [{**about, "parameters": parameters, "validation_error" if plan.trial else "error": error}]


def _optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    return build_optimizer(recipe, cast("CapProNet", model))  # which asks only for its parameters' names


def _resume(checkpoint: Path, settings: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restore an interrupted run of the same settings; the number of epochs that it had finished."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    if state["settings"] != settings:
        return 0
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epochs"])


def _step(contestant: Contestant, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    contestant.loss(model(x), y).backward()
    optimizer.step()


@torch.no_grad()
def _error(model: nn.Module, batches: Any) -> float:
    model.eval()
    wrong = torch.cat([model(x).argmax(-1) != y for x, y in batches])
    return 100 * wrong.double().mean().item()


def measure_steps(plans: Sequence[Plan], report: Report) -> list[dict[str, Any]]:
    """Milliseconds of a training step on a batch in memory, networks of one dataset in turns, on one thread."""
    turns = {}
    for plan in plans:
        recipe = plan.recipe
        data = load_data(recipe, plan.cache)
        model = plan.contestant.network(recipe, data).train()
        x, y = next(training_batches(recipe, data).epoch(0))
        step = partial(_step, plan.contestant, model, _optimizer(recipe, model), x, y)
        turns[plan.contestant.label] = timed("step", step)
    timing = take_turns(turns, ROUNDS, warm_up=2, slow=1.0, slow_rounds=5, report=report)
    about = {"data": plans[0].contestant.recipe.data, "batch": plans[0].recipe.batch_size, "machine": machine()}
    return [
        {**about, "network": label, "step_ms": spread([1e3 * seconds for seconds in timing.seconds(label)])}
        for label in turns
    ]


def table(content: Mapping[str, Any]) -> Table:
    """Errors with intervals over seeds, the paired difference to the linear head, parameters and the time of a step."""
    networks: dict[tuple[str, str], list[dict[str, Any]]] = {}
    steps: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows_of(content):
        key = (row["data"], row["network"])
        if "error" in row:
            networks.setdefault(key, []).append(row)
        elif "step_ms" in row:
            steps[key] = row["step_ms"]
    summaries = {key: _summary(*key, runs) for key, runs in networks.items()}
    lines: list[tuple[str, ...]] = []
    for (data, label), summary in summaries.items():
        linear = summaries.get((data, HEADS[0][0]))
        step = steps.get((data, label))
        time = f"{step['median']:.0f} ({step['low']:.0f} to {step['high']:.0f})" if step else ""
        gap = difference_cells(summary, linear if linear is not summary else None)
        parameters = f"{summary.parameters:,}"
        lines.append((data, label, error_cell(summary), str(len(summary.errors)), *gap, parameters, time))
    headings = ("data", "network", "error %", "runs", "difference to linear", "p", "parameters", "step, ms")
    return Table(headings, lines, names=2, title="Dynamic routing: test error %, parameters, time of a training step")


def _summary(data: str, label: str, runs: Sequence[Mapping[str, Any]]) -> Row:
    runs = sorted(runs, key=lambda run: run["seed"])
    errors, seeds = tuple(run["error"] for run in runs), tuple(run["seed"] for run in runs)
    return Row(data, "", label, errors, runs[0]["parameters"], 0.0, seeds)
