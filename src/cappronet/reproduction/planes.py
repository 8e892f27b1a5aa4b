"""Figure 2 from a run: the capsule coordinates of its test images, class by class, and their lengths."""

from pathlib import Path

import torch

from cappronet.comparison import Display
from cappronet.heads import CapsuleProjection
from cappronet.ingredients import evaluation_batches, prepare
from cappronet.model import CapProNet
from cappronet.reproduction.figures import capsule_planes, length_histograms
from cappronet.runs import Run

__all__ = ["draw"]


@torch.no_grad()
def draw(run: Run, path: Path, cache: str | None, display: Display) -> tuple[Path, Path]:
    """Draw the planes of a run with c = 2 to `path`, and the histograms of lengths beside it."""
    model = CapProNet.from_pretrained(run.folder)
    if not isinstance(model.head, CapsuleProjection) or model.head.capsule_dim != 2:
        raise ValueError(f"{run.folder} has no capsules of dimension 2, which a plane needs")
    data = prepare(run.recipe, cache)
    batches = evaluation_batches(run.recipe, data)
    found = []
    for number, (x, y) in enumerate(batches.epoch(0)):
        display.count("projecting", number, len(batches))
        found.append((model.head.coordinates(model.features(x)), y))
    coordinates, labels = (torch.cat(part).numpy() for part in zip(*found, strict=True))
    histograms = path.with_name(f"{path.stem}-lengths{path.suffix}")
    capsule_planes(coordinates, labels, data.classes, path)
    length_histograms((coordinates**2).sum(-1) ** 0.5, labels, data.classes, histograms)
    return path, histograms
