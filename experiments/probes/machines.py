"""Two support vector machines that scikit-learn has too, here computed with matrix products, which is faster.

Both give a rival its best time. `LinearSVM` has the objective of LinearSVC, which fits one class after another and
takes several times as long for a hundred classes; `KernelSVM` is SVC, given a kernel matrix made by one product.
"""

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

__all__ = ["KernelSVM", "LinearSVM"]

Floats = NDArray[np.float32]
# Kernels of new samples are computed for so many at a time.
CHUNK = 1000


class LinearSVM(ClassifierMixin, BaseEstimator):
    """One-versus-rest with the squared hinge loss, by L-BFGS on all classes at once.

    For each class, with targets t = 1 for its own samples and -1 for all others, it minimizes

        |w|^2 / 2 + C sum_i max(0, 1 - t_i (w'x_i + b))^2.

    The sum over classes is one smooth function of all weights. LinearSVC penalizes b too.
    """

    def __init__(self, C: float = 1.0, max_iter: int = 1000) -> None:
        self.C, self.max_iter = C, max_iter

    def fit(self, x: Floats, y: NDArray[np.int64]) -> Self:
        """Fit to features `(n, d)` with classes numbered from 0."""
        L, d = int(y.max()) + 1, x.shape[1]
        targets = np.where(y[:, None] == np.arange(L), 1, -1).astype(x.dtype)

        def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            weight, bias = flat[: L * d].reshape(L, d), flat[L * d :]
            margin = np.maximum(0, 1 - targets * (x @ weight.astype(x.dtype).T + bias.astype(x.dtype)))
            slope = -2 * self.C * margin * targets  # the derivative by the scores (n, L)
            value = 0.5 * float((weight**2).sum()) + self.C * float(np.square(margin, dtype=np.float64).sum())
            return value, np.concatenate([(weight + slope.T @ x).ravel(), slope.sum(0, dtype=np.float64)])

        options = {"maxiter": self.max_iter, "ftol": 1e-6, "gtol": 0.0}
        flat = minimize(objective, np.zeros(L * (d + 1)), jac=True, method="L-BFGS-B", options=options).x
        self.classes_ = np.arange(L)
        self.coef_, self.intercept_ = flat[: L * d].reshape(L, d).astype(x.dtype), flat[L * d :].astype(x.dtype)
        return self

    def predict(self, x: Floats) -> NDArray[np.int64]:
        """The class with the highest score `(n,)`."""
        return (x @ self.coef_.T + self.intercept_).argmax(1)


class KernelSVM(ClassifierMixin, BaseEstimator):
    """SVC with the kernel exp(-width |x - y|^2 / d)."""

    def __init__(self, C: float = 1.0, width: float = 1.0) -> None:
        self.C, self.width = C, width

    def fit(self, x: Floats, y: NDArray[np.int64]) -> Self:
        """Fit to features `(n, d)`."""
        self.x_, self.classes_ = x, np.unique(y)
        self.svc_ = SVC(C=self.C, kernel="precomputed", cache_size=1000).fit(self._kernel(x), y)
        return self

    def predict(self, x: Floats) -> NDArray[np.int64]:
        """The class that wins most comparisons of two `(n,)`."""
        return np.concatenate([self.svc_.predict(self._kernel(part)) for part in self._chunks(x)])

    @property
    def parameters(self) -> int:
        """Numbers that a prediction needs: the support vectors and their coefficients."""
        support: Any = self.svc_.support_
        return len(support) * self.x_.shape[1] + self.svc_.dual_coef_.size + self.svc_.intercept_.size

    def _kernel(self, x: Floats) -> Floats:
        return rbf_kernel(x, self.x_, gamma=self.width / x.shape[1])

    @staticmethod
    def _chunks(x: Floats) -> Iterator[Floats]:
        for start in range(0, len(x), CHUNK):
            yield x[start : start + CHUNK]
