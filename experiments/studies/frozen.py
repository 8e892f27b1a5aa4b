"""Networks that the studies share: trained on eight of ten classes, then frozen, and their features of all images."""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cappronet.data.datasets import DATASETS, load_dataset
from cappronet.data.files import write_atomically
from cappronet.data.samples import Dataset, Samples
from cappronet.models.network import CapProNet
from cappronet.models.prediction import features
from cappronet.reporting import Report
from cappronet.training.loop import Hardware, Interrupted, train
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run
from cappronet.training.workers import RESUME_HINT

__all__ = [
    "NETS",
    "NEW",
    "OLD",
    "Frozen",
    "frozen",
    "load_ten_classes",
    "network_features",
    "networks",
    "recipe",
    "trained",
]

OLD, NEW = tuple(range(8)), (8, 9)
# What each network changes in the recipe, and the folder of its run.
NETS = {
    "capsule": ({}, "eight-classes"),
    "linear": ({"head": "linear", "normalize": False, "scale": "none"}, "eight-classes-linear"),
}


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
    images = load_dataset(data, Path(cache) if cache else None)
    if len(images.classes) != len(OLD) + len(NEW) or images.holds_vectors:
        raise ValueError(f"this study needs images of ten classes, {data} has {len(images.classes)}; cifar10 fits")
    return images


def trained(recipe: Recipe, folder: Path, report: Report, cache: str | None) -> CapProNet:
    """The network of a recipe: loaded from its folder if it is finished, otherwise trained there or resumed."""
    run = Run(folder)
    if run.begun and run.recipe != recipe:
        raise FileExistsError(f"{folder} holds a run of another recipe; choose another --folder")
    if not run.finished:
        try:
            train(
                recipe,
                run,
                Hardware(accelerator="cpu", cache=cache),
                report=lambda _, done, total: report(f"training {folder.name}", done, total),
            )
        except Interrupted:
            raise InterruptedError(RESUME_HINT) from None
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


def frozen(net: str, data: Dataset, source: str, folder: Path, report: Report, cache: str | None) -> Frozen:
    """One of `NETS`, trained on the old classes, and its features of all images, stored in its run folder."""
    changes, name = NETS[net]
    of_net = recipe(source).changed(**changes)
    model = trained(of_net, folder / name, report, cache)
    x, x_test = (
        _stored_features(model, folder / name, images, part, report)
        for part, images in (("training", data.train), ("test", data.test))
    )
    return Frozen(model, of_net, x, data.train.labels, x_test, data.test.labels)


def networks(source: str, folder: Path, report: Report, cache: str | None) -> tuple[Dataset, dict[str, Frozen]]:
    """The images of a dataset of ten classes, and all of `NETS`, by name."""
    data = load_ten_classes(source, cache)
    return data, {name: frozen(name, data, source, folder, report, cache) for name in NETS}


def network_features(model: CapProNet, images: Samples, text: str, report: Report) -> Tensor:
    """The features of any images, `(n, d)`; the text says of which."""
    return features(model, images, report=lambda _, done, total: report(f"features of {text}", done, total))


def _stored_features(model: CapProNet, run: Path, images: Samples, part: str, report: Report) -> Tensor:
    """Features from a file that carries the model's hash in its name, or computed and written to it."""
    digest = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()[:12]
    path = run / f"{part}-features-{digest}.npy"
    if path.is_file():
        return torch.from_numpy(np.load(path, allow_pickle=False))
    x, file = network_features(model, images, f"{run.name}, {part} images", report), io.BytesIO()
    np.save(file, x.numpy())
    write_atomically(path, file.getvalue())
    return x
