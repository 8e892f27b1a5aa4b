"""What the benchmark of many classes measured, as tables; and what follows for several GPUs, on paper."""

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from cappronet.reporting import Table
from experiments.benchmarks.scale import BATCH, CAPSULE_DIM, COPIES, FEATURES, head_name, is_message

__all__ = ["assumptions", "exponent_table", "exponents", "paper_table", "sent_bytes", "table"]

# From where on the cost of a step is taken to be proportional to a power of L.
SMALLEST_FOR_EXPONENT = 10_000
# What the table for GPUs assumes, in addition to what was counted: none of it was measured.
ASSUMED = {
    "samples on each GPU": 128,
    "float32 operations, TFLOP/s": 60.0,
    "memory, GB/s": 1500.0,
    "network, GB/s from each GPU": 25.0,
}
GPUS = (8, 64)


def sent_bytes(payloads: Mapping[str, float], processes: int) -> int:
    """What each process sends in ring algorithms: twice all but its own share of a sum, once of what is gathered."""
    share = (processes - 1) / processes
    messages = {name: number for name, number in payloads.items() if is_message(name)}
    return round(sum((2 if name == "allreduce" else 1) * number for name, number in messages.items()) * share)


def exponents(results: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    """By head and number of processes, the power of L that the time of a step grows with."""
    times: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for entry in results["points"]:
        point = entry["point"]
        if "seconds" in entry and point["L"] >= SMALLEST_FOR_EXPONENT and point["d"] == FEATURES:
            pair = (math.log(point["L"]), math.log(entry["seconds"]["median"]))
            times.setdefault((head_name(point), point["processes"]), []).append(pair)
    return {
        key: statistics.linear_regression(*zip(*pairs, strict=True)).slope
        for key, pairs in times.items()
        if len(pairs) > 1
    }


def table(results: Mapping[str, Any]) -> Table:
    """Speed, memory of each process and bytes sent, for each head by number of processes."""
    points = [entry["point"] for entry in results["points"]]
    counts = sorted({point["processes"] for point in points})
    rows: dict[tuple[str, ...], dict[int, Mapping[str, Any]]] = {}
    for entry in results["points"]:
        point = entry["point"]
        name = (f"{point['L']:,}", str(point["d"]), head_name(point))
        rows.setdefault(name, {})[point["processes"]] = entry
    several = [count for count in counts if count > 1]
    headings = (
        *("classes", "d", "head"),
        *(f"samples/s, {_processes(count)}" for count in counts),
        *(f"GiB in each (tensors), {_processes(count)}" for count in counts),
        *(f"kB sent by each, {_processes(count)}" for count in several),
    )
    cells = [
        (
            *name,
            *(_speed(entries.get(count)) for count in counts),
            *(_shown(entries.get(count), _memory) for count in counts),
            *(_shown(entries.get(count), _kilobytes) for count in several),
        )
        for name, entries in rows.items()
    ]
    threads = points[0]["threads"]
    title = f"batch of {BATCH}, {threads} thread{'s' * (threads > 1)} for each process, {results['cores']} cores"
    return Table(headings, cells, names=3, title=title)


def exponent_table(results: Mapping[str, Any]) -> Table:
    """The power of L that the time of a step grows with, by head and number of processes."""
    powers = exponents(results)
    counts = sorted({count for _, count in powers})
    heads = list(dict.fromkeys(head for head, _ in powers))
    rows = [(head, *(f"{powers[head, n]:.2f}" if (head, n) in powers else "" for n in counts)) for head in heads]
    return Table(("head", *map(_processes, counts)), rows, title=f"exponent of L, from {SMALLEST_FOR_EXPONENT:,} up")


def paper_table(
    results: Mapping[str, Any], L: int = 1_000_000, d: int = FEATURES, c: int = CAPSULE_DIM
) -> Table | None:
    """On paper, not measured: a step on several GPUs, each with its own part of the batch, from what a step must do.

    What a sample sends is taken from the point with gathered features, where it was counted. Weight, gradient and
    momentum are in float32; three products take `2 B L c d` operations each; the update reads and writes each number of
    the head five times.
    """
    counted = [entry for entry in results["points"] if entry["point"]["gather"] and "payloads" in entry]
    if not counted:
        return None
    point, payloads = counted[0]["point"], counted[0]["payloads"]
    rows: list[tuple[str, ...]] = []
    for gpus in GPUS:
        B = round(gpus * ASSUMED["samples on each GPU"])
        head = 4 * COPIES * L * c * d / gpus
        batch = 4 * B * (L / gpus) * (3 * c + 4)
        sent = sent_bytes({name: n * B / point["B"] * d / point["d"] for name, n in payloads.items()}, gpus)
        products = 6 * B * (L / gpus) * c * d / (ASSUMED["float32 operations, TFLOP/s"] * 1e12)
        update = 5 * 4 * (L / gpus) * c * d / (ASSUMED["memory, GB/s"] * 1e9)
        network = sent / (ASSUMED["network, GB/s from each GPU"] * 1e9)
        times = [f"{1e3 * seconds:.2f}" for seconds in (products, update, network)]
        rows.append((str(gpus), f"{B:,}", f"{head / 2**30:.2f}", f"{batch / 2**30:.2f}", f"{sent / 1e6:.2f}", *times))
    headings = (
        *("GPUs", "batch", "head, gradient, momentum on each, GiB", "scores and their gradients on each, GiB"),
        *("MB sent by each", "products, ms", "update, ms", "network, ms"),
    )
    return Table(headings, rows, title=f"on paper: {L:,} classes, d={d}, c={c}; assumed {assumptions()}")


def assumptions() -> str:
    """What the table for GPUs assumes, in words."""
    return ", ".join(f"{name}: {value:g}" for name, value in ASSUMED.items())


def _processes(count: int) -> str:
    return f"{count} process{'es' * (count > 1)}"


def _speed(entry: Mapping[str, Any] | None) -> str:
    if entry is not None and "seconds" not in entry:
        return f"needs {entry['needed_bytes'] / 2**30:.0f} GiB"
    return _shown(entry, lambda e: f"{e['samples_per_second']:,.{0 if e['samples_per_second'] >= 100 else 1}f}")


def _memory(entry: Mapping[str, Any]) -> str:
    return f"{entry['resident_bytes'] / 2**30:.2f} ({entry['peak_bytes'] / 2**30:.2f})"


def _kilobytes(entry: Mapping[str, Any]) -> str:
    return f"{sent_bytes(entry['payloads'], entry['point']['processes']) / 1e3:,.1f}"


def _shown(entry: Mapping[str, Any] | None, text: Callable[[Mapping[str, Any]], str]) -> str:
    return text(entry) if entry is not None and "seconds" in entry else ""
