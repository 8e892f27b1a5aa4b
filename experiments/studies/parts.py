"""A study in parts, each measured in a process of its own: interrupted, the same call continues with the next part.

A part is finished once its file is in the study's folder, or once the result file has it; then it is not measured
again, unless it was measured under another identity: another network, other settings.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cappronet.data.files import write_atomically
from cappronet.reporting import Report
from cappronet.training.interruption import Interruption
from cappronet.training.run_folder import environment
from cappronet.training.workers import RESUME_HINT, run_jobs

__all__ = ["Part", "rows_of", "run_parts"]

# Measures a job, in a worker process, and returns rows that are ready for JSON.
Measure = Callable[[Any, Report], list[dict[str, Any]]]


@dataclass(frozen=True)
class Part:
    """A part of a study before it is measured.

    Attributes:
        name: of the part, and of its file.
        identity: what its outcome depends on, ready for JSON.
        job: what is passed to the function that measures it; it must be picklable.
    """

    name: str
    identity: Mapping[str, Any]
    job: Any


def run_parts(
    study: str, parts: Sequence[Part], measure: Measure, folder: Path, path: Path, *, jobs: int, report: Report
) -> dict[str, Any]:
    """Measure what is missing, and write the result file, also when interrupted.

    Args:
        study: its name.
        parts: what is to be measured; parts that the result file has in addition to them stay in it.
        measure: a function of a module.
        folder: where a file for each part is written.
        path: the result file.
        jobs: parts at the same time, each with one thread.
        report: is told how far the study is.

    Returns:
        The content of the result file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recorded = {part["name"]: part for part in _read(path)["parts"]} if path.exists() else {}
    missing = [part for part in parts if _finished(part, folder, recorded) is None]
    try:
        run_jobs([(part, folder) for part in missing], partial(_measure, measure), jobs, report, f"{study}: part")
    finally:
        known = {part.name: _finished(part, folder, recorded) for part in parts}
        content = _write(study, {**recorded, **{name: part for name, part in known.items() if part}}, path)
    return content


def rows_of(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of all parts of a result file."""
    return [row for part in content["parts"] for row in part["rows"]]


def _measure(measure: Measure, job: tuple[Part, Path], report: Report) -> None:
    part, folder = job
    with Interruption() as interruption:

        def checked(text: str, done: int, total: int) -> None:
            if interruption.signal is not None:
                raise InterruptedError(RESUME_HINT)
            report(text, done, total)

        rows = measure(part.job, checked)
    values = {"name": part.name, "identity": part.identity, "commit": environment()["commit"], "rows": rows}
    write_atomically(_file(part, folder), (json.dumps(values) + "\n").encode())


def _finished(part: Part, folder: Path, recorded: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was measured of a part, if it was the same."""
    file = _file(part, folder)
    candidates = [_read(file)] if file.exists() else []
    candidates += [recorded[part.name]] if part.name in recorded else []
    same = json.loads(json.dumps(part.identity))
    return next((measured for measured in candidates if measured["identity"] == same), None)


def _write(study: str, parts: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Write the result file, unless it has these parts or there are none."""
    measured = list(parts.values())
    if path.exists() and (content := _read(path))["parts"] == measured:
        return content
    content = {"study": study, "environment": environment(), "parts": measured}
    if measured:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return content


def _file(part: Part, folder: Path) -> Path:
    return folder / f"{part.name}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} can't be read as JSON ({error}): fix or delete it") from None
    return content
