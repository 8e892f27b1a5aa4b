"""Out-of-distribution detection: how well scores separate images of the eight classes of a network from all others.

The scores of the capsule head's geometry are compared with others on the same features, and with the usual network:
one with a linear head, trained by the same recipe.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cappronet.data.datasets import load_dataset
from cappronet.data.samples import Dataset, Images
from cappronet.data.splits import mixed_seed
from cappronet.extras import require
from cappronet.models.network import CapProNet
from cappronet.models.prediction import NOISES, noise
from cappronet.novelty import fit_scores, separations
from cappronet.reporting import Report, Table
from cappronet.training.run_folder import environment
from experiments.studies.frozen import OLD, Frozen, network_features, networks

__all__ = ["run", "table"]

# How many images of each kind are made, and the width of patches of photographs in pixels.
COUNT, PATCH = 2000, 32


def run(data: str, folder: Path, report: Report, *, cache: str | None = None) -> dict[str, Any]:
    """Train networks on eight classes, and measure AUROC and FPR at 95 % TPR of every score for other images."""
    images, nets = networks(data, folder, report, cache)
    rows, counts = [], {}
    for name, net in nets.items():
        known = net.y_test < len(OLD)
        kinds = {"held-out classes": net.x_test[~known]}
        for kind, others in _other_images(data, images, net.model).items():
            kinds[kind] = network_features(net.model, others, f"{name} network, {kind}", report)
        rows += _rows(name, net, net.x_test[known], kinds, report)
        counts = {"known": int(known.sum())} | {kind: len(x) for kind, x in kinds.items()}
    return {
        "study": "unknown",
        "recipes": {name: net.recipe.to_dict() | {"data": images.name} for name, net in nets.items()},
        "errors": {name: _error(net) for name, net in nets.items()},
        "images": counts,
        "rows": rows,
        "environment": environment(data=images.fingerprint()),
    }


def table(results: Mapping[str, Any]) -> Table:
    """AUROC and FPR of every score for every kind of other images, and their means."""
    errors = ", ".join(f"{error:.2f} % ({name})" for name, error in results["errors"].items())
    title = f"AUROC / FPR at 95 % TPR, in %; test errors of the networks on their own classes: {errors}"
    headings = ("network", "score", *results["rows"][0]["kinds"], "mean")
    return Table(headings, [_cells(row) for row in results["rows"]], names=2, title=title)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    pairs = list(row["kinds"].values())
    mean = [sum(pair[i] for pair in pairs) / len(pairs) for i in (0, 1)]
    score = "residual, angle" if row["score"] == "residual" else row["score"]
    return row["net"], score, *(f"{100 * auroc:.1f} / {100 * fpr:.1f}" for auroc, fpr in [*pairs, mean])


def _rows(name: str, net: Frozen, known: Tensor, kinds: Mapping[str, Tensor], report: Report) -> list[dict[str, Any]]:
    old = net.y < len(OLD)
    scores = fit_scores(net.model.head, net.x[old], net.y[old])
    rows = []
    for done, (score, function) in enumerate(scores.items()):
        report(f"{name} network, {score}", done, len(scores))
        pairs = separations({score: function}, known, kinds)[score]
        rows.append({"net": name, "score": score, "kinds": {kind: list(pair) for kind, pair in pairs.items()}})
    return rows


@torch.no_grad()
def _error(net: Frozen) -> float:
    known = net.y_test < len(OLD)
    wrong = net.model.head(net.x_test[known]).argmax(-1) != net.y_test[known]
    return 100 * wrong.double().mean().item()


def _other_images(source: str, data: Dataset, model: CapProNet) -> dict[str, Images]:
    """Images of no class of the dataset. Those of another size or with other channels are adapted to the model's."""
    others = {}
    if source != "digits":
        digits = load_dataset("digits")
        parts = [part for part in (digits.train, digits.test) if isinstance(part, Images)]
        labels, pixels = [part.labels for part in parts], [part.pixels for part in parts if part.pixels is not None]
        others["digits"] = Images(torch.cat(labels), torch.cat(pixels))
    photographs = _photographs()
    if photographs is not None:
        others["photo patches"] = photographs
    if isinstance(data.test, Images) and data.test.pixels is not None:
        others["shuffled pixels"] = _shuffled(data.test.subset((data.test.labels < len(OLD)).nonzero()[:COUNT, 0]))
    return others | {kind: noise(kind, model, COUNT) for kind in NOISES}


def _shuffled(images: Images) -> Images:
    """Test images with their pixels shuffled, each in an order of its own: colours remain, shapes do not."""
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
