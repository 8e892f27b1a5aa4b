"""Image files are read as the model's own test images were."""

import pytest
import torch
from PIL import Image

from cappronet.batches import Batches
from cappronet.datasets import Images
from cappronet.model import CapProNet
from cappronet.prediction import predict_file, prepared

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]


def noise(path, width, height):
    pixels = torch.randint(256, (height, width, 3), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(path)
    return pixels.permute(2, 0, 1)


def test_a_model_of_files_sees_what_it_was_tested_on(tmp_path):
    path = tmp_path / "image.png"
    noise(path, 300, 260)
    model = CapProNet("resnet8", 3, 2, image_size=224, files=True, mean=MEAN, std=STD).eval()
    images = Images(torch.tensor([0]), paths=(path,))
    ((expected, _),) = Batches(images, 1, mean=MEAN, std=STD, shuffle=False).epoch(0)
    torch.testing.assert_close(prepared(model, path), expected)
    assert predict_file(model, path).score == pytest.approx(model(expected).max().item(), rel=1e-4)


def test_a_model_of_pixels_sees_the_pixels(tmp_path):
    path = tmp_path / "image.png"
    pixels = noise(path, 8, 8)
    model = CapProNet("pixels", 3, 2, image_size=8, mean=MEAN, std=STD).eval()
    ((expected, _),) = Batches(Images(torch.tensor([0]), pixels[None]), 1, mean=MEAN, std=STD, shuffle=False).epoch(0)
    torch.testing.assert_close(prepared(model, path), expected)
    noise(path, 50, 30)
    assert prepared(model, path).shape == (1, 3, 8, 8)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_angle_is_that_between_features_and_subspace(tmp_path, normalize):
    path = tmp_path / "image.png"
    noise(path, 8, 8)
    model = CapProNet("pixels", 3, 2, image_size=8, normalize=normalize).eval()
    x = model.features(prepared(model, path))
    found = predict_file(model, path)
    lengths = torch.linalg.vector_norm(model.head.projections() @ x[0], dim=-1)
    expected = torch.rad2deg(torch.acos(lengths.max() / x.norm()))
    assert found.angle == pytest.approx(expected.item(), abs=0.05)
    assert predict_file(CapProNet("pixels", 3, 2, image_size=8, head="linear").eval(), path).angle is None
