"""What a model's configuration may say: checked before anything is built from it, since it may come from a stranger."""

import math
from collections.abc import Mapping
from typing import Any

from cappronet.models.backbones import cifar_resnet, require_name
from cappronet.models.backbones.pixels import sides

__all__ = ["check_configuration", "check_numbers", "shown"]

SIZES = ("num_classes", "capsule_dim", "in_channels", "pool", "width")
ENTRIES = {
    *SIZES,
    *("backbone", "head", "image_size", "files", "resize", "dropout", "backbone_dropout", "classes", "mean", "std"),
    *("interpolation", "crop", "centered"),
    *("normalize", "scale", "solver", "eps", "bias", "hidden_dropout"),  # of the heads, like width
}
INTERPOLATIONS = ("bilinear", "bicubic")
# The smallest share of a scaled image file that a crop may take: a smaller one would scale files to a huge size.
SMALLEST_CROP = 0.1
# The numbers in one image, which the weights of most backbones do not limit: 8192 x 8192 in grey.
MOST_NUMBERS = 2**26


def check_numbers(config: Mapping[str, Any]) -> None:
    """Refuse numbers with which a model computes nothing but NaN: not finite, a `std` of 0, no share as dropout."""
    for name in ("mean", "std"):
        for value in config[name]:
            if not _finite(value) or (name == "std" and not value > 0):
                expected = "finite numbers above 0" if name == "std" else "finite numbers"
                raise ValueError(f"{name} must be {expected}, got {shown(value)}")
    for name in ("dropout", "backbone_dropout", "hidden_dropout"):
        if not _finite(config.get(name, 0)) or not 0 <= config.get(name, 0) <= 1:
            raise ValueError(f"{name} must be a number from 0 to 1, got {shown(config[name])}")
    if config.get("interpolation", "bilinear") not in INTERPOLATIONS:
        allowed = " or ".join(INTERPOLATIONS)
        raise ValueError(f"interpolation must be {allowed}, got {shown(config['interpolation'])}")
    crop = config.get("crop", 1.0)
    if not _finite(crop) or not SMALLEST_CROP <= crop <= 1:
        raise ValueError(f"crop must be a number from {SMALLEST_CROP} to 1, got {shown(crop)}")
    for name in ("scale", "eps"):
        if isinstance(config.get(name), int | float) and not _finite(config[name]):
            raise ValueError(f"{name} must be finite, got {shown(config[name])}")


def check_configuration(config: Any, tensors: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a configuration from a file unless building and running its model costs what its weights suggest.

    Args:
        config: the content of the file.
        tensors: the shapes of the weights, by name.

    Raises:
        ValueError: it names a backbone that is not known, has other entries than a model takes, or a size that the
            weights can't belong to.
    """
    if not isinstance(config, dict):
        raise ValueError(f"expected an object with the arguments of CapProNet, got {shown(config)}")
    # The defaults of these are as long as a number in the file says.
    for name, size in (("classes", "num_classes"), ("mean", "in_channels"), ("std", "in_channels")):
        value = config.get(name)
        if not isinstance(value, list) or len(value) != config.get(size):
            raise ValueError(f"{name} must be a list with {size} entries")
    unknown = [name for name in config if name not in ENTRIES]
    if unknown:
        raise ValueError(f"unknown entry {shown(unknown[0])}")
    if not all(isinstance(name, str | int | float) for name in config["classes"]):
        raise ValueError("classes must be a list of names")
    if not isinstance(config.get("centered", False), bool):
        raise ValueError(f"centered must be true or false, got {shown(config['centered'])}")
    _check_sizes(config, tensors)
    _check_backbone(config.get("backbone"), len(tensors))


def _check_sizes(config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> None:
    for name in SIZES:
        if name in config and not (type(config[name]) is int and config[name] >= 1):
            raise ValueError(f"{name} must be a number of at least 1, got {shown(config[name])}")
    numbers = sum(math.prod(shape) for shape in tensors.values())
    for name in ("num_classes", "in_channels", "pool"):  # each class, each channel and each part has weights
        if config.get(name, 1) > numbers:
            raise ValueError(f"{name} is {shown(config[name])}, but the weights are {numbers:,} numbers")
    for name in ("image_size", "resize"):
        size = config.get(name, 0)
        parts = size if isinstance(size, list) else [size]
        least = 1 if name == "image_size" and name in config else 0
        if (isinstance(size, list) and len(size) != 2) or not all(
            type(part) is int and part >= least for part in parts
        ):
            raise ValueError(f"{name} must be a number, or height and width, got {shown(size)}")
        if config.get("backbone") != "features" and config["in_channels"] * math.prod(sides(size)) > MOST_NUMBERS:
            raise ValueError(f"{name} is {shown(size)}, expected images of at most {MOST_NUMBERS:,} numbers")


def _check_backbone(name: Any, tensors: int) -> None:
    require_name(name)
    depth = (cifar_resnet(name) or (0, None))[0]
    if depth > tensors:  # each layer has a tensor
        raise ValueError(f"{name} has {depth:,} layers, but the weights are {tensors:,} tensors")


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


def shown(value: Any, most: int = 60) -> str:
    """A value from a file for a message: in one line, without control characters, not longer than `most`."""
    text = ascii(value if not isinstance(value, str) else value[:most])
    return text if len(text) <= most else f"{text[: most - 3]}..."
