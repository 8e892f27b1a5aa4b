"""Images from elsewhere are read as the model's own test images were, or made to fit."""

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from cappronet.data.batches import Batches
from cappronet.data.datasets import load_dataset
from cappronet.data.normalization import Normalization
from cappronet.data.samples import Images, Vectors
from cappronet.models.network import CapProNet
from cappronet.models.prediction import NOISES, features, noise, predict_file, prepared

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]


def noise_file(path, width, height):
    pixels = torch.randint(256, (height, width, 3), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(path)
    return pixels.permute(2, 0, 1)


def test_a_model_of_files_sees_what_it_was_tested_on(tmp_path):
    path = tmp_path / "image.png"
    noise_file(path, 300, 260)
    model = CapProNet("resnet8", 3, 2, image_size=224, files=True, mean=MEAN, std=STD).eval()
    images = Images(torch.tensor([0]), paths=(path,))
    ((expected, _),) = Batches(images, 1, normalize=Normalization.of(MEAN, STD), shuffle=False).epoch(0)
    torch.testing.assert_close(prepared(model, path), expected)
    assert predict_file(model, path).score == pytest.approx(model(expected).max().item(), rel=1e-4)


def test_a_model_of_pixels_sees_the_pixels(tmp_path):
    path = tmp_path / "image.png"
    pixels = noise_file(path, 8, 8)
    model = CapProNet("pixels", 3, 2, image_size=8, mean=MEAN, std=STD).eval()
    ((expected, _),) = Batches(
        Images(torch.tensor([0]), pixels[None]), 1, normalize=Normalization.of(MEAN, STD), shuffle=False
    ).epoch(0)
    torch.testing.assert_close(prepared(model, path), expected)
    noise_file(path, 50, 30)
    assert prepared(model, path).shape == (1, 3, 8, 8)


def test_images_need_not_be_square(tmp_path):
    path, size = tmp_path / "image.png", (6, 9)
    pixels = noise_file(path, 9, 6)
    model = CapProNet("pixels", 3, 2, image_size=size, mean=MEAN, std=STD).eval()
    model.save_pretrained(tmp_path)
    again = CapProNet.from_pretrained(tmp_path)
    assert again.input_shape == (3, *size)
    assert "colour images, 6 x 9" in again.card
    images = Images(torch.tensor([0]), pixels[None])
    ((expected, _),) = Batches(images, 1, normalize=Normalization.of(MEAN, STD), shuffle=False).epoch(0)
    torch.testing.assert_close(prepared(again, path), expected)
    torch.testing.assert_close(features(again, images), expected.flatten(1))
    assert noise("noise", again, 2).pixels.shape == (2, 3, *size)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_angle_is_that_between_features_and_subspace(tmp_path, normalize):
    path = tmp_path / "image.png"
    noise_file(path, 8, 8)
    model = CapProNet("pixels", 3, 2, image_size=8, normalize=normalize).eval()
    x = model.features(prepared(model, path))
    prediction = predict_file(model, path)
    lengths = torch.linalg.vector_norm(model.head.projections() @ x[0], dim=-1)
    expected = torch.rad2deg(torch.acos(lengths.max() / x.norm()))
    assert prediction.angle == pytest.approx(expected.item(), abs=1e-3)
    assert prediction.residual == pytest.approx(torch.deg2rad(expected).sin().item(), abs=1e-5)
    linear = predict_file(CapProNet("pixels", 3, 2, image_size=8, head="linear").eval(), path)
    assert linear.angle is None
    assert linear.residual is None


def test_images_of_the_models_own_kind_are_seen_as_in_its_batches():
    images = Images(torch.zeros(7, dtype=torch.int64), torch.randint(256, (7, 3, 8, 8), dtype=torch.uint8))
    model = CapProNet("resnet8", 3, 2, image_size=8, mean=MEAN, std=STD).eval()
    ((expected, _),) = Batches(images, 7, normalize=Normalization.of(MEAN, STD), shuffle=False).epoch(0)
    with torch.no_grad():
        torch.testing.assert_close(features(model, images), model.features(expected), rtol=1e-4, atol=1e-5)


def test_digits_are_shown_to_a_model_of_coloured_images():
    digits = load_dataset("digits").test.subset(torch.arange(5))
    model = CapProNet("pixels", 3, 2, image_size=32, mean=MEAN, std=STD).eval()
    reports = []
    x = features(model, digits, report=lambda text, done, total: reports.append((done, total)))
    assert reports == [(0, 1), (1, 1)]
    pixels = x.view(5, 3, 32, 32) * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    torch.testing.assert_close(pixels[:, 0], pixels[:, 2])
    expected = F.interpolate(digits.pixels / 255.0, (32, 32), mode="bilinear")  # larger: nothing to antialias
    torch.testing.assert_close(pixels[:, :1], expected, rtol=1e-4, atol=1e-5)


def test_coloured_images_are_shown_to_a_model_of_small_grey_ones():
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], dtype=torch.uint8)
    images = Images(torch.zeros(4, dtype=torch.int64), colours.view(4, 3, 1, 1).expand(-1, -1, 20, 30))
    x = features(CapProNet("pixels", 3, 2, in_channels=1, image_size=8).eval(), images)
    torch.testing.assert_close(x, torch.tensor([0.299, 0.587, 0.114, 1.0])[:, None].expand(-1, 64))


def test_files_are_shown_to_a_model_of_small_images(tmp_path):
    noise_file(tmp_path / "image.png", 300, 260)
    images = Images(torch.tensor([0]), paths=(tmp_path / "image.png",))
    x = features(CapProNet("pixels", 3, 2, image_size=8, mean=[0.5] * 3).eval(), images)
    assert x.shape == (1, 192)
    assert x.mean().abs() < 0.02  # of uniform noise
    assert x.std() < 0.1  # which averages out


def test_what_a_model_can_not_see_is_refused():
    model = CapProNet("pixels", 3, 2, image_size=8).eval()
    two = Images(torch.tensor([0]), torch.zeros(1, 2, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"2 channels.*takes 3"):
        features(model, two)
    vectors = Vectors(torch.tensor([0]), torch.zeros(1, 12))
    with pytest.raises(ValueError, match=r"takes images.*feature vectors"):
        features(model, vectors)
    of_features = CapProNet("features", 3, 2, in_channels=1, image_size=12).eval()
    with pytest.raises(ValueError, match=r"feature vectors of width 12, not images"):
        noise("gaussian-noise", of_features, 2)
    assert features(of_features, vectors).shape == (1, 12)
    with pytest.raises(ValueError, match=r"width 12.*13"):
        features(of_features, Vectors(torch.tensor([0]), torch.zeros(1, 13)))


def test_noise_has_the_statistics_it_says():
    model = CapProNet("pixels", 3, 2, image_size=8, mean=MEAN, std=[0.1, 0.1, 0.2])
    uniform, gaussian = (noise(kind, model, 400).pixels for kind in NOISES)
    assert uniform.shape == (400, 3, 8, 8)
    assert uniform.unique().tolist() == list(range(256))
    assert uniform.double().mean() == pytest.approx(127.5, abs=1)
    channels = gaussian.double().transpose(0, 1).flatten(1) / 255
    torch.testing.assert_close(channels.mean(1), torch.tensor(MEAN).double(), rtol=0, atol=0.01)
    torch.testing.assert_close(channels.std(1)[:2], torch.tensor([0.1, 0.1]).double(), rtol=0, atol=0.01)
    assert noise("noise", model, 400).pixels.equal(uniform)
