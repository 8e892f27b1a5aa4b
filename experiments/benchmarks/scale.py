"""Very many classes: a head whose classes are spread over processes, from a thousand classes to a million.

Each point is measured in processes of its own, connected by gloo: steps with forward, loss, backward and an SGD update
with momentum, on the same made features. The rival is `nn.Linear(d, L)`, sharded by PyTorch's `ColwiseParallel`.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cappronet.data.files import write_atomically
from cappronet.reporting import Report, silent
from cappronet.training.run_folder import environment
from experiments.benchmarks.timing import machine, spread
from experiments.files import ROOT

__all__ = [
    "CLASSES",
    "COPIES",
    "MEMORY",
    "MILLION",
    "PROCESSES",
    "head_name",
    "is_message",
    "needed_bytes",
    "planned",
    "run",
]

CLASSES, PROCESSES = (1_000, 10_000, 100_000, 1_000_000), (1, 2, 4)
BATCH, FEATURES, CAPSULE_DIM = 32, 512, 4
# A million classes of a size that trains on this machine.
MILLION = {"L": 1_000_000, "d": 256, "c": 2}
# The share of other classes that sampling leaves.
SAMPLED = 0.1
# Weight, gradient and momentum.
COPIES = 3
# What a process takes before it has a head: Python, torch and its libraries.
PROCESS_BYTES = 400 * 2**20
# GiB over all processes above which a point is left out.
MEMORY = 14.0


def planned(
    classes: Sequence[int] = CLASSES,
    processes: Sequence[int] = PROCESSES,
    *,
    rounds: int = 5,
    threads: int = 1,
    million: bool = True,
) -> Iterator[dict[str, Any]]:
    """The points to measure, by growing cost: the capsule head, with sampled classes too, and the linear one.

    With the fewest classes, features are gathered from the processes once, to count what that sends.
    """
    settings = {"B": BATCH, "rounds": rounds, "threads": threads, "gather": False}
    for L in classes:
        for count in processes:
            for c, share in ((CAPSULE_DIM, 1.0), (CAPSULE_DIM, SAMPLED), (0, 1.0)):
                yield {"L": L, "d": FEATURES, "c": c, "share": share, "processes": count, **settings}
    exact = {"share": 1.0, **settings}
    several = max(processes)
    if several > 1:
        sizes = {"L": min(classes), "d": FEATURES, "c": CAPSULE_DIM}
        yield {**sizes, "processes": several, **exact, "gather": True}
    if million:
        for count in processes[:2]:
            yield {**MILLION, "processes": count, **exact}


def is_message(operation: str) -> bool:
    """Whether an operation of PyTorch's collectives sends numbers: not one that waits for others or wraps a result."""
    return any(word in operation for word in ("reduce", "gather", "scatter", "broadcast", "alltoall"))


def needed_bytes(point: Mapping[str, Any]) -> int:
    """What all processes of a point need together: weights, gradients, momentum, and what a step keeps of the batch."""
    L, d, c, B = (point[name] for name in ("L", "d", "c", "B"))
    weights = COPIES * L * max(c, 1) * d
    # u, z and t of each class; lengths, exponentials and their gradients.
    activations = round(B * L * point["share"] * (3 * c + 4))
    return 4 * (weights + activations) + point["processes"] * PROCESS_BYTES


def run(
    points: Sequence[Mapping[str, Any]],
    *,
    memory: float = MEMORY,
    record: Path | None = None,
    again: bool = False,
    report: Report = silent,
) -> dict[str, Any]:
    """Measure the points one after the other.

    Args:
        points: from `planned`.
        memory: points that need more than this many GiB, over all processes, are not measured.
        record: a file that is written after each point. What it already holds is not measured again, if it was measured
            by the same code on the same kind of machine.
        again: measure everything, whatever the record holds.
        report: is told the point and how many are done.
    """
    results: dict[str, Any] = {
        "machine": machine(),
        "cores": os.cpu_count(),
        "commit": environment()["commit"],
        "memory": memory,
        "points": [],
    }
    if record is not None and record.exists() and not again:
        earlier = json.loads(record.read_text(encoding="utf-8"))
        if {**earlier, "points": []} == results:
            results = earlier
    done = [entry["point"] for entry in results["points"]]
    for number, point in enumerate(points):
        report(_name(point), number, len(points))
        if point in done:
            continue
        needs = needed_bytes(point)
        entry = {"point": dict(point), "needed_bytes": needs}
        if needs <= memory * 2**30:
            _refuse_without_memory(point, needs)
            # How busy the machine was before: times of a busy one mean little.
            entry |= {"load": os.getloadavg()[0], **_measure(point)}
        results["points"].append(entry)
        if record is not None:
            record.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(record, (json.dumps(results, indent=1) + "\n").encode())
    return results


def _refuse_without_memory(point: Mapping[str, Any], needs: int) -> None:
    """An error before a machine that others use too runs out of memory."""
    status = Path("/proc/meminfo")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    for line in lines:
        if line.startswith("MemAvailable:") and 1024 * int(line.split()[1]) < needs:
            raise MemoryError(
                f"{_name(point)}: needs {needs / 2**30:.1f} GiB, of which {int(line.split()[1]) / 2**20:.1f} are free; "
                "run the command again when other programs have ended, or give --memory"
            )


def _measure(point: Mapping[str, Any]) -> dict[str, Any]:
    """Start the processes of a point, wait for them, and put together what they measured."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(point["threads"]), "PYTHONPATH": _python_path()}
    with TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"{rank}.json" for rank in range(point["processes"])]
        module = [sys.executable, "-m", "experiments.benchmarks.scale_process", json.dumps(point)]
        processes = [
            subprocess.Popen([*module, str(rank), f"{folder}/store", str(output)], env=environment)
            for rank, output in enumerate(outputs)
        ]
        try:
            codes = [process.wait() for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            raise RuntimeError(
                f"{_name(point)}: a process ended with exit code {max(codes, key=abs)}; was memory short?"
            )
        parts = [json.loads(output.read_text(encoding="utf-8")) for output in outputs]
    return {
        "seconds": spread(parts[0]["seconds"]),
        "samples_per_second": point["B"] / statistics.median(parts[0]["seconds"]),
        "peak_bytes": max(part["peak_bytes"] for part in parts),
        "resident_bytes": max(part["resident_bytes"] for part in parts),
        "payloads": parts[0]["payloads"],
        "losses": [parts[0]["losses"][0], parts[0]["losses"][-1]],
    }


def _python_path() -> str:
    return os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])


def _name(point: Mapping[str, Any]) -> str:
    return f"{point['L']:,} classes, d={point['d']}, {head_name(point)}, {point['processes']} processes"


def head_name(point: Mapping[str, Any]) -> str:
    """The head of a point as tables show it."""
    if not point["c"]:
        return "linear"
    gathered = ", features gathered" if point["gather"] else ""
    return f"capsule c={point['c']}" + (f", {point['share']:.0%} of classes" if point["share"] < 1 else "") + gathered
