"""Metrics of a trained model as `(name, value)` pairs: errors, calibration, the geometry of its capsules."""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cappronet import projection
from cappronet.heads import CapsuleProjection

__all__ = ["capsule_statistics", "classification_metrics", "predict"]


@torch.no_grad()
def predict(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Scores `(n, L)` and labels `(n,)` of all batches, on the CPU; the model's mode is left as it was."""
    training = model.training
    model.eval()
    scores, labels = [], []
    for x, y in batches:
        scores.append(model(x).float().cpu())
        labels.append(y.cpu())
    model.train(training)
    return torch.cat(scores), torch.cat(labels)


def classification_metrics(scores: Tensor, labels: Tensor) -> Iterator[tuple[str, float]]:
    """Errors in percent, cross-entropy and calibration error of scores `(n, L)` against labels `(n,)`."""
    yield "error", 100 * (scores.argmax(-1) != labels).double().mean().item()
    if scores.shape[1] > 5:
        top5 = scores.topk(5, dim=-1).indices
        yield "error_top5", 100 * (top5 != labels.unsqueeze(-1)).all(-1).double().mean().item()
    yield "loss", F.cross_entropy(scores, labels).item()
    yield "calibration_error", 100 * calibration_error(scores, labels)


def calibration_error(scores: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy, over bins of equal width."""
    confidence, prediction = scores.softmax(-1).max(-1)
    bin_number = (confidence * bins).long().clamp_max(bins - 1)
    gap = (prediction == labels).double() - confidence.double()
    return torch.zeros(bins, dtype=torch.float64).index_add_(0, bin_number, gap).abs().sum().item() / len(labels)


@torch.no_grad()
def capsule_statistics(head: nn.Module) -> Iterator[tuple[str, float]]:
    """Of a capsule head's subspaces: the condition of the bases, and the largest cosine between two classes."""
    if not isinstance(head, CapsuleProjection) or isinstance(head.weight, DTensor):  # of parts there are none
        return
    eigenvalues = torch.linalg.eigvalsh(projection.regularized_gram(head.weight, head.eps))
    yield "condition", (eigenvalues[:, -1] / eigenvalues[:, 0]).median().item()
    basis = projection.bases(head.weight, head.eps)
    if 1 < len(basis) <= 100:
        largest = projection.principal_angles(basis.double(), basis.double())[..., 0].cos()
        pairs = largest[~torch.eye(len(basis), dtype=torch.bool, device=basis.device)]
        yield "largest_cosine", pairs.mean().item()
