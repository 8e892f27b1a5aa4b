"""Out-of-distribution inputs on real frozen features: questions that no class covers, and images of other classes.

A linear head and a capsule head are fitted to the same training samples, and every score of `cappronet.novelty` is
measured for both. Each seed draws its own training samples, start and order; intervals come from a bootstrap over test
samples and seeds.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cappronet.data.files import sha256_of
from cappronet.heads import CapsuleProjection
from cappronet.novelty import SCORES, auroc, fit_scores, fpr_at_95_tpr
from cappronet.probing.fitting import fit_head
from cappronet.reporting import Report, Table
from cappronet.training.run_folder import environment
from experiments.probes.sets import load, rows_of_draw
from experiments.studies.resampling import drawn_counts, drawn_means, interval, separation

__all__ = ["PAIRS", "Pair", "available", "run", "table"]

SEEDS, BOOTSTRAP = (0, 1, 2), 1000
# At most so many known and so many other test samples, evenly spaced.
TESTED = 5000
EPOCHS, BATCH_SIZE, LR = 20, 256, 0.01
# Of 0.1 and 1.0, the decay with which the linear head has the lower test error, and so are its features not centred:
# choices in its favour.
LINEAR_DECAY = 1.0
CAPSULE_DIM, SCALE, CONSTANT = 8, 25.0, 0.7


@dataclass(frozen=True)
class Pair:
    """What is known, and what is not.

    Attributes:
        name: as in the table.
        known: the set of features with the classes.
        unknown: the set whose test samples are out of distribution; the same one for its `x_unknown`.
        samples: training samples of each class.
    """

    name: str
    known: str
    unknown: str
    samples: int


PAIRS = (
    Pair("CLINC150, out-of-scope questions", "clinc150", "clinc150", 100),
    Pair("CIFAR-10, images of CIFAR-100", "cifar10-mobilenet_v2", "cifar100-mobilenet_v2", 1000),
    Pair("CIFAR-100, images of CIFAR-10", "cifar100-mobilenet_v2", "cifar10-mobilenet_v2", 100),
)

# Features as a head takes them, from features as they are.
Prepare = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Fitted:
    """A head with its scores of test samples: `(known, unknown)` by name."""

    error: float
    scores: dict[str, tuple[Tensor, Tensor]]


def available(folder: Path) -> tuple[list[Pair], list[str]]:
    """The pairs whose files are in the folder, and the names of the missing files."""
    names = dict.fromkeys(name for pair in PAIRS for name in (pair.known, pair.unknown))
    missing = [name for name in names if not _file(folder, name).is_file()]
    pairs = [pair for pair in PAIRS if pair.known not in missing and pair.unknown not in missing]
    if not pairs:
        raise FileNotFoundError(f"{folder} has no feature files of this study: expected {', '.join(names)} as .npz")
    return pairs, [f"{name}.npz" for name in missing]


def run(folder: Path, report: Report) -> dict[str, Any]:
    """Measure every score of both heads on every pair whose files are there."""
    pairs, _ = available(folder)
    total = len(pairs) * len(SEEDS) * len(HEADS)
    rows: list[dict[str, Any]] = []
    sets: dict[str, Any] = {}
    for number, pair in enumerate(pairs):
        unknown = _unknown(folder, pair)
        fitted: dict[str, list[Fitted]] = {head: [] for head in HEADS}
        for seed in SEEDS:
            for head in HEADS:
                report(f"{pair.name}: {head}, seed {seed}", number * len(SEEDS) * len(HEADS) + _count(fitted), total)
                fitted[head].append(_fitted(folder, pair, unknown, head, seed))
        rows += _rows(pair, fitted)
        (first, *_) = fitted[next(iter(HEADS))][0].scores.values()
        sets[pair.name] = {
            "samples of each class": pair.samples,
            "known": len(first[0]),
            "unknown": len(first[1]),
            "errors": {head: [one.error for one in ones] for head, ones in fitted.items()},
        }
    report("writing", total, total)
    files = dict.fromkeys(name for pair in pairs for name in (pair.known, pair.unknown))
    return {
        "study": "out_of_scope",
        "settings": {"seeds": list(SEEDS), "bootstrap": BOOTSTRAP, "epochs": EPOCHS, "capsule_dim": CAPSULE_DIM},
        "sets": sets,
        "rows": rows,
        "environment": environment(data={name: sha256_of(_file(folder, name)) for name in files}),
    }


def table(results: Mapping[str, Any]) -> Table:
    """AUROC / FPR at 95 % TPR with half the width of the interval, and their means over the sets.

    A dagger marks what is statistically indistinguishable from the best of its column.
    """
    errors = (
        f"{name}: " + ", ".join(f"{statistics.mean(values):.1f} % ({head})" for head, values in one["errors"].items())
        for name, one in results["sets"].items()
    )
    title = f"AUROC / FPR at 95 % TPR, in %; test errors on the known classes: {'; '.join(errors)}"
    cells: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in results["rows"]:
        cells.setdefault((row["head"], row["score"]), {})[row["pair"]] = row
    keys = [(head, score) for head in HEADS for score in SCORES if (head, score) in cells]
    rows = []
    for head, score in keys:
        by_pair = cells[head, score]
        rows.append((head, score, *(_cell(by_pair.get(pair)) for pair in results["sets"]), _mean(by_pair, results)))
    return Table(("head", "score", *results["sets"], "mean"), rows, names=2, title=title)


def _cell(row: Mapping[str, Any] | None) -> str:
    return " / ".join(_measure(row, name) for name in ("auroc", "fpr")) if row else ""


def _measure(row: Mapping[str, Any], name: str) -> str:
    low, high = row[f"{name} interval"]
    worse, better = row[f"{name} gap"]
    mark = "†" if worse <= 0 <= better else ""
    return f"{100 * statistics.mean(row[name]):.1f}{mark} ± {50 * (high - low):.1f}"


def _mean(by_pair: Mapping[str, Mapping[str, Any]], results: Mapping[str, Any]) -> str:
    """The means over the sets; none where the head has no such score on one of them."""
    if len(by_pair) < len(results["sets"]):
        return ""
    means = [statistics.mean(statistics.mean(row[name]) for row in by_pair.values()) for name in ("auroc", "fpr")]
    return " / ".join(f"{100 * value:.1f}" for value in means)


def _linear(x: Tensor, classes: int) -> tuple[nn.Module, Prepare, float]:
    """A linear head on the features divided by one number, so that their mean square is 1."""
    size = x.square().mean().sqrt()
    return nn.Linear(x.shape[1], classes), lambda x: x / size, LINEAR_DECAY


def _capsule(x: Tensor, classes: int) -> tuple[nn.Module, Prepare, float]:
    """A capsule head on features that are centred, get a constant and are made of unit length; its scale is fixed."""
    mean = x.mean(0)
    constant = CONSTANT * (x - mean).square().sum(1).mean().sqrt()
    head = CapsuleProjection(x.shape[1] + 1, classes, CAPSULE_DIM, scale=SCALE)
    return head, lambda x: F.normalize(torch.cat([x - mean, constant.expand(len(x), 1)], dim=1), dim=-1), 0.0


HEADS: Mapping[str, Callable[[Tensor, int], tuple[nn.Module, Prepare, float]]] = {
    "capsule": _capsule,
    "linear": _linear,
}


def _fitted(folder: Path, pair: Pair, unknown: Tensor, name: str, seed: int) -> Fitted:
    """Fit a head and all of its scores to one draw of training samples, and score the test samples."""
    data = load(pair.known, folder)
    chosen = rows_of_draw(data.y, str(pair.samples), seed)
    x, y = torch.from_numpy(data.x[chosen]), torch.from_numpy(data.y[chosen])
    x_test, y_test = (_spaced(torch.from_numpy(part)) for part in (data.x_test, data.y_test))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        head, prepare, decay = HEADS[name](x, int(y.max()) + 1)
        train, known, others = prepare(x), prepare(x_test), prepare(unknown)
        fit_head(head, train, y, epochs=EPOCHS, batch_size=BATCH_SIZE, lr=LR, weight_decay=decay, seed=seed)
    with torch.no_grad():
        error = 100 * (head(known).argmax(-1) != y_test).double().mean().item()
    scores = fit_scores(head, train, y)
    return Fitted(error, {score: (function(known), function(others)) for score, function in scores.items()})


def _rows(pair: Pair, fitted: Mapping[str, Sequence[Fitted]]) -> list[dict[str, Any]]:
    """One row for each head and score, with intervals; every score is measured on the same draws of test samples."""
    keys = [(head, score) for head, ones in fitted.items() for score in ones[0].scores]
    known, unknown = next(iter(fitted[keys[0][0]][0].scores.values()))
    counts = [drawn_counts(len(part), BOOTSTRAP, seed) for seed, part in enumerate((known, unknown))]
    values: dict[str, dict[tuple[str, str], list[float]]] = {"auroc": {}, "fpr": {}}
    drawn: dict[str, dict[tuple[str, str], Tensor]] = {"auroc": {}, "fpr": {}}
    for head, score in keys:
        scores = [one.scores[score] for one in fitted[head]]
        values["auroc"][head, score] = [auroc(*both) for both in scores]
        values["fpr"][head, score] = [fpr_at_95_tpr(*both) for both in scores]
        resampled = [separation(*both, *counts) for both in scores]
        for i, measure in enumerate(drawn):
            drawn[measure][head, score] = drawn_means(torch.stack([both[i] for both in resampled]), seed=2)
    rows: list[dict[str, Any]] = [{"pair": pair.name, "head": head, "score": score} for head, score in keys]
    for measure, best_of in (("auroc", max), ("fpr", min)):
        best = best_of(keys, key=lambda key: statistics.mean(values[measure][key]))
        for row, key in zip(rows, keys, strict=True):
            row[measure] = values[measure][key]
            row[f"{measure} interval"] = interval(drawn[measure][key])
            row[f"{measure} gap"] = interval(drawn[measure][key] - drawn[measure][best])
    return rows


def _unknown(folder: Path, pair: Pair) -> Tensor:
    if pair.unknown != pair.known:
        return _spaced(torch.from_numpy(load(pair.unknown, folder).x_test))
    path = _file(folder, pair.unknown)
    with np.load(path) as file:
        if "x_unknown" not in file:
            raise ValueError(f"{path} has no out-of-scope samples: add them to it as x_unknown")
        return _spaced(torch.from_numpy(file["x_unknown"].astype(np.float32)))


def _spaced(rows: Tensor) -> Tensor:
    """At most `TESTED` rows, evenly spaced."""
    return rows[:: -(-len(rows) // TESTED)]


def _count(fitted: Mapping[str, Sequence[Fitted]]) -> int:
    return sum(map(len, fitted.values()))


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz"
