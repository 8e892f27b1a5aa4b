"""The images of a run and where they lie in every capsule subspace, as arrays."""

import csv
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cappronet import projection
from cappronet.batches import Batches
from cappronet.datasets import Images, take
from cappronet.heads import CapsuleProjection
from cappronet.ingredients import prepare
from cappronet.model import CapProNet
from cappronet.runs import Run

__all__ = ["CapsuleTable", "OnProgress", "capsule_table", "write_csv"]

# Called with what is being done, how much of it is done, and how much there is.
OnProgress = Callable[[str, int, int], None]

THUMBNAIL = 48  # the longer side of a thumbnail, at most
SEED = 0  # of the choice of images
PAIRS_AT_ONCE = 50_000  # of subspaces whose angles are computed in one batch


@dataclass(frozen=True, eq=False)
class CapsuleTable:
    """Images of one split, a row each, and the subspaces that they are projected onto.

    Lengths and coordinates are those of the projection itself: of x, or of x/|x| where the head normalizes, and before
    the head's `scale` is applied.

    Attributes:
        classes: the names of the L classes.
        split: `"test"` or `"train"`.
        total: how many images the split has; the table holds n of them, with every class in its proportion.
        index: the position of each image in the split `(n,)`.
        labels: true classes `(n,)`.
        predictions: predicted classes `(n,)`.
        features: the feature vectors as the head projects them `(n, d)`.
        lengths: the capsule lengths `|v_l|` `(n, L)`.
        residuals: `|x_perp| / |x|` for the nearest subspace `(n,)`: 0 inside of it, 1 orthogonal to all of them.
        basis: `(W'W)^(-1/2) W'`, what takes features to coordinates `(L, c, d)`.
        angles: principal angles between two classes' subspaces, in degrees, smallest first `(L, L, c)`.
        conditions: the condition number of each class's `W'W` `(L,)`.
        random_angle: the smallest principal angle, in degrees, that two random subspaces of this size have on average.
        thumbnails: the images as the network saw them, made small `(n, h, w, 1 or 3)`, uint8.
        paths: where each image was read from, below the folder that all are in; empty for images in memory.
        normalize: whether the head projects x/|x|.
        scale: what the head multiplies lengths by.
    """

    classes: tuple[str, ...]
    split: str
    total: int
    index: NDArray[np.int64]
    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]
    features: NDArray[np.float32]
    lengths: NDArray[np.float32]
    residuals: NDArray[np.float32]
    basis: NDArray[np.float32]
    angles: NDArray[np.float32]
    conditions: NDArray[np.float64]
    random_angle: float
    thumbnails: NDArray[np.uint8]
    paths: tuple[str, ...]
    normalize: bool
    scale: float

    def __len__(self) -> int:
        return len(self.index)

    @property
    def capsule_dim(self) -> int:
        """c, the dimension of each subspace."""
        return self.basis.shape[1]

    def coordinates(self, label: int, images: NDArray[Any] | slice = slice(None)) -> NDArray[np.float32]:
        """`(W'W)^(-1/2) W'x` of all or some images in one class's subspace `(n, c)`; of all classes may not fit."""
        return self.features[images] @ self.basis[label].T

    def principal_directions(self, label: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Orthonormal directions `(c, c)` in one class's coordinates, a row each, and their shares of squared length.

        They are those of the capsules of the class's own images, of which the first k keep the most squared length
        that k directions can. A class without images here has those of all images.
        """
        own = np.flatnonzero(self.labels == label)
        y = self.coordinates(label, own if len(own) else slice(None)).astype(np.float64)
        values, vectors = np.linalg.eigh(y.T @ y)
        values, rows = values[::-1].clip(0), vectors[:, ::-1].T
        largest = np.take_along_axis(rows, np.abs(rows).argmax(1)[:, None], 1)
        rows = rows * np.where(largest < 0, -1, 1)  # of the two signs that a direction can have, always the same
        return rows.astype(np.float32), (values / max(values.sum(), np.finfo(float).tiny)).astype(np.float32)


def capsule_table(
    run: str | Path,
    split: str = "test",
    images: int = 2000,
    cache: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> CapsuleTable:
    """What a finished run's capsule subspaces make of its images.

    Args:
        run: the run folder.
        split: `"test"`, which is the held-out images if the recipe holds some out, or `"train"`.
        images: how many images to take, every class in its proportion; fewer where the split has fewer.
        cache: folder of downloaded datasets.
        on_progress: called with what is being done, how much is done, and how much there is.
    """
    if split not in ("test", "train"):
        raise ValueError(f"split must be 'test' or 'train', got {split!r}")
    if images < 1:
        raise ValueError(f"the number of images must be at least 1, got {images}")
    place = Run.open(run)
    recipe, _ = place.recipe, place.summary  # the summary says so where a run is not finished
    model = CapProNet.from_pretrained(place.folder)
    head = model.head
    if not isinstance(head, CapsuleProjection):
        raise ValueError(
            f"{run} has the head {recipe.head!r}, which has no subspaces: explore a run with head 'capsule'"
        )
    data = prepare(recipe, str(cache) if cache else None)
    if len(data.classes) != head.num_classes:
        raise ValueError(
            f"{recipe.data} has {len(data.classes)} classes now, but {run} was trained on {head.num_classes}: "
            "restore the data it was trained on"
        )
    every = data.test if split == "test" else data.train
    index = _chosen(every, images)
    report = on_progress or (lambda *_: None)
    seen = _projected(model, head, every.subset(index), report)
    return CapsuleTable(
        classes=tuple(model.config["classes"]),
        split=split,
        total=len(every),
        index=index.numpy(),
        labels=every.labels[index].numpy(),
        paths=_short_paths(every, index),
        normalize=head.normalize,
        scale=1.0 if head.scale is None else float(torch.as_tensor(head.scale).detach()),
        **seen,
        **_subspaces(head, report),
    )


def write_csv(table: CapsuleTable, path: str | Path, on_progress: OnProgress | None = None) -> None:
    """Write a table as a new CSV file: an image a row, with its length and its coordinates in every class."""
    path = Path(path)
    with path.open("x", newline="", encoding="utf-8", errors="surrogateescape") as file:
        try:
            for number, row in enumerate(_rows(table)):
                csv.writer(file).writerow(row)
                if on_progress and number % 100 == 0:
                    on_progress("writing the CSV file", number, len(table))
        except BaseException:
            path.unlink()
            raise


def _rows(table: CapsuleTable) -> Iterator[list[str | int]]:
    """The header, then the images."""
    L, c, d = table.basis.shape
    names, labels, predictions = table.classes, table.labels.tolist(), table.predictions.tolist()
    yield [
        *("index", "label", "class", "prediction", "predicted_class", "residual", "path"),
        *(f"length {name}" for name in names),
        *(f"coordinate {name} {k + 1}" for name in names for k in range(c)),
    ]
    for i, (label, found) in enumerate(zip(labels, predictions, strict=True)):
        coordinates = table.basis.reshape(L * c, d) @ table.features[i]
        numbers = [f"{value:.6g}" for value in (*table.lengths[i].tolist(), *coordinates.tolist())]
        path = table.paths[i] if table.paths else ""
        residual = f"{table.residuals[i]:.6g}"
        yield [int(table.index[i]), label, names[label], found, names[found], residual, path, *numbers]


def _chosen(images: Images, size: int) -> Tensor:
    """Positions of `size` of the images, or of all, every class in its proportion; in order."""
    positions = torch.arange(len(images))
    if size >= len(images):
        return positions
    chosen = take(Images(images.labels, pixels=positions), size, SEED).pixels  # positions in place of pixels
    assert chosen is not None
    return chosen


def _short_paths(images: Images, index: Tensor) -> tuple[str, ...]:
    """Paths below the folder that all images of the split are in: a page that is passed on names no home folder."""
    if images.paths is None:
        return ()
    root = os.path.commonpath({path.parent for path in images.paths})
    return tuple(images.paths[i].relative_to(root).as_posix() for i in index.tolist())


@torch.no_grad()
def _projected(model: CapProNet, head: CapsuleProjection, images: Images, report: OnProgress) -> dict[str, Any]:
    """What the network and its head make of the images, as arrays by name."""
    mean, std = (torch.tensor(model.config[name])[:, None, None] for name in ("mean", "std"))
    batches = Batches(images, 500 if images.paths is None else 50, mean=mean, std=std, shuffle=False)
    basis = _coordinate_basis(head)
    parts: dict[str, list[Tensor]] = {}
    for number, (x, _) in enumerate(batches.epoch(0)):
        report("projecting images", number, len(batches))
        features = model.features(x)
        predictions = head(features).argmax(-1)
        features = F.normalize(features, dim=-1, eps=1e-30) if head.normalize else features
        lengths = (features @ basis.flatten(0, 1).mT).unflatten(-1, basis.shape[:2]).norm(dim=-1)
        if not lengths.isfinite().all():
            raise ValueError("some of the model's capsule lengths are not finite: train it again with a smaller --lr")
        found = {
            "predictions": predictions,
            "features": features,
            "lengths": lengths,
            "residuals": _residuals(lengths.amax(-1), features.norm(dim=-1)),
            "thumbnails": _thumbnails(x * std + mean),
        }
        for name, value in found.items():
            parts.setdefault(name, []).append(value)
    return {"basis": basis.numpy(), **{name: torch.cat(values).numpy() for name, values in parts.items()}}


def _coordinate_basis(head: CapsuleProjection) -> Tensor:
    """`(W'W)^(-1/2) W' (L, c, d)`, once for all batches; `head.coordinates` finds it anew for each."""
    eigenvalues, q = torch.linalg.eigh(projection.regularized_gram(head.weight, head.eps))
    roots = eigenvalues.clamp_min(torch.finfo(eigenvalues.dtype).tiny).sqrt()
    return (q / roots.unsqueeze(-2)) @ q.mT @ head.weight


def _residuals(longest: Tensor, norms: Tensor) -> Tensor:
    """`|x_perp| / |x| = sqrt(1 - |v|^2 / |x|^2)`; of a feature vector of zero, nothing is left over."""
    cosines = torch.where(norms > 0, longest / norms, 1.0).clamp_max(1.0)
    return (1 - cosines.square()).sqrt()


def _thumbnails(images: Tensor) -> Tensor:
    """Images `(b, C, H, W)` from 0 to 1 as uint8 `(b, h, w, 1 or 3)`, scaled down to fit where they are larger."""
    images = images[:, :3] if images.shape[1] >= 3 else images[:, :1]
    height, width = images.shape[2:]
    factor = THUMBNAIL / max(height, width)
    if factor < 1:
        size = (max(1, round(height * factor)), max(1, round(width * factor)))
        images = F.interpolate(images, size, mode="bilinear", antialias=True)
    return (images * 255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


@torch.no_grad()
def _subspaces(head: CapsuleProjection, report: OnProgress) -> dict[str, Any]:
    """How the subspaces lie to each other, and how well their bases are conditioned."""
    weight = head.weight.double()
    L, c, _ = weight.shape
    eigenvalues = torch.linalg.eigvalsh(projection.regularized_gram(head.weight, head.eps).double())
    basis = projection.bases(weight)  # of the subspaces themselves, which no ridge shortens
    angles = torch.empty(L, L, c)
    done = 0
    for rows in torch.arange(L).split(max(1, PAIRS_AT_ONCE // L)):
        report("comparing subspaces", done, L)
        products = torch.einsum("kcd,led->klce", basis[rows], basis)
        angles[rows] = _principal_angles(products).float()
        done += len(rows)
    return {
        "angles": angles.numpy(),
        "conditions": (eigenvalues[:, -1] / eigenvalues[:, 0].clamp_min(torch.finfo(torch.float64).tiny)).numpy(),
        "random_angle": _random_angle(head.in_features, c),
    }


def _principal_angles(products: Tensor) -> Tensor:
    """Principal angles in degrees, smallest first, from the products `A B' (..., c, c)` of orthonormal bases.

    Their cosines are the singular values, as roots of the eigenvalues of a symmetric matrix, which come much faster in
    large batches.
    """
    squared = torch.linalg.eigvalsh(products @ products.mT).flip(-1)
    return squared.clamp(0, 1).sqrt().acos() * (180 / math.pi)


def _random_angle(d: int, c: int, pairs: int = 100) -> float:
    """What chance gives: the mean smallest principal angle of random subspaces, from a fixed seed."""
    draws = torch.randn(2, pairs, d, c, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    a, b = torch.linalg.qr(draws).Q
    return float(_principal_angles(a.mT @ b)[:, 0].mean())
