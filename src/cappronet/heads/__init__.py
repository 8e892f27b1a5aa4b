"""Classification heads, all called alike: features `(..., d)` in, one score for each class `(..., L)` out.

`CapsuleProjection` is the paper's head, the others are the controls that a comparison needs. `HEADS` has all of them by
name, and `replace_head` puts a capsule projection in place of a model's classifier; `load_pretrained` loads models of
`transformers` that have one. `GrassmannSGD` trains capsule heads with orthonormal bases.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from cappronet.heads.capsule import CapsuleProjection, FoldedProjection
from cappronet.heads.centering import Centering
from cappronet.heads.controls import MLP, Cosine, GroupedNeurons, Subcenters, WeightNormalized
from cappronet.heads.grassmann import CombinedOptimizer, GrassmannSGD
from cappronet.heads.pretrained import load_pretrained
from cappronet.heads.replace import replace_head
from cappronet.reporting import did_you_mean

__all__ = [
    "HEADS",
    "MLP",
    "CapsuleProjection",
    "Centering",
    "CombinedOptimizer",
    "Cosine",
    "FoldedProjection",
    "GrassmannSGD",
    "GroupedNeurons",
    "Subcenters",
    "WeightNormalized",
    "create_head",
    "load_pretrained",
    "replace_head",
]

# From name to constructor, all called as (in_features, num_classes, capsule_dim, **options).
HEADS: Mapping[str, Callable[..., nn.Module]] = {
    "capsule": CapsuleProjection,
    "group": GroupedNeurons,
    "linear": lambda d, L, _, **options: nn.Linear(d, L, **options),
    "cosine": lambda d, L, _, **options: Cosine(d, L, **options),
    "weightnorm": lambda d, L, _, **options: WeightNormalized(d, L, **options),
    "subcenter": Subcenters,
    "mlp": lambda d, L, _, **options: MLP(d, L, **options),
}


def create_head(name: str, in_features: int, num_classes: int, capsule_dim: int = 4, **options: Any) -> nn.Module:
    """A head by name; `capsule_dim` is the size of a class's group, unused by heads that have none."""
    if name not in HEADS:
        raise ValueError(f"unknown head {name!r}, expected one of {', '.join(HEADS)}{did_you_mean(name, HEADS)}")
    return HEADS[name](in_features, num_classes, capsule_dim, **options)
