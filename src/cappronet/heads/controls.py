"""The control heads that a comparison needs, and the small functions that they share with the capsule head.

Most are what is left of a capsule subspace when something is taken away: the same neurons without the projection, unit
weights alone, several centres for each class. The MLP has a hidden layer instead. All are called alike: features
`(..., d)` in, scores `(..., L)` out.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["MLP", "Cosine", "GroupedNeurons", "Subcenters", "WeightNormalized"]

Scale = float | Literal["learned"] | None

# Where a learned scale starts. Lengths of unit features end at 1, and with L classes softmax needs a scale of about
# log(L / loss) to get the loss down; lengths as in the paper grow with the features.
SCALE_OF_UNIT_FEATURES = 16.0
SCALE_OF_FEATURES = 1.0
# What multiplies the scores of unit features where nothing else is asked for; docs/decisions.md says why it is fixed.
FIXED_SCALE = 25.0


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


class MLP(nn.Module):
    """One hidden layer: the classifier to choose where a linear one is too simple and samples are many.

    Args:
        in_features: d.
        num_classes: L.
        width: of the hidden layer.
        hidden_dropout: dropout on the hidden layer, in training.
        device: of the weights.
        dtype: of the weights.

    Example:
        >>> MLP(64, 10, width=128)(torch.randn(32, 64)).shape
        torch.Size([32, 10])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        width: int = 512,
        *,
        hidden_dropout: float = 0.5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(in_features=in_features, num_classes=num_classes, width=width)
        self.hidden = nn.Linear(in_features, width, device=device, dtype=dtype)
        self.dropout = nn.Dropout(hidden_dropout)
        self.output = nn.Linear(width, num_classes, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """`A relu(B x + b) + a`: `(..., d) -> (..., L)`."""
        return self.output(self.dropout(self.hidden(x).relu()))


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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start uniform in +-1/sqrt(d)."""
        start_weight(self.weight)

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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start uniform in +-1/sqrt(d), and a learned scale where it starts for unit features."""
        start_weight(self.weight)
        if isinstance(self.scale, nn.Parameter):
            nn.init.constant_(self.scale, SCALE_OF_UNIT_FEATURES)

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


def check_floating(x: Tensor) -> None:
    """Refuse integers, in the words of `capsule_lengths`."""
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point, got {x.dtype}: convert it, for example with x.float()")


def start_scale(
    scale: Scale, start: float, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Parameter | float | None:
    """What multiplies the scores: nothing, a number, or a parameter that starts at `start`."""
    if scale == "learned":
        return nn.Parameter(torch.full((), start, device=device, dtype=dtype))
    if scale is not None and not (isinstance(scale, int | float) and scale > 0):
        raise ValueError(f"scale must be None, a number above 0, or 'learned', got {scale!r}")
    return scale


def start_weight(weight: Tensor) -> None:
    """Uniform in +-1/sqrt(d), as the authors' CIFAR-10 layer and `nn.Linear` start."""
    bound = weight.shape[-1] ** -0.5
    nn.init.uniform_(weight, -bound, bound)


def scaled(scores: Tensor, scale: Tensor | float | None) -> Tensor:
    """Scores times the scale, if there is one."""
    return scores if scale is None else scores * scale


def unit(x: Tensor) -> Tensor:
    """`x / |x|` along the last dimension, with no overflow on the way, in any precision.

    0 stays 0 with a derivative of 0, and so does what is smaller than the smallest normal number.
    """
    check_floating(x)
    largest = x.detach().abs().amax(-1, keepdim=True)
    largest = largest.masked_fill(largest < torch.finfo(x.dtype).tiny, torch.inf)
    return F.normalize(x / largest, dim=-1, eps=0.5)  # the norm is now 0, or at least 1


def group_lengths(y: Tensor, size: int) -> Tensor:
    """The length of each group of `size` neighbours: `(..., L * size) -> (..., L)`."""
    return torch.linalg.vector_norm(y.unflatten(-1, (-1, size)), dim=-1)
