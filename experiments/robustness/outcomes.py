"""What all attacks report, in one shape: for each kind, how many inputs there were and what became of them.

- refused: an error of one line, which is what a user should see;
- handled: nothing is wrong with the result. A run resumed bit for bit, a damaged byte meant nothing, a command stopped;
- anything else is a failure, and is counted by what it is.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from cappronet.reporting import Table

__all__ = ["HANDLED", "REFUSED", "row", "summary", "table"]

REFUSED, HANDLED = "refused", "handled"
NUMBERS = ("inputs", REFUSED, HANDLED, "failures")


def row(kind: str, outcomes: Iterable[str] | Mapping[str, int], **more: Any) -> dict[str, Any]:
    """The outcomes of one kind of input, ready for JSON; `more` is what only this attack counts."""
    counts = Counter(outcomes)
    failures = {name: counts[name] for name in sorted(counts) if name not in (REFUSED, HANDLED)}
    known = {REFUSED: counts[REFUSED], HANDLED: counts[HANDLED]}
    return {"kind": kind, "inputs": counts.total(), **known, "failures": failures, **more}


def table(results: Mapping[str, Any]) -> Table:
    """The outcomes of an attack by kind."""
    rows = [(entry["kind"], *_numbers([entry])) for entry in results["kinds"]]
    return Table((results["attack"], *NUMBERS), rows)


def summary(attacks: Iterable[Mapping[str, Any]]) -> Table:
    """All attacks, over all of their kinds."""
    rows = [(results["attack"], str(len(results["kinds"])), *_numbers(results["kinds"])) for results in attacks]
    return Table(("attack", "kinds", *NUMBERS), rows)


def _numbers(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    totals: Counter[str] = Counter()
    for entry in rows:
        totals.update({name: entry[name] for name in NUMBERS[:-1]})
        totals["failures"] += sum(entry["failures"].values())
    return [f"{totals[name]:,}" for name in NUMBERS]
