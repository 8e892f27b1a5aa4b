"""A trained model on image files."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cappronet.batches import Augmentation, file_transform
from cappronet.datasets import read_image
from cappronet.heads import CapsuleProjection
from cappronet.model import CapProNet

__all__ = ["Prediction", "predict_file", "prepared"]


@dataclass(frozen=True)
class Prediction:
    """What the model says of one image; `score` is the capsule length, and `angle` is in degrees."""

    label: str
    probability: float
    score: float
    angle: float | None


def prepared(model: CapProNet, path: Path) -> Tensor:
    """An image file as the model's own test images are read, `(1, C, H, W)`, normalized."""
    config = model.config
    if not path.is_file():
        raise FileNotFoundError(f"there is no image file {path}")
    image = read_image(path, "L" if config["in_channels"] == 1 else "RGB")
    if config["files"]:
        pixels = file_transform(Augmentation())(image)
    else:
        size = config["image_size"]
        pixels = torch.from_numpy(np.array(image.resize((size, size)))).view(size, size, -1).permute(2, 0, 1)
    mean, std = (torch.tensor(config[name])[:, None, None] for name in ("mean", "std"))
    return ((pixels / 255 - mean) / std).unsqueeze(0)


@torch.no_grad()
def predict_file(model: CapProNet, path: Path) -> Prediction:
    """Classify one image file."""
    features = model.features(prepared(model, path))
    scores = model.head(features)[0]
    best = int(scores.argmax())
    angle = None
    if isinstance(model.head, CapsuleProjection):
        length = model.head.coordinates(features)[0, best].norm()
        whole = 1.0 if model.head.normalize else features.norm().clamp_min(torch.finfo(features.dtype).tiny)
        angle = math.degrees(math.acos(min(1.0, float(length / whole))))
    return Prediction(model.config["classes"][best], float(scores.softmax(-1)[best]), float(scores[best]), angle)
