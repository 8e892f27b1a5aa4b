"""Bootstrap of AUROC and FPR at 95 % TPR: test samples are drawn again, as counts of how often each was drawn."""

import torch
from torch import Tensor

__all__ = ["drawn_counts", "drawn_means", "interval", "separation"]


def drawn_counts(n: int, draws: int, seed: int) -> Tensor:
    """How often each of n samples is among n that are drawn with replacement: `(draws, n)`, whole numbers."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(n, (draws, n), generator=generator)
    return torch.zeros(draws, n).scatter_add_(1, rows, torch.ones(1).expand(draws, n))


def separation(known: Tensor, unknown: Tensor, known_counts: Tensor, unknown_counts: Tensor) -> tuple[Tensor, Tensor]:
    """AUROC and FPR at 95 % TPR of every draw, both `(draws,)`.

    Args:
        known: scores of known inputs `(n,)`, which should be low.
        unknown: scores of out-of-distribution inputs `(m,)`.
        known_counts: how often each known input was drawn `(draws, n)`.
        unknown_counts: the same for the others `(draws, m)`.
    """
    ordered, order = known.sort()
    n, m = len(known), len(unknown)
    # How many of the drawn known inputs are among the first 0, 1, ..., n of all: counts below 2^24 are exact.
    reached = torch.nn.functional.pad(known_counts[:, order].cumsum(1), (1, 0))
    below, up_to = (torch.searchsorted(ordered, unknown, right=right) for right in (False, True))
    pairs = ((reached[:, below] + reached[:, up_to]) * unknown_counts).sum(1, dtype=torch.float64)
    needed = torch.full((len(reached), 1), float(-(-95 * n // 100)))
    thresholds = ordered[torch.searchsorted(reached[:, 1:].contiguous(), needed)]
    accepted = ((unknown <= thresholds) * unknown_counts).sum(1, dtype=torch.float64)
    return pairs / (2 * n * m), accepted / m


def drawn_means(values: Tensor, seed: int) -> Tensor:
    """Means over seeds that are drawn with replacement too: `(seeds, draws) -> (draws,)`."""
    generator = torch.Generator().manual_seed(seed)
    return values.gather(0, torch.randint(len(values), values.shape, generator=generator)).mean(0)


def interval(values: Tensor) -> list[float]:
    """The middle 95 % of bootstrap values: both ends."""
    low, high = values.double().quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return [low, high]
