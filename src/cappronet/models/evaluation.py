"""How a model errs: by class, with mirrored images, and in recognizing out-of-distribution inputs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cappronet import novelty
from cappronet.data.datasets import DATASETS, load_dataset
from cappronet.data.samples import Samples
from cappronet.data.selection import Selection
from cappronet.data.splits import take
from cappronet.models.network import CapProNet
from cappronet.models.prediction import NOISES, features, noise
from cappronet.reporting import Report, did_you_mean, silent

__all__ = ["HELD_OUT", "ClassErrors", "Mirrored", "class_errors", "ood_samples", "ood_separations"]

HELD_OUT = "held-out"
NOISE_IMAGES = 2_000
# Scores are fitted to at most this many training samples.
MOST_TRAINING_SAMPLES = 50_000


class Mirrored(nn.Module):
    """A model whose probabilities are the mean of those for an image and for its mirror image.

    Args:
        model: a model of images.

    Example:
        >>> model, x = CapProNet("resnet8", 10).eval(), torch.randn(2, 3, 32, 32)
        >>> scores = Mirrored(model)(x)
        >>> torch.allclose(scores.softmax(-1), (model(x).softmax(-1) + model(x.flip(-1)).softmax(-1)) / 2)
        True
    """

    def __init__(self, model: CapProNet) -> None:
        super().__init__()
        if model.takes_vectors:
            raise ValueError("feature vectors have no mirror image: leave out --mirror, or name a model of images")
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The logarithms of the mean probabilities: `(B, C, H, W) -> (B, L)`."""
        both = torch.stack([self.model(x), self.model(x.flip(-1))])
        return both.log_softmax(-1).logsumexp(0) - math.log(2)


@dataclass(frozen=True)
class ClassErrors:
    """The errors on the samples of one class.

    Attributes:
        name: the class.
        samples: how many there are.
        errors: how many of them are misclassified.
        error: the same in percent; None for a class without samples.
        mistaken_for: the class that most of the errors are assigned to; None where there are none.
    """

    name: str
    samples: int
    errors: int
    error: float | None
    mistaken_for: str | None


def class_errors(scores: Tensor, labels: Tensor, classes: Sequence[str]) -> list[ClassErrors]:
    """The errors of each class, in the order of `classes`, by scores `(n, L)` and labels `(n,)`."""
    L = len(classes)
    counts = torch.bincount(labels * L + scores.argmax(-1), minlength=L * L).view(L, L)
    samples, wrong = counts.sum(1), counts.clone().fill_diagonal_(0)
    rows = []
    for name, total, row in zip(classes, samples.tolist(), wrong, strict=True):
        errors = int(row.sum())
        mistaken_for = str(classes[int(row.argmax())]) if errors else None
        rows.append(ClassErrors(str(name), total, errors, 100 * errors / total if total else None, mistaken_for))
    return rows


def ood_samples(source: str, model: CapProNet, selection: Selection, cache: str | Path | None = None) -> Samples:
    """Out-of-distribution samples for a model.

    Args:
        source: `"noise"` or `"gaussian-noise"`; `"held-out"`, the test samples of the classes that the model was not
            trained on; or a dataset by name or path, of which the test samples are taken.
        model: a trained model.
        selection: the samples it was trained on.
        cache: folder of downloaded datasets.
    """
    if source in NOISES:
        return noise(source, model, NOISE_IMAGES)
    if source != HELD_OUT and source not in DATASETS and not Path(source).expanduser().exists():
        names = [*NOISES, HELD_OUT, *DATASETS]
        raise ValueError(
            f"unknown out-of-distribution data {source!r}, expected one of {', '.join(names)}, or a path"
            f"{did_you_mean(source, names)}"
        )
    if source != HELD_OUT:
        return load_dataset(source, Path(cache) if cache else None).test
    everything = dataclasses.replace(selection, classes=(), train_size=0, validation=0)
    count = len(everything.load(cache).classes)
    others = tuple(number for number in range(count) if number not in selection.classes)
    if not selection.classes or not others:
        raise ValueError(f"{HELD_OUT} needs a model trained on some of the classes of its data (--classes), not on all")
    return dataclasses.replace(everything, classes=others).load(cache).test


def ood_separations(
    model: CapProNet,
    train: Samples,
    known: Samples,
    ood: Mapping[str, Samples],
    *,
    workers: int = 0,
    report: Report = silent,
) -> dict[str, dict[str, tuple[float, float]]]:
    """AUROC and FPR at 95 % TPR of every score of `novelty`, for each kind of out-of-distribution samples.

    Args:
        model: a trained model.
        train: training samples, which some scores are fitted to.
        known: in-distribution samples.
        ood: out-of-distribution samples by name.
        workers: processes that read image files.
        report: called with the progress.
    """
    options: dict[str, Any] = {"workers": workers, "report": report}
    train = take(train, min(MOST_TRAINING_SAMPLES, len(train)), seed=0)
    scores = novelty.fit_scores(model.head, features(model, train, **options), train.labels)
    ood_features = {name: features(model, samples, **options) for name, samples in ood.items()}
    return novelty.separations(scores, features(model, known, **options), ood_features)
