"""The capsule head against its limit and its rivals: time and peak memory, interleaved in one run, as ratios.

The limit is `nn.Linear(d, L * c)`: as many weights, and the three large products that no capsule head can avoid.
"""

import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cappronet.heads import CapsuleProjection

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["GROWTH", "SHAPES", "Shape", "growth_table", "markdown", "measure", "run", "spread", "table"]


@dataclass(frozen=True)
class Shape:
    """Batch, features, classes, capsule dimension."""

    B: int
    d: int
    L: int
    c: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Read `"B,d,L,c"`."""
        try:
            shape = cls(*map(int, text.split(",")))
        except (TypeError, ValueError):
            raise ValueError(f"a shape is four whole numbers B,d,L,c such as 128,64,10,8; got {text!r}") from None
        if min(shape.B, shape.d, shape.L, shape.c) < 1 or shape.c > shape.d:
            raise ValueError(f"a shape B,d,L,c needs numbers of at least 1 and c at most d; got {text!r}")
        return shape

    def __str__(self) -> str:
        return f"B={self.B} d={self.d} L={self.L} c={self.c}"


# ResNet-50 on ImageNet, ResNet-110 on CIFAR-10, and 160 features with 100 classes.
SHAPES = (Shape(256, 2048, 1000, 8), Shape(128, 64, 10, 8), Shape(128, 160, 100, 8))
GROWTH = Shape(128, 256, 100, 8)
LIMIT = "linear, d to L*c"
INFERENCE_LIMIT = "eval: linear, d to L*c"
PHASES = ("forward", "backward", "both")
# A rival whose pass takes longer than this sits out all but the first three rounds.
SLOW = 1.0


class BatchedInverse(nn.Module):
    """Eq. (2) as it is written, with a batched `torch.linalg.inv` and its automatic derivative."""

    def __init__(self, in_features: int, num_classes: int, capsule_dim: int) -> None:
        super().__init__()
        self.weight = CapsuleProjection(in_features, num_classes, capsule_dim).weight

    def forward(self, x: Tensor) -> Tensor:
        sigma = torch.linalg.inv(self.weight @ self.weight.mT)
        u = torch.einsum("bd,lcd->lcb", x, self.weight)
        return (u * (sigma @ u)).sum(1).clamp_min(1e-12).sqrt().mT


class ClassLoop(nn.Module):
    """One inverse after the other, and each `v_l` in R^d: how the authors' layer computed it."""

    def __init__(self, in_features: int, num_classes: int, capsule_dim: int) -> None:
        super().__init__()
        self.weight = CapsuleProjection(in_features, num_classes, capsule_dim).weight

    def forward(self, x: Tensor) -> Tensor:
        capsules = [x @ basis.mT @ torch.linalg.inv(basis @ basis.mT) @ basis for basis in self.weight]
        return torch.linalg.vector_norm(torch.stack(capsules, dim=1), dim=-1)


TRAINING: Mapping[str, Callable[[Shape], nn.Module]] = {
    LIMIT: lambda s: nn.Linear(s.d, s.L * s.c),
    "capsule": lambda s: CapsuleProjection(s.d, s.L, s.c),
    "capsule, hyper-power": lambda s: CapsuleProjection(s.d, s.L, s.c, solver="hyperpower"),
    "linear, d to L": lambda s: nn.Linear(s.d, s.L),
    "batched inverse": lambda s: BatchedInverse(s.d, s.L, s.c),
    "loop over classes": lambda s: ClassLoop(s.d, s.L, s.c),
}
INFERENCE: Mapping[str, Callable[[Shape], nn.Module]] = {
    INFERENCE_LIMIT: lambda s: nn.Linear(s.d, s.L * s.c),
    "eval: capsule, folded": lambda s: CapsuleProjection(s.d, s.L, s.c).fold(),
    "eval: capsule": lambda s: CapsuleProjection(s.d, s.L, s.c),
}


class Contestant:
    """A module with its input, and one timed pass through it."""

    def __init__(self, make: Callable[[Shape], nn.Module], shape: Shape, device: str, training: bool) -> None:
        self.device, self.training = device, training
        self.module = make(shape).to(device).train(training)
        self.x = torch.randn(shape.B, shape.d, device=device, requires_grad=training)
        with torch.no_grad():
            self.gradient = torch.randn_like(self.module(self.x))

    def once(self) -> tuple[float, float]:
        """Seconds of one forward and one backward (0 in inference)."""
        self.x.grad = None
        self.module.zero_grad()
        start = self._now()
        with torch.set_grad_enabled(self.training):
            scores = self.module(self.x)
        middle = self._now()
        if self.training:
            scores.backward(self.gradient)
        return middle - start, self._now() - middle if self.training else 0.0

    def _now(self) -> float:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()


def measure(
    shape: Shape,
    names: Iterable[str] | None = None,
    *,
    rounds: int = 15,
    device: str = "cpu",
    memory: bool = True,
    seed: int = 0,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Time the rivals at one shape, and yield what was found about each: `(name, results)`.

    In every round each rival runs for some milliseconds, in an order drawn anew, so that what else the machine does
    hits all alike. Ratios to the limit are taken within a round.
    """
    torch.manual_seed(seed)
    order = random.Random(seed)
    makers = [(name, make, True) for name, make in TRAINING.items()] + [(n, m, False) for n, m in INFERENCE.items()]
    wanted = {name for name, _, _ in makers} if names is None else set(names) | {LIMIT}
    peaks = {n: peak_memory(m, shape, device, t) for n, m, t in makers if n in wanted and memory and t}
    contestants = {name: Contestant(make, shape, device, t) for name, make, t in makers if name in wanted}
    first = {name: max(sum(contestant.once()), sum(contestant.once())) for name, contestant in contestants.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for round_ in range(rounds):
        for name in order.sample(list(contestants), len(contestants)):
            if round_ < 3 or first[name] < SLOW:
                passes = [contestants[name].once() for _ in range(max(1, int(0.01 / first[name])))]
                times[name].append(tuple(statistics.mean(phase) for phase in zip(*passes, strict=True)))
    for name, contestant in contestants.items():
        limit = LIMIT if contestant.training else INFERENCE_LIMIT
        result = _summary(times[name], times[limit]) | {"limit": limit}
        if name in peaks:
            result["peak_memory"] = {"bytes": peaks[name], "ratio": peaks[name] / peaks[LIMIT]}
        yield name, result


def _summary(times: Sequence[tuple[float, float]], limit: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Median and 10 to 90 % range of each phase's milliseconds, and of its ratio to the limit in the same round."""
    result: dict[str, Any] = {"rounds": len(times)}
    mine = {"forward": [f for f, _ in times], "backward": [b for _, b in times], "both": [f + b for f, b in times]}
    theirs = {"forward": [f for f, _ in limit], "backward": [b for _, b in limit], "both": [f + b for f, b in limit]}
    for phase in PHASES:
        if any(mine[phase]):
            ratios = [a / b for a, b in zip(mine[phase], theirs[phase], strict=False)]
            result[phase] = {"ms": spread([1e3 * t for t in mine[phase]]), "ratio": spread(ratios)}
    return result


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and 10 to 90 % range."""
    ordered = sorted(values)
    low, high = ordered[round(0.1 * (len(ordered) - 1))], ordered[round(0.9 * (len(ordered) - 1))]
    return {"median": statistics.median(ordered), "low": low, "high": high}


def peak_memory(make: Callable[[Shape], nn.Module], shape: Shape, device: str, training: bool) -> int:
    """The most bytes that were allocated at once: weights, input, one pass, all gradients."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        Contestant(make, shape, device, training).once()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler reports a missing GPU as an error
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        Contestant(make, shape, device, training).once()
    live = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def grown(base: Shape) -> dict[str, Shape]:
    """The base, and each of its sizes doubled."""
    return {
        "base": base,
        "2 B": Shape(2 * base.B, base.d, base.L, base.c),
        "2 d": Shape(base.B, 2 * base.d, base.L, base.c),
        "2 L": Shape(base.B, base.d, 2 * base.L, base.c),
        "2 c": Shape(base.B, base.d, base.L, 2 * base.c),
    }


def run(
    shapes: Sequence[Shape] = SHAPES,
    *,
    growth: Shape | None = GROWTH,
    rounds: int = 15,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure all rivals at each shape, and how the head's cost grows; a dictionary that JSON can hold."""
    results: dict[str, Any] = {"machine": machine(device), "rounds": rounds, "shapes": {}, "growth": {}}
    for shape in shapes:
        progress(str(shape))
        results["shapes"][str(shape)] = dict(measure(shape, rounds=rounds, device=device))
    for name, shape in (grown(growth) if growth else {}).items():
        progress(f"growth: {shape}")
        found = dict(measure(shape, ["capsule"], rounds=rounds, device=device, memory=False))
        results["growth"][name] = {"shape": str(shape), **found}
    return results


def machine(device: str) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def write(results: Mapping[str, Any], path: Path) -> None:
    """Write the results as a new JSON file; an existing one stays as it is."""
    with path.open("x", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
        file.write("\n")


def table(console: "Console", shape: str, found: Mapping[str, Any]) -> None:
    """Print one shape's results: median milliseconds, and ratios to the limit with their 10 to 90 % range."""
    from rich import box
    from rich.table import Table

    caption = f'x: times "{LIMIT}", median (10 to 90 %); MB: peak memory'
    style: dict[str, Any] = {"title_justify": "left", "caption_justify": "left", "box": box.SIMPLE_HEAD}
    grid = Table(title=f"{shape}, milliseconds", caption=caption, padding=(0, 1, 0, 0), **style)
    for heading in ("", "fwd", "bwd", "both", "x", "MB", "x"):
        grid.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, result in found.items():
        milliseconds = [_short(result[phase]["ms"]["median"]) if phase in result else "" for phase in PHASES]
        ratio, peak = result["both"]["ratio"], result.get("peak_memory")
        memory = [_short(peak["bytes"] / 1e6), _times(peak["ratio"])] if peak else ["", ""]
        spread = f"{_times(ratio['median'])} ({_times(ratio['low'])}-{_times(ratio['high'])})"
        grid.add_row(name, *milliseconds, spread, *memory, end_section=name == list(TRAINING)[-1])
    console.print(grid)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def markdown(results: Mapping[str, Any]) -> str:
    """The heads' forward and backward at every shape, as a table for a page."""
    rows = ["| shape | head | ms | times the limit (10 to 90 %) | peak memory |", "|---|---|--:|--:|--:|"]
    for shape, found in results["shapes"].items():
        for name, result in found.items():
            ratio, peak = result["both"]["ratio"], result.get("peak_memory")
            spread = f"{_times(ratio['median'])} ({_times(ratio['low'])} to {_times(ratio['high'])})"
            memory = _times(peak["ratio"]) if peak else ""
            rows.append(f"| {shape} | {name} | {_short(result['both']['ms']['median'])} | {spread} | {memory} |")
    return "\n".join(rows)


def growth_table(console: "Console", growth: Mapping[str, Any]) -> None:
    """Print how forward and backward grow when one size doubles."""
    from rich import box
    from rich.table import Table

    base = growth["base"]
    grid = Table(title=f"growth from {base['shape']}", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("", "capsule ms", "x base", "linear ms", "x base"):
        grid.add_column(heading, justify="right")
    for name, found in growth.items():
        row = [name]
        for rival in ("capsule", LIMIT):
            now, then = (f[rival]["both"]["ms"]["median"] for f in (found, base))
            row += [f"{now:.3g}", f"{now / then:.2f}"]
        grid.add_row(*row)
    console.print(grid)
