"""The features that a frozen network makes of a dataset, written to a folder as they are computed.

The arrays grow in a folder next to the result, `NAME.part`, which gets its name at the end. An .npy file starts with a
header that gives its final shape, and its length says how many rows are there: the same call resumes after any
interruption, to the same bytes.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from cappronet.data.arrays import read_npz
from cappronet.data.batches import Batches
from cappronet.data.digests import DESCRIPTION, check_digests, with_digests, without_digests
from cappronet.data.features import read_description
from cappronet.data.files import locked, one_line, remove_leftovers, write_atomically
from cappronet.data.normalization import channel_statistics
from cappronet.data.samples import Dataset, FileCrop, Images
from cappronet.data.selection import Selection
from cappronet.models.backbones import BACKBONES, create_backbone
from cappronet.models.backbones.pretrained import TIMM, Preparation, load_pretrained, preparation
from cappronet.models.configuration import check_configuration, shown
from cappronet.models.network import CapProNet
from cappronet.reporting import Report, silent
from cappronet.training.run_folder import Run

__all__ = ["embed", "embedded_selection", "load_source", "rebuild_network"]

WEIGHTS = "backbone.safetensors"
# The entries of a trained model's configuration that belong to its backbone and its images.
BACKBONE_CONFIG = (
    "backbone",
    "in_channels",
    "image_size",
    "files",
    "resize",
    "pool",
    "backbone_dropout",
    "mean",
    "std",
)


def load_source(source: str, data: Dataset, pool: int = 1, *, pretrained: str = TIMM, image_size: int = 0) -> CapProNet:
    """The network that makes features of these images, in eval mode; its head is a placeholder.

    Args:
        source: the folder of a finished run, `"pixels"`, or the name of a backbone with pretrained weights.
        data: the images. If the network was trained on images of another size, it scales these to that size.
        pool: parts, across and down, that the last feature map is averaged over.
        pretrained: the weights of a backbone that is given by its name: `"timm"`, or the path of a file or folder.
        image_size: scale images to this side; by default to the one that the network was trained at.
    """
    common: dict[str, Any] = {"num_classes": len(data.classes), "classes": data.classes, "head": "linear"}
    sizes: dict[str, Any] = {"in_channels": data.in_channels, "image_size": data.image_size}
    sizes["files"] = isinstance(data.train, Images) and data.train.paths is not None
    if source == "pixels":  # from 0 to 1: subspaces pass through zero, so the pixels are not centred
        return CapProNet("pixels", **sizes, pool=pool, **common).eval()
    if Path(source).is_dir():
        return _from_run(Path(source), data, {**common, **sizes}, pool)
    if source in BACKBONES and pretrained == TIMM:
        raise ValueError(f"there are no weights for {source!r}: give a run folder, or the name of a timm model")
    return _with_weights(source, data, {**common, **sizes}, pool, pretrained, image_size)


def embed(
    source: str,
    selection: Selection,
    path: Path,
    *,
    pool: int = 1,
    pretrained: str = TIMM,
    image_size: int = 0,
    batch_size: int = 500,
    workers: int = 0,
    cache: str | Path | None = None,
    report: Report = silent,
) -> tuple[int, int, int]:
    """Write the features of a dataset to a folder, resuming an interrupted call.

    Args:
        source: what makes the features, see `load_source`.
        selection: which images.
        path: the folder to write, which must not exist.
        pool: parts, across and down, that the last feature map is averaged over.
        pretrained: the weights of a backbone that is given by its name, see `load_source`.
        image_size: scale images to this side; by default to the one that the network was trained at.
        batch_size: images at a time.
        workers: processes that read image files.
        cache: folder of downloaded datasets.
        report: called with `"training features"` or `"test features"`, the batches done and their number.

    Returns:
        The number of training samples, of test samples, and d.
    """
    _check_target(path)
    data = selection.load(cache)
    if data.holds_vectors:
        raise ValueError(f"{selection.data} already holds feature vectors: give it to cappronet probe")
    network = load_source(source, data, pool, pretrained=pretrained, image_size=image_size)
    described = {
        "network": network.config,
        "from": str(Path(source).resolve()) if Path(source).is_dir() else source,
        "data": selection.to_dict(),
        "fingerprint": data.fingerprint(),
        "batch_size": batch_size,
    }
    if "sha256" in network.weights_origin:
        described["pretrained"] = network.weights_origin
    part = path.with_name(f"{path.name}.part")
    contents = {"classes": list(data.classes), "source": described}
    part.mkdir(exist_ok=True)
    with locked(part):
        _start(part, contents, network)
        for name, images in (("train", network.as_read(data.train)), ("test", network.as_read(data.test))):
            batches = Batches(images, batch_size, normalize=network.normalization, shuffle=False, workers=workers)
            text = "training features" if name == "train" else "test features"
            _append_features(part / f"x_{name}.npy", network, batches, partial(report, text))
            np.save(part / f"y_{name}.npy", images.labels.numpy())
        write_atomically(part / DESCRIPTION, _json(with_digests(part, contents)))
        remove_leftovers(part)
    part.rename(path)
    return len(data.train), len(data.test), network.feature_dim


def _check_target(path: Path) -> None:
    """Refuse to write features to anything but a new folder in one that exists."""
    if path.exists():
        raise FileExistsError(f"{path} exists and is left as it is: choose another name")
    if path.suffix == ".npz":
        raise ValueError(f"features are written as a folder, not as an .npz file: use -o {path.with_suffix('')}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write features to: make it first")


def embedded_selection(source: Mapping[str, Any]) -> Selection:
    """Which images features were made of; files of earlier versions say it with a whole recipe."""
    return Selection.from_dict(source["data"] if "data" in source else source["recipe"])


def rebuild_network(path: Path, source: Mapping[str, Any], dim: int | None = None, **head: Any) -> CapProNet:
    """The network that made the features of a folder, or of an .npz of earlier versions, with a new head.

    Args:
        path: the folder or file. It may come from a stranger: its backbone is a known one, its sizes are those of the
            weights, and nothing else is read.
        source: what the folder says about its features.
        dim: the width of the features, which the network must have too.
        head: arguments of `CapProNet` for the head.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        if path.is_dir():
            check_digests(path, read_description(path), Path(WEIGHTS).suffix)
            weights = load((path / WEIGHTS).read_bytes())
        else:
            weights = load(read_npz(path, lambda name: name == "backbone")[0]["backbone"].tobytes())
        config = {**source["network"], **head}
        problem = _mismatch(config, weights, dim)
        if not problem:
            network = CapProNet(**config)
            network.backbone.load_state_dict(weights)
    except (OSError, KeyError, TypeError, AssertionError, OverflowError, RuntimeError, SafetensorError) as error:
        problem = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
    if problem:
        raise ValueError(f"{path} does not hold the network that made its features: {problem}")
    return network.eval()


def _mismatch(config: dict[str, Any], weights: Mapping[str, Tensor], dim: int | None) -> str:
    """Why a network of this configuration can't have these weights, found out without memory for it; or nothing."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    lists = {name: (len(config[name]),) for name in ("classes", "mean")}  # the weights of `pixels` are none
    try:
        check_configuration(config, {**shapes, **lists})
        with torch.device("meta"):
            network = CapProNet(**config)
    except ValueError as error:
        return one_line(error)
    if {name: tuple(tensor.shape) for name, tensor in network.backbone.state_dict().items()} != shapes:
        return f"the weights are not those of {shown(config['backbone'])}"
    if dim is not None and network.feature_dim != dim:
        return f"it makes {network.feature_dim} features, expected {dim}"
    return ""


def _from_run(folder: Path, data: Dataset, fixed: dict[str, Any], pool: int) -> CapProNet:
    """A run's backbone with its weights, its normalization and its size of images."""
    if not Run(folder).finished:
        raise FileNotFoundError(f"{folder} is not the folder of a finished run: it has no summary.json")
    trained = CapProNet.from_pretrained(folder)
    config = {name: trained.config[name] for name in BACKBONE_CONFIG}
    if config["in_channels"] != data.in_channels:
        raise ValueError(
            f"{folder} was trained on images with {config['in_channels']} channels, {data.name} has {data.in_channels}"
        )
    config |= {name: trained.config[name] for name in ("interpolation", "crop") if name in trained.config}
    if fixed["files"] and config["files"]:
        fixed = {**fixed, "image_size": config["image_size"]}
    elif trained.input_shape != data.input_shape and not config["resize"]:
        config["resize"] = config["image_size"]
    # images are read and cropped as the new data needs it, except that `pixels` depends on the size it was trained on
    inputs = {} if config["backbone"] == "pixels" else {"image_size": fixed["image_size"]}
    network = CapProNet(**{**fixed, **config, **inputs, "files": fixed["files"], "pool": max(pool, config["pool"])})
    network.backbone.load_state_dict(trained.backbone.state_dict())
    return network.eval()


def _with_weights(
    name: str, data: Dataset, fixed: dict[str, Any], pool: int, pretrained: str, image_size: int
) -> CapProNet:
    """A backbone by its name with pretrained weights, and images prepared as these need them."""
    with torch.device("meta"):
        create_backbone(name, data.in_channels, pool=pool)  # refuses a wrong name before anything is fetched
    known = preparation(name, pretrained)
    if known is None:
        mean, std = (value.tolist() for value in channel_statistics(cast(Images, data.train)))
        known = Preparation(0, "bilinear", tuple(mean), tuple(std), FileCrop().share)
    mean, std = known.statistics(data.in_channels)
    size = image_size or known.size or fixed["image_size"]
    scaled = {"image_size": size} if fixed["files"] else {"resize": size if size != data.image_size else 0}
    prepared: dict[str, Any] = {"interpolation": known.interpolation, "crop": known.crop, "mean": mean, "std": std}
    network = CapProNet(name, **{**fixed, **scaled}, **prepared, pool=pool)
    network.weights_origin = load_pretrained(network.backbone, name, pretrained, data.in_channels)
    return network.eval()


def _start(part: Path, described: Mapping[str, Any], network: CapProNet) -> None:
    """Write what a new job begins with, or check that the folder belongs to the same job."""
    from safetensors.torch import save

    weights = save({name: tensor.contiguous() for name, tensor in network.backbone.state_dict().items()})
    # The description is written last: without it, nothing else has been written.
    contents = {part / WEIGHTS: weights, part / DESCRIPTION: _json(described)}
    if (part / DESCRIPTION).is_file():
        same = _json(without_digests(read_description(part))) == contents[part / DESCRIPTION]
        if not same or (part / WEIGHTS).read_bytes() != weights:
            raise FileExistsError(
                f"{part} holds the beginning of other features than these: remove it, or choose another output"
            )
        return
    if any(file.name != WEIGHTS and file.name[0] != "." for file in part.iterdir()):
        raise FileExistsError(f"{part} exists and is not the beginning of features: choose another output")
    for file, content in contents.items():
        write_atomically(file, content)


def _json(described: Mapping[str, Any]) -> bytes:
    return (json.dumps(described, indent=1) + "\n").encode()


@torch.no_grad()
def _append_features(path: Path, network: CapProNet, batches: Batches, report: Callable[[int, int], None]) -> None:
    """Append the features of the batches that an .npy lacks; an incomplete batch is computed again."""
    shape = (len(batches.labels), network.feature_dim)
    with path.open("r+b" if path.exists() else "w+b") as file:
        start = _header_end(file, shape)
        row_bytes = 4 * network.feature_dim
        rows = (file.seek(0, 2) - start) // row_bytes
        done = len(batches) if rows >= shape[0] else rows // batches.batch_size
        report(done, len(batches))
        file.truncate(start + min(shape[0], done * batches.batch_size) * row_bytes)
        file.seek(0, 2)
        for images, labels in batches.epoch(0, start=done):
            file.write(_features(network, images, len(labels)).numpy().data)
            file.flush()
            done += 1
            report(done, len(batches))


def _header_end(file: BinaryIO, shape: tuple[int, int]) -> int:
    """Write the header of an .npy for float32 of this shape, if it is not there yet; where the rows begin."""
    header = {"descr": np.dtype("<f4").str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()


def _features(network: CapProNet, images: Tensor, count: int) -> Tensor:
    try:
        features = network.features(images).float().contiguous()
    except (RuntimeError, AssertionError) as error:  # how networks refuse images they are not made for
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"the network can't take images of shape {tuple(images.shape[1:])}: {reason}") from None
    if features.shape != (count, network.feature_dim):
        raise ValueError(
            f"expected features {(count, network.feature_dim)} of the network, got {tuple(features.shape)}"
        )
    return features
