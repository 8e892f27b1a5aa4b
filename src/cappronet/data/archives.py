"""Datasets in one `.npz` file: images in the layout of Keras, or feature vectors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cappronet.data.arrays import read_npz
from cappronet.data.features import FeatureData, read_features
from cappronet.data.names import checked_names
from cappronet.data.samples import Dataset, Images, Vectors

__all__ = ["read_image_archive", "read_vectors", "training_vectors"]

PARTS = ("x_train", "y_train", "x_test", "y_test")


def read_image_archive(path: Path) -> Dataset:
    """An `.npz` file with `x_train`, `y_train`, `x_test`, `y_test` and optionally `classes`, as Keras has it."""
    if not path.exists():
        raise FileNotFoundError(f"no file {path}: give the path to an existing .npz file with x_train, y_train, ...")
    arrays, members = read_npz(path, lambda name: name in (*PARTS, "classes"))
    for key in PARTS:
        if key not in arrays:
            present = ", ".join(members) or "none"
            raise ValueError(f"{path} has no array {key!r}, only {present}: save x_train, y_train, x_test and y_test")
    train, test = (_npz_images(path, arrays, part) for part in ("train", "test"))
    shapes = [tuple(arrays[key].shape[1:]) for key in ("x_train", "x_test")]
    if shapes[0] != shapes[1]:
        raise ValueError(f"images of {path} must have one shape, got {shapes[0]} in x_train and {shapes[1]} in x_test")
    classes = arrays.get("classes")
    names = None if classes is None else checked_names(path, (str(name) for name in classes.reshape(-1)))
    return Dataset(path.stem, _checked_classes(path, train.labels, test.labels, names), train, test)


def read_vectors(path: Path) -> Dataset:
    """A file of feature vectors, which stay mapped if they can be."""
    data = read_features(path)
    if data.x_test is None or data.y_test is None:
        raise ValueError(f"{path} has no test part to measure on: add x_test and y_test")
    train = training_vectors(data)
    test = Vectors(torch.from_numpy(data.y_test), torch.from_numpy(data.x_test), data.text_test)
    return Dataset(path.stem, _checked_classes(path, train.labels, test.labels, data.classes), train, test)


def training_vectors(data: FeatureData) -> Vectors:
    """The training part of a feature file."""
    return Vectors(torch.from_numpy(data.y_train), torch.from_numpy(data.x_train), data.text_train)


def _npz_images(path: Path, arrays: Mapping[str, Any], part: str) -> Images:
    x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if x.dtype != np.uint8:
        raise ValueError(f"x_{part} of {path} is {x.dtype}, expected uint8 from 0 to 255: convert it before saving")
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] > 4) or x.size == 0:
        raise ValueError(f"x_{part} of {path} has shape {x.shape}, expected images as (n, H, W) or (n, H, W, C)")
    if y.dtype.kind not in "iu" or y.ndim == 0 or y.shape[1:] not in ((), (1,)):
        raise ValueError(f"y_{part} of {path} is {y.dtype} {y.shape}, expected integers of shape (n,) or (n, 1)")
    if len(x) != len(y):
        raise ValueError(f"{path} has {len(x)} images in x_{part} but {len(y)} labels in y_{part}: give one for each")
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    return Images(torch.from_numpy(y.reshape(-1).astype(np.int64)), torch.from_numpy(np.ascontiguousarray(x)))


def _checked_classes(path: Path, train: Tensor, test: Tensor, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of the classes, after a check that labels are 0 to L - 1 and that each class can be learned."""
    present = set(train.unique().tolist())
    count = len(present) if names is None else len(names)
    rule = f"expected 0 to {count - 1} for its {count} classes"
    if min(present) < 0 or (names is not None and max(present) >= count):
        raise ValueError(f"y_train of {path} has labels from {min(present)} to {max(present)}, {rule}")
    for label in range(count):
        if label not in present:
            raise ValueError(f"y_train of {path} has no image of class {label}, {rule}, each with an image")
    if count < 2:
        raise ValueError(f"{path} has a single class, expected at least two")
    for label in test.unique().tolist():
        if label not in present:
            raise ValueError(f"y_test of {path} has class {label}, which y_train has not, {rule}")
    return names or tuple(str(label) for label in range(count))
