"""The same recipe with several heads and seeds: finished runs are reused, interrupted ones resumed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cappronet.heads import HEADS
from cappronet.heads.controls import FIXED_SCALE
from cappronet.reporting import Report, did_you_mean, silent
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run
from cappronet.training.workers import RESUME_HINT, run_jobs

if TYPE_CHECKING:
    from cappronet.training.loop import Hardware

__all__ = [
    "DEFAULT_HEADS",
    "HEAD_VARIANTS",
    "PlannedRun",
    "check_folders",
    "find_devices",
    "plan_text",
    "planned_runs",
    "train_all",
]

# What each name on the command line changes in the recipe. All heads on unit features have the same fixed scale,
# whether a class is a vector, several or a subspace.
HEAD_VARIANTS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"head": name, "normalize": False, "scale": "none"} for name in HEADS},
    **{name: {"head": name, "normalize": False, "scale": FIXED_SCALE} for name in ("cosine", "subcenter")},
    "capsule-unit": {"head": "capsule", "normalize": True, "scale": FIXED_SCALE},
}
DEFAULT_HEADS = ("linear", "group", "capsule", "capsule-unit")


@dataclass(frozen=True)
class PlannedRun:
    """A recipe and the folder that its run goes into."""

    recipe: Recipe
    folder: Path


def planned_runs(
    base: Recipe, backbones: Sequence[str], heads: Sequence[str], seeds: int, folder: Path
) -> list[PlannedRun]:
    """Every backbone with every head and seed; a folder that holds another recipe's run is refused."""
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    unknown = [name for name in heads if name not in HEAD_VARIANTS]
    if unknown:
        hint = did_you_mean(unknown[0], HEAD_VARIANTS)
        raise ValueError(f"unknown head {unknown[0]!r}, expected one of {', '.join(HEAD_VARIANTS)}{hint}")
    runs = [
        PlannedRun(
            base.changed(backbone=backbone, seed=seed, **HEAD_VARIANTS[head]),
            folder / f"{backbone}-{head}-seed{seed}",
        )
        for backbone in backbones
        for head in heads
        for seed in range(seeds)
    ]
    check_folders(runs)
    return runs


def check_folders(runs: Sequence[PlannedRun]) -> None:
    """Refuse folders that hold something else, and runs that are in progress in another process."""
    for run in runs:
        folder = Run(run.folder)
        folder.refuse_in_progress()
        if folder.begun and folder.recipe != run.recipe:
            raise FileExistsError(f"{run.folder} holds a run of another recipe; choose another --folder")
        if not folder.begun:
            Run.new(run.folder, "--folder")


def train_all(
    runs: Sequence[PlannedRun],
    jobs: int,
    hardware: "Hardware",
    report: Report = silent,
    text: str = "run",
    devices: Sequence[int] = (),
) -> None:
    """Train what is not finished, `jobs` runs at a time with one thread each.

    With `devices`, the numbers of GPUs, each process takes one of them for its runs: in turn, where there are more
    processes than devices.
    """

    def assigned(job: "tuple[PlannedRun, Hardware]", number: int) -> "tuple[PlannedRun, Hardware]":
        run, hardware = job
        return (run, replace(hardware, device=devices[number % len(devices)])) if devices else job

    unfinished = [(run, hardware) for run in runs if not Run(run.folder).finished]
    run_jobs(unfinished, _train, jobs, report, text, assigned)


def find_devices(accelerator: str, count: int | None = None) -> tuple[str, list[int]]:
    """The accelerator that runs are trained on, and the numbers of its devices; none for a CPU.

    Args:
        accelerator: `"auto"`, which prefers a GPU, `"cpu"`, `"cuda"` (or `"gpu"`) or `"mps"`.
        count: how many devices to use; by default all.
    """
    import torch

    available = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    name = "cuda" if accelerator == "gpu" else accelerator
    if name == "auto":
        name = next((kind for kind, number in available.items() if number), "cpu")
    if name not in ("cpu", *available):
        raise ValueError(f"--accelerator must be auto, cpu, cuda or mps, got {accelerator!r}")
    if count is not None and count < 1:
        raise ValueError(f"--devices must be at least 1, got {count}")
    if name == "cpu":
        if count is not None and count > 1:
            raise ValueError(f"--devices is the number of GPUs, got {count} with a CPU: use --jobs {count} instead")
        return name, []
    if not available[name]:
        raise ValueError(f"--accelerator {accelerator}: torch finds no such device here; use --accelerator cpu")
    if count is not None and count > available[name]:
        raise ValueError(f"--devices {count}: there are {available[name]} of {name} here")
    return name, list(range(count or available[name]))


def plan_text(runs: Sequence[PlannedRun], jobs: int, accelerator: str, devices: Sequence[int] = ()) -> str:
    """How many runs there are, how many are finished, and where the others are trained."""
    finished = sum(Run(run.folder).finished for run in runs)
    done = f", {finished} of them finished" if finished else ""
    where = f"on {len(devices)} {accelerator} device{'s' * (len(devices) > 1)}" if devices else "on the CPU"
    return f"{len(runs)} run{'s' * (len(runs) > 1)}{done}; {min(jobs, len(runs))} at a time {where}"


def _train(job: "tuple[PlannedRun, Hardware]", report: Report) -> None:
    """One run in a worker process."""
    from cappronet.training.loop import Interrupted, train

    planned, hardware = job
    run = Run(planned.folder)
    if run.finished:  # by another call, since this one began
        return
    try:
        train(planned.recipe, run, hardware, report=report)
    except Interrupted:
        raise InterruptedError(RESUME_HINT) from None
