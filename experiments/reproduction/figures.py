"""Curves that accompany the paper's tables, drawn from the rows of result files: errors over epochs, c and trials."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cappronet.extras import require
from cappronet.training.figures import BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILION, draw_themes
from cappronet.training.results import row_from

__all__ = ["draw_all", "error_over_dimension", "error_over_epochs", "error_over_trials", "figure_size", "panels"]

Rows = Sequence[Mapping[str, Any]]
# A kind of head has a colour, except for the linear one, which has that of the text; heads of a kind differ in style.
COLOURS = {
    "cosine": GREEN,
    "weightnorm": SKY,
    "subcenter": ORANGE,
    "group": BLUE,
    "capsule": VERMILION,
    "unit capsule": PINK,
}
STYLES = ("o-", "s--", "^:", "D-.", "v-")
# A line over epochs needs so many points to show more than the table does.
FEWEST_POINTS = 4
# Errors whose largest is less than so many times their smallest have equally spaced numbers on their axis; of those
# that a logarithmic axis has elsewhere, only one or two would be left.
NARROW = 4
# How settings of a recipe are called in a picture.
SETTINGS = {"lr": "learning rate", "weight_decay": "weight decay"}


def draw_all(rows: Rows, stem: Path) -> list[Path]:
    """Draw every picture that the rows have data for, to `STEM-NAME.png`; return the files of the light versions."""
    drawn = []
    for name, draw in (("epochs", error_over_epochs), ("c", error_over_dimension), ("tuning", error_over_trials)):
        path = stem.with_name(f"{stem.name}-{name}.png")
        if draw(rows, path):
            drawn.append(path)
    return drawn


def panels(figure: Any, count: int, columns: int, **shared: bool) -> list[Any]:
    """So many panels, in lines of `columns`."""
    axes = list(figure.subplots(-(-count // columns), min(columns, count), squeeze=False, **shared).flat)
    for spare in axes[count:]:
        spare.set_visible(False)
    return axes[:count]


def figure_size(count: int, columns: int, width: float, height: float) -> tuple[float, float]:
    """The size of a figure with so many panels of this size."""
    return width * min(columns, count), height * -(-count // columns)


def error_over_epochs(rows: Rows, path: Path) -> bool:
    """The test error of each head while it trains, mean over seeds; False where it was measured a few times only."""
    groups = _grouped([row for row in rows if row["errors"] and len(row["epochs"]) >= FEWEST_POINTS])
    if not groups:
        return False

    def draw(figure: Any, ink: str) -> None:
        for axes, group in zip(panels(figure, len(groups), 1), groups, strict=True):
            lines = {row["head"]: (row["epochs"], np.mean(row["curves"], axis=0)) for row in group}
            _draw_lines(axes, group, lines, ink)
            axes.xaxis.set_major_locator(
                require("matplotlib.ticker", "plots").MaxNLocator(integer=True, steps=(1, 2, 5, 10))
            )
            axes.set(xlabel="epoch", ylabel="test error, %")

    draw_themes(path, figure_size(len(groups), 1, 7.0, 3.6), draw)
    return True


def error_over_trials(rows: Rows, path: Path) -> bool:
    """The validation error of each head over the one number that was tuned, mean over seeds; False where none was."""
    groups = _grouped([row for row in rows if row["tries"] and all(map(_is_numeric, row["tries"]))])
    if not groups:
        return False

    def draw(figure: Any, ink: str) -> None:
        for axes, group in zip(panels(figure, len(groups), 1), groups, strict=True):
            _draw_lines(axes, group, {row["head"]: _trial_line(row) for row in group}, ink)
            values = sorted({value for row in group for value in _trial_line(row)[0]})
            axes.set_xscale("log")
            axes.set_xticks(values, [f"{value:g}" for value in values], minor=False)
            axes.set_xticks([], minor=True)
            (name,) = group[0]["tries"][0]["changes"]
            axes.set(xlabel=SETTINGS.get(name, name), ylabel="validation error, %")

    draw_themes(path, figure_size(len(groups), 1, 7.0, 3.6), draw)
    return True


def _trial_line(row: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """The values that were tried and their mean validation errors, as far as trials are finished."""
    finished = [trial for trial in row["tries"] if trial["validation_errors"]]
    values = [value for trial in finished for value in trial["changes"].values()]
    return values, [statistics.mean(trial["validation_errors"]) for trial in finished]


def _is_numeric(trial: Mapping[str, Any]) -> bool:
    """Whether a trial changes one setting, and that to a number."""
    values = list(trial["changes"].values())
    return len(values) == 1 and isinstance(values[0], int | float)


def _grouped(rows: Rows) -> list[list[Mapping[str, Any]]]:
    names = dict.fromkeys(row["group"] for row in rows)
    return [[row for row in rows if row["group"] == name] for name in names]


def _styles(rows: Rows, ink: str) -> dict[str, tuple[str, str]]:
    """The colour of each head, by its kind, and its style, by its place among the heads of that kind."""
    heads = {row["head"]: _kind(row["recipe"]) for row in rows}
    members = {kind: [head for head in heads if heads[head] == kind] for kind in heads.values()}
    return {
        head: (COLOURS.get(kind, ink), STYLES[members[kind].index(head) % len(STYLES)]) for head, kind in heads.items()
    }


def _kind(recipe: Mapping[str, Any]) -> str:
    return "unit capsule" if recipe["head"] == "capsule" and recipe["normalize"] else recipe["head"]


def _draw_lines(axes: Any, rows: Rows, lines: Mapping[str, tuple[Any, Any]], ink: str) -> None:
    """A line for each head, errors on a logarithmic axis, the legend next to them."""
    for head, (colour, style) in _styles(rows, ink).items():
        axes.plot(*lines[head], style, color=colour, linewidth=1.5, markersize=3.5, label=head)
    axes.set_yscale("log")
    ticker = require("matplotlib.ticker", "plots")
    low, high = axes.get_ylim()
    narrow = high < NARROW * low
    axes.yaxis.set_major_locator(ticker.AutoLocator() if narrow else ticker.LogLocator(subs=(1, 1.5, 2, 3, 4, 6)))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(f"{rows[0]['data']}, {rows[0]['backbone']}", loc="left", fontsize=10)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), handlelength=3.5)


def error_over_dimension(rows: Rows, path: Path) -> bool:
    """Errors of capsules and of grouped neurons over c, and that of the linear head; False where c has one value."""
    plain = [
        row
        for row in rows
        if row["errors"] and row["head"] in ("linear", f"{row['recipe']['head']} c={row['recipe']['capsule_dim']}")
    ]
    groups = [group for group in _grouped(plain) if len(_dimensions(group, "capsule")) > 1]
    if not groups:
        return False

    def draw(figure: Any, ink: str) -> None:
        for axes, group in zip(panels(figure, len(groups), len(groups)), groups, strict=True):
            _draw_dimensions(axes, group, ink)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)

    width, height = figure_size(len(groups), len(groups), 3.4, 3.4)
    draw_themes(path, (width, height), draw)
    return True


def _dimensions(rows: Rows, head: str) -> list[Mapping[str, Any]]:
    """The rows of a head, by capsule dimension."""
    return sorted((row for row in rows if row["recipe"]["head"] == head), key=lambda row: row["recipe"]["capsule_dim"])


def _draw_dimensions(axes: Any, group: Rows, ink: str) -> None:
    # Intervals at the same c stand next to each other, so that both can be seen.
    for head, label, colour, shift in (
        ("capsule", "capsule", VERMILION, 0.97),
        ("group", "grouped neurons", BLUE, 1.03),
    ):
        part = _dimensions(group, head)
        rows = [row_from(dict(row)) for row in part]
        widths = [row.half_width if len(row.errors) > 1 else 0 for row in rows]
        dims = [shift * row["recipe"]["capsule_dim"] for row in part]
        axes.errorbar(dims, [row.mean for row in rows], widths, fmt="o-", color=colour, capsize=3, label=label)
    for row in group:
        if row["head"] == "linear":
            linear = row_from(dict(row))
            axes.axhline(linear.mean, color=ink, linewidth=1.2, label="linear (shaded: 95 % interval)")
            if len(linear.errors) > 1:
                low, high = linear.mean - linear.half_width, linear.mean + linear.half_width
                axes.axhspan(low, high, color=GREY, alpha=0.18, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set(xlabel="capsule dimension c", ylabel="test error, %: mean and 95 % interval")
    axes.set_title(f"{group[0]['data']}, {group[0]['backbone']}", loc="left", fontsize=10)
