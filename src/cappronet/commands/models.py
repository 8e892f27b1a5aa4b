"""`evaluate` and `predict`: a trained model on images."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.table import Table

from cappronet.commands.shared import console
from cappronet.display import progress_bar

if TYPE_CHECKING:
    from cappronet.datasets import Dataset, Images
    from cappronet.display import Bar
    from cappronet.model import CapProNet
    from cappronet.recipe import Recipe

__all__ = ["evaluate", "predict"]

# Scores of unknown inputs are fitted to at most so many training images, and noise has so many images.
TRAINING_IMAGES, NOISE_IMAGES = 50_000, 2_000
HELD_OUT = "held-out"


def evaluate(
    run: Path,
    /,
    *,
    split: Literal["test", "train"] = "test",
    ood: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    workers: int = 0,
    cache: Path | None = None,
) -> None:
    """Measure a trained model: errors, calibration, the shape of its capsule subspaces, and how it meets the unknown.

    Parameters
    ----------
    run
        The folder of a finished run.
    split
        Which images to measure on.
    ood
        Also measure how well images of another kind are told from these: a dataset by name or path, of which the test
        images are scaled to the model's size; noise; gaussian-noise; or held-out, the classes of the same dataset that
        the model was not trained on. Can be given several times.
    workers
        Processes that read image files.
    cache
        Folder of downloaded datasets.
    """
    import torch

    from cappronet import evaluation
    from cappronet.batches import Batches
    from cappronet.ingredients import prepare
    from cappronet.model import CapProNet
    from cappronet.runs import Run

    place = Run.open(run)
    folder = str(cache) if cache else None
    data = prepare(place.recipe, folder)
    model = CapProNet.from_pretrained(place.folder)
    unknown = {name: _unknown_images(name, model, place.recipe, folder) for name in ood}
    images = data.test if split == "test" else data.train
    mean, std = torch.tensor(model.config["mean"]), torch.tensor(model.config["std"])
    batches = Batches(images, 500, mean=mean, std=std, shuffle=False, workers=workers)
    with progress_bar(console) as show:
        scores, labels = evaluation.predict(model, show.track(batches.epoch(0), len(batches)))
        separations = _separations(model, data, images, unknown, workers, show) if unknown else {}
    console.print(f"{run}: {len(labels):,} {split} images", soft_wrap=True)
    table = Table()
    table.add_column("measure")
    table.add_column("value", justify="right")
    values = [*evaluation.classification_metrics(scores, labels), *evaluation.capsule_statistics(model.head)]
    for name, value in values:
        table.add_row(name.replace("_", " "), f"{value:.4g}")
    console.print(table)
    if unknown:
        sizes = ", ".join(f"{len(found):,} of {name}" for name, found in unknown.items())
        console.print(f"unknown images: {sizes}; AUROC: higher is better, FPR at 95 % TPR: lower", soft_wrap=True)
        console.print(_separation_table(separations))


def _unknown_images(name: str, model: "CapProNet", recipe: "Recipe", cache: str | None) -> "Images":
    """What `--ood` names: noise, held-out classes, or the test images of a dataset."""
    from cappronet.datasets import load_dataset
    from cappronet.ingredients import prepare
    from cappronet.prediction import NOISES, noise

    if name in NOISES:
        if model.config["backbone"] == "features":
            raise ValueError(f"--ood {name} makes images, but this model takes feature vectors: give a file of such")
        return noise(name, model, NOISE_IMAGES)
    if name != HELD_OUT:
        return load_dataset(name, Path(cache) if cache else None).test
    everything = load_dataset(recipe.data, Path(cache) if cache else None)
    others = tuple(number for number in range(len(everything.classes)) if number not in recipe.classes)
    if not recipe.classes or not others:
        raise ValueError("--ood held-out needs a run on some classes of its data (--classes); this one has all")
    return prepare(recipe.changed(classes=others, validation=0, train_size=0), cache).test


def _separations(
    model: "CapProNet", data: "Dataset", known: "Images", unknown: "Mapping[str, Images]", workers: int, show: "Bar"
) -> dict[str, dict[str, tuple[float, float]]]:
    """Every score's AUROC and FPR for each kind of unknown images."""
    from cappronet import novelty, prediction
    from cappronet.datasets import take

    options: dict[str, Any] = {"workers": workers, "track": show.track}
    training = take(data.train, min(TRAINING_IMAGES, len(data.train)), seed=0)
    scores = novelty.fit_scores(model.head, prediction.features(model, training, **options), training.labels)
    of_known = prediction.features(model, known, **options)
    return novelty.separations(
        scores, of_known, {name: prediction.features(model, images, **options) for name, images in unknown.items()}
    )


def _separation_table(found: "Mapping[str, Mapping[str, tuple[float, float]]]") -> Table:
    table = Table()
    table.add_column("score")
    for kind in next(iter(found.values())):
        table.add_column(f"{kind}\nAUROC", justify="right")
        table.add_column("\nFPR", justify="right")
    for name, kinds in found.items():
        numbers = [f"{100 * value:.1f}" for pair in kinds.values() for value in pair]
        table.add_row("residual, angle" if name == "residual" else name, *numbers)
    return table


def predict(run: Path, /, *images: Path) -> None:
    """Classify image files: class, probability, capsule length, and how far the features lie from the subspace.

    The angle is the one between the features and the subspace of the class; the residual is the share of the features
    outside it, from 0 to 1. Both are high for images that are unlike those of every class.

    Parameters
    ----------
    run
        The folder of a finished run.
    images
        Image files.
    """
    from cappronet import prediction
    from cappronet.model import CapProNet

    if not images:
        raise ValueError("give at least one image file")
    model = CapProNet.from_pretrained(run)
    table = Table()
    for heading in ("image", "class", "probability", "length", "angle", "residual"):
        table.add_column(heading, justify="left" if heading in ("image", "class") else "right")
    for path in images:
        found = prediction.predict_file(model, path)
        angle = f"{found.angle:.1f}°" if found.angle is not None else ""
        residual = f"{found.residual:.3f}" if found.residual is not None else ""
        table.add_row(str(path), found.label, f"{found.probability:.4f}", f"{found.score:.3f}", angle, residual)
    console.print(table)
