"""The picture of the probes: errors over samples of each class, and over the time of a fit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cappronet.training.figures import BLUE, GREEN, GREY, ORANGE, VERMILION, draw_themes
from experiments.probes.comparing import Results, results
from experiments.probes.rivals import CAPSULE, LOGISTIC, MLP, RIVALS, TUNED_CAPSULE
from experiments.probes.sets import ALL, IMBALANCED

__all__ = ["draw_probes", "relative_errors"]

# The colours of the rivals that matter most; others are grey, and logistic regression has that of text.
COLOURS = {MLP: BLUE, "RBF": GREEN, TUNED_CAPSULE: ORANGE, CAPSULE: VERMILION}
# Where the names are of points that are close to others: to the left, to the right or below.
LEFT, RIGHT, BELOW = ((-7, -3), "right"), ((7, -3), "left"), ((0, -15), "center")
NAMES = {
    CAPSULE: LEFT,
    LOGISTIC: LEFT,
    "cosine": LEFT,
    TUNED_CAPSULE: RIGHT,
    MLP: RIGHT,
    "RBF": RIGHT,
    "grouped neurons": BELOW,
}
# Where the axes have numbers: few enough not to overlap.
RATIOS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5)
SECONDS = tuple(digit * 10.0**power for power in range(-4, 4) for digit in (1, 2, 5))


def draw_probes(content: Mapping[str, Any], path: Path) -> bool:
    """Draw both panels; False where logistic regression, to which errors are relative, was not measured."""
    measured = results(content)
    sizes = [size for size in _sizes(measured) if (size, LOGISTIC) in {key[1:] for key in measured}]
    if not sizes:
        return False

    def draw(figure: Any, ink: str) -> None:
        from matplotlib.ticker import FixedLocator

        left, right = figure.subplots(1, 2, sharey=True)
        for rival in sorted(RIVALS, key=lambda name: name in COLOURS or name == LOGISTIC):
            _draw_rival(left, right, measured, sizes, rival, COLOURS.get(rival, ink if rival == LOGISTIC else GREY))
        left.set_xticks(range(len(sizes)), sizes)
        left.set(xlabel="samples per class", ylabel="test error relative to logistic regression")
        left.set_yscale("log")
        right.set(xlabel="fit from all samples, CPU seconds", xscale="log")
        left.margins(y=0.08)
        right.margins(x=0.15, y=0.08)  # room for the names next to the points
        for axis, ticks in ((left.yaxis, RATIOS), (right.yaxis, RATIOS), (right.xaxis, SECONDS)):
            axis.set_major_locator(FixedLocator(ticks))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)

    draw_themes(path, (9.0, 4.6), draw)
    return True


def _sizes(measured: Results) -> list[str]:
    """Numbers of samples of each class in order, all of them last."""
    present = {key[1] for key in measured}
    return [*sorted(present - {ALL, IMBALANCED}, key=int), *([ALL] if ALL in present else [])]


def relative_errors(measured: Results, rival: str, size: str) -> list[float]:
    """A rival's error divided by that of logistic regression, for each set; none if it was not measured on all.

    A mean over some of the sets could not be compared with one over all.
    """
    sets = [name for name, samples, other in measured if (samples, other) == (size, LOGISTIC)]
    if any((name, size, rival) not in measured for name in sets):
        return []
    pairs = [(measured[name, size, rival].error, measured[name, size, LOGISTIC].error) for name in sets]
    return [max(ours, 1e-3) / max(theirs, 1e-3) for ours, theirs in pairs]


def _draw_rival(left: Any, right: Any, measured: Results, sizes: Sequence[str], rival: str, colour: str) -> None:
    """A line on the left and a point on the right: geometric means over sets."""
    points = [(i, ratios) for i, size in enumerate(sizes) if (ratios := relative_errors(measured, rival, size))]
    if not points:
        return
    highlighted = colour != GREY
    style = {"color": colour, "linewidth": 1.8 if highlighted else 0.9, "alpha": 1 if highlighted else 0.5}
    label = rival if highlighted else None
    means = [float(np.exp(np.mean(np.log(ratios)))) for _, ratios in points]
    left.plot([i for i, _ in points], means, marker="o", markersize=3, label=label, **style)
    times = [result.fit for (_, size, other), result in measured.items() if (size, other) == (ALL, rival)]
    ratios = relative_errors(measured, rival, ALL)
    if times and ratios:
        x, y = (float(np.exp(np.mean(np.log(values)))) for values in (times, ratios))
        right.plot(x, y, marker="o", linestyle="", color=colour, alpha=style["alpha"])
        shift, side = NAMES.get(rival, ((5, 4), "left"))
        right.annotate(rival, (x, y), xytext=shift, textcoords="offset points", ha=side, fontsize=8, color=colour)
