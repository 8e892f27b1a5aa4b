"""The wide residual network of Zagoruyko and Komodakis (2016), "Wide Residual Networks"."""

from collections import OrderedDict

from torch import nn

from cappronet.models.backbones.preact_resnet import PreActBlock
from cappronet.models.backbones.resnet import conv3x3, global_pooling, he_initialize, norm_relu

__all__ = ["WideBlock", "WideResNet"]


class WideBlock(PreActBlock):
    """Two 3x3 convolutions, with dropout between them."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float) -> None:
        residual = nn.Sequential(
            conv3x3(in_channels, out_channels, stride),
            *norm_relu(out_channels),
            nn.Dropout(dropout),
            conv3x3(out_channels, out_channels),
        )
        super().__init__(in_channels, out_channels, stride, residual)


class WideResNet(nn.Sequential):
    """Three stages of n blocks with 16k, 32k and 64k channels, depth 6n+4, width k: `(B, C, H, W) -> (B, 64k)`."""

    def __init__(self, depth: int, width: int, in_channels: int = 3, *, dropout: float = 0.0) -> None:
        if depth < 10 or depth % 6 != 4:
            raise ValueError(f"depths of a WideResNet are 6n+4, as 10, 16, 22, 28 and 40; got {depth}")
        n = depth // 6
        super().__init__(
            OrderedDict(
                stem=conv3x3(in_channels, 16),
                stage1=_stage(n, 16, 16 * width, 1, dropout),
                stage2=_stage(n, 16 * width, 32 * width, 2, dropout),
                stage3=_stage(n, 32 * width, 64 * width, 2, dropout),
                activation=norm_relu(64 * width),
                pool=global_pooling(),
            )
        )
        self.feature_dim = 64 * width
        he_initialize(self)


def _stage(n: int, in_channels: int, out_channels: int, stride: int, dropout: float) -> nn.Sequential:
    rest = [WideBlock(out_channels, out_channels, 1, dropout) for _ in range(n - 1)]
    return nn.Sequential(WideBlock(in_channels, out_channels, stride, dropout), *rest)
