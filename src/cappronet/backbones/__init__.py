"""Backbones by name, all called alike: images `(B, C, H, W)` in, features `(B, d)` out, and d is `feature_dim`.

Those of the paper's tables are here, each as in its own paper; every other name is timm's.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from cappronet.backbones.densenet import DenseNetBC
from cappronet.backbones.features import Features
from cappronet.backbones.pixels import Pixels
from cappronet.backbones.preact_resnet import PreActResNet
from cappronet.backbones.resnet import ResNet, global_pooling
from cappronet.backbones.speedrun import SpeedRun
from cappronet.backbones.wide_resnet import WideResNet
from cappronet.extras import require

__all__ = ["BACKBONES", "create_backbone"]

# From name to constructor, all called as (in_channels=..., **options); `pixels` and `features` need image_size too.
BACKBONES: Mapping[str, Callable[..., nn.Module]] = {
    **{f"resnet{depth}": partial(ResNet, depth) for depth in (8, 14, 20, 32, 44, 56, 110)},
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

    Args:
        name: one of `BACKBONES`, any other CIFAR ResNet, or a model of timm, which must then be installed.
        in_channels: C, 3 for colour and 1 for grey.
        image_size: the side of square images, or height and width; only `pixels` depends on it, and `features`, which
            are so many numbers.
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
    if constructor is None and name not in TIMM_RESNETS and (match := re.fullmatch(r"resnet([1-9]\d{0,3})", name)):
        constructor = partial(ResNet, int(match[1]))
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
        near = difflib.get_close_matches(name, [*BACKBONES, *timm.list_models()], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"ours are {', '.join(BACKBONES)}, the others timm's"
        raise ValueError(f"unknown backbone {name!r}; {hint}")
    model: nn.Module = timm.create_model(name, num_classes=0, **options)
    # Some models map the pooled features, num_features wide, to those that a classifier gets: head_hidden_size.
    model.feature_dim = getattr(model, "head_hidden_size", None) or model.num_features
    return model
