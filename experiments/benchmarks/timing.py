"""The timing loop of all benchmarks.

Contestants take turns, in an order drawn anew for each round, so that whatever else the machine does affects all of
them alike. Ratios are taken within a round, for the same reason.
"""

import platform
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cappronet.reporting import Report, silent

__all__ = ["Laps", "Timing", "Turn", "machine", "part_of", "seconds", "spread", "take_turns", "timed"]

# Seconds of each phase of a turn, by the name of the phase.
Laps = Mapping[str, float]
# One turn of a contestant in the round of this number.
Turn = Callable[[int], Laps]


@dataclass(frozen=True)
class Timing:
    """What was measured: by contestant, then by round, the laps of its turn."""

    turns: dict[str, dict[int, Laps]] = field(default_factory=dict)

    def rounds(self, name: str) -> int:
        """In how many rounds a contestant took part."""
        return len(self.turns[name])

    def seconds(self, name: str, phase: str | None = None) -> list[float]:
        """Seconds in each round, of one phase or of the whole turn."""
        return [_lap(laps, phase) for laps in self.turns[name].values()]

    def ratios(self, name: str, reference: str, phase: str | None = None) -> list[float]:
        """Its seconds divided by those of the reference, in each round in which both took part."""
        theirs = self.turns[reference]
        return [
            _lap(laps, phase) / _lap(theirs[number], phase)
            for number, laps in self.turns[name].items()
            if number in theirs
        ]


def _lap(laps: Laps, phase: str | None) -> float:
    return sum(laps.values()) if phase is None else laps[phase]


def take_turns(
    contestants: Mapping[str, Turn],
    rounds: int,
    *,
    warm_up: int = 0,
    slow: float = float("inf"),
    slow_rounds: int = 1,
    never_slow: Collection[str] = (),
    report: Report = silent,
) -> Timing:
    """Let contestants take turns, in an order drawn anew for each round.

    Args:
        contestants: from name to what is done in a turn. A turn without laps is not counted.
        rounds: how many rounds are measured.
        warm_up: rounds before them that are not.
        slow: a contestant whose first turn took longer than this many seconds is slow.
        slow_rounds: in how many rounds slow contestants take part; they sit out all others.
        never_slow: contestants that take part in every round.
        report: is told the contestant and the turns so far, before each turn.
    """
    order = random.Random(0)
    timing = Timing({name: {} for name in contestants})
    total = len(contestants) * (warm_up + rounds)
    done = 0
    for number in range(-warm_up, rounds):
        for name in order.sample(list(contestants), len(contestants)):
            report(name, done, total)
            done += 1
            is_slow = name not in never_slow and any(first > slow for first in timing.seconds(name)[:1])
            if is_slow and number >= slow_rounds:
                continue
            laps = contestants[name](number)
            if laps and number >= 0:
                timing.turns[name][number] = laps
    return timing


def seconds(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long a call takes."""
    start = clock()
    work()
    return clock() - start


def timed(phase: str, work: Callable[[], Any]) -> Turn:
    """A turn that consists of one call."""
    return lambda _round: {phase: seconds(work)}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and 10 to 90 % range."""
    ordered = sorted(values)
    low, high = ordered[round(0.1 * (len(ordered) - 1))], ordered[round(0.9 * (len(ordered) - 1))]
    return {"median": statistics.median(ordered), "low": low, "high": high}


def part_of(report: Report, number: int, count: int, name: str) -> Report:
    """The progress of one of `count` equal parts of a job, as progress of the whole."""
    return lambda text, done, total: report(f"{name}: {text}", number * total + done, count * total)


def machine(device: str = "cpu") -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
