"""Transfer: what the frozen features of networks trained end to end are worth for other classes.

The networks of `end-to-end` were trained on CIFAR-100 and are asked for CIFAR-10. Those of `superclasses` were trained
on the 20 superclasses of CIFAR-100 and are asked for its 100 classes.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cappronet.data.datasets import load_dataset
from cappronet.data.files import sha256_of
from cappronet.extras import require
from cappronet.models.network import CapProNet
from cappronet.models.prediction import features
from cappronet.reporting import Report, Table
from cappronet.training.results import Row
from cappronet.training.run_folder import Run
from experiments.probes.sets import rows_of_draw
from experiments.reproduction.entries import read_entries
from experiments.reproduction.tables import difference_cells, error_cell
from experiments.studies.parts import Part, rows_of, run_parts

__all__ = ["measure", "networks", "run", "table"]

# The table whose networks are measured, and the dataset whose classes they are asked for.
TARGETS: Mapping[str, str] = {"end-to-end": "cifar10", "superclasses": "cifar100"}
# Training images of each class, and how many random draws of them are averaged.
DRAWS: Mapping[str, int] = {"20": 5, "all": 1}
# Strengths of the penalty, as scikit-learn's C, compared on held-out fifths of the training images of every draw: on so
# many of the five. A fifth of all images is enough; one of 20 images a class would leave the choice to chance.
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
FIFTHS: Mapping[str, int] = {"20": 5, "all": 1}
MOST_ITERATIONS = 500
CLASSIFIERS = ("logistic regression", "1-NN")


@dataclass(frozen=True)
class Network:
    """A trained network and what is asked of it.

    Attributes:
        trained_on: the name of the table it belongs to.
        head: its head.
        seed: its seed.
        folder: of its run.
        target: the dataset whose classes are asked for: a name or a path.
        cache: the folder of downloaded datasets.
    """

    trained_on: str
    head: str
    seed: int
    folder: Path
    target: str
    cache: Path | None = None

    @property
    def part(self) -> Part:
        """The part of the study that measures it; other weights or settings make another one."""
        identity = {
            "model": sha256_of(self.folder / "model.safetensors"),
            "target": Path(self.target).stem,
            "draws": dict(DRAWS),
            "penalties": list(PENALTIES),
            "fifths": dict(FIFTHS),
        }
        return Part(f"{self.folder.parent.name}-{self.folder.name}", identity, self)


def networks(folder: Path, files: Mapping[str, str], cache: Path | None = None) -> tuple[list[Network], list[Path]]:
    """The finished networks, and the folders of those that are missing or not finished.

    Args:
        folder: where the run folders of `end-to-end` and `superclasses` are.
        files: by the name of a dataset, a file to read it from.
        cache: the folder of downloaded datasets.
    """
    finished, missing = [], []
    for name, target in TARGETS.items():
        for entry in read_entries(name, "cpu"):
            for seed in range(entry.seeds):
                run_dir = entry.run(folder, seed).folder
                if Run(run_dir).finished:
                    finished.append(Network(name, entry.label, seed, run_dir, files.get(target, target), cache))
                else:
                    missing.append(run_dir)
    return finished, missing


def run(measured: Sequence[Network], folder: Path, path: Path, *, jobs: int, report: Report) -> dict[str, Any]:
    """Measure the networks that the result file lacks.

    Args:
        measured: the networks.
        folder: where what is measured of each network is kept.
        path: the result file.
        jobs: networks at the same time, each with one thread.
        report: is told how far it is.
    """
    parts = [network.part for network in measured]
    return run_parts("transfer", parts, measure, folder, path, jobs=jobs, report=report)


def measure(network: Network, report: Report) -> list[dict[str, Any]]:
    """A row for each classifier and number of images, with the test error of every draw in percent."""
    data = load_dataset(network.target, network.cache)
    model = CapProNet.from_pretrained(network.folder)
    steps = 1 + len(CLASSIFIERS) * sum(DRAWS.values())
    report("features", 0, steps)
    x, x_test = (features(model, part) for part in (data.train, data.test))
    y, y_test = data.train.labels, data.test.labels
    about = {"trained_on": network.trained_on, "target": data.name, "head": network.head, "seed": network.seed}
    rows: list[dict[str, Any]] = []
    done = 1
    for images, draws in DRAWS.items():
        chosen = [torch.from_numpy(rows_of_draw(y.numpy(), images, draw)) for draw in range(draws)]
        penalty = _best_penalty([(x[of_draw], y[of_draw]) for of_draw in chosen], FIFTHS[images])
        errors: dict[str, list[float]] = {name: [] for name in CLASSIFIERS}
        for of_draw in chosen:
            few, labels = x[of_draw], y[of_draw]
            for name in CLASSIFIERS:
                report(f"{name}, {images} images", done, steps)
                done += 1
                logistic = name == "logistic regression"
                predicted = _logistic(few, labels, x_test, penalty) if logistic else _nearest(few, labels, x_test)
                errors[name].append(round(100 * (predicted != y_test).double().mean().item(), 4))
        rows += [{**about, "classifier": name, "images": images, "errors": errors[name]} for name in CLASSIFIERS]
        rows[-len(CLASSIFIERS)]["penalty"] = penalty
    return rows


def _best_penalty(draws: Sequence[tuple[Tensor, Tensor]], fifths: int) -> float:
    """The penalty with the lowest error on held-out fifths of the images, the strongest of several."""
    folds = require("sklearn.model_selection", "sklearn").StratifiedKFold(5, shuffle=True, random_state=0)
    wrong = dict.fromkeys(PENALTIES, 0)
    for x, y in draws:
        for fitted, held_out in islice(folds.split(x, y), fifths):
            for penalty in PENALTIES:
                predicted = _logistic(x[fitted], y[fitted], x[held_out], penalty)
                wrong[penalty] += int((predicted != y[held_out]).sum())
    return min(wrong, key=lambda penalty: (wrong[penalty], penalty))


def _logistic(x: Tensor, y: Tensor, x_test: Tensor, penalty: float) -> Tensor:
    """The predictions of logistic regression on standardized features."""
    pipeline = require("sklearn.pipeline", "sklearn").make_pipeline
    scaler = require("sklearn.preprocessing", "sklearn").StandardScaler()
    logistic = require("sklearn.linear_model", "sklearn").LogisticRegression(C=penalty, max_iter=MOST_ITERATIONS)
    with warnings.catch_warnings():  # what has not converged is judged by its errors, like everything else
        warnings.simplefilter("ignore", require("sklearn.exceptions", "sklearn").ConvergenceWarning)
        model = pipeline(scaler, logistic).fit(x.numpy(), y.numpy())
    return torch.from_numpy(np.asarray(model.predict(x_test.numpy())))


def _nearest(x: Tensor, y: Tensor, x_test: Tensor) -> Tensor:
    """The class of the nearest training image by the cosine of the features."""
    directions = F.normalize(x)
    return torch.cat([y[(F.normalize(part) @ directions.mT).argmax(-1)] for part in x_test.split(500)])


def table(content: Mapping[str, Any], trained_on: str) -> Table:
    """A line for each head, a column for each classifier: errors, and their paired difference to the linear head's.

    Both are means over networks with different seeds.

    Args:
        content: of the result file.
        trained_on: the name of the table whose networks are shown.
    """
    errors: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows_of(content):
        if row["trained_on"] == trained_on:
            of_setting = errors.setdefault(row["head"], {}).setdefault(f"{row['classifier']}, {row['images']}", {})
            of_setting[row["seed"]] = sum(row["errors"]) / len(row["errors"])
    settings = [f"{classifier}, {images}" for images in DRAWS for classifier in CLASSIFIERS]
    lines: list[tuple[str, ...]] = []
    for head, measured in errors.items():
        linear = errors.get("linear", {}) if head != "linear" else {}
        cells = (_cell(measured.get(setting, {}), linear.get(setting, {})) for setting in settings)
        lines.append((head, str(max(map(len, measured.values()))), *cells))
    title = f"Networks of {trained_on}, asked for {TARGETS[trained_on]}: test error % (difference to linear)"
    return Table(("head", "n", *settings), lines, title=title)


def _cell(errors: Mapping[int, float], linear: Mapping[int, float]) -> str:
    """The mean error, with the difference to the linear head's or else with an interval of its own."""
    summary, control = (Row("", "", "", tuple(part.values()), 0, 0.0, tuple(part)) for part in (errors, linear))
    gap, _ = difference_cells(summary, control)
    return f"{summary.mean:.2f} ({gap})" if gap else error_cell(summary)
