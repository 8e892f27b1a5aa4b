"""`train` and `compare`: from a recipe to runs."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from cappronet.cli.display import print_table, print_text, progress_bar
from cappronet.cli.shared import DATA, HARDWARE, IS_MAIN_PROCESS, Options, chosen_recipe, console, folder_name, slug
from cappronet.reporting import Report

__all__ = ["compare", "train"]


def train(
    *,
    recipe: str | None = None,
    run: Path | None = None,
    resume: Path | None = None,
    options: Options = None,
    accelerator: Annotated[str, HARDWARE] = "auto",
    devices: Annotated[int, HARDWARE] = 1,
    num_nodes: Annotated[int, HARDWARE] = 1,
    strategy: Annotated[Literal["auto", "ddp", "fsdp"], HARDWARE] = "auto",
    workers: Annotated[int, HARDWARE] = 0,
    cache: Annotated[Path | None, DATA] = None,
    shard_head: Annotated[bool, HARDWARE, Parameter(negative="")] = False,
) -> None:
    """Train a model and write the run into one folder.

    Without arguments: a small ResNet with a capsule head on scikit-learn's digits, in under a minute.

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped recipe; options override it.
    run
        The folder to write, which must not exist yet. By default runs/DATA-BACKBONE-HEAD-seedN, followed by what else
        differs from the default recipe.
    resume
        Resume the interrupted run in this folder; the result is the same as without the interruption.
    accelerator
        Where to train: auto, cpu, cuda, mps.
    devices
        Devices on each machine, with one process each.
    num_nodes
        Machines.
    strategy
        How processes share the work: ddp, or fsdp for models that do not fit on one device.
    workers
        Processes that read image files.
    cache
        Folder of downloaded datasets. By default the environment variable CAPPRONET_DATA, else ~/.cache/cappronet.
    shard_head
        Spread the classes of a capsule head over all processes, for very many classes; the backbone as with fsdp.
    """
    from cappronet.training.run_folder import Run
    from cappronet.training.trained import train as train_network

    if resume is not None:
        if recipe or run or any(value is not None for value in (vars(options) if options else {}).values()):
            raise ValueError("--resume continues a run with its own recipe; remove --recipe, --run and recipe options")
        interrupted = Run.open(resume)
        interrupted.refuse_in_progress()
        interrupted.refuse_finished()
        path, chosen = resume, interrupted.recipe
    else:
        chosen = chosen_recipe(recipe, options)
        path = run or Path("runs") / folder_name(chosen)
        if IS_MAIN_PROCESS:
            Run.new(path)
    processes: dict[str, Any] = {"accelerator": accelerator, "devices": devices, "num_nodes": num_nodes}
    processes |= {"strategy": strategy, "shard_head": shard_head, "workers": workers, "cache": cache}
    with progress_bar(console) as report:
        try:
            result = train_network(recipe=chosen, folder=path, resume=resume is not None, report=report, **processes)
        except InterruptedError:
            raise InterruptedError(f"stopped and saved; resume with: cappronet train --resume {path}") from None
    for line in [result.table.title, *(result.notes if IS_MAIN_PROCESS else [])]:
        print_text(line, console)
    speed = f"{result.summary['seconds']:.0f} s, {result.summary['images_per_second']:,.0f} images/s"
    console.print(f"{result.recipe.measured} error [bold]{result.error:.2f} %[/bold] after {speed}")
    print_text(f"Written to {path}", console)


def _with_first_pace(report: Report) -> Report:
    """Also prints, once, how long the first runs took and how long the rest will take."""
    printed = False

    def with_pace(text: str, done: int, total: int) -> None:
        nonlocal printed
        if not printed and done < total and text.endswith(" left"):
            printed = True
            print_text(text, console)
        report(text, done, total)

    return with_pace


def compare(
    *,
    recipe: str | None = None,
    folder: Path | None = None,
    backbones: Annotated[list[str] | None, Parameter(negative="")] = None,
    heads: Annotated[list[str] | None, Parameter(negative="")] = None,
    seeds: int = 3,
    jobs: Annotated[int | None, HARDWARE] = None,
    options: Options = None,
    accelerator: Annotated[str, HARDWARE] = "auto",
    devices: Annotated[int | None, HARDWARE] = None,
    workers: Annotated[int, HARDWARE] = 0,
    cache: Annotated[Path | None, DATA] = None,
) -> None:
    """Train the same recipe with several heads and seeds, and print their errors in one table.

    Without arguments: digits, on raw pixels and with a small ResNet, in about a minute. Called again with the same
    folder, it keeps finished runs and resumes the others.

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped recipe; options override it.
    folder
        Where the runs are written. By default runs/compare-DATA.
    backbones
        Backbones to compare on; repeat the option for several. By default pixels and resnet8, or the recipe's.
    heads
        Heads to compare; repeat the option for several: linear, cosine, weightnorm, subcenter, group, capsule (as in
        the paper), capsule-unit (unit features). Scores of unit features, as cosine, subcenter and capsule-unit have
        them, are multiplied by 25. By default linear, group, capsule, capsule-unit.
    seeds
        Runs of each head, with seeds 0, 1, ...
    jobs
        Runs at the same time, with one thread each. By default one for each core, or for each GPU.
    accelerator
        Where to train: auto, cpu, cuda, mps.
    devices
        GPUs to use; each run takes one of them. By default all.
    workers
        Processes of each run that read image files.
    cache
        Folder of downloaded datasets.
    """
    from cappronet.training.compared import default_backbones, plan

    base = chosen_recipe(recipe, options)
    named = recipe is not None or (options is not None and options.backbone is not None)
    path = folder or Path("runs") / f"compare-{slug(base.data)}"
    planned = plan(
        base,
        path,
        backbones=backbones or default_backbones(base, named=named),
        heads=heads,
        seeds=seeds,
        jobs=jobs,
        accelerator=accelerator,
        devices=devices,
        workers=workers,
        cache=cache,
    )
    print_text(planned.text, console)
    with progress_bar(console) as report:
        shown = _with_first_pace(report) if console.is_terminal else report  # a log has a line for each run
        result = planned.train(shown)
    print_table(result.table, console)
    print_text(f"Written to {path}", console)
    try:
        result.write_figure(path / "comparison.png")
        print_text(f"The figure is {path / 'comparison.png'}", console)
    except ModuleNotFoundError as missing:
        print_text(f"No figure: {missing}", console)
