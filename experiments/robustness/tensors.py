"""Hostile tensors for the head: every combination of a feature and a weight that arithmetic finds hard.

Each case is drawn from a seed, and its outcome is judged by what the head promises: finite lengths and gradients,
lengths between 0 and |x|, and, where columns are well conditioned, the lengths of a pseudoinverse in float64.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cappronet.heads import CapsuleProjection
from cappronet.projection import capsule_lengths, coordinates
from cappronet.reporting import Report, silent
from experiments.robustness.outcomes import HANDLED, row

__all__ = ["FEATURES", "WEIGHTS", "Case", "draw", "failures", "run"]

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Case:
    """Features `(B, d)` and a weight `(L, c, d)`, and the kinds they were drawn from."""

    features: str
    weights: str
    x: Tensor
    weight: Tensor

    @property
    def kind(self) -> str:
        """What failures are counted by."""
        return f"{self.features} features, {self.weights} weight, {str(self.x.dtype).removeprefix('torch.')}"


# `size` is 300 in float16, else 1e30.
FEATURES: Mapping[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "generic": lambda x, _w, _size: x,
    "zero": lambda x, _w, _size: x * 0,
    "huge": lambda x, _w, size: x * size,
    "tiny": lambda x, _w, size: x / size,
    "one-hot": lambda x, _w, _size: torch.nn.functional.one_hot(x.argmax(-1), x.shape[-1]).to(x),
    "mixed": lambda x, _w, size: x * size ** torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype),
    "inside": lambda x, w, _size: x[:, : w.shape[1]] @ w[0],
    "empty": lambda x, _w, _size: x[:0],
}
WEIGHTS: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "generic": lambda w, _size: w,
    "zero": lambda w, _size: w * 0,
    "zero column": lambda w, _size: torch.cat([w[:, :-1], w[:, -1:] * 0], dim=1),
    "duplicate columns": lambda w, _size: torch.cat([w[:, :1], w[:, :-1]], dim=1),
    "nearly parallel columns": lambda w, _size: w[:, :1] + 1e-4 * w,
    "large": lambda w, size: w * size**0.5,
    "small": lambda w, _size: w * 1e-4,
    "overflowing": lambda w, size: w * size,
    "vanishing": lambda w, size: w / size,
    "columns of different size": lambda w, size: w * size ** torch.linspace(0, 0.2, w.shape[1]).to(w).unsqueeze(-1),
}
# Weights whose lengths a pseudoinverse in float64 gives too.
JUDGED = {"generic", "large", "small", "columns of different size"}


def draw(seed: int) -> Case:
    """The case of this number: sizes, precision, memory layout and both kinds are drawn."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    d = choose.choice([1, 2, 3, 8, 33, 200])
    c = choose.choice(sorted({1, min(2, d), min(8, d), d if d <= 33 else 1}))
    B, L = choose.choice([1, 2, 7]), choose.choice([1, 3, 20])
    features, weights = choose.choice(list(FEATURES)), choose.choice(list(WEIGHTS))
    dtype = choose.choice(DTYPES)
    w = torch.linalg.qr(torch.randn(L, d, d, generator=generator, dtype=torch.float64)).Q[:, :c] + 0.1
    x = torch.randn(B, d, generator=generator, dtype=torch.float64)
    size = 300.0 if dtype == torch.float16 else 1e30
    x, w = _representable(FEATURES[features](x, w, size), dtype), _representable(WEIGHTS[weights](w, size), dtype)
    if choose.random() < 0.3:  # not contiguous
        x, w = x.mT.contiguous().mT, w.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    return Case(features, weights, x, w)


def failures(case: Case) -> list[str]:
    """What the head does not keep of its promises for a case; nothing if it keeps all."""
    x, weight = case.x.clone().requires_grad_(), case.weight.clone().requires_grad_()
    lengths = capsule_lengths(x, weight)
    gradients = torch.autograd.grad(lengths.float().sum() if lengths.numel() else lengths.sum(), (x, weight))
    norms = torch.linalg.vector_norm(case.x.double(), dim=-1, keepdim=True)
    # A length may round up by one unit in the last place, and half precision rounds the features before it measures.
    longest = norms * (1 + 4 * torch.finfo(case.x.dtype).eps) + torch.finfo(case.x.dtype).tiny
    problems = []
    if not lengths.isfinite().logical_or(norms > torch.finfo(case.x.dtype).max).all():
        problems.append("a length is not finite")
    if not all(g.isfinite().all() for g in gradients) and not _is_steep(case):
        problems.append("a gradient is not finite")
    if (lengths.double().clamp_max(torch.finfo(case.x.dtype).max) > longest).any() or (lengths < 0).any():
        problems.append("a length is outside 0 to |x|")
    if case.weights in JUDGED and not _agrees(case, lengths):
        problems.append("a length differs from float64")
    if case.x.dtype in (torch.float32, torch.float64):
        problems += _failures_of_views(case, lengths, norms)
    return problems


def _failures_of_views(case: Case, lengths: Tensor, norms: Tensor) -> list[str]:
    """Coordinates and the folded head against lengths."""
    problems = []
    scale = norms.clamp_min(torch.finfo(torch.float64).tiny)
    tolerance = 1e-2 if case.x.dtype == torch.float32 else 1e-6
    of_coordinates = torch.linalg.vector_norm(coordinates(case.x, case.weight).double(), dim=-1)
    if not ((of_coordinates - lengths.double()).abs() <= tolerance * scale + torch.finfo(case.x.dtype).tiny).all():
        problems.append("coordinates have another length")
    L, c, d = case.weight.shape
    head = CapsuleProjection(d, L, c, dtype=case.weight.dtype)
    head.load_state_dict({"weight": case.weight})
    folded = head.fold()(case.x).double()
    if not ((folded - lengths.double()).abs() <= tolerance * scale + torch.finfo(case.x.dtype).tiny).all():
        problems.append("the folded head has another length")
    return problems


def _agrees(case: Case, lengths: Tensor) -> bool:
    """Whether lengths are those of an orthonormal basis in float64, relative to |x|."""
    x, w = case.x.double(), case.weight.double()
    largest = x.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    basis = torch.linalg.qr((w / w.abs().amax(-1, keepdim=True)).mT).Q
    exact = torch.einsum("bd,ldc->blc", x / largest, basis).norm(dim=-1) * largest
    precision = torch.finfo(case.x.dtype).eps
    condition = 64 * math.sqrt(w.shape[-1])  # of these weights, at most, times what their columns differ in size
    error = (lengths.double() - exact).abs()
    norms = torch.linalg.vector_norm(x / largest, dim=-1, keepdim=True) * largest
    return bool((error <= condition * precision * norms + torch.finfo(case.x.dtype).tiny).all())


def _is_steep(case: Case) -> bool:
    """Whether `Z'T`, which grows with |x| / |w|^2 along the shortest direction of a subspace, is out of range."""
    if not len(case.x):
        return False
    sizes = torch.linalg.svdvals(case.weight.double())
    shortest = torch.maximum(sizes[..., -1], 1e-2 * sizes[..., 0])
    longest = torch.linalg.vector_norm(case.x.double(), dim=-1).max()
    return bool((longest / shortest.square() > 1e-3 * torch.finfo(case.x.dtype).max).any())


def _representable(x: Tensor, dtype: torch.dtype) -> Tensor:
    limits = torch.finfo(dtype)
    return x.clamp(limits.min, limits.max).to(dtype)


def run(count: int = 5000, *, seed: int = 0, report: Report = silent) -> list[dict[str, Any]]:
    """Draw this many cases; a row for each kind of weight, where a failure is a promise that was not kept."""
    outcomes: dict[str, Counter[str]] = {f"{weights} weight": Counter() for weights in WEIGHTS}
    for number in range(count):
        report("hostile tensors", number, count)
        case = draw(seed + number)
        problems = [f"{problem}: {case.kind}" for problem in failures(case)]
        outcomes[f"{case.weights} weight"].update(problems[:1] or [HANDLED])
    return [row(kind, counts) for kind, counts in outcomes.items()]
