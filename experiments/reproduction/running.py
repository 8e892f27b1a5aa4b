"""Training what a table needs: trials first, then the runs with the settings they chose, group by group."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from cappronet.reporting import Report
from cappronet.training import comparison
from cappronet.training.comparison import PlannedRun
from cappronet.training.loop import Hardware
from experiments.reproduction.entries import Entry
from experiments.reproduction.outcomes import Finished, make_rows, read_rows, write_rows

__all__ = ["run_entries", "run_table"]


def run_table(
    table: str,
    scale: str,
    entries: Sequence[Entry],
    folder: Path,
    output: Path,
    *,
    table_entries: Sequence[Entry],
    jobs: int,
    hardware: Hardware,
    report: Report,
    show: Callable[[str, list[dict[str, Any]], Path], None],
) -> None:
    """Train what is missing of some rows of a table, and write all its rows after each group, also when interrupted.

    Args:
        table: its name.
        scale: its scale.
        entries: the rows to run.
        folder: where the run folders are.
        output: where the result file is written; if it exists, its results are not measured again.
        table_entries: all rows of the table; what is finished of the others stays in the result file.
        jobs: runs at the same time.
        hardware: where to train.
        report: is told how far the runs are.
        show: is given the group that was finished or interrupted, all rows so far, and the file they are in.
    """
    recorded = output / f"{table}-{scale}.json"
    finished = Finished(folder, read_rows(recorded) if recorded.exists() else ())
    chosen = {(entry.group, entry.label): entry for entry in entries}
    all_entries = [chosen.get((entry.group, entry.label), entry) for entry in table_entries]
    for (group, _), members in groupby(entries, key=lambda entry: (entry.group, entry.stage)):
        try:
            run_entries(list(members), finished, jobs=jobs, hardware=hardware, report=report)
        finally:
            rows = make_rows(all_entries, finished)
            if any(row["group"] == group for row in rows):
                show(group, rows, write_rows(table, scale, rows, output))


def run_entries(
    entries: Sequence[Entry], finished: Finished, *, jobs: int, hardware: Hardware, report: Report
) -> list[Entry]:
    """Train the missing trials and runs of a group, and return its entries with the settings that were chosen."""
    _train(finished.missing_trials(entries), jobs, hardware, report, f"{entries[0].group}: tuning run")
    tuned = [finished.tuned(entry) for entry in entries]
    _train(finished.missing_runs(tuned), jobs, hardware, report, f"{entries[0].group}: run")
    return tuned


def _train(runs: list[PlannedRun], jobs: int, hardware: Hardware, report: Report, text: str) -> None:
    comparison.check_folders(runs)
    comparison.train_all(runs, jobs, hardware, report, text)
