"""Images of the caller: arrays in every accepted form, torch datasets, and what is refused."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from cappronet.data.datasets import load_dataset
from cappronet.data.given import as_pixels, given_images, store

GREY = np.random.default_rng(0).integers(0, 256, (20, 5, 6), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (20, 5, 6, 3), dtype=np.uint8)
LABELS = np.arange(20) % 4


@pytest.mark.parametrize("images", [GREY, GREY[..., None], GREY[:, None]], ids=["nhw", "nhwc", "nchw"])
@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy, lambda x: x / 255, lambda x: x.astype(np.int64)])
def test_every_form_of_grey_images_has_the_same_pixels(images, form):
    assert torch.equal(as_pixels(form(images)), torch.from_numpy(GREY)[:, None])


@pytest.mark.parametrize(
    "form",
    [
        np.asarray,
        lambda x: x.transpose(0, 3, 1, 2),
        lambda x: torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255,
        lambda x: (x / 255).astype(np.float32),
    ],
)
def test_every_form_of_colour_images_has_the_same_pixels(form):
    assert torch.equal(as_pixels(form(COLOUR)), torch.from_numpy(COLOUR).permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (GREY * 1.0, "from 0 to 255.*largest value"),
        (GREY / 255 - 0.5, "do not normalize"),
        (np.full((2, 3, 4), np.nan), "nan"),
        (GREY.astype(np.int64) + 1000, "int64 from 1000"),
        (GREY.reshape(20, -1), "cappronet.probe"),
        (COLOUR[0], "shape .5, 6, 3., expected"),
        (COLOUR[:, :, :, :2], "C = 1 or 3"),
        (GREY[:0], "expected numbers"),
        (GREY > 9, "bool"),
    ],
)
def test_what_is_no_image_is_refused(images, message):
    with pytest.raises(ValueError, match=message):
        as_pixels(images, "data")


def test_a_fifth_of_each_class_is_held_out_unless_there_are_test_images():
    given = given_images((GREY, LABELS))
    assert torch.bincount(given.dataset.train.labels).tolist() == [4, 4, 4, 4]
    assert torch.bincount(given.dataset.test.labels).tolist() == [1, 1, 1, 1]
    given = given_images((GREY, LABELS), (GREY[:3], LABELS[:3]))
    assert len(given.dataset.train) == 20
    assert given.dataset.test.labels.tolist() == [0, 1, 2]
    assert torch.equal(given.dataset.test.pixels, as_pixels(GREY[:3]))


@pytest.mark.parametrize("kind", [str, object])
def test_labels_may_be_text_or_any_whole_numbers(kind):
    names = np.array(["dog", "ant", "cat", "bee"])[LABELS].astype(kind)
    given = given_images((GREY, names), (GREY, names))
    assert given.labels.tolist() == ["ant", "bee", "cat", "dog"]
    assert given.dataset.classes == ("ant", "bee", "cat", "dog")
    assert given.dataset.test.labels.tolist()[:4] == [3, 0, 2, 1]
    given = given_images((GREY, LABELS * 10 - 5))
    assert given.labels.tolist() == [-5, 5, 15, 25]
    assert given.dataset.classes == ("-5", "5", "15", "25")


class Pictures:
    """As torchvision's datasets are: Pillow images, numbers, and the names of the classes."""

    classes = ("ant", "bee", "cat", "dog")

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return Image.fromarray(COLOUR[index]), int(LABELS[index])


def test_a_torch_dataset_has_what_its_arrays_have():
    arrays = given_images((COLOUR, LABELS)).dataset
    pictures = given_images(Pictures()).dataset
    tensors = given_images(TensorDataset(torch.from_numpy(COLOUR).permute(0, 3, 1, 2), torch.from_numpy(LABELS)))
    assert pictures.fingerprint() == tensors.dataset.fingerprint() == arrays.fingerprint()
    assert pictures.classes == Pictures.classes
    assert tensors.dataset.classes == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((GREY, LABELS[:5]),), ValueError, "20 images and 5 labels"),
        (((GREY, LABELS * 0),), ValueError, "single class, 0"),
        (((GREY, LABELS / 2),), ValueError, "float64, expected whole numbers or text"),
        (((GREY[:4], LABELS[:4]),), ValueError, "class '0' of data has one image"),
        (((GREY, LABELS), (GREY, LABELS + 1)), ValueError, "label 4 of test"),
        (((GREY, LABELS), (COLOUR, LABELS)), ValueError, re.escape("(1, 5, 6) in data and (3, 5, 6) in test")),
        ((GREY,), TypeError, "data is ndarray, expected the name of a dataset"),
        ((7,), TypeError, "data is int"),
        (([GREY[0], GREY[1], GREY[2]],), ValueError, r"item 0 of data is ndarray.*\(image, label\)"),
        (([(GREY[0], 0), (GREY[0], 1), (GREY[0, :2], 0)],), ValueError, "differ in shape.* at 2.*resizes"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        given_images(*arguments)


def test_stored_images_are_a_dataset_and_are_not_replaced(tmp_path):
    dataset = given_images(Pictures()).dataset
    path = tmp_path / "new" / "images.npz"
    store(dataset, path)
    before = path.stat().st_mtime_ns
    store(dataset, path)
    assert path.stat().st_mtime_ns == before
    read = load_dataset(str(path))
    assert read.fingerprint() == dataset.fingerprint()
    assert read.classes == Pictures.classes
    with pytest.raises(FileExistsError, match="other images"):
        store(given_images((255 - COLOUR, LABELS)).dataset, path)
