"""Image files as Pillow images and as tensors, with errors that name the file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cappronet.extras import require

__all__ = ["decoded", "read_image"]


def read_image(path: Path, mode: str = "RGB") -> Any:
    """Decode one file as a Pillow image."""
    with _opened(path) as image:
        return image.convert(mode)


def decoded(paths: Sequence[Path], limit: int) -> Tensor | None:
    """All images as uint8 (n, C, H, W), or None if they differ in size or need more than `limit` bytes."""
    sizes, modes = set(), set()
    for path in paths:
        with _opened(path) as image:
            sizes.add(image.size)
            modes.add(image.mode)
            if len(sizes) > 1 or len(paths) * image.width * image.height > limit:
                return None
    ((width, height),) = sizes
    grey = modes <= {"1", "L"}
    if len(paths) * width * height * (1 if grey else 3) > limit:
        return None
    pixels = np.empty((len(paths), height, width, 1 if grey else 3), dtype=np.uint8)
    for row, path in zip(pixels, paths, strict=True):
        row[:] = np.asarray(read_image(path, "L" if grey else "RGB")).reshape(row.shape)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    pillow = require("PIL.Image", "vision")
    try:
        with pillow.open(path) as image:
            if image.mode[0] in "IF":  # Pillow would clip these
                raise ValueError(f"its mode is {image.mode}, expected 8 bits for each channel")
            yield image
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} can't be read as an image ({reason}): mend or remove it") from error
