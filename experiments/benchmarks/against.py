"""The head of this source tree against that of another, such as an earlier commit, in one process and taking turns."""

import importlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cappronet.heads import CapsuleProjection
from cappronet.reporting import Report, Table, silent
from experiments.benchmarks.head import SHAPES, Contestant, Shape
from experiments.benchmarks.timing import machine, part_of, spread, take_turns
from experiments.files import ROOT

__all__ = ["head_of", "run", "table"]

# From name to the options of a head, and whether it is trained.
CASES: Mapping[str, tuple[dict[str, Any], bool]] = {
    "capsule": ({}, True),
    "capsule, hyper-power": ({"solver": "hyperpower"}, True),
    "eval: capsule": ({}, False),
}


def head_of(source: Path) -> Any:
    """`CapsuleProjection` as the package `cappronet` in this folder defines it, next to the one that is imported."""
    source = source.resolve()
    if not (source / "cappronet" / "heads").is_dir():
        raise FileNotFoundError(f"there is no package cappronet in {source}: give the folder src of another checkout")
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "cappronet"}
    sys.path.insert(0, str(source))
    try:
        return importlib.import_module("cappronet.heads").CapsuleProjection
    finally:
        sys.path.remove(str(source))
        for name in [name for name in sys.modules if name.partition(".")[0] == "cappronet"]:
            del sys.modules[name]
        sys.modules.update(ours)


def run(
    source: Path, shapes: Sequence[Shape] = SHAPES, *, rounds: int = 15, device: str = "cpu", report: Report = silent
) -> dict[str, Any]:
    """Time both heads at each shape; the result, ready for JSON, has the ratio of ours to theirs within each round."""
    theirs = head_of(source)
    commits = {"commit": _commit(ROOT), "against": _commit(source)}
    results: dict[str, Any] = {"machine": machine(device), **commits, "rounds": rounds, "shapes": {}}
    for number, shape in enumerate(shapes):
        progress = part_of(report, number, len(shapes), str(shape))
        results["shapes"][str(shape)] = _measured(theirs, shape, rounds, device, progress)
    return results


def _measured(theirs: Any, shape: Shape, rounds: int, device: str, report: Report) -> dict[str, Any]:
    turns = {}
    for name, (options, training) in CASES.items():
        for owner, head in (("ours", CapsuleProjection), ("theirs", theirs)):
            torch.manual_seed(0)  # the same weights and inputs for both

            def make(s: Shape, head: Any = head, options: dict[str, Any] = options) -> nn.Module:
                module: nn.Module = head(s.d, s.L, s.c, **options)
                return module

            turns[f"{name} {owner}"] = Contestant(make, shape, device, training).turn()
    timing = take_turns(turns, rounds, warm_up=1, report=report)
    return {
        name: {
            **{owner: spread([1e3 * t for t in timing.seconds(f"{name} {owner}")]) for owner in ("ours", "theirs")},
            "ratio": spread(timing.ratios(f"{name} ours", f"{name} theirs")),
        }
        for name in CASES
    }


def table(results: Mapping[str, Any]) -> Table:
    """The times of both heads, and their ratio."""
    rows = []
    for shape, cases in results["shapes"].items():
        for name, costs in cases.items():
            ratio = costs["ratio"]
            times = [f"{costs[owner]['median']:.3g}" for owner in ("theirs", "ours")]
            rows.append((shape, name, *times, f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"))
    headings = ("shape", "head", "theirs, ms", "ours, ms", "ours relative to theirs (10 to 90 %)")
    return Table(headings, rows, names=2, title=f"median of {results['rounds']} rounds, against {results['against']}")


def _commit(folder: Path) -> str:
    """The commit of a checkout, marked if files differ from it; empty if it is none."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
