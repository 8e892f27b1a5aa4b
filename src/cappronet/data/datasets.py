"""Datasets by name or path: digits, which ship with the package, the standard ones, `.npz` files, folders of images."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http.client import HTTPException
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cappronet.data.archives import read_image_archive, read_vectors
from cappronet.data.features import holds_features
from cappronet.data.files import one_line
from cappronet.data.folders import read_class_folders, read_image_folder
from cappronet.data.samples import Dataset, Images
from cappronet.extras import require
from cappronet.reporting import did_you_mean

__all__ = ["DATASETS", "VALIDATION", "cache_folder", "load_dataset"]

# How many training images the paper holds out for validation.
VALIDATION: Mapping[str, int] = {"cifar10": 5000, "cifar100": 5000, "svhn": 6000, "svhn_extra": 6000, "imagenet": 20000}
DIGITS = tuple("0123456789")


def load_dataset(source: str, cache: Path | None = None, download: bool = True) -> Dataset:
    """Load a dataset by its name in `DATASETS`, or from a path to an `.npz` file or a folder of images.

    Args:
        source: a name, or a path. An `.npz` file has the arrays of Keras: `x_train` and `x_test`, uint8 (n, H, W) or
            (n, H, W, C), `y_train` and `y_test` with integers from 0, and optionally the names of the `classes`.
            With `x_train` and `x_test` as (n, d) it holds feature vectors.
            A folder has a folder of images for each class below `train/` and `test/` (or `val/`); or directly, then a
            fifth of each class becomes the test set.
        cache: where downloads go, see `cache_folder`.
        download: whether missing files may be fetched.
    """
    if source in DATASETS:
        return DATASETS[source](cache_folder(cache), download)
    path = Path(source).expanduser()
    if holds_features(path):
        return read_vectors(path)
    if path.is_dir():
        return read_image_folder(path)
    if path.is_file() or path.suffix == ".npz":
        return read_image_archive(path)
    raise FileNotFoundError(
        f"there is no dataset or path {source!r}: expected one of {', '.join(DATASETS)}, or the path of an .npz file "
        f"or a folder of images{did_you_mean(source, DATASETS)}"
    )


def cache_folder(cache: Path | None = None) -> Path:
    """Where datasets are kept: the argument, else the environment's CAPPRONET_DATA, else ~/.cache/cappronet."""
    return Path(cache or os.environ.get("CAPPRONET_DATA") or "~/.cache/cappronet").expanduser()


def _digits(_cache: Path, _download: bool) -> Dataset:
    """The 8x8 digits of scikit-learn, which ship with the package; their grey values 0 to 16 are stored times 15."""
    with as_file(files("cappronet") / "data" / "digits.npz") as path:
        return read_image_archive(path)


def _halves(name: str, kind: str, archives: str, cache: Path, download: bool) -> Dataset:
    return _standard(name, kind, archives, [{"train": True}, {"train": False}], cache, download)


def _svhn(name: str, training: Sequence[str], cache: Path, download: bool) -> Dataset:
    splits = [*training, "test"]
    archives = f"{{{','.join(splits)}}}_32x32.mat"
    return _standard(name, "SVHN", archives, [{"split": split} for split in splits], cache / "svhn", download)


def _standard(
    name: str, kind: str, archives: str, splits: Sequence[Mapping[str, Any]], folder: Path, download: bool
) -> Dataset:
    """A dataset of torchvision, which downloads it and checks its sums; the last of `splits` is the test set."""
    constructor = getattr(require("torchvision.datasets", "vision"), kind)
    try:
        parts = [constructor(folder, download=download, **split) for split in splits]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{name} needs {error.name}: pip install {error.name}", name=error.name) from error
    except (OSError, RuntimeError, HTTPException, EOFError, ValueError, AssertionError) as error:
        remedy = f"put {archives} there" if download else f"allow downloads; with {archives} there, none is made"
        raise FileNotFoundError(
            f"{name} is missing or incomplete in {folder} and could not be fetched ({one_line(error)}): {remedy}"
        ) from error
    *train, test = [_standard_images(part) for part in parts]
    pixels, labels = zip(*train, strict=True)
    # SVHN names no classes, and MNIST calls them "0 - zero"
    classes = parts[0].classes if kind in ("CIFAR10", "CIFAR100", "FashionMNIST") else DIGITS
    return Dataset(name, tuple(classes), Images(torch.cat(labels), torch.cat(pixels)), Images(test[1], test[0]))


def _standard_images(part: Any) -> tuple[Tensor, Tensor]:
    """Pixels (n, C, H, W) and labels of a torchvision dataset, whose layouts differ."""
    pixels = torch.as_tensor(part.data)
    labels = torch.as_tensor(part.labels if hasattr(part, "labels") else part.targets)
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(1)
    elif pixels.shape[-1] == 3:
        pixels = pixels.permute(0, 3, 1, 2)
    return pixels.contiguous(), labels.to(torch.int64)


def _imagenet(cache: Path, _download: bool) -> Dataset:
    """ImageNet's training and validation images, which stay files."""
    root = cache / "imagenet"
    for part in ("train", "val"):
        if not (root / part).is_dir():
            raise FileNotFoundError(
                f"imagenet was looked for in {root}, which has no folder {part}: it can't be downloaded without an "
                "account, so get it from image-net.org and put train/<class>/*.JPEG and val/<class>/*.JPEG there"
            )
    classes, train = read_class_folders(root / "train")
    return Dataset("imagenet", classes, train, read_class_folders(root / "val", classes)[1])


_IDX = "raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"

# From name to loader, called with the cache folder and whether to download.
DATASETS: Mapping[str, Callable[[Path, bool], Dataset]] = {
    "digits": _digits,
    "cifar10": partial(_halves, "cifar10", "CIFAR10", "cifar-10-python.tar.gz"),
    "cifar100": partial(_halves, "cifar100", "CIFAR100", "cifar-100-python.tar.gz"),
    "svhn": partial(_svhn, "svhn", ["train"]),
    "svhn_extra": partial(_svhn, "svhn_extra", ["train", "extra"]),
    "mnist": partial(_halves, "mnist", "MNIST", f"MNIST/{_IDX}"),
    "fashion_mnist": partial(_halves, "fashion_mnist", "FashionMNIST", f"FashionMNIST/{_IDX}"),
    "imagenet": _imagenet,
}
