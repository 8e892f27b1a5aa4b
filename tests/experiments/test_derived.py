"""Datasets made from others: superclasses of CIFAR-100, wrong labels."""

import numpy as np
import pytest
import torch

from cappronet.data.datasets import load_dataset
from cappronet.data.samples import Dataset, Images
from experiments.reproduction.derived import SUPERCLASSES, to_superclasses, with_wrong_labels, write_derived


def dataset(classes, images_per_class):
    labels = torch.arange(classes).repeat(images_per_class)
    images = Images(labels, torch.zeros(len(labels), 3, 4, 5, dtype=torch.uint8))
    return Dataset("made", tuple(map(str, range(classes))), images, images)


def test_superclasses_have_five_classes_each():
    names = [name for names in SUPERCLASSES.values() for name in names]
    assert [len(names) for names in SUPERCLASSES.values()] == [5] * 20
    assert len(set(names)) == 100
    data = to_superclasses(dataset(100, 2))
    assert data.classes == tuple(SUPERCLASSES)
    for part in (data.train, data.test):
        assert torch.bincount(part.labels).tolist() == [10] * 20
    # In alphabetical order apple is class 0, aquarium_fish 1, beaver 4, worm 99
    superclass = [list(SUPERCLASSES)[label] for label in data.train.labels.tolist()]
    assert [superclass[i] for i in (0, 1, 4, 99)] == [
        *("fruit_and_vegetables", "fish", "aquatic_mammals", "non-insect_invertebrates")
    ]
    with pytest.raises(ValueError, match="100 classes, got 10"):
        to_superclasses(dataset(10, 2))


@pytest.mark.parametrize("percent", [20, 40])
def test_a_share_of_the_labels_of_each_class_is_wrong(percent):
    clean = dataset(10, 500)
    noisy = with_wrong_labels(percent, clean)
    assert torch.equal(noisy.test.labels, clean.test.labels)
    assert torch.equal(noisy.train.pixels, clean.train.pixels)
    wrong = noisy.train.labels != clean.train.labels
    assert torch.bincount(clean.train.labels[wrong]).tolist() == [5 * percent] * 10
    shifts = torch.bincount((noisy.train.labels - clean.train.labels)[wrong] % 10, minlength=10)
    expected = 500 * 10 * percent / 100 / 9
    assert shifts[0] == 0
    assert (shifts[1:] - expected).abs().max() < 5 * expected**0.5
    assert torch.equal(with_wrong_labels(percent, clean).train.labels, noisy.train.labels)


def test_a_derived_dataset_is_written_once(tmp_path):
    random = np.random.default_rng(0)
    arrays = {f"x_{part}": random.integers(0, 256, (100, 4, 5, 3), np.uint8) for part in ("train", "test")}
    arrays |= {f"y_{part}": np.arange(100) % 10 for part in ("train", "test")}
    np.savez(tmp_path / "source.npz", **arrays)
    path = write_derived("cifar10-noise20", {"cifar10": str(tmp_path / "source.npz")}, tmp_path / "runs")
    data = load_dataset(str(path))
    assert data.name == "cifar10-noise20"
    assert (data.train.labels != torch.arange(100) % 10).sum() == 20
    assert np.array_equal(data.train.pixels.permute(0, 2, 3, 1).numpy(), arrays["x_train"])
    assert np.array_equal(data.test.labels.numpy(), arrays["y_test"])
    (tmp_path / "source.npz").unlink()
    assert write_derived("cifar10-noise20", {"cifar10": str(tmp_path / "source.npz")}, tmp_path / "runs") == path
    assert [file.name for file in (tmp_path / "runs").iterdir()] == ["cifar10-noise20.npz"]
