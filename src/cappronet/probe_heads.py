"""The heads that a probe compares: the settings that each is tried with, and how one is fitted to features."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from cappronet.control_heads import GroupedNeurons
from cappronet.fitting import fit_head
from cappronet.heads import CapsuleProjection, create_head

__all__ = ["HEADS", "Setting", "duration", "fit", "head_options", "new_head", "tries"]

HEADS = ("linear", "knn", "group", "capsule")
BATCH = 256
# Passes over n samples: so many that there are about this many steps, within bounds.
STEPS, FEWEST, MOST = 200, 10, 50


@dataclass(frozen=True)
class Setting:
    """One way to fit one head."""

    head: str
    capsule_dim: int = 1
    lr: float = 0.0
    weight_decay: float = 0.0
    # "unit": features of length 1; "standard": each feature centred and scaled; "plain": all divided by one number
    features: str = "plain"
    neighbors: int = 0

    @property
    def label(self) -> str:
        """The setting in words, for a table."""
        if self.head == "knn":
            return f"k={self.neighbors}, {self.features}"
        size = f"c={self.capsule_dim}, " if self.head in ("group", "capsule") else ""
        decay = f", decay {self.weight_decay:g}" if self.weight_decay else ""
        return f"{size}{self.features}, lr {self.lr:g}{decay}"


def tries(head: str, count: int, dim: int, smallest: int) -> list[Setting]:
    """The first settings of a head to try, the most promising ones first.

    Args:
        head: one of `HEADS`.
        count: how many.
        dim: d, the width of the features.
        smallest: samples of the smallest class that a head is fitted to.
    """
    dims = [c for c in (8, 16, 4, 32, 2, 1) if c <= min(dim, smallest)]
    found = list(islice(_GRIDS[head](dims, smallest), count))
    if len(found) < count:
        raise ValueError(f"{head} has only {len(found)} settings for these features: give --tries {len(found)} or less")
    return found


def _linear(_dims: Sequence[int], _smallest: int) -> Iterator[Setting]:
    for decay in (0.0, 1.0, 0.1, 10.0):
        for features, lr in (("standard", 0.003), ("plain", 0.03), ("plain", 0.1), ("standard", 0.03)):
            yield Setting("linear", lr=lr, weight_decay=decay, features=features)


def _neighbors(_dims: Sequence[int], smallest: int) -> Iterator[Setting]:
    for k in (5, 1, 20, 10, 3, 50, 2, 4):
        for features in ("unit", "plain"):
            if k <= smallest:
                yield Setting("knn", neighbors=k, features=features)


def _groups(dims: Sequence[int], _smallest: int) -> Iterator[Setting]:
    for lr, decay, features in ((0.03, 0.0, "plain"), (0.01, 1.0, "standard"), (0.1, 0.0, "plain")):
        for c in dims[:4]:
            yield Setting("group", c, lr, decay, features)
    for lr in (0.01, 0.03, 0.003):
        for c in dims[:4]:
            yield Setting("group", c, lr, 0.0, "standard")


def _capsules(dims: Sequence[int], _smallest: int) -> Iterator[Setting]:
    # A projection does not change with the size of its basis, so weight decay has nothing to do.
    for lr, features, some in ((0.03, "unit", dims[:4]), (0.1, "unit", dims[:2]), (0.03, "plain", dims[:2])):
        for c in some:
            yield Setting("capsule", c, lr, features=features)
    for lr, features in ((0.01, "unit"), (0.003, "unit"), (0.1, "plain"), (0.01, "plain"), (0.003, "plain")):
        for c in dims[:4]:
            yield Setting("capsule", c, lr, features=features)


# From head to its settings, called with the values of c to try and the size of the smallest class.
_GRIDS: Mapping[str, Callable[[Sequence[int], int], Iterator[Setting]]] = {
    "linear": _linear,
    "knn": _neighbors,
    "group": _groups,
    "capsule": _capsules,
}


def new_head(setting: Setting, d: int, classes: int) -> nn.Module:
    """The head of a setting, not fitted yet."""
    return create_head(setting.head, d, classes, setting.capsule_dim, **head_options(setting))


def head_options(setting: Setting) -> dict[str, Any]:
    """What the constructor of the head takes beside its sizes."""
    return {"normalize": setting.features == "unit", "scale": "learned"} if setting.head == "capsule" else {}


def fit(setting: Setting, x: Tensor, y: Tensor, classes: int, seed: int = 0) -> nn.Module:
    """Fit a head on features `(n, d)`, all but nearest neighbours; the result takes features as they are."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        if setting.head == "capsule":
            options = head_options(setting)
            head: nn.Module = CapsuleProjection.from_features(x, y, setting.capsule_dim, num_classes=classes, **options)
        else:
            head = new_head(setting, x.shape[1], classes)
    scaling = _Scaling(setting.features, x)
    network, length = nn.Sequential(scaling, head), duration(len(x))
    fit_head(network, x, y, lr=setting.lr, weight_decay=setting.weight_decay, seed=seed, **length)
    scaling.fold_into(head)
    return head


def duration(n: int) -> dict[str, Any]:
    """Epochs and batch size for n samples."""
    batch = min(BATCH, max(32, n // 8))
    return {"epochs": min(MOST, max(FEWEST, round(STEPS * batch / n))), "batch_size": batch}


class _Scaling(nn.Module):
    """`(x - shift) factor`, which a head can take into its weights once it is fitted."""

    shift: Tensor
    factor: Tensor

    def __init__(self, kind: str, x: Tensor) -> None:
        super().__init__()
        self.kind = kind
        if kind == "standard":
            factor, shift = torch.std_mean(x, 0)
            factor = torch.where(factor > 1e-6 * factor.max(), factor, 1.0).reciprocal()
        else:
            shift = torch.zeros(())
            size = x.square().mean().sqrt()
            factor = torch.where(size > 0, size, 1.0).reciprocal()
        self.register_buffer("shift", shift)
        self.register_buffer("factor", factor)

    def forward(self, x: Tensor) -> Tensor:
        return x if self.kind == "unit" else (x - self.shift) * self.factor

    @torch.no_grad()
    def fold_into(self, head: nn.Module) -> None:
        """Change the head's weights so that it does the same on features that are not scaled."""
        if self.kind == "unit":
            return
        if isinstance(head, CapsuleProjection):
            assert isinstance(head.scale, Tensor)
            head.scale.mul_(self.factor)  # lengths are in proportion to features
            return
        linear = head.neurons if isinstance(head, GroupedNeurons) else head
        assert isinstance(linear, nn.Linear)
        linear.weight.mul_(self.factor)
        linear.bias.sub_(linear.weight @ self.shift.expand(linear.in_features))
