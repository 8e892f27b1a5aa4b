"""Networks that the studies share: trained on eight of ten classes, then frozen, and their features of all images."""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from cappronet.comparison import GO_ON, Display
from cappronet.datasets import DATASETS, Dataset, Images, load_dataset
from cappronet.model import CapProNet
from cappronet.prediction import features
from cappronet.recipe import Recipe
from cappronet.runs import Run, write_atomically
from cappronet.training import Hardware, Interrupted, train

__all__ = ["NETS", "NEW", "OLD", "Frozen", "frozen", "load_ten_classes", "networks", "recipe", "tracker", "trained"]

OLD, NEW = tuple(range(8)), (8, 9)
# What each network changes in the recipe, and the folder of its run.
NETS = {
    "capsule": ({}, "eight-classes"),
    "linear": ({"head": "linear", "normalize": False, "scale": "none"}, "eight-classes-linear"),
}

T = TypeVar("T")


def recipe(data: str) -> Recipe:
    """A ResNet-8 with a capsule head on unit features, for eight classes; on digits a quick version of it."""
    path = Path(data).expanduser()
    if data not in DATASETS and path.exists():
        data = str(path.resolve())  # a run is read from other folders too
    full = Recipe(data=data, classes=OLD, head="capsule", capsule_dim=4, normalize=True, scale="learned", lr=0.2)
    if data == "digits":
        return full.changed(epochs=6, padding=1, evaluate_every=6)
    return full.changed(epochs=8, flip=True, padding=4, evaluate_every=4)


def load_ten_classes(data: str, cache: str | None) -> Dataset:
    """A dataset of ten classes."""
    found = load_dataset(data, Path(cache) if cache else None)
    if len(found.classes) != len(OLD) + len(NEW) or found.train.holds_features:
        raise ValueError(f"this study needs images of ten classes, {data} has {len(found.classes)}: try cifar10")
    return found


def trained(recipe: Recipe, folder: Path, display: Display, cache: str | None) -> CapProNet:
    """The network of a recipe: from its folder if it is there, else trained into it or trained on."""
    run = Run(folder)
    if run.begun and run.recipe != recipe:
        raise FileExistsError(f"{folder} holds a run of another recipe; choose another folder")
    if not run.finished:
        try:
            train(
                recipe,
                run,
                Hardware(accelerator="cpu", cache=cache),
                on_progress=lambda now: display.count(f"training {folder.name}", now.step, now.steps),
            )
        except Interrupted:
            raise InterruptedError(GO_ON) from None
    return CapProNet.from_pretrained(folder)


@dataclass(frozen=True)
class Frozen:
    """A network trained on the old classes, and its features of all ten: training and test."""

    model: CapProNet
    recipe: Recipe
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def frozen(net: str, data: Dataset, source: str, folder: Path, display: Display, cache: str | None) -> Frozen:
    """One of `NETS`, trained on the old classes, and its features of all images, kept beside its run."""
    changes, name = NETS[net]
    of_net = recipe(source).changed(**changes)
    model = trained(of_net, folder / name, display, cache)
    x, x_test = (
        _features(model, folder / name, images, part, display)
        for part, images in (("training", data.train), ("test", data.test))
    )
    return Frozen(model, of_net, x, data.train.labels, x_test, data.test.labels)


def networks(source: str, folder: Path, display: Display, cache: str | None) -> tuple[Dataset, dict[str, Frozen]]:
    """The images of a dataset of ten classes, and all of `NETS`, by name."""
    data = load_ten_classes(source, cache)
    return data, {name: frozen(name, data, source, folder, display, cache) for name in NETS}


def tracker(text: str, display: Display) -> Callable[[Iterable[T], int], Iterator[T]]:
    """Passes items on and shows how many are done."""

    def track(items: Iterable[T], total: int) -> Iterator[T]:
        for number, item in enumerate(items):
            display.count(f"features of {text}", number, total)
            yield item

    return track


def _features(model: CapProNet, run: Path, images: Images, part: str, display: Display) -> Tensor:
    """Features from a file that carries the model's hash in its name, or computed and written to it."""
    digest = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()[:12]
    path = run / f"{part}-features-{digest}.npy"
    if path.is_file():
        return torch.from_numpy(np.load(path, allow_pickle=False))
    found, file = features(model, images, track=tracker(f"{run.name}, {part} images", display)), io.BytesIO()
    np.save(file, found.numpy())
    write_atomically(path, file.getvalue())
    return found
