"""A trained model on image files."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cappronet.extras import require
from cappronet.heads import CapsuleProjection
from cappronet.model import CapProNet

__all__ = ["Prediction", "predict_file", "read_image"]


@dataclass(frozen=True)
class Prediction:
    """What the model says of one image; `score` is the capsule length, and `angle` is in degrees."""

    label: str
    probability: float
    score: float
    angle: float | None


def read_image(path: Path, channels: int, size: int) -> Tensor:
    """An image file as `(C, H, W)` between 0 and 1, scaled to the model's size."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no image file {path}")
    Image = require("PIL.Image", "train")
    try:
        with Image.open(path) as file:
            image = file.convert("L" if channels == 1 else "RGB").resize((size, size), Image.Resampling.BILINEAR)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path} can't be read as an image: {error}") from None
    return pixels.view(size, size, channels).permute(2, 0, 1) / 255


@torch.no_grad()
def predict_file(model: CapProNet, path: Path) -> Prediction:
    """Classify one image file."""
    config = model.config
    image = read_image(path, config["in_channels"], config["image_size"])
    mean, std = (torch.tensor(config[name])[:, None, None] for name in ("mean", "std"))
    features = model.features(((image - mean) / std).unsqueeze(0))
    scores = model.head(features)[0]
    best = int(scores.argmax())
    angle = None
    if isinstance(model.head, CapsuleProjection):
        length = model.head.coordinates(features)[0, best].norm()
        whole = 1.0 if model.head.normalize else features.norm().clamp_min(torch.finfo(features.dtype).tiny)
        angle = math.degrees(math.acos(min(1.0, float(length / whole))))
    return Prediction(config["classes"][best], float(scores.softmax(-1)[best]), float(scores[best]), angle)
