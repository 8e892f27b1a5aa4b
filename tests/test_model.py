"""CapProNet: backbone and head, saved and loaded without executing anything."""

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
