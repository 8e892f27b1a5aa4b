"""The control heads that a comparison needs, and the small functions that they share with the capsule head.

They are what is left of a capsule subspace when something is taken away: the same neurons without the projection, unit
weights alone, several centres for each class. All are called alike: features `(..., d)` in, scores `(..., L)` out.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Cosine", "GroupedNeurons", "Subcenters", "WeightNormalized"]

Scale = float | Literal["learned"] | None

# Where a learned scale starts. Lengths of unit features end at 1, and with L classes softmax needs a scale of about
# log(L / loss) to get the loss down; lengths as in the paper grow with the features.
SCALE_OF_UNIT_FEATURES = 16.0
SCALE_OF_FEATURES = 1.0


class GroupedNeurons(nn.Module):
    """The GroupNeuron ablation (Table 3): c neurons for each class, scored by the length of the group, no projection.

    Example:
        >>> GroupedNeurons(64, 10, capsule_dim=8)(torch.randn(32, 64)).shape
        torch.Size([32, 10])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        capsule_dim: int = 4,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(in_features=in_features, num_classes=num_classes, capsule_dim=capsule_dim)
        self.capsule_dim = capsule_dim
        self.neurons = nn.Linear(in_features, num_classes * capsule_dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """`|A_l x + b_l|`: `(..., d) -> (..., L)`."""
        return group_lengths(self.neurons(x), self.capsule_dim)


class WeightNormalized(nn.Module):
    """`w_l'x / |w_l|`: weight normalization, whose absolute value is the capsule length for c = 1 (Section 2.4)."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(in_features=in_features, num_classes=num_classes)
        self.weight = nn.Parameter(torch.empty(num_classes, in_features, device=device, dtype=dtype))
        nn.init.uniform_(self.weight, -(in_features**-0.5), in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., d) -> (..., L)`."""
        return F.linear(x, unit(self.weight))


class Subcenters(nn.Module):
    """The best of k unit centres for each class by cosine, times a scale: the discrete counterpart of a subspace.

    As in sub-center ArcFace (ECCV 2020), without its margin.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        centers: int = 4,
        *,
        scale: Scale = "learned",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(in_features=in_features, num_classes=num_classes, centers=centers)
        self.weight = nn.Parameter(torch.empty(num_classes, centers, in_features, device=device, dtype=dtype))
        self.scale = start_scale(scale, SCALE_OF_UNIT_FEATURES, device, dtype)
        nn.init.uniform_(self.weight, -(in_features**-0.5), in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """`scale max_k cos(x, w_lk)`: `(..., d) -> (..., L)`."""
        cosines = F.linear(unit(x), unit(self.weight).flatten(0, 1)).unflatten(-1, self.weight.shape[:2])
        return scaled(cosines.amax(-1), self.scale)


class Cosine(Subcenters):
    """`scale cos(x, w_l)`: unit features, unit weights, one centre for each class."""

    def __init__(self, in_features: int, num_classes: int, **options: Any) -> None:
        super().__init__(in_features, num_classes, centers=1, **options)


def check_sizes(**sizes: int) -> None:
    """Refuse a size below 1, by its name."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def start_scale(
    scale: Scale, start: float, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Parameter | float | None:
    """What multiplies the scores: nothing, a number, or a parameter that starts at `start`."""
    if scale == "learned":
        return nn.Parameter(torch.full((), start, device=device, dtype=dtype))
    if scale is not None and not (isinstance(scale, int | float) and scale > 0):
        raise ValueError(f"scale must be None, a number above 0, or 'learned', got {scale!r}")
    return scale


def scaled(scores: Tensor, scale: Tensor | float | None) -> Tensor:
    """Scores times the scale, if there is one."""
    return scores if scale is None else scores * scale


def unit(x: Tensor) -> Tensor:
    """`x / |x|` along the last dimension, with no overflow on the way; 0 stays 0."""
    largest = x.detach().abs().amax(-1, keepdim=True).clamp_min(1e-20)
    return F.normalize(x / largest, dim=-1, eps=1e-6)


def group_lengths(y: Tensor, size: int) -> Tensor:
    """The length of each group of `size` neighbours: `(..., L * size) -> (..., L)`."""
    return torch.linalg.vector_norm(y.unflatten(-1, (-1, size)), dim=-1)
