"""Class subspaces, with or without a hidden layer below them, trained with cross-entropy over arrays in memory.

A step on a small batch takes tenths of a millisecond, most of which autograd would spend on recording it. Subspaces
therefore have the closed-form gradient of `projection.lengths_and_gradient`; only a hidden layer needs autograd.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.adamw import adamw

from cappronet import projection
from cappronet.probing.fitting import learning_rate
from cappronet.reporting import Report, silent

__all__ = [
    "HiddenSubspaces",
    "Patience",
    "Samples",
    "Schedule",
    "Subspaces",
    "descend",
    "first_hidden_layer",
    "hidden_features",
]

# Held-out samples are scored so many at a time.
CHUNK = 2000
# Batches that are copied from the samples at a time.
BATCHES_COPIED = 8
# Products with rows of a multiple of so many numbers are up to a third faster; from this many numbers on it shows.
ALIGNMENT, LARGE = 16, 100_000


class Samples(NamedTuple):
    """Features `(n, d)` as the subspaces take them, their classes `(n,)` from 0, and what each counts `(n,)`.

    A sample of weight 0 is in the batches and changes nothing: of many samples, that takes less than a copy of the
    others.
    """

    x: Tensor
    y: Tensor
    weights: Tensor

    def weighted(self) -> "Samples":
        """Those that have a weight."""
        return self if self.weights.all() else Samples(*(part[self.weights > 0] for part in self))


class Schedule(NamedTuple):
    """How long subspaces are trained, and with which steps."""

    epochs: int
    batch_size: int
    lr: float


class Patience(NamedTuple):
    """When training ends early: the loss on `held_out` samples has not fallen by `tol` for so many `epochs`."""

    held_out: Samples
    epochs: int
    tol: float


class Subspaces:
    """A subspace for each class, and the scale of the lengths, which may be learned.

    Attributes:
        bases: `(L, c, d)`; a row of zeros has a gradient of zero, so a class keeps its dimension.
        padding: how many zeros each row of the trained bases has in addition, which have a gradient of zero too.
        scale: what lengths are multiplied by before the softmax.
        parameters: what is trained.
        epochs: how many epochs of training were finished.
    """

    def __init__(self, bases: Tensor, scale: float, *, learned: bool = False, aligned: bool = True) -> None:
        self.padding = -bases.shape[-1] % ALIGNMENT if aligned and bases.numel() >= LARGE else 0
        self.padded, self.learned = nn.Parameter(F.pad(bases.detach(), (0, self.padding)).clone()), learned
        self.scale = nn.Parameter(bases.new_tensor(scale), requires_grad=learned)
        self.parameters = [self.padded, *([self.scale] if learned else [])]
        self.epochs = 0

    @property
    def bases(self) -> Tensor:
        return self.padded[..., : self.padded.shape[-1] - self.padding]

    def backward(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Set the gradients of the mean cross-entropy of a batch.

        With the probabilities p and the indicator of the class e, that of a score is `p - e`, and a score is the scale
        times a length.
        """
        lengths, gradient = projection.lengths_and_gradient(F.pad(x, (0, self.padding)), self.padded)
        scale = self.scale.detach()
        errors = torch.softmax(scale * lengths, 0)
        errors.scatter_add_(0, y.unsqueeze(0), errors.new_full((1, len(y)), -1.0)).mul_(weights / len(y))
        if self.learned:
            self.scale.grad = (errors * lengths).sum()
        self.padded.grad = gradient(errors.mul_(scale))

    def features(self, x: Tensor) -> Tensor:
        """What is projected onto the subspaces."""
        return x

    @torch.no_grad()
    def loss(self, samples: Samples) -> float:
        """The mean cross-entropy, without dropout."""
        total = 0.0
        for x, y, weights in zip(*(part.split(CHUNK) for part in samples), strict=True):
            scores = self.scale * projection.capsule_lengths(self.features(x), self.bases)
            total += float(weights.to(x) @ F.cross_entropy(scores, y, reduction="none"))
        return total / float(samples.weights.sum())


class HiddenSubspaces(Subspaces):
    """Subspaces of the unit-length outputs of a hidden layer of rectified linear units, which is trained with them.

    Attributes:
        weight: of the hidden layer `(h, d)`.
        bias: of the hidden layer `(h,)`.
    """

    def __init__(
        self, bases: Tensor, scale: float, weight: Tensor, bias: Tensor, *, dropout: float, seed: int, **options: bool
    ) -> None:
        super().__init__(bases, scale, aligned=False, **options)
        self.weight, self.bias = nn.Parameter(weight.detach().clone()), nn.Parameter(bias.detach().clone())
        self.parameters += [self.weight, self.bias]
        self.dropout, self.generator = dropout, torch.Generator().manual_seed(seed)
        # One mask for a batch, not one for each of its samples: then a weight counts as copies of a sample.
        self.shared_mask = False

    @torch.enable_grad()
    def backward(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Set the gradients of the mean cross-entropy of a batch, with dropout of hidden units."""
        for parameter in self.parameters:
            parameter.grad = None
        hidden = F.relu(F.linear(x, self.weight, self.bias))
        if self.dropout:
            shape = hidden[:1].shape if self.shared_mask else hidden.shape
            hidden = hidden * (torch.rand(shape, generator=self.generator) >= self.dropout)
        scores = self.scale * projection.capsule_lengths(F.normalize(hidden, dim=-1), self.bases)
        (weights @ F.cross_entropy(scores, y, reduction="none") / len(y)).backward()

    def features(self, x: Tensor) -> Tensor:
        """The outputs of the hidden layer, of unit length."""
        return hidden_features(x, self.weight, self.bias)


def hidden_features(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Rectified outputs of a linear layer, of unit length."""
    return F.normalize(F.relu(F.linear(x, weight, bias)), dim=-1)


def first_hidden_layer(size: int, d: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weight `(h, d)` and bias `(h,)` as those of `nn.Linear` start, uniform in +-1/sqrt(d), in float64."""
    generator = torch.Generator().manual_seed(seed)
    weight, bias = (
        2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1 for shape in ((size, d), (size,))
    )
    return weight / math.sqrt(d), bias / math.sqrt(d)


@torch.no_grad()
def descend(
    model: Subspaces,
    samples: Samples,
    schedule: Schedule,
    *,
    weight_decay: float = 0.0,
    seed: int = 0,
    patience: Patience | None = None,
    report: Report = silent,
) -> None:
    """Train by AdamW with a linear warm-up and a cosine decay.

    With held-out samples, the parameters are then those with the lowest loss on them. This also holds after an
    exception, such as an interrupt from the keyboard; without held-out samples they stay as they are at that moment.
    """
    epochs, batch_size, lr = schedule
    steps = math.ceil(len(samples.x) / batch_size)
    samples = samples._replace(weights=(samples.weights / samples.weights.mean()).to(samples.x))
    optimizers = [_AdamW(parameter, lr, weight_decay) for parameter in model.parameters]
    order = torch.Generator().manual_seed(seed)
    best = _Best(model, patience)
    try:
        for epoch in range(epochs):
            text = f"epoch {epoch + 1}/{epochs}{best.note}"
            for step, batch in enumerate(_batches(samples, steps, order), epoch * steps):
                report(text, step, epochs * steps)
                model.backward(*batch)
                rate = learning_rate(step, epochs * steps)
                for optimizer in optimizers:
                    optimizer.step(rate)
            if not all(parameter.detach().sum().isfinite() for parameter in model.parameters):
                raise ValueError(f"the fit diverged in epoch {epoch + 1}: use an lr below {lr:g}")
            model.epochs += 1
            if best.is_final(epoch):
                break
    finally:
        best.restore()


def _batches(samples: Samples, count: int, order: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
    """All samples in a random order, in so many batches of nearly equal size: none is left with a handful of samples.

    Some batches are copied at a time, because copying each by itself takes longer than the arithmetic of a small step.
    """
    rows = torch.randperm(len(samples.x), generator=order).tensor_split(count)
    for start in range(0, count, BATCHES_COPIED):
        some = rows[start : start + BATCHES_COPIED]
        together, sizes = torch.cat(some), [len(part) for part in some]
        yield from zip(*(part[together].split(sizes) for part in samples), strict=True)


class _AdamW:
    """`torch.optim.AdamW` for one parameter, by its functional form, in a third of the time for a small step.

    Adam moves every number by about lr, whatever its size: a scale takes steps in proportion to where it starts. Only
    matrices have weight decay. Both are as in `fit_head`.
    """

    def __init__(self, parameter: nn.Parameter, lr: float, weight_decay: float) -> None:
        self.parameter = parameter
        self.lr = lr if parameter.ndim else lr * max(1.0, abs(parameter.item()))
        self.weight_decay = weight_decay if parameter.ndim > 1 else 0.0
        self.state = torch.zeros_like(parameter), torch.zeros_like(parameter), torch.zeros(())

    def step(self, rate: float) -> None:
        """Take a step with this share of the learning rate."""
        assert self.parameter.grad is not None
        first, second, steps = self.state
        adamw(
            [self.parameter],
            [self.parameter.grad],
            [first],
            [second],
            [],
            [steps],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate * self.lr,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )


class _Best:
    """The parameters with the lowest loss on held-out samples; without these, the last ones."""

    def __init__(self, model: Subspaces, patience: Patience | None) -> None:
        self.model, self.patience = model, patience
        self.loss, self.epoch = math.inf, 0
        self.state: list[Tensor] = []
        self.note = ""

    def is_final(self, epoch: int) -> bool:
        """Note the loss after an epoch; whether to end."""
        if self.patience is None:
            return False
        loss = self.model.loss(self.patience.held_out)
        gain = self.loss - loss
        self.note = f"  held-out loss {loss:.4g}"
        if gain > 0:
            self.loss, self.state = loss, [parameter.detach().clone() for parameter in self.model.parameters]
        if gain > self.patience.tol:
            self.epoch = epoch
        return epoch - self.epoch >= self.patience.epochs

    def restore(self) -> None:
        for parameter, value in zip(self.model.parameters, self.state, strict=False):
            parameter.copy_(value)
