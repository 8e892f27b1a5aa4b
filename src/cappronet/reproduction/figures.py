"""The paper's figures, drawn from real steps and runs, and the curves beside its tables; each in light and in dark."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cappronet.extras import require
from cappronet.heads import CapsuleProjection
from cappronet.results import Row, row_from

__all__ = [
    "capsule_planes",
    "dark",
    "error_over_dimension",
    "error_over_epochs",
    "error_over_tries",
    "gradient_step",
    "length_histograms",
]

# Okabe and Ito's colours, which colour-blind readers can tell apart on white and on black.
BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
HEADS = {"linear": "#7f7f7f", "group": BLUE, "capsule": RED, "cosine": PURPLE, "subcenter": GREEN, "weightnorm": SKY}
THEMES: Mapping[str, tuple[str, str]] = {"": ("white", "#24292f"), "-dark": ("#0d1117", "#e6edf3")}


def dark(path: Path) -> Path:
    """Where the dark version of a picture goes."""
    return path.with_name(f"{path.stem}-dark{path.suffix}")


def _draw(path: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Draw the same figure on white and on black."""
    matplotlib = require("matplotlib", "plots")
    figure_class = require("matplotlib.figure", "plots").Figure
    for paper, ink in THEMES.values():
        target = path if paper == "white" else dark(path)
        names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        settings = {"figure.facecolor": paper, "axes.facecolor": paper, "legend.frameon": False, "font.size": 9}
        settings |= dict.fromkeys(names, ink) | {"axes.spines.top": False, "axes.spines.right": False}
        with matplotlib.rc_context({**settings, "savefig.facecolor": paper}):
            figure = figure_class(figsize=size, dpi=150, layout="constrained")
            draw(figure)
            target.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(target)


def _panels(figure: Any, count: int, columns: int, **shared: bool) -> list[Any]:
    """So many panels, in lines of `columns`."""
    panels = list(figure.subplots(-(-count // columns), min(columns, count), squeeze=False, **shared).flat)
    for spare in panels[count:]:
        spare.set_visible(False)
    return panels[:count]


def _size(count: int, columns: int, width: float, height: float) -> tuple[float, float]:
    """Of a figure with so many panels of this size."""
    return width * min(columns, count), height * -(-count // columns)


def step_of_the_layer(lr: float = 0.6) -> dict[str, Tensor]:
    """One gradient step of cross-entropy on a layer with two planes in three dimensions: before and after, class 0."""
    generator = torch.Generator().manual_seed(0)
    head = CapsuleProjection(3, 2, 2, dtype=torch.float64)
    with torch.no_grad():
        head.weight[0] = torch.tensor([[1.0, 0.1, 0.0], [-0.1, 1.0, 0.0]])
        head.weight[1] = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    x = torch.tensor([[0.35, 0.75, 0.9]], dtype=torch.float64)
    before = {
        "w": head.weight[0].detach().clone(),
        "v": head.capsules(x)[0, 0].detach(),
        "length": head(x)[0, 0].detach(),
    }
    F.cross_entropy(head(x), torch.tensor([0])).backward()
    with torch.no_grad():
        head.weight -= lr * head.weight.grad  # type: ignore[operator,misc]
    after = {"w": head.weight[0].detach(), "v": head.capsules(x)[0, 0].detach(), "length": head(x)[0, 0].detach()}
    return {"x": x[0], **before, **{f"new_{name}": value for name, value in after.items()}}


def gradient_step(path: Path) -> None:
    """Figure 1: x, its capsule v in the class's plane, x_perp, and the plane after a gradient step towards x."""
    step = {name: value.numpy() for name, value in step_of_the_layer().items()}

    def draw(figure: Any) -> None:
        axes = figure.add_subplot(projection="3d")
        origin = np.zeros(3)
        for basis, colour, name in ((step["w"], BLUE, "subspace"), (step["new_w"], RED, "after the step")):
            directions = np.linalg.qr(basis.T)[0].T
            corners = np.array([a * directions[0] + b * directions[1] for a, b in ((-1, -1), (-1, 1), (1, 1), (1, -1))])
            surface = corners.reshape(2, 2, 3)[:, [0, 1]]
            surface[1] = surface[1][::-1]
            axes.plot_surface(*surface.transpose(2, 0, 1) * 1.25, color=colour, alpha=0.3, linewidth=0, label=name)
            for number, w in enumerate(basis):
                prime = "'" if colour == RED else ""
                _arrow(axes, origin, w, colour, 1.2, f"$w{prime}_{number + 1}$", 10)
        _arrow(axes, origin, step["x"], "#7f7f7f", 2.5, "x")
        _arrow(axes, origin, step["v"], BLUE, 2.5, "v")
        _arrow(axes, origin, step["new_v"], RED, 2.5, "v'")
        axes.plot(
            *np.array([step["v"], step["x"]]).T, color=GREEN, linestyle="--", linewidth=1.8, label="$x_⊥ = x - v$"
        )
        axes.set_title(f"|v| = {step['length']:.3f}, after one step {step['new_length']:.3f}", fontsize=10)
        axes.set_axis_off()
        axes.view_init(elev=28, azim=-80)
        axes.set_box_aspect((1, 1, 0.75), zoom=1.3)
        axes.legend(loc="lower center", ncols=3, fontsize=9)

    _draw(path, (5.2, 4.2), draw)


def _arrow(
    axes: Any, start: NDArray[Any], end: NDArray[Any], colour: str, width: float, label: str, size: int = 13
) -> None:
    axes.quiver(*start, *(end - start), color=colour, linewidth=width, arrow_length_ratio=0.08)
    axes.text(*(end * 1.06), label, color=colour, fontsize=size)


def capsule_planes(coordinates: NDArray[Any], labels: NDArray[Any], classes: Sequence[str], path: Path) -> None:
    """Figure 2: each class's plane of capsule coordinates `(n, L, 2)`, its own test images red, all others green."""

    def draw(figure: Any) -> None:
        for number, panel in enumerate(_panels(figure, len(classes), 5)):
            own = labels == number
            for chosen, colour, size in ((~own, GREEN, 3), (own, RED, 4)):
                panel.scatter(
                    *coordinates[chosen, number].T, s=size, color=colour, alpha=0.5, linewidths=0, rasterized=True
                )
            reach = 1.05 * np.abs(coordinates[:, number]).max()
            panel.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
            panel.axhline(0, color="#7f7f7f", linewidth=0.5)
            panel.axvline(0, color="#7f7f7f", linewidth=0.5)
            panel.set_title(classes[number], fontsize=10)
        handles = [
            require("matplotlib.lines", "plots").Line2D([], [], marker="o", linestyle="", color=colour, label=text)
            for colour, text in ((RED, "test images of the class"), (GREEN, "test images of the others"))
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)

    width, height = _size(len(classes), 5, 1.8, 1.95)
    _draw(path, (width, height + 0.3), draw)


def length_histograms(lengths: NDArray[Any], labels: NDArray[Any], classes: Sequence[str], path: Path) -> None:
    """Beside Figure 2: how long the capsules of a class's own test images are, and those of all others."""
    bins = np.linspace(0, float(lengths.max()), 40)

    def draw(figure: Any) -> None:
        for number, panel in enumerate(_panels(figure, len(classes), 5, sharex=True)):
            own = labels == number
            for chosen, colour in ((~own, GREEN), (own, RED)):
                panel.hist(lengths[chosen, number], bins=bins, density=True, color=colour, alpha=0.6)
            panel.set_yticks([])
            panel.set_title(classes[number], fontsize=10)
        figure.supxlabel("capsule length: red the class's own test images, green all others", fontsize=9)

    width, height = _size(len(classes), 5, 1.8, 1.3)
    _draw(path, (width, height + 0.4), draw)


def error_over_epochs(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The test error of each head while it trains, mean over seeds; the linear head with its lowest and highest."""
    groups = _grouped(found)

    def draw(figure: Any) -> None:
        for panel, rows in zip(_panels(figure, len(groups), 1), groups, strict=True):
            for row in rows:
                curves = np.array(row["curves"])
                panel.plot(row["epochs"], curves.mean(0), label=row["head"], **_look(row, rows))
                if row["head"] == "linear":
                    low, high = curves.min(0), curves.max(0)
                    panel.fill_between(row["epochs"], low, high, color=HEADS["linear"], alpha=0.15, linewidth=0)
            panel.set(xlabel="epoch", ylabel="test error, %")
            _finish(panel, rows[0])

    _draw(path, _size(len(groups), 1, 7.0, 3.8), draw)


def error_over_tries(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The validation error of each head over the one number that its tries change, mean over seeds; a panel a group."""
    groups = _grouped([row for row in found if row["tries"] and all(map(_is_number, row["tries"]))])
    if not groups:
        return

    def draw(figure: Any) -> None:
        for panel, rows in zip(_panels(figure, len(groups), 1), groups, strict=True):
            for row in rows:
                values = [value for one in row["tries"] for value in one["changes"].values()]
                errors = [np.mean(one["validation_errors"]) for one in row["tries"]]
                panel.plot(values, errors, label=row["head"], **_look(row, rows))
            panel.set_xscale("log")
            panel.set_xticks(values, [f"{value:g}" for value in values], minor=False)
            panel.set_xticks([], minor=True)
            (name,) = rows[0]["tries"][0]["changes"]
            panel.set(xlabel=name, ylabel="error on held-out training images, %")
            _finish(panel, rows[0])

    _draw(path, _size(len(groups), 1, 7.0, 3.8), draw)


def _is_number(one: Mapping[str, Any]) -> bool:
    """Whether a try changes one setting, and that to a number."""
    return len(one["changes"]) == 1 and all(isinstance(value, int | float) for value in one["changes"].values())


def _grouped(found: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    names = dict.fromkeys(row["group"] for row in found)
    return [[row for row in found if row["group"] == name] for name in names]


def _look(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How the line of a head is drawn: a colour for its kind, shades and dashes within."""
    kind = row["recipe"]["head"]
    alike = [other["head"] for other in rows if other["recipe"]["head"] == kind]
    number = alike.index(row["head"])
    shade = 0.4 + 0.6 * (number + 1) / len(alike)
    return {"color": HEADS[kind], "alpha": shade, "linewidth": 1.3, "linestyle": ("-", "--", ":", "-.")[number % 4]}


def _finish(panel: Any, row: Mapping[str, Any]) -> None:
    """Errors on a logarithmic axis with plain numbers, a title, and a legend beside the lines."""
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(require("matplotlib.ticker", "plots").LogLocator(subs=(1, 2, 3, 4, 6)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter("")
    panel.set_title(f"{row['data']}, {row['backbone']}", loc="left", fontsize=10)
    panel.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def error_over_dimension(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The error of capsules and of grouped neurons over c, with the linear head as a line across; a panel a group."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in found:
        if row["head"] in ("linear", f"{row['recipe']['head']} c={row['recipe']['capsule_dim']}"):
            groups.setdefault(row["group"], []).append(row)
    kept = [part for part in groups.values() if len({row["recipe"]["capsule_dim"] for row in part}) > 1]
    if not kept:
        return

    def draw(figure: Any) -> None:
        for panel, part in zip(_panels(figure, len(kept), 2), kept, strict=True):
            for head in ("capsule", "group"):
                _dimensions(panel, head, [row for row in part if row["recipe"]["head"] == head])
            for row in part:
                if row["head"] == "linear":
                    _across(panel, row_from(dict(row)))
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter("{x:.0f}")
            panel.set(xlabel="capsule dimension c", ylabel="test error, %, mean and 95 % interval")
            panel.set_title(f"{part[0]['data']}, {part[0]['backbone']}", loc="left", fontsize=10)
            panel.legend(fontsize=8)

    _draw(path, _size(len(kept), 2, 4.2, 3.4), draw)


def _dimensions(panel: Any, head: str, part: list[Mapping[str, Any]]) -> None:
    part.sort(key=lambda row: row["recipe"]["capsule_dim"])
    rows = [row_from(dict(row)) for row in part]
    widths = [row.half_width if len(row.errors) > 1 else 0 for row in rows]
    aside = {"capsule": 0.97, "group": 1.03}[head]  # intervals at the same c must not hide each other
    dims = [aside * row["recipe"]["capsule_dim"] for row in part]
    panel.errorbar(dims, [row.mean for row in rows], widths, fmt="o-", color=HEADS[head], capsize=3, label=head)


def _across(panel: Any, linear: Row) -> None:
    panel.axhline(linear.mean, color=HEADS["linear"], label="linear")
    if len(linear.errors) > 1:
        low, high = linear.mean - linear.half_width, linear.mean + linear.half_width
        panel.axhspan(low, high, color=HEADS["linear"], alpha=0.15, linewidth=0)
