"""What a fitted classifier of subspaces does with features: lengths, probabilities, coordinates, outlier scores."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import gen_batches
from sklearn.utils.validation import check_is_fitted, validate_data

from cappronet import projection
from cappronet.novelty import boundary_score
from cappronet.probing.closed_form import as_tensor, lengths_by_bases
from cappronet.probing.scale import Floats, in_range, unit_rows

__all__ = ["PRECISIONS", "FittedSubspaces", "in_single_precision"]

PRECISIONS = [np.float64, np.float32]
# Coordinates are computed for so many samples at a time that these are at most this many numbers.
BATCH_NUMBERS = 4_000_000


class FittedSubspaces(TransformerMixin, ClassifierMixin, BaseEstimator):
    """Predictions from a subspace for each class; `CapsuleClassifier` fits them."""

    classes_: NDArray[Any]
    bases_: Floats
    capsule_dims_: NDArray[np.intp]
    scale_: float
    mean_: Floats | None
    intercept_: float
    normalize: bool
    # Classifiers that were pickled by earlier versions have none of these.
    hidden_weight_: Floats | None = None
    hidden_bias_: Floats | None = None
    _offsets: Floats
    _feature_mean: Floats | None = None
    _feature_weight: float = 0.0
    # By how much the scale of the probabilities differs from that of the training.
    _calibration: float = 1.0

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the longest capsule `(n,)`, after the shift by `class_weight`."""
        longest = self._lengths(X).argmax(axis=1)
        return self.classes_[longest]

    def decision_function(self, X: ArrayLike) -> Floats:
        """Capsule lengths `(n, L)`; for two classes, the second length minus the first `(n,)`."""
        lengths = self._lengths(X)
        return lengths if lengths.shape[1] > 2 else lengths[:, -1] - (lengths[:, 0] if lengths.shape[1] == 2 else 0)

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Softmax of the lengths times `scale_`: `(n, L)`."""
        lengths = self._lengths(X)
        return softmax(self.scale_ * lengths, axis=1)

    def transform(self, X: ArrayLike) -> Floats:
        """Coordinates of the samples in all subspaces, class after class: `(n, sum of capsule_dims_)`."""
        X = self._validated(X)
        basis = np.concatenate(self._ragged())
        return np.concatenate([x @ basis.T for x in self._batches(X)])

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:  # noqa: ARG002 (scikit-learn)
        """Names of the coordinates: the label of the class, and a number."""
        check_is_fitted(self)
        pairs = zip(self.classes_, self.capsule_dims_, strict=True)
        return np.array([f"{label}_{j}" for label, dim in pairs for j in range(dim)], dtype=object)

    def outlier_score(self, X: ArrayLike) -> Floats:
        """How unusual each sample is `(n,)`: higher for out-of-distribution inputs.

        This is `cappronet.novelty.boundary_score`, fDBD for capsules: minus the mean distance to the boundaries between
        the nearest subspace and each of the others, relative to the distance from the mean training sample. It is at
        most 0, where all classes are equally near. With a single class, and for classifiers of earlier versions, which
        have no such mean, it is `residual_score`.
        """
        check_is_fitted(self)
        if len(self.classes_) == 1 or self._feature_mean is None:
            return self.residual_score(X)
        X, bases, mean = self._validated(X), as_tensor(self.bases_), as_tensor(self._feature_mean)
        scores = [boundary_score(bases, as_tensor(x), mean).numpy() for x in self._batches(X)]
        return np.concatenate([np.zeros(0), *scores])

    def residual_score(self, X: ArrayLike) -> Floats:
        """The sine of the angle between each sample and the nearest subspace `(n,)`: higher for outliers.

        This is the length of the part that the nearest subspace does not contain, relative to that of the sample: 0
        inside a subspace, 1 orthogonal to all of them. A sample of zeros scores 1.
        """
        X = self._validated(X)
        scores = [np.ones(0)]
        for x in self._batches(X):
            longest = as_tensor(lengths_by_bases(x, self.bases_)).amax(dim=1)
            scores.append(projection.relative_residuals(longest, as_tensor(x).norm(dim=1)).numpy())
        return np.concatenate(scores)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle; parameters that the version which wrote it did not have get their defaults."""
        super().__setstate__(type(self)().get_params() | state)

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there are subspaces: a fit that was interrupted before its first step leaves none."""
        return hasattr(self, "bases_")

    def _validated(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        return in_range(validate_data(self, in_single_precision(X), dtype=PRECISIONS, reset=False))

    def _features(self, X: Floats) -> Floats:
        """What is projected: prepared features or, where there is one, the outputs of the hidden layer for them."""
        return self._hidden(self._prepared(X))

    def _hidden(self, prepared: Floats) -> Floats:
        if self.hidden_weight_ is None or self.hidden_bias_ is None:
            return prepared
        weight, bias = (part.astype(prepared.dtype, copy=False) for part in (self.hidden_weight_, self.hidden_bias_))
        return unit_rows(np.maximum(prepared @ weight.T + bias, 0))

    def _prepared(self, X: Floats) -> Floats:
        """X, centred, with the constant appended and of unit length, as the parameters say."""
        n, d = X.shape
        features = np.empty((n, d + (self.intercept_ > 0)), X.dtype)
        np.subtract(X, 0 if self.mean_ is None else self.mean_, out=features[:, :d], casting="same_kind")
        features[:, d:] = self.intercept_
        return unit_rows(features) if self.normalize else features

    def _batches(self, X: Floats) -> Iterator[Floats]:
        """Features in float64, a batch at a time."""
        L, c, d = self.bases_.shape
        for rows in gen_batches(len(X), max(1, BATCH_NUMBERS // max(L * c, d))):
            yield self._features(X[rows].astype(np.float64))

    def _lengths(self, X: ArrayLike) -> Floats:
        """Capsule lengths, shifted by the logarithms of the class weights."""
        batches = self._batches(self._validated(X))
        return np.concatenate([lengths_by_bases(x, self.bases_) + self._offsets for x in batches])

    def _add_to_mean(self, features: Floats, weights: Floats) -> None:
        """Count samples in the mean of the training features."""
        total = self._feature_weight + float(weights.sum())
        mean = (weights.astype(features.dtype) @ features).astype(np.float64) / total
        if self._feature_mean is not None:
            mean += self._feature_mean * (self._feature_weight / total)
        self._feature_mean, self._feature_weight = mean, total

    def _set_bases(self, bases: list[Floats]) -> None:
        """Store bases of different dimensions as one array, padded with rows of zeros."""
        self.capsule_dims_ = np.array([len(basis) for basis in bases])
        self.bases_ = np.zeros((len(bases), max(1, *self.capsule_dims_), bases[0].shape[1]))
        for padded, basis in zip(self.bases_, bases, strict=True):
            padded[: len(basis)] = basis

    def _ragged(self) -> list[Floats]:
        return [basis[:dim] for basis, dim in zip(self.bases_, self.capsule_dims_, strict=True)]


def in_single_precision(X: Any) -> Any:
    """Features of half precision in single precision, which scikit-learn would turn into double; others as they are."""
    return X.astype(np.float32) if getattr(X, "dtype", None) == np.float16 else X
