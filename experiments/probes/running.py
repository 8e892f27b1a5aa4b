"""Runs what is missing from the result file: for each set first the choice of settings, then the fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cappronet.probing.workers import Workers
from cappronet.reporting import Report, silent
from experiments.probes.measuring import Unit, choose, measure
from experiments.probes.record import Record
from experiments.probes.rivals import RIVALS, Setting
from experiments.probes.sets import DRAWS, describe, draws, load, rows_of_draw

__all__ = ["Plan", "check_samples", "run", "select_rivals"]


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Attributes:
        sets: names of `SETS` that can be read.
        folder: where the features are.
        samples: samples of each class: numbers, `"imbalanced"`, `"all"`.
        rivals: names of `RIVALS`.
        again: words; rivals whose names contain one are measured again.
    """

    sets: Sequence[str]
    folder: Path | None = None
    samples: Sequence[str] = tuple(DRAWS)
    rivals: Sequence[str] = tuple(RIVALS)
    again: Sequence[str] = ()

    def repeats(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is measured again: one of this plan, of a rival that `again` names."""
        planned = row["set"] in self.sets and row["samples"] in self.samples and row["rival"] in self.rivals
        return planned and any(word in row["rival"] for word in self.again)

    def units(self, name: str) -> list[Unit]:
        """The rivals at every number of samples of a set, the largest first: two processes then end together."""
        y = load(name, self.folder).y
        sizes = [samples for samples in self.samples if draws(y, samples)]
        sizes.sort(key=lambda samples: len(rows_of_draw(y, samples, 0)), reverse=True)
        return [Unit(name, samples, rival, self.folder) for samples in sizes for rival in self.rivals]


def check_samples(samples: Sequence[str]) -> None:
    """Refuse what is not a number of samples."""
    for text in samples:
        if text not in DRAWS and not (text.isdecimal() and int(text) > 0):
            raise ValueError(f"--samples takes numbers above 0, imbalanced and all, got {text!r}")


def select_rivals(words: Sequence[str]) -> list[str]:
    """The rivals whose name contains one of the words; all of them without words."""
    names = [name for name in RIVALS if not words or any(word in name for word in words)]
    if not names:
        raise ValueError(f"no rival matches {' or '.join(words)}; choose from {', '.join(RIVALS)}")
    return names


def run(plan: Plan, path: Path, *, jobs: int = 1, report: Report = silent) -> dict[str, Any]:
    """Measure what the result file lacks; it is written after every measurement, and the same call resumes.

    A choice of settings is made again when the settings to choose from have changed, a fit when the chosen one has.

    Args:
        plan: what is to be measured.
        path: the result file.
        jobs: processes, each with one thread.
        report: is told the set, how much is done and how much there is.

    Returns:
        The content of the result file.
    """
    record = Record(path)
    record.begin({name: describe(name, plan.folder) for name in plan.sets}, plan.repeats)
    fits = {name: [(u, d) for u in plan.units(name) for d in range(draws(_y(u), u.samples))] for name in plan.sets}
    total = sum(len(plan.units(name)) + len(fits[name]) for name in plan.sets)
    current = ""
    with Workers(jobs, total, lambda _text, done, _total: report(current, done, total)) as workers:
        for current in plan.sets:
            units = plan.units(current)
            report(current, workers.done, total)
            missing = [unit for unit in units if _chosen(record.read(), unit) is None]
            workers.done += len(units) - len(missing)
            workers.run(_choose_and_record, [(path, unit) for unit in missing])
            content = record.read()
            chosen = {unit: _chosen(content, unit) for unit in units}
            tasks = [(path, u, d, chosen[u]) for u, d in fits[current] if not _fitted(content, u, d, chosen[u])]
            workers.done += len(fits[current]) - len(tasks)
            workers.run(_measure_and_record, tasks)
    return record.read()


def _y(unit: Unit) -> Any:
    return load(unit.set, unit.folder).y


def _chosen(content: Mapping[str, Any], unit: Unit) -> Setting | None:
    """The best of the rival's present settings, if they were compared."""
    for row in content["tuning"]:
        if row.items() >= unit.key.items() and row["settings"] == unit.candidates():
            return row["best"]
    return None


def _fitted(content: Mapping[str, Any], unit: Unit, draw: int, setting: Setting | None) -> bool:
    wanted = unit.key | {"draw": draw, "setting": setting}
    return any(row.items() >= wanted.items() for row in content["fits"])


def _choose_and_record(path: Path, unit: Unit) -> None:
    Record(path).add("tuning", choose(unit))


def _measure_and_record(path: Path, unit: Unit, draw: int, setting: Setting) -> None:
    Record(path).add("fits", measure(unit, draw, setting))
