"""Which samples of which dataset: what a recipe, a run folder and a feature file say about their data."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cappronet.data.datasets import load_dataset
from cappronet.data.samples import Dataset
from cappronet.data.splits import hold_out, keep_classes, take

__all__ = ["Selection"]


@dataclass(frozen=True)
class Selection:
    """A dataset, and the part of it that is used.

    Attributes:
        data: a name or a path, see `load_dataset`.
        classes: keep only these classes, by their numbers; none keeps all.
        train_size: keep this many training samples, the same share of every class; 0 keeps all.
        validation: hold out this many training samples, which are used instead of the test samples.
        seed: decides which samples are held out and which are kept.
    """

    data: str
    classes: tuple[int, ...] = ()
    train_size: int = 0
    validation: int = 0
    seed: int = 0

    def load(self, cache: str | Path | None = None) -> Dataset:
        """The samples; `cache` is the folder of downloaded datasets."""
        data = load_dataset(self.data, Path(cache) if cache else None)
        if self.classes:
            data = keep_classes(data, self.classes)
        train, test = data.train, data.test
        if self.validation:
            train, test = hold_out(train, self.validation, self.seed)
        if self.train_size:
            train = take(train, self.train_size, self.seed)
        return Dataset(data.name, data.classes, train, test)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON holds them."""
        return {**dataclasses.asdict(self), "classes": list(self.classes)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Selection":
        """The selection in a mapping; other keys are ignored."""
        own = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
        return cls(**{**own, "classes": tuple(own.get("classes", ()))})
