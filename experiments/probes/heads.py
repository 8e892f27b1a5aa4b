"""Heads that are trained by gradient on standardized features, with the interface of a scikit-learn classifier."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cappronet.heads import MLP, create_head
from cappronet.probing.fitting import fit_head

__all__ = ["HeadClassifier", "epochs_and_batch", "mlp", "named_head"]

LARGEST_BATCH, SMALLEST_BATCH = 256, 32
# As many epochs as give about this many steps, within bounds.
STEPS, FEWEST_EPOCHS, MOST_EPOCHS = 1000, 20, 50
# Test features are scored so many at a time.
CHUNK = 2000

# Makes a module from features (B, d) to scores (B, L), given d and L.
Build = Callable[[int, int], nn.Module]


def mlp(width: int, dropout: float) -> Build:
    """One hidden layer of this width, with dropout."""
    return lambda d, L: MLP(d, L, width, hidden_dropout=dropout)


def named_head(name: str, dim: int = 1, **options: Any) -> Build:
    """A head of `cappronet.heads` by name."""
    return lambda d, L: create_head(name, d, L, dim, **options)


def epochs_and_batch(n: int) -> tuple[int, int]:
    """Epochs and batch size of a fit to n samples, the same for every head."""
    batch_size = min(LARGEST_BATCH, max(SMALLEST_BATCH, n // 8))
    return min(MOST_EPOCHS, max(FEWEST_EPOCHS, round(STEPS * batch_size / n))), batch_size


class HeadClassifier:
    """A head, trained by AdamW on features that are centred and scaled to unit variance."""

    def __init__(self, build: Build, *, lr: float, weight_decay: float = 0.0) -> None:
        self.build, self.lr, self.weight_decay = build, lr, weight_decay

    def fit(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> Self:
        """Fit to features `(n, d)` with classes numbered from 0."""
        self.mean, self.std = x.mean(0), x.std(0)
        self.std[self.std == 0] = 1
        features, labels = self._standardized(x), torch.from_numpy(y)
        epochs, batch_size = epochs_and_batch(len(x))
        options: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)  # for the start of the weights, and for dropout
            head = self.build(x.shape[1], int(y.max()) + 1)
            self.head = fit_head(head, features, labels, epochs=epochs, batch_size=batch_size, **options)
        return self

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """The class with the highest score `(n,)`."""
        return self._scores(x).argmax(-1).numpy()

    def predict_proba(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Softmax of the scores `(n, L)`."""
        return self._scores(x).softmax(-1).numpy()

    @property
    def parameters(self) -> int:
        """The number of weights; the standardization could be folded into them and is not counted."""
        return sum(p.numel() for p in self.head.parameters())

    @torch.inference_mode()
    def _scores(self, x: NDArray[np.float32]) -> Tensor:
        chunks = range(0, len(x), CHUNK)
        return torch.cat([self.head(self._standardized(x[start : start + CHUNK])) for start in chunks])

    def _standardized(self, x: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy((x - self.mean) / self.std)
