"""Pictures of results, each in a version for light and one for dark pages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cappronet.extras import require
from cappronet.training.results import Row

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PINK",
    "SKY",
    "VERMILION",
    "comparison_figure",
    "dark_path",
    "draw_comparison",
    "draw_history",
    "draw_themes",
    "drawn",
]

# Okabe and Ito's colours, which colour-blind readers can tell apart, on white and on black.
BLUE, ORANGE, GREEN, VERMILION, SKY, PINK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
GREY = "#7f7f7f"
INK = "#24292f"


def dark_path(path: Path) -> Path:
    """Where the dark version of a picture goes."""
    return path.with_name(f"{path.stem}-dark{path.suffix}")


def draw_themes(path: Path, size: tuple[float, float], draw: Callable[[Any, str], None]) -> None:
    """Draw a figure of this size in inches twice: on white to `path`, and on black to `dark_path(path)`.

    Args:
        path: the PNG file.
        size: width and height.
        draw: draws on a matplotlib figure; it is also given the colour of text, for lines that should match it.
    """
    require("matplotlib", "plots")
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, paper, ink in ((path, "white", INK), (dark_path(path), "#0d1117", "#e6edf3")):
        with _figure(size, draw, paper, ink) as figure:
            figure.savefig(target)


def drawn(size: tuple[float, float], draw: Callable[[Any, str], None]) -> Any:
    """The figure on white, for a notebook or `savefig`."""
    with _figure(size, draw, "white", INK) as figure:
        figure.draw_without_rendering()  # some parts take their colours only when they are drawn
        return figure


@contextmanager
def _figure(size: tuple[float, float], draw: Callable[[Any, str], None], paper: str, ink: str) -> Iterator[Any]:
    """A figure in the colours of a page, which are those of the block."""
    matplotlib = require("matplotlib", "plots")
    figure_class = require("matplotlib.figure", "plots").Figure
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    settings: dict[str, Any] = {**dict.fromkeys(inked, ink), "font.size": 9, "legend.frameon": False}
    settings |= dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), paper)
    settings |= {"axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(settings):
        figure = figure_class(figsize=size, dpi=150, layout="constrained")
        draw(figure, ink)
        yield figure


def comparison_figure(rows: Sequence[Row], path: Path, measured: str = "test") -> None:
    """Write the figure of a comparison, see `draw_comparison`."""
    draw_themes(path, *draw_comparison(rows, measured))


def draw_comparison(rows: Sequence[Row], measured: str) -> tuple[tuple[float, float], Callable[[Any, str], None]]:
    """Errors of each head as points, one for each seed, and their mean with its 95 % interval; a panel a backbone.

    Returns the size of the figure and what draws it.
    """
    backbones = list(dict.fromkeys(row.backbone for row in rows))
    panels = [[row for row in rows if row.backbone == backbone] for backbone in backbones]

    def draw(figure: Any, ink: str) -> None:
        for axes, heads in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for position, row in enumerate(heads):
                _draw_head(axes, position, row, ink)
            axes.set_yticks(range(len(heads)), [row.head for row in heads])
            axes.set_ylim(len(heads) - 0.5, -0.75)
            axes.set_xlim(left=0)
            axes.set_title(f"{heads[0].data}, {heads[0].backbone}", loc="left", fontsize=11)
            axes.set_xlabel(f"{measured} error, %")
            axes.grid(axis="x", alpha=0.25)

    return (4.4 * len(panels), 0.9 + 0.42 * max(map(len, panels))), draw


def draw_history(
    history: Sequence[Mapping[str, float]], measured: str
) -> tuple[tuple[float, float], Callable[[Any, str], None]]:
    """The training loss and the error of each epoch; returns the size of the figure and what draws it."""
    curves = {"train_loss": ("training loss", BLUE), "error": (f"{measured} error, %", VERMILION)}

    def draw(figure: Any, _ink: str) -> None:
        for axes, (name, (label, colour)) in zip(figure.subplots(1, len(curves)), curves.items(), strict=True):
            points = [(line["epoch"], line[name]) for line in history if name in line]
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3, linewidth=1.6)
            axes.set_ylim(bottom=0)
            axes.set_title(label, loc="left", fontsize=11)
            axes.set_xlabel("epoch")
            axes.grid(alpha=0.25)

    return (7.0, 2.8), draw


def _draw_head(axes: Any, position: int, row: Row, ink: str) -> None:
    colour = VERMILION if "capsule" in row.head else BLUE
    axes.scatter(row.errors, [position] * len(row.errors), s=14, color=colour, alpha=0.35, linewidths=0)
    width = row.half_width if len(row.errors) > 1 else 0
    axes.errorbar(row.mean, position, xerr=width, fmt="o", color=colour, markersize=6, capsize=4, linewidth=1.6)
    axes.annotate(f"{row.mean:.2f}", (row.mean, position), (0, 7), textcoords="offset points", ha="center", color=ink)
