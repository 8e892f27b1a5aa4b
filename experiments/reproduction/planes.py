"""Figure 2 from a run: the capsule coordinates of its test images, class by class, and their lengths."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cappronet.extras import require
from cappronet.heads import CapsuleProjection
from cappronet.models.network import CapProNet
from cappronet.reporting import Report, tracked
from cappronet.training.builders import evaluation_batches, load_data
from cappronet.training.figures import GREEN, GREY, VERMILION, draw_themes
from cappronet.training.run_folder import Run
from experiments.reproduction.figures import figure_size, panels

__all__ = ["draw_run"]

OWN, OTHERS = ("test images of the class", VERMILION), ("test images of other classes", GREEN)


@torch.no_grad()
def draw_run(run: Run, path: Path, cache: str | None, report: Report) -> tuple[Path, Path]:
    """Draw the planes of a run with c = 2 to `path`, and the histograms of capsule lengths next to it."""
    model = CapProNet.from_pretrained(run.folder)
    if not isinstance(model.head, CapsuleProjection) or model.head.capsule_dim != 2:
        raise ValueError(f"{run.folder} has no capsules of dimension 2; figure2 needs a run with capsule_dim = 2")
    data = load_data(run.recipe, cache)
    batches = evaluation_batches(run.recipe, data)
    parts = [
        (model.head.coordinates(model.features(x)), y)
        for x, y in tracked(batches.epoch(0), "projecting test images", len(batches), report)
    ]
    coordinates, labels = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    histograms = path.with_name(f"{path.stem}-lengths{path.suffix}")
    draw_planes(coordinates, labels, data.classes, path)
    draw_lengths((coordinates**2).sum(-1) ** 0.5, labels, data.classes, histograms)
    return path, histograms


def draw_planes(coordinates: NDArray[Any], labels: NDArray[Any], classes: Sequence[str], path: Path) -> None:
    """Figure 2: the plane of each class with the capsule coordinates `(n, L, 2)` of all test images."""

    def draw(figure: Any, _ink: str) -> None:
        for number, axes in enumerate(panels(figure, len(classes), 5)):
            own = labels == number
            for chosen, (_, colour), size in ((~own, OTHERS, 3), (own, OWN, 4)):
                points = coordinates[chosen, number].T
                axes.scatter(*points, s=size, color=colour, alpha=0.5, linewidths=0, rasterized=True)
            reach = 1.05 * np.abs(coordinates[:, number]).max()
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
            axes.axhline(0, color=GREY, linewidth=0.5)
            axes.axvline(0, color=GREY, linewidth=0.5)
            axes.set_title(classes[number], fontsize=10)
        _legend(figure)

    width, height = figure_size(len(classes), 5, 1.8, 1.95)
    draw_themes(path, (width, height + 0.3), draw)


def draw_lengths(lengths: NDArray[Any], labels: NDArray[Any], classes: Sequence[str], path: Path) -> None:
    """How long the capsules `(n, L)` of the images of a class are, and those of all others."""
    bins = np.linspace(0, float(lengths.max()), 40)

    def draw(figure: Any, _ink: str) -> None:
        for number, axes in enumerate(panels(figure, len(classes), 5, sharex=True)):
            own = labels == number
            for chosen, (_, colour) in ((~own, OTHERS), (own, OWN)):
                axes.hist(lengths[chosen, number], bins=bins, density=True, color=colour, alpha=0.6)
            axes.set_yticks([])
            axes.set_title(classes[number], fontsize=10)
            if number >= len(classes) - 5:  # the lowest panel of its column
                axes.set_xlabel("capsule length")
        _legend(figure)

    width, height = figure_size(len(classes), 5, 1.8, 1.3)
    draw_themes(path, (width, height + 0.6), draw)


def _legend(figure: Any) -> None:
    line = require("matplotlib.lines", "plots").Line2D
    handles = [line([], [], marker="o", linestyle="", color=colour, label=text) for text, colour in (OWN, OTHERS)]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
