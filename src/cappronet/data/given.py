"""Images that a caller has in memory: arrays, or a torch `Dataset`. Training reads them from a file, as all images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from cappronet.data.archives import read_image_archive
from cappronet.data.files import replace_file
from cappronet.data.samples import Dataset, Images
from cappronet.data.splits import hold_out_fifth

__all__ = ["GivenImages", "ImageData", "as_pixels", "given_images", "store"]

# What `train` and `compare` take: a name, a path, images and labels, or a torch `Dataset` of (image, label).
ImageData = str | Path | tuple[ArrayLike, ArrayLike] | torch.utils.data.Dataset[Any]

# What the data is called in tables.
NAME = "images"
SHAPES = "(n, H, W), (n, H, W, C) or (n, C, H, W) with C = 1 or 3"


@dataclass(frozen=True, eq=False)
class GivenImages:
    """Training and test images, and the label of each class `(L,)` as the caller has it."""

    dataset: Dataset
    labels: NDArray[Any]


def given_images(data: Any, test: Any = None) -> GivenImages:
    """Images and labels of the caller as a dataset.

    Args:
        data: images and labels as `(x, y)`, or a map-style torch `Dataset` of (image, label), of which every item is
            read once. For images see `as_pixels`; a `Dataset` may also have Pillow images. Labels are whole numbers or
            text.
        test: images to measure errors on, in one of these forms. Without them, a fifth of each class is held out.
    """
    pixels, y, names = _arrays(data, "data")
    labels, numbers = np.unique(y, return_inverse=True)
    if len(labels) < 2:
        raise ValueError(f"the labels of data have a single class, {labels[0]}: expected at least two")
    classes = tuple(names[label] if names else str(label) for label in labels.tolist())
    images = Images(torch.from_numpy(numbers.astype(np.int64)), pixels)
    if test is None:
        train, held_out = hold_out_fifth(images, classes, "data")
        return GivenImages(Dataset(NAME, classes, train, held_out), labels)
    test_pixels, y_test, _ = _arrays(test, "test")
    unknown = set(y_test.tolist()) - set(labels.tolist())
    if unknown:
        raise ValueError(f"the label {min(unknown)!r} of test is not among those of data: add images of it there")
    if test_pixels.shape[1:] != pixels.shape[1:]:
        shapes = f"{tuple(pixels.shape[1:])} in data and {tuple(test_pixels.shape[1:])} in test"
        raise ValueError(f"images must have one shape (C, H, W), got {shapes}")
    held_out = Images(torch.from_numpy(np.searchsorted(labels, y_test)), test_pixels)
    return GivenImages(Dataset(NAME, classes, images, held_out), labels)


def store(dataset: Dataset, path: Path) -> None:
    """Write images to an `.npz` file, unless it holds them already.

    Raises:
        FileExistsError: it holds other images.
    """
    if path.exists():
        before = read_image_archive(path)
        if before.fingerprint() != dataset.fingerprint() or before.classes != dataset.classes:
            raise FileExistsError(f"{path} holds other images than those given: choose another folder")
        return
    arrays: dict[str, Any] = {"classes": np.array(dataset.classes)}
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        assert isinstance(samples, Images)
        assert samples.pixels is not None
        arrays |= {f"x_{part}": samples.pixels.permute(0, 2, 3, 1).numpy(), f"y_{part}": samples.labels.numpy()}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # given a path, numpy would add a suffix to it
            np.savez(file, **arrays)

    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, write)


def as_pixels(x: Any, name: str = "images") -> Tensor:
    """Images as uint8 `(n, C, H, W)`.

    Args:
        x: `(n, H, W)`, `(n, H, W, C)` or `(n, C, H, W)` with C = 1 or 3: an array or tensor of whole numbers from 0 to
            255, or of floats from 0 to 1, which are rounded to 256 levels.
        name: what they are called in errors.
    """
    x = _array(x)
    if x.ndim == 3 and x.shape[2] not in (1, 3):  # else it is one image in colour, without the axis of images
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim != 4 or x.shape[1] not in (1, 3):
        hint = "; for feature vectors use cappronet.probe" if x.ndim == 2 else ""
        raise ValueError(f"the images of {name} have shape {x.shape}, expected {SHAPES}{hint}")
    if x.size == 0 or x.dtype.kind not in "uif":
        raise ValueError(f"the images of {name} are {x.dtype} {x.shape}, expected numbers, uint8 or floats, {SHAPES}")
    if x.dtype != np.uint8:
        low, high = float(x.min()), float(x.max())
        most = 1 if x.dtype.kind == "f" else 255
        if not (low >= 0 and high <= most):  # also of NaN
            raise ValueError(
                f"the images of {name} are {x.dtype} from {low:g} to {high:g}, expected uint8, or floats from 0 to 1: "
                "divide them by the largest value that a pixel can have, and do not normalize them"
            )
        x = np.rint(x * 255).astype(np.uint8) if most == 1 else x.astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(x))


def _arrays(data: Any, name: str) -> tuple[Tensor, NDArray[Any], Sequence[str] | None]:
    """Pixels, labels, and names of the classes where labels are their numbers."""
    names: Sequence[str] | None = None
    if isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, str | np.ndarray | Tensor):
        x, y = _items(data, name)
        names = getattr(data, "classes", None)
    else:
        raise TypeError(
            f"{name} is {type(data).__name__}, expected the name of a dataset, a path, a tuple (x, y) of images and "
            "labels, or a map-style torch Dataset of (image, label)"
        )
    pixels, y = as_pixels(x, name), _array(y).reshape(-1)
    if y.dtype.kind == "O" and all(isinstance(label, str) for label in y):  # as pandas has text
        y = y.astype(str)
    if y.dtype.kind not in "iuU":
        raise ValueError(f"the labels of {name} are {y.dtype}, expected whole numbers or text")
    if len(y) != len(pixels):
        raise ValueError(f"{name} has {len(pixels)} images and {len(y)} labels: give one label for each image")
    if names is not None and (y.dtype.kind == "U" or y.min() < 0 or y.max() >= len(names)):
        names = None
    return pixels, y, names


def _items(dataset: Any, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The images and labels of a torch `Dataset`."""
    images, labels = [], []
    for number in range(len(dataset)):
        item = dataset[number]
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise ValueError(f"item {number} of {name} is {type(item).__name__}, expected a pair (image, label)")
        images.append(_array(item[0]))
        labels.append(_array(item[1]))
        if images[-1].shape != images[0].shape:
            raise ValueError(
                f"images of {name} differ in shape: {images[0].shape} and, at {number}, {images[-1].shape}; add a "
                "transform that resizes them, or pass the path of a folder, whose images may differ"
            )
    if not images:
        raise ValueError(f"{name} is empty: expected at least two images of each class")
    return np.stack(images), np.stack(labels)


def _array(values: Any) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(values)
