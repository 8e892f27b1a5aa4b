"""The residual network for CIFAR of He et al. (2016), "Deep Residual Learning for Image Recognition", Section 4.2.

Its parts also serve the other backbones: all start from the same convolution and end in the same pooling.
"""

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["BasicBlock", "ResNet", "conv1x1", "conv3x3", "global_pooling", "he_initialize", "norm_relu"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions parallel to an identity without parameters (option A of the paper).

    Where the block halves the image and adds channels, the identity keeps every second pixel, and its new channels
    are 0.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added_channels = stride, out_channels - in_channels
        self.residual = nn.Sequential(
            conv3x3(in_channels, out_channels, stride),
            *norm_relu(out_channels),
            conv3x3(out_channels, out_channels),
            nn.BatchNorm2d(out_channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x), inplace=True)

    def shortcut(self, x: Tensor) -> Tensor:
        """The identity, subsampled and padded to the shape that the residual has."""
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.added_channels)) if self.added_channels else x


class ResNet(nn.Sequential):
    """Three stages of n basic blocks with 16, 32 and 64 channels, depth 6n+2: `(B, C, H, W) -> (B, 64)`.

    With a `width`, a 1x1 convolution maps the last stage to that many channels before the pooling: `(B, width)`. It
    gives a small network the wide features of a large one.
    """

    def __init__(self, depth: int, in_channels: int = 3, width: int | None = None) -> None:
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"depths of a CIFAR ResNet are 6n+2, as 8, 14, 20, 32, 44, 56 and 110; got {depth}")
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            stem=nn.Sequential(conv3x3(in_channels, 16), *norm_relu(16)),
            stage1=_stage(depth // 6, 16, 16, stride=1),
            stage2=_stage(depth // 6, 16, 32, stride=2),
            stage3=_stage(depth // 6, 32, 64, stride=2),
        )
        if width is not None:
            parts["widen"] = nn.Sequential(conv1x1(64, width), *norm_relu(width))
        super().__init__(OrderedDict(**parts, pool=global_pooling()))
        self.feature_dim = width or 64
        he_initialize(self)


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size of the image, or halves it with a stride of 2."""
    return nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)


def conv1x1(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """A linear map of the channels."""
    return nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)


def norm_relu(channels: int) -> nn.Sequential:
    """Batch normalization, then ReLU."""
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def global_pooling(size: int = 1) -> nn.Sequential:
    """The mean of each channel over `size` by `size` parts of the image: `(B, C, H, W) -> (B, C * size * size)`."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(size), nn.Flatten())


def he_initialize(model: nn.Module) -> None:
    """Convolutions start normal with variance 2 / fan-out (He et al. 2015); batch normalization as torch leaves it."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _stage(n: int, in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    rest = [BasicBlock(out_channels, out_channels, 1) for _ in range(n - 1)]
    return nn.Sequential(BasicBlock(in_channels, out_channels, stride), *rest)
