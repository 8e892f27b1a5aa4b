"""CapProNet: backbone and head, saved and loaded without executing anything."""

import json

import pytest
import torch

from cappronet import CapProNet, CapsuleProjection
from cappronet.heads import HEADS


@pytest.mark.parametrize("head", HEADS)
def test_it_is_backbone_and_head(head):
    model = CapProNet("resnet8", 7, 3, head=head, in_channels=1).eval()
    x = torch.randn(2, 1, 8, 8)
    assert model.feature_dim == 64
    torch.testing.assert_close(model(x), model.head(model.backbone(x)))
    assert model(x).shape == (2, 7)


def test_dropout_stands_before_the_head():
    model = CapProNet("pixels", 3, 2, image_size=4, dropout=0.9)
    x = torch.ones(1, 3, 4, 4)
    assert not model(x).equal(model(x))
    assert model.eval()(x).equal(model(x))


def saved(folder, **options):
    model = CapProNet("resnet8", 4, 3, normalize=True, scale="learned", classes=["a", "b", "c", "d"], **options).eval()
    model.save_pretrained(folder)
    return model


def test_a_saved_model_comes_back_bit_for_bit(tmp_path):
    model, x = saved(tmp_path), torch.randn(2, 3, 32, 32)
    again = CapProNet.from_pretrained(tmp_path)
    assert again(x).equal(model(x))
    assert not again.training
    assert again.config == model.config
    assert isinstance(again.head, CapsuleProjection)
    assert again.head.normalize


def test_a_model_whose_classes_changed_is_saved_and_loaded(tmp_path):
    model = CapProNet("resnet8", 3, 2, classes=("a", "b", "c")).eval()
    assert model.add_class(torch.randn(5, 64), "d") == 3
    model.remove_class(1)
    model.save_pretrained(tmp_path)
    again = CapProNet.from_pretrained(tmp_path)
    assert again.config["classes"] == ["a", "c", "d"]
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(images), model(images))
    with pytest.raises(TypeError, match="this one is linear"):
        CapProNet("resnet8", 3, head="linear").remove_class(0)


@torch.no_grad()
def test_centred_features_have_a_constant_and_come_back_from_a_file(tmp_path):
    model = CapProNet("features", 3, 2, in_channels=1, image_size=4, normalize=True, scale=25.0, centered=True).eval()
    model.centering.origin.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0, -0.5]))
    x = torch.randn(6, 4)
    centred = torch.cat([x - torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.full((6, 1), 0.5)], dim=1)
    assert model.features(x).equal(centred)
    assert (model.feature_dim, model.head.in_features) == (4, 5)
    assert model(x).equal(model.head(centred))
    model.save_pretrained(tmp_path)
    assert CapProNet.from_pretrained(tmp_path)(x).equal(model(x))
    assert "centered" not in CapProNet("features", 3, 2, in_channels=1, image_size=4).config


@torch.no_grad()
def test_an_mlp_comes_back_from_a_file(tmp_path):
    model = CapProNet("features", 3, in_channels=1, image_size=4, head="mlp", width=7, hidden_dropout=0.2).eval()
    model.save_pretrained(tmp_path)
    again, x = CapProNet.from_pretrained(tmp_path), torch.randn(6, 4)
    assert again(x).equal(model(x))
    assert again.head.dropout.p == 0.2


@pytest.mark.parametrize(
    ("head", "change", "message"),
    [
        ("mlp", {"width": 10**9}, "width|head.hidden"),
        ("mlp", {"width": "7"}, "width must be a number of at least 1"),
        ("mlp", {"width": True}, "width must be a number of at least 1"),
        ("mlp", {"hidden_dropout": 2}, "hidden_dropout must be a number from 0 to 1"),
        ("mlp", {"centered": True}, "centering|head"),
        ("capsule", {"centered": 1}, "centered must be true or false"),
        ("capsule", {"width": 7}, "width"),
    ],
)
def test_a_head_that_the_weights_do_not_belong_to_is_refused(head, change, message, tmp_path):
    options = {"width": 7} if head == "mlp" else {}
    CapProNet("features", 3, 2, in_channels=1, image_size=4, head=head, **options).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("sha256")
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ValueError, match=message) as caught:
        CapProNet.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)
