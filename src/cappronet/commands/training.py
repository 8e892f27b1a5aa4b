"""`train` and `compare`: from a recipe to runs."""

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape

from cappronet.commands.shared import FIRST, Options, chosen_recipe, console, folder_name, slug
from cappronet.display import comparison_table, progress_bar
from cappronet.extras import require

__all__ = ["compare", "train"]


def train(
    *,
    recipe: str | None = None,
    run: Path | None = None,
    resume: Path | None = None,
    options: Options = None,
    accelerator: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    strategy: Literal["auto", "ddp", "fsdp"] = "auto",
    workers: int = 0,
    cache: Path | None = None,
) -> None:
    """Train a model and write everything about it into one folder.

    With no argument: a small ResNet with a capsule head on scikit-learn's digits, in under a minute.

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped one; options override it.
    run
        The folder to write, which must not exist yet. By default runs/DATA-BACKBONE-HEAD-seedN.
    resume
        Continue the run in this folder, exactly where it was interrupted.
    accelerator
        Where to train: auto, cpu, cuda, mps.
    devices
        Processes on each machine, one for each device.
    num_nodes
        Machines.
    strategy
        How processes work together: ddp, or fsdp for models that do not fit on one device.
    workers
        Processes that read image files.
    cache
        Folder of downloaded datasets. By default the environment's CAPPRONET_DATA, else ~/.cache/cappronet.
    """
    from cappronet.runs import Run
    from cappronet.training import Hardware, Interrupted
    from cappronet.training import train as train_run

    if resume is not None:
        if recipe or run or any(value is not None for value in (vars(options) if options else {}).values()):
            raise ValueError("--resume continues a run as it was started; give it no recipe and no other option of one")
        place = Run.open(resume)
        if place.finished:
            raise ValueError(f"{resume} is finished; its result is in {resume / 'summary.json'}")
        chosen = place.recipe
    else:
        chosen = chosen_recipe(recipe, options)
        folder = run or Path("runs") / folder_name(chosen)
        place = Run.new(folder) if FIRST else Run(folder)
    hardware = Hardware(accelerator, devices, num_nodes, strategy, workers, str(cache) if cache else None)
    with progress_bar(console) as show:
        try:
            summary = train_run(chosen, place, hardware, on_progress=show)
        except Interrupted:
            raise InterruptedError(
                f"stopped and saved; continue with: cappronet train --resume {place.folder}"
            ) from None
    console.print(
        f"{chosen.backbone} with {chosen.head_label} on {summary['data']}, {summary['parameters']:,} parameters"
    )
    measured = "validation" if chosen.validation else "test"
    speed = f"{summary['seconds']:.0f} s, {summary['images_per_second']:,.0f} images/s"
    console.print(f"{measured} error [bold]{summary['error']:.2f} %[/bold] after {speed}")
    console.print(f"Written to {place.folder}")


def compare(
    *,
    recipe: str | None = None,
    folder: Path | None = None,
    backbones: Annotated[list[str] | None, Parameter(negative="")] = None,
    heads: Annotated[list[str] | None, Parameter(negative="")] = None,
    seeds: int = 3,
    jobs: int | None = None,
    options: Options = None,
    cache: Path | None = None,
) -> None:
    """Train the same recipe with several heads and seeds, and print their errors side by side.

    With no argument: digits, on bare pixels and with a small ResNet, in under three minutes. Called again with the same
    folder, it keeps what is finished and goes on with the rest.

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped one; options override it.
    folder
        Where the runs are written. By default runs/compare-DATA.
    backbones
        Backbones to compare on; can be given several times. By default pixels and resnet8, or the recipe's.
    heads
        Heads to compare; can be given several times: linear, cosine, weightnorm, subcenter, group, capsule (as in the
        paper), capsule-unit (unit features and a learned scale). By default linear, group, capsule and capsule-unit.
    seeds
        Runs of each, with seeds 0, 1, ...
    jobs
        Runs at the same time, with one thread each. By default one for each core.
    cache
        Folder of downloaded datasets.
    """
    from cappronet import comparison
    from cappronet.figures import comparison_figure
    from cappronet.results import comparison as gathered
    from cappronet.results import write_rows
    from cappronet.runs import Run
    from cappronet.training import Hardware

    require("scipy.stats", "train")  # for the intervals at the end: better refused now
    base = chosen_recipe(recipe, options)
    given = recipe is not None or (options is not None and options.backbone is not None)
    chosen = backbones or ([base.backbone] if given else ["pixels", "resnet8"])
    place = folder or Path("runs") / f"compare-{slug(base.data)}"
    plan = comparison.plan(base, chosen, heads or list(comparison.DEFAULT), seeds, place)
    with progress_bar(console) as show:
        hardware = Hardware(accelerator="cpu", cache=str(cache) if cache else None)
        comparison.execute(plan, jobs or os.cpu_count() or 1, hardware, show)
    rows = gathered(Run.open(run.folder).summary for run in plan)
    console.print(comparison_table(rows, base))
    write_rows(rows, base, place / "comparison.json")
    console.print(f"Written to {place}")
    try:
        comparison_figure(rows, place / "comparison.png", "validation" if base.validation else "test")
        console.print(f"The picture is {place / 'comparison.png'}")
    except ModuleNotFoundError as missing:
        console.print(f"No picture: {escape(str(missing))}")
