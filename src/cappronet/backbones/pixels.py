"""The image itself as its features: a head on raw pixels is the simplest classifier there is."""

from torch import Tensor, nn

__all__ = ["Pixels"]


class Pixels(nn.Module):
    """Flattens images and learns nothing: `(B, C, H, W) -> (B, C * H * W)`, for images of one size."""

    def __init__(self, in_channels: int = 3, image_size: int = 32) -> None:
        super().__init__()
        self.feature_dim = in_channels * image_size**2

    def forward(self, x: Tensor) -> Tensor:
        features = x.flatten(1)
        if features.shape[1] != self.feature_dim:
            raise ValueError(f"expected images of {self.feature_dim} numbers, got the shape {tuple(x.shape)}")
        return features
