"""A trained model on new inputs: image files, features, datasets whose images have another size, and noise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cappronet import novelty
from cappronet.data.batches import Augmentation, Batches, file_transform
from cappronet.data.files import nearest_sibling
from cappronet.data.images import read_image
from cappronet.data.limits import check_regular
from cappronet.data.samples import Images, Samples, Vectors
from cappronet.data.splits import mixed_seed
from cappronet.heads import CapsuleProjection
from cappronet.models.network import CapProNet
from cappronet.reporting import Report, silent, tracked

__all__ = [
    "NOISES",
    "Prediction",
    "adapted",
    "features",
    "noise",
    "predict_features",
    "predict_file",
    "predict_files",
    "prepared",
]

# The weights of red, green and blue in a grey value: ITU-R 601, as in most image libraries.
LUMA = (0.299, 0.587, 0.114)
BATCH_SIZE = 500
# Image files that are decoded and classified at a time.
FILES_AT_ONCE = 32


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image or feature vector.

    Attributes:
        label: the class with the highest score.
        probability: its softmax probability.
        score: its score, for a capsule head the capsule length.
        angle: between the features and the nearest subspace, in degrees; None for other heads.
        residual: the share of the features outside the nearest subspace, from 0 to 1: high for images that are unlike
            those of every class. None for other heads.
    """

    label: str
    probability: float
    score: float
    angle: float | None
    residual: float | None = None


def prepared(model: CapProNet, path: Path) -> Tensor:
    """An image file as the model's own test images are read, `(1, C, H, W)`, normalized."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: expected an image file")
    if not path.exists():
        raise FileNotFoundError(f"there is no image file {path}{nearest_sibling(path)}")
    check_regular(path)
    _require_images(model)
    channels, height, width = model.input_shape
    image = read_image(path, "L" if channels == 1 else "RGB", "give an image file")
    if model.config["files"]:
        pixels = file_transform(Augmentation(), model.file_crop)(image)
    else:
        pixels = torch.from_numpy(np.array(image.resize((width, height)))).view(height, width, -1).permute(2, 0, 1)
    return model.normalize(pixels.unsqueeze(0))


def predict_file(model: CapProNet, path: Path) -> Prediction:
    """Classify one image file."""
    return predict_files(model, [path])[0]


@torch.no_grad()
def predict_files(model: CapProNet, paths: Sequence[Path], report: Report = silent) -> list[Prediction]:
    """Classify image files, some at a time."""
    parts = [paths[start : start + FILES_AT_ONCE] for start in range(0, len(paths), FILES_AT_ONCE)]
    predictions: list[Prediction] = []
    for part in tracked(parts, "classifying images", len(parts), report):
        x = model.features(torch.cat([prepared(model, path) for path in part]))
        predictions += predict_features(model, x)
    return predictions


@torch.no_grad()
def predict_features(model: CapProNet, x: Tensor) -> list[Prediction]:
    """Classify feature vectors as the model's head takes them: what `model.features` or `model.head_inputs` returns."""
    predictions: list[Prediction] = []
    for rows in x.split(BATCH_SIZE):
        scores = model.head(rows)
        probabilities, best = scores.softmax(-1).max(-1)
        labels = [model.config["classes"][number] for number in best.tolist()]
        lengths = scores.gather(-1, best.unsqueeze(-1)).squeeze(-1).tolist()
        angles: list[float] | list[None] = [None] * len(rows)
        residuals: list[float] | list[None] = [None] * len(rows)
        if isinstance(model.head, CapsuleProjection):
            angles, residuals = novelty.angle(model.head, rows).tolist(), novelty.residual(model.head, rows).tolist()
        predictions += map(Prediction, labels, probabilities.tolist(), lengths, angles, residuals)
    return predictions


def adapted(model: CapProNet, x: Tensor) -> Tensor:
    """Images `(B, C, H, W)` from 0 to 255 in the form the model takes: its channels, its size, normalized.

    Grey images are repeated in three channels, colour images become their luminance. Images of another size are scaled
    to the model's, ignoring their aspect ratio: bilinearly, with antialiasing when they get smaller.
    """
    channels, *size = model.input_shape
    if x.shape[1] == 1 and channels == 3:
        x = x.expand(-1, 3, -1, -1)
    elif x.shape[1] == 3 and channels == 1:
        x = (x * x.new_tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)
    elif x.shape[1] != channels:
        raise ValueError(f"the images have {x.shape[1]} channels, but the model takes {channels}")
    if list(x.shape[2:]) != size:
        x = F.interpolate(x, size, mode="bilinear", antialias=True)
    return model.normalize(x)


@torch.no_grad()
def features(model: CapProNet, samples: Samples, *, workers: int = 0, report: Report = silent) -> Tensor:
    """Feature vectors `(n, d)` of any samples, in their order, on the CPU, from a model in eval mode.

    Args:
        model: a trained model.
        samples: images of its dataset or of another, where other sizes and channels are `adapted`; for a model of
            feature vectors, vectors of its width, which are returned as its head takes them.
        workers: processes that read image files.
        report: called with the progress.
    """
    if isinstance(samples, Vectors) or model.takes_vectors:
        return _stored_features(model, samples)
    batches = Batches(model.as_read(samples), BATCH_SIZE, shuffle=False, workers=workers)
    tracked_batches = tracked(batches.epoch(0), "computing features", len(batches), report)
    return torch.cat([model.features(adapted(model, x)) for x, _ in tracked_batches])


def noise(kind: str, model: CapProNet, count: int, seed: int = 0) -> Images:
    """Noise images of the model's size: `noise` is uniform, `gaussian-noise` has the mean and std of its data."""
    _require_images(model)
    generator = torch.Generator().manual_seed(mixed_seed(kind, seed))
    pixels = NOISES[kind](model, (count, *model.input_shape), generator)
    return Images(torch.zeros(count, dtype=torch.int64), pixels.to(torch.uint8))


def _uniform(_model: CapProNet, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(256, shape, generator=generator)


def _gaussian(model: CapProNet, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return model.normalization.inverse(torch.randn(shape, generator=generator)).round().clamp(0, 255)


NOISES: Mapping[str, Callable[[CapProNet, tuple[int, ...], torch.Generator], Tensor]] = {
    "noise": _uniform,
    "gaussian-noise": _gaussian,
}


def _require_images(model: CapProNet) -> None:
    if model.takes_vectors:
        raise ValueError(f"this model takes feature vectors of width {model.feature_dim}, not images")


def _stored_features(model: CapProNet, samples: Samples) -> Tensor:
    """Feature vectors need no backbone, but the width that the model takes."""
    if not isinstance(samples, Vectors) or not model.takes_vectors:
        kinds = ("feature vectors", "images") if model.takes_vectors else ("images", "feature vectors")
        raise ValueError("this model takes {}, but the data holds {}".format(*kinds))
    if samples.shape != model.input_shape:
        raise ValueError(f"this model takes features of width {model.feature_dim}, the data has {samples.shape[0]}")
    return model.head_inputs(samples.x.float())
