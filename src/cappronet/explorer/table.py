"""The images of a run and their positions in every capsule subspace, as arrays."""

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cappronet import projection
from cappronet.data.archives import training_vectors
from cappronet.data.batches import Batches
from cappronet.data.features import has_test_part, holds_features, read_features
from cappronet.data.samples import Images, Samples, Vectors
from cappronet.data.selection import Selection
from cappronet.data.splits import stratified
from cappronet.heads import CapsuleProjection
from cappronet.models.network import CapProNet
from cappronet.reporting import Report, silent, tracked
from cappronet.training.run_folder import Run

__all__ = ["CapsuleTable", "capsule_table", "write_csv"]

THUMBNAIL_SIDE = 48  # the longer side of a thumbnail, at most
SEED = 0  # of the sample of images and of the random subspaces
PAIRS_IN_BATCH = 50_000  # pairs of subspaces whose angles are computed at once
RANDOM_SUBSPACES = 20  # one half against the other: 100 pairs


@dataclass(frozen=True, eq=False)
class CapsuleTable:
    """Images of one split, one row each, and the subspaces that they are projected onto.

    Lengths and coordinates are those of the projection of x, or of x/|x| if the head normalizes, before the head's
    `scale` is applied.

    Attributes:
        classes: the names of the L classes.
        split: `"test"` or `"train"`.
        total: number of images in the split; the table holds n of them, with every class in its proportion.
        index: the position of each image in the split `(n,)`.
        labels: true classes `(n,)`.
        predictions: predicted classes `(n,)`.
        features: the feature vectors as the head projects them `(n, d)`.
        lengths: the capsule lengths `|v_l|` `(n, L)`.
        residuals: `|x - v| / |x|` for the nearest subspace `(n,)`: 0 inside it, 1 orthogonal to all subspaces.
        basis: `(W'W)^(-1/2) W'`, which maps features to coordinates `(L, c, d)`.
        angles: principal angles between the subspaces of two classes, in degrees, smallest first `(L, L, c)`.
        conditions: the condition number of each class's `W'W` `(L,)`.
        random_angle: the mean smallest principal angle, in degrees, between random subspaces of this size.
        thumbnails: the images as the network receives them, scaled down `(n, h, w, 1 or 3)`, uint8; None for feature
            vectors.
        paths: the file of each image, relative to the folder of the dataset; empty if the images never were files.
        normalize: whether the head projects x/|x|.
        scale: the factor that the head multiplies lengths by.
        texts: the text of each feature vector; empty if the feature file has none.
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
    thumbnails: NDArray[np.uint8] | None
    paths: tuple[str, ...]
    normalize: bool
    scale: float
    texts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def capsule_dim(self) -> int:
        """c, the dimension of each subspace."""
        return self.basis.shape[1]

    def coordinates(self, label: int, images: NDArray[Any] | slice = slice(None)) -> NDArray[np.float32]:
        """`(W'W)^(-1/2) W'x (n, c)` of all or some images in the subspace of one class."""
        return self.features[images] @ self.basis[label].T

    def principal_directions(self, label: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Orthonormal directions `(c, c)` in one class's coordinates, one row each, and their shares of squared length.

        They are the principal directions of the capsules of the class's own images: the first k keep the most squared
        length that k directions can. A class without images in the table has those of all images.
        """
        own = np.flatnonzero(self.labels == label)
        y = self.coordinates(label, own if len(own) else slice(None)).astype(np.float64)
        values, vectors = np.linalg.eigh(y.T @ y)
        values, rows = values[::-1].clip(0), vectors[:, ::-1].T
        largest = np.take_along_axis(rows, np.abs(rows).argmax(1)[:, None], 1)
        rows = rows * np.where(largest < 0, -1, 1)  # a fixed choice between the two signs
        return rows.astype(np.float32), (values / max(values.sum(), np.finfo(float).tiny)).astype(np.float32)


def capsule_table(
    run: str | Path,
    split: str | None = None,
    images: int = 2000,
    cache: str | Path | None = None,
    report: Report = silent,
) -> CapsuleTable:
    """Project the images of a finished run onto its capsule subspaces.

    Args:
        run: the run folder.
        split: `"test"`, which is the held-out images if the recipe holds some out, or `"train"`. By default the test
            images, or the training samples of a feature file that has no test part.
        images: how many images to take, every class in its proportion; all if the split has fewer.
        cache: folder of downloaded datasets.
        report: called with a description of the current step, how much of it is done, and how much there is.
    """
    if split not in (None, "test", "train"):
        raise ValueError(f"split must be 'test' or 'train', got {split!r}")
    if images < 1:
        raise ValueError(f"the number of images must be at least 1, got {images}")
    run_folder = Run.open(run)
    selection, _ = run_folder.selection, run_folder.summary  # an unfinished run has no summary: an error says so
    model = CapProNet.from_pretrained(run_folder.folder)
    head = model.head
    if not isinstance(head, CapsuleProjection):
        raise ValueError(
            f"{run} has a {model.config['head']!r} head, which has no subspaces; explore needs a 'capsule' head"
        )
    classes, split, samples = _split(selection, split, cache)
    if len(classes) != head.num_classes:
        raise ValueError(
            f"{selection.data} has {len(classes)} classes now, but {run} was trained on {head.num_classes}; "
            "restore the data it was trained on"
        )
    index = _sampled(samples, images)
    chosen = samples.subset(index)
    return CapsuleTable(
        classes=tuple(model.config["classes"]),
        split=split,
        total=len(samples),
        index=index.numpy(),
        labels=samples.labels[index].numpy(),
        paths=_short_paths(chosen, selection.data),
        texts=(chosen.text or ()) if isinstance(chosen, Vectors) else (),
        normalize=head.normalize,
        scale=1.0 if head.scale is None else float(torch.as_tensor(head.scale).detach()),
        **_projected(model, head, chosen, report),
        **_subspaces(head, report),
    )


def write_csv(table: CapsuleTable, path: str | Path, report: Report = silent) -> None:
    """Write a table as a new CSV file: one image per row, with its lengths and its coordinates in every class."""
    path = Path(path)
    with path.open("x", newline="", encoding="utf-8", errors="surrogateescape") as file:
        try:
            csv.writer(file).writerows(tracked(_rows(table), "writing the CSV file", len(table) + 1, report))
        except BaseException:
            path.unlink()
            raise


def _rows(table: CapsuleTable) -> Iterator[list[str | int]]:
    """The header, then the images."""
    L, c, d = table.basis.shape
    names, labels, predictions = table.classes, table.labels.tolist(), table.predictions.tolist()
    yield [
        *("index", "label", "class", "prediction", "predicted_class", "residual", "path"),
        *(("text",) if table.texts else ()),
        *(f"length {name}" for name in names),
        *(f"coordinate {name} {k + 1}" for name in names for k in range(c)),
    ]
    for i, (label, predicted) in enumerate(zip(labels, predictions, strict=True)):
        coordinates = table.basis.reshape(L * c, d) @ table.features[i]
        numbers = [f"{value:.6g}" for value in (*table.lengths[i].tolist(), *coordinates.tolist())]
        words = [table.paths[i] if table.paths else "", *table.texts[i : i + 1]]
        residual = f"{table.residuals[i]:.6g}"
        yield [int(table.index[i]), label, names[label], predicted, names[predicted], residual, *words, *numbers]


def _split(selection: Selection, split: str | None, cache: str | Path | None) -> tuple[tuple[str, ...], str, Samples]:
    """The classes, the name of the split and its samples."""
    path = Path(selection.data).expanduser()
    if split != "test" and holds_features(path) and not has_test_part(path):
        features = read_features(path)
        return features.classes, "train", training_vectors(features)
    data = selection.load(cache)
    return data.classes, split or "test", data.train if split == "train" else data.test


def _sampled(samples: Samples, size: int) -> Tensor:
    """Positions of `size` samples, or of all, every class in its proportion; in ascending order."""
    return torch.arange(len(samples)) if size >= len(samples) else stratified(samples.labels, size, SEED)


def _short_paths(samples: Samples, data: str) -> tuple[str, ...]:
    """Paths relative to the folder of the dataset: a page that is shared reveals no home directory."""
    if isinstance(samples, Vectors) or samples.files is None:
        return ()
    root = Path(data).expanduser()
    if not all(path.is_relative_to(root) for path in samples.files):  # a dataset with a name, somewhere in the cache
        root = Path(os.path.commonpath({path.parent for path in samples.files}))
    return tuple(path.relative_to(root).as_posix() for path in samples.files)


@torch.no_grad()
def _projected(model: CapProNet, head: CapsuleProjection, samples: Samples, report: Report) -> dict[str, Any]:
    """Features, predictions, lengths, residuals and thumbnails of the samples, as arrays by name."""
    files = isinstance(samples, Images) and samples.paths is not None
    batches = Batches(model.as_read(samples), 50 if files else 500, shuffle=False)
    basis = projection.coordinate_bases(head.weight.double(), head.eps)  # once for all batches
    parts: dict[str, list[Tensor]] = {}
    for x, _ in tracked(batches.epoch(0), "projecting samples", len(batches), report):
        features = model.features(model.normalize(x))
        predictions = head(features).argmax(-1)
        features = F.normalize(features, dim=-1, eps=1e-30) if head.normalize else features
        lengths = torch.einsum("bd,lcd->blc", features.double(), basis).norm(dim=-1)
        if not lengths.isfinite().all():
            raise ValueError("some capsule lengths of the model are not finite; train it again with a smaller --lr")
        batch = {
            "predictions": predictions,
            "features": features,
            "lengths": lengths.float(),
            "residuals": projection.relative_residuals(lengths.amax(-1), features.double().norm(dim=-1)).float(),
        }
        if isinstance(samples, Images):
            batch["thumbnails"] = _thumbnails(x)
        for name, value in batch.items():
            parts.setdefault(name, []).append(value)
    arrays = {name: torch.cat(values).numpy() for name, values in parts.items()}
    return {"basis": basis.float().numpy(), "thumbnails": None, **arrays}


def _thumbnails(images: Tensor) -> Tensor:
    """Images `(B, C, H, W)` from 0 to 255 as uint8 `(B, h, w, 1 or 3)`, scaled down if they are larger."""
    images = images[:, :3] if images.shape[1] >= 3 else images[:, :1]
    height, width = images.shape[2:]
    factor = THUMBNAIL_SIDE / max(height, width)
    if factor < 1:
        size = (max(1, round(height * factor)), max(1, round(width * factor)))
        images = F.interpolate(images, size, mode="bilinear", antialias=True)
    return images.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


@torch.no_grad()
def _subspaces(head: CapsuleProjection, report: Report) -> dict[str, Any]:
    """The angles between subspaces, and the condition numbers of their bases."""
    weight = head.weight.double()
    L, c, _ = weight.shape
    eigenvalues = torch.linalg.eigvalsh(projection.regularized_gram(head.weight, head.eps).double())
    basis = projection.bases(weight)  # without the ridge, which would shorten them
    batches = torch.arange(L).split(max(1, PAIRS_IN_BATCH // L))
    angles = [
        projection.principal_angles(basis[rows], basis).rad2deg().float()
        for rows in tracked(batches, "comparing subspaces", len(batches), report)
    ]
    return {
        "angles": torch.cat(angles).numpy(),
        "conditions": (eigenvalues[:, -1] / eigenvalues[:, 0].clamp_min(torch.finfo(torch.float64).tiny)).numpy(),
        "random_angle": _random_angle(head.in_features, c),
    }


def _random_angle(d: int, c: int) -> float:
    """The mean smallest principal angle between random subspaces, in degrees, from a fixed seed."""
    generator = torch.Generator().manual_seed(SEED)
    basis = projection.bases(torch.randn(RANDOM_SUBSPACES, c, d, generator=generator, dtype=torch.float64))
    a, b = basis.chunk(2)
    return float(projection.principal_angles(a, b)[..., 0].mean().rad2deg())
