"""Figure 1 of the paper, from a real gradient step: x is projected onto the plane of a class, which turns towards x."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cappronet.extras import require
from cappronet.heads import CapsuleProjection
from cappronet.training.figures import BLUE, GREEN, VERMILION, draw_themes

__all__ = ["draw_gradient_step", "gradient_step"]

Point = NDArray[np.float64]
# The direction that the viewer looks from: azimuth and elevation in degrees.
AZIMUTH, ELEVATION = -62.0, 24.0


def gradient_step(lr: float = 0.6) -> dict[str, Tensor]:
    """One gradient step of cross-entropy on a head with two planes in three dimensions.

    Returns:
        `x`, and for its class the basis `w`, the capsule `v` and its `length`, before and after the step (`new_...`).
    """
    generator = torch.Generator().manual_seed(0)
    head = CapsuleProjection(3, 2, 2, dtype=torch.float64)
    with torch.no_grad():
        head.weight[0] = torch.tensor([[1.0, 0.1, 0.0], [-0.1, 1.0, 0.0]])
        head.weight[1] = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    x = torch.tensor([[0.35, 0.75, 0.9]], dtype=torch.float64)

    def state() -> dict[str, Tensor]:
        return {"w": head.weight[0].detach().clone(), "v": head.capsules(x)[0, 0].detach(), "length": head(x)[0, 0]}

    before = state()
    F.cross_entropy(head(x), torch.tensor([0])).backward()
    with torch.no_grad():
        head.weight -= lr * head.weight.grad  # type: ignore[operator,misc]
    step = {"x": x[0], **before, **{f"new_{name}": value for name, value in state().items()}}
    return {name: value.detach() for name, value in step.items()}


def draw_gradient_step(path: Path) -> None:
    """Draw x, its projection v and the residual; and the same after a gradient step turned the plane towards x."""
    step = {name: value.numpy() for name, value in gradient_step().items()}

    def draw(figure: Any, ink: str) -> None:
        left, right = figure.subplots(1, 2, sharex=True, sharey=True)
        _draw_plane(left, step["w"], BLUE)
        _draw_projection(left, step["x"], step["v"], "v", BLUE, ink)
        left.set_title(f"score of a class: |v| = {step['length']:.2f}", color=BLUE, fontsize=11, pad=18)
        _draw_plane(right, step["w"], BLUE, faint=True)
        _draw_plane(right, step["new_w"], VERMILION)
        _draw_projection(right, step["x"], step["new_v"], "v'", VERMILION, ink)
        right.set_title(f"after a gradient step: |v'| = {step['new_length']:.2f}", color=VERMILION, fontsize=11, pad=18)
        for axes in (left, right):
            axes.set_aspect("equal")
            axes.set_axis_off()

    draw_themes(path, (8.0, 3.3), draw)


def _on_page(points: Point) -> Point:
    """Points `(..., 3)` as the viewer sees them, `(..., 2)`: an orthographic projection."""
    azimuth, elevation = np.radians(AZIMUTH), np.radians(ELEVATION)
    right = np.array([-np.sin(azimuth), np.cos(azimuth), 0.0])
    toward = np.array([np.cos(azimuth) * np.cos(elevation), np.sin(azimuth) * np.cos(elevation), np.sin(elevation)])
    return np.asarray(points) @ np.stack([right, np.cross(toward, right)], axis=1)


def _draw_plane(axes: Any, basis: Point, colour: str, *, faint: bool = False) -> None:
    """A square of the plane that the basis spans, around the origin."""
    first = basis[0] / np.linalg.norm(basis[0])
    second = basis[1] - (basis[1] @ first) * first
    second /= np.linalg.norm(second)
    corners = np.array([1.15 * (a * first + b * second) for a, b in ((-1, -1), (-1, 1), (1, 1), (1, -1))])
    polygon = require("matplotlib.patches", "plots").Polygon
    look: dict[str, Any] = {"fill": False, "linestyle": ":", "alpha": 0.8} if faint else {"alpha": 0.22}
    axes.add_patch(polygon(_on_page(corners), color=colour, linewidth=1.2, **look))
    if not faint:
        lowest = min(_on_page(corners), key=lambda corner: corner[1])
        style: dict[str, Any] = {
            "textcoords": "offset points",
            "ha": "center",
            "va": "top",
            "color": colour,
            "fontsize": 10,
        }
        axes.annotate("subspace of the class", lowest, (0, -5), **style)
    axes.autoscale_view()


def _draw_projection(axes: Any, x: Point, v: Point, name: str, colour: str, ink: str) -> None:
    """The arrows x and v, the residual between their ends, and the right angle at v."""
    _arrow(axes, x, ink)
    _arrow(axes, v, colour)
    axes.plot(*_on_page(np.stack([v, x])).T, color=GREEN, linestyle="--", linewidth=1.6)
    along, up = v / np.linalg.norm(v), (x - v) / np.linalg.norm(x - v)
    corner = [v - 0.1 * along, v - 0.1 * along + 0.1 * up, v + 0.1 * up]
    axes.plot(*_on_page(np.stack(corner)).T, color=GREEN, linewidth=1.0)
    axes.plot(*_on_page(np.zeros(3)), "o", color=ink, markersize=3)
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 13}
    axes.annotate("x", _on_page(x), (-4, 6), ha="right", color=ink, **style)
    axes.annotate(name, _on_page(v), (8, -8), color=colour, **style)
    axes.annotate("residual", _on_page((x + v) / 2), (8, 0), textcoords="offset points", color=GREEN, fontsize=10)


def _arrow(axes: Any, end: Point, colour: str) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 14}
    axes.annotate("", _on_page(end), _on_page(np.zeros(3)), arrowprops=style)
    axes.plot(*_on_page(end), alpha=0)  # so that the panel makes room for the arrow
