"""`CapsuleClassifier`: capsule subspaces as a scikit-learn classifier on feature arrays.

Names as everywhere: `L` classes, `d` features, `c` capsule dimension; features `(n, d)`, bases `(L, c, d)`. What a fit
leaves are orthonormal bases in float64, and all that is asked of them later is one product and a norm in NumPy.
PyTorch is imported only to fit by gradient.
"""

from collections.abc import Iterator
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cappronet.extras import require

require("sklearn", "sklearn")

from scipy.special import softmax  # noqa: E402
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin  # noqa: E402
from sklearn.utils import check_random_state, gen_batches  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

from cappronet.subspaces import (  # noqa: E402
    Floats,
    Integers,
    capsule_lengths,
    contrasted_directions,
    extended,
    features_by_class,
    fitted_scale,
    leading_directions,
    leading_directions_of_moment,
    orthonormal,
    rms_length,
    unit,
)

__all__ = ["CapsuleClassifier"]

PRECISIONS = [np.float64, np.float32]
# Where the learned scale of unit features starts, as in `cappronet.heads`.
SCALE = 16.0
# The scale of a closed form is found with a fifth of the samples, and with about so many at the most.
SAMPLES_FOR_SCALE = 10_000
# Coordinates are computed for as many samples at a time as give this many numbers.
NUMBERS = 4_000_000


class CapsuleClassifier(TransformerMixin, ClassifierMixin, BaseEstimator):
    """A subspace for each class, fitted by gradient or in closed form; the longest projection wins.

    A class is scored by its capsule length, the length of the projection of the features onto its subspace.

    Args:
        capsule_dim: c, the dimension of each subspace, or `"auto"`: for each class the fewest dimensions that keep
            `energy` of the squared length of its features. A class gets fewer where its features span fewer, and none
            gets more than d - 1, because a subspace of d dimensions contains everything.
        solver: `"gradient"` trains all subspaces against each other with cross-entropy, from where `"svd"` ends:
            each class's leading directions, in closed form and from its own features alone.
        center: subtract the mean of all training features first. One mean for all classes: a mean for each would
            make a sample long, and so likely, for a class whose mean it is far from.
        intercept: append a constant to features that have little mean of their own. A subspace contains x and -x alike;
            with a constant beside them the two differ, and centred or standardized features do as well as others.
            Where the mean of the features holds half of their squared length, as after ReLU, nothing is appended.
        normalize: project x/|x|, so that lengths are the cosines of the angles to the subspaces.
        energy: what share of the squared length `"auto"` keeps.
        epochs: gradient: passes over the features.
        batch_size: gradient: samples in a step.
        lr: gradient: the highest learning rate.
        weight_decay: gradient: decoupled weight decay.
        random_state: gradient: the order of the samples. A number gives the same classifier every time.

    Attributes:
        classes_: the L labels, sorted.
        bases_: orthonormal bases `(L, c, d)` of the subspaces, `(L, c, d + 1)` with an intercept. Where classes differ
            in dimension, c is the largest, and the last rows of the others are zero.
        capsule_dims_: the dimension of each subspace `(L,)`.
        scale_: probabilities are the softmax of lengths times this. It is learned with the subspaces by gradient. In
            closed form it is the one under which samples held out (every fifth of a class) are most likely.
        mean_: what is subtracted from features `(d,)`, or None.
        intercept_: the constant that is appended to them, or 0 for none.
        n_features_in_: d.
        feature_names_in_: names of the features, where they were given with string names.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> model = CapsuleClassifier(8, solver="svd").fit(x[:1000], y[:1000])
        >>> model.predict(x[1000:1005]), y[1000:1005]
        (array([1, 4, 0, 5, 3]), array([1, 4, 0, 5, 3]))
    """

    def __init__(
        self,
        capsule_dim: int | Literal["auto"] = 4,
        *,
        solver: Literal["gradient", "svd"] = "gradient",
        center: bool = False,
        intercept: bool = True,
        normalize: bool = True,
        energy: float = 0.95,
        epochs: int = 50,
        batch_size: int = 256,
        lr: float = 0.01,
        weight_decay: float = 0.0,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.capsule_dim, self.solver = capsule_dim, solver
        self.center, self.intercept, self.normalize, self.energy = center, intercept, normalize, energy
        self.epochs, self.batch_size, self.lr, self.weight_decay = epochs, batch_size, lr, weight_decay
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit a subspace for each class in `y (n,)` on features `X (n, d)`."""
        self._check_parameters()
        x, labels = validate_data(self, X, y, dtype=PRECISIONS)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        self._set_origin(x)
        self._moments: Floats | None = None
        self._energies: list[Floats] | None = None
        self._trained: tuple[Floats, float] | None = None
        if self.solver == "gradient":
            features = self._features(x)
            self._set_bases([self._leading(rows)[1] for _, rows in features_by_class(features, codes)])
            self.scale_ = SCALE / rms_length(features)
            self._descend(features, codes, self.epochs)
        else:
            self._fit_in_closed_form(x, codes)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Take in more samples; the first call needs all `classes`.

        svd: the classes' second moments `(L, d, d)` are kept and added to, so that the subspaces are those of one fit
        to all samples. After `fit`, which does not keep them, what it found of them stands in: the energy of each
        class within its subspace. `scale_` suits the latest samples, as they were before they were taken in.
        gradient: one pass over these samples from the present subspaces; one that lacks dimensions first takes up
        the leading directions of what it does not contain of its class.
        `mean_` and `intercept_` stay those of the first samples.
        """
        self._check_parameters()
        first = not hasattr(self, "bases_")
        x, labels = validate_data(self, X, y, dtype=PRECISIONS, reset=first)
        check_classification_targets(labels)
        if first and classes is None:
            raise ValueError("the first call of partial_fit needs all classes: partial_fit(X, y, classes=...)")
        if first:
            self.classes_ = np.unique(np.asarray(classes))
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes were {list(self.classes_)} at first: add_class and remove_class change them")
        codes = self._codes(labels)
        if first:
            self._start(x)
        features = self._features(x)
        if self.solver == "svd":
            self._take_in(features, codes)
        else:
            bases = self._ragged()
            for code, rows in features_by_class(features, codes):
                dim = len(self._leading(rows)[1]) if self.capsule_dim == "auto" else self.capsule_dim
                bases[code] = extended(bases[code], rows, dim)
            self._set_bases(bases)
            self._descend(features, codes, 1)
        return self

    def _start(self, x: Floats) -> None:
        """Subspaces of dimension 0, to be filled."""
        self._set_origin(x)
        features, L = self._features(x), len(self.classes_)
        d = features.shape[1]
        self._set_bases([np.zeros((0, d))] * L)
        self._moments = np.zeros((L, d, d)) if self.solver == "svd" else None
        self._energies = self._trained = None
        self.scale_ = SCALE / rms_length(features)

    def add_class(self, X: ArrayLike, label: Any) -> Self:
        """Add a class in closed form, by its features `X (n, d)`; the other subspaces stay as they are.

        Its subspace is that of its leading directions. Beside subspaces that were trained, and so avoid what classes
        share, it would draw all samples to itself; there the subspace is one that avoids the directions of the samples
        of the last fit, until features of the class are as long in it as those of other classes are in theirs.
        """
        x = self._validated(X)
        label = np.asarray([label])
        if (label.dtype.kind in "US") != (self.classes_.dtype.kind in "US") and self.classes_.dtype.kind != "O":
            raise ValueError(
                f"the classes are {list(self.classes_)}; a new one must be of their type, got {label[0]!r}"
            )
        if label[0] in self.classes_:
            raise ValueError(f"there is a class {label[0]!r} already: remove_class it first, or give another label")
        at = int(np.searchsorted(self.classes_, label[0]))
        features, bases = self._features(x), self._ragged()
        energies, basis = self._leading(features)
        if self._trained is not None:
            basis = contrasted_directions(features, len(basis), *self._trained)
        self._set_bases([*bases[:at], basis, *bases[at:]])
        if self._energies is not None:
            self._energies.insert(at, energies)
        if self._moments is not None:
            self._moments = np.insert(self._moments, at, features.T @ features, axis=0)
        self.classes_ = np.concatenate([self.classes_[:at], label, self.classes_[at:]])
        return self

    def remove_class(self, label: Any) -> Self:
        """Forget a class; the other subspaces stay as they are."""
        check_is_fitted(self)
        at = np.flatnonzero(self.classes_ == label)
        if len(at) == 0 or len(self.classes_) == 1:
            raise ValueError(f"one of at least two classes can be removed; got {label!r} of {list(self.classes_)}")
        self.classes_ = np.delete(self.classes_, at)
        self._set_bases([basis for i, basis in enumerate(self._ragged()) if i != at[0]])
        if self._energies is not None:
            del self._energies[at[0]]
        if self._moments is not None:
            self._moments = np.delete(self._moments, at, axis=0)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the longest capsule `(n,)`."""
        longest = self._lengths(X).argmax(axis=1)
        return self.classes_[longest]

    def decision_function(self, X: ArrayLike) -> Floats:
        """Capsule lengths `(n, L)`; of two classes, how much longer the second is `(n,)`."""
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
        """How far a sample lies outside all subspaces: the sine of its angle to the nearest one `(n,)`.

        That is the length of what the nearest subspace does not contain, relative to the sample's own: from 0 inside a
        subspace to 1 at a right angle to all of them. A sample of zeros counts as outside.
        """
        X = self._validated(X)
        scores = [np.ones(0)]
        for x in self._batches(X):
            size = np.sqrt(np.einsum("nd,nd->n", x, x))
            cosine = capsule_lengths(x, self.bases_).max(axis=1) / np.where(size > 0, size, 1)
            scores.append(np.sqrt(np.clip(1 - cosine**2, 0, 1)))
        return np.concatenate(scores)

    def _check_parameters(self) -> None:
        c = self.capsule_dim
        if c != "auto" and not (isinstance(c, int | np.integer) and not isinstance(c, bool) and c >= 1):
            raise ValueError(f"capsule_dim must be a whole number of at least 1 or 'auto', got {c!r}")
        if self.solver not in ("gradient", "svd"):
            raise ValueError(f"solver must be 'gradient' or 'svd', got {self.solver!r}")
        if not 0 < self.energy <= 1:
            raise ValueError(f"energy must be above 0 and at most 1, got {self.energy!r}")

    def _validated(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        return validate_data(self, X, dtype=PRECISIONS, reset=False)

    def _codes(self, y: NDArray[Any]) -> Integers:
        codes = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = y[self.classes_[codes] != y]
        if len(unknown):
            raise ValueError(f"y has the class {unknown[0]!r}, which is not among {list(self.classes_)}: use add_class")
        return codes

    def _set_origin(self, X: Floats) -> None:
        """Choose the mean to subtract, and a constant that lets what is then constant have half of E|x|^2.

        With it, `|Ex|^2 + a^2 = (E|x|^2 + a^2) / 2`, hence `a^2 = E|x|^2 - 2 |Ex|^2`; none where that is negative.
        """
        mean = X.mean(axis=0, dtype=np.float64)
        self.mean_ = mean if self.center else None
        with np.errstate(over="ignore", invalid="ignore"):  # features too large for that get none
            free = rms_length(X) ** 2 - (1 if self.center else 2) * mean @ mean
        self.intercept_ = float(np.sqrt(free)) if self.intercept and 0 < free < np.inf else 0.0

    def _features(self, X: Floats) -> Floats:
        """What is projected: X, centred, with a constant beside it and made of unit length, if so wished."""
        if self.mean_ is not None:
            X = X - self.mean_
        if self.intercept_ > 0:
            X = np.hstack([X, np.full((len(X), 1), self.intercept_, X.dtype)])
        return unit(X) if self.normalize else X

    def _batches(self, X: Floats) -> Iterator[Floats]:
        """Features in float64, some at a time."""
        L, c, d = self.bases_.shape
        for rows in gen_batches(len(X), max(1, NUMBERS // max(L * c, d))):
            yield self._features(X[rows].astype(np.float64))

    def _lengths(self, X: ArrayLike) -> Floats:
        return np.concatenate([capsule_lengths(x, self.bases_) for x in self._batches(self._validated(X))])

    def _set_bases(self, bases: list[Floats]) -> None:
        """Keep bases of any number of rows as one array, with rows of zeros below the shorter ones."""
        self.capsule_dims_ = np.array([len(basis) for basis in bases])
        self.bases_ = np.zeros((len(bases), max(1, *self.capsule_dims_), bases[0].shape[1]))
        for place, basis in zip(self.bases_, bases, strict=True):
            place[: len(basis)] = basis

    def _ragged(self) -> list[Floats]:
        return [basis[:dim] for basis, dim in zip(self.bases_, self.capsule_dims_, strict=True)]

    def _leading(self, rows: Floats) -> tuple[Floats, Floats]:
        return leading_directions(rows, self.capsule_dim, self.energy)

    def _leading_of_moment(self, moment: Floats) -> tuple[Floats, Floats]:
        return leading_directions_of_moment(moment, self.capsule_dim, self.energy)

    def _fit_in_closed_form(self, X: Floats, codes: Integers) -> None:
        """Set the subspaces, and the scale that suits samples which the subspaces did not see."""
        step = max(5, len(X) // SAMPLES_FOR_SCALE)
        found, of_the_rest, held_out = [], [], []
        for _, rows in features_by_class(X, codes):
            features = self._features(rows)
            held_out.append(features[1::step])
            if len(features) >= 2 * features.shape[1]:
                moment = features.T @ features
                found.append(self._leading_of_moment(moment))
                of_the_rest.append(self._leading_of_moment(moment - held_out[-1].T @ held_out[-1])[1])
            else:
                found.append(self._leading(features))
                of_the_rest.append(self._leading(np.delete(features, np.s_[1::step], axis=0))[1])
        self.scale_ = 1.0
        if any(map(len, held_out)):
            self._set_bases(of_the_rest)
            lengths = capsule_lengths(np.concatenate(held_out), self.bases_)
            self.scale_ = fitted_scale(lengths, np.repeat(np.arange(len(found)), list(map(len, held_out))))
        self._energies = [energies for energies, _ in found]
        self._set_bases([basis for _, basis in found])

    def _take_in(self, features: Floats, codes: Integers) -> None:
        """Add to the second moments, and find the subspaces of the classes that changed."""
        bases = self._ragged()
        if self._moments is None:
            if self._energies is None:
                raise ValueError(
                    "these subspaces were fitted by gradient and have no moments to add to: fit by svd first"
                )
            self._moments = np.stack([(b.T * e) @ b for b, e in zip(bases, self._energies, strict=True)])
            self._energies = None
        known = self.capsule_dims_[codes] > 0
        if known.any():
            self.scale_ = fitted_scale(capsule_lengths(features[known], self.bases_), codes[known])
        for code, rows in features_by_class(features.astype(np.float64), codes):
            self._moments[code] += rows.T @ rows
            bases[code] = self._leading_of_moment(self._moments[code])[1]
        self._set_bases(bases)

    def _descend(self, features: Floats, codes: Integers, epochs: int) -> None:
        """Train the subspaces and the scale together from where they are.

        A row of zeros in a basis has a gradient of zero, so each class keeps its dimension.
        """
        import torch

        from cappronet.fitting import fit_head
        from cappronet.heads import CapsuleProjection

        L, c, d = self.bases_.shape
        size = rms_length(features)
        head = torch.nn.utils.skip_init(CapsuleProjection, d, L, c, scale="learned")
        with torch.no_grad():
            head.weight.copy_(torch.from_numpy(self.bases_))
            head.scale.fill_(self.scale_ * size)
        fit_head(
            head,
            torch.from_numpy((features / size).astype(np.float32)),
            torch.from_numpy(codes),
            epochs=epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            weight_decay=self.weight_decay,
            seed=check_random_state(self.random_state).randint(2**31 - 1),
        )
        weight = head.weight.detach().double().numpy()
        self._set_bases([orthonormal(w[:dim]) for w, dim in zip(weight, self.capsule_dims_, strict=True)])
        self.scale_ = head.scale.item() / size
        some = slice(None, None, max(1, len(features) // SAMPLES_FOR_SCALE))
        lengths = capsule_lengths(features[some], self.bases_)
        own_length = np.take_along_axis(lengths, codes[some, None], axis=1).mean()
        self._trained = features.T @ features / len(features), float(own_length)
