"""A wide, shallow network in the manner of the CIFAR-10 speed runs: a good error within few epochs.

Its first layer is a 2x2 convolution that whitens patches, computed from training images before training and then fixed.
As in the speed run of Jordan (2024, arXiv 2404.00498), the first output channels of each convolution start as copies of
its input, and batch normalization learns no scale: only its biases, which recipes give a larger learning rate.
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cappronet.models.backbones.resnet import conv3x3

__all__ = ["SpeedRun"]

WIDTHS = (64, 256, 256)
# Added to the variances of the patches, so that directions without signal are not blown up.
LEAST_VARIANCE = 5e-4


class Whitening(nn.Conv2d):
    """Each 2x2 patch in the directions of its principal components, with unit variance and both signs; not trained."""

    def __init__(self, in_channels: int) -> None:
        super().__init__(in_channels, 2 * 4 * in_channels, 2, bias=False)
        self.weight.requires_grad_(False)

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Take the components of these images `(n, C, H, W)`, normalized as in training."""
        patches = F.unfold(images, 2).transpose(1, 2).flatten(0, 1).double()
        variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        components = (directions / (variances + LEAST_VARIANCE).sqrt()).T.flip(0)
        self.weight.copy_(torch.cat([components, -components]).view_as(self.weight))


class Halving(nn.Module):
    """The largest of each 2x2 pixels, where there are as many."""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2) if min(x.shape[2:]) > 1 else x


class SpeedRun(nn.Sequential):
    """Three blocks of two 3x3 convolutions with 64, 256 and 256 channels: `(B, C, H, W) -> (B, 256)`.

    Each block halves the image after its first convolution; the last feature map ends in the maximum of each channel.
    """

    def __init__(self, in_channels: int = 3) -> None:
        widths = (2 * 4 * in_channels, *WIDTHS)
        blocks = {f"block{i + 1}": _block(widths[i], widths[i + 1]) for i in range(3)}
        stem = nn.Sequential(Whitening(in_channels), nn.GELU())
        super().__init__(OrderedDict(stem=stem, **blocks, pool=nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten())))
        self.feature_dim = WIDTHS[-1]

    def fit_whitening(self, images: Tensor) -> None:
        """Set the whitening from training images before training begins."""
        self.stem[0].fit(images)  # type: ignore[index, union-attr]


def _block(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        _convolution(in_channels, out_channels),
        Halving(),
        _normalization(out_channels),
        nn.GELU(),
        _convolution(out_channels, out_channels),
        _normalization(out_channels),
        nn.GELU(),
    )


def _convolution(in_channels: int, out_channels: int) -> nn.Conv2d:
    """Its first output channels start as copies of its input; the others are drawn as usual."""
    convolution = conv3x3(in_channels, out_channels)
    nn.init.dirac_(convolution.weight.data[:in_channels])
    return convolution


def _normalization(channels: int) -> nn.BatchNorm2d:
    """Batch normalization whose scale stays 1."""
    norm = nn.BatchNorm2d(channels)
    norm.weight.requires_grad_(False)
    return norm
