"""Which runs make a table of the paper.

A table is a list of entries: a recipe with one head, a number of seeds and, for the paper's own rows, the published
error. Entries that differ in nothing but the head form a group; its linear head is the control. The tables at the scale
of the paper are in `results/paper.toml`, those at the scale of two CPU cores in `cpu.toml`.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from cappronet.training.comparison import PlannedRun
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run
from experiments.files import ROOT

__all__ = ["Entry", "Scale", "read_entries"]

Scale = Literal["paper", "cpu"]
TABLES: Mapping[str, Path] = {"paper": ROOT / "results" / "paper.toml", "cpu": Path(__file__).with_name("cpu.toml")}
RECIPES = ROOT / "recipes"


@dataclass(frozen=True)
class Entry:
    """A row of a table before its runs: a recipe, its seeds, and what the paper reports for it.

    Attributes:
        group: the name that entries with different heads share: that of their recipe, unless the table gives another.
        label: the name of the head in the table.
        recipe: what is trained, except for the seed.
        seeds: how many runs, with seeds 0, 1, ...
        published: the error in the paper, in percent.
        trials: the settings to choose from, each as changes to the recipe.
        validation: how many training images a trial is validated on.
        tuning: what all trials change in the recipe, such as a shorter schedule.
        trial_seeds: how many runs each trial has; each holds out other images.
        stage: entries of a group are trained after those of an earlier stage.
    """

    group: str
    label: str
    recipe: Recipe
    seeds: int
    published: float | None = None
    trials: tuple[Mapping[str, Any], ...] = ()
    validation: int = 0
    tuning: Mapping[str, Any] = field(default_factory=dict)
    trial_seeds: int = 3
    stage: int = 1

    def run(self, root: Path, seed: int) -> PlannedRun:
        """The run with this seed."""
        folder = root / self.group / f"{self._folder_name()}-seed{seed}"
        return PlannedRun(self.recipe.changed(seed=seed), folder)

    def trial(self, root: Path, number: int, seed: int) -> PlannedRun:
        """A run of one of the trials, which is evaluated once, at its end."""
        changes = {**self.tuning, **self.trials[number]}
        recipe = self.recipe.changed(validation=self.validation, seed=seed, **changes)
        folder = root / self.group / "tries" / f"{self._folder_name()}-try{number}-seed{seed}"
        return PlannedRun(recipe.changed(evaluate_every=recipe.epochs), folder)

    def first_run(self, root: Path) -> Run:
        """The run with seed 0, which must exist."""
        return Run.open(self.run(root, 0).folder)

    def _folder_name(self) -> str:
        return re.sub(r"\W+", "-", self.label.replace(" c=", ""))


def read_entries(
    table: str,
    scale: Scale,
    *,
    seeds: int | None = None,
    only: Sequence[str] = (),
    files: Mapping[str, str] = MappingProxyType({}),
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> list[Entry]:
    """The entries of a table.

    Args:
        table: its name.
        scale: that of the paper, or that of two CPU cores.
        seeds: runs of each entry, instead of what the table asks for.
        only: words; an entry is kept if its recipe or head contains one of them.
        files: by the name of a dataset or of pretrained weights, a file to read them from.
        changes: settings of the recipes that are changed for all entries, such as how they are computed.
    """
    content = tomllib.loads(TABLES[scale].read_text(encoding="utf-8"))
    if table not in content:
        raise ValueError(f"there is no {table} at the scale {scale!r}; it has {', '.join(content)}")
    entries = [entry for row in content[table] for entry in _entries_of(row, scale, seeds, files)]
    entries = [replace(entry, recipe=entry.recipe.changed(**changes)) for entry in entries]
    chosen = [
        entry
        for entry in entries
        if not only or any(word in f"{entry.group} {entry.label} {entry.recipe.head_label}" for word in only)
    ]
    if not chosen:
        groups = ", ".join(sorted({entry.group for entry in entries}))
        raise ValueError(f"no row of {table} matches {' or '.join(only)}; choose from {groups}, or name a head")
    return chosen


def _entries_of(row: Mapping[str, Any], scale: Scale, seeds: int | None, files: Mapping[str, str]) -> list[Entry]:
    """One entry for each head of a row; a row without heads is itself one entry.

    A row may change its recipe in more than the head; its `group` then has another name than the recipe, since the
    name is that of the folder of its runs.
    """
    base = Recipe.from_toml(RECIPES / f"{row['recipe']}.toml").changed(**row.get("changes", {}))
    base = base.changed(data=files.get(base.data, base.data), pretrained=files.get(base.pretrained, base.pretrained))
    group = row.get("group", Path(row["recipe"]).name)
    entries = []
    for head in row.get("heads", [{}]):
        changes = dict(head)
        name = changes.pop("name", None)
        recipe = base.changed(**changes)
        entries.append(
            Entry(
                group.removesuffix(_ending(recipe)) if scale == "paper" else group,
                name or recipe.head_label,
                recipe,
                seeds or row.get("seeds", 3),
                row.get("published"),
                tuple(row.get("trials", ())),
                row.get("validation", 0),
                row.get("tuning", {}),
                row.get("trial_seeds", 3),
                row.get("stage", 1),
            )
        )
    return entries


def _ending(recipe: Recipe) -> str:
    """The part of a paper recipe's name that names the head."""
    return f"-{recipe.head}{recipe.capsule_dim if recipe.head in ('capsule', 'group') else ''}"
