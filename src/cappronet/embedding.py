"""A backbone over a dataset, as a stream: one file with the features of training and test images.

Features are appended to files in a folder beside the result, `NAME.part`, which are packed into it at the end. The
lengths of these files say how far a run came, so the same call goes on after any interruption, to the same bytes.
"""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cappronet.backbones import BACKBONES, create_backbone
from cappronet.batches import Batches
from cappronet.datasets import Dataset
from cappronet.feature_files import pack
from cappronet.ingredients import prepare
from cappronet.model import CapProNet
from cappronet.recipe import Recipe
from cappronet.runs import Run, write_atomically

__all__ = ["embed", "load_source", "rebuilt"]

# What of a trained model's description belongs to its backbone and to how it sees images.
KEPT = ("backbone", "in_channels", "image_size", "files", "resize", "pool", "backbone_dropout", "mean", "std")


def load_source(source: str, data: Dataset, pool: int = 1) -> CapProNet:
    """The network that makes features of these images, in eval mode; its head is a placeholder.

    Args:
        source: the folder of a finished run, `"pixels"`, or the name of a timm model, which comes with its weights.
        data: the images. Where their size is not the one that the network was trained on, it scales them to that.
        pool: parts, across and down, that the last feature map is averaged over.
    """
    common: dict[str, Any] = {"num_classes": len(data.classes), "classes": data.classes, "head": "linear"}
    sizes: dict[str, Any] = {"in_channels": data.in_channels, "image_size": data.image_size}
    sizes["files"] = data.train.paths is not None
    if source == "pixels":  # from 0 to 1: subspaces pass through zero, so the pixels are not centred
        return CapProNet("pixels", **sizes, pool=pool, **common).eval()
    if Path(source).is_dir():
        return _from_run(Path(source), data, {**common, **sizes}, pool)
    if source in BACKBONES:
        raise ValueError(f"there are no weights for {source!r}: give the folder of a run, or the name of a timm model")
    return _from_timm(source, data, {**common, **sizes}, pool)


def embed(
    source: str,
    recipe: Recipe,
    path: Path,
    *,
    pool: int = 1,
    batch_size: int = 500,
    workers: int = 0,
    cache: str | None = None,
    on_batch: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[int, int, int]:
    """Write the features of a dataset to an .npz, from where an interrupted call left off.

    Args:
        source: what makes the features, see `load_source`.
        recipe: its `data`, `classes`, `train_size`, `validation` and `seed` say which images.
        path: the file to write, which must not exist.
        pool: parts, across and down, that the last feature map is averaged over.
        batch_size: images at a time.
        workers: processes that read image files.
        cache: folder of downloaded datasets.
        on_batch: called with the part, the batches done and their number.

    Returns:
        The number of training samples, of test samples, and d.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists and is left as it is: choose another name")
    if path.suffix != ".npz" or not path.parent.is_dir():
        raise ValueError(f"features go to an .npz file in a folder that exists, got {path}")
    data = prepare(recipe, cache)
    network = load_source(source, data, pool)
    part = path.with_name(f"{path.name}.part")
    described = {
        "network": network.config,
        "from": str(Path(source).resolve()) if Path(source).is_dir() else source,
        "recipe": recipe.to_dict(),
        "fingerprint": data.fingerprint(),
        "batch_size": batch_size,
    }
    _begin(part, described, network)
    arrays: dict[str, NDArray[Any]] = {}
    for name, images in (("train", data.train), ("test", data.test)):
        file = part / f"x_{name}.f32"
        batches = Batches(
            images,
            batch_size,
            mean=network.config["mean"],
            std=network.config["std"],
            shuffle=False,
            workers=workers,
        )
        _append(file, network, batches, partial(on_batch, name))
        arrays[f"x_{name}"] = np.memmap(file, np.float32, "r", shape=(len(images), network.feature_dim))
        arrays[f"y_{name}"] = images.labels.numpy()
    arrays["classes"] = np.array(data.classes)
    arrays["source"] = np.array(json.dumps(described))
    arrays["backbone"] = np.frombuffer((part / "backbone.safetensors").read_bytes(), np.uint8)
    pack(part / "packed.npz", arrays)
    (part / "packed.npz").rename(path)
    shutil.rmtree(part)
    return len(data.train), len(data.test), network.feature_dim


def rebuilt(path: Path, source: dict[str, Any], **head: Any) -> CapProNet:
    """The network whose features a file of `embed` holds, with the head that is asked for, which starts anew."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        with np.load(path, allow_pickle=False) as archive:
            weights = load(archive["backbone"].tobytes())
        network = CapProNet(**{**source["network"], **head})
        network.backbone.load_state_dict(weights)
    except (KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"{path} does not hold the network that made its features: {reason}") from None
    return network.eval()


def _from_run(folder: Path, data: Dataset, fixed: dict[str, Any], pool: int) -> CapProNet:
    """A run's backbone with its weights, its normalization and its size of images."""
    if not Run(folder).finished:
        raise FileNotFoundError(f"{folder} is not the folder of a finished run: it has no summary.json")
    trained = CapProNet.from_pretrained(folder)
    config = {name: trained.config[name] for name in KEPT}
    if config["in_channels"] != data.in_channels:
        raise ValueError(
            f"{folder} was trained on images with {config['in_channels']} channels, {data.name} has {data.in_channels}"
        )
    if trained.input_shape != data.image_shape and not config["resize"]:
        config["resize"] = config["image_size"]
    # what is read, and to which side, is the new data's; a bare image is as wide as it was
    inputs = {} if config["backbone"] == "pixels" else {"image_size": fixed["image_size"]}
    network = CapProNet(**{**fixed, **config, **inputs, "files": fixed["files"], "pool": max(pool, config["pool"])})
    network.backbone.load_state_dict(trained.backbone.state_dict())
    return network.eval()


def _from_timm(name: str, data: Dataset, fixed: dict[str, Any], pool: int) -> CapProNet:
    """A timm model with its pretrained weights, its normalization and its size of images."""
    with torch.device("meta"):
        create_backbone(name, data.in_channels, pool=pool)  # a wrong name is found out before anything is fetched
    try:
        backbone: Any = create_backbone(name, data.in_channels, pretrained=True)
    except Exception as error:  # of timm, the hub and its transports, which share no class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OSError(
            f"the weights of {name} could not be loaded ({reason}): they come from the network, or from the cache of "
            "Hugging Face"
        ) from None
    known = backbone.pretrained_cfg
    size = known["input_size"][-1]
    mean, std = (torch.tensor(known[key]) for key in ("mean", "std"))
    if data.in_channels == 1:
        mean, std = mean.mean(0, keepdim=True), std.mean(0, keepdim=True)
    resize = size if size != data.image_size else 0
    network = CapProNet(name, **fixed, resize=resize, mean=mean.tolist(), std=std.tolist())
    network.backbone.load_state_dict(backbone.state_dict())
    return network.eval()


def _begin(part: Path, described: dict[str, Any], network: CapProNet) -> None:
    """Make the folder of a new job, or see that the one that is there belongs to the same job."""
    from safetensors.torch import save

    weights = save({name: tensor.contiguous() for name, tensor in network.backbone.state_dict().items()})
    plan = (json.dumps(described, indent=1) + "\n").encode()
    contents = {part / "backbone.safetensors": weights, part / "plan.json": plan}
    if (part / "plan.json").is_file():
        if any(file.read_bytes() != content for file, content in contents.items()):
            raise FileExistsError(
                f"{part} holds the beginning of other features than these: remove it, or choose another output"
            )
        return
    if part.exists() and any(file.name != "backbone.safetensors" and file.name[0] != "." for file in part.iterdir()):
        raise FileExistsError(f"{part} exists and is not the beginning of features: choose another output")
    part.mkdir(exist_ok=True)
    for file, content in contents.items():
        write_atomically(file, content)


@torch.no_grad()
def _append(file: Path, network: CapProNet, batches: Batches, on_batch: Callable[[int, int], None]) -> None:
    """Add the features of the batches that are missing in a file; a batch that was cut off is made again."""
    row = 4 * network.feature_dim
    size = file.stat().st_size if file.exists() else 0
    complete = size >= row * len(batches.labels)
    done = len(batches) if complete else size // (row * batches.batch_size)
    on_batch(done, len(batches))
    if complete:
        return
    with file.open("ab") as out:
        out.truncate(done * batches.batch_size * row)
        for images, labels in batches.epoch(0, start=done):
            out.write(_features(network, images, len(labels)).numpy().data)
            out.flush()
            done += 1
            on_batch(done, len(batches))


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
