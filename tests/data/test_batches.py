"""Batches: their order, augmentation against a slow reference, normalization, and parts for several processes."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cappronet.data.batches import Augmentation, Batches, crop_and_flip
from cappronet.data.normalization import Normalization, channel_statistics
from cappronet.data.samples import Images


def random_images(n, channels=3, height=9, width=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, channels, height, width), generator=generator, dtype=torch.uint8)
    return Images(torch.arange(n), pixels)  # the label is the position


def plain(channels):
    return {"normalize": Normalization.of([0.0] * channels, [1 / 255] * channels)}


def make(images, batch_size, **options):
    return Batches(images, batch_size, **plain(images.pixels.shape[1]), **options)


def whole(batches, epoch=0, start=0):
    x, y = zip(*batches.epoch(epoch, start), strict=True)
    return torch.cat(x), torch.cat(y)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def crop_and_flip_slowly(image, row, column, flip, padding):
    height, width = image.shape[-2:]
    padded = torch.zeros(image.shape[0], height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    padded[:, padding : padding + height, padding : padding + width] = image
    cut = padded[:, row : row + height, column : column + width]
    return cut.flip(-1) if flip else cut


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 5), *[st.integers(1, 6)] * 3, st.integers(0, 4), st.integers(0, 2**30))
def test_crops_and_flips_are_those_of_the_slow_way(b, channels, height, width, padding, seed):
    images = random_images(b, channels, height, width, seed).pixels
    corners = torch.randint(2 * padding + 1, (2, b))
    flips = torch.rand(b) < 0.5
    fast = crop_and_flip(images, corners, flips, padding)
    assert fast.shape == images.shape
    for i in range(b):
        same(fast[i], crop_and_flip_slowly(images[i], *corners[:, i].tolist(), flips[i].item(), padding))


def draws_of(batches, images, padding):
    """For each augmented image, the one crop and flip of the original that gives it."""
    for x, y in batches.epoch(0):
        for out, label in zip(x.round().to(torch.uint8), y.tolist(), strict=True):
            found = [
                (row, column, flip)
                for row in range(2 * padding + 1)
                for column in range(2 * padding + 1)
                for flip in (False, True)
                if torch.equal(out, crop_and_flip_slowly(images.pixels[label], row, column, flip, padding))
            ]
            assert len(found) == 1
            yield found[0]


def test_each_image_has_a_draw_of_its_own():
    images = random_images(256)
    draws = list(draws_of(make(images, 64, augmentation=Augmentation(flip=True, padding=2)), images, 2))
    rows, columns, flips = zip(*draws, strict=True)
    assert set(rows) == set(columns) == set(range(5))
    assert 0.4 < np.mean(flips) < 0.6
    assert all(len(set(draws[i : i + 64])) > 25 for i in range(0, 256, 64))  # 50 are possible
    assert draws[:64] != draws[64:128]
    assert abs(np.corrcoef([rows, columns, flips])[np.triu_indices(3, 1)]).max() < 0.2


def test_flips_alone_and_crops_alone():
    images = random_images(200)
    flips = list(draws_of(make(images, 100, augmentation=Augmentation(flip=True)), images, 0))
    assert 0.4 < np.mean([flip for _, _, flip in flips]) < 0.6
    crops = list(draws_of(make(images, 100, augmentation=Augmentation(padding=1)), images, 1))
    assert not any(flip for _, _, flip in crops)
    assert len(set(crops)) == 9


def test_padding_is_black_before_normalization():
    images = Images(torch.zeros(64, dtype=torch.int64), torch.full((64, 1, 4, 4), 255, dtype=torch.uint8))
    batches = Batches(images, 64, normalize=Normalization.of([0.5], [0.25]), augmentation=Augmentation(padding=2))
    ((x, _),) = batches.epoch(0)
    assert x.unique().tolist() == [-2.0, 2.0]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_normalization(channels, channels_last):
    images = random_images(50, channels)
    mean, std = channel_statistics(images)
    batches = Batches(images, 50, normalize=Normalization.of(mean, std), shuffle=False, channels_last=channels_last)
    ((x, y),) = batches.epoch(0)
    exact = images.pixels.double() / 255
    exact = (exact - exact.mean((0, 2, 3), keepdim=True)) / exact.std((0, 2, 3), correction=0, keepdim=True)
    assert x.dtype == torch.float32
    assert x.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    torch.testing.assert_close(x.double(), exact, rtol=0, atol=1e-6)
    assert y.tolist() == list(range(50))


def test_statistics():
    images = random_images(5000, 3, 6, 5)
    mean, std = channel_statistics(images)
    exact = images.pixels.double() / 255
    assert mean.dtype == std.dtype == torch.float32
    torch.testing.assert_close(mean, exact.mean((0, 2, 3)).float())
    torch.testing.assert_close(std, exact.std((0, 2, 3), correction=0).float())
    constant = Images(torch.zeros(2, dtype=torch.int64), torch.full((2, 1, 3, 3), 51, dtype=torch.uint8))
    assert [value.item() for value in channel_statistics(constant)] == [pytest.approx(0.2), 1.0]
    files = Images(torch.tensor([0]), paths=(Path("a.jpg"),))
    assert [value.shape for value in channel_statistics(files)] == [(3,), (3,)]


def test_batches_depend_on_seed_and_epoch_and_on_nothing_else():
    images, options = random_images(40), {"augmentation": Augmentation(flip=True, padding=2)}
    torch.manual_seed(1)
    x, y = whole(make(images, 8, seed=3, **options), epoch=2)
    before = torch.get_rng_state()
    again = whole(make(images, 8, seed=3, **options), epoch=2)
    same(again, (x, y))
    same(torch.get_rng_state(), before)
    for seed, epoch in ((3, 1), (2, 2), (2, 3), (3, 3)):
        other = whole(make(images, 8, seed=seed, **options), epoch)
        assert not torch.equal(other[1], y)
        assert sorted(other[1].tolist()) == list(range(40))


def test_augmentation_is_drawn_anew_in_each_epoch_for_the_same_image():
    images = random_images(1)
    batches = make(images, 1, augmentation=Augmentation(flip=True, padding=4))
    assert len({x.numpy().tobytes() for epoch in range(20) for x, _ in batches.epoch(epoch)}) > 10


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("n", [3, 30, 32])
def test_the_parts_of_all_processes_are_the_batches_of_one(shuffle, world_size, n):
    options = {"shuffle": shuffle, "augmentation": Augmentation(flip=True, padding=2), "seed": 5}
    images = random_images(n)
    one = make(images, 8, **options)
    parts = [make(images, 8, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    assert {len(part) for part in parts} == {len(one)}
    for (x, y), *shares in zip(one.epoch(1), *(part.epoch(1) for part in parts), strict=True):
        same(torch.cat([share[0] for share in shares]), x)
        same(torch.cat([share[1] for share in shares]), y)
        sizes = [len(share[1]) for share in shares]
        assert max(sizes) - min(sizes) <= (0 if len(y) == 8 else 1)


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_can_start_anywhere(shuffle):
    batches = make(random_images(45), 10, shuffle=shuffle, augmentation=Augmentation(flip=True, padding=3))
    full = list(batches.epoch(4))
    for start in range(len(full) + 2):
        rest = list(batches.epoch(4, start))
        assert len(rest) == max(0, len(full) - start)
        for ours, theirs in zip(rest, full[start:], strict=True):
            same(ours, theirs)


def test_the_last_batch():
    def sizes(n, shuffle):
        batches = make(random_images(n), 10, shuffle=shuffle)
        found = [len(y) for _, y in batches.epoch(0)]
        assert len(batches) == len(found)
        return found

    assert sizes(25, shuffle=True) == [10, 10]
    assert sizes(25, shuffle=False) == [10, 10, 5]
    assert sizes(20, shuffle=True) == sizes(20, shuffle=False) == [10, 10]
    assert sizes(7, shuffle=True) == sizes(7, shuffle=False) == [7]


def test_labels_stay_with_their_images():
    images = random_images(33, 1, 5, 4)
    x, y = whole(make(images, 11))
    same(x.round().to(torch.uint8), images.pixels[y])
    assert sorted(y.tolist()) == list(range(33))
    assert y.tolist() != list(range(33))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 10, "world_size": 4}, "batch size of 10 can't be divided by 4 processes"),
        ({"batch_size": 0}, "at least 1, got 5 and 0"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank must be 0 to 1 for 2 processes, got 2"),
        ({"batch_size": 4, "normalize": Normalization.of([0.0, 0.0], [1.0, 1.0])}, "3 channels .* got 2"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Batches(random_images(5), **(plain(3) | options))
    with pytest.raises(ValueError, match="padding must be at least 0, got -1"):
        Augmentation(padding=-1)
    images = random_images(5)
    side = min(images.shape[1:])
    Batches(images, 5, augmentation=Augmentation(padding=side))
    for padding in (side + 1, 10**9, 10**30):
        with pytest.raises(ValueError, match=f"padding must be at most the side of the images, {side} pixels"):
            Batches(images, 5, augmentation=Augmentation(padding=padding))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Ten smooth images of several sizes."""
    pillow = pytest.importorskip("PIL.Image")
    pytest.importorskip("torchvision")
    folder, random, paths = tmp_path_factory.mktemp("files"), np.random.default_rng(0), []
    for i in range(10):
        small = pillow.fromarray(random.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        paths.append(folder / f"{i}.png")
        small.resize((280 + 10 * i, 300), pillow.Resampling.BICUBIC).save(paths[-1])
    return Images(torch.arange(10), paths=tuple(paths))


TRAINING = {"augmentation": Augmentation(flip=True), "seed": 3}


def test_files_are_scaled_and_cut_in_the_middle_for_evaluation(files):
    pillow = pytest.importorskip("PIL.Image")
    ((x, y),) = Batches(files, 10, **plain(3), shuffle=False).epoch(0)
    assert (x.shape, x.dtype, y.tolist()) == ((10, 3, 224, 224), torch.float32, list(range(10)))
    for i in (0, 9):
        with pillow.open(files.paths[i]) as image:
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
        scale = 256 / min(pixels.shape[1:])
        height, width = (int(side * scale) for side in pixels.shape[1:])
        resized = F.interpolate(pixels[None], (height, width), mode="bilinear", antialias=True)[0]
        top, left = round((height - 224) / 2), round((width - 224) / 2)
        assert (x[i] - resized[:, top : top + 224, left : left + 224]).abs().max() < 2


def test_files_are_the_same_with_any_number_of_workers_and_processes(files):
    x, y = whole(Batches(files, 4, **plain(3), **TRAINING), epoch=1)
    same(whole(Batches(files, 4, **plain(3), workers=2, **TRAINING), epoch=1), (x, y))
    same(whole(Batches(files, 4, **plain(3), **TRAINING), epoch=1, start=1), (x[4:], y[4:]))
    parts = [Batches(files, 4, **plain(3), rank=rank, world_size=2, **TRAINING).epoch(1) for rank in range(2)]
    for i, (left, right) in enumerate(zip(*parts, strict=True)):
        same(torch.cat([left[0], right[0]]), x[4 * i : 4 * i + 4])
        same(torch.cat([left[1], right[1]]), y[4 * i : 4 * i + 4])


def test_files_are_drawn_anew_in_each_epoch_and_leave_the_global_generator_alone(files):
    batches = Batches(files.subset(torch.tensor([0])), 1, **plain(3), **TRAINING)
    before = torch.get_rng_state()
    assert len({x.numpy().tobytes() for epoch in range(5) for x, _ in batches.epoch(epoch)}) == 5
    same(torch.get_rng_state(), before)


def test_more_processes_than_files_in_the_last_batch(files):
    sizes = []
    for rank in range(4):
        shares = list(
            Batches(files.subset(torch.arange(6)), 4, **plain(3), rank=rank, world_size=4, shuffle=False).epoch(0)
        )
        assert all(x.shape == (len(y), 3, 224, 224) for x, y in shares)
        sizes.append([len(y) for _, y in shares])
    assert sizes == [[1, 0], [1, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_file_is_named(tmp_path, workers):
    pytest.importorskip("torchvision")
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    images = Images(torch.tensor([0]), paths=(tmp_path / "broken.jpg",))
    with pytest.raises(ValueError, match=r"broken\.jpg can't be read as an image"):
        next(Batches(images, 1, **plain(3), workers=workers).epoch(0))
