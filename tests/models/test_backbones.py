"""Backbones: one contract for all of them, and each as its own paper describes it."""

import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cappronet.models.backbones import BACKBONES, TIMM_RESNETS, create_backbone
from cappronet.models.backbones.densenet import DenseLayer, DenseNetBC
from cappronet.models.backbones.preact_resnet import Bottleneck, PreActResNet
from cappronet.models.backbones.resnet import BasicBlock, ResNet
from cappronet.models.backbones.wide_resnet import WideBlock, WideResNet

WIDTHS = {
    **{f"resnet{depth}": 64 for depth in (8, 14, 20, 32, 44, 56, 110)},
    "resnet8_d512": 512,
    "preact_resnet164": 256,
    "wrn_16_4": 256,
    "wrn_16_8": 512,
    "wrn_28_10": 640,
    "densenet_bc_100_12": 342,
    "speedrun": 256,
}
PAPERS = [name for name in WIDTHS if name not in ("resnet8_d512", "speedrun")]


def on_meta(name):
    with torch.device("meta"):
        return create_backbone(name)


def convolutions(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}


def check_contract(backbone, images):
    images.requires_grad_()
    features = backbone(images)
    assert features.shape == (len(images), backbone.feature_dim)
    assert features.isfinite().all()
    features.square().sum().backward()
    for name, parameter in [("images", images), *backbone.named_parameters()]:
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    backbone.eval()
    with torch.no_grad():
        first, again = backbone(images), backbone(images)
        alone = torch.cat([backbone(image.unsqueeze(0)) for image in images])
    assert torch.equal(first, again)
    torch.testing.assert_close(first, alone, rtol=1e-3, atol=1e-4 * first.abs().max().item())


def test_widths_cover_ours():
    assert set(WIDTHS) | {"pixels", "features"} == set(BACKBONES)


@pytest.mark.parametrize("name", sorted(set(BACKBONES) - {"features"}))
def test_contract_on_cifar(name):
    check_contract(create_backbone(name), torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("name", sorted(set(BACKBONES) - {"features"}))
def test_contract_on_digits(name):
    check_contract(create_backbone(name, in_channels=1, image_size=8), torch.randn(2, 1, 8, 8))


# By default the residual branches of timm's ResNet start at 0, so that no gradient reaches their convolutions yet.
@pytest.mark.parametrize(
    ("name", "width", "options"),
    [("resnet18", 512, {"zero_init_last": False}), ("mobilenetv3_small_050", 1024, {})],
)
def test_contract_of_timm(name, width, options):
    backbone = create_backbone(name, in_channels=1, **options)
    assert backbone.feature_dim == width
    check_contract(backbone, torch.randn(4, 1, 64, 64))


@pytest.mark.parametrize(("name", "width"), WIDTHS.items())
@pytest.mark.parametrize("size", [(32, 32), (4, 4), (7, 9), (64, 48)])
def test_shapes(name, width, size):
    backbone = on_meta(name)
    assert backbone.feature_dim == width
    assert backbone(torch.empty(2, 3, *size, device="meta")).shape == (2, width)


@pytest.mark.parametrize("name", ["resnet8", "wrn_16_4", "densenet_bc_100_12"])
def test_channels_last_gives_the_same_and_is_kept(name):
    backbone, images = create_backbone(name).eval(), torch.randn(2, 3, 16, 16)
    expected = backbone(images)
    layouts = []
    for module in backbone.modules():
        if isinstance(module, BasicBlock | WideBlock | DenseLayer):
            module.register_forward_hook(
                lambda _, __, out: layouts.append(out.is_contiguous(memory_format=torch.channels_last))
            )
    backbone.to(memory_format=torch.channels_last)
    actual = backbone(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())
    assert layouts
    assert all(layouts)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        # Table 1 of the paper
        ("resnet110", "1.7"),
        ("preact_resnet164", "1.7"),
        ("wrn_16_8", "11.0"),
        ("wrn_28_10", "36.5"),
        ("wrn_16_4", "2.7"),
        ("densenet_bc_100_12", "0.8"),
        # Table 6 of He et al. (2016)
        ("resnet20", "0.27"),
        ("resnet32", "0.46"),
        ("resnet44", "0.66"),
        ("resnet56", "0.85"),
    ],
)
def test_as_many_parameters_as_published(name, millions):
    backbone = on_meta(name)
    count = sum(p.numel() for p in [*backbone.parameters(), *nn.Linear(backbone.feature_dim, 10).parameters()])
    digits = len(millions.partition(".")[2])
    assert f"{count / 1e6:.{digits}f}" == millions


@pytest.mark.parametrize("depth", [8, 14, 20, 38, 110])
def test_depth_of_a_resnet_and_no_parameters_in_its_shortcuts(depth):
    layers = convolutions(on_meta(f"resnet{depth}"))
    assert len(layers) + 1 == depth  # the classifier is the last
    assert all(layer.kernel_size == (3, 3) for layer in layers.values())


@pytest.mark.parametrize(
    ("name", "depth", "projections"), [("preact_resnet164", 164, 3), ("densenet_bc_100_12", 100, 0)]
)
def test_depth_without_projections(name, depth, projections):
    layers = convolutions(on_meta(name))
    shortcuts = [layer for layer in layers if layer.endswith("projection")]
    assert len(shortcuts) == projections
    assert len(layers) - projections + 1 == depth


@pytest.mark.parametrize(("name", "depth"), [("wrn_16_4", 16), ("wrn_16_8", 16), ("wrn_28_10", 28)])
def test_depth_of_a_wide_resnet_counts_its_projections(name, depth):
    assert len(convolutions(on_meta(name))) == depth


@pytest.mark.parametrize("name", PAPERS)
def test_images_shrink_twice(name):
    backbone, sizes = on_meta(name), []
    backbone.pool.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[2:]))
    backbone(torch.empty(2, 3, 32, 32, device="meta"))
    assert sizes == [(8, 8)]
    assert all(layer.bias is None for layer in convolutions(backbone).values())


def test_option_a_keeps_every_second_pixel_and_pads_channels_with_zeros():
    block, x = BasicBlock(16, 32, stride=2), torch.randn(2, 16, 7, 8)
    nn.init.zeros_(block.residual[-1].weight)  # now the block is relu of its shortcut
    out = block(x)
    assert out.shape == (2, 32, 4, 4)
    assert torch.equal(out[:, :16], x[:, :, ::2, ::2].relu())
    assert not out[:, 16:].any()


def test_pre_activation_leaves_the_identity_alone():
    block, x = Bottleneck(64, 64, stride=1), torch.randn(2, 64, 8, 8)
    nn.init.zeros_(block.residual[-1].weight)
    assert torch.equal(block(x), x)
    block = Bottleneck(16, 64, stride=2)
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.randn(2, 16, 8, 8)
    torch.testing.assert_close(block(x), block.projection(F.batch_norm(x, None, None, training=True).relu()))


def test_a_dense_layer_appends_to_what_came_in():
    x = torch.randn(2, 24, 8, 8)
    out = DenseLayer(24, 12, dropout=0.0)(x)
    assert out.shape == (2, 36, 8, 8)
    assert torch.equal(out[:, :24], x)


def test_convolutions_start_as_he_et_al_have_it():
    backbone = create_backbone("wrn_16_4")
    for layer in convolutions(backbone).values():
        if layer.weight.numel() > 10_000:
            fan_out = layer.out_channels * layer.kernel_size[0] ** 2
            assert layer.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)


@pytest.mark.parametrize(
    ("name", "options", "rates"),
    [
        ("wrn_16_4", {}, {0.4}),
        ("wrn_16_4", {"dropout": 0.1}, {0.1}),
        ("wrn_16_8", {}, {0.0}),
        ("wrn_28_10", {}, {0.0}),
        ("densenet_bc_100_12", {}, {0.0}),
        ("densenet_bc_100_12", {"dropout": 0.2}, {0.2}),
    ],
)
def test_dropout_is_that_of_the_papers(name, options, rates):
    with torch.device("meta"):
        backbone = create_backbone(name, **options)
    dropouts = [module.p for module in backbone.modules() if isinstance(module, nn.Dropout)]
    assert len(dropouts) == {"wrn_16_4": 6, "wrn_16_8": 6, "wrn_28_10": 12, "densenet_bc_100_12": 98}[name]
    assert set(dropouts) == rates


def test_dropout_acts_in_training_only():
    backbone, images = create_backbone("wrn_16_4", in_channels=1), torch.randn(4, 1, 8, 8)
    assert not torch.equal(backbone(images), backbone(images))
    backbone.eval()
    assert torch.equal(backbone(images), backbone(images))


def test_pixels_are_the_image():
    backbone, x = create_backbone("pixels", in_channels=2, image_size=5), torch.randn(3, 2, 5, 5)
    assert backbone.feature_dim == 50
    assert torch.equal(backbone(x), x.flatten(1))
    assert not list(backbone.parameters())
    with pytest.raises(ValueError, match=r"images of 50 numbers, got the shape \(3, 2, 6, 6\)"):
        backbone(torch.randn(3, 2, 6, 6))


@pytest.mark.parametrize("name", ["resnet9", "resnet2", "resnet10"])
def test_depths_that_no_resnet_has(name):
    with pytest.raises(ValueError, match=rf"6n\+2.*got {name[6:]}$"):
        create_backbone(name)


@pytest.mark.parametrize(
    ("constructor", "arguments", "form"),
    [(ResNet, [51], "6n+2"), (PreActResNet, [165], "9n+2"), (WideResNet, [29, 2], "6n+4"), (DenseNetBC, [99], "6n+4")],
)
def test_constructors_refuse_other_depths(constructor, arguments, form):
    with pytest.raises(ValueError, match=rf"{re.escape(form)}.*got {arguments[0]}$"):
        constructor(*arguments)


def test_which_resnets_are_timms():
    timm = pytest.importorskip("timm")
    assert {name for name in timm.list_models("resnet*") if re.fullmatch(r"resnet\d+", name)} == TIMM_RESNETS
    for name in ("resnet26", "resnet50"):  # 6n+2, but known as ImageNet's
        backbone = create_backbone(name)
        assert backbone.feature_dim == 2048
        assert type(backbone) is timm.models.resnet.ResNet
    for name in ("resnet14", "resnet38", "resnet164"):
        assert type(on_meta(name)) is ResNet


def test_options_reach_timm():
    backbone = create_backbone("vit_tiny_patch16_224", img_size=32).eval()
    assert backbone(torch.randn(1, 3, 32, 32)).shape == (1, backbone.feature_dim) == (1, 192)


@pytest.mark.parametrize(
    ("name", "suggestion"), [("wrn_28_11", "wrn_28_10"), ("resnett50", "resnet50"), ("densenet_bc_100", "_12")]
)
def test_an_unknown_name_suggests_the_nearest(name, suggestion):
    with pytest.raises(ValueError, match=rf"^unknown backbone '{name}'; did you mean .*{suggestion}.*\?$"):
        create_backbone(name)


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(ValueError, match=r"unknown backbone 'qqqq'; ours are resnet8, .*pixels, the others timm's"):
        create_backbone("qqqq")


def test_ours_have_no_pretrained_weights():
    with pytest.raises(ValueError, match="no pretrained weights for 'resnet8'"):
        create_backbone("resnet8", pretrained=True)


@pytest.mark.parametrize("missing", ["timm", "torchvision"])
def test_timm_missing(missing, tmp_path, monkeypatch):
    tmp_path.joinpath("timm.py").write_text(f"raise ModuleNotFoundError('gone', name={missing!r})")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=rf"{missing}.*pip install 'cappronet\[vision\]'"):
        create_backbone("resnet18")
    assert create_backbone("resnet8").feature_dim == 64


@pytest.mark.parametrize(
    ("message", "expected"),
    [("operator torchvision::nms does not exist", "do not match; reinstall both together"), ("other", "^other$")],
)
def test_torchvision_does_not_match_torch(message, expected, tmp_path, monkeypatch):
    tmp_path.joinpath("timm.py").write_text(f"raise RuntimeError({message!r})")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((ImportError, RuntimeError), match=expected):
        create_backbone("resnet18")


@pytest.mark.slow
def test_ours_need_neither_timm_nor_torchvision():
    code = """
import sys
from cappronet.models.backbones import create_backbone
create_backbone("resnet8")
create_backbone("pixels")
print([name for name in ("timm", "torchvision") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_convolutions_of_the_speed_run_start_as_the_identity():
    backbone = create_backbone("speedrun")
    trained = [conv for name, conv in convolutions(backbone).items() if not name.startswith("stem")]
    assert [(conv.in_channels, conv.out_channels) for conv in trained] == [
        (24, 64), (64, 64), (64, 256), (256, 256), (256, 256), (256, 256),
    ]  # fmt: skip
    for conv in trained:
        x = torch.randn(2, conv.in_channels, 5, 5)
        copied, drawn = conv(x).split([conv.in_channels, conv.out_channels - conv.in_channels], dim=1)
        torch.testing.assert_close(copied, x, rtol=0, atol=1e-6)
        assert drawn.shape[1] == 0 or drawn.std() > 0.1
        assert conv.weight.requires_grad


def test_normalization_of_the_speed_run_learns_biases_alone():
    norms = [module for module in create_backbone("speedrun").modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 6
    assert all(norm.bias.requires_grad and not norm.weight.requires_grad for norm in norms)
    assert all((norm.weight == 1).all() for norm in norms)


def test_whitening_makes_patches_white():
    backbone = create_backbone("speedrun")
    generator = torch.Generator().manual_seed(0)
    images = F.avg_pool2d(torch.randn(64, 3, 34, 34, generator=generator), 3, stride=1)  # neighbours are alike
    backbone.fit_whitening(images)
    whitening = backbone.stem[0]
    assert not whitening.weight.requires_grad
    outputs = whitening(images).transpose(0, 1).flatten(1).double()
    first, mirrored = outputs[:12], outputs[12:]
    torch.testing.assert_close(mirrored, -first, rtol=0, atol=0)
    covariance = first @ first.T / first.shape[1]
    assert (covariance - torch.diag(covariance.diag())).abs().max() < 1e-3
    assert ((covariance.diag() > 0.9) & (covariance.diag() < 1.001)).all()
