"""Where images come from: data that ships with the package, the standard datasets, `.npz` files, folders of images.

`load_dataset` takes a name of `DATASETS` or a path. All sources give the same thing, a `Dataset` of labelled training
and test images; `hold_out` and `take` split them by class.
"""

import hashlib
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from http.client import HTTPException
from importlib.resources import as_file, files
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from cappronet.extras import require
from cappronet.feature_files import holds_features, read_features
from cappronet.image_files import decoded

__all__ = ["DATASETS", "VALIDATION", "Dataset", "Images", "cache_folder", "hold_out", "load_dataset", "take"]

# How many training images the paper holds out for validation.
VALIDATION: Mapping[str, int] = {"cifar10": 5000, "cifar100": 5000, "svhn": 6000, "svhn_extra": 6000, "imagenet": 20000}
# Images that stay files are cropped to squares of this side when they are read.
FILE_SIZE = 224
# A folder of equal images is decoded into memory up to this many bytes.
MEMORY = 2**30
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
DIGITS = tuple("0123456789")
# What numpy raises for files that are no archive, are damaged, or hold something else than arrays.
NPZ_ERRORS = (OSError, EOFError, ValueError, TypeError, RuntimeError, UnpicklingError, BadZipFile, zlib.error)


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images: in memory as uint8 (n, C, H, W), or as files that are read when they are needed.

    Feature vectors in place of images are float32 (n, 1, d, 1).
    """

    labels: Tensor
    pixels: Tensor | None = None
    paths: tuple[Path, ...] | None = None

    def __post_init__(self) -> None:
        if (self.pixels is None) == (self.paths is None):
            raise ValueError("Images needs either pixels or paths")
        count = len(self.paths or ()) if self.pixels is None else len(self.pixels)
        if count != len(self.labels):
            raise ValueError(f"every image needs one label, got {count} images and {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def holds_features(self) -> bool:
        """Whether these are feature vectors, not images."""
        return self.pixels is not None and self.pixels.is_floating_point()

    def subset(self, indices: Tensor) -> "Images":
        """The images at these positions, in this order."""
        pixels = None if self.pixels is None else self.pixels[indices]
        paths = None if self.paths is None else tuple(self.paths[i] for i in indices.tolist())
        return Images(self.labels[indices], pixels, paths)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images of the same classes."""

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images, for files as they are after cropping."""
        if self.train.pixels is None:
            return 3, FILE_SIZE, FILE_SIZE
        channels, height, width = self.train.pixels.shape[1:]
        return channels, height, width

    @property
    def image_size(self) -> int | tuple[int, int]:
        """The side of square images, height and width of others, and the number of features."""
        _, height, width = self.image_shape
        return height if height == width or self.train.holds_features else (height, width)

    @property
    def in_channels(self) -> int:
        """1 for grey images, 3 for coloured ones."""
        return self.image_shape[0]

    def fingerprint(self) -> str:
        """A short hash of what is in the dataset: labels, shapes and pixels, or the names and sizes of files."""
        digest = hashlib.sha256()
        paths = [path for images in (self.train, self.test) for path in images.paths or ()]
        root = os.path.commonpath({path.parent for path in paths}) if paths else ""
        for images in (self.train, self.test):
            digest.update(images.labels.numpy().tobytes())
            if images.pixels is not None:
                digest.update(repr(tuple(images.pixels.shape)).encode())
                digest.update(images.pixels.contiguous().numpy().data)
            for path in images.paths or ():
                digest.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode())
        return digest.hexdigest()[:16]


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
    if path.is_dir():
        return _folder(path)
    if path.is_file() or path.suffix == ".npz":
        return _features(path) if holds_features(path) else _npz(path)
    nearest = get_close_matches(source.lower(), DATASETS, n=1)
    hint = f", did you mean {nearest[0]!r}?" if nearest else "."
    raise FileNotFoundError(
        f"no dataset {source!r}{hint} Known are {', '.join(DATASETS)}, and paths to an .npz file or a folder of images"
    )


def cache_folder(cache: Path | None = None) -> Path:
    """Where datasets are kept: the argument, else the environment's CAPPRONET_DATA, else ~/.cache/cappronet."""
    return Path(cache or os.environ.get("CAPPRONET_DATA") or "~/.cache/cappronet").expanduser()


def hold_out(images: Images, size: int, seed: int) -> tuple[Images, Images]:
    """Split into (the rest, `size` images held out), both with the classes in the proportions they have in all."""
    if not 0 < size < len(images):
        raise ValueError(f"of {len(images)} images, 1 to {len(images) - 1} can be held out, got {size}")
    chosen = _stratified(images.labels, size, mixed_seed("hold out", seed))
    return images.subset((~chosen).nonzero()[:, 0]), images.subset(chosen.nonzero()[:, 0])


def take(images: Images, size: int, seed: int) -> Images:
    """`size` of the images, with the classes in the proportions they have in all."""
    if not 0 < size <= len(images):
        raise ValueError(f"of {len(images)} images, 1 to {len(images)} can be taken, got {size}")
    return images.subset(_stratified(images.labels, size, mixed_seed("take", seed)).nonzero()[:, 0])


def mixed_seed(*parts: int | str) -> int:
    """One seed of 63 bits from several numbers and words; neighbouring parts give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1


def _stratified(labels: Tensor, size: int, seed: int) -> Tensor:
    """A mask of `size` random positions; each class has its exact share of them, rounded up or down."""
    n, counts = len(labels), torch.bincount(labels)
    quotas = counts * size // n
    remainders = counts * size % n
    quotas[remainders.argsort(descending=True, stable=True)[: size - int(quotas.sum())]] += 1

    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]  # class after class, random inside each
    place = torch.arange(n) - (counts.cumsum(0) - counts)[labels[order]]
    chosen = torch.zeros(n, dtype=torch.bool)
    chosen[order[place < quotas[labels[order]]]] = True
    return chosen


def _digits(_cache: Path, _download: bool) -> Dataset:
    """The 8x8 digits of scikit-learn, which ship with the package; their grey values 0 to 16 are stored times 15."""
    with as_file(files("cappronet") / "data" / "digits.npz") as path:
        return _npz(path)


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
            f"{name} is missing or incomplete in {folder} and could not be fetched ({_one_line(error)}): {remedy}"
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
    classes, train = _files(root / "train")
    return Dataset("imagenet", classes, train, _files(root / "val", classes)[1])


def _npz(path: Path) -> Dataset:
    """An `.npz` file with the arrays of Keras."""
    arrays = _read_npz(path)
    for key in ("x_train", "y_train", "x_test", "y_test"):
        if key not in arrays:
            found = ", ".join(arrays) or "none"
            raise ValueError(f"{path} has no array {key!r}, found {found}: save x_train, y_train, x_test and y_test")
    train, test = (_npz_images(path, arrays, part) for part in ("train", "test"))
    shapes = [tuple(arrays[key].shape[1:]) for key in ("x_train", "x_test")]
    if shapes[0] != shapes[1]:
        raise ValueError(f"images of {path} must have one shape, got {shapes[0]} in x_train and {shapes[1]} in x_test")
    names = tuple(str(name) for name in arrays["classes"].reshape(-1)) if "classes" in arrays else None
    return Dataset(path.stem, _checked_classes(path, train.labels, test.labels, names), train, test)


def _features(path: Path) -> Dataset:
    """A file of feature vectors, which stay mapped if they can be."""
    data = read_features(path)
    if data.x_test is None or data.y_test is None:
        raise ValueError(f"{path} has no test part to measure on: add x_test and y_test")
    parts = ((data.x_train, data.y_train), (data.x_test, data.y_test))
    train, test = (Images(torch.from_numpy(y), torch.from_numpy(x).view(len(x), 1, -1, 1)) for x, y in parts)
    return Dataset(path.stem, _checked_classes(path, train.labels, test.labels, data.classes), train, test)


def _read_npz(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}: give the path to an existing .npz file with x_train, y_train, ...")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except NPZ_ERRORS as error:
        raise ValueError(
            f"{path} can't be read as an .npz file, it may be truncated ({_one_line(error)}): "
            "save it again with numpy.savez_compressed, without object arrays"
        ) from error


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


def _folder(root: Path) -> Dataset:
    """A folder of images by class, in memory if they are equal in size and not too many."""
    tests = [root / name for name in ("test", "val") if (root / name).is_dir()]
    if (root / "train").is_dir() != bool(tests):
        missing = "test or val beside train" if not tests else f"train beside {tests[0].name}"
        raise FileNotFoundError(f"{root} has no folder {missing}: give both, or the folders of classes directly")
    if tests:
        classes, train = _files(root / "train")
        test = _files(tests[0], classes)[1]
    else:
        classes, images = _files(root)
        for name, count in zip(classes, torch.bincount(images.labels).tolist(), strict=True):
            if count < 2:
                raise ValueError(f"class {name!r} of {root} has one image, but training and test need one each")
        train, test = hold_out(images, max(1, len(images) // 5), seed=0)

    pixels = decoded([*(train.paths or ()), *(test.paths or ())], MEMORY)
    if pixels is not None:
        train = Images(train.labels, pixels[: len(train)])
        test = Images(test.labels, pixels[len(train) :])
    return Dataset(root.resolve().name, classes, train, test)


def _files(root: Path, classes: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], Images]:
    """The classes, which are the folders below `root`, and their image files; given `classes` must have them all."""
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if classes is None:
        classes = tuple(folder.name for folder in folders)
        if len(classes) < 2:
            found = f"only {classes[0]!r}" if classes else "none"
            raise ValueError(f"{root} needs a folder of images for each of at least two classes, found {found}")
    labels: list[int] = []
    paths: list[Path] = []
    for folder in folders:
        if folder.name not in classes:
            raise ValueError(f"class {folder.name!r} of {root} is not among the training classes: add it there")
        found_files = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.name[0] != ".")
        if not found_files:
            raise ValueError(f"class folder {folder} has no images: add some, as .png or .jpg, or remove it")
        paths += found_files
        labels += [classes.index(folder.name)] * len(found_files)
    if not paths:
        raise ValueError(f"{root} needs a folder of images for each class, found none")
    return classes, Images(torch.tensor(labels), paths=tuple(paths))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


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
