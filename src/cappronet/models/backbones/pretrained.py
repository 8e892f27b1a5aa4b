"""Pretrained weights for a backbone: timm's own from the hub, or those of a local file or folder.

Weights are checked before they are loaded. A file of PyTorch is read with `weights_only`, so nothing in it is executed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cappronet.data.files import one_line, sha256_of
from cappronet.data.limits import check_bytes, check_regular
from cappronet.extras import require
from cappronet.models.backbones import BACKBONES, cifar_resnet, create_backbone

__all__ = ["TIMM", "Preparation", "load_pretrained", "preparation"]

# What names timm's own weights, in place of a path.
TIMM = "timm"
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".tar")
# Entries of a training checkpoint that hold the weights, the averaged ones first.
INSIDE = ("state_dict_ema", "model_ema", "state_dict", "model")
CONFIG = "config.json"
BY_NAME, BY_ORDER = "by name", "by order, since the names are others"


@dataclass(frozen=True)
class Preparation:
    """How the images were prepared that a network was trained on: timm's data configuration.

    Attributes:
        size: the side of the images; 0 where it is not known.
        interpolation: how they were scaled: `"bilinear"` or `"bicubic"`.
        mean: of each channel, on a scale from 0 to 1; empty where it is not known.
        std: of each channel.
        crop: the share of the shorter side that was cut out of the middle of files.
    """

    size: int
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float

    def statistics(self, in_channels: int) -> tuple[list[float], list[float]]:
        """Mean and std for this many channels: grey images get the means over the colours."""
        if len(self.mean) == in_channels:
            return list(self.mean), list(self.std)
        return [sum(self.mean) / len(self.mean)] * in_channels, [sum(self.std) / len(self.std)] * in_channels


def preparation(name: str, source: str) -> Preparation | None:
    """How images are prepared for these weights, or None where nothing says it: our own backbones, from a plain file.

    Args:
        name: the backbone.
        source: `"timm"`, or the path of a file or folder of weights; a folder may say it in its `config.json`.
    """
    config = _folder_config(Path(source)) if source != TIMM and Path(source).is_dir() else {}
    if "num_classes" in config and "backbone" in config:  # of a model of ours
        size = config.get("resize") or config.get("image_size") or 0
        known = {**config, "input_size": [size if isinstance(size, int) else max(size)], "crop_pct": config.get("crop")}
    elif name in BACKBONES or cifar_resnet(name):
        return None
    else:
        known = {**_timm_config(name), **config.get("pretrained_cfg", {})}
    bicubic = known.get("interpolation") not in (None, "bilinear")
    return Preparation(
        size=int(known["input_size"][-1]),
        interpolation="bicubic" if bicubic else "bilinear",
        mean=tuple(known["mean"]),
        std=tuple(known["std"]),
        crop=float(known.get("crop_pct") or 0.875),
    )


def load_pretrained(backbone: nn.Module, name: str, source: str, in_channels: int = 3) -> dict[str, str]:
    """Load pretrained weights into a backbone.

    Args:
        backbone: of `create_backbone(name, in_channels)`.
        name: its name.
        source: `"timm"`, or the path of a file (.safetensors, or of PyTorch) or of a folder with one. The classifier in
            it is left out. Weights under other names are matched by their order, if every shape agrees.
        in_channels: of the images; for grey ones, the first convolution sums its weights over the colours.

    Returns:
        Where the weights come from, for the record of a run: `from`, and for files `sha256` and `matched`.

    Raises:
        OSError: timm's weights can't be downloaded.
        ValueError: the file can't be read, or holds the weights of another network.
    """
    if source == TIMM:
        _load_from_timm(backbone, name, in_channels)
        return {"from": TIMM}
    path = _weights_file(Path(source))
    state = _without_prefix(_read(path))
    whole = _shapes_with_classifier(name)
    matched = BY_NAME
    if not _named_alike(state, backbone):
        state, matched = _by_order(path, name, state, backbone, whole), BY_ORDER
    state = _adapted_to_channels(backbone, state, in_channels)
    _check(path, name, state, backbone, whole)
    backbone.load_state_dict({key: state[key] for key in backbone.state_dict()})
    return {"from": path.name, "sha256": sha256_of(path), "matched": matched}


def _load_from_timm(backbone: nn.Module, name: str, in_channels: int) -> None:
    if name in BACKBONES or cifar_resnet(name):
        raise ValueError(f"timm has no weights for {name!r}: give a file or folder of weights, or one of timm's names")
    try:
        trained = create_backbone(name, in_channels, pretrained=True)
    except Exception as error:  # of timm, the hub and its transports, which share no class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OSError(
            f"the weights of {name} could not be loaded ({reason}): they are downloaded from Hugging Face, or read "
            "from its cache; give a file of weights instead with --pretrained FILE"
        ) from None
    backbone.load_state_dict(trained.state_dict())


def _timm_config(name: str) -> dict[str, Any]:
    if ":" not in name:
        config = require("timm", "vision").get_pretrained_cfg(name, allow_unregistered=True)
        if config is not None:
            return dict(config.to_dict())
    with torch.device("meta"):  # also refuses a name that is not known
        return dict(create_backbone(name).pretrained_cfg)  # type: ignore[arg-type]


def _folder_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        return {}
    check_bytes(path, path.stat().st_size)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} can't be read as JSON ({one_line(error):.200}): fix or delete it") from None
    return config if isinstance(config, dict) else {}


def _weights_file(path: Path) -> Path:
    """The file itself, or the one in a folder."""
    path = path.expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"--pretrained: there is no file or folder {path}; give a path, or {TIMM!r} for timm's own weights"
        )
    if not path.is_dir():
        return path
    files = [file for suffix in SUFFIXES for file in sorted(path.glob(f"*{suffix}"))]
    files = [file for file in files if file.name != "checkpoint.pt"]  # of an interrupted run of ours
    if not files:
        raise FileNotFoundError(f"{path} has no file of weights: expected one that ends in {', '.join(SUFFIXES)}")
    if len(files) > 1 and files[0].suffix == files[1].suffix:
        raise ValueError(f"{path} has several files of weights, such as {files[0].name} and {files[1].name}: name one")
    return files[0]


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name."""
    check_regular(path)
    check_bytes(path, path.stat().st_size)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of torch, pickle, zip archives and safetensors, which share no class
        reason = one_line(error).partition(". ")[0]
        raise ValueError(
            f"{path} can't be read as weights ({reason:.150}): expected .safetensors, or a state dict of torch.save"
        ) from None
    if isinstance(content, dict):
        content = next((content[key] for key in INSIDE if isinstance(content.get(key), dict)), content)
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise ValueError(f"{path} holds no state dict: expected tensors by name, as of torch.save(model.state_dict())")
    return {str(name): tensor for name, tensor in content.items()}


def _without_prefix(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without `module.` of parallel training and `_orig_mod.` of compiled models; of our models, the backbone alone."""
    for prefix in ("module.", "_orig_mod."):
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    if state and all(name.startswith(("backbone.", "head.")) for name in state) and "backbone" in str(list(state)):
        return {n.removeprefix("backbone."): tensor for n, tensor in state.items() if n.startswith("backbone.")}
    return state


def _shapes_with_classifier(name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the network as it was trained, in its own order; of ours, nothing."""
    if name in BACKBONES or cifar_resnet(name):
        return {}
    with torch.device("meta"):
        whole = require("timm", "vision").create_model(name)
    return {key: tuple(tensor.shape) for key, tensor in whole.state_dict().items()}


def _named_alike(state: Mapping[str, Tensor], backbone: nn.Module) -> bool:
    """Whether most names are those of the backbone, so that a missing one is worth a word of its own."""
    names = backbone.state_dict().keys()
    return 2 * len(names & state.keys()) > len(names)


def _by_order(
    path: Path,
    name: str,
    state: Mapping[str, Tensor],
    backbone: nn.Module,
    whole: Mapping[str, tuple[int, ...]],
) -> dict[str, Tensor]:
    """Weights of the same network under other names, one after the other; refused unless every shape agrees."""
    own = {key: tuple(tensor.shape) for key, tensor in backbone.state_dict().items()}
    for shapes in (whole, own):
        pairs = list(zip(shapes.items(), state.values(), strict=False))
        same_count = len(shapes) == len(state)
        # A classifier of another number of classes does not matter, since it is left out.
        if same_count and all(shape == tuple(t.shape) or key not in own for (key, shape), t in pairs):
            return {key: tensor for (key, _), tensor in pairs}
    raise ValueError(
        f"{path} does not hold the weights of {name}: it starts with {next(iter(state), 'nothing')!r} and has "
        f"{len(state):,} tensors, expected {next(iter(own))!r} and {len(whole or own):,}; choose the backbone that it "
        "belongs to"
    )


def _adapted_to_channels(backbone: nn.Module, state: dict[str, Tensor], in_channels: int) -> dict[str, Tensor]:
    first = getattr(backbone, "pretrained_cfg", {}).get("first_conv")
    names = [f"{layer}.weight" for layer in ([first] if isinstance(first, str) else first or [])]
    if in_channels == 3 or not names or any(name not in state or state[name].shape[1] != 3 for name in names):
        return state
    adapt = require("timm.models", "vision").adapt_input_conv
    return {**state, **{name: adapt(in_channels, state[name]) for name in names}}


def _check(
    path: Path, name: str, state: Mapping[str, Tensor], backbone: nn.Module, whole: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse weights that lack something, have another shape or something more, except for the classifier."""
    own = backbone.state_dict()
    remedy = "choose the backbone that it belongs to"
    for key, tensor in own.items():
        if key not in state:
            raise ValueError(f"{path} does not hold the weights of {name}: it has no {key}; {remedy}")
        if state[key].shape != tensor.shape:
            shapes = f"{key} is {tuple(state[key].shape)}, expected {tuple(tensor.shape)}"
            raise ValueError(f"{path} does not hold the weights of {name}: {shapes}; {remedy}")
        if state[key].is_floating_point() and not state[key].isfinite().all():
            raise ValueError(f"{path} can't be used: {key} has numbers that are not finite")
    classifier = getattr(backbone, "pretrained_cfg", {}).get("classifier") or ()
    prefixes = tuple(f"{layer}." for layer in ([classifier] if isinstance(classifier, str) else classifier))
    for key in state:
        if key not in own and key not in whole and not (prefixes and key.startswith(prefixes)):
            raise ValueError(f"{path} does not hold the weights of {name}: it has an unexpected {key}; {remedy}")
