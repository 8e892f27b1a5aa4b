"""Where images come from: what every source gives, how it is split, and what each broken source is answered with."""

import gzip
import hashlib
import pickle
import re
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError, URLError

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cappronet import extras
from cappronet.data import folders
from cappronet.data import images as image_files
from cappronet.data.datasets import DATASETS, VALIDATION, cache_folder, load_dataset
from cappronet.data.samples import Dataset, Images, Vectors
from cappronet.data.splits import hold_out, take

RANDOM = np.random.default_rng(0)


def random_pixels(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def numbered(labels):
    """Images whose only pixel is their position, to recognise them by."""
    n = len(labels)
    assert n < 256
    return Images(torch.tensor(labels), torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1))


def positions(images):
    return images.pixels.flatten().tolist()


@pytest.fixture
def arrays():
    return {
        "x_train": random_pixels(6, 5, 4),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": random_pixels(3, 5, 4),
        "y_test": np.array([2, 0, 1]),
    }


@pytest.fixture
def npz(tmp_path, arrays):
    """Save the arrays with changes (None leaves one out) and give the path."""

    def save(**changes):
        path = tmp_path / "mine.npz"
        np.savez_compressed(path, **{k: v for k, v in (arrays | changes).items() if v is not None})
        return path

    return save


def save_image(path, pixels):
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels).save(path)


def one_line(info):
    return "\n" not in str(info.value)


def test_digits_are_those_of_scikit_learn():
    features, classes = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    pixels = torch.from_numpy(features * 15).to(torch.uint8).view(-1, 1, 8, 8)
    train, test = hold_out(Images(torch.from_numpy(classes).long(), pixels), 360, seed=0)
    digits = load_dataset("digits")
    assert (digits.name, digits.classes) == ("digits", tuple("0123456789"))
    for ours, theirs in ((digits.train, train), (digits.test, test)):
        torch.testing.assert_close(ours.pixels, theirs.pixels, rtol=0, atol=0)
        torch.testing.assert_close(ours.labels, theirs.labels, rtol=0, atol=0)
    assert (pixels.double() / 15).view(-1, 64).numpy().tolist() == features.tolist()


@pytest.mark.slow
def test_digits_need_neither_scikit_learn_nor_torchvision_nor_the_network():
    code = """
import socket, sys
for name in ("sklearn", "torchvision", "PIL"):
    sys.modules[name] = None
socket.socket.connect = None
from cappronet.data.datasets import load_dataset
digits = load_dataset("digits")
print(len(digits.train), len(digits.test), digits.image_size, digits.in_channels)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1437", "360", "8", "1"]


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.data())
def test_a_split_is_stratified_disjoint_and_complete(labels, data):
    size = data.draw(st.integers(1, len(labels) - 1))
    rest, held = hold_out(numbered(labels), size, seed=data.draw(st.integers(0, 2**40)))
    assert len(held) == size
    assert sorted(positions(rest) + positions(held)) == list(range(len(labels)))
    for part in (rest, held):
        assert positions(part) == sorted(positions(part))
        assert part.labels.tolist() == [labels[i] for i in positions(part)]
    for label in set(labels):
        exact = labels.count(label) * size / len(labels)
        assert abs((held.labels == label).sum().item() - exact) < 1


def test_a_split_depends_on_its_seed_and_on_nothing_else():
    images = numbered([i % 3 for i in range(200)])
    torch.manual_seed(1)
    first = positions(hold_out(images, 50, seed=7)[1])
    torch.manual_seed(2)
    assert positions(hold_out(images, 50, seed=7)[1]) == first
    assert positions(hold_out(images, 50, seed=8)[1]) != first
    assert positions(take(images, 50, seed=7)) != first
    assert positions(take(images, 50, seed=7)) == positions(take(images, 50, seed=7))


def test_every_image_of_a_class_can_be_held_out():
    images = numbered([0] * 10 + [1] * 10)
    assert {i for seed in range(40) for i in positions(hold_out(images, 4, seed)[1])} == set(range(20))


def test_a_part_of_the_images():
    images = numbered([0, 1] * 50)
    part = take(images, 10, seed=0)
    assert torch.bincount(part.labels).tolist() == [5, 5]
    assert positions(take(images, 100, seed=0)) == list(range(100))
    for size in (0, 101):
        with pytest.raises(ValueError, match=f"of 100 images, 1 to 100 can be taken, got {size}"):
            take(images, size, seed=0)
    for size in (0, 100):
        with pytest.raises(ValueError, match=f"of 100 images, 1 to 99 can be held out, got {size}"):
            hold_out(images, size, seed=0)


def test_images_are_pixels_or_paths_with_a_label_each():
    paths = tuple(Path(f"{i}.png") for i in range(3))
    assert Images(torch.tensor([0, 1, 2]), paths=paths).subset(torch.tensor([2, 0])).paths == (paths[2], paths[0])
    with pytest.raises(ValueError, match="either pixels or paths"):
        Images(torch.tensor([0]))
    with pytest.raises(ValueError, match="3 images and 2 labels"):
        Images(torch.tensor([0, 1]), paths=paths)
    with pytest.raises(ValueError, match="2 images and 3 files"):
        Images(torch.tensor([0, 1]), torch.zeros(2, 1, 1, 1, dtype=torch.uint8), origins=paths)
    with pytest.raises(ValueError, match="2 vectors and 3 texts"):
        Vectors(torch.tensor([0, 1]), torch.zeros(2, 4), text=("a", "b", "c"))


def test_images_in_memory_know_the_files_they_came_from(tmp_path):
    for label in "ab":
        for i in range(5):
            save_image(tmp_path / label / f"{i}.png", random_pixels(4, 4))
    loaded = load_dataset(str(tmp_path))
    fingerprint = loaded.fingerprint()
    for part in (loaded.train, loaded.test, loaded.train.subset(torch.tensor([3, 0]))):
        assert part.paths is None
        for path, pixels, label in zip(part.files, part.pixels, part.labels.tolist(), strict=True):
            assert path.parent.name == "ab"[label]
            assert np.array_equal(np.asarray(Image.open(path)), pixels[0].numpy())
    (tmp_path / "a" / "0.png").rename(tmp_path / "a" / "00.png")
    assert load_dataset(str(tmp_path)).fingerprint() == fingerprint  # of the content, not of the names
    assert load_dataset("digits").train.files is None


def test_validation_sizes_are_of_known_datasets():
    assert VALIDATION.keys() <= DATASETS.keys()
    assert VALIDATION["cifar10"] == 5000


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("CAPPRONET_DATA", raising=False)
    assert cache_folder() == Path.home() / ".cache" / "cappronet"
    monkeypatch.setenv("CAPPRONET_DATA", str(tmp_path))
    assert cache_folder() == tmp_path
    assert cache_folder(tmp_path / "other") == tmp_path / "other"


def test_a_fingerprint_changes_with_the_content():
    def dataset(pixels, labels):
        images = Images(torch.tensor(labels), pixels)
        return Dataset("any", ("0", "1"), images, images)

    pixels = torch.arange(8, dtype=torch.uint8).view(2, 1, 2, 2)
    first = dataset(pixels, [0, 1]).fingerprint()
    assert re.fullmatch("[0-9a-f]{16}", first)
    assert dataset(pixels.clone(), [0, 1]).fingerprint() == first
    others = {dataset(pixels, [1, 0]), dataset(pixels.flip(0), [0, 1]), dataset(pixels.view(2, 1, 1, 4), [0, 1])}
    assert len({first, *(other.fingerprint() for other in others)}) == 4


def test_grey_npz(npz, arrays):
    loaded = load_dataset(str(npz()))
    assert (loaded.name, loaded.classes) == ("mine", ("0", "1", "2"))
    assert (loaded.input_shape, loaded.image_size, loaded.in_channels) == ((1, 5, 4), (5, 4), 1)
    assert loaded.train.pixels.squeeze(1).numpy().tolist() == arrays["x_train"].tolist()
    assert loaded.test.labels.tolist() == [2, 0, 1]
    assert loaded.test.labels.dtype == torch.int64


def test_coloured_npz_with_labels_in_a_column_and_names(npz):
    x = random_pixels(6, 5, 4, 3)
    path = npz(
        x_train=x,
        x_test=x[:3],
        y_train=np.array([[0], [1], [2]] * 2, dtype=np.uint8),
        classes=np.array(["a", "b", "c"]),
    )
    loaded = load_dataset(str(path))
    assert loaded.classes == ("a", "b", "c")
    assert loaded.train.pixels.is_contiguous()
    assert loaded.train.pixels.permute(0, 2, 3, 1).numpy().tolist() == x.tolist()
    assert loaded.train.labels.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, r"no array 'y_test'.*x_train, y_train, x_test.*save"),
        ({"x_train": np.zeros((6, 5, 4), np.float32)}, r"x_train of .*float32, expected uint8 from 0 to 255: convert"),
        ({"x_train": np.zeros((6, 3, 32, 32), np.uint8)}, r"shape \(6, 3, 32, 32\), expected images as \(n, H, W\)"),
        ({"x_train": np.zeros((6, 20), np.uint8)}, r"shape \(6, 20\), expected images as"),
        ({"x_test": np.zeros((0, 5, 4), np.uint8)}, r"x_test of .* shape \(0, 5, 4\), expected images"),
        ({"x_test": np.zeros((3, 4, 5), np.uint8)}, r"one shape, got \(5, 4\) in x_train and \(4, 5\) in x_test"),
        ({"y_train": np.arange(5)}, r"6 images in x_train but 5 labels in y_train"),
        ({"y_train": np.zeros(6)}, r"y_train of .* float64 \(6,\), expected integers"),
        ({"y_train": np.eye(6, dtype=int)}, r"int64 \(6, 6\), expected integers of shape \(n,\) or \(n, 1\)"),
        ({"y_train": np.array(3)}, r"int64 \(\), expected integers"),
        ({"y_train": np.array([0, 1, 2, -1, 1, 2])}, r"labels from -1 to 2, expected 0 to"),
        ({"y_train": np.array([0, 1, 3] * 2)}, r"no image of class 2, expected 0 to 2 for its 3 classes"),
        ({"y_train": np.array([1, 2, 3] * 2)}, r"no image of class 0, expected 0 to 2"),
        ({"classes": np.array(["a", "b"])}, r"labels from 0 to 2, expected 0 to 1 for its 2 classes"),
        ({"classes": np.array(["a", "b", "c", "d"])}, r"no image of class 3, expected 0 to 3"),
        ({"y_train": np.zeros(6, int), "y_test": np.zeros(3, int)}, r"single class, expected at least two"),
        ({"y_test": np.array([0, 1, 7])}, r"y_test of .* has class 7, which y_train has not, expected 0 to 2"),
        ({"y_test": np.array([0, 1, -1])}, r"y_test of .* has class -1, which y_train has not"),
        ({"x_train": np.array([None] * 6)}, r"can't be read as an .npz file.*without object arrays"),
    ],
)
def test_a_wrong_npz_is_refused(npz, changes, message):
    path = npz(**changes)
    with pytest.raises(ValueError, match=message) as info:
        load_dataset(str(path))
    assert one_line(info)
    assert str(path) in str(info.value)


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive at all", pickle.dumps([1, 2])])
def test_a_file_that_is_no_npz_is_refused(tmp_path, content):
    path = tmp_path / "some.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"some\.npz can't be read as an \.npz file") as info:
        load_dataset(str(path))
    assert one_line(info)


def test_a_single_array_is_refused(tmp_path):
    np.save(tmp_path / "some.npy", random_pixels(3, 4, 4))
    with pytest.raises(ValueError, match=r"some\.npy can't be read as an \.npz file"):
        load_dataset(str(tmp_path / "some.npy"))


def content_or_error(path):
    try:
        return load_dataset(str(path)).fingerprint()
    except ValueError as error:
        return str(error)


def test_a_damaged_npz_is_refused_in_one_line_wherever_the_damage_is(npz):
    path = npz()
    whole, content = path.read_bytes(), content_or_error(path)
    assert re.fullmatch("[0-9a-f]{16}", content)
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"mine\.npz can't be read as an \.npz file, it may be truncated"):
            load_dataset(str(path))
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        found = content_or_error(path)  # the content, where a byte means nothing, as those of dates
        assert found == content or re.search(r"mine\.npz (can't be read as|has no array)", found)


def test_a_missing_file_or_name_is_named():
    with pytest.raises(FileNotFoundError, match=r"no file .*nowhere\.npz: give the path"):
        load_dataset("/nowhere.npz")
    for name in ("cifa10", "CIFAR10", "cifar-10"):
        with pytest.raises(FileNotFoundError, match=f"no dataset or path '{name}'.*did you mean 'cifar10'"):
            load_dataset(name)
    with pytest.raises(
        FileNotFoundError, match=r"no dataset or path 'xyz': expected one of digits, cifar10.*folder of images$"
    ):
        load_dataset("xyz")


@pytest.mark.parametrize(("shape", "name"), [((7, 5, 3), "test"), ((7, 5), "val")])
def test_a_folder_with_training_and_test_images(tmp_path, shape, name):
    x = {(part, label): random_pixels(4, *shape) for part in ("train", name) for label in "ab"}
    for (part, label), images in x.items():
        for i, image in enumerate(images):
            save_image(tmp_path / "animals" / part / label / f"{i}.png", image)
    (tmp_path / "animals" / "train" / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "animals" / "train" / ".hidden").mkdir()

    loaded = load_dataset(str(tmp_path / "animals"))
    assert (loaded.name, loaded.classes) == ("animals", ("a", "b"))
    assert loaded.input_shape == (3 if len(shape) == 3 else 1, 7, 5)
    for part, images in (("train", loaded.train), (name, loaded.test)):
        assert images.labels.tolist() == [0] * 4 + [1] * 4
        expected = np.concatenate([x[part, "a"], x[part, "b"]]).reshape(8, 7, 5, -1)
        assert images.pixels.permute(0, 2, 3, 1).numpy().tolist() == expected.tolist()


def test_of_a_folder_of_classes_a_fifth_is_held_out(tmp_path):
    for label in "ab":
        for i in range(10):
            save_image(tmp_path / label / f"{i}.png", np.full((2, 2), 10 * "ab".index(label) + i, np.uint8))
    loaded = load_dataset(str(tmp_path))
    assert torch.bincount(loaded.train.labels).tolist() == [8, 8]
    assert torch.bincount(loaded.test.labels).tolist() == [2, 2]
    values = [images.pixels[:, 0, 0, 0] for images in (loaded.train, loaded.test)]
    assert sorted(torch.cat(values).tolist()) == list(range(20))
    assert (values[1] // 10).tolist() == loaded.test.labels.tolist()
    assert load_dataset(str(tmp_path)).fingerprint() == loaded.fingerprint()


def test_one_coloured_image_makes_all_coloured(tmp_path):
    for label in "ab":
        for i in range(3):
            save_image(tmp_path / label / f"{i}.png", random_pixels(2, 2))
    save_image(tmp_path / "a" / "3.png", random_pixels(2, 2, 3))
    assert load_dataset(str(tmp_path)).in_channels == 3


def test_images_of_several_sizes_and_too_many_images_stay_files(tmp_path, monkeypatch):
    for label in "ab":
        for i in range(5):
            save_image(tmp_path / label / f"{i}.png", random_pixels(4, 4, 3))
    monkeypatch.setattr(folders, "MEMORY", 10 * 4 * 4 * 3)
    assert load_dataset(str(tmp_path)).train.paths is None
    for limit in (10 * 4 * 4 * 3 - 1, 10):
        monkeypatch.setattr(folders, "MEMORY", limit)
        loaded = load_dataset(str(tmp_path))
        assert loaded.train.pixels is None
        assert (loaded.input_shape, len(loaded.train), len(loaded.test)) == ((3, 224, 224), 8, 2)
    monkeypatch.undo()

    save_image(tmp_path / "b" / "9.png", random_pixels(5, 4, 3))
    loaded = load_dataset(str(tmp_path))
    found = {
        path: label
        for part in (loaded.train, loaded.test)
        for path, label in zip(part.paths, part.labels.tolist(), strict=True)
    }
    assert found == {path: "ab".index(path.parent.name) for path in tmp_path.glob("*/*.png")}


def test_the_fingerprint_of_files_is_of_names_and_sizes_wherever_they_are(tmp_path):
    def make(root, name="0.png"):
        for label in "ab":
            for i in range(4):
                save_image(root / label / f"{i}.png", np.zeros((2 + i, 2), np.uint8))
        (root / "a" / "0.png").rename(root / "a" / name)
        return load_dataset(str(root)).fingerprint()

    assert make(tmp_path / "one") == make(tmp_path / "two")
    assert make(tmp_path / "three", "00.png") != make(tmp_path / "four")


def folder_with(tmp_path, *names):
    for name in names:
        save_image(tmp_path / name, random_pixels(2, 2))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["a/0.png", "a/1.png"], ValueError, r"at least two classes.* 'a'"),
        (["train/a/0.png", "test/a/0.png"], ValueError, r"train needs .*at least two classes.* 'a'"),
        (["0.png"], ValueError, r"at least two classes.* none"),
        (["train/a/0.png", "train/b/0.png"], FileNotFoundError, r"no folder test or val"),
        (["val/a/0.png", "val/b/0.png"], FileNotFoundError, r"no folder train"),
        (
            ["train/a/0.png", "train/b/0.png", "test/c/0.png"],
            ValueError,
            r"class 'c' of .*test is not among the training",
        ),
        (["train/a/0.png", "train/b/0.png", "test/0.png"], ValueError, r"test needs a folder of images for each class"),
        (["a/0.png", "a/1.png", "b/0.png"], ValueError, r"class 'b' of .* has one image, but training and test"),
    ],
)
def test_a_wrong_folder_is_refused(tmp_path, names, error, message):
    with pytest.raises(error, match=message) as info:
        load_dataset(folder_with(tmp_path, *names))
    assert one_line(info)


def test_a_class_without_images_is_refused(tmp_path):
    root = folder_with(tmp_path, "a/0.png", "a/1.png", "b/0.png", "b/1.png")
    (tmp_path / "c").mkdir()
    with pytest.raises(ValueError, match=r"class folder .*c has no images: add some"):
        load_dataset(root)


def test_an_unreadable_image_is_named(tmp_path):
    root = folder_with(tmp_path, *(f"{label}/{i}.png" for label in "ab" for i in range(3)))
    path = tmp_path / "b" / "1.png"
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"b.1\.png can't be read as an image \(.+\): fix or delete it") as info:
            load_dataset(root)
        assert one_line(info)
    save_image(path, np.zeros((2, 2), np.uint16))
    with pytest.raises(ValueError, match=r"1\.png .*its mode is I;16, expected 8 bits"):
        load_dataset(root)


def test_imagenet(tmp_path):
    for part, count in (("train", 3), ("val", 1)):
        for label in ("n01", "n02"):
            for i in range(count):
                save_image(tmp_path / "imagenet" / part / label / f"{label}_{i}.JPEG", random_pixels(8, 9, 3))
    loaded = load_dataset("imagenet", tmp_path)
    assert (loaded.name, loaded.classes, loaded.image_size, loaded.in_channels) == ("imagenet", ("n01", "n02"), 224, 3)
    assert [path.name for path in loaded.train.paths[2:4]] == ["n01_2.JPEG", "n02_0.JPEG"]
    assert (loaded.train.labels.tolist(), loaded.test.labels.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1])
    rest, held = hold_out(loaded.train, 2, seed=0)
    assert sorted(rest.paths + held.paths) == sorted(loaded.train.paths)
    assert held.labels.tolist() == [0, 1]


def test_missing_imagenet_says_where_it_should_be(tmp_path):
    (tmp_path / "imagenet" / "train").mkdir(parents=True)
    with pytest.raises(
        FileNotFoundError, match=r"looked for in .*imagenet, which has no folder val.*put train/<class>"
    ):
        load_dataset("imagenet", tmp_path)


def idx(array):
    """The bytes of an idx file: type 8 is uint8, then the sizes as big-endian integers."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_from_its_files(tmp_path, monkeypatch, name, kind, packed):
    tv = pytest.importorskip("torchvision.datasets")
    raw = tmp_path / kind / "raw"
    raw.mkdir(parents=True)
    x = {"train": random_pixels(12, 28, 28), "t10k": random_pixels(10, 28, 28)}
    y = {part: np.arange(len(images), dtype=np.uint8) % 10 for part, images in x.items()}
    sums = []
    for part in x:
        for file, array in ((f"{part}-images-idx3-ubyte", x[part]), (f"{part}-labels-idx1-ubyte", y[part])):
            content = gzip.compress(idx(array)) if packed else idx(array)
            (raw / (file + ".gz" * packed)).write_bytes(content)
            sums.append((file + ".gz", hashlib.md5(content).hexdigest()))
    monkeypatch.setattr(getattr(tv, kind), "resources", sums)
    loaded = load_dataset(name, tmp_path, download=packed)
    assert loaded.input_shape == (1, 28, 28)
    assert len(loaded.classes) == 10
    assert loaded.classes[0] == {"mnist": "0", "fashion_mnist": "T-shirt/top"}[name]
    for part, images in (("train", loaded.train), ("t10k", loaded.test)):
        assert images.pixels[:, 0].numpy().tolist() == x[part].tolist()
        assert images.labels.tolist() == y[part].tolist()

    for file in raw.iterdir():
        file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(FileNotFoundError, match=rf"{name} is missing or incomplete in {tmp_path}") as info:
        load_dataset(name, tmp_path, download=False)
    assert one_line(info)


@pytest.mark.parametrize(("name", "kind"), [("cifar10", "CIFAR10"), ("cifar100", "CIFAR100")])
def test_cifar_from_its_files(tmp_path, monkeypatch, name, kind):
    source = getattr(pytest.importorskip("torchvision.datasets"), kind)
    folder = tmp_path / source.base_folder
    folder.mkdir()
    fine = "fine_labels" if kind == "CIFAR100" else "labels"
    x = {file: random_pixels(4, 3, 32, 32) for file, _ in source.train_list + source.test_list}
    for i, (file, images) in enumerate(x.items()):
        content = {"data": images.reshape(4, -1), fine: [i, 1, 2, 3], "coarse_labels": [9] * 4}
        (folder / file).write_bytes(pickle.dumps(content, protocol=2))
    classes = [f"class {i}" for i in range(10)]
    (folder / source.meta["filename"]).write_bytes(pickle.dumps({source.meta["key"]: classes}, protocol=2))

    def with_sums(entries):
        return [[file, hashlib.md5((folder / file).read_bytes()).hexdigest()] for file, _ in entries]

    for attribute in ("train_list", "test_list"):
        monkeypatch.setattr(source, attribute, with_sums(getattr(source, attribute)))
    meta = source.meta["filename"]
    monkeypatch.setattr(source, "meta", source.meta | {"md5": with_sums([(meta, "")])[0][1]})

    loaded = load_dataset(name, tmp_path, download=False)
    *train, test = x.values()
    assert (loaded.name, loaded.classes, loaded.input_shape) == (name, tuple(classes), (3, 32, 32))
    assert loaded.train.pixels.numpy().tolist() == np.concatenate(train).tolist()
    assert loaded.train.labels.tolist()[:4] == [0, 1, 2, 3]
    assert loaded.test.pixels.numpy().tolist() == test.tolist()
    assert loaded.test.labels.tolist() == [len(train), 1, 2, 3]


def test_svhn_with_and_without_its_extra_images(tmp_path, monkeypatch):
    source = pytest.importorskip("torchvision.datasets").SVHN
    savemat = pytest.importorskip("scipy.io").savemat
    (tmp_path / "svhn").mkdir()
    x = {split: random_pixels(4, 3, 32, 32) for split in ("train", "test", "extra")}
    splits = {}
    for split, images in x.items():
        path = tmp_path / "svhn" / f"{split}_32x32.mat"
        savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": np.array([[10], [1], [2], [3]], np.uint8)})
        splits[split] = ["", path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    monkeypatch.setattr(source, "split_list", splits)
    plain, extra = load_dataset("svhn", tmp_path), load_dataset("svhn_extra", tmp_path, download=False)
    assert plain.classes == tuple("0123456789")
    assert plain.train.pixels.is_contiguous()
    assert plain.train.pixels.numpy().tolist() == x["train"].tolist()
    assert extra.train.pixels.numpy().tolist() == np.concatenate([x["train"], x["extra"]]).tolist()
    assert extra.train.labels.tolist() == [0, 1, 2, 3] * 2
    assert extra.test.pixels.numpy().tolist() == plain.test.pixels.numpy().tolist() == x["test"].tolist()


@pytest.mark.parametrize(
    "failure", [URLError("no network"), HTTPError("url", 503, "busy", None, None), OSError("full")]
)
@pytest.mark.parametrize(
    ("name", "kind", "folder", "file"),
    [
        ("cifar10", "CIFAR10", "", "cifar-10-python.tar.gz"),
        ("cifar100", "CIFAR100", "", "cifar-100-python.tar.gz"),
        ("svhn_extra", "SVHN", "svhn", "{train,extra,test}_32x32.mat"),
        ("mnist", "MNIST", "", "MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"),
    ],
)
def test_a_failed_download_says_what_to_put_where(tmp_path, monkeypatch, name, kind, folder, file, failure):
    def download(_):
        raise failure

    monkeypatch.setattr(getattr(pytest.importorskip("torchvision.datasets"), kind), "download", download)
    with pytest.raises(FileNotFoundError, match=f"^{name} is missing or incomplete in {tmp_path / folder} ") as info:
        load_dataset(name, tmp_path)
    assert str(info.value).endswith(f"({failure}): put {file} there")
    assert one_line(info)


def test_without_permission_nothing_is_downloaded(tmp_path, monkeypatch):
    tv = pytest.importorskip("torchvision.datasets")
    monkeypatch.setattr(tv.CIFAR10, "download", lambda _: pytest.fail("it tried to download"))
    with pytest.raises(FileNotFoundError, match=r"cifar10 is missing.*allow downloads; with cifar-10-python.tar.gz"):
        load_dataset("cifar10", tmp_path, download=False)


def test_missing_torchvision_and_pillow_say_how_to_get_them(tmp_path, monkeypatch):
    root = folder_with(tmp_path, "a/0.png", "a/1.png", "b/0.png", "b/1.png")
    for name in ("torchvision.datasets", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)
    image_files._pillow.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r"needs torchvision, .*pip install 'cappronet\[vision\]'"):
        load_dataset("cifar10", tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"needs PIL, .*pip install 'cappronet\[vision\]'"):
        load_dataset(root)


def test_a_torchvision_that_does_not_match_torch_says_how_to_mend_it(tmp_path, monkeypatch):
    def broken(message):
        def load(_):
            raise RuntimeError(message)

        return load

    monkeypatch.setattr(extras, "import_module", broken("operator torchvision::nms does not exist"))
    with pytest.raises(ImportError, match=r"torch and torchvision do not match; reinstall both together"):
        load_dataset("cifar10", tmp_path)
    monkeypatch.setattr(extras, "import_module", broken("something else"))
    with pytest.raises(RuntimeError, match=r"^something else$"):
        load_dataset("cifar10", tmp_path)
