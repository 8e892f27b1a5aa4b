"""From a recipe to its ingredients: images, batches, model, optimizer, learning rate."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cappronet import projection
from cappronet.backbones.speedrun import SpeedRun
from cappronet.batches import Augmentation, Batches, channel_statistics
from cappronet.datasets import Dataset, Images, hold_out, load_dataset, take
from cappronet.heads import CapsuleProjection
from cappronet.model import CapProNet
from cappronet.recipe import Recipe

__all__ = [
    "build_model",
    "build_optimizer",
    "evaluation_batches",
    "learning_rate",
    "moving_average",
    "prepare",
    "start_head",
    "training_batches",
]

# Bases that start from features are found in so many images of each class.
IMAGES_FOR_START = 50
IMAGES_TO_WHITEN = 2000


def prepare(recipe: Recipe, cache: str | None = None) -> Dataset:
    """The dataset as the recipe wants it: a part of the training images, and what errors are measured on."""
    data = load_dataset(recipe.data, Path(cache) if cache else None)
    if data.train.holds_features != (recipe.backbone == "features"):
        holds = "feature vectors" if data.train.holds_features else "images"
        raise ValueError(f"{recipe.data} holds {holds}: the backbone 'features' takes vectors, every other one images")
    if recipe.classes:
        data = _only(data, recipe.classes)
    training, test = data.train, data.test
    if recipe.validation:
        training, test = hold_out(training, recipe.validation, recipe.seed)
    if recipe.train_size:
        training = take(training, recipe.train_size, recipe.seed)
    return Dataset(data.name, data.classes, training, test)


def _only(data: Dataset, classes: tuple[int, ...]) -> Dataset:
    """The images of some classes, which get the numbers 0, 1, ... in the order given."""
    if len(set(classes)) < len(classes) or not all(0 <= number < len(data.classes) for number in classes):
        raise ValueError(f"classes must be different numbers from 0 to {len(data.classes) - 1}, got {list(classes)}")
    new = torch.full((len(data.classes),), -1)
    new[list(classes)] = torch.arange(len(classes))

    def chosen(images: Images) -> Images:
        part = images.subset((new[images.labels] >= 0).nonzero()[:, 0])
        return Images(new[part.labels], part.pixels, part.paths)

    names = tuple(data.classes[number] for number in classes)
    return Dataset(data.name, names, chosen(data.train), chosen(data.test))


def training_batches(recipe: Recipe, data: Dataset, **place: Any) -> Batches:
    """The training images in the order and with the augmentation of the recipe."""
    mean, std = channel_statistics(data.train)
    augmentation = Augmentation(flip=recipe.flip, padding=recipe.padding)
    size = min(recipe.batch_size, len(data.train))
    fixed: dict[str, Any] = {"mean": mean, "std": std, "seed": recipe.seed, "channels_last": recipe.channels_last}
    return Batches(data.train, size, augmentation=augmentation, **fixed, **place)


def evaluation_batches(recipe: Recipe, data: Dataset, **place: Any) -> Batches:
    """The images that errors are measured on, in their order."""
    mean, std = channel_statistics(data.train)
    size = 500 * place.get("world_size", 1)
    return Batches(data.test, size, mean=mean, std=std, shuffle=False, channels_last=recipe.channels_last, **place)


def build_model(recipe: Recipe, data: Dataset) -> CapProNet:
    """The model that the recipe describes, for these images, with weights drawn from its seed."""
    mean, std = channel_statistics(data.train)
    torch.manual_seed(recipe.seed)
    model = CapProNet(
        recipe.backbone,
        len(data.classes),
        recipe.capsule_dim,
        head=recipe.head,
        in_channels=data.in_channels,
        image_size=data.image_size,
        files=data.train.paths is not None,
        dropout=recipe.dropout,
        backbone_dropout=recipe.backbone_dropout,
        classes=data.classes,
        mean=mean.tolist(),
        std=std.tolist(),
        **recipe.head_options(),
    )
    _try_out(model, data)
    if isinstance(model.backbone, SpeedRun):
        model.backbone.look_at(torch.cat([x for x, _ in _some(recipe, data, IMAGES_TO_WHITEN)]))
    if isinstance(model.head, CapsuleProjection):
        start_head(recipe, model, data)
    return model


@torch.no_grad()
def _try_out(model: CapProNet, data: Dataset) -> None:
    """Refuse images that the backbone can't take while nothing has been written yet."""
    name, shape = model.config["backbone"], data.image_shape
    try:
        model.eval().features(torch.zeros(1, *shape))
    except (RuntimeError, AssertionError, IndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        size = " x ".join(map(str, shape))
        raise ValueError(f"{name} can't take images of {size} ({reason}): choose another backbone or size") from error
    model.train()


def _some(recipe: Recipe, data: Dataset, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of some training images, as the recipe trains on them."""
    chosen = take(data.train, min(size, len(data.train)), recipe.seed)
    return training_batches(recipe, Dataset(data.name, data.classes, chosen, data.test)).epoch(0)


@torch.no_grad()
def start_head(recipe: Recipe, model: CapProNet, data: Dataset) -> None:
    """Bases and scale as the recipe wants them at the start; bases from features need some images of every class."""
    head = model.head
    assert isinstance(head, CapsuleProjection)
    if isinstance(head.scale, torch.Tensor) and recipe.scale_start:
        head.scale.fill_(recipe.scale_start)
    if recipe.head_start == "uniform":
        return
    if recipe.head_start == "features":
        batches = _some(recipe, data, IMAGES_FOR_START * len(data.classes))
        x, y = map(torch.cat, zip(*((model.features(x), y) for x, y in batches), strict=True))
        started = CapsuleProjection.from_features(x, y, recipe.capsule_dim, num_classes=len(data.classes))
        head.weight.copy_(started.weight)
    else:
        head.weight.copy_(projection.bases(head.weight))


def build_optimizer(recipe: Recipe, model: CapProNet) -> torch.optim.Optimizer:
    """SGD or AdamW, with the weight decay and the multiple of the learning rate that the recipe gives to each part."""
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        in_head = name.startswith("head.")
        decays = (recipe.decay_head or not in_head) and (recipe.decay_norms or parameter.ndim > 1)
        groups.setdefault((decays, recipe.head_lr if in_head else 1.0), []).append(parameter)
    settings = [
        {"params": parameters, "weight_decay": recipe.weight_decay * decays, "multiple": multiple}
        for (decays, multiple), parameters in groups.items()
    ]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(settings, lr=recipe.lr)
    nesterov = recipe.nesterov and recipe.momentum > 0
    return torch.optim.SGD(settings, lr=recipe.lr, momentum=recipe.momentum, nesterov=nesterov)


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
