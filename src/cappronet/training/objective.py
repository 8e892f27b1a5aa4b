"""What a training step minimizes: cross-entropy, with mixed images and balanced classes if the recipe says so."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cappronet.data.samples import Dataset
from cappronet.extras import require
from cappronet.training.recipe import Recipe

__all__ = ["Objective", "class_weights"]


class Objective:
    """The loss of a batch. Mixing draws from the global generator, which the loop seeds for each step.

    Args:
        recipe: its `mixup`, `cutmix`, `balance` and `label_smoothing`.
        data: the training samples, whose classes are counted.
        device: where batches are.
    """

    def __init__(self, recipe: Recipe, data: Dataset, device: torch.device | str = "cpu") -> None:
        self.label_smoothing = recipe.label_smoothing
        classes = len(data.classes)
        weighted = recipe.balance == "weights"
        self.weights = class_weights(data.train.labels, classes).to(device) if weighted else None
        self.mixings: list[Any] = []
        if (recipe.mixup or recipe.cutmix) and data.holds_vectors:
            raise ValueError("mixup and cutmix mix images, but the data holds feature vectors: leave them out")
        if recipe.mixup or recipe.cutmix:
            v2 = require("torchvision.transforms.v2", "vision")
            kinds = ((v2.MixUp, recipe.mixup), (v2.CutMix, recipe.cutmix))
            self.mixings = [kind(alpha=alpha, num_classes=classes) for kind, alpha in kinds if alpha]

    def __call__(self, model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The loss of images `(B, C, H, W)` with labels `(B,)`, which may be mixed first."""
        if self.mixings:
            chosen = 0 if len(self.mixings) == 1 else int(torch.randint(len(self.mixings), ()))
            x, y = self.mixings[chosen](x, y)
        scores = model(x)
        if self.weights is None:
            return F.cross_entropy(scores, y, label_smoothing=self.label_smoothing)
        # The weights are 1 on average over the training samples. torch would divide by their sum in each batch, and so
        # by another number in each process.
        losses = F.cross_entropy(
            scores, y, self.weights.to(scores.dtype), label_smoothing=self.label_smoothing, reduction="none"
        )
        return losses.mean()


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """For each class, how much rarer it is than with classes of equal size: `n / (L n_l)`, and 0 without samples."""
    counts = torch.bincount(labels, minlength=classes).float()
    return torch.where(counts > 0, len(labels) / (classes * counts.clamp(min=1)), 0.0)
