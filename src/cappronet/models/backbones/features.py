"""Feature vectors that exist already, passed on as they are: a head on them is a whole model."""

from torch import Tensor, nn

__all__ = ["Features"]


class Features(nn.Module):
    """Has no weights: `(B, d) -> (B, d)`. `image_size` is d, and `in_channels` is always 1."""

    def __init__(self, in_channels: int = 1, image_size: int = 32) -> None:
        super().__init__()
        if in_channels != 1:
            raise ValueError(f"feature vectors have no channels: in_channels must be 1, got {in_channels}")
        self.feature_dim = image_size

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] != self.feature_dim:
            raise ValueError(
                f"this model takes feature vectors (B, {self.feature_dim}), not images; got {tuple(x.shape)}"
            )
        return x
