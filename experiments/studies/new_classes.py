"""New classes without training: eight classes are trained, two are added from a few images.

The network that was trained on the eight is frozen. `add_class` adds two subspaces to its own, or to those fitted to
its features of the eight. Compared with: the nearest class mean, heads refitted by gradient, and the upper bound, the
whole network trained on all ten classes.
"""

import copy
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cappronet.data.splits import mixed_seed
from cappronet.heads import CapsuleProjection
from cappronet.probing.fitting import fit_head
from cappronet.reporting import Report, Table
from cappronet.training.builders import evaluation_batches
from cappronet.training.metrics import predict
from cappronet.training.results import interval
from cappronet.training.run_folder import environment
from experiments.studies.frozen import NETS, NEW, OLD, Frozen, networks, trained

__all__ = ["run", "table"]

# Images of each new class, and how many random draws of them are averaged; 0 is all of them.
IMAGES, DRAWS = (5, 20, 100, 0), 10
QUICK_DRAWS = 2
# For these numbers of images, errors on new and on old classes are shown separately.
DETAILED = (20, 0)
HEADINGS = (
    *("network", "method", "5 images", "20 images", "100 images", "all images"),
    *("20 images: new / old classes", "all images: new / old classes"),
)
CAPSULE_DIM, CONTRAST = 4, 0.5
# Steps and batch size with which heads are refitted; the second pair is for fewer than 20,000 features.
FITS = ((800, 1024), (100, 128))
# The highest learning rate of each refitted head: nearly the best of 0.003, 0.01, 0.03 and 0.1 on the test images of
# one draw, which favours refitting.
LEARNING_RATES = {"capsule": 0.01, "linear": 0.03}

# From a frozen network, features (n, d) and their classes to a function from features (m, d) to scores (m, 10).
Method = Callable[[Frozen, Tensor, Tensor], Callable[[Tensor], Tensor]]


def run(data: str, folder: Path, report: Report, *, cache: str | None = None) -> dict[str, Any]:
    """Train on eight classes, add two, and measure errors on the test images of all ten."""
    images, nets = networks(data, folder, report, cache)
    whole = nets["capsule"].recipe.changed(classes=())
    retrained = trained(whole, folder / "ten-classes", report, cache)
    scores, _ = predict(retrained, evaluation_batches(whole, images).epoch(0))
    rows = [_row("capsule", "retrained on all ten classes", 0, [_errors(scores, images.test.labels)])]
    draws = QUICK_DRAWS if data == "digits" else DRAWS
    cases = [(net, method, count) for net in NETS for method in METHODS[net] for count in IMAGES]
    for done, (net, method, count) in enumerate(cases):
        report(f"{net} network, {method}, {count or 'all'} images", done, len(cases))
        errors = [_fit_and_test(nets[net], METHODS[net][method], count, draw) for draw in range(draws if count else 1)]
        rows.append(_row(net, method, count, errors))
    return {
        "study": "new-classes",
        "recipes": {name: net.recipe.to_dict() | {"data": images.name} for name, net in nets.items()}
        | {"retrained": whole.to_dict() | {"data": images.name}},
        "settings": {"capsule_dim": CAPSULE_DIM, "contrast": CONTRAST, "fits": FITS, "lr": LEARNING_RATES},
        "before": {name: _errors(net.model.head(net.x_test).detach(), net.y_test)["old"] for name, net in nets.items()},
        "rows": rows,
        "environment": environment(data=images.fingerprint()),
    }


def table(results: Mapping[str, Any]) -> Table:
    """A row for each method: its error on all ten classes by the number of images, and that on new and old ones."""
    methods: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in results["rows"]:
        methods.setdefault((row["net"], row["method"]), {})[row["images"]] = row
    cells = [
        (*name, *(_cell(rows.get(count)) for count in IMAGES), *(_parts(rows.get(count)) for count in DETAILED))
        for name, rows in methods.items()
    ]
    before = ", ".join(f"{error:.2f} ({name} network)" for name, error in results["before"].items())
    title = f"Test error in %, by images of each new class; on the eight old classes before any was added: {before}"
    return Table(HEADINGS, cells, names=2, title=title)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    width = f" ± {interval(row['all']):.2f}" if len(row["all"]) > 1 else ""
    return f"{statistics.mean(row['all']):.2f}{width}"


def _parts(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else " / ".join(f"{statistics.mean(row[part]):.1f}" for part in ("new", "old"))


def _row(net: str, method: str, images: int, errors: list[dict[str, float]]) -> dict[str, Any]:
    return {"net": net, "method": method, "images": images} | {
        part: [round(of_draw[part], 4) for of_draw in errors] for part in ("all", "new", "old")
    }


def _fit_and_test(net: Frozen, method: Method, count: int, draw: int) -> dict[str, float]:
    """Errors of a method that has `count` random images of each new class, or all for 0, and all of the old."""
    generator = torch.Generator().manual_seed(mixed_seed("new classes", count, draw))
    rows = [(net.y < len(OLD)).nonzero()[:, 0]]
    for label in NEW:
        of_class = (net.y == label).nonzero()[:, 0]
        order = torch.randperm(len(of_class), generator=generator)
        rows.append(of_class[order[: count or len(order)]])
    chosen = torch.cat(rows)
    with torch.no_grad():
        return _errors(method(net, net.x[chosen], net.y[chosen])(net.x_test), net.y_test)


def _errors(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Errors in percent on all classes, on the new, and on the old."""
    wrong = (scores.argmax(-1) != labels).double() * 100
    new = labels >= len(OLD)
    return {"all": wrong.mean().item(), "new": wrong[new].mean().item(), "old": wrong[~new].mean().item()}


def _set_and_added(contrast: float) -> Method:
    """Subspaces of the old classes by `from_features`, those of the new by `add_class`."""

    def fit(_net: Frozen, x: Tensor, y: Tensor) -> CapsuleProjection:
        old = y < len(OLD)
        head = CapsuleProjection.from_features(x[old], y[old], CAPSULE_DIM, normalize=True, contrast=contrast)
        for label in NEW:
            head.add_class(x[y == label], x[old], contrast=contrast)
        return head

    return fit


def _trained_and_added(contrast: float) -> Method:
    """The subspaces that were trained, and two more by `add_class`."""

    def fit(net: Frozen, x: Tensor, y: Tensor) -> CapsuleProjection:
        head = copy.deepcopy(net.model.head)
        assert isinstance(head, CapsuleProjection)
        for label in NEW:
            head.add_class(x[y == label], x[y < len(OLD)], contrast=contrast)
        return head

    return fit


def _nearest_mean(_net: Frozen, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    means = torch.stack([x[y == label].mean(0) for label in (*OLD, *NEW)])
    return lambda x: -torch.cdist(x, means)


def _nearest_mean_by_cosine(_net: Frozen, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    x = F.normalize(x, dim=-1)
    means = F.normalize(torch.stack([x[y == label].mean(0) for label in (*OLD, *NEW)]), dim=-1)
    return lambda x: F.normalize(x, dim=-1) @ means.mT


def _refitted(start: Callable[[Tensor, Tensor], nn.Module], lr: float) -> Method:
    """A head trained on the features of all ten classes; the images of small classes are repeated, for balance."""

    def fit(_net: Frozen, x: Tensor, y: Tensor) -> nn.Module:
        largest = int(torch.bincount(y).max())
        rows = [(y == label).nonzero()[:, 0] for label in (*OLD, *NEW)]
        balanced = torch.cat([of_class.repeat(-(-largest // len(of_class)))[:largest] for of_class in rows])
        steps, batch = FITS[len(balanced) < 20_000]
        epochs = -(-steps * batch // len(balanced))
        with torch.enable_grad():
            head = start(x, y)
            return fit_head(head, x[balanced], y[balanced], epochs=epochs, batch_size=batch, lr=lr)

    return fit


def _capsule_start(x: Tensor, y: Tensor) -> nn.Module:
    return CapsuleProjection.from_features(x, y, CAPSULE_DIM, normalize=True, scale="learned")


def _linear_start(x: Tensor, _y: Tensor) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(x.shape[1], len(OLD) + len(NEW))


ON_FEATURES: Mapping[str, Method] = {
    "subspaces set, two added": _set_and_added(0.0),
    f"subspaces set, two added, contrast {CONTRAST}": _set_and_added(CONTRAST),
    "nearest class mean": _nearest_mean,
    "nearest class mean by cosine": _nearest_mean_by_cosine,
    "capsule head refitted": _refitted(_capsule_start, LEARNING_RATES["capsule"]),
    "linear head refitted": _refitted(_linear_start, LEARNING_RATES["linear"]),
}
METHODS: Mapping[str, Mapping[str, Method]] = {
    "capsule": {
        **ON_FEATURES,
        "trained subspaces, two added": _trained_and_added(0.0),
        "trained subspaces, two added, contrast 1": _trained_and_added(1.0),
    },
    "linear": ON_FEATURES,
}
