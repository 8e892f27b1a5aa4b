"""The image itself as its features: a head on raw pixels is the simplest classifier there is."""

from collections.abc import Sequence

from torch import Tensor, nn

__all__ = ["Pixels", "sides"]


def sides(image_size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width of images whose size is given as the side of a square or as both."""
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    return height, width


class Pixels(nn.Module):
    """Flattens images and learns nothing: `(B, C, H, W) -> (B, C * H * W)`, for images of one size."""

    def __init__(self, in_channels: int = 3, image_size: int | Sequence[int] = 32) -> None:
        super().__init__()
        height, width = sides(image_size)
        self.feature_dim = in_channels * height * width

    def forward(self, x: Tensor) -> Tensor:
        features = x.flatten(1)
        if features.shape[1] != self.feature_dim:
            raise ValueError(f"expected images of {self.feature_dim} numbers, got the shape {tuple(x.shape)}")
        return features
