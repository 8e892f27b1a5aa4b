"""How unknown an input is: scores on feature vectors, higher for what is less like the training images.

A capsule head answers from its geometry. With the capsule `v_l` of each class, `cos = max |v_l| / |x|` belongs to the
subspace nearest to the features `x`, and

    residual          sqrt(1 - cos^2), the share of x that the nearest subspace does not contain, between 0 and 1
    angle             arcsin(residual), the angle between x and that subspace: the same order, in degrees
    outside           the share of x outside the span of all subspaces together, 0 where they span everything
    length energy     -log sum exp of the lengths
    class residual    the residual to subspaces that are set from the training features, by SVD

Trained subspaces hold what tells classes apart; the last ones hold what a class looks like, and serve networks with any
head. The other scores are the usual rivals on the same features. `fit_scores` makes all that a head allows:

    >>> from cappronet import CapsuleProjection
    >>> from cappronet.novelty import auroc, fit_scores, fpr_at_95_tpr
    >>> planes = torch.eye(6).view(3, 2, 6)  # three classes, each in a plane of its own
    >>> y = torch.arange(300) % 3
    >>> x = (torch.randn(300, 1, 2) @ planes[y]).squeeze(1)
    >>> head = CapsuleProjection.from_features(x, y, capsule_dim=2)
    >>> scores = fit_scores(head, x, y)
    >>> known, unknown = scores["residual"](x), scores["residual"](torch.randn(100, 6))
    >>> auroc(known, unknown), fpr_at_95_tpr(known, unknown)
    (1.0, 0.0)
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cappronet import projection
from cappronet.heads import CapsuleProjection

__all__ = [
    "SCORES",
    "Score",
    "angle",
    "auroc",
    "energy",
    "fit_scores",
    "fpr_at_95_tpr",
    "outside",
    "residual",
    "separations",
]

# Features (n, d) to how unknown each is (n,).
Score = Callable[[Tensor], Tensor]

# The neighbour whose distance counts: published for CIFAR's 50,000 training images.
NEIGHBOUR = 50
# The dimension of a class's subspace where the head has none.
CLASS_DIM = 4
# Scores are computed for so many features at a time.
CHUNK = 1000


@torch.no_grad()
def residual(head: CapsuleProjection, x: Tensor) -> Tensor:
    """The relative residual to the nearest subspace, `sqrt(1 - max |v_l|^2 / |x|^2)`: `(n, d) -> (n,)`; 1 for x = 0."""
    return _share_outside(x, projection.bases(head.weight.double(), head.eps))


def angle(head: CapsuleProjection, x: Tensor) -> Tensor:
    """The angle to the nearest subspace in degrees, `arcsin` of the residual: `(n, d) -> (n,)`."""
    return residual(head, x).asin().rad2deg()


@torch.no_grad()
def outside(head: CapsuleProjection, x: Tensor) -> Tensor:
    """The share of x outside the span of all subspaces together: `(n, d) -> (n,)`, 0 if that is the whole space."""
    return _share_outside(x, _span(head).unsqueeze(0))


@torch.no_grad()
def energy(head: nn.Module, x: Tensor) -> Tensor:
    """`-log sum exp` of the head's scores, for a capsule head of its lengths: `(n, d) -> (n,)`."""
    return -torch.logsumexp(_logits(head, x), dim=-1)


def fit_scores(head: nn.Module, x: Tensor, y: Tensor) -> dict[str, Score]:
    """All scores that a head allows, fitted to the training images.

    Args:
        head: any head, in the state it was trained to.
        x: features of training images `(n, d)`, as the head gets them, without augmentation.
        y: their classes `(n,)`, integers from 0.

    Returns:
        By name, functions from features `(m, d)` to how unknown each is `(m,)`, in float64.
    """
    if x.ndim != 2 or y.shape != x.shape[:1] or len(x) < 2 or y.is_floating_point():
        raise ValueError(
            f"scores are fitted to features (n, d) of at least two images and integer classes (n,), "
            f"got {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}"
        )
    fitted = ((name, fit(head, x.detach(), y)) for name, fit in SCORES.items())
    return {name: score for name, score in fitted if score is not None}


def auroc(known: Tensor, unknown: Tensor) -> float:
    """How often an unknown input has the higher score of a random pair; ties count half. Exact: it counts all pairs."""
    _check_scores(known, unknown)
    ordered = known.sort().values
    below = torch.searchsorted(ordered, unknown).sum() + torch.searchsorted(ordered, unknown, right=True).sum()
    return below.item() / (2 * len(known) * len(unknown))


def fpr_at_95_tpr(known: Tensor, unknown: Tensor) -> float:
    """The share of unknown inputs that pass as known under the lowest threshold that lets 95 % of the known pass."""
    _check_scores(known, unknown)
    needed = -(-95 * len(known) // 100)
    threshold = known.kthvalue(needed).values
    return (unknown <= threshold).sum().item() / len(unknown)


def separations(
    scores: Mapping[str, Score], known: Tensor, unknown: Mapping[str, Tensor]
) -> dict[str, dict[str, tuple[float, float]]]:
    """`(AUROC, FPR at 95 % TPR)` of every score, for the features of known inputs against each kind of unknown ones."""
    found = {}
    for name, score in scores.items():
        of_known = score(known)
        of_unknown = {kind: score(x) for kind, x in unknown.items()}
        found[name] = {kind: (auroc(of_known, s), fpr_at_95_tpr(of_known, s)) for kind, s in of_unknown.items()}
    return found


def _residual(head: nn.Module, _x: Tensor, _y: Tensor) -> Score | None:
    return partial(residual, head) if isinstance(head, CapsuleProjection) else None


def _outside(head: nn.Module, _x: Tensor, _y: Tensor) -> Score | None:
    if not isinstance(head, CapsuleProjection) or len(_span(head)) == head.in_features:
        return None
    return partial(outside, head)


def _class_residual(head: nn.Module, x: Tensor, y: Tensor) -> Score:
    """Residual to the nearest of subspaces that keep the most of each class's unit features."""
    numbers, counts = y.unique(return_inverse=True, return_counts=True)[1:]
    size = min(getattr(head, "capsule_dim", CLASS_DIM), x.shape[1], int(counts.min()))
    return partial(residual, CapsuleProjection.from_features(x, numbers, size, normalize=True))


def _length_energy(head: nn.Module, _x: Tensor, _y: Tensor) -> Score | None:
    return partial(energy, head) if isinstance(head, CapsuleProjection) else None


def _energy(head: nn.Module, _x: Tensor, _y: Tensor) -> Score | None:
    return None if isinstance(head, CapsuleProjection) else partial(energy, head)


def _max_softmax(head: nn.Module, _x: Tensor, _y: Tensor) -> Score:
    """One minus the largest probability, written as a sum of the others, which doesn't round to 0."""

    def score(x: Tensor) -> Tensor:
        logits = _logits(head, x)
        others = logits.scatter(-1, logits.argmax(-1, keepdim=True), -torch.inf)
        return (others.logsumexp(-1) - logits.logsumexp(-1)).exp()

    return score


def _mahalanobis(_head: nn.Module, x: Tensor, y: Tensor) -> Score:
    """Squared Mahalanobis distance to the nearest class mean, with one covariance for all classes.

    Directions in which the training features don't vary at all are left out, by the pseudoinverse.
    """
    x = x.double()
    counts = torch.bincount(y)
    means = x.new_zeros(len(counts), x.shape[1]).index_add_(0, y, x) / counts.clamp_min(1).unsqueeze(1)
    centred = x - means[y]
    means = means[counts > 0]
    precision = torch.linalg.pinv(centred.mT @ centred / len(x), hermitian=True)
    values, vectors = torch.linalg.eigh(precision)
    root = vectors * values.clamp_min(0).sqrt()  # distances are then those between whitened points
    white = means @ root
    return lambda x: torch.cdist(x.double() @ root, white, compute_mode="donot_use_mm_for_euclid_dist").amin(-1) ** 2


def _vim(head: nn.Module, x: Tensor, _y: Tensor) -> Score:
    """Virtual-logit matching (ViM, CVPR 2022): the residual outside the principal half, scaled to a logit, and energy.

    Features are taken from where a linear head's logits are all zero; heads without a bias keep zero.
    """
    x = x.double()
    origin = torch.zeros_like(x[0])
    if isinstance(head, nn.Linear) and head.bias is not None:
        origin = -(torch.linalg.pinv(head.weight.detach().double()) @ head.bias.detach().double())
    centred = x - origin
    vectors = torch.linalg.eigh(centred.mT @ centred).eigenvectors  # from the smallest eigenvalue on
    null = vectors[:, : (x.shape[1] + 1) // 2]
    lengths = torch.linalg.vector_norm(centred @ null, dim=-1)
    alpha = _logits(head, x).amax(-1).sum() / lengths.sum().clamp_min(torch.finfo(torch.float64).tiny)

    def score(x: Tensor) -> Tensor:
        outside = torch.linalg.vector_norm((x.double() - origin) @ null, dim=-1)
        return alpha * outside - _logits(head, x).logsumexp(-1)

    return score


def _knn(_head: nn.Module, x: Tensor, _y: Tensor) -> Score:
    """The distance between unit features and their k-th neighbour among the training images."""
    train, k = F.normalize(x, dim=-1), min(NEIGHBOUR, len(x))

    def score(x: Tensor) -> Tensor:
        unit = F.normalize(x.to(train), dim=-1).split(CHUNK)
        cosines = torch.cat([(part @ train.mT).topk(k, dim=-1).values[:, -1] for part in unit])
        return (2 - 2 * cosines.double()).clamp_min(0).sqrt()

    return score


# From name to what fits a score to (head, training features, their classes), or finds that the head has no such score.
SCORES: Mapping[str, Callable[[nn.Module, Tensor, Tensor], Score | None]] = {
    "residual": _residual,
    "outside": _outside,
    "length energy": _length_energy,
    "class residual": _class_residual,
    "max softmax": _max_softmax,
    "energy": _energy,
    "mahalanobis": _mahalanobis,
    "vim": _vim,
    "knn": _knn,
}


def _share_outside(x: Tensor, bases: Tensor) -> Tensor:
    """`|x - P x| / |x|` for the nearest of some subspaces, given by orthonormal `bases (k, c, d)`.

    In float64: 1 - cos^2 of nearly all of a small residual would be rounding in float32.
    """
    cosines = torch.cat(
        [torch.linalg.vector_norm(torch.einsum("nd,kcd->nkc", part, bases), dim=-1).amax(-1) for part in _unit(x)]
    )
    return (1 - cosines.square()).clamp(0, 1).sqrt()


def _unit(x: Tensor) -> tuple[Tensor, ...]:
    return F.normalize(x.detach().double(), dim=-1, eps=torch.finfo(torch.float64).tiny).split(CHUNK)


def _span(head: CapsuleProjection) -> Tensor:
    """An orthonormal basis `(rank, d)` of all subspaces together."""
    bases = projection.bases(head.weight.detach().double(), head.eps).flatten(0, 1)
    _, values, directions = torch.linalg.svd(bases, full_matrices=False)
    return directions[values > values[0] * max(bases.shape) * torch.finfo(head.weight.dtype).eps]


@torch.no_grad()
def _logits(head: nn.Module, x: Tensor) -> Tensor:
    """The head's scores in float64, computed in eval mode and in the head's own precision."""
    training = head.training
    weight = next(chain(head.parameters(), head.buffers()))
    scores = torch.cat([head.eval()(part).double() for part in x.to(weight).split(CHUNK)])
    head.train(training)
    return scores


def _check_scores(known: Tensor, unknown: Tensor) -> None:
    for name, values in (("known", known), ("unknown", unknown)):
        if values.ndim != 1 or len(values) == 0 or values.isnan().any():
            raise ValueError(f"scores of {name} inputs must be (n,) with n at least 1 and no NaN, got {values!r:.80}")
