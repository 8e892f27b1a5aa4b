"""The paper's tables, with the control they lack: which runs make a table, and the rows of those that are done.

A table is a list of entries: a recipe with one head, a number of seeds and, for the paper's own rows, the published
error. Entries that differ in nothing but the head form a group; its linear head is the control. At the scale of the
paper they stand in `results/paper.toml`, at the scale of two cores in `recipes/cpu.toml`.
"""

import dataclasses
import json
import re
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cappronet.comparison import Planned
from cappronet.grid import Grid
from cappronet.recipe import Recipe, shipped
from cappronet.results import Row, difference, row_from
from cappronet.runs import Run, environment, write_atomically

__all__ = ["Entry", "chosen", "entries", "grid", "plan", "plan_tries", "read", "rows", "settled", "tried", "write"]

Scale = Literal["paper", "cpu"]
FILES = {"paper": "results/paper.toml", "cpu": "recipes/cpu.toml"}
# Each try is run with so many seeds, each of which holds out other images.
TRY_SEEDS = 3


@dataclass(frozen=True)
class Entry:
    """A row of a table before its runs: a recipe, its seeds, and what the paper reports for it."""

    group: str
    label: str
    recipe: Recipe
    seeds: int
    published: float | None = None
    tries: tuple[dict[str, Any], ...] = ()
    validation: int = 0

    def folder(self, root: Path) -> Path:
        """Where its runs go, without their seeds."""
        return root / self.group / re.sub(r"\W+", "-", self.label.replace(" c=", ""))

    def first_run(self, root: Path) -> Run:
        """The run with seed 0."""
        return Run.open(_seed_folder(self, root, 0))


def entries(
    table: str, scale: Scale, *, seeds: int | None = None, only: Sequence[str] = (), cifar10: str | None = None
) -> list[Entry]:
    """The rows of a table; `only` keeps those whose recipe or head contains one of its words."""
    found = []
    content = tomllib.loads(shipped(FILES[scale]).read_text(encoding="utf-8"))
    if table not in content:
        raise ValueError(f"{table} can't be run at the scale {scale!r}, only {', '.join(content)}")
    for row in content[table]:
        base = Recipe.from_toml(shipped(f"recipes/{row['recipe']}.toml"))
        if cifar10 is not None and base.data == "cifar10":
            base = base.changed(data=cifar10)
        for head in row.get("heads", [{}]):
            changes = dict(head)
            name = changes.pop("name", None)
            recipe = base.changed(**changes)
            group = Path(row["recipe"]).name
            entry = Entry(
                group.removesuffix(_ending(recipe)) if scale == "paper" else group,
                name or recipe.head_label,
                recipe,
                seeds or row.get("seeds", 3),
                row.get("published"),
                tuple(row.get("tries", ())),
                row.get("validation", 0),
            )
            found.append(entry)
    kept = [e for e in found if not only or any(word in f"{e.group} {e.label} {e.recipe.head_label}" for word in only)]
    if not kept:
        raise ValueError(
            f"no row of {table} has {' or '.join(only)}; there are {', '.join(sorted({e.group for e in found}))}"
        )
    return kept


def _ending(recipe: Recipe) -> str:
    """What a paper recipe's name says about the head."""
    return f"-{recipe.head}{recipe.capsule_dim if recipe.head in ('capsule', 'group') else ''}"


def plan_tries(chosen_entries: Sequence[Entry], root: Path) -> list[Planned]:
    """Every entry with each of its tries, on held-out training images."""
    return [
        Planned(
            entry.recipe.changed(validation=entry.validation, evaluate_every=entry.recipe.epochs, seed=seed, **changes),
            _try_folder(entry, root, number, seed),
        )
        for entry in chosen_entries
        for number, changes in enumerate(entry.tries)
        for seed in range(TRY_SEEDS)
    ]


def _try_folder(entry: Entry, root: Path, number: int, seed: int) -> Path:
    folder = entry.folder(root)
    return folder.parent / "tries" / f"{folder.name}-try{number}-seed{seed}"


def try_errors(entry: Entry, root: Path) -> list[list[float]]:
    """The validation errors of each try, a list over seeds."""
    return [
        [Run.open(_try_folder(entry, root, number, seed)).summary["error"] for seed in range(TRY_SEEDS)]
        for number in range(len(entry.tries))
    ]


def chosen(entry: Entry, root: Path) -> Entry:
    """The entry with the settings of its best try."""
    if not entry.tries:
        return entry
    best = _best([statistics.mean(errors) for errors in try_errors(entry, root)])
    return dataclasses.replace(entry, recipe=entry.recipe.changed(**entry.tries[best]))


def _best(means: list[float]) -> int:
    """The first of the lowest."""
    return means.index(min(means))


def settled(asked: Sequence[Entry], root: Path) -> list[Entry]:
    """Those whose tries are all finished, with what they chose."""
    return [
        chosen(entry, root)
        for entry in asked
        if all(Run(planned.folder).finished for planned in plan_tries([entry], root))
    ]


def plan(chosen_entries: Sequence[Entry], root: Path) -> list[Planned]:
    """The runs of a table, seed by seed, so that a table that is cut off has every head."""
    most = max(entry.seeds for entry in chosen_entries)
    return [
        Planned(entry.recipe.changed(seed=seed), _seed_folder(entry, root, seed))
        for seed in range(most)
        for entry in chosen_entries
        if seed < entry.seeds
    ]


def _seed_folder(entry: Entry, root: Path, seed: int) -> Path:
    folder = entry.folder(root)
    return folder.with_name(f"{folder.name}-seed{seed}")


def rows(chosen_entries: Sequence[Entry], root: Path) -> list[dict[str, Any]]:
    """What is finished, a row for each entry: its `Row` as a dictionary, its recipe, and what its runs ran on."""
    found = []
    for entry in chosen_entries:
        runs = [Run(_seed_folder(entry, root, seed)) for seed in range(entry.seeds)]
        runs = [run for run in runs if run.finished]
        if not runs:
            continue
        summaries = [run.summary for run in runs]
        size = f", {entry.recipe.train_size:,} images" if entry.recipe.train_size else ""
        size += ", held-out images" if entry.recipe.validation else ""
        row = Row(
            data=summaries[0]["data"] + size,
            backbone=entry.recipe.backbone,
            head=entry.label,
            errors=tuple(summary["error"] for summary in summaries),
            parameters=summaries[0]["parameters"],
            seconds=statistics.mean(summary["seconds"] for summary in summaries),
            seeds=tuple(summary["seed"] for summary in summaries),
            best_errors=tuple(summary["best_error"] for summary in summaries),
            published=entry.published,
        )
        recipe = {name: value for name, value in entry.recipe.to_dict().items() if name not in ("seed", "data")}
        found.append(
            {
                **dataclasses.asdict(row),
                "group": entry.group,
                **_curves(runs),
                "train_losses": [summary["train_loss"] for summary in summaries],
                "recipe": {"data": summaries[0]["data"], **recipe},
                "tries": [
                    {"changes": changes, "validation_errors": errors}
                    for changes, errors in zip(entry.tries, try_errors(entry, root) if entry.tries else [], strict=True)
                ],
                "commits": sorted({str(run.environment["commit"]) for run in runs}),
                "data_fingerprint": runs[0].environment["data"],
            }
        )
    return found


def _curves(runs: Sequence[Run]) -> dict[str, Any]:
    """The error of each run at each epoch at which it was measured."""
    lines = [[line for line in run.metrics() if "error" in line] for run in runs]
    return {
        "epochs": [line["epoch"] for line in lines[0]],
        "curves": [[line["error"] for line in run] for run in lines],
    }


def write(table: str, scale: str, found: list[dict[str, Any]], folder: Path) -> Path:
    """Write the rows; a file that holds other runs than these is left as it is, and the next free name is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    path, number = folder / f"{table}-{scale}.json", 1
    while path.exists() and not _measured(json.loads(path.read_text(encoding="utf-8"))["rows"]) <= _measured(found):
        number += 1
        path = folder / f"{table}-{scale}-{number}.json"
    content = {"table": table, "scale": scale, "environment": environment(), "rows": found}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return path


def _measured(found: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {
        (row["group"], row["head"], seed, error)
        for row in found
        for seed, error in zip(row["seeds"], row["errors"], strict=True)
    }


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that `write` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def control(row: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The linear head of the same group and settings."""
    return next(
        (other for other in found if other["group"] == row["group"] and other["recipe"]["head"] == "linear"), None
    )


COLUMNS = (
    *("data", "backbone", "head", "published", "error %, last epoch", "n", "best test epoch", "against linear", "p"),
    "parameters",
)


def grid(found: list[dict[str, Any]]) -> Grid:
    """The table that is shown: means with their 95 % intervals; columns that are empty are left out."""
    whole = Grid(COLUMNS, [_cells(row, found) for row in found], names=3)
    empty = [heading for i, heading in enumerate(COLUMNS) if not any(line[i] for line in whole.lines)]
    return whole.without(*empty)


def _cells(values: dict[str, Any], found: list[dict[str, Any]]) -> tuple[str, ...]:
    row, linear = row_from(values), control(values, found)
    gap = difference(row, row_from(linear)) if linear is not None and linear is not values else None
    return (
        row.data,
        row.backbone,
        row.head,
        f"{row.published:g}" if row.published is not None else "",
        f"{row.mean:.2f}" + (f" ± {row.half_width:.2f}" if len(row.errors) > 1 else ""),
        str(len(row.errors)),
        f"{statistics.mean(row.best_errors):.2f}",
        f"{gap.mean:+.2f} ± {gap.half_width:.2f}" if gap else "",
        ("< 0.001" if gap.p < 0.001 else f"{gap.p:.3f}") if gap else "",
        f"{row.parameters:,}",
    )


def tried(found: list[dict[str, Any]]) -> Grid | None:
    """The validation error of every try, mean over seeds, for rows of one group; nothing where there are no tries."""
    found = [row for row in found if row["tries"]]
    if not found:
        return None
    names = [", ".join(f"{name} {value}" for name, value in one["changes"].items()) for one in found[0]["tries"]]
    lines = []
    for row in found:
        means = [statistics.mean(one["validation_errors"]) for one in row["tries"]]
        lines.append((row["head"], *(f"{mean:.2f}" for mean in means), names[_best(means)]))
    return Grid(("head", *names, "taken"), lines)
