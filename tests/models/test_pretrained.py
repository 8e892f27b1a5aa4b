"""Pretrained weights: from the hub's files, from a file or folder, checked, and with the images they were made for."""

import json

import pytest
import torch
from safetensors.torch import save_file

from cappronet.models.backbones import create_backbone
from cappronet.models.backbones.layers import layer_numbers
from cappronet.models.backbones.pretrained import Preparation, load_pretrained, preparation
from cappronet.models.network import CapProNet

timm = pytest.importorskip("timm")
NAME = "test_resnet"


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(5)
    return timm.create_model(NAME, num_classes=7)


def same(backbone, state):
    own = backbone.state_dict()
    return all(own[key].equal(state[key]) for key in own)


@pytest.mark.parametrize("wrap", ["plain", "state_dict", "module", "safetensors"])
def test_a_file_is_loaded_without_its_classifier(trained, tmp_path, wrap):
    state = trained.state_dict()
    path = tmp_path / ("a.safetensors" if wrap == "safetensors" else "a.pth")
    if wrap == "safetensors":
        save_file(state, path)
    elif wrap == "module":
        torch.save({"model": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 3}, path)
    else:
        torch.save({"state_dict": state} if wrap == "state_dict" else state, path)
    backbone = create_backbone(NAME)
    assert not same(backbone, state)
    origin = load_pretrained(backbone, NAME, str(path))
    assert same(backbone, state)
    assert origin["from"] == path.name
    assert origin["matched"] == "by name"
    assert len(origin["sha256"]) == 64


@pytest.mark.parametrize("with_classifier", [True, False])
def test_other_names_in_the_same_order_are_matched_and_said(trained, tmp_path, with_classifier):
    names = trained.state_dict() if with_classifier else create_backbone(NAME).state_dict()
    state = {f"layer_{i}": trained.state_dict()[name] for i, name in enumerate(names)}
    torch.save(state, tmp_path / "a.pth")
    backbone = create_backbone(NAME)
    assert load_pretrained(backbone, NAME, str(tmp_path / "a.pth"))["matched"].startswith("by order")
    assert same(backbone, trained.state_dict())


def test_a_folder_of_the_hub_brings_its_images_along(trained, tmp_path):
    save_file(trained.state_dict(), tmp_path / "model.safetensors")
    known = {"input_size": [3, 48, 48], "mean": [0.3, 0.4, 0.5], "std": [0.2, 0.2, 0.2], "interpolation": "bicubic"}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": NAME, "pretrained_cfg": known}))
    backbone = create_backbone(NAME)
    load_pretrained(backbone, NAME, str(tmp_path))
    assert same(backbone, trained.state_dict())
    expected = Preparation(48, "bicubic", (0.3, 0.4, 0.5), (0.2, 0.2, 0.2), 0.95)
    assert preparation(NAME, str(tmp_path)) == expected
    assert expected.statistics(1) == ([pytest.approx(0.4)], [pytest.approx(0.2)])


def test_timm_says_how_images_are_prepared():
    assert preparation("tf_efficientnet_lite0", "timm") == Preparation(224, "bicubic", (0.5,) * 3, (0.5,) * 3, 0.875)
    assert preparation("resnet20", "weights.pth") is None


def test_a_model_of_ours_gives_its_backbone(tmp_path):
    model = CapProNet("resnet8", 3, 2, in_channels=1, image_size=8, mean=[0.3], std=[0.2])
    model.save_pretrained(tmp_path)
    backbone = create_backbone("resnet8", 1)
    load_pretrained(backbone, "resnet8", str(tmp_path), 1)
    assert same(backbone, model.backbone.state_dict())
    assert preparation("resnet8", str(tmp_path)) == Preparation(8, "bilinear", (0.3,), (0.2,), 0.875)


def test_grey_images_sum_the_colours_of_the_first_convolution(trained, tmp_path):
    torch.save(trained.state_dict(), tmp_path / "a.pth")
    backbone = create_backbone(NAME, 1)
    load_pretrained(backbone, NAME, str(tmp_path / "a.pth"), 1)
    colours = trained.state_dict()["conv1.0.weight"].sum(1, keepdim=True)
    torch.testing.assert_close(backbone.state_dict()["conv1.0.weight"], colours)


def test_the_hub_is_asked_for_timms_weights(trained, tmp_path):
    """timm reads its weights from a folder as it reads them from the hub."""
    save_file(trained.state_dict(), tmp_path / "model.safetensors")
    known = {"num_classes": 7, "first_conv": "conv1.0", "classifier": "fc", "input_size": [3, 32, 32]}
    known |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": NAME, "pretrained_cfg": known}))
    name = f"local-dir:{tmp_path}"
    backbone = create_backbone(name)
    assert load_pretrained(backbone, name, "timm") == {"from": "timm"}
    assert same(backbone, trained.state_dict())
    assert preparation(name, "timm").size == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {k: v for k, v in s.items() if k != "layer1.0.conv1.weight"}, "it has no layer1.0.conv1.weight"),
        (lambda s: s | {"layer1.0.conv1.weight": torch.zeros(1, 2, 3, 3)}, r"layer1.0.conv1.weight is \(1, 2, 3, 3\)"),
        (lambda s: s | {"extra.weight": torch.zeros(1)}, "unexpected extra.weight"),
        (lambda s: s | {"layer1.0.conv1.weight": s["layer1.0.conv1.weight"] * torch.nan}, "not finite"),
        (lambda s: {f"a{k}": v for k, v in list(s.items())[:-3]}, "choose the backbone"),
        (lambda s: {"a": 1}, "state dict"),
        (lambda s: [1, 2], "state dict"),
    ],
)
def test_other_weights_are_refused_in_one_line(trained, tmp_path, change, message):
    path = tmp_path / "a.pth"
    torch.save(change(dict(trained.state_dict())), path)
    backbone = create_backbone(NAME)
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    with pytest.raises(ValueError, match=message) as caught:
        load_pretrained(backbone, NAME, str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert same(backbone, before)


class Unsafe:
    def __reduce__(self):
        return (print, ("executed",))


def test_a_file_is_never_executed(tmp_path, capsys):
    torch.save({"a": Unsafe()}, tmp_path / "a.pth")
    (tmp_path / "b.safetensors").write_bytes(b"nothing")
    for name in ("a.pth", "b.safetensors"):
        with pytest.raises(ValueError, match="can't be read as weights") as caught:
            load_pretrained(create_backbone(NAME), NAME, str(tmp_path / name))
        assert "\n" not in str(caught.value)
    assert "executed" not in capsys.readouterr().out


def test_paths_that_hold_nothing_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        load_pretrained(create_backbone(NAME), NAME, str(tmp_path / "none.pth"))
    with pytest.raises(FileNotFoundError, match="no file of weights"):
        load_pretrained(create_backbone(NAME), NAME, str(tmp_path))
    with pytest.raises(ValueError, match="timm has no weights for 'resnet20'"):
        load_pretrained(create_backbone("resnet20"), "resnet20", "timm")


@pytest.mark.parametrize("name", [NAME, "test_vit", "resnet8"])
def test_layers_are_numbered_from_the_input(name):
    backbone = create_backbone(name)
    numbers = layer_numbers(backbone)
    assert numbers.keys() == dict(backbone.named_parameters()).keys()
    assert min(numbers.values()) == 0
    assert len(set(numbers.values())) > 2
    in_order = list(numbers.values())
    assert in_order[0] == 0
    assert in_order[-1] == max(in_order)


def test_a_frozen_backbone_stays_in_eval_mode():
    model = CapProNet("resnet8", 3)
    model.freeze_backbone()
    model.train()
    assert model.training
    assert model.head.training
    assert not any(module.training for module in model.backbone.modules())
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["head.weight"]


def test_how_images_are_scaled_is_in_the_configuration_only_if_unusual(tmp_path):
    assert {"interpolation", "crop"}.isdisjoint(CapProNet("resnet8", 3).config)
    model = CapProNet("resnet8", 3, resize=16, interpolation="bicubic", crop=0.95).eval()
    model.save_pretrained(tmp_path)
    again = CapProNet.from_pretrained(tmp_path)
    assert again.config == model.config
    x = torch.randn(2, 3, 10, 10)
    scaled = torch.nn.functional.interpolate(x, (16, 16), mode="bicubic", antialias=True)
    assert again(x).equal(model.head(model.backbone(scaled)))
    for wrong in ({"interpolation": "nearest"}, {"crop": 0.01}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CapProNet("resnet8", 3, **wrong)
