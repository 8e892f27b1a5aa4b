"""Backbones by name, all called alike: images `(B, C, H, W)` in, features `(B, d)` out, and d is `feature_dim`.

Those of the paper's tables are here, each as in its own paper; every other name is timm's.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from cappronet.extras import require
from cappronet.models.backbones.densenet import DenseNetBC
from cappronet.models.backbones.features import Features
from cappronet.models.backbones.pixels import Pixels
from cappronet.models.backbones.preact_resnet import PreActResNet
from cappronet.models.backbones.resnet import ResNet, global_pooling
from cappronet.models.backbones.speedrun import SpeedRun
from cappronet.models.backbones.wide_resnet import WideResNet
from cappronet.reporting import did_you_mean

__all__ = ["BACKBONES", "cifar_resnet", "create_backbone", "require_name", "timm_name"]

# From name to constructor, all called as (in_channels=..., **options); `pixels` and `features` need image_size too.
BACKBONES: Mapping[str, Callable[..., nn.Module]] = {
    **{f"resnet{depth}": partial(ResNet, depth) for depth in (8, 14, 20, 32, 44, 56, 110)},
    "resnet8_d512": partial(ResNet, 8, width=512),
    "preact_resnet164": partial(PreActResNet, 164),
    "wrn_16_4": partial(WideResNet, 16, 4, dropout=0.4),
    "wrn_16_8": partial(WideResNet, 16, 8),
    "wrn_28_10": partial(WideResNet, 28, 10),
    "densenet_bc_100_12": partial(DenseNetBC, 100, 12),
    "speedrun": SpeedRun,
    "features": Features,
    "pixels": Pixels,
}

# ImageNet's ResNets, some of whose depths are 6n+2 as well.
TIMM_RESNETS = {f"resnet{depth}" for depth in (18, 26, 34, 50, 101, 152, 200)}


def create_backbone(
    name: str,
    in_channels: int = 3,
    image_size: int | Sequence[int] = 32,
    *,
    pretrained: bool = False,
    pool: int = 1,
    **options: Any,
) -> nn.Module:
    """A backbone by name, with the width of its features as `feature_dim`.

    `resnet` with a depth of 6n+2 is CIFAR's, except 26, 50, 152 and 200: these are timm's, as 18, 34 and 101 are.
    `resnet8_d512` is CIFAR's ResNet-8 with a 1x1 convolution to 512 features before the pooling.

    Args:
        name: one of `BACKBONES`, any other CIFAR ResNet, or a model of timm, which must then be installed.
        in_channels: C, 3 for colour and 1 for grey.
        image_size: the side of square images, or height and width; only `pixels` depends on it, and `features`, which
            have this many numbers.
        pretrained: load timm's weights. There are none for our own backbones.
        pool: parts, across and down, that the last feature map is averaged over; 2 gives four times the features.
        options: for the constructor: `dropout` of a WideResNet or DenseNet, or what `timm.create_model` takes.

    Raises:
        ValueError: no backbone has this name or depth, or it has no pretrained weights.
        ModuleNotFoundError: the name may be timm's, but timm is not installed.
        RuntimeError: timm cannot be imported because torch and torchvision do not match.

    Example:
        >>> create_backbone("resnet20").feature_dim
        64
    """
    constructor = BACKBONES.get(name)
    if constructor is None and (size := cifar_resnet(name)):
        constructor = partial(ResNet, size[0], width=size[1])
    if constructor is None:
        if pool != 1:
            raise ValueError(f"only our own backbones show their feature map: {name} can't be pooled to {pool}x{pool}")
        return _from_timm(name, in_chans=in_channels, pretrained=pretrained, **options)
    if pretrained:
        raise ValueError(f"there are no pretrained weights for {name!r}, only for timm's backbones")
    if constructor in (Pixels, Features):
        options["image_size"] = image_size
    try:
        backbone = constructor(in_channels=in_channels, **options)
    except TypeError as error:
        raise ValueError(f"{name} does not take {', '.join(options)}: {error}") from None
    return backbone if pool == 1 else _pooled(name, backbone, pool)


def cifar_resnet(name: str) -> tuple[int, int | None] | None:
    """The depth of the CIFAR ResNet with this name, and the width of its features if the name has one; or None."""
    match = re.fullmatch(r"resnet([1-9][0-9]{0,3})(?:_d([1-9][0-9]{0,4}))?", name)
    if match is None or name in TIMM_RESNETS:
        return None
    return int(match[1]), int(match[2]) if match[2] else None


def require_name(name: Any) -> None:
    """Refuse what a file must not name as its backbone: another folder, or a model on a hub.

    A person may write `hf-hub:someone/a-model` or `local-dir:/a/folder`, and timm looks there. A model's own file may
    not: loading a local folder reads nothing else.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name):
        raise ValueError(
            f"a model's file names a backbone of ours or of timm, no path and no address; got {name!a:.100}"
        )


def timm_name(name: str, backbone: nn.Module, in_channels: int) -> str:
    """The name under which a backbone can be built again without the hub or the folder that it was named by.

    If timm's own model of that architecture is not the same network, the name stays.
    """
    architecture = getattr(backbone, "pretrained_cfg", {}).get("architecture")
    if ":" not in name or not architecture:
        return name
    with torch.device("meta"):
        plain = create_backbone(architecture, in_channels)
    shapes = [{key: tensor.shape for key, tensor in net.state_dict().items()} for net in (plain, backbone)]
    return str(architecture) if repr(plain) == repr(backbone) and shapes[0] == shapes[1] else name


def _pooled(name: str, backbone: nn.Module, pool: int) -> nn.Module:
    """Our networks end in one mean for each channel; this keeps `pool` by `pool` of them."""
    if pool < 1 or not hasattr(backbone, "pool"):
        raise ValueError(f"pool must be at least 1, and 1 for {name} if it has no feature map; got {pool}")
    backbone.pool = global_pooling(pool)
    backbone.feature_dim = backbone.feature_dim * pool**2  # type: ignore[assignment, operator]
    return backbone


def _from_timm(name: str, **options: Any) -> nn.Module:
    timm = require("timm", "vision")
    if not name.startswith(("hf-hub:", "local-dir:")) and not timm.is_model(name):
        ours = f"; ours are {', '.join(BACKBONES)}, the others timm's"
        raise ValueError(f"unknown backbone {name!r}{did_you_mean(name, [*BACKBONES, *timm.list_models()]) or ours}")
    model: nn.Module = timm.create_model(name, num_classes=0, **options)
    # Some models map the pooled features, num_features wide, to those that a classifier gets: head_hidden_size.
    model.feature_dim = getattr(model, "head_hidden_size", None) or model.num_features
    return model
