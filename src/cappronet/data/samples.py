"""Labelled samples: images or feature vectors, and a dataset of training and test samples."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

from torch import Tensor

__all__ = ["FILE_SIZE", "Dataset", "FileCrop", "Images", "Samples", "Vectors"]

# Images that stay files are cropped to squares of this side when they are read, unless a network asks for another.
FILE_SIZE = 224

T = TypeVar("T")


@dataclass(frozen=True)
class FileCrop:
    """The square that is cut out of an image file.

    Attributes:
        side: its side in pixels.
        share: of the shorter side of the scaled image, which the square takes; timm calls it `crop_pct`.
        interpolation: how images are scaled: `"bilinear"` or `"bicubic"`.
    """

    side: int = FILE_SIZE
    share: float = 0.875
    interpolation: str = "bilinear"

    @property
    def shorter_side(self) -> int:
        """What the shorter side of an image is scaled to before its centre is cut out."""
        return int(self.side / self.share)


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images: in memory as uint8 `(n, C, H, W)`, or as files that are read when they are needed.

    Attributes:
        labels: the classes `(n,)`.
        pixels: the images in memory.
        paths: the files to read the images from, instead of pixels.
        origins: the files that the pixels were read from, if they came from files; they are not read again.
    """

    labels: Tensor
    pixels: Tensor | None = None
    paths: tuple[Path, ...] | None = None
    crop: FileCrop = FileCrop()
    origins: tuple[Path, ...] | None = None

    def __post_init__(self) -> None:
        if (self.pixels is None) == (self.paths is None):
            raise ValueError("Images needs either pixels or paths")
        count = len(self.paths or ()) if self.pixels is None else len(self.pixels)
        if count != len(self.labels):
            raise ValueError(f"every image needs one label, got {count} images and {len(self.labels)} labels")
        if self.origins is not None and len(self.origins) != count:
            raise ValueError(f"every image has one file of origin, got {count} images and {len(self.origins)} files")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """`(C, H, W)` of one image, for files as they are after cropping."""
        return (3, self.crop.side, self.crop.side) if self.pixels is None else tuple(self.pixels.shape[1:])

    @property
    def files(self) -> tuple[Path, ...] | None:
        """The file of each image, whether it is in memory or not; None for images that never were files."""
        return self.origins if self.paths is None else self.paths

    def subset(self, indices: Tensor) -> Self:
        """The images at these positions, in this order."""
        pixels = None if self.pixels is None else self.pixels[indices]
        paths, origins = _chosen(self.paths, indices), _chosen(self.origins, indices)
        return replace(self, labels=self.labels[indices], pixels=pixels, paths=paths, origins=origins)

    def relabelled(self, labels: Tensor) -> Self:
        """The same images with other labels."""
        return replace(self, labels=labels)


@dataclass(frozen=True, eq=False)
class Vectors:
    """Labelled feature vectors `x (n, d)` in float32, which may be a mapped file, and the texts they were made of."""

    labels: Tensor
    x: Tensor
    text: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or len(self.x) != len(self.labels):
            raise ValueError(f"Vectors needs x (n, d) and n labels, got {tuple(self.x.shape)} and {len(self.labels)}")
        if self.text is not None and len(self.text) != len(self.labels):
            raise ValueError(f"every vector has one text, got {len(self.labels)} vectors and {len(self.text)} texts")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """`(d,)`."""
        return tuple(self.x.shape[1:])

    def subset(self, indices: Tensor) -> Self:
        """The vectors at these positions, in this order."""
        return replace(self, labels=self.labels[indices], x=self.x[indices], text=_chosen(self.text, indices))

    def relabelled(self, labels: Tensor) -> Self:
        """The same vectors with other labels."""
        return replace(self, labels=labels)


Samples = Images | Vectors


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples of the same classes, both images or both feature vectors."""

    name: str
    classes: tuple[str, ...]
    train: Samples
    test: Samples

    @property
    def holds_vectors(self) -> bool:
        """Whether these are feature vectors, not images."""
        return isinstance(self.train, Vectors)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """`(C, H, W)` of the images, for files as they are after cropping; `(d,)` of feature vectors."""
        return self.train.shape

    @property
    def image_size(self) -> int | tuple[int, int]:
        """The side of square images, height and width of others; of feature vectors, d."""
        if len(self.input_shape) == 1:
            return self.input_shape[0]
        _, height, width = self.input_shape
        return height if height == width else (height, width)

    @property
    def in_channels(self) -> int:
        """1 for grey images and for feature vectors, 3 for coloured images."""
        return self.input_shape[0] if len(self.input_shape) == 3 else 1

    def fingerprint(self) -> str:
        """A short hash of the content: labels, shapes and numbers, or the names and sizes of files."""
        digest = hashlib.sha256()
        parts = (self.train, self.test)
        paths = [path for part in parts if isinstance(part, Images) for path in part.paths or ()]
        root = os.path.commonpath({path.parent for path in paths}) if paths else ""
        for part in parts:
            digest.update(part.labels.numpy().tobytes())
            values = part.x if isinstance(part, Vectors) else part.pixels
            if values is not None:
                digest.update(repr(tuple(values.shape)).encode())
                digest.update(values.contiguous().numpy().data)
                continue
            for path in part.paths or () if isinstance(part, Images) else ():
                line = f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n"
                digest.update(line.encode(errors="surrogateescape"))  # names of files need not be UTF-8
        return digest.hexdigest()[:16]


def _chosen(items: tuple[T, ...] | None, indices: Tensor) -> tuple[T, ...] | None:
    """The items at these positions, in this order."""
    return None if items is None else tuple(items[i] for i in indices.tolist())
