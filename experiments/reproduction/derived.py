"""Datasets made from others: CIFAR-100 with its superclasses, CIFAR-10 with wrong labels.

They are written as `.npz` files, which recipes read like any user's: training knows nothing of them.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cappronet.data.datasets import load_dataset
from cappronet.data.files import replace_file
from cappronet.data.samples import Dataset, Images
from cappronet.data.splits import mixed_seed, stratified

__all__ = ["DERIVED", "SUPERCLASSES", "to_superclasses", "with_wrong_labels", "write_derived"]

# The superclasses of CIFAR-100 and their five classes each (Krizhevsky, 2009). Its classes are in alphabetical order.
SUPERCLASSES: Mapping[str, list[str]] = json.loads(Path(__file__).with_name("superclasses.json").read_text("utf-8"))


def to_superclasses(data: Dataset) -> Dataset:
    """CIFAR-100 with the 20 superclasses for labels."""
    superclass_of = {name: number for number, names in enumerate(SUPERCLASSES.values()) for name in names}
    if len(data.classes) != len(superclass_of):
        raise ValueError(f"superclasses are those of CIFAR-100, expected its 100 classes, got {len(data.classes)}")
    numbers = torch.tensor([superclass_of[name] for name in sorted(superclass_of)])
    parts = (part.relabelled(numbers[part.labels]) for part in (data.train, data.test))
    return Dataset(data.name, tuple(SUPERCLASSES), *parts)


def with_wrong_labels(percent: int, data: Dataset) -> Dataset:
    """The same share of each class's training labels replaced by other classes, all of them equally often."""
    labels, L = data.train.labels.clone(), len(data.classes)
    seed = mixed_seed("label noise", percent)
    wrong = stratified(labels, len(labels) * percent // 100, seed)
    shifts = torch.randint(1, L, (len(wrong),), generator=torch.Generator().manual_seed(seed))
    labels[wrong] = (labels[wrong] + shifts) % L
    return Dataset(data.name, data.classes, data.train.relabelled(labels), data.test)


# The name of a dataset, the one that it is made from, and how.
DERIVED: Mapping[str, tuple[str, Callable[[Dataset], Dataset]]] = {
    "cifar100-superclasses": ("cifar100", to_superclasses),
    "cifar10-noise20": ("cifar10", partial(with_wrong_labels, 20)),
    "cifar10-noise40": ("cifar10", partial(with_wrong_labels, 40)),
}


def write_derived(name: str, files: Mapping[str, str], folder: Path, cache: Path | None = None) -> Path:
    """The file of a dataset of `DERIVED`, written to the folder unless it is there.

    Args:
        name: of the dataset.
        files: by the name of a dataset, a file to read it from.
        folder: where the file is, as `NAME.npz`.
        cache: the folder of downloaded datasets.
    """
    path = (folder / f"{name}.npz").resolve()
    if path.is_file():
        return path
    source, change = DERIVED[name]
    data = change(load_dataset(files.get(source, source), cache))
    arrays: dict[str, Any] = {"classes": np.array(data.classes)}
    for part, samples in (("train", data.train), ("test", data.test)):
        assert isinstance(samples, Images)
        assert samples.pixels is not None
        arrays |= {f"x_{part}": _channels_last(samples.pixels), f"y_{part}": samples.labels.numpy()}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # NumPy adds an ending to a path that has none
            np.savez(file, **arrays)

    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, write)
    return path


def _channels_last(pixels: Tensor) -> np.ndarray:
    return pixels.permute(0, 2, 3, 1).contiguous().numpy()
