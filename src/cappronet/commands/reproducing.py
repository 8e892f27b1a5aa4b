"""`reproduce`: the paper's tables and figures, from recipes anyone can run."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from cappronet.commands.shared import console
from cappronet.display import progress_bar
from cappronet.extras import require

if TYPE_CHECKING:
    from cappronet.grid import Grid
    from cappronet.reproduction.tables import Entry
    from cappronet.training import Hardware

__all__ = ["reproduce"]

What = Literal[
    "table1",
    "table2",
    "table3",
    "settings",
    "overhead",
    "figure1",
    "figure2",
    "fixed-features",
    "new-classes",
    "unknown",
]


def reproduce(
    what: What,
    /,
    *,
    scale: Literal["paper", "cpu"] = "cpu",
    seeds: int | None = None,
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    cifar10: Path | None = None,
    folder: Path = Path("runs/reproduce"),
    output: Path = Path("results"),
    jobs: int | None = None,
    accelerator: str = "auto",
    cache: Path | None = None,
) -> None:
    """Run what a table or figure of the paper needs, with a linear head beside it, and print it.

    What is finished is kept, what was cut off goes on, what is missing is run. The reported error is the last epoch's;
    the best test epoch stands beside it. Settings with tries are chosen on held-out training images.

    Parameters
    ----------
    what
        table1: error rates with each backbone. table2: ImageNet. table3: grouped neurons against capsules. settings:
        one change of the head at a time. overhead: parameters and time that each head adds. figure1: a gradient step
        of the layer. figure2: the plane of each class's capsules. fixed-features: heads where only the head learns.
        new-classes: classes added without training. unknown: images of no known class.
    scale
        paper: the paper's networks and schedules, for GPUs. cpu: the same comparison where two cores suffice.
    seeds
        Runs of each row; by default as many as the table asks for.
    only
        Only rows whose recipe or head contains this; can be given several times.
    cifar10
        CIFAR-10 as an .npz file with x_train, y_train, x_test, y_test; by default it is downloaded.
    folder
        Where the runs go.
    output
        Where the result file and pictures go.
    jobs
        Runs at the same time, with one thread each. By default one for each core, or one on a GPU.
    accelerator
        Where to train: auto, cpu, cuda, mps. auto is the CPU at the scale cpu.
    cache
        Folder of downloaded datasets.
    """
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    if cifar10 is not None and not cifar10.is_file():
        raise FileNotFoundError(
            f"there is no file {cifar10}; --cifar10 takes an .npz with x_train, y_train, x_test, y_test"
        )
    if what == "overhead":
        _overhead(only or (), folder, output)
        return
    if what in ("fixed-features", "new-classes", "unknown"):
        _study(what, str(cifar10.resolve()) if cifar10 else "cifar10", folder, output, str(cache) if cache else None)
        return
    if what == "figure1":
        from cappronet.reproduction.figures import gradient_step

        gradient_step(output / "figure1.png")
        console.print(f"Written to {output / 'figure1.png'}, and a dark one beside it")
        return
    from cappronet.reproduction import tables
    from cappronet.training import Hardware

    require("scipy.stats", "train")  # for the intervals at the end: better refused now
    chosen = "cpu" if accelerator == "auto" and scale == "cpu" else accelerator
    hardware = Hardware(accelerator=chosen, cache=str(cache) if cache else None)
    at_once = jobs or ((os.cpu_count() or 1) if chosen == "cpu" else 1)
    source = str(cifar10.resolve()) if cifar10 else None
    table = "table3" if what == "figure2" else what
    entries = tables.entries(table, scale, seeds=seeds, only=only or (), cifar10=source)
    if what == "figure2":
        _planes([entry for entry in entries if entry.label == "capsule c=2"], folder, output, hardware)
    else:
        _table(table, scale, entries, folder, output, at_once, hardware)


def _table(
    table: str, scale: str, entries: "Sequence[Entry]", folder: Path, output: Path, jobs: int, hardware: "Hardware"
) -> None:
    """Group by group, so that what is there is shown and written before the next begins, and when it is stopped."""
    from cappronet.reproduction import tables

    final: list[Entry] = []
    for group, members in groupby(entries, key=lambda entry: entry.group):
        asked = list(members)
        try:
            final += _runs(group, asked, folder, jobs, hardware)
        except InterruptedError:
            _report(table, scale, group, tables.rows(final + tables.settled(asked, folder), folder), output)
            raise
        _report(table, scale, group, tables.rows(final, folder), output)


def _report(table: str, scale: str, group: str, found: list[dict[str, Any]], output: Path) -> None:
    """Write all rows, with their pictures, and show those of the group."""
    from cappronet.reproduction import tables
    from cappronet.reproduction.figures import error_over_dimension, error_over_epochs, error_over_tries

    part = [row for row in found if row["group"] == group]
    if not part:
        return
    path = tables.write(table, scale, found, output)
    title = f"{table}, {group}: {part[0]['backbone']} on {part[0]['data']}"
    tried = tables.tried(part)
    if tried is not None:
        _show(tried, f"{table}, {group}: error % on held-out training images, of each try")
    _show(tables.grid(part).without("data", "backbone"), title)
    console.print(f"Written to {path}")
    try:
        for name, draw in (("epochs", error_over_epochs), ("c", error_over_dimension), ("tries", error_over_tries)):
            draw(found, path.with_name(f"{path.stem}-{name}.png"))
        console.print("Pictures of error over epochs, and over c and over tries where there are several, are beside it")
    except ModuleNotFoundError as missing:
        console.print(f"No pictures: {missing}", markup=False)


def _runs(group: str, entries: "list[Entry]", folder: Path, jobs: int, hardware: "Hardware") -> "list[Entry]":
    """Tries first, then the runs with what they chose."""
    from cappronet.comparison import check, execute
    from cappronet.reproduction import tables

    with progress_bar(console) as show:
        tries = tables.plan_tries(entries, folder)
        check(tries)
        execute(tries, jobs, hardware, show, f"{group}: try")
        entries = [tables.chosen(entry, folder) for entry in entries]
        runs = tables.plan(entries, folder)
        check(runs)
        execute(runs, jobs, hardware, show, f"{group}: run")
    return entries


def _show(grid: "Grid", title: str = "") -> None:
    """A table, in parts where the terminal is narrow."""
    for table in (dataclasses.replace(grid, title=title) if title else grid).tables(console.width):
        console.print(table)


def _planes(entries: "list[Entry]", folder: Path, output: Path, hardware: "Hardware") -> None:
    """Figure 2 for each group that has capsules of two dimensions, with its first seed."""
    from cappronet.reproduction.planes import draw

    if not entries:
        raise ValueError("figure2 needs a row with capsule c=2; leave --only out, or let it keep one")
    for entry in entries:
        first = dataclasses.replace(entry, seeds=1)
        (chosen,) = _runs(entry.group, [first], folder, 1, hardware)
        with progress_bar(console) as show:
            paths = draw(chosen.first_run(folder), output / f"figure2-{entry.group}.png", hardware.cache, show)
        console.print(f"Written to {' and '.join(map(str, paths))}, and dark ones beside them")


def _study(name: str, data: str, folder: Path, output: Path, cache: str | None) -> None:
    from importlib import import_module

    from cappronet.benchmark import write

    module = name.replace("-", "_")
    study: Any = import_module(f"cappronet.studies.{module}")
    path = _free(output, module)
    with progress_bar(console) as show:
        found = study.run(data, folder, show, cache=cache)
    _show(study.grid(found))
    write(found, path)
    console.print(f"Written to {path}")


def _free(output: Path, name: str) -> Path:
    """A file that is not there yet, in a folder that is."""
    output.mkdir(parents=True, exist_ok=True)
    path, number = output / f"{name}.json", 1
    while path.exists():
        number += 1
        path = output / f"{name}-{number}.json"
    return path


def _overhead(only: Sequence[str], folder: Path, output: Path) -> None:
    """Measured backbones are kept with the runs, so that a call that was cut off goes on."""
    from cappronet import overhead
    from cappronet.benchmark import write
    from cappronet.runs import write_atomically

    backbones = [name for name in overhead.BACKBONES if not only or any(word in name for word in only)]
    if not backbones:
        raise ValueError(f"no backbone has {' or '.join(only)}; there are {', '.join(overhead.BACKBONES)}")
    kept = folder / "overhead.json"
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else None

    def keep(found: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, (json.dumps(found, indent=1) + "\n").encode())

    with progress_bar(console) as show:
        found = overhead.run(backbones, known=known, on_round=show.count, on_backbone=keep)
    _show(overhead.grid(found))
    path = _free(output, "overhead")
    write(found, path)
    console.print(f"Written to {path}")
