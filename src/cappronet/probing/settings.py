"""What a probe compares: the heads, and the settings that are tried for each."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from cappronet.probing.subspaces import LARGE_SCALE, LR, default_dim, default_schedule, few_samples_lr
from cappronet.reporting import did_you_mean

__all__ = ["PROBE_HEADS", "Amount", "ProbeOptions", "Setting", "first_settings"]

PROBE_HEADS = ("linear", "logistic", "mlp", "knn", "group", "capsule")


@dataclass(frozen=True)
class ProbeOptions:
    """Which heads are compared, and the tuning budget that each of them has.

    Attributes:
        heads: some of `PROBE_HEADS`.
        folds: of the cross-validation; no more than the largest class has samples.
        settings: how many settings are tried for each head.
        seed: decides the folds and the order of samples.
        jobs: processes; by default one for each core, or one if there is little to do.
    """

    heads: tuple[str, ...] = PROBE_HEADS
    folds: int = 5
    settings: int = 6
    seed: int = 0
    jobs: int | None = None

    def __post_init__(self) -> None:
        known = ", ".join(PROBE_HEADS)
        for name in self.heads:
            if name not in PROBE_HEADS:
                hint = did_you_mean(name, PROBE_HEADS)
                raise ValueError(f"unknown head {name!r} to probe with, expected one of {known}{hint}")
        if not self.heads or len(set(self.heads)) < len(self.heads):
            raise ValueError(f"heads to probe with must be different ones of {known}, got {', '.join(self.heads)}")
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2, got {self.folds}")
        if self.settings < 1:
            raise ValueError(f"tries, the number of settings for each head, must be at least 1, got {self.settings}")
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {self.jobs}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the number of settings has the name of the command's option."""
        return {"heads": self.heads, "folds": self.folds, "tries": self.settings, "seed": self.seed, "jobs": self.jobs}


@dataclass(frozen=True)
class Setting:
    """One way to fit one head.

    Attributes:
        head: one of `PROBE_HEADS`.
        capsule_dim: c, of a capsule or group head.
        lr: the highest learning rate.
        weight_decay: decoupled weight decay.
        features: `"standard"`: each feature centred and scaled to unit variance; `"plain"`: all features divided by one
            number; `"unit"`: features of length 1; `"centred"`: as `CapsuleClassifier` takes them.
        neighbors: k, of nearest neighbours.
        scale: of a capsule head: what lengths are multiplied by; 0: as `CapsuleClassifier` chooses it.
        C: of logistic regression: the inverse of its regularization.
        width: of the hidden layer of an MLP.
        dropout: on that layer.
    """

    head: str
    capsule_dim: int = 1
    lr: float = 0.0
    weight_decay: float = 0.0
    features: str = "plain"
    neighbors: int = 0
    scale: float = 0.0
    C: float = 0.0
    width: int = 0
    dropout: float = 0.0

    @property
    def label(self) -> str:
        """The setting in words."""
        if self.head == "knn":
            return f"k={self.neighbors}, {self.features}"
        if self.head == "logistic":
            return f"C={self.C:g}, {self.features}"
        size = f"c={self.capsule_dim}, " if self.head in ("group", "capsule") else ""
        if self.head == "mlp":
            size = f"width {self.width}, dropout {self.dropout:g}, "
        decay = f", decay {self.weight_decay:g}" if self.weight_decay else ""
        scale = f", scale {self.scale:g}" if self.scale else ""
        return f"{size}{self.features}{scale}, lr {self.lr:g}{decay}"


@dataclass(frozen=True)
class Amount:
    """How much there is to fit to.

    Attributes:
        samples: the number of training samples.
        dim: d, the width of the features.
        classes: L.
        fewest: the number of samples in the smallest fit of the cross-validation.
    """

    samples: int
    dim: int
    classes: int
    fewest: int

    @property
    def per_class(self) -> int:
        """How many samples of a class the smallest fit has on average."""
        return max(1, self.fewest // self.classes)


def first_settings(head: str, count: int, amount: Amount) -> list[Setting]:
    """The first `count` settings to try for a head, the most promising ones first."""
    settings = list(islice(_GRIDS[head](amount), count))
    if len(settings) < count:
        raise ValueError(f"{head} has only {len(settings)} settings for these features: use --tries {len(settings)}")
    return settings


def _linear(_amount: Amount) -> Iterator[Setting]:
    for decay in (0.0, 1.0, 0.1, 10.0):
        for features, lr in (("standard", 0.003), ("plain", 0.03), ("plain", 0.1), ("standard", 0.03)):
            yield Setting("linear", lr=lr, weight_decay=decay, features=features)


def _logistic(_amount: Amount) -> Iterator[Setting]:
    for features in ("standard", "plain"):
        for C in (0.1, 0.01, 1.0, 0.001, 0.03, 0.003, 10.0, 1e-4):
            yield Setting("logistic", C=C, features=features)


def _hidden_layers(_amount: Amount) -> Iterator[Setting]:
    # As in `python -m experiments probes`, but the widest come last: they take twice as long.
    choices = ((512, 0.5, 1.0), (512, 0.5, 0.01), (512, 0.8, 1.0), (512, 0.2, 1.0), (256, 0.5, 1.0), (256, 0.2, 0.01))
    for lr in (0.003, 0.001):
        for width, dropout, decay in (*choices, (1024, 0.5, 1.0), (1024, 0.8, 0.01)):
            yield Setting("mlp", lr=lr, weight_decay=decay, features="standard", width=width, dropout=dropout)


def _neighbors(amount: Amount) -> Iterator[Setting]:
    # Of more neighbours than a class has samples, most belong to others: such k come last.
    for k in sorted((5, 1, 20, 10, 3, 50, 2, 4), key=lambda k: k > amount.per_class):
        for features in ("unit", "plain"):
            if k <= amount.fewest:
                yield Setting("knn", neighbors=k, features=features)


def _groups(amount: Amount) -> Iterator[Setting]:
    dims = [c for c in (8, 16, 4, 32, 2, 1) if c <= min(amount.dim, amount.per_class)][:4]
    for lr, decay, features in ((0.03, 0.0, "plain"), (0.01, 1.0, "standard"), (0.1, 0.0, "plain")):
        for c in dims:
            yield Setting("group", c, lr, decay, features)
    for lr in (0.01, 0.03, 0.003):
        for c in dims:
            yield Setting("group", c, lr, 0.0, "standard")


def _capsules(amount: Amount) -> Iterator[Setting]:
    # The first one is CapsuleClassifier(). A projection does not change with the size of its basis, so weight decay
    # would have no effect.
    c = default_dim(amount.samples, amount.dim, amount.classes)
    lr = default_schedule(amount.samples, amount.dim, amount.samples, amount.classes).lr
    other = few_samples_lr(amount.dim) if lr == LR else LR
    dims = (c, 2 * c, c // 2)
    first = [*((size, lr, 0.0) for size in dims), (c, other, 0.0), (c, lr, LARGE_SCALE), (2 * c, other, 0.0)]
    for size, rate, scale in dict.fromkeys([*first, *product(dims, (lr, other, 0.03), (0.0, LARGE_SCALE))]):
        if 1 <= size <= amount.dim:
            yield Setting("capsule", size, rate, features="centred", scale=scale)


# From a head to its settings.
_GRIDS: Mapping[str, Callable[[Amount], Iterator[Setting]]] = {
    "linear": _linear,
    "logistic": _logistic,
    "mlp": _hidden_layers,
    "knn": _neighbors,
    "group": _groups,
    "capsule": _capsules,
}
