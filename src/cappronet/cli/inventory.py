"""`list`: the names that the other commands accept, and the runs of a folder.

Nothing here imports torch, so that the answer comes at once. The names are therefore written down again, each with a
line about it; tests compare them with the heads, backbones and datasets that there are.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from cappronet.cli.display import print_table, print_text
from cappronet.cli.shared import console, recipe_names
from cappronet.data.files import one_line
from cappronet.reporting import Table
from cappronet.training.run_folder import Run

__all__ = ["BACKBONE_LINES", "DATASET_LINES", "HEAD_LINES", "list_", "run_table"]

KINDS = ("heads", "backbones", "datasets", "recipes")
HEAD_LINES: Mapping[str, str] = {
    "capsule": "a subspace of dimension c for each class, scored by the length of the projection (the paper's)",
    "group": "c neurons for each class, scored by the length of their outputs: capsules without the projection",
    "linear": "one vector and a bias for each class: nn.Linear",
    "cosine": "one vector for each class, scored by the cosine times a scale",
    "weightnorm": "one vector for each class, scored by the signed length of the projection onto it",
    "subcenter": "c vectors for each class, scored by the largest cosine times a scale",
    "mlp": "a hidden layer of 512 neurons with dropout, then one vector and a bias for each class",
}
BACKBONE_LINES: Mapping[str, str] = {
    **{f"resnet{depth}": f"CIFAR ResNet of {depth} layers" for depth in (8, 14, 20, 32, 44, 56, 110)},
    "resnet8_d512": "resnet8 with a 1x1 convolution to 512 features",
    "preact_resnet164": "pre-activation ResNet of 164 layers",
    "wrn_16_4": "WideResNet 16-4 with dropout",
    "wrn_16_8": "WideResNet 16-8",
    "wrn_28_10": "WideResNet 28-10",
    "densenet_bc_100_12": "DenseNet-BC of 100 layers, growth rate 12",
    "speedrun": "a small convolutional network for short trainings on CIFAR",
    "features": "none: the data are feature vectors",
    "pixels": "none: the pixels of an image are its features",
}
DATASET_LINES: Mapping[str, str] = {
    "digits": "10 classes, 8x8 grey; ships with the package",
    "cifar10": "10 classes, 32x32 colour; the paper validates on 5,000 of its training images",
    "cifar100": "100 classes, 32x32 colour; the paper validates on 5,000 of its training images",
    "svhn": "10 classes, 32x32 colour; the paper validates on 6,000 of its training images",
    "svhn_extra": "svhn with its extra training images; the paper validates on 6,000 of them",
    "mnist": "10 classes, 28x28 grey",
    "fashion_mnist": "10 classes, 28x28 grey",
    "imagenet": "1,000 classes, files; the paper validates on 20,000 of its training images",
}
OTHERS = {
    "backbones": ("any other name", "a timm model"),
    "datasets": ("a path", "a folder of images by class, or an .npz file with x_train, y_train, x_test, y_test"),
}


def list_(
    what: Literal["heads", "backbones", "datasets", "recipes", "runs"] | None = None,
    folder: Path = Path("runs"),
    /,
    *,
    everything: Annotated[bool, Parameter(name="--all", negative="")] = False,
) -> None:
    """List the heads, backbones, datasets and recipes that the other commands accept, or runs with their results.

    Parameters
    ----------
    what
        List only these. By default all but runs.
    folder
        For runs: the folder to look in, and in the folders below it.
    everything
        List each of the paper's recipes; by default they are one line.
    """
    if what == "runs":
        _list_runs(folder)
        return
    for kind in (what,) if what else KINDS:
        console.print(f"[bold]{kind}[/bold]")
        lines = _lines(kind, everything)
        width = max(map(len, lines))
        for name, text in lines.items():
            print_text(f"  {name:<{width}}  {text}".rstrip(), console, highlight=False)


def _lines(kind: str, everything: bool) -> dict[str, str]:
    """The names of a kind, each with what is said of it."""
    if kind == "recipes":
        return _recipe_lines(everything)
    lines = {"heads": HEAD_LINES, "backbones": BACKBONE_LINES, "datasets": DATASET_LINES}[kind]
    return dict([*lines.items(), *([OTHERS[kind]] if kind in OTHERS else [])])


def _recipe_lines(everything: bool) -> dict[str, str]:
    names = recipe_names()
    paper = [name for name in names if name.startswith("paper/")]
    if everything or not paper:
        return dict.fromkeys(names, "")
    others = dict.fromkeys((name for name in names if name not in paper), "")
    return {**others, "paper/...": f"the paper's tables, {len(paper)} recipes: cappronet list recipes --all names them"}


def _list_runs(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: cappronet list runs FOLDER looks in another one")
    table = run_table(folder)
    if not table.rows:
        print_text(f"There are no runs in {folder}", console)
        return
    print_table(table, console)


def run_table(folder: Path) -> Table:
    """The runs in a folder and below it, by name, with their latest errors and how far they are."""
    rows = [_row(folder, run) for run in _runs(folder)]
    return Table(("run", "data", "backbone", "head", "state", "error %"), rows, names=5)


def _runs(folder: Path) -> Iterator[Run]:
    for parent, folders, _ in os.walk(folder):
        folders.sort()
        run = Run(parent)
        if run.begun:
            folders.clear()  # a run holds no other
            yield run


def _row(root: Path, run: Run) -> tuple[str, ...]:
    name = run.folder.relative_to(root).as_posix() if run.folder != root else root.name
    try:
        values, state = _result(run)
        error = values.get("error")
        shown = "" if error is None else f"{error:.2f}"
        return (name, *(str(values[key]) for key in ("data", "backbone", "head")), state, shown)
    except (OSError, ValueError, KeyError, TypeError) as error:  # one damaged run must not hide the others
        return (name, "", "", "", f"can't be read: {one_line(error)}", "")


def _result(run: Run) -> tuple[dict[str, Any], str]:
    """What the table says of a run, and whether it is finished."""
    if run.finished:
        return run.summary, "probe" if run.is_probe else "finished"
    recipe, lines = run.recipe, run.metrics()
    errors = [line["error"] for line in lines if "error" in line]
    epoch = lines[-1]["epoch"] if lines else 0
    values = {"data": Path(recipe.data).stem, "backbone": recipe.backbone, "head": recipe.head_label}
    state = "in progress" if run.in_progress else "not finished"
    return {**values, "error": errors[-1] if errors else None}, f"{state}, epoch {epoch}/{recipe.epochs}"
