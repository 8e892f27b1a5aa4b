"""`evaluate` and `predict`: a trained model on images."""

from pathlib import Path
from typing import Literal

from rich.table import Table

from cappronet.commands.shared import console
from cappronet.display import progress_bar

__all__ = ["evaluate", "predict"]


def evaluate(run: Path, /, *, split: Literal["test", "train"] = "test", cache: Path | None = None) -> None:
    """Measure a trained model: errors, calibration, and the shape of its capsule subspaces.

    Parameters
    ----------
    run
        The folder of a finished run.
    split
        Which images to measure on.
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
    data = prepare(place.recipe, str(cache) if cache else None)
    model = CapProNet.from_pretrained(place.folder)
    images = data.test if split == "test" else data.train
    mean, std = torch.tensor(model.config["mean"]), torch.tensor(model.config["std"])
    batches = Batches(images, 500, mean=mean, std=std, shuffle=False)
    with progress_bar(console) as show:
        scores, labels = evaluation.predict(model, show.track(batches.epoch(0), len(batches)))
    console.print(f"{run}: {len(labels):,} {split} images", soft_wrap=True)
    table = Table()
    table.add_column("measure")
    table.add_column("value", justify="right")
    values = [*evaluation.classification_metrics(scores, labels), *evaluation.capsule_statistics(model.head)]
    for name, value in values:
        table.add_row(name.replace("_", " "), f"{value:.4g}")
    console.print(table)


def predict(run: Path, /, *images: Path) -> None:
    """Classify image files: class, probability, capsule length, and the angle between features and subspace.

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
    for heading in ("image", "class", "probability", "length", "angle"):
        table.add_column(heading, justify="left" if heading in ("image", "class") else "right")
    for path in images:
        found = prediction.predict_file(model, path)
        angle = f"{found.angle:.1f}°" if found.angle is not None else ""
        table.add_row(str(path), found.label, f"{found.probability:.4f}", f"{found.score:.3f}", angle)
    console.print(table)
