"""Heads on frozen features: the pixels of digits, and a ResNet's features of classes it has not seen."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cappronet.data.batches import Batches
from cappronet.data.samples import Samples, Vectors
from cappronet.data.splits import hold_out, mixed_seed
from cappronet.extras import require
from cappronet.heads import CapsuleProjection, create_head
from cappronet.models.network import CapProNet
from cappronet.probing.fitting import fit_head
from cappronet.reporting import Report, Table, tracked
from cappronet.training.builders import load_data
from cappronet.training.recipe import Recipe
from cappronet.training.results import interval
from cappronet.training.run_folder import environment
from experiments.studies.frozen import trained

__all__ = ["run", "table"]

# The network whose features are taken: trained on five classes, with a linear head.
SEEN, UNSEEN = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
NETWORK = Recipe(
    classes=SEEN, backbone="resnet8", head="linear", epochs=15, lr=0.2, flip=True, padding=4, evaluate_every=5
)
# Images of each class, and how many random draws of them are averaged; 0 takes all.
DRAWS: Mapping[int, int] = {20: 5, 100: 5, 1000: 3, 0: 1}
FOLDS = 5
# The settings to choose from, validated on a fifth of the training features.
DECAYS, NEIGHBOURS, PENALTIES = (0.0, 0.01, 0.1), (1, 5, 20), (0.1, 1.0, 10.0)


@dataclass(frozen=True)
class Split:
    """Training and test features of one draw."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


# Fits on features and labels with one setting, for L classes, and returns what maps features to predicted classes.
Fit = Callable[[Tensor, Tensor, int, float], Callable[[Tensor], Tensor]]


def _gradient(head: str, dim: int, options: Mapping[str, Any], x: Tensor, y: Tensor, classes: int, decay: float) -> Any:
    """A head by gradient; with unit features it starts from the leading directions of each class, if it has enough."""
    torch.manual_seed(0)
    start = options.get("normalize") and min(torch.bincount(y, minlength=classes)) >= dim
    if start:
        module: nn.Module = CapsuleProjection.from_features(F.normalize(x), y, dim, num_classes=classes, **options)
    else:
        module = create_head(head, x.shape[1], classes, dim, **options)
    fit_head(module, x, y, epochs=max(20, min(200, 2_000_000 // len(x) // 20)), weight_decay=decay)
    return torch.no_grad()(lambda new: module(new).argmax(-1))


def _closed(dim: int, x: Tensor, y: Tensor, classes: int, _: float) -> Any:
    """Subspaces by SVD, with no training."""
    head = CapsuleProjection.from_features(F.normalize(x), y, dim, num_classes=classes, normalize=True)
    return torch.no_grad()(lambda new: head(new).argmax(-1))


def _logistic(x: Tensor, y: Tensor, _: int, penalty: float) -> Any:
    model = require("sklearn.linear_model", "sklearn").LogisticRegression(C=penalty, max_iter=1000).fit(x, y)
    return lambda new: torch.from_numpy(np.asarray(model.predict(new)))


def _neighbours(x: Tensor, y: Tensor, _: int, k: float) -> Any:
    model = require("sklearn.neighbors", "sklearn").KNeighborsClassifier(min(int(k), len(x))).fit(F.normalize(x), y)
    return lambda new: torch.from_numpy(np.asarray(model.predict(F.normalize(new))))


UNIT: Mapping[str, Any] = {"normalize": True, "scale": "learned"}
# Name, capsule dimension (0 for none), fit, settings to choose from.
CONTESTANTS: Sequence[tuple[str, int, Fit, tuple[float, ...]]] = (
    ("logistic regression", 0, _logistic, PENALTIES),
    ("linear", 0, partial(_gradient, "linear", 1, {}), DECAYS),
    ("cosine", 0, partial(_gradient, "cosine", 1, {}), DECAYS),
    ("k-NN", 0, _neighbours, NEIGHBOURS),
    ("group c=4", 4, partial(_gradient, "group", 4, {}), DECAYS),
    ("capsule c=4", 4, partial(_gradient, "capsule", 4, {}), DECAYS),
    *((f"unit capsule c={c}, scaled", c, partial(_gradient, "capsule", c, UNIT), DECAYS) for c in (1, 2, 4, 8, 16)),
    *((f"capsule c={c} by SVD", c, partial(_closed, c), (0.0,)) for c in (4, 8, 16)),
)


def run(data: str, folder: Path, report: Report, *, cache: str | None = None) -> dict[str, Any]:
    """Fit every head on every set of features; with `data="digits"` on the pixels alone."""
    sets: list[tuple[str, int, list[Split]]] = [("digits, pixels", 0, _folds())]
    recipes = {}
    if data != "digits":
        recipe = NETWORK.changed(data=data)
        model = trained(recipe, folder / "five-classes", report, cache)
        unseen = load_data(recipe.changed(classes=UNSEEN), cache)
        for parts in (1, 2):
            name = f"{unseen.name}, unseen classes, d={64 * parts**2}"
            test = _features(model, unseen.test, parts, report)
            pool = _features(model, unseen.train, parts, report)
            sets += [(name, size, list(_drawn(*pool, *test, size, draws))) for size, draws in DRAWS.items()]
        recipes["features"] = recipe.to_dict() | {"data": unseen.name}
    rows, done, total = [], 0, len(CONTESTANTS) * sum(len(splits) for _, _, splits in sets)
    for name, size, splits in sets:
        for head, dim, fit, settings in CONTESTANTS:
            errors = []
            for split in splits:
                report(f"{name}: {head}", done, total)
                done += 1
                if min(torch.bincount(split.y)) * 4 // 5 >= dim:
                    errors.append(_error(split, fit, settings))
            if errors:
                rows.append({"features": name, "size": size, "head": head, "errors": errors})
    return {"environment": environment(), "recipes": recipes, "rows": rows}


@torch.no_grad()
def _features(model: CapProNet, images: Samples, parts: int, report: Report) -> tuple[Tensor, Tensor]:
    """The last feature map averaged over `parts` by `parts` fields, as vectors, and the labels."""
    stages = nn.Sequential(*list(model.backbone.children())[:-1])
    batches = Batches(images, 500, normalize=model.normalization, shuffle=False)
    pooled = [
        (F.adaptive_avg_pool2d(stages(x), parts).flatten(1), y)
        for x, y in tracked(batches.epoch(0), "features", len(batches), report)
    ]
    x, y = (torch.cat(part) for part in zip(*pooled, strict=True))
    return x, y


def _drawn(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor, size: int, draws: int) -> Iterator[Split]:
    for draw in range(draws):
        chosen = _few(y, size, draw) if size else torch.arange(len(y))
        yield _scaled(x[chosen], y[chosen], x_test, y_test)


def _few(y: Tensor, size: int, draw: int) -> Tensor:
    """Positions of `size` random samples of each class."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(mixed_seed("few", draw)))
    return torch.cat([order[y[order] == label][:size] for label in range(int(y.max()) + 1)])


def _folds() -> list[Split]:
    """Digits' pixels, all images, five times four fifths against one."""
    data = load_data(Recipe(data="digits"))
    batches = [Batches(part, 500, shuffle=False).epoch(0) for part in (data.train, data.test)]
    x = torch.cat([x for epoch in batches for x, _ in epoch]).flatten(1)
    y = torch.cat([data.train.labels, data.test.labels])
    folds = require("sklearn.model_selection", "sklearn").StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    return [_scaled(x[a], y[a], x[b], y[b]) for a, b in folds.split(x, y)]


def _scaled(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> Split:
    """All features divided by one number, so that their mean square is 1; angles between them do not change."""
    size = x.square().mean().sqrt()
    return Split(x / size, y, x_test / size, y_test)


def _error(split: Split, fit: Fit, settings: Sequence[float]) -> float:
    """The test error with the setting that is best on held-out training features, fitted on all of them."""
    classes = int(split.y.max()) + 1
    best = settings[0]
    if len(settings) > 1:
        positions = Vectors(split.y, torch.arange(len(split.y))[:, None])
        rest, held = (part.x.flatten() for part in hold_out(positions, len(split.y) // 5, seed=0))
        errors = [
            (fit(split.x[rest], split.y[rest], classes, value)(split.x[held]) != split.y[held]).sum().item()
            for value in settings
        ]
        best = settings[errors.index(min(errors))]
    predicted = fit(split.x, split.y, classes, best)(split.x_test)
    return 100 * (predicted != split.y_test).double().mean().item()


def table(results: Mapping[str, Any]) -> Table:
    """Test errors in percent, with intervals over draws or folds; a column for each set of features."""
    sets = list(dict.fromkeys((row["features"], row["size"]) for row in results["rows"]))
    errors = {(row["features"], row["size"], row["head"]): row["errors"] for row in results["rows"]}
    heads = dict.fromkeys(row["head"] for row in results["rows"])
    rows = [(head, *(_cell(errors.get((*key, head), [])) for key in sets)) for head in heads]
    return Table(("head", *(_heading(*key) for key in sets)), rows, title="test error % on frozen features")


def _cell(errors: Sequence[float]) -> str:
    if not errors:
        return ""
    width = f" ± {interval(errors):.2f}" if len(errors) > 1 else ""
    return f"{statistics.mean(errors):.2f}{width}"


def _heading(name: str, size: int) -> str:
    """The width of the features and the images of each class."""
    if name.startswith("digits"):
        return name
    return f"{name.rpartition(', ')[2]}, {f'{size:,} per class' if size else 'all'}"
