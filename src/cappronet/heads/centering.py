"""Features as the subspaces of `CapsuleClassifier` take them: centred, with a constant appended."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Centering"]


class Centering(nn.Module):
    """`(x, 0) - origin`: subtracts the mean of the training features and appends a constant.

    A subspace contains -x whenever it contains x. Around their mean, features point in opposite directions, which the
    constant tells apart.

    Attributes:
        origin: `(d + 1,)`: the mean, and minus the constant.

    Example:
        >>> Centering(64)(torch.randn(32, 64)).shape
        torch.Size([32, 65])
    """

    origin: Tensor

    def __init__(
        self, in_features: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.register_buffer("origin", torch.zeros(in_features + 1, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """`(..., d) -> (..., d + 1)`."""
        return F.pad(x, (0, 1)) - self.origin

    def extra_repr(self) -> str:
        return f"{self.in_features}"
