"""From `Images` to batches for a network: the order of an epoch, augmentation, normalization, parts for processes.

Everything random is drawn from (seed, epoch, number of the batch) for a whole batch and then cut into parts. So batches
depend neither on the number of processes nor on where in an epoch a run starts again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import data

from cappronet.datasets import FILE_SIZE, Images, mixed_seed
from cappronet.extras import require
from cappronet.image_files import read_image

__all__ = ["Augmentation", "Batches", "channel_statistics"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# Files are scaled to this shorter side before their middle is cut out for evaluation.
RESIZED = 256


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied; each image of a batch has its own draw.

    Files have sizes of their own: any augmentation crops them at a random place and scale, instead of padding them.

    Args:
        flip: mirror left and right, half of the time.
        padding: add so many black pixels on each side, then cut out the original size at a random place.
    """

    flip: bool = False
    padding: int = 0

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be at least 0, got {self.padding}")

    def __bool__(self) -> bool:
        return self.flip or self.padding > 0


def channel_statistics(images: Images) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (C,) of each channel, on a scale from 0 to 1; for files those of ImageNet.

    A channel without any variation has a standard deviation of 1, to divide by. Feature vectors stay as they are,
    with a mean of 0 and a standard deviation of 1.
    """
    if images.holds_features:
        return torch.zeros(1), torch.ones(1)
    if images.pixels is None:
        return torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
    # A pixel has one of 256 values, so counting them gives exact sums.
    counts = torch.stack([_histogram(channel) for channel in images.pixels.unbind(1)]).double()
    values = torch.arange(256, dtype=torch.float64) / 255
    weights = counts / counts.sum(1, keepdim=True)
    mean = weights @ values
    std = (weights * (values - mean[:, None]).square()).sum(1).sqrt()
    return mean.float(), torch.where(std > 0, std, 1.0).float()


class Batches:
    """Batches of one Images in an order drawn from (seed, epoch), augmented whole batches at a time on the device.

    Args:
        images: what to draw from; pixels are kept on the device.
        batch_size: B, over all processes together.
        mean: of each channel, on a scale from 0 to 1.
        std: of each channel.
        augmentation: by default none.
        seed: where all draws start.
        shuffle: draw the order anew for each epoch and leave out a last batch that is not full, unless it is the only
            one. Without it, all images come in their order.
        device: where batches are made.
        rank: number of this process; it gets the rank-th part of each batch.
        world_size: number of processes.
        channels_last: make images in this memory format.
        workers: number of processes that read files; images in memory need none.
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        *,
        mean: Tensor | Sequence[float],
        std: Tensor | Sequence[float],
        augmentation: Augmentation = Augmentation(),  # noqa: B008 - it is frozen
        seed: int = 0,
        shuffle: bool = True,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
        channels_last: bool = False,
        workers: int = 0,
    ) -> None:
        if len(images) == 0 or batch_size < 1:
            raise ValueError(f"batches need images and a batch size of at least 1, got {len(images)} and {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be 0 to {world_size - 1} for {world_size} processes, got {rank}")
        if batch_size % world_size:
            raise ValueError(f"a batch size of {batch_size} can't be divided by {world_size} processes: change either")
        self.batch_size, self.augmentation, self.seed, self.shuffle = batch_size, augmentation, seed, shuffle
        self.device, self.rank, self.world_size, self.workers = torch.device(device), rank, world_size, workers
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.paths = images.paths
        self.pixels = None if images.pixels is None else images.pixels.to(self.device)
        self.labels = images.labels.to(self.device)

        channels = 3 if images.pixels is None else images.pixels.shape[1]
        mean, std = (torch.as_tensor(value, dtype=torch.float64).reshape(-1, 1, 1) for value in (mean, std))
        if len(mean) != channels or len(std) != channels:
            raise ValueError(
                f"images with {channels} channels need as many means and stds, got {len(mean)}, {len(std)}"
            )
        # (x / 255 - mean) / std as one product and one sum; features have no such range
        self.factor = (1 / ((1 if images.holds_features else 255) * std)).to(self.device, torch.float32)
        self.summand = (-mean / std).to(self.device, torch.float32)

    def __len__(self) -> int:
        """The number of batches in an epoch, the same for every process."""
        full, rest = divmod(len(self.labels), self.batch_size)
        return full + (rest > 0 and (full == 0 or not self.shuffle))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Images `(b, C, H, W)` in float32 and labels `(b,)` of this process, from batch number `start` on."""
        chosen = self._order(epoch).split(self.batch_size)[start : len(self)]
        shares = [indices[self._share(len(indices))] for indices in chosen]
        if self.paths is not None:
            batches = self._read(self.paths, epoch, shares)
        else:
            draws = (self._draws(epoch, number, len(indices)) for number, indices in enumerate(chosen, start))
            batches = (self._augmented(*pair) for pair in zip(shares, draws, strict=True))
        for share, batch in zip(shares, batches, strict=True):
            yield self._normalized(batch), self.labels[share.to(self.device)]

    def shares(self) -> list[int]:
        """How many images of each batch this process gets."""
        sizes = [len(indices) for indices in torch.arange(len(self.labels)).split(self.batch_size)[: len(self)]]
        return [len(range(size)[self._share(size)]) for size in sizes]

    def _order(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(len(self.labels))
        return torch.randperm(len(self.labels), generator=_generator("order", self.seed, epoch))

    def _share(self, size: int) -> slice:
        """Where this process's part of a batch is."""
        return slice(size * self.rank // self.world_size, size * (self.rank + 1) // self.world_size)

    def _draws(self, epoch: int, number: int, size: int) -> tuple[Tensor, Tensor]:
        """For each image of this process's part: where to crop it `(2, b)` and whether to flip it `(b,)`."""
        generator = _generator("augmentation", self.seed, epoch, number)
        corners = torch.randint(2 * self.augmentation.padding + 1, (2, size), generator=generator)
        flips = torch.rand(size, generator=generator) < (0.5 if self.augmentation.flip else 0.0)
        share = self._share(size)
        return corners[:, share].to(self.device), flips[share].to(self.device)

    def _augmented(self, indices: Tensor, draws: tuple[Tensor, Tensor]) -> Tensor:
        assert self.pixels is not None
        batch = self.pixels.index_select(0, indices.to(self.device))
        return crop_and_flip(batch, *draws, self.augmentation.padding) if self.augmentation else batch

    def _read(self, paths: tuple[Path, ...], epoch: int, shares: Sequence[Tensor]) -> Iterator[Tensor]:
        return iter(
            data.DataLoader(
                _Files(paths, file_transform(self.augmentation), self.seed, epoch),
                batch_sampler=[share.tolist() for share in shares],
                num_workers=self.workers,
                collate_fn=_stacked,
                pin_memory=self.device.type == "cuda",
                generator=torch.Generator(),  # without its own, it would advance the one that training draws from
            )
        )

    def _normalized(self, batch: Tensor) -> Tensor:
        batch = batch.to(self.device, non_blocking=True).float()
        return batch.mul_(self.factor).add_(self.summand).contiguous(memory_format=self.memory_format)


def crop_and_flip(batch: Tensor, corners: Tensor, flips: Tensor, padding: int) -> Tensor:
    """Pad `(b, C, H, W)` with zeros, cut each image out at its own corner (row, column), mirror it where it says so.

    Rows are picked whole, then columns in or against their order: of the ways tried, the fastest on a CPU.
    """
    b, channels, height, width = batch.shape
    padded = F.pad(batch, (padding,) * 4)
    padded_height, padded_width = padded.shape[2:]
    images = torch.arange(b * channels, device=batch.device).view(b, channels, 1)
    rows = corners[0].view(b, 1, 1) + torch.arange(height, device=batch.device)
    rows = images * padded_height + rows  # (b, C, H), numbered over the whole batch
    picked = padded.flatten(0, 2).index_select(0, rows.flatten()).view(b, channels * height, padded_width)

    columns = torch.arange(width, device=batch.device)
    columns = corners[1].view(b, 1) + torch.where(flips.view(b, 1), columns.flip(0), columns)
    return picked.gather(2, columns.view(b, 1, width).expand(-1, channels * height, -1)).view(batch.shape)


class _Files(data.Dataset[Tensor]):
    """Images read from files, as uint8 (3, 224, 224); draws for an image depend on nothing but (seed, epoch, index)."""

    def __init__(self, paths: tuple[Path, ...], transform: Any, seed: int, epoch: int) -> None:
        self.paths, self.transform, self.seed, self.epoch = paths, transform, seed, epoch

    def __getitem__(self, index: int) -> Tensor:
        image = read_image(self.paths[index])
        # torchvision draws from the global generator, which training needs back as it was
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(mixed_seed("file", self.seed, self.epoch, index))
        try:
            return self.transform(image)
        finally:
            torch.set_rng_state(state)


def file_transform(augmentation: Augmentation) -> Any:
    """From a Pillow image to uint8 (3, 224, 224): the middle of it, or with augmentation a random part."""
    v2 = require("torchvision.transforms.v2", "vision")
    if not augmentation:
        return v2.Compose([v2.Resize(RESIZED), v2.CenterCrop(FILE_SIZE), v2.PILToTensor()])
    flip = [v2.RandomHorizontalFlip()] if augmentation.flip else []
    return v2.Compose([v2.RandomResizedCrop(FILE_SIZE), *flip, v2.PILToTensor()])


def _stacked(images: list[Tensor]) -> Tensor:
    """A process's part of a small last batch may be empty."""
    return torch.stack(images) if images else torch.empty(0, 3, FILE_SIZE, FILE_SIZE, dtype=torch.uint8)


def _histogram(channel: Tensor) -> Tensor:
    counts = [torch.bincount(part.reshape(-1), minlength=256) for part in channel.split(4096)]
    return torch.stack(counts).sum(0)


def _generator(*parts: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(mixed_seed(*parts))
