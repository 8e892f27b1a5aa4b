"""A trained model on images from elsewhere: files, and datasets whose images have another size or other channels."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cappronet import novelty
from cappronet.batches import Augmentation, Batches, file_transform
from cappronet.datasets import Images, mixed_seed
from cappronet.heads import CapsuleProjection
from cappronet.image_files import read_image
from cappronet.model import CapProNet

__all__ = ["NOISES", "Prediction", "adapted", "features", "noise", "predict_file", "prepared"]

# The share of red, green and blue in a grey value: ITU-R 601, as image libraries do it.
GREY = (0.299, 0.587, 0.114)
BATCH = 500


@dataclass(frozen=True)
class Prediction:
    """What the model says of one image.

    Attributes:
        label: the class with the highest score.
        probability: its softmax probability.
        score: its score, for a capsule head the capsule length.
        angle: between the features and that class's subspace, in degrees; None for other heads.
        residual: the share of the features outside that subspace, from 0 to 1: high for images that are unlike those of
            every class. None for other heads.
    """

    label: str
    probability: float
    score: float
    angle: float | None
    residual: float | None = None


def prepared(model: CapProNet, path: Path) -> Tensor:
    """An image file as the model's own test images are read, `(1, C, H, W)`, normalized."""
    config = model.config
    if not path.is_file():
        raise FileNotFoundError(f"there is no image file {path}")
    _refuse_features(model)
    image = read_image(path, "L" if config["in_channels"] == 1 else "RGB")
    if config["files"]:
        pixels = file_transform(Augmentation())(image)
    else:
        _, height, width = model.input_shape
        pixels = torch.from_numpy(np.array(image.resize((width, height)))).view(height, width, -1).permute(2, 0, 1)
    return _normalized(model, (pixels / 255).unsqueeze(0))


@torch.no_grad()
def predict_file(model: CapProNet, path: Path) -> Prediction:
    """Classify one image file."""
    x = model.features(prepared(model, path))
    scores = model.head(x)[0]
    best = int(scores.argmax())
    angle = residual = None
    if isinstance(model.head, CapsuleProjection):
        angle, residual = (float(score(model.head, x)) for score in (novelty.angle, novelty.residual))
    return Prediction(
        model.config["classes"][best], float(scores.softmax(-1)[best]), float(scores[best]), angle, residual
    )


def adapted(model: CapProNet, x: Tensor) -> Tensor:
    """Images `(b, C, H, W)` from 0 to 1 as the model takes them: its channels, its size, normalized.

    Grey images become three equal channels, coloured ones their luminance. Others of another size are scaled to the
    model's, without regard to the ratio of their sides: bilinearly, with antialiasing where they become smaller.
    """
    channels, *size = model.input_shape
    if x.shape[1] == 1 and channels == 3:
        x = x.expand(-1, 3, -1, -1)
    elif x.shape[1] == 3 and channels == 1:
        x = (x * x.new_tensor(GREY).view(3, 1, 1)).sum(1, keepdim=True)
    elif x.shape[1] != channels:
        raise ValueError(f"images with {x.shape[1]} channels can't be shown to a model of {channels}")
    if list(x.shape[2:]) != size:
        x = F.interpolate(x, size, mode="bilinear", antialias=True)
    return _normalized(model, x)


@torch.no_grad()
def features(
    model: CapProNet,
    images: Images,
    *,
    workers: int = 0,
    track: Callable[[Iterable[Tensor], int], Iterator[Tensor]] = lambda items, _: iter(items),
) -> Tensor:
    """Feature vectors `(n, d)` of any images, in their order, on the CPU, from a model in eval mode.

    Args:
        model: a trained model.
        images: of its dataset or of another; those of another size or with other channels are `adapted`.
        workers: processes that read image files.
        track: passes batches on and shows how many of how many were; `display.Bar.track` does.
    """
    if images.holds_features or model.config["backbone"] == "features":
        return _stored_features(model, images)
    channels = 3 if images.pixels is None else images.pixels.shape[1]
    plain: dict[str, Any] = {"mean": [0.0] * channels, "std": [1.0] * channels}
    batches = Batches(images, BATCH, **plain, shuffle=False, workers=workers)
    return torch.cat([model.features(adapted(model, x)) for x in track((x for x, _ in batches.epoch(0)), len(batches))])


def noise(kind: str, model: CapProNet, count: int, seed: int = 0) -> Images:
    """Images of noise in the model's size: `noise` is uniform, `gaussian-noise` has its data's mean and variation."""
    generator = torch.Generator().manual_seed(mixed_seed(kind, seed))
    _refuse_features(model)
    pixels = NOISES[kind](model, (count, *model.input_shape), generator)
    return Images(torch.zeros(count, dtype=torch.int64), pixels.to(torch.uint8))


def _gaussian(model: CapProNet, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    mean, std = (torch.tensor(model.config[name]).view(-1, 1, 1) for name in ("mean", "std"))
    return (255 * (mean + std * torch.randn(shape, generator=generator))).round().clamp(0, 255)


NOISES: Mapping[str, Callable[[CapProNet, tuple[int, ...], torch.Generator], Tensor]] = {
    "noise": lambda _, shape, generator: torch.randint(256, shape, generator=generator),
    "gaussian-noise": _gaussian,
}


def _refuse_features(model: CapProNet) -> None:
    if model.config["backbone"] == "features":
        raise ValueError(f"this model takes feature vectors of {model.feature_dim} numbers, no images")


def _normalized(model: CapProNet, x: Tensor) -> Tensor:
    mean, std = (torch.tensor(model.config[name]).view(-1, 1, 1) for name in ("mean", "std"))
    return (x - mean) / std


def _stored_features(model: CapProNet, images: Images) -> Tensor:
    """A dataset of feature vectors needs no backbone, but vectors of the model's width."""
    if not images.holds_features or images.pixels is None or model.config["backbone"] != "features":
        raise ValueError("a model of feature vectors needs feature vectors, and a model of images needs images")
    x = images.pixels.flatten(1)
    if x.shape[1] != model.feature_dim:
        raise ValueError(f"this model takes features of width {model.feature_dim}, the data has {x.shape[1]}")
    return x.float()
