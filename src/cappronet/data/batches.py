"""From samples to batches for a network: the order of an epoch, augmentation, normalization, parts for processes.

Everything random is drawn from (seed, epoch, number of the batch) for a whole batch and then cut into parts. So batches
depend neither on the number of processes nor on where in an epoch a run starts again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import data

from cappronet.data.images import read_image
from cappronet.data.normalization import Normalization
from cappronet.data.samples import FileCrop, Images, Samples
from cappronet.data.splits import mixed_seed
from cappronet.extras import require

__all__ = ["Augmentation", "Batches", "file_transform"]

# The largest strength of RandAugment in torchvision.
STRONGEST = 30


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied; each image of a batch has its own draw.

    Files have sizes of their own: any augmentation crops them at a random position and scale, instead of padding them.

    Args:
        flip: mirror left and right, half of the time.
        padding: add this many black pixels on each side, then crop to the original size at a random position.
        resized_crop: cut out a random part of at least this share of the area, and scale it to the full size; 0: none.
        color_jitter: change brightness, contrast and saturation by up to this share, and the hue by a tenth of it.
        randaugment: strength of two random operations of RandAugment, from 1 to 30; 0: none.
    """

    flip: bool = False
    padding: int = 0
    resized_crop: float = 0.0
    color_jitter: float = 0.0
    randaugment: int = 0

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be at least 0, got {self.padding}")
        for name in ("resized_crop", "color_jitter"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        if not 0 <= self.randaugment <= STRONGEST:
            raise ValueError(f"randaugment must be from 0 to {STRONGEST}, got {self.randaugment}")

    def __bool__(self) -> bool:
        return self.flip or self.padding > 0 or self.one_by_one

    @property
    def one_by_one(self) -> bool:
        """Whether it needs torchvision, which draws for one image at a time."""
        return self.resized_crop > 0 or self.color_jitter > 0 or self.randaugment > 0


class Batches:
    """Batches of samples in an order drawn from (seed, epoch), augmented whole batches at a time on the device.

    Args:
        samples: what to draw from: images or feature vectors; those in memory are kept on the device.
        batch_size: B, over all processes together.
        normalize: what is done to the pixels of images; without it they stay from 0 to 255.
        augmentation: by default none.
        size: height and width that random crops of images in memory are scaled to; by default those of the images.
        interpolation: how these are scaled: `"bilinear"` or `"bicubic"`.
        balanced: draw as many samples of each class, those of small classes several times in an epoch.
        seed: where all draws start.
        shuffle: draw the order anew for each epoch and leave out a last batch that is not full, unless it is the only
            one. Without it, all samples come in their order.
        device: where batches are made.
        rank: number of this process; it gets the rank-th part of each batch.
        world_size: number of processes.
        channels_last: make images in this memory format.
        workers: number of processes that read files and augment one image at a time; other samples need none.
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        *,
        normalize: Normalization | None = None,
        augmentation: Augmentation = Augmentation(),  # noqa: B008 - it is frozen
        size: tuple[int, int] | None = None,
        interpolation: str = "bilinear",
        balanced: bool = False,
        seed: int = 0,
        shuffle: bool = True,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
        channels_last: bool = False,
        workers: int = 0,
    ) -> None:
        if len(samples) == 0 or batch_size < 1:
            raise ValueError(f"batches need images and a batch size of at least 1, got {len(samples)} and {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be 0 to {world_size - 1} for {world_size} processes, got {rank}")
        if batch_size % world_size:
            raise ValueError(f"a batch size of {batch_size} can't be divided by {world_size} processes: change either")
        if normalize is not None and len(normalize.factor) not in (1, samples.shape[0]):
            raise ValueError(
                f"images with {samples.shape[0]} channels need as many means and stds, got {len(normalize.factor)}"
            )
        _check_padding(samples, augmentation.padding)
        self.batch_size, self.augmentation, self.seed, self.shuffle = batch_size, augmentation, seed, shuffle
        self.device, self.rank, self.world_size, self.workers = torch.device(device), rank, world_size, workers
        self.balanced = balanced
        images = isinstance(samples, Images)
        self.memory_format = torch.channels_last if channels_last and images else torch.contiguous_format
        self.source: _Source | None = None
        if isinstance(samples, Images) and samples.paths is not None:
            self.source = _Source(file_transform(augmentation, samples.crop), samples.shape, paths=samples.paths)
        elif isinstance(samples, Images) and augmentation.one_by_one:
            own_size = (samples.shape[1], samples.shape[2])
            height, width = size if size and augmentation.resized_crop else own_size
            transform = _memory_transform(augmentation, samples.shape[1:], (height, width), interpolation)
            self.source = _Source(transform, (samples.shape[0], height, width), pixels=samples.pixels)
        values = samples.x if not isinstance(samples, Images) else samples.pixels if self.source is None else None
        self.values = None if values is None else values.to(self.device)
        self.labels = samples.labels.to(self.device)
        self.normalize = None if normalize is None else normalize.to(self.device)

    def __len__(self) -> int:
        """The number of batches in an epoch, the same for every process."""
        full, rest = divmod(len(self.labels), self.batch_size)
        return full + (rest > 0 and (full == 0 or not self.shuffle))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Samples in float32, images `(b, C, H, W)`, and labels `(b,)` of this process, from batch `start` on."""
        order = self._order(epoch)
        chosen = order.split(self.batch_size)[start : len(self)]
        shares = [indices[self._share(len(indices))] for indices in chosen]
        if self.source is not None:
            # A sample that is drawn several times has another draw of the augmentation each time.
            drawn = (torch.arange(len(order)) if self.balanced else order).split(self.batch_size)[start : len(self)]
            numbers = [part[self._share(len(part))] for part in drawn]
            batches = self._read(self.source, epoch, shares, numbers)
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
        generator = _generator("order", self.seed, epoch)
        if self.balanced:
            return _balanced_order(self.labels.cpu(), generator)
        return torch.randperm(len(self.labels), generator=generator)

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
        assert self.values is not None
        batch = self.values.index_select(0, indices.to(self.device))
        return crop_and_flip(batch, *draws, self.augmentation.padding) if self.augmentation else batch

    def _read(
        self, source: "_Source", epoch: int, shares: Sequence[Tensor], numbers: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        pairs = [
            list(zip(share.tolist(), draws.tolist(), strict=True)) for share, draws in zip(shares, numbers, strict=True)
        ]
        return iter(
            data.DataLoader(
                _Drawn(source, self.seed, epoch),
                batch_sampler=pairs,
                num_workers=self.workers,
                collate_fn=partial(_stacked, shape=source.shape),
                pin_memory=self.device.type == "cuda",
                generator=torch.Generator(),  # without its own, it would advance the one that training draws from
            )
        )

    def _normalized(self, batch: Tensor) -> Tensor:
        batch = batch.to(self.device, non_blocking=True)
        batch = batch.float() if self.normalize is None else self.normalize(batch)
        return batch.contiguous(memory_format=self.memory_format)


def _check_padding(samples: Samples, padding: int) -> None:
    """Images in memory are padded: with more than their side, crops would miss them."""
    if isinstance(samples, Images) and samples.pixels is not None and padding > min(samples.shape[1:]):
        side = min(samples.shape[1:])
        raise ValueError(f"padding must be at most the side of the images, {side} pixels, got {padding}")


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


@dataclass(frozen=True, eq=False)
class _Source:
    """Images that are prepared one at a time, from files or from memory; the transform gives uint8 of `shape`."""

    transform: Any
    shape: tuple[int, ...]
    paths: tuple[Path, ...] | None = None
    pixels: Tensor | None = None

    def image(self, index: int) -> Any:
        if self.paths is not None:
            return read_image(self.paths[index])
        assert self.pixels is not None
        return self.pixels[index]


class _Drawn(data.Dataset[Tensor]):
    """Images by index and number of the draw; what is drawn depends on nothing but (seed, epoch, number)."""

    def __init__(self, source: _Source, seed: int, epoch: int) -> None:
        self.source, self.seed, self.epoch = source, seed, epoch

    def __getitem__(self, index_and_number: tuple[int, int]) -> Tensor:
        index, number = index_and_number
        image = self.source.image(index)
        # torchvision draws from the global generator, which training needs back as it was
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(mixed_seed("file", self.seed, self.epoch, number))
        try:
            return self.source.transform(image)
        finally:
            torch.set_rng_state(state)


def file_transform(augmentation: Augmentation, crop: FileCrop = FileCrop()) -> Any:  # noqa: B008 - it is frozen
    """From a Pillow image to uint8 `(3, side, side)`: the middle of it, or with augmentation a random part."""
    v2 = require("torchvision.transforms.v2", "vision")
    mode = v2.InterpolationMode(crop.interpolation)
    if not augmentation:
        resize = v2.Resize(crop.shorter_side, interpolation=mode)
        return v2.Compose([resize, v2.CenterCrop(crop.side), v2.PILToTensor()])
    area = {"scale": (augmentation.resized_crop, 1.0)} if augmentation.resized_crop else {}
    cut = v2.RandomResizedCrop(crop.side, interpolation=mode, **area)
    return v2.Compose([cut, *_flip_and_colours(v2, augmentation), v2.PILToTensor()])


def _memory_transform(
    augmentation: Augmentation, image_size: Sequence[int], size: tuple[int, int], interpolation: str
) -> Any:
    """From uint8 `(C, H, W)` to the same, of `size` where a random part is scaled."""
    v2 = require("torchvision.transforms.v2", "vision")
    mode = v2.InterpolationMode(interpolation)
    cut: list[Any] = []
    if augmentation.padding:
        cut.append(v2.RandomCrop(tuple(image_size), padding=augmentation.padding))
    if augmentation.resized_crop:
        cut.append(v2.RandomResizedCrop(size, scale=(augmentation.resized_crop, 1.0), interpolation=mode))
    return v2.Compose([*cut, *_flip_and_colours(v2, augmentation)])


def _flip_and_colours(v2: Any, augmentation: Augmentation) -> list[Any]:
    """What comes after the crop; without it, the draws of files are those of earlier versions."""
    chosen: list[Any] = [v2.RandomHorizontalFlip()] if augmentation.flip else []
    if augmentation.randaugment:
        chosen.append(v2.RandAugment(magnitude=augmentation.randaugment))
    if augmentation.color_jitter:
        chosen.append(v2.ColorJitter(*[augmentation.color_jitter] * 3, hue=augmentation.color_jitter / 10))
    return chosen


def _balanced_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """As many samples as there are, the same number of each class; each class is used up before it starts again."""
    classes = labels.unique()
    quota, rest = divmod(len(labels), len(classes))
    extra = torch.randperm(len(classes), generator=generator)[:rest].tolist()
    chosen = []
    for number, label in enumerate(classes.tolist()):
        members, count = (labels == label).nonzero()[:, 0], quota + (number in extra)
        rounds = [torch.randperm(len(members), generator=generator) for _ in range(-(-count // len(members)))]
        chosen.append(members[torch.cat(rounds)[:count]] if rounds else members[:0])
    order = torch.cat(chosen)
    return order[torch.randperm(len(order), generator=generator)]


def _stacked(images: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """A process's part of a small last batch may be empty."""
    return torch.stack(images) if images else torch.empty(0, *shape, dtype=torch.uint8)


def _generator(*parts: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(mixed_seed(*parts))
