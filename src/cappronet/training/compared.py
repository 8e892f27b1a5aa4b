"""`cappronet.compare`: the same recipe with several heads and seeds from Python, and what comes of it."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cappronet.data.files import new_folder
from cappronet.data.given import GivenImages, ImageData, store
from cappronet.extras import require
from cappronet.models.network import CapProNet
from cappronet.reporting import Report, Result, Table, progress_for
from cappronet.training import comparison
from cappronet.training.comparison import DEFAULT_HEADS, PlannedRun
from cappronet.training.figures import comparison_figure, draw_comparison, drawn
from cappronet.training.hardware import Hardware
from cappronet.training.recipe import Recipe
from cappronet.training.results import Row, comparison_table, write_rows
from cappronet.training.results import comparison as gathered
from cappronet.training.run_folder import IMAGES, Run
from cappronet.training.trained import TrainResult, asked_for, work_folder

__all__ = ["CompareResult", "Plan", "compare", "default_backbones", "plan"]

# What heads are compared on, if nothing says it: without a network, and with a small one.
DEFAULT_BACKBONES = ("pixels", "resnet8")


class CompareResult(Result):
    """Heads that were compared. `print` shows the table of `cappronet compare`.

    Attributes:
        recipe: what the runs share.
        runs: each run by the name of its folder, such as `"resnet8-capsule-seed0"`.
        folder: where the runs are; None if no folder was asked for.
    """

    def __init__(self, recipe: Recipe, runs: Mapping[str, TrainResult], folder: Path | None) -> None:
        self.recipe, self.runs, self.folder = recipe, dict(runs), folder

    @property
    def rows(self) -> list[Row]:
        """The errors of each backbone with each head, over the seeds."""
        return gathered(run.summary for run in self.runs.values())

    @property
    def table(self) -> Table:
        """Mean errors over the seeds with their 95 % intervals, and what each head costs."""
        rows = self.rows
        title = f"{rows[0].data}, {self.recipe.epochs} epochs"
        return comparison_table(rows, measured=self.recipe.measured, title=title).without("data")

    @property
    def notes(self) -> list[str]:
        """What the columns mean."""
        return [
            f"Error: the mean over n seeds on the {self.recipe.measured} images, with its 95 % interval by Student's t."
        ]

    @property
    def best(self) -> TrainResult:
        """The run with the lowest error, of the backbone and head with the lowest mean.

        It is chosen on the images that errors are measured on, so its error is too low an estimate for new images.
        """
        row = min(self.rows, key=lambda row: row.mean)
        own = [r for r in self.runs.values() if (r.summary["backbone"], r.summary["head"]) == (row.backbone, row.head)]
        return min(own, key=lambda run: run.error)

    @property
    def model(self) -> CapProNet:
        """The network of the best run."""
        return self.best.model

    def predict(self, images: Any) -> NDArray[Any]:
        """The labels of images by the best run, see `TrainResult.predict`."""
        return self.best.predict(images)

    @property
    def figure(self) -> Any:
        """The errors of each head, over the seeds, as a matplotlib figure."""
        return drawn(*draw_comparison(self.rows, self.recipe.measured))

    def to_frame(self) -> Any:
        """The summaries of all runs as a pandas `DataFrame`, with a row for each run."""
        return require("pandas", "tables").DataFrame([run.summary for run in self.runs.values()])

    def write_figure(self, path: Path) -> None:
        """Write the figure, and next to it one for dark pages."""
        comparison_figure(self.rows, path, self.recipe.measured)

    def save(self, folder: str | Path) -> CapProNet:
        """Write the folder that `cappronet compare` writes, which must not exist yet; return the best model."""
        folder = Path(folder).expanduser()
        with new_folder(folder) as temporary:
            data = self.best.store_images(temporary, folder)
            for name, run in self.runs.items():
                run.write(temporary / name, data)
            write_rows(self.rows, self.recipe.changed(data=data), temporary / "comparison.json")
            with suppress(ModuleNotFoundError):
                self.write_figure(temporary / "comparison.png")
        return self.model


@dataclass(frozen=True)
class Plan:
    """A comparison that can begin: its runs, and where they are trained.

    Attributes:
        recipe: what the runs share.
        runs: all of them, also those that are finished.
        folder: where they are written.
        jobs: how many are trained at the same time.
        devices: the numbers of the GPUs.
        hardware: of one run.
    """

    recipe: Recipe
    runs: Sequence[PlannedRun]
    folder: Path
    jobs: int
    devices: Sequence[int]
    hardware: Hardware

    @property
    def text(self) -> str:
        """How many runs there are, how many are finished, and where the others are trained."""
        return comparison.plan_text(self.runs, self.jobs, self.hardware.accelerator, self.devices)

    def train(self, report: Report, given: GivenImages | None = None) -> CompareResult:
        """Train what is not finished, and write `comparison.json`."""
        comparison.train_all(self.runs, self.jobs, self.hardware, report, devices=self.devices)
        runs = {
            run.folder.name: TrainResult(run.recipe, Run.open(run.folder).summary, run.folder, given)
            for run in self.runs
        }
        result = CompareResult(self.recipe, runs, self.folder)
        write_rows(result.rows, self.recipe, self.folder / "comparison.json")
        return result


def plan(
    recipe: Recipe,
    folder: Path,
    *,
    backbones: Sequence[str],
    heads: Sequence[str] | None = None,
    seeds: int = 3,
    jobs: int | None = None,
    accelerator: str = "auto",
    devices: int | None = None,
    workers: int = 0,
    cache: str | Path | None = None,
) -> Plan:
    """Plan a comparison, see `compare`; what can't be done is refused before anything is trained."""
    require("scipy.stats", "train")  # for the intervals at the end; a missing package is reported now
    runs = comparison.planned_runs(recipe, backbones, heads or DEFAULT_HEADS, seeds, folder)
    kind, numbers = comparison.find_devices(accelerator, devices)
    hardware = Hardware(accelerator=kind, workers=workers, cache=str(cache) if cache else None)
    return Plan(recipe, runs, folder, jobs or len(numbers) or os.cpu_count() or 1, numbers, hardware)


def compare(
    data: ImageData | None = None,
    *,
    test: ImageData | None = None,
    backbones: str | Sequence[str] | None = None,
    heads: Sequence[str] = DEFAULT_HEADS,
    seeds: int = 3,
    recipe: str | Path | Recipe | None = None,
    folder: str | Path | None = None,
    jobs: int | None = None,
    accelerator: str = "auto",
    devices: int | None = None,
    workers: int = 0,
    cache: str | Path | None = None,
    quiet: bool = False,
    report: Report | None = None,
    **options: Any,
) -> CompareResult:
    """Train the same recipe with several heads and seeds: what `cappronet compare` does.

    Runs are trained in processes of their own. A script that calls it needs no `if __name__ == "__main__"`.

    Args:
        data: as `train` takes it: a name, a path, images and labels as `(x, y)`, or a torch `Dataset`.
        test: for arrays and a `Dataset`: images to measure errors on.
        backbones: backbones to compare on; by default pixels and resnet8, or the recipe's.
        heads: `linear`, `cosine`, `weightnorm`, `subcenter`, `group`, `capsule` (as in the paper) or `capsule-unit`
            (unit features). Heads on unit features have a scale of 25: `cosine`, `subcenter` and `capsule-unit`.
        seeds: runs of each head, with seeds 0, 1, ...
        recipe: a recipe file, or a shipped recipe by its name, whose values the arguments override.
        folder: where the runs are written; without one, nothing is kept but the result. Finished runs in it are kept,
            and interrupted ones resumed.
        jobs: runs at the same time, with one thread each; by default one for each core, or for each GPU.
        accelerator: `"auto"`, `"cpu"`, `"cuda"` or `"mps"`.
        devices: GPUs to use; each run takes one of them. By default all.
        workers: processes of each run that read image files.
        cache: folder of downloaded datasets.
        quiet: whether to show no progress, which terminals and notebooks show otherwise.
        report: called with the progress instead: a text, how much is done and how much there is.
        options: every other key of a recipe: `epochs`, `lr`, `capsule_dim`, `validation`, ...

    Raises:
        InterruptedError: after Ctrl-C or SIGTERM; with a folder, the runs were saved and can be resumed.

    Example:
        >>> options = {"backbones": "pixels", "heads": ["linear", "capsule"], "seeds": 2, "epochs": 2}
        >>> result = compare("digits", train_size=300, accelerator="cpu", jobs=1, **options)
        >>> for row in result.rows:
        ...     print(row.head, len(row.errors))
        linear 2
        capsule c=4 2
        >>> result.runs["pixels-capsule-seed1"].recipe.seed
        1
    """
    base, given = asked_for(data, test, recipe, options)
    chosen = [backbones] if isinstance(backbones, str) else backbones
    chosen = chosen or default_backbones(base, named=recipe is not None or "backbone" in options)
    with work_folder(folder) as path, progress_for(report, quiet=quiet) as shown:
        if given is not None:
            base = base.changed(data=str(path.resolve() / IMAGES))
        settings: dict[str, Any] = {"accelerator": accelerator, "devices": devices, "workers": workers, "cache": cache}
        planned = plan(base, path, backbones=chosen, heads=heads, seeds=seeds, jobs=jobs, **settings)
        if given is not None:
            store(given.dataset, path / IMAGES)
        shown(planned.text, 0, 1)
        result = planned.train(shown, given)
        if folder is None:
            for run in result.runs.values():
                run.detach()
            return CompareResult(base.changed(data=IMAGES) if given else base, result.runs, None)
        with suppress(ModuleNotFoundError):
            result.write_figure(path / "comparison.png")
        return result


def default_backbones(recipe: Recipe, *, named: bool) -> Sequence[str]:
    """What heads are compared on: the recipe's backbone, if the caller named it or a recipe."""
    return [recipe.backbone] if named else DEFAULT_BACKBONES
