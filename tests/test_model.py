"""CapProNet: backbone and head, saved and loaded without executing anything."""

import json
import pickle
from pathlib import Path

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


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path, name):
    saved(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
        CapProNet.from_pretrained(tmp_path)


def test_damaged_and_foreign_files_are_refused_in_one_line(tmp_path):
    saved(tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    good = weights.read_bytes()
    weights.write_bytes(good[: len(good) // 2])
    with pytest.raises(ValueError, match="is damaged"):
        CapProNet.from_pretrained(tmp_path)
    weights.write_bytes(good)
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "capsule_dim": 2}))
    with pytest.raises(ValueError, match=r"holds another model than config.json describes") as error:
        CapProNet.from_pretrained(tmp_path)
    assert "\n" not in str(error.value)
    config.write_text(json.dumps({**values, "surprise": 1}))
    with pytest.raises(ValueError, match=r"does not describe a model.*surprise"):
        CapProNet.from_pretrained(tmp_path)


class Trap:
    def __reduce__(self):
        return (Path.touch, (Path("trap-was-sprung"),))


def test_a_pickle_in_the_folder_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="is damaged"):
        CapProNet.from_pretrained(tmp_path)
    assert not Path("trap-was-sprung").exists()


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
