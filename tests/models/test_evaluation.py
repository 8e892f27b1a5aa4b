"""Out-of-distribution samples and how well scores separate them, as `evaluate` uses them."""

import numpy as np
import pytest
import torch

from cappronet import CapProNet
from cappronet.data.samples import Images, Vectors
from cappronet.data.selection import Selection
from cappronet.models.evaluation import Mirrored, ood_samples, ood_separations
from cappronet.novelty import SCORES

FOUR = Selection("digits", classes=(3, 5, 7, 9), train_size=100, validation=50)


@pytest.fixture
def model():
    """A model of raw digits with the classes of `FOUR`."""
    return CapProNet("pixels", 4, 2, in_channels=1, image_size=8).eval()


def test_held_out_classes_are_all_others_of_the_test_set(model):
    held_out = ood_samples("held-out", model, FOUR)
    expected = Selection("digits", classes=(0, 1, 2, 4, 6, 8)).load().test
    assert held_out.pixels.equal(expected.pixels)
    for selection in (Selection("digits"), Selection("digits", classes=tuple(range(10)))):
        with pytest.raises(ValueError, match="--classes"):
            ood_samples("held-out", model, selection)


def test_noise_and_datasets(model, tmp_path):
    assert ood_samples("noise", model, FOUR).shape == (1, 8, 8)
    pixels = np.zeros((6, 12, 12), np.uint8)
    np.savez(tmp_path / "own.npz", x_train=pixels, y_train=np.arange(6) % 2, x_test=pixels[:4], y_test=np.arange(4) % 2)
    assert ood_samples(str(tmp_path / "own.npz"), model, FOUR).shape == (1, 12, 12)
    vectors = CapProNet("features", 4, 2, in_channels=1, image_size=6)
    with pytest.raises(ValueError, match="feature vectors of width 6"):
        ood_samples("noise", vectors, FOUR)


def test_separations_find_what_no_class_contains():
    """Two classes in planes of their own, and samples orthogonal to both."""
    torch.manual_seed(0)
    planes = torch.eye(6).view(3, 2, 6)
    y = torch.arange(80) % 2
    x = (torch.randn(80, 1, 2) @ planes[y]).squeeze(1)
    model = CapProNet("features", 2, 2, in_channels=1, image_size=6).eval()
    with torch.no_grad():
        model.head.weight.copy_(planes[:2])
    samples, outside = Vectors(y, x), Vectors(torch.zeros(30, dtype=torch.long), torch.randn(30, 2) @ planes[2])
    separations = ood_separations(model, samples, samples, {"outside": outside, "same": samples})
    assert separations["residual"]["outside"] == (1.0, 0.0)
    auroc, _ = separations["residual"]["same"]
    assert auroc == pytest.approx(0.5)
    assert set(separations) <= set(SCORES)


def test_separations_report_every_batch(model):
    images = Images(torch.arange(8) % 4, torch.randint(256, (8, 1, 8, 8), dtype=torch.uint8))
    reports = []
    ood_separations(model, images, images, {"noise": images}, report=lambda _, *counts: reports.append(counts))
    assert reports == [(0, 1), (1, 1)] * 3


def test_an_image_and_its_mirror_image_have_the_same_mirrored_scores(model):
    x = torch.randn(3, *model.input_shape)
    scores = Mirrored(model.eval())(x)
    torch.testing.assert_close(Mirrored(model)(x.flip(-1)), scores)
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(3))
    assert not torch.allclose(model(x).softmax(-1), scores.exp(), atol=1e-4)


def test_feature_vectors_have_no_mirror_image():
    with pytest.raises(ValueError, match="mirror"):
        Mirrored(CapProNet("features", 3, 2, image_size=8, in_channels=1))
