"""The pre-activation ResNet for CIFAR of He et al. (2016), "Identity Mappings in Deep Residual Networks"."""

from collections import OrderedDict

from torch import Tensor, nn

from cappronet.models.backbones.resnet import conv1x1, conv3x3, global_pooling, he_initialize, norm_relu

__all__ = ["Bottleneck", "PreActBlock", "PreActResNet"]


class PreActBlock(nn.Module):
    """`x + residual(relu(norm(x)))`; where the channels change, the shortcut is a 1x1 convolution of the same relu."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, residual: nn.Module) -> None:
        super().__init__()
        self.activation = norm_relu(in_channels)
        self.residual = residual
        self.projection = conv1x1(in_channels, out_channels, stride) if in_channels != out_channels else None

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activation(x)
        shortcut = x if self.projection is None else self.projection(activated)
        return shortcut + self.residual(activated)


class Bottleneck(PreActBlock):
    """Convolutions 1x1, 3x3 and 1x1, the first two with a quarter of the channels."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        width = out_channels // 4
        residual = nn.Sequential(
            conv1x1(in_channels, width, stride),
            *norm_relu(width),
            conv3x3(width, width),
            *norm_relu(width),
            conv1x1(width, out_channels),
        )
        super().__init__(in_channels, out_channels, stride, residual)


class PreActResNet(nn.Sequential):
    """Three stages of n bottleneck blocks with 64, 128 and 256 channels, depth 9n+2: `(B, C, H, W) -> (B, 256)`."""

    def __init__(self, depth: int = 164, in_channels: int = 3) -> None:
        if depth < 11 or depth % 9 != 2:
            raise ValueError(f"depths of a pre-activation ResNet are 9n+2, as 11, 20 and 164; got {depth}")
        super().__init__(
            OrderedDict(
                stem=conv3x3(in_channels, 16),
                stage1=_stage(depth // 9, 16, 64, stride=1),
                stage2=_stage(depth // 9, 64, 128, stride=2),
                stage3=_stage(depth // 9, 128, 256, stride=2),
                activation=norm_relu(256),
                pool=global_pooling(),
            )
        )
        self.feature_dim = 256
        he_initialize(self)


def _stage(n: int, in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    rest = [Bottleneck(out_channels, out_channels, 1) for _ in range(n - 1)]
    return nn.Sequential(Bottleneck(in_channels, out_channels, stride), *rest)
