"""Subspaces fitted to features by gradient: their dimension, where they start, and the scale of their lengths."""

import math

import numpy as np
import torch
from torch import Tensor

from cappronet import projection
from cappronet.heads.controls import FIXED_SCALE
from cappronet.probing.descent import Samples, Schedule, Subspaces, descend

__all__ = [
    "MANY_SAMPLES",
    "default_dim",
    "default_schedule",
    "few_samples_lr",
    "first_bases",
    "validated_scale",
]

# The other candidate for the scale, where classes share almost everything and lengths hardly differ.
LARGE_SCALE = 100.0
# From this many samples on, a fifth of them decides between the two, in subspaces of few dimensions.
MANY_SAMPLES, PILOT_DIM = 20_000, 8
LARGEST_DIM = 16
LARGEST_BATCH = 256
# As many epochs as give this many steps, and at least so many; of many samples fewer epochs are as good.
STEPS, FEWEST_EPOCHS, FEWEST_EPOCHS_OF_MANY = 150, 8, 5
# The highest learning rate. With fewer than so many samples a class it is divided by the square root of d, because
# Adam moves every one of the d numbers of a direction by as much.
LR = 0.01
FEW_SAMPLES, FEW_SAMPLES_LR = 50, 0.06
# Up to so many samples, if classes have enough of them: fewer and smaller batches, and larger steps; docs/decisions.md
# says why.
SMALL_SET = 2000
SMALL_SET_STEPS, SMALL_SET_BATCH, SMALL_SET_LR = 90, 128, 0.02
# With a hidden layer: at least so many epochs, and this learning rate.
HIDDEN_EPOCHS, HIDDEN_LR = 20, 0.003


def default_dim(samples: float, d: int, classes: int) -> int:
    """The capsule dimension for features `(samples, d)`: the largest power of two with room and samples, up to 16.

    A class needs five samples for each dimension of its subspace, and all subspaces together should not have more than
    2 d dimensions: then they overlap so much that lengths no longer tell classes apart.
    """
    most = min(LARGEST_DIM, samples / classes / 5, 2 * d / classes, max(1, d - 1))
    return int(2 ** math.floor(math.log2(max(1.0, most))))


def few_samples_lr(d: int) -> float:
    """The highest learning rate for few samples of d features."""
    return min(LR, FEW_SAMPLES_LR / math.sqrt(d))


def default_schedule(n: int, d: int, samples: float, classes: int, *, hidden: bool = False) -> Schedule:
    """For features `(n, d)` whose weights sum to `samples`; a hidden layer needs more and smaller steps.

    Few samples make one batch, so that their fit does not depend on their order; with few samples a class, small steps
    keep subspaces near the means that they start from.
    """
    if hidden:
        batch_size = min(n, LARGEST_BATCH)
        return Schedule(max(HIDDEN_EPOCHS, round(STEPS * batch_size / n)), batch_size, HIDDEN_LR)
    if samples < FEW_SAMPLES * classes or n <= LARGEST_BATCH or n > SMALL_SET:
        return _usual_schedule(n, d, samples, classes)
    epochs = max(FEWEST_EPOCHS, round(SMALL_SET_STEPS * SMALL_SET_BATCH / n))
    return Schedule(epochs, SMALL_SET_BATCH, SMALL_SET_LR)


def _usual_schedule(n: int, d: int, samples: float, classes: int) -> Schedule:
    batch_size = min(n, LARGEST_BATCH)
    fewest = FEWEST_EPOCHS if n < MANY_SAMPLES else FEWEST_EPOCHS_OF_MANY
    epochs = max(fewest, round(STEPS * batch_size / n))
    return Schedule(epochs, batch_size, few_samples_lr(d) if samples < FEW_SAMPLES * classes else LR)


def first_bases(x: Tensor, y: Tensor, weights: Tensor, classes: int, dim: int, seed: int) -> Tensor:
    """Bases `(L, c, d)` of which the first direction is the mean of the class and the others are random.

    The mean is what classifiers of few samples rely on. A random direction costs nothing there, and with many samples
    becomes whatever separates the class; leading directions would first have to forget what all classes share.
    """
    d = x.shape[1]
    means = x.new_zeros(classes, d).index_add_(0, y, x * weights[:, None].to(x))
    generator = torch.Generator().manual_seed(seed)
    bases = (torch.randn(classes, dim, d, generator=generator, dtype=torch.float64) / math.sqrt(d)).to(x)
    sizes = means.norm(dim=1, keepdim=True)
    bases[:, 0] = torch.where(sizes > 0, means / torch.where(sizes > 0, sizes, 1), bases[:, 0])
    return bases


@torch.no_grad()
def validated_scale(samples: Samples, classes: int, dim: int, seed: int) -> float:
    """25, or 100 where that makes clearly fewer errors on a tenth of many samples, after a fit to another tenth."""
    n = len(samples.x)
    if n < MANY_SAMPLES:
        return FIXED_SCALE
    fitted, others = torch.from_numpy(np.random.default_rng(seed).permutation(n)[: n // 5]).chunk(2)
    # The schedule of all samples, whatever the size of the part.
    schedule = _usual_schedule(len(fitted), samples.x.shape[1], len(fitted), classes)
    own = Samples(*(part[fitted] for part in samples))
    start = first_bases(*own, classes, min(dim, PILOT_DIM), seed)
    wrong = []
    for scale in (FIXED_SCALE, LARGE_SCALE):
        model = Subspaces(start, scale)
        descend(model, own, schedule, seed=seed)
        longest = [projection.capsule_lengths(samples.x[rows], model.bases).argmax(-1) for rows in others.split(1000)]
        wrong.append(float(samples.weights[others][torch.cat(longest) != samples.y[others]].sum()))
    # A difference of two standard errors, as if the two made their errors independently.
    return LARGE_SCALE if wrong[0] - wrong[1] > 2 * math.sqrt(wrong[0] + wrong[1]) else FIXED_SCALE
