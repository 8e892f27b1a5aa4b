"""From a recipe to what training needs: samples, batches, model, optimizer, learning rate."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cappronet import projection
from cappronet.data.batches import Augmentation, Batches
from cappronet.data.normalization import Normalization, channel_statistics
from cappronet.data.samples import Dataset, FileCrop, Images
from cappronet.data.splits import take
from cappronet.heads import CapsuleProjection, CombinedOptimizer, GrassmannSGD
from cappronet.models.backbones.layers import layer_numbers
from cappronet.models.backbones.pixels import sides
from cappronet.models.backbones.pretrained import Preparation, load_pretrained, preparation
from cappronet.models.backbones.speedrun import SpeedRun
from cappronet.models.network import CapProNet
from cappronet.training.recipe import Recipe

__all__ = [
    "build_model",
    "build_optimizer",
    "evaluation_batches",
    "learning_rate",
    "load_data",
    "moving_average",
    "start_head",
    "training_batches",
]

# Bases that start from features are computed from this many images of each class.
IMAGES_FOR_START = 50
IMAGES_TO_WHITEN = 2000


def load_data(recipe: Recipe, cache: str | None = None) -> Dataset:
    """The samples that the recipe selects, if they are of the kind that its backbone takes."""
    data = recipe.selection.load(cache)
    if data.holds_vectors != (recipe.backbone == "features"):
        kind = "feature vectors" if data.holds_vectors else "images"
        raise ValueError(f"{recipe.data} holds {kind}: the backbone 'features' takes vectors, every other one images")
    if isinstance(data.train, Images) and data.train.paths is not None:
        known = _known_preparation(recipe)
        side = recipe.image_size or (known.size if known else 0) or FileCrop().side
        crop = FileCrop(side, known.crop if known else FileCrop().share, _interpolation(recipe, known))
        assert isinstance(data.test, Images)
        data = replace(data, train=replace(data.train, crop=crop), test=replace(data.test, crop=crop))
    return data


def _known_preparation(recipe: Recipe) -> Preparation | None:
    """How images were prepared for the recipe's pretrained weights, if it has any and something says it."""
    return None if recipe.pretrained == "none" else preparation(recipe.backbone, recipe.pretrained)


def _interpolation(recipe: Recipe, known: Preparation | None) -> str:
    if recipe.interpolation != "auto":
        return recipe.interpolation
    return known.interpolation if known else "bilinear"


def _input_size(recipe: Recipe, data: Dataset) -> int | tuple[int, int]:
    """What images in memory are scaled to before the backbone; 0 leaves them as they are, and vectors too."""
    if not isinstance(data.train, Images) or data.train.paths is not None:
        return 0
    known = _known_preparation(recipe)
    size = recipe.image_size or (known.size if known else 0)
    return 0 if size == data.image_size else size


def _statistics(recipe: Recipe, data: Dataset) -> tuple[list[float], list[float]]:
    """Mean and std of images: the recipe's, else those of the pretrained network, else those of the training images."""
    assert isinstance(data.train, Images)
    if recipe.mean:
        return list(recipe.mean), list(recipe.std)
    known = _known_preparation(recipe)
    if known is not None and known.mean:
        return known.statistics(data.in_channels)
    mean, std = channel_statistics(data.train)
    return mean.tolist(), std.tolist()


def training_batches(recipe: Recipe, data: Dataset, **process: Any) -> Batches:
    """The training samples in the order and with the augmentation of the recipe."""
    names = ("flip", "padding", "resized_crop", "color_jitter", "randaugment")
    augmentation = Augmentation(**{name: getattr(recipe, name) for name in names})
    batch_size = min(recipe.batch_size, len(data.train))
    size = _input_size(recipe, data)
    fixed: dict[str, Any] = {
        "size": sides(size) if size else None,
        "interpolation": _interpolation(recipe, _known_preparation(recipe)),
        "balanced": recipe.balance == "sampler",
        "seed": recipe.seed,
        "channels_last": recipe.channels_last,
    }
    normalize = _normalization(recipe, data)
    return Batches(data.train, batch_size, normalize=normalize, augmentation=augmentation, **fixed, **process)


def evaluation_batches(recipe: Recipe, data: Dataset, **process: Any) -> Batches:
    """The samples that errors are measured on, in their order."""
    size = 500 * process.get("world_size", 1)
    fixed: dict[str, Any] = {"shuffle": False, "channels_last": recipe.channels_last}
    return Batches(data.test, size, normalize=_normalization(recipe, data), **fixed, **process)


def _normalization(recipe: Recipe, data: Dataset) -> Normalization | None:
    """Feature vectors stay as they are."""
    return Normalization.of(*_statistics(recipe, data)) if isinstance(data.train, Images) else None


def build_model(recipe: Recipe, data: Dataset, *, without_head: bool = False) -> CapProNet:
    """The model that the recipe describes, for these samples, with pretrained weights or drawn from its seed.

    With `without_head` the head is on the meta device, to be drawn when its classes are spread over processes.
    """
    inputs: dict[str, Any] = {}
    place: dict[str, Any] = {"device": "meta"} if without_head else {}
    if isinstance(data.train, Images):
        mean, std = _statistics(recipe, data)
        inputs = {"mean": mean, "std": std, "resize": _input_size(recipe, data)}
        inputs["interpolation"] = _interpolation(recipe, _known_preparation(recipe))
        inputs["crop"] = data.train.crop.share
    torch.manual_seed(recipe.seed)
    model = CapProNet(
        recipe.backbone,
        len(data.classes),
        recipe.capsule_dim,
        head=recipe.head,
        in_channels=data.in_channels,
        image_size=data.image_size,
        files=isinstance(data.train, Images) and data.train.paths is not None,
        dropout=recipe.dropout,
        backbone_dropout=recipe.backbone_dropout,
        classes=data.classes,
        **inputs,
        **recipe.head_options(),
        **place,
    )
    model.config.pop("device", None)
    _check_input_size(model, data)
    if recipe.pretrained != "none":
        model.weights_origin = load_pretrained(model.backbone, recipe.backbone, recipe.pretrained, data.in_channels)
    elif isinstance(model.backbone, SpeedRun):
        model.backbone.fit_whitening(torch.cat([x for x, _ in _first_batches(recipe, data, IMAGES_TO_WHITEN)]))
    if recipe.freeze:
        model.freeze_backbone()
    if isinstance(model.head, CapsuleProjection) and not without_head:
        start_head(recipe, model, data)
    return model


@torch.no_grad()
def _check_input_size(model: CapProNet, data: Dataset) -> None:
    """Refuse images of a size that the backbone can't take, before anything is written."""
    name, shape = model.config["backbone"], data.input_shape
    try:
        model.eval().features(torch.zeros(1, *shape))
    except (RuntimeError, AssertionError, IndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        size = " x ".join(map(str, shape))
        raise ValueError(f"{name} can't take images of {size} ({reason}): choose another backbone or size") from error
    model.train()


def _first_batches(recipe: Recipe, data: Dataset, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One epoch over `size` training samples, as the recipe trains on them."""
    chosen = take(data.train, min(size, len(data.train)), recipe.seed)
    return training_batches(recipe, Dataset(data.name, data.classes, chosen, data.test)).epoch(0)


@torch.no_grad()
def start_head(recipe: Recipe, model: CapProNet, data: Dataset) -> None:
    """Set the first bases and scale as the recipe says; bases from features need some samples of every class.

    Features are taken in eval mode, so that they do not depend on the batches they come in and leave the running
    statistics of batch normalization as they are.
    """
    head = model.head
    assert isinstance(head, CapsuleProjection)
    if isinstance(head.scale, torch.Tensor) and recipe.scale_start:
        head.scale.fill_(recipe.scale_start)
    if recipe.head_start == "orthonormal":
        head.weight.copy_(projection.bases(head.weight))
    elif recipe.head_start == "features":
        batches = _first_batches(recipe, data, IMAGES_FOR_START * len(data.classes))
        model.eval()
        x, y = map(torch.cat, zip(*((model.features(x), y) for x, y in batches), strict=True))
        model.train()
        size = {"num_classes": len(data.classes), "normalize": recipe.normalize}
        head.weight.copy_(CapsuleProjection.from_features(x, y, recipe.capsule_dim, **size).weight)


def build_optimizer(recipe: Recipe, model: CapProNet) -> torch.optim.Optimizer:
    """SGD or AdamW, with the weight decay and the multiple of the learning rate that the recipe gives to each part.

    A Grassmann step for the bases is added to it, if the recipe says so; the result is one optimizer in any case.
    """
    bases = [model.head.weight] if recipe.moves_subspaces else []
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    multiples = _layer_multiples(recipe, model)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or any(parameter is basis for basis in bases):
            continue
        in_head = name.startswith("head.")
        decays = (recipe.decay_head or not in_head) and (recipe.decay_norms or parameter.ndim > 1)
        multiple = recipe.head_lr if in_head else multiples.get(name, 1.0)
        if name.endswith(".bias") and not in_head:
            multiple *= recipe.bias_lr
        groups.setdefault((decays, multiple), []).append(parameter)
    settings = [
        {"params": parameters, "weight_decay": recipe.weight_decay * decays, "multiple": multiple}
        for (decays, multiple), parameters in groups.items()
    ]
    momentum: dict[str, Any] = {"momentum": recipe.momentum, "nesterov": recipe.nesterov and recipe.momentum > 0}
    optimizers: list[torch.optim.Optimizer] = []
    if settings and recipe.optimizer == "adamw":
        optimizers.append(torch.optim.AdamW(settings, lr=recipe.lr))
    elif settings:
        optimizers.append(torch.optim.SGD(settings, lr=recipe.lr, **momentum))
    if bases:
        group = {"params": bases, "multiple": recipe.head_lr}
        optimizers.append(GrassmannSGD([group], lr=recipe.lr, **momentum))
    return optimizers[0] if len(optimizers) == 1 else CombinedOptimizer(*optimizers)


def _layer_multiples(recipe: Recipe, model: CapProNet) -> dict[str, float]:
    """The multiple of the learning rate for each parameter of the backbone; none where all layers have the same."""
    if recipe.layer_decay == 1:
        return {}
    numbers = layer_numbers(model.backbone)
    count = 1 + max(numbers.values(), default=0)
    return {f"backbone.{name}": recipe.layer_decay ** (count - number) for name, number in numbers.items()}


def moving_average(network: CapProNet, decay: float) -> AveragedModel | None:
    """An exponential moving average of the weights, unless its decay is 0."""
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True) if decay else None


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """The learning rate of step number `step` of `steps`."""
    epoch, done = step * recipe.epochs / steps, step / steps
    if epoch < recipe.warmup and recipe.warmup_lr:
        return recipe.warmup_lr
    if epoch < recipe.warmup:
        return recipe.lr * (step + 1) / math.ceil(recipe.warmup * steps / recipe.epochs)
    if recipe.schedule == "onecycle":  # up to the peak at three tenths, then down to zero, each along a cosine
        start = 0.04
        share = (1 - math.cos(math.pi * done / 0.3)) / 2
        return recipe.lr * (start + (1 - start) * share if done < 0.3 else _cosine((done - 0.3) / 0.7))
    if recipe.schedule == "cosine":
        return recipe.lr * _cosine(done)
    if recipe.schedule == "multistep":
        return recipe.lr * recipe.gamma ** sum(epoch >= milestone for milestone in recipe.milestones)
    if recipe.schedule == "step":
        return recipe.lr * recipe.gamma ** int(epoch // recipe.step_epochs)
    return recipe.lr


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2
