"""Datasets of image files: a folder for each class."""

import os
from pathlib import Path

import torch

from cappronet.data.images import SUFFIXES, decoded
from cappronet.data.limits import check_regular
from cappronet.data.names import checked_names
from cappronet.data.samples import Dataset, Images
from cappronet.data.splits import hold_out_fifth

__all__ = ["read_class_folders", "read_image_folder"]

# A folder of equal images is decoded into memory up to this many bytes.
MEMORY = 2**30


def read_image_folder(root: Path) -> Dataset:
    """A folder of images by class, in memory if they are equal in size and not too many."""
    tests = [root / name for name in ("test", "val") if (root / name).is_dir()]
    if (root / "train").is_dir() != bool(tests):
        missing = "test or val next to train" if not tests else f"train next to {tests[0].name}"
        raise FileNotFoundError(f"{root} has no folder {missing}: give both, or the folders of classes directly")
    if tests:
        classes, train = read_class_folders(root / "train")
        test = read_class_folders(tests[0], classes)[1]
    else:
        classes, images = read_class_folders(root)
        train, test = hold_out_fifth(images, classes, str(root))

    pixels = decoded([*(train.paths or ()), *(test.paths or ())], MEMORY)
    if pixels is not None:
        train = Images(train.labels, pixels[: len(train)], origins=train.paths)
        test = Images(test.labels, pixels[len(train) :], origins=test.paths)
    return Dataset(root.resolve().name, classes, train, test)


def read_class_folders(root: Path, classes: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], Images]:
    """The classes, which are the folders below `root`, and their image files; given `classes` must have them all."""
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if classes is None:
        classes = checked_names(root, (folder.name for folder in folders))
        if len(classes) < 2:
            present = f"only {classes[0]!r}" if classes else "none"
            raise ValueError(f"{root} needs a folder of images for each of at least two classes, but has {present}")
    labels: list[int] = []
    paths: list[Path] = []
    for folder in folders:
        if folder.name not in classes:
            raise ValueError(f"class {folder.name!r} of {root} is not among the training classes: add it there")
        images = _image_files(folder)
        if not images:
            raise ValueError(f"class folder {folder} has no images: add some, as .png or .jpg, or remove it")
        paths += images
        labels += [classes.index(folder.name)] * len(images)
    if not paths:
        raise ValueError(f"{root} needs a folder of images for each class, but has none")
    return classes, Images(torch.tensor(labels), paths=tuple(paths))


def _image_files(folder: Path) -> list[Path]:
    """The image files in a folder, by name; a pipe or a device among them is refused before anything is read."""
    images = []
    with os.scandir(folder) as entries:  # which knows the kind of most entries without another look at the disk
        for entry in entries:
            path = folder / entry.name
            if path.suffix.lower() in SUFFIXES and entry.name[0] != ".":
                if not entry.is_file():
                    check_regular(path)
                images.append(path)
    return sorted(images)
