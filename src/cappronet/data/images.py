"""Image files as Pillow images and as tensors, with errors that name the file.

Everything that reads an image file goes through here: only regular files of a few raster formats are opened, whatever
their names end in. Pillow would pass others, such as EPS, to an interpreter.
"""

import functools
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cappronet.data.files import one_line
from cappronet.data.limits import check_regular
from cappronet.extras import require

__all__ = ["FORMATS", "SUFFIXES", "decoded", "read_image"]

# The formats that are opened, as Pillow calls them (PPM includes PBM and PGM), and the suffixes of such files.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
REMEDY = "fix or delete it"


def read_image(path: Path, mode: str = "RGB", remedy: str = REMEDY) -> Any:
    """Decode one file as a Pillow image; `remedy` says in errors what to do about a file that is none."""
    with _opened(path, remedy) as image:
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


@functools.cache
def _pillow() -> Any:
    """Pillow, whose log about damaged files reaches a program that reads logs, and not the terminal by default."""
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    return require("PIL.Image", "vision")


@contextmanager
def _opened(path: Path, remedy: str = REMEDY) -> Iterator[Any]:
    pillow = _pillow()
    check_regular(path)
    try:
        with (
            warnings.catch_warnings(action="ignore", category=UserWarning),
            pillow.open(path, formats=FORMATS) as image,
        ):
            if image.mode[0] in "IF":  # Pillow would clip these
                raise ValueError(f"its mode is {image.mode}, expected 8 bits for each channel")
            yield image
    except pillow.UnidentifiedImageError as error:
        raise ValueError(f"{path} can't be read as an image (it is none of {', '.join(FORMATS)}): {remedy}") from error
    except Exception as error:  # decoders of damaged files raise anything: struct.error, IndexError, TypeError, ...
        raise ValueError(f"{path} can't be read as an image ({one_line(error)}): {remedy}") from error
