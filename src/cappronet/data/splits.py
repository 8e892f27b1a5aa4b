"""Parts of a dataset with every class in its proportion, drawn from a seed."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from cappronet.data.samples import Dataset, Images, Samples, Vectors

__all__ = ["hold_out", "hold_out_fifth", "keep_classes", "mixed_seed", "stratified", "take"]

# With the union among its constraints, it serves callers who know the kind of samples and those who do not.
S = TypeVar("S", Images, Vectors, Images | Vectors)


def hold_out(samples: S, size: int, seed: int) -> tuple[S, S]:
    """Split into the rest and `size` samples held out, both with the classes in the proportions they have in all."""
    if not 0 < size < len(samples):
        raise ValueError(f"of {len(samples)} images, 1 to {len(samples) - 1} can be held out, got {size}")
    chosen = _mask(samples.labels, size, mixed_seed("hold out", seed))
    return samples.subset((~chosen).nonzero()[:, 0]), samples.subset(chosen.nonzero()[:, 0])


def hold_out_fifth(samples: S, classes: Sequence[str], source: str) -> tuple[S, S]:
    """Split into training and test samples: a fifth of each class, always the same; `source` is named in errors."""
    for name, count in zip(classes, torch.bincount(samples.labels, minlength=len(classes)).tolist(), strict=True):
        if count < 2:
            raise ValueError(f"class {name!r} of {source} has one image, but training and test need one each")
    return hold_out(samples, max(1, len(samples) // 5), seed=0)


def take(samples: S, size: int, seed: int) -> S:
    """`size` of the samples, with the classes in the proportions they have in all."""
    return samples.subset(stratified(samples.labels, size, seed))


def stratified(labels: Tensor, size: int, seed: int) -> Tensor:
    """The positions of `size` samples, in order, with the classes in the proportions they have in all."""
    if not 0 < size <= len(labels):
        raise ValueError(f"of {len(labels)} images, 1 to {len(labels)} can be taken, got {size}")
    return _mask(labels, size, mixed_seed("take", seed)).nonzero()[:, 0]


def keep_classes(data: Dataset, classes: tuple[int, ...]) -> Dataset:
    """The samples of some classes, which are renumbered 0, 1, ... in the order given."""
    if len(set(classes)) < len(classes) or not all(0 <= number < len(data.classes) for number in classes):
        raise ValueError(f"classes must be different numbers from 0 to {len(data.classes) - 1}, got {list(classes)}")
    new_number = torch.full((len(data.classes),), -1)
    new_number[list(classes)] = torch.arange(len(classes))

    def only(samples: Samples) -> Samples:
        part = samples.subset((new_number[samples.labels] >= 0).nonzero()[:, 0])
        return part.relabelled(new_number[part.labels])

    return Dataset(data.name, tuple(data.classes[number] for number in classes), only(data.train), only(data.test))


def mixed_seed(*parts: int | str) -> int:
    """One seed of 63 bits from several numbers and words; neighbouring parts give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1


def _mask(labels: Tensor, size: int, seed: int) -> Tensor:
    """A mask of `size` random positions; each class has its exact share of them, rounded up or down."""
    n, counts = len(labels), torch.bincount(labels)
    quotas = counts * size // n
    remainders = counts * size % n
    quotas[remainders.argsort(descending=True, stable=True)[: size - int(quotas.sum())]] += 1

    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]  # class after class, random inside each
    rank = torch.arange(n) - (counts.cumsum(0) - counts)[labels[order]]
    chosen = torch.zeros(n, dtype=torch.bool)
    chosen[order[rank < quotas[labels[order]]]] = True
    return chosen
