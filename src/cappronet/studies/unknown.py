"""Unknown inputs: how well scores tell images of the eight classes that a network knows from everything else.

The scores of the capsule head's geometry stand beside their rivals on the same features, and beside the usual network:
one with a linear head, trained by the same recipe.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cappronet.comparison import Display
from cappronet.datasets import Dataset, Images, load_dataset, mixed_seed
from cappronet.extras import require
from cappronet.grid import Grid
from cappronet.model import CapProNet
from cappronet.novelty import fit_scores, separations
from cappronet.prediction import NOISES, features, noise
from cappronet.runs import environment
from cappronet.studies.frozen import OLD, Frozen, networks, tracker

__all__ = ["grid", "run"]

# How many images of each kind are made.
COUNT = 2000
PATCH = 32


def run(data: str, folder: Path, display: Display, *, cache: str | None = None) -> dict[str, Any]:
    """Train networks on eight classes, and measure AUROC and FPR at 95 % TPR of every score for unknown images."""
    images, nets = networks(data, folder, display, cache)
    rows, counts = [], {}
    for name, net in nets.items():
        known = net.y_test < len(OLD)
        kinds = {"held-out classes": net.x_test[~known]}
        for kind, found in _unknown_images(data, images, net.model).items():
            kinds[kind] = features(net.model, found, track=tracker(f"{name} net, {kind}", display))
        rows += _rows(name, net, net.x_test[known], kinds, display)
        counts = {"known": int(known.sum())} | {kind: len(x) for kind, x in kinds.items()}
    return {
        "study": "unknown",
        "recipes": {name: net.recipe.to_dict() | {"data": images.name} for name, net in nets.items()},
        "errors": {name: _error(net) for name, net in nets.items()},
        "images": counts,
        "rows": rows,
        "environment": environment(data=images.fingerprint()),
    }


def grid(found: Mapping[str, Any]) -> Grid:
    """AUROC and FPR of every score."""
    errors = ", ".join(f"{error:.2f} % ({name})" for name, error in found["errors"].items())
    title = f"AUROC / FPR at 95 % TPR, in %; errors of the networks on the classes they know: {errors}"
    headings = ("net", "score", *found["rows"][0]["kinds"], "mean")
    return Grid(headings, [_cells(row) for row in found["rows"]], names=2, title=title)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    pairs = list(row["kinds"].values())
    mean = [sum(pair[i] for pair in pairs) / len(pairs) for i in (0, 1)]
    score = "residual, angle" if row["score"] == "residual" else row["score"]
    return row["net"], score, *(f"{100 * auroc:.1f} / {100 * fpr:.1f}" for auroc, fpr in [*pairs, mean])


def _rows(name: str, net: Frozen, known: Tensor, kinds: Mapping[str, Tensor], display: Display) -> list[dict[str, Any]]:
    old = net.y < len(OLD)
    scores = fit_scores(net.model.head, net.x[old], net.y[old])
    rows = []
    for done, (score, function) in enumerate(scores.items()):
        display.count(f"{name} net, {score}", done, len(scores))
        found = separations({score: function}, known, kinds)[score]
        rows.append({"net": name, "score": score, "kinds": {kind: list(pair) for kind, pair in found.items()}})
    return rows


@torch.no_grad()
def _error(net: Frozen) -> float:
    known = net.y_test < len(OLD)
    wrong = net.model.head(net.x_test[known]).argmax(-1) != net.y_test[known]
    return 100 * wrong.double().mean().item()


def _unknown_images(source: str, data: Dataset, model: CapProNet) -> dict[str, Images]:
    """Images of no class of the dataset. Those of another size or with other channels are adapted to the model's."""
    found = {}
    if source != "digits":
        digits = load_dataset("digits")
        found["digits"] = Images(
            torch.cat([digits.train.labels, digits.test.labels]),
            torch.cat([part.pixels for part in (digits.train, digits.test) if part.pixels is not None]),
        )
    photographs = _photographs()
    if photographs is not None:
        found["photo patches"] = photographs
    if data.test.pixels is not None:
        found["shuffled pixels"] = _shuffled(data.test.subset((data.test.labels < len(OLD)).nonzero()[:COUNT, 0]))
    return found | {kind: noise(kind, model, COUNT) for kind in NOISES}


def _shuffled(images: Images) -> Images:
    """Known images with their pixels in random order, each in its own: the colours remain, the shapes do not."""
    assert images.pixels is not None
    n, channels, height, width = images.pixels.shape
    generator = torch.Generator().manual_seed(mixed_seed("shuffled pixels"))
    order = torch.rand(n, 1, height * width, generator=generator).argsort(-1).expand(-1, channels, -1)
    return Images(images.labels, images.pixels.flatten(2).gather(2, order).view(images.pixels.shape))


def _photographs() -> Images | None:
    """scikit-learn's photographs of a flower and a temple, cut into patches; None where it is not installed."""
    try:
        photographs = require("sklearn.datasets", "sklearn").load_sample_images().images
    except ImportError:  # it needs Pillow too
        return None
    pixels = [torch.from_numpy(photograph.copy()).permute(2, 0, 1) for photograph in photographs]
    patches = [p.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).permute(1, 2, 0, 3, 4).flatten(0, 1) for p in pixels]
    together = torch.cat(patches).contiguous()
    return Images(torch.zeros(len(together), dtype=torch.int64), together)
