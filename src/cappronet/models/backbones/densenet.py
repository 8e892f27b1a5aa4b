"""DenseNet-BC for CIFAR, of Huang et al. (2017), "Densely Connected Convolutional Networks"."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from cappronet.models.backbones.resnet import conv1x1, conv3x3, global_pooling, he_initialize, norm_relu

__all__ = ["DenseLayer", "DenseNetBC"]


class DenseLayer(nn.Module):
    """A bottleneck of 4k channels, then k new ones, appended to those that came in."""

    def __init__(self, in_channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.new_channels = nn.Sequential(
            *norm_relu(in_channels),
            conv1x1(in_channels, 4 * growth),
            nn.Dropout(dropout),
            *norm_relu(4 * growth),
            conv3x3(4 * growth, growth),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.new_channels(x)], dim=1)


class DenseNetBC(nn.Sequential):
    """Three blocks of n dense layers, depth 6n+4, with transitions that halve channels and image in between.

    `(B, C, H, W) -> (B, d)`, for images of at least 4x4. Depth 100 with a growth of 12 gives d = 342.

    Args:
        depth: L in its paper, 6n+4.
        growth: k, the channels that each layer adds; the first convolution has 2k.
        in_channels: C.
        dropout: after each convolution but the first. The paper has 0.2 where images are not augmented, else none.
    """

    def __init__(self, depth: int = 100, growth: int = 12, in_channels: int = 3, *, dropout: float = 0.0) -> None:
        if depth < 10 or depth % 6 != 4:
            raise ValueError(f"depths of a DenseNet-BC are 6n+4, as 10, 40, 100 and 190; got {depth}")
        n = depth // 6
        first = 2 * growth
        second = (first + n * growth) // 2
        third = (second + n * growth) // 2
        width = third + n * growth
        super().__init__(
            OrderedDict(
                stem=conv3x3(in_channels, first),
                block1=_block(n, first, growth, dropout),
                transition1=_transition(first + n * growth, second, dropout),
                block2=_block(n, second, growth, dropout),
                transition2=_transition(second + n * growth, third, dropout),
                block3=_block(n, third, growth, dropout),
                activation=norm_relu(width),
                pool=global_pooling(),
            )
        )
        self.feature_dim = width
        he_initialize(self)


def _block(n: int, channels: int, growth: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(*(DenseLayer(channels + i * growth, growth, dropout) for i in range(n)))


def _transition(in_channels: int, out_channels: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        *norm_relu(in_channels), conv1x1(in_channels, out_channels), nn.Dropout(dropout), nn.AvgPool2d(2)
    )
