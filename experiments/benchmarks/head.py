"""The capsule head against a linear layer of its size and against other ways to compute it: time and peak memory.

The reference is `nn.Linear(d, L * c)`: as many weights, and the three large products that no capsule head can avoid.
"""

import os
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cappronet.heads import CapsuleProjection, GroupedNeurons
from cappronet.reporting import Report, Table, silent
from experiments.benchmarks.timing import Laps, Timing, Turn, machine, part_of, spread, take_turns

__all__ = ["GROWTH", "SHAPES", "Shape", "growth_table", "measure", "peak_of", "run", "table"]


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
# A head whose pass takes longer than this many seconds sits out all but the first three rounds.
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
    "capsule, orthonormal": lambda s: CapsuleProjection(s.d, s.L, s.c, solver="orthonormal"),
    "grouped neurons": lambda s: GroupedNeurons(s.d, s.L, s.c),
    "linear, d to L": lambda s: nn.Linear(s.d, s.L),
    "batched inverse": lambda s: BatchedInverse(s.d, s.L, s.c),
    "loop over classes": lambda s: ClassLoop(s.d, s.L, s.c),
}
INFERENCE: Mapping[str, Callable[[Shape], nn.Module]] = {
    INFERENCE_LIMIT: lambda s: nn.Linear(s.d, s.L * s.c),
    "eval: capsule, folded": lambda s: CapsuleProjection(s.d, s.L, s.c).fold(),
    "eval: capsule": lambda s: CapsuleProjection(s.d, s.L, s.c),
}


# Seconds of a turn, and passes before the first one, of contestants that are not slower than that.
TURN, WARM_UP = 0.01, 20


class Contestant:
    """A module with its input, and timed passes through it."""

    def __init__(self, make: Callable[[Shape], nn.Module], shape: Shape, device: str, training: bool) -> None:
        self.device, self.training = device, training
        self.module = make(shape).to(device).train(training)
        self.x = torch.randn(shape.B, shape.d, device=device, requires_grad=training)
        with torch.no_grad():
            self.gradient = torch.randn_like(self.module(self.x))

    def one_pass(self) -> dict[str, float]:
        """Seconds of one forward and, in training, one backward pass."""
        self.x.grad = None
        self.module.zero_grad()
        start = self._now()
        with torch.set_grad_enabled(self.training):
            scores = self.module(self.x)
        middle = self._now()
        if not self.training:
            return {"forward": middle - start}
        scores.backward(self.gradient)
        return {"forward": middle - start, "backward": self._now() - middle}

    def turn(self) -> Turn:
        """A turn of as many passes as take about ten milliseconds: the mean of their times.

        How many is found by the fastest of some passes: the first ones in a process also load libraries.
        """
        first = sum(self.one_pass().values())
        fastest = min(sum(self.one_pass().values()) for _ in range(1 if first > TURN else WARM_UP))
        repeats = max(1, int(TURN / fastest))

        def take(_round: int) -> Laps:
            passes = [self.one_pass() for _ in range(repeats)]
            return {phase: statistics.mean(laps[phase] for laps in passes) for phase in passes[0]}

        return take

    def _now(self) -> float:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()


def measure(
    shape: Shape,
    names: Collection[str] | None = None,
    *,
    rounds: int = 15,
    device: str = "cpu",
    memory: bool = True,
    report: Report = silent,
) -> dict[str, dict[str, Any]]:
    """Time the heads at one shape, and relate each to a linear layer of its size; results by name."""
    torch.manual_seed(0)
    makers = [(name, make, True) for name, make in TRAINING.items()] + [(n, m, False) for n, m in INFERENCE.items()]
    if names is not None:
        makers = [maker for maker in makers if maker[0] in {*names, LIMIT}]
    peaks = {name: peak_memory(make, shape, device, True) for name, make, training in makers if memory and training}
    turns = {name: Contestant(make, shape, device, training).turn() for name, make, training in makers}
    timing = take_turns(turns, rounds, slow=SLOW, slow_rounds=3, report=report)
    results = {}
    for name, _, training in makers:
        limit = LIMIT if training else INFERENCE_LIMIT
        results[name] = {**_summary(timing, name, limit), "limit": limit}
        if name in peaks:
            results[name]["peak_memory"] = {"bytes": peaks[name], "ratio": peaks[name] / peaks[LIMIT]}
    return results


def _summary(timing: Timing, name: str, limit: str) -> dict[str, Any]:
    """Median and 10 to 90 % range of each phase's milliseconds, and of its ratio to the limit in the same round."""
    summary: dict[str, Any] = {"rounds": timing.rounds(name)}
    for phase in (*timing.turns[name][0], None):
        milliseconds = spread([1e3 * t for t in timing.seconds(name, phase)])
        summary[phase or "both"] = {"ms": milliseconds, "ratio": spread(timing.ratios(name, limit, phase))}
    return summary


def peak_memory(make: Callable[[Shape], nn.Module], shape: Shape, device: str, training: bool) -> int:
    """The most bytes that were allocated at once: weights, input, one pass, all gradients."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        Contestant(make, shape, device, training).one_pass()
        return torch.cuda.max_memory_allocated() - before
    return peak_of(lambda: Contestant(make, shape, device, training).one_pass())


def peak_of(work: Callable[[], Any]) -> int:
    """The most bytes of CPU memory that a call had allocated at once."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler reports a missing GPU as an error
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
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
    report: Report = silent,
) -> dict[str, Any]:
    """Measure all heads at each shape, and how the cost of capsules grows; the result is ready for JSON."""
    results: dict[str, Any] = {"machine": machine(device), "rounds": rounds, "shapes": {}, "growth": {}}
    larger = grown(growth) if growth else {}
    count = len(shapes) + len(larger)
    for number, shape in enumerate(shapes):
        progress = part_of(report, number, count, str(shape))
        results["shapes"][str(shape)] = measure(shape, rounds=rounds, device=device, report=progress)
    for number, (name, shape) in enumerate(larger.items(), len(shapes)):
        progress = part_of(report, number, count, f"growth, {shape}")
        costs = measure(shape, ["capsule"], rounds=rounds, device=device, memory=False, report=progress)
        results["growth"][name] = {"shape": str(shape), **costs}
    return results


HEADINGS = (
    *("shape", "head", "forward, ms", "backward, ms", "both, ms"),
    *("time relative to linear, d to L*c (10 to 90 %)", "peak memory relative to it"),
)


def table(results: Mapping[str, Any]) -> Table:
    """Time and peak memory of every head at every shape; in inference the reference is the linear layer's inference."""
    rows = []
    for shape, heads in results["shapes"].items():
        for name, costs in heads.items():
            milliseconds = [_short(costs[phase]["ms"]["median"]) if phase in costs else "" for phase in PHASES]
            ratio, peak = costs["both"]["ratio"], costs.get("peak_memory")
            relative = f"{_times(ratio['median'])} ({_times(ratio['low'])} to {_times(ratio['high'])})"
            rows.append((shape, name, *milliseconds, relative, _times(peak["ratio"]) if peak else ""))
    title = f"median of {results['rounds']} rounds, {results['machine']['threads']} threads"
    return Table(HEADINGS, rows, names=2, title=title)


def growth_table(results: Mapping[str, Any]) -> Table:
    """How forward and backward together grow when one size doubles."""
    base = results["growth"]["base"]
    rows = []
    for name, costs in results["growth"].items():
        cells = []
        for head in ("capsule", LIMIT):
            now, then = (c[head]["both"]["ms"]["median"] for c in (costs, base))
            cells += [f"{now:.3g}", f"{now / then:.2f}"]
        rows.append((name, *cells))
    headings = ("size", "capsule, ms", "relative to base", f"{LIMIT}, ms", "relative to base")
    return Table(headings, rows, title=f"growth from {base['shape']}")


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"
