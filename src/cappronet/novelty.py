"""Out-of-distribution scores on feature vectors: higher for inputs that are less like the training samples.

A capsule head has such scores in its geometry. With the capsule `v_l` of each class, `cos = max |v_l| / |x|` is that of
the subspace nearest to the features `x`, and

    residual          sqrt(1 - cos^2), the share of x that the nearest subspace does not contain, between 0 and 1
    angle             arcsin(residual), the angle between x and that subspace: the same order, in degrees
    outside           the share of x outside the span of all subspaces together, 0 where they span everything
    length energy     -log sum exp of the lengths
    fdbd              how near x is to the boundaries between the nearest subspace and the others (`boundary_score`)
    class residual    the residual to subspaces that are set from the training features, by SVD

Trained subspaces contain what separates the classes. Those of the class residual contain what the features of a class
have in common, and serve networks with any head. The other scores are the usual ones on the same features: maximum
softmax, energy, generalized entropy (gen), Mahalanobis distance, virtual-logit matching (vim) and nearest neighbours
(knn). fdbd is for linear heads too. `fit_scores` fits every score that a head allows:

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
    "boundary_score",
    "energy",
    "fit_scores",
    "fpr_at_95_tpr",
    "outside",
    "residual",
    "separations",
]

# From features (n, d) to scores (n,).
Score = Callable[[Tensor], Tensor]

# The neighbour whose distance is the score: the published value for CIFAR-10's 50,000 training images. With fewer
# samples of a class a nearer one is better (trials on the sets of the out-of-scope study): it is at most a tenth of
# their mean number.
NEIGHBOUR = 50
# The exponent of the generalized entropy, and how many of the largest probabilities it takes; the published values.
GAMMA, LARGEST = 0.1, 100
# The dimension of a class's subspace where the head has none.
CLASS_DIM = 4
# Scores are computed for this many features at a time.
CHUNK = 1000
# Divisors are at least this.
TINY = torch.finfo(torch.float64).tiny


@torch.no_grad()
def residual(head: CapsuleProjection, x: Tensor) -> Tensor:
    """The relative residual to the nearest subspace, `sqrt(1 - max |v_l|^2 / |x|^2)`: `(n, d) -> (n,)`; 1 for x = 0."""
    return _residual_to_nearest(x, projection.bases(head.weight.double(), head.eps))


def angle(head: CapsuleProjection, x: Tensor) -> Tensor:
    """The angle to the nearest subspace in degrees, `arcsin` of the residual: `(n, d) -> (n,)`."""
    return residual(head, x).asin().rad2deg()


@torch.no_grad()
def outside(head: CapsuleProjection, x: Tensor) -> Tensor:
    """The share of x outside the span of all subspaces together: `(n, d) -> (n,)`, 0 if that is the whole space."""
    return _residual_to_nearest(x, _span(head).unsqueeze(0))


def boundary_score(basis: Tensor, x: Tensor, mean: Tensor) -> Tensor:
    """How near x is to the decision boundaries between capsules, for its distance from the mean training feature.

    This is fDBD (ICML 2024) with its sign turned: minus the mean distance to the boundaries between the nearest
    subspace and each of the others, divided by `|x - mean|`. fDBD is defined for linear heads; here the distances are
    those to the tangents of the boundaries. The gradient of `|v_l|` is the unit vector `u_l` along `v_l`, so that
    boundary is `(|v_k| - |v_l|) / |u_k - u_l|` away. A scale of the lengths makes no difference.

    Args:
        basis: orthonormal bases of the subspaces `(L, c, d)`, with rows of zeros where a subspace has fewer dimensions.
        x: features `(n, d)` as the subspaces take them.
        mean: of the training features `(d,)`.

    Returns:
        Scores `(n,)`, at most 0: higher for out-of-distribution inputs. All are 0 where there is only one class.
    """
    return _relative_to_mean(partial(_capsule_boundaries, basis.detach().double()), x, mean.detach().double())


@torch.no_grad()
def energy(head: nn.Module, x: Tensor) -> Tensor:
    """`-log sum exp` of the head's scores, for a capsule head of its lengths: `(n, d) -> (n,)`."""
    return -torch.logsumexp(_logits(head, x), dim=-1)


def fit_scores(head: nn.Module, x: Tensor, y: Tensor) -> dict[str, Score]:
    """All scores that a head allows, fitted to training features.

    Args:
        head: any head, in the state it was trained to.
        x: features of training images `(n, d)`, as the head gets them, without augmentation.
        y: their classes `(n,)`, integers from 0.

    Returns:
        By name, functions from features `(m, d)` to scores `(m,)` in float64, higher for out-of-distribution inputs.
    """
    if x.ndim != 2 or y.shape != x.shape[:1] or len(x) < 2 or y.is_floating_point():
        raise ValueError(
            f"scores are fitted to features (n, d) of at least two images and integer classes (n,), "
            f"got {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}"
        )
    fitted = ((name, fit(head, x.detach(), y)) for name, fit in SCORES.items())
    return {name: score for name, score in fitted if score is not None}


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Area under the ROC curve: how often the unknown input of a random pair has the higher score; ties count half."""
    _check_scores(known, unknown)
    ordered = known.sort().values
    below = torch.searchsorted(ordered, unknown).sum() + torch.searchsorted(ordered, unknown, right=True).sum()
    return below.item() / (2 * len(known) * len(unknown))


def fpr_at_95_tpr(known: Tensor, unknown: Tensor) -> float:
    """The share of unknown inputs accepted at the lowest threshold that accepts 95 % of the known ones."""
    _check_scores(known, unknown)
    needed = -(-95 * len(known) // 100)
    threshold = known.kthvalue(needed).values
    return (unknown <= threshold).sum().item() / len(unknown)


def separations(
    scores: Mapping[str, Score], known: Tensor, unknown: Mapping[str, Tensor]
) -> dict[str, dict[str, tuple[float, float]]]:
    """`(AUROC, FPR at 95 % TPR)` of every score, for the features of known inputs against each kind of unknown ones."""
    table = {}
    for name, score in scores.items():
        of_known = score(known)
        of_unknown = {kind: score(x) for kind, x in unknown.items()}
        table[name] = {kind: (auroc(of_known, s), fpr_at_95_tpr(of_known, s)) for kind, s in of_unknown.items()}
    return table


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
    """One minus the largest probability."""
    return lambda x: _log_others(_logits(head, x)).exp()


def _gen(head: nn.Module, _x: Tensor, _y: Tensor) -> Score:
    """Generalized entropy (GEN, CVPR 2023): the sum of `(p (1 - p))^0.1` over the 100 largest probabilities."""

    def score(x: Tensor) -> Tensor:
        logits = _logits(head, x)
        log_p = logits.topk(min(LARGEST, logits.shape[-1])).values - logits.logsumexp(-1, keepdim=True)
        log_rest = torch.cat([_log_others(logits).unsqueeze(-1), torch.log1p(-log_p[:, 1:].exp())], dim=-1)
        return (GAMMA * (log_p + log_rest)).exp().sum(-1)

    return score


def _fdbd(head: nn.Module, x: Tensor, _y: Tensor) -> Score | None:
    """Distances to decision boundaries (fDBD, ICML 2024): exact for a linear head, `boundary_score` for capsules."""
    if isinstance(head, CapsuleProjection):
        basis = projection.bases(head.weight.detach().double(), head.eps)
        if head.normalize:
            mean = F.normalize(x.double(), dim=-1).mean(0)
            return lambda x: boundary_score(basis, F.normalize(x.detach().double(), dim=-1), mean)
        return partial(boundary_score, basis, mean=x.double().mean(0))
    if isinstance(head, nn.Linear):
        weight = head.weight.detach().double()
        gaps = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        return partial(_relative_to_mean, partial(_linear_boundaries, head, gaps), mean=x.double().mean(0))
    return None


def _relative_to_mean(distances: Callable[[Tensor], Tensor], x: Tensor, mean: Tensor) -> Tensor:
    """Minus the mean of the distances to the boundaries `(n, L)` of the predicted class, over `|x - mean|`: `(n,)`."""
    x = x.detach().double()
    rows = (distances(part) for part in x.split(CHUNK))
    # The predicted class is at distance 0 and does not count; a single class has no boundary.
    to_boundaries = torch.cat([row.sum(-1) / max(1, row.shape[-1] - 1) for row in rows])
    return -to_boundaries / torch.linalg.vector_norm(x - mean, dim=-1).clamp_min(TINY)


def _linear_boundaries(head: nn.Linear, gaps: Tensor, x: Tensor) -> Tensor:
    """`(s_k - s_l) / |w_k - w_l|` for the scores s of a linear head, k the predicted class: `(n, d) -> (n, L)`."""
    logits = _logits(head, x)
    best, best_class = logits.max(-1)
    return (best.unsqueeze(-1) - logits) / gaps[best_class].clamp_min(TINY)


def _capsule_boundaries(basis: Tensor, x: Tensor) -> Tensor:
    """`(|v_k| - |v_l|) / |u_k - u_l|` with unit vectors `u_l` along `v_l`, k the nearest subspace: `(n, d) -> (n, L)`.

    `|u_k - u_l|^2 = 2 - 2 u_k' u_l`, and `u_k' v_l` is the inner product of the coordinates of x and of `u_k` in
    subspace l: no capsule but `v_k` is computed in full.
    """
    coordinates = torch.einsum("nd,lcd->nlc", x, basis)
    lengths = torch.linalg.vector_norm(coordinates, dim=-1)
    longest, nearest = lengths.max(-1)
    capsule = torch.einsum("nc,ncd->nd", coordinates[torch.arange(len(x)), nearest], basis[nearest])
    along = torch.einsum("nd,lcd->nlc", capsule / longest.clamp_min(TINY).unsqueeze(-1), basis)
    cosines = (coordinates * along).sum(-1) / lengths.clamp_min(TINY)
    gaps = (2 - 2 * cosines).clamp_min(0).sqrt().clamp_min(TINY)
    return (longest.unsqueeze(-1) - lengths) / gaps


def _mahalanobis(_head: nn.Module, x: Tensor, y: Tensor) -> Score:
    """Squared Mahalanobis distance to the nearest class mean, with one covariance for all classes.

    Directions in which the training features don't vary at all are left out, as by the pseudoinverse.
    """
    x = x.double()
    counts = torch.bincount(y)
    means = x.new_zeros(len(counts), x.shape[1]).index_add_(0, y, x) / counts.clamp_min(1).unsqueeze(1)
    centred = x - means[y]
    means = means[counts > 0]
    values, vectors = torch.linalg.eigh(centred.mT @ centred / len(x))
    varies = values > values[-1] * len(values) * torch.finfo(values.dtype).eps
    root = vectors[:, varies] / values[varies].sqrt()  # distances are then those between whitened points
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
    alpha = _logits(head, x).amax(-1).sum() / lengths.sum().clamp_min(TINY)

    def score(x: Tensor) -> Tensor:
        outside = torch.linalg.vector_norm((x.double() - origin) @ null, dim=-1)
        return alpha * outside - _logits(head, x).logsumexp(-1)

    return score


def _knn(_head: nn.Module, x: Tensor, y: Tensor) -> Score:
    """The distance between unit features and their k-th neighbour among the training images."""
    train, k = F.normalize(x, dim=-1), max(1, min(NEIGHBOUR, len(x) // (10 * len(y.unique()))))

    def score(x: Tensor) -> Tensor:
        unit = F.normalize(x.to(train), dim=-1).split(CHUNK)
        cosines = torch.cat([(part @ train.mT).topk(k, dim=-1).values[:, -1] for part in unit])
        return (2 - 2 * cosines.double()).clamp_min(0).sqrt()

    return score


# From name to a function that fits a score to (head, training features, their classes), or returns None where the head
# has no such score.
SCORES: Mapping[str, Callable[[nn.Module, Tensor, Tensor], Score | None]] = {
    "residual": _residual,
    "outside": _outside,
    "length energy": _length_energy,
    "class residual": _class_residual,
    "max softmax": _max_softmax,
    "energy": _energy,
    "gen": _gen,
    "fdbd": _fdbd,
    "mahalanobis": _mahalanobis,
    "vim": _vim,
    "knn": _knn,
}


def _residual_to_nearest(x: Tensor, basis: Tensor) -> Tensor:
    """`|x - P x| / |x|` for the nearest of the subspaces with orthonormal `basis (k, c, d)`, in float64."""
    unit = F.normalize(x.detach().double(), dim=-1, eps=TINY)
    coordinates = (torch.einsum("nd,kcd->nkc", part, basis) for part in unit.split(CHUNK))
    lengths = torch.cat([torch.linalg.vector_norm(part, dim=-1).amax(-1) for part in coordinates])
    return projection.relative_residuals(lengths, torch.linalg.vector_norm(unit, dim=-1))


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


def _log_others(logits: Tensor) -> Tensor:
    """`log(1 - p)` of the largest probability, as a sum of the others: `1 - p` would round to 0."""
    others = logits.scatter(-1, logits.argmax(-1, keepdim=True), -torch.inf)
    return others.logsumexp(-1) - logits.logsumexp(-1)


def _check_scores(known: Tensor, unknown: Tensor) -> None:
    for name, values in (("known", known), ("unknown", unknown)):
        if values.ndim != 1 or len(values) == 0 or values.isnan().any():
            raise ValueError(f"scores of {name} inputs must be (n,) with n at least 1 and no NaN, got {values!r:.80}")
