"""Feature vectors that exist already, passed on as they are: a head on them is a whole model."""

from torch import Tensor, nn

__all__ = ["Features"]


class Features(nn.Module):
    """Learns nothing: `(B, d)` or, as a dataset holds feature vectors, `(B, 1, d, 1)` to `(B, d)`."""

    def __init__(self, in_channels: int = 1, image_size: int = 32) -> None:
        super().__init__()
        if in_channels != 1:
            raise ValueError(f"feature vectors of a dataset have the shape (1, d, 1), got {in_channels} channels")
        self.feature_dim = image_size

    def forward(self, x: Tensor) -> Tensor:
        features = x.flatten(1)
        if features.shape[1] != self.feature_dim:
            raise ValueError(
                f"this model takes feature vectors of {self.feature_dim} numbers, no images; got {tuple(x.shape)}"
            )
        return features
