"""From pixels to what a network takes: `(x / 255 - mean) / std` for each channel."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cappronet.data.samples import Images

__all__ = ["Normalization", "channel_statistics"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, eq=False)
class Normalization:
    """One product and one sum for each channel, from pixels between 0 and 255 to normalized images.

    Attributes:
        factor: `1 / (255 std)`, `(C, 1, 1)`.
        summand: `-mean / std`, `(C, 1, 1)`.
    """

    factor: Tensor
    summand: Tensor

    @classmethod
    def of(cls, mean: Tensor | Sequence[float], std: Tensor | Sequence[float]) -> "Normalization":
        """The normalization with these means and standard deviations, for pixels between 0 and 1."""
        # The device is named because models are built under torch.device("meta") before they are loaded.
        mean, std = (torch.as_tensor(v, dtype=torch.float64, device="cpu").reshape(-1, 1, 1) for v in (mean, std))
        return cls((1 / (255 * std)).float(), (-mean / std).float())

    def to(self, device: torch.device | str) -> "Normalization":
        """The same on a device."""
        return Normalization(self.factor.to(device), self.summand.to(device))

    def __call__(self, pixels: Tensor) -> Tensor:
        """`(..., C, H, W)` from 0 to 255, of any type, to normalized float32."""
        return (pixels.float() * self.factor.to(pixels.device)).add_(self.summand.to(pixels.device))

    def inverse(self, images: Tensor) -> Tensor:
        """Normalized `(..., C, H, W)` back to pixels from 0 to 255."""
        return (images - self.summand.to(images.device)) / self.factor.to(images.device)


def channel_statistics(images: Images) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation `(C,)` of each channel, on a scale from 0 to 1; for files those of ImageNet.

    A channel without any variation has a standard deviation of 1, to divide by.
    """
    if images.pixels is None:
        return torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
    # A pixel has one of 256 values, so counting them gives exact sums.
    counts = torch.stack([_histogram(channel) for channel in images.pixels.unbind(1)]).double()
    values = torch.arange(256, dtype=torch.float64) / 255
    weights = counts / counts.sum(1, keepdim=True)
    mean = weights @ values
    std = (weights * (values - mean[:, None]).square()).sum(1).sqrt()
    return mean.float(), torch.where(std > 0, std, 1.0).float()


def _histogram(channel: Tensor) -> Tensor:
    counts = [torch.bincount(part.reshape(-1), minlength=256) for part in channel.split(4096)]
    return torch.stack(counts).sum(0)
