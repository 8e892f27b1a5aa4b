"""Pictures of results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cappronet.extras import require
from cappronet.results import Row

__all__ = ["comparison_figure"]

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#555555"


def comparison_figure(rows: Sequence[Row], path: Path, measured: str = "test") -> None:
    """Errors of each head as points, one for each seed, and their mean with its 95 % interval; a panel a backbone."""
    figure_class = require("matplotlib.figure", "plots").Figure
    backbones = list(dict.fromkeys(row.backbone for row in rows))
    tallest = max(sum(row.backbone == backbone for row in rows) for backbone in backbones)
    figure: Any = figure_class(figsize=(4.4 * len(backbones), 0.9 + 0.42 * tallest), layout="constrained", dpi=150)
    panels = figure.subplots(1, len(backbones), squeeze=False)[0]
    for panel, backbone in zip(panels, backbones, strict=True):
        chosen = [row for row in rows if row.backbone == backbone]
        for place, row in enumerate(chosen):
            colour = ORANGE if "capsule" in row.head else BLUE
            panel.scatter(row.errors, [place] * len(row.errors), s=14, color=colour, alpha=0.35, linewidths=0)
            width = row.half_width if len(row.errors) > 1 else 0
            panel.errorbar(row.mean, place, xerr=width, fmt="o", color=colour, markersize=6, capsize=4, linewidth=1.6)
            panel.annotate(
                f"{row.mean:.2f}", (row.mean, place), (0, 7), textcoords="offset points", ha="center", color=GREY
            )
        panel.set_yticks(range(len(chosen)), [row.head for row in chosen])
        panel.set_ylim(len(chosen) - 0.5, -0.75)
        panel.set_xlim(left=0)
        panel.set_title(f"{chosen[0].data}, {backbone}", loc="left", fontsize=11)
        panel.set_xlabel(f"{measured} error, %")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="x", alpha=0.25)
    figure.savefig(path)
