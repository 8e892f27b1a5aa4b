"""What is finished of a table: in run folders, and in a result file that was written earlier.

A result file serves as a record. Where a run folder is missing but the file holds the error of the same recipe and
seed, or the validation error of the same trial, that counts as finished; so a fresh machine continues a table instead
of repeating it.
"""

import dataclasses
import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cappronet.data.files import write_atomically
from cappronet.training.comparison import PlannedRun
from cappronet.training.recipe import Recipe
from cappronet.training.results import Row
from cappronet.training.run_folder import Run, environment
from experiments.reproduction.entries import Entry

__all__ = ["Finished", "best_trial", "make_rows", "read_rows", "write_rows"]

# What decides how fast a run is and nothing else, at its usual value: runs that differ only here are the same.
SPEED: Mapping[str, Any] = {"compile": False}


@dataclass(frozen=True)
class Outcome:
    """The result of one finished run."""

    seed: int
    error: float
    best_error: float
    train_loss: float
    seconds: float
    epochs: list[int]
    curve: list[float]
    about: "About"


@dataclass(frozen=True)
class About:
    """What a row says about its runs in general."""

    data: str
    parameters: int
    commits: tuple[str, ...]
    fingerprint: str
    speed: Mapping[str, Any]


class Finished:
    """The finished runs and trials of a table.

    Args:
        root: the folder of all run folders.
        recorded: the rows of an earlier result file, for run folders that are missing.
    """

    def __init__(self, root: Path, recorded: Sequence[Mapping[str, Any]] = ()) -> None:
        self.root = root
        self.recorded = {(row["group"], row["head"]): row for row in recorded}
        self.recorded_settings = {key: _settings(row) for key, row in self.recorded.items()}

    def missing_trials(self, entries: Sequence[Entry]) -> list[PlannedRun]:
        """The runs of trials that are still to be trained."""
        return [
            entry.trial(self.root, number, seed)
            for entry in entries
            for number in range(len(entry.trials))
            for seed in range(entry.trial_seeds)
            if self.trial_error(entry, number, seed) is None
        ]

    def missing_runs(self, entries: Sequence[Entry]) -> list[PlannedRun]:
        """The runs still to be trained, seed by seed, so that an interrupted table has every head."""
        return [
            entry.run(self.root, seed)
            for seed in range(max(entry.seeds for entry in entries))
            for entry in entries
            if seed < entry.seeds and self.outcome(entry, seed) is None
        ]

    def trial_error(self, entry: Entry, number: int, seed: int) -> float | None:
        """The validation error of a finished trial, in percent."""
        run = _finished_run(entry.trial(self.root, number, seed))
        if run is not None:
            return float(run.summary["error"])
        recorded = self._recorded_trials(entry).get(json.dumps(entry.trials[number]), [])
        return recorded[seed] if seed < len(recorded) else None

    def trial_errors(self, entry: Entry) -> list[list[float]]:
        """The validation errors of each trial, by seed, as far as they are finished without a gap."""
        return [
            _until_none([self.trial_error(entry, number, seed) for seed in range(entry.trial_seeds)])
            for number in range(len(entry.trials))
        ]

    def is_tuned(self, entry: Entry) -> bool:
        """Whether all trials are finished."""
        return all(len(errors) == entry.trial_seeds for errors in self.trial_errors(entry))

    def tuned(self, entry: Entry) -> Entry:
        """The entry with the settings of its best trial; unchanged while trials are missing, or if it has none."""
        if not entry.trials or not self.is_tuned(entry):
            return entry
        best = best_trial(self.trial_errors(entry))
        return dataclasses.replace(entry, recipe=entry.recipe.changed(**entry.trials[best]))

    def outcome(self, entry: Entry, seed: int) -> Outcome | None:
        """The result of a finished run."""
        run = _finished_run(entry.run(self.root, seed))
        if run is not None:
            return _outcome_of_run(run)
        row = self.recorded.get((entry.group, entry.label))
        if row is None or seed not in row["seeds"] or not self._is_recorded(entry):
            return None
        return _outcome_of_row(row, row["seeds"].index(seed))

    def about(self, entry: Entry) -> About:
        """What is known of an entry that has finished trials but no finished run."""
        for number in range(len(entry.trials)):
            run = _finished_run(entry.trial(self.root, number, 0))
            if run is not None:
                return _about_run(run)
        return _about_row(self.recorded[entry.group, entry.label])

    def _recorded_trials(self, entry: Entry) -> dict[str, list[float]]:
        """The recorded validation errors of the same trials, by what they change."""
        row = self.recorded.get((entry.group, entry.label))
        if row is None or row.get("tuning", _tuning(entry)) != _tuning(entry):
            return {}
        if not self._is_recorded(entry, tuned={name for changes in entry.trials for name in changes}):
            return {}
        return {json.dumps(trial["changes"]): trial["validation_errors"] for trial in row["tries"]}

    def _is_recorded(self, entry: Entry, tuned: Collection[str] = ()) -> bool:
        """Whether the recorded row has the same recipe, except for the settings that are tuned and for the speed."""
        recorded, asked = self.recorded_settings[entry.group, entry.label], _settings_of(entry)
        return all(recorded[name] == value for name, value in asked.items() if name not in {*tuned, *SPEED})


def best_trial(errors: Sequence[Sequence[float]]) -> int:
    """The number of the trial with the lowest mean validation error, the first of several."""
    means = [statistics.mean(of_trial) for of_trial in errors]
    return means.index(min(means))


def _until_none(values: Sequence[float | None]) -> list[float]:
    known: list[float] = []
    for value in values:
        if value is None:
            break
        known.append(value)
    return known


def _finished_run(planned: PlannedRun) -> Run | None:
    run = Run(planned.folder)
    return run if run.finished and run.recipe.changed(**SPEED) == planned.recipe.changed(**SPEED) else None


def _settings(row: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe of a recorded row; settings that did not exist when it was written have their defaults."""
    return Recipe.from_dict(dict(row["recipe"]), f"the row {row['head']} of {row['group']}").to_dict()


def _settings_of(entry: Entry) -> dict[str, Any]:
    """The recipe of an entry without its seed; data and pretrained weights go by their names, wherever they are."""
    recipe = entry.recipe
    names = {"data": Path(recipe.data).stem, "pretrained": Path(recipe.pretrained).name}
    return {**recipe.to_dict(), **names, "seed": 0}


def _tuning(entry: Entry) -> dict[str, Any]:
    return {"validation": entry.validation, **entry.tuning}


def _outcome_of_run(run: Run) -> Outcome:
    summary = run.summary
    lines = [line for line in run.metrics() if "error" in line]
    return Outcome(
        **{name: summary[name] for name in ("seed", "error", "best_error", "train_loss", "seconds")},
        epochs=[line["epoch"] for line in lines],
        curve=[line["error"] for line in lines],
        about=_about_run(run),
    )


def _about_run(run: Run) -> About:
    known, summary = run.environment, run.summary
    commits = (str(known["commit"]),)
    return About(summary["data"], summary["parameters"], commits, known["data"], _speed(run.recipe.to_dict()))


def _outcome_of_row(row: Mapping[str, Any], index: int) -> Outcome:
    names = {"seed": "seeds", "error": "errors", "best_error": "best_errors", "train_loss": "train_losses"}
    return Outcome(
        **{name: row[plural][index] for name, plural in names.items()},
        seconds=row["seconds"],
        epochs=row["epochs"],
        curve=row["curves"][index],
        about=_about_row(row),
    )


def _about_row(row: Mapping[str, Any]) -> About:
    recipe, commits = row["recipe"], tuple(row["commits"])
    return About(recipe["data"], row["parameters"], commits, row["data_fingerprint"], _speed(recipe))


def _speed(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """How the runs of a recipe were made faster, which an entry that is run again may ask for differently."""
    return {name: recipe.get(name, usual) for name, usual in SPEED.items()}


def make_rows(entries: Sequence[Entry], finished: Finished) -> list[dict[str, Any]]:
    """A row for each entry that has a finished run or trial.

    A row is a `Row` as a dictionary, with its recipe, its trials and what its runs ran on. While an entry is being
    tuned, its row has no errors yet.
    """
    rows = []
    for entry in entries:
        trial_errors = finished.trial_errors(entry)
        outcomes: list[Outcome] = []
        if finished.is_tuned(entry):
            entry = finished.tuned(entry)
            known = [finished.outcome(entry, seed) for seed in range(entry.seeds)]
            outcomes = [outcome for outcome in known if outcome is not None]
        if outcomes or any(trial_errors):
            about = outcomes[0].about if outcomes else finished.about(entry)
            rows.append(_row(entry, outcomes, trial_errors, about))
    return rows


def _row(
    entry: Entry, outcomes: Sequence[Outcome], trial_errors: Sequence[list[float]], about: About
) -> dict[str, Any]:
    size = f", {entry.recipe.train_size:,} images" if entry.recipe.train_size else ""
    size += ", held-out images" if entry.recipe.validation else ""
    row = Row(
        data=about.data + size,
        backbone=entry.recipe.backbone,
        head=entry.label,
        errors=tuple(outcome.error for outcome in outcomes),
        parameters=about.parameters,
        seconds=statistics.mean(outcome.seconds for outcome in outcomes) if outcomes else 0.0,
        seeds=tuple(outcome.seed for outcome in outcomes),
        best_errors=tuple(outcome.best_error for outcome in outcomes),
        published=entry.published,
    )
    recipe = {name: value for name, value in _settings_of(entry).items() if name not in ("seed", "data")}
    commits = {commit for outcome in outcomes for commit in outcome.about.commits} or set(about.commits)
    values = {
        **dataclasses.asdict(row),
        "group": entry.group,
        "epochs": outcomes[0].epochs if outcomes else [],
        "curves": [outcome.curve for outcome in outcomes],
        "train_losses": [outcome.train_loss for outcome in outcomes],
        "recipe": {"data": about.data, **recipe, **about.speed},
        "tries": [
            {"changes": dict(changes), "validation_errors": errors}
            for changes, errors in zip(entry.trials, trial_errors, strict=True)
        ],
        **({"tuning": _tuning(entry)} if entry.trials else {}),
        "commits": sorted(commits),
        "data_fingerprint": about.fingerprint,
    }
    return json.loads(json.dumps(values))


def write_rows(table: str, scale: str, rows: list[dict[str, Any]], folder: Path) -> Path:
    """Write the rows to `TABLE-SCALE.json`; a file with other results is left as it is, and the next name is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    path, number = folder / f"{table}-{scale}.json", 1
    while path.exists():
        earlier = read_rows(path)
        if earlier == rows:
            return path
        if _results(earlier) <= _results(rows):
            break
        number += 1
        path = folder / f"{table}-{scale}-{number}.json"
    content = {"table": table, "scale": scale, "environment": environment(), "rows": rows}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return path


def _results(rows: Sequence[Mapping[str, Any]]) -> set[tuple[Any, ...]]:
    """Every error of a run or trial, with what identifies it."""
    runs = {
        (row["group"], row["head"], seed, error)
        for row in rows
        for seed, error in zip(row["seeds"], row["errors"], strict=True)
    }
    trials = {
        (row["group"], row["head"], json.dumps(trial["changes"]), seed, error)
        for row in rows
        for trial in row["tries"]
        for seed, error in enumerate(trial["validation_errors"])
    }
    return runs | trials


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that `write_rows` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"]
