"""`CapsuleClassifier`: capsule subspaces as a scikit-learn classifier on feature arrays.

Shapes are written as everywhere: `L` classes, `d` features, `c` capsule dimension; features `(n, d)`, bases
`(L, c, d)`. The geometry is that of `cappronet.projection`; arrays go in and come out as NumPy's. A fitted classifier
holds orthonormal bases in float64, so that a capsule length is one product and a norm.
"""

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from cappronet import projection
from cappronet.extras import require
from cappronet.heads.controls import FIXED_SCALE
from cappronet.probing.closed_form import (
    as_tensor,
    class_subspace,
    extended,
    leading_of_features,
    leading_of_moment,
    lengths_by_bases,
)
from cappronet.probing.subspaces import default_dim

require("sklearn", "sklearn")

from sklearn.utils import compute_class_weight  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data  # noqa: E402

from cappronet.probing.checks import check_parameters, checked_label, class_codes  # noqa: E402
from cappronet.probing.fitted import PRECISIONS, in_single_precision  # noqa: E402
from cappronet.probing.scale import (  # noqa: E402
    Floats,
    Integers,
    features_by_class,
    fitted_origin,
    fitted_scale,
    in_range,
    rms_length,
    rows_by_class,
)
from cappronet.probing.trained import TrainedSubspaces  # noqa: E402

__all__ = ["CapsuleClassifier"]

# The scale of a closed form is fitted to a fifth of the samples, and to about this many at most.
SAMPLES_FOR_SCALE = 10_000
# With fewer samples a class than this, a gradient has nothing to add to the means of the classes.
FEWEST_FOR_GRADIENT = 3


class CapsuleClassifier(TrainedSubspaces):
    """A subspace for each class, fitted by gradient or in closed form.

    A class is scored by its capsule length, the length of the projection of the features onto its subspace; the class
    with the longest projection is predicted. The defaults need no tuning; `python -m experiments probes` compares them
    with tuned rivals on real features. From two samples a class, or from classes of very different sizes, another
    classifier may make fewer errors: `cappronet.probe` compares several on the features themselves.

    Args:
        capsule_dim: c, the dimension of each subspace. `"auto"` chooses it from the numbers of samples, features and
            classes, at most 16. With `solver="svd"` it takes for each class the fewest dimensions that keep `energy`
            of the squared length of its features. No class gets more than d - 1, because a subspace of d dimensions
            contains everything.
        solver: `"gradient"` trains all subspaces together with cross-entropy, from the mean of each class and random
            directions; `"svd"` takes each class's leading directions, in closed form and from its own features alone.
            `"auto"` trains, unless there are fewer than three samples a class.
        center: subtract the mean of all training features first. There is one mean for all classes: with a mean for
            each, a sample would be long, and so likely, for a class whose mean it is far from.
        intercept: append a constant to features whose own mean is small. A subspace contains -x whenever it contains
            x; the constant tells them apart. Where the mean of the features holds a third of their squared length, as
            after ReLU without `center`, nothing is appended. Without it, classes on opposite sides of the origin cannot
            be told apart, and scikit-learn's `check_classifiers_train`, three standardized blobs in two dimensions,
            fails.
        normalize: project x/|x|, so that lengths are the cosines of the angles to the subspaces.
        scale: gradient: what lengths are multiplied by before the softmax, for features of length 1; `"learned"` trains
            it with the subspaces. `"auto"` is 25, except for 20,000 samples or more of which the classes share almost
            everything: where 100 makes clearly fewer errors on held-out samples, it is 100.
        energy: svd: the share of the squared length that `"auto"` keeps.
        epochs: gradient: passes over the features; by default 8, more for few samples and 5 from 20,000 on; with a
            hidden layer at least 20.
        batch_size: gradient: samples in a step; by default 256, or all if there are fewer; 128 up to 2,000 samples.
        lr: gradient: the highest learning rate; by default 0.01, and 0.02 with batches of 128; 0.06 / sqrt(d), and at
            most 0.01, below 50 samples a class; 0.003 with a hidden layer.
        weight_decay: gradient: decoupled weight decay.
        class_weight: how much more an error on each class costs: a dictionary from labels to numbers, or `"balanced"`
            for numbers in inverse proportion to the sizes of the classes. Scores are shifted by the logarithms of
            these, which minimizes the expected cost; the subspaces stay the same.
        hidden_size: gradient: the width of a hidden layer of rectified linear units that is trained below the
            subspaces; None for subspaces of the features themselves.
        dropout: the share of hidden units that is left out of a step.
        early_stopping: gradient: hold out samples, end when the loss on them no longer falls, and take the subspaces
            with the lowest one. `epochs` is then the most that are trained.
        validation_fraction: how much of each class is held out for that, at most half.
        n_iter_no_change: end after so many epochs in which the loss on held-out samples has not fallen by `tol`.
        tol: see above.
        verbose: show the progress of a fit by gradient.
        random_state: gradient: decides the first directions and the order of the samples. A number gives the same
            classifier every time.

    Ctrl-C during the training of a fit ends it with a warning, and the classifier has the subspaces of that moment;
    before the training it leaves the classifier without a fit.

    Attributes:
        classes_: the L labels, sorted.
        bases_: orthonormal bases `(L, c, d)` of the subspaces, `(L, c, d + 1)` with an intercept. Where classes differ
            in dimension, c is the largest, and the last rows of the others are zero.
        capsule_dims_: the dimension of each subspace `(L,)`.
        scale_: probabilities are the softmax of lengths times this, the scale that maximizes the likelihood of held-out
            samples: in closed form every fifth of a class; by gradient, from 20,000 samples on, about one in 50, which
            are not trained on, or those of early stopping. With fewer than 500 of them it is the scale of the training.
        mean_: what is subtracted from features `(d,)`, or None.
        intercept_: the constant that is appended to them, or 0 for none.
        hidden_weight_: of the hidden layer `(hidden_size, d)`, `(hidden_size, d + 1)` with an intercept, or None. The
            subspaces are then those of its outputs, `bases_ (L, c, hidden_size)`.
        hidden_bias_: of the hidden layer `(hidden_size,)`, or None.
        n_iter_: gradient: epochs of the last fit.
        n_features_in_: d.
        feature_names_in_: names of the features, if X had string names.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> model = CapsuleClassifier().fit(x[:1000], y[:1000])
        >>> model.predict(x[1000:1005]), y[1000:1005]
        (array([1, 4, 0, 5, 3]), array([1, 4, 0, 5, 3]))
    """

    def __init__(
        self,
        capsule_dim: int | Literal["auto"] = "auto",
        *,
        solver: Literal["auto", "gradient", "svd"] = "auto",
        center: bool = True,
        intercept: bool = True,
        normalize: bool = True,
        scale: float | Literal["auto", "learned"] = "auto",
        energy: float = 0.95,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        weight_decay: float = 0.0,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        hidden_size: int | None = None,
        dropout: float = 0.5,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        tol: float = 1e-4,
        verbose: bool = False,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.capsule_dim, self.solver, self.scale, self.class_weight = capsule_dim, solver, scale, class_weight
        self.center, self.intercept, self.normalize, self.energy = center, intercept, normalize, energy
        self.epochs, self.batch_size, self.lr, self.weight_decay = epochs, batch_size, lr, weight_decay
        self.hidden_size, self.dropout, self.random_state, self.verbose = hidden_size, dropout, random_state, verbose
        self.early_stopping, self.validation_fraction = early_stopping, validation_fraction
        self.n_iter_no_change, self.tol = n_iter_no_change, tol

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit a subspace for each class in `y (n,)` on features `X (n, d)`; a weight counts as copies of a sample."""
        check_parameters(self)
        x, labels = validate_data(self, in_single_precision(X), y, dtype=PRECISIONS)
        check_classification_targets(labels)
        weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        if not weights.all():
            x, labels, weights = x[weights > 0], labels[weights > 0], weights[weights > 0]
        x = in_range(x)
        self._forget()
        self.classes_, codes = np.unique(labels, return_inverse=True)
        self.mean_, self.intercept_ = fitted_origin(x, weights, self.center, self.intercept, self.normalize)
        costs = compute_class_weight(self.class_weight, classes=self.classes_, y=labels)
        few = weights.sum() < FEWEST_FOR_GRADIENT * len(self.classes_)
        hidden = self.hidden_size is not None
        self._by_gradient = self.solver == "gradient" or (self.solver == "auto" and (hidden or not few))
        self._dim = self._dimension(float(weights.sum()))
        if self._by_gradient:
            self._fit_by_gradient(self._prepared(x), codes, weights)
        else:
            self._fit_in_closed_form(x, codes, weights)
        self._offsets: Floats = np.log(np.maximum(costs, np.finfo(float).tiny)) / self.scale_
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Fit to more samples; the first call needs all `classes`.

        svd: the second moments of the classes `(L, d, d)` are stored and added to, so that the subspaces are those of
        one fit to all samples. `fit` does not store them; after it, the energy of each class along its own basis
        stands in. `scale_` is fitted to the latest samples, in the subspaces from before they were added.
        gradient: one pass over these samples from the present subspaces. A subspace that lacks dimensions is first
        extended by the leading directions of what it misses of its class.
        `mean_` and `intercept_` stay those of the first samples.
        """
        check_parameters(self)
        first = not hasattr(self, "bases_")
        x, labels = validate_data(self, X, y, dtype=PRECISIONS, reset=first)
        x = in_range(x)
        check_classification_targets(labels)
        if first and classes is None:
            raise ValueError("the first call of partial_fit needs all classes: partial_fit(X, y, classes=...)")
        if first:
            self.classes_ = np.unique(np.asarray(classes))
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes must stay {list(self.classes_)}: add_class and remove_class change them")
        codes = class_codes(labels, self.classes_)
        if first:
            self._start(x)
        features = self._features(x)
        if self.solver == "svd":
            self._add_to_mean(features, np.ones(len(codes)))
            self._add_to_moments(features, codes)
        else:
            bases = self._ragged()
            for code, rows in features_by_class(features, codes):
                bases[code] = extended(bases[code], rows, self._dim if self._dim != "auto" else self.bases_.shape[1])
            self._train_once(bases, self._prepared(x), codes)
        return self

    def _forget(self) -> None:
        """Forget an earlier fit, of which nothing may remain where this one is interrupted or has no hidden layer."""
        layer, sums = ("hidden_weight_", "hidden_bias_"), ("_feature_mean", "_feature_weight")
        for name in ("bases_", *layer, "n_iter_", "_calibration", *sums):
            self.__dict__.pop(name, None)
        self._moments: Floats | None = None
        self._energies: list[Floats] | None = None
        self._trained: tuple[Floats, float] | None = None

    def _start(self, x: Floats) -> None:
        """Start with subspaces of dimension 0."""
        weights = np.ones(len(x))
        self.mean_, self.intercept_ = fitted_origin(x, weights, self.center, self.intercept, self.normalize)
        prepared, L = self._prepared(x), len(self.classes_)
        d = prepared.shape[1]
        self._forget()
        if self.hidden_size is not None:
            self._start_hidden_layer(prepared, weights, self._seed())
            d = self.hidden_size
        self._by_gradient = self.solver != "svd"
        self._dim = self._dimension(len(x))
        self._set_bases([np.zeros((0, d))] * L)
        self._offsets = np.zeros(L)
        self._moments = None if self._by_gradient else np.zeros((L, d, d))
        scale = FIXED_SCALE if isinstance(self.scale, str) else self.scale
        self.scale_ = scale / (rms_length(prepared) if self.hidden_size is None else 1)

    def add_class(self, X: ArrayLike, label: Any) -> Self:
        """Add a class in closed form, by its features `X (n, d)`; the other subspaces stay as they are.

        In closed form its subspace is that of its leading directions. Subspaces that were trained by gradient avoid the
        directions that classes share, and next to them such a subspace would attract the samples of every class. The
        new one therefore avoids the directions of the samples of the last fit, just so far that features of the class
        are as long in it as those of other classes are in theirs.
        """
        x = self._validated(X)
        label = checked_label(label, self.classes_)
        at = int(np.searchsorted(self.classes_, label[0]))
        features, bases = self._features(x), self._ragged()
        if self._feature_mean is not None:
            self._add_to_mean(features, np.ones(len(x)))
        energies, basis = self._leading(features)
        if self._trained is not None and len(basis):
            moment, length = self._trained
            basis = projection.contrasted_directions(as_tensor(features), len(basis), as_tensor(moment), length).numpy()
        self._set_bases([*bases[:at], basis, *bases[at:]])
        if self._energies is not None:
            self._energies.insert(at, energies)
        if self._moments is not None:
            self._moments = np.insert(self._moments, at, features.T @ features, axis=0)
        self.classes_ = np.concatenate([self.classes_[:at], label, self.classes_[at:]])
        self._offsets = np.insert(self._offsets, at, 0.0)
        return self

    def remove_class(self, label: Any) -> Self:
        """Forget a class; the other subspaces stay as they are."""
        check_is_fitted(self)
        at = np.flatnonzero(self.classes_ == label)
        if len(at) == 0 or len(self.classes_) == 1:
            raise ValueError(f"expected one of at least two classes to remove, got {label!r} of {list(self.classes_)}")
        self.classes_, self._offsets = np.delete(self.classes_, at), np.delete(self._offsets, at)
        self._set_bases([basis for i, basis in enumerate(self._ragged()) if i != at[0]])
        if self._energies is not None:
            del self._energies[at[0]]
        if self._moments is not None:
            self._moments = np.delete(self._moments, at, axis=0)
        return self

    def _dimension(self, samples: float) -> int | Literal["auto"]:
        """c, or `"auto"` where every class has its own."""
        if self.capsule_dim != "auto" or self.solver == "svd":
            return self.capsule_dim
        return default_dim(samples, self.hidden_size or self.n_features_in_, len(self.classes_))

    def _leading(self, features: Floats) -> tuple[Floats, Floats]:
        return leading_of_features(features, self._dim, self.energy)

    def _leading_of_moment(self, moment: Floats) -> tuple[Floats, Floats]:
        return leading_of_moment(moment, self._dim, self.energy)

    def _fit_in_closed_form(self, X: Floats, codes: Integers, weights: Floats) -> None:
        """Set the subspaces, and the scale that suits samples which the subspaces were not fitted to."""
        step = max(5, len(X) // SAMPLES_FOR_SCALE)
        subspaces, held_out = [], []
        for _, rows in rows_by_class(codes):
            features = self._features(X[rows])
            self._add_to_mean(features, weights[rows])
            subspaces.append(class_subspace(features, weights[rows], self._dim, self.energy, step))
            held_out.append(features[subspaces[-1].held_out > 0])
        self.scale_ = FIXED_SCALE / (1 if self.normalize else rms_length(X, weights))
        if any(map(len, held_out)):
            self._set_bases([subspace.basis_of_rest for subspace in subspaces])
            lengths = lengths_by_bases(np.concatenate(held_out), self.bases_)
            held_codes = np.repeat(np.arange(len(held_out)), list(map(len, held_out)))
            held_weights = np.concatenate([s.held_out[s.held_out > 0] for s in subspaces])
            self.scale_ = fitted_scale(lengths, held_codes, held_weights)
        self._energies = [subspace.energies for subspace in subspaces]
        self._set_bases([subspace.basis for subspace in subspaces])

    def _add_to_moments(self, features: Floats, codes: Integers) -> None:
        """Add to the second moments, and update the subspaces of the classes that changed."""
        bases = self._ragged()
        if self._moments is None:
            if self._energies is None:
                raise ValueError("subspaces fitted by gradient have no moments to add to: fit by svd first")
            self._moments = np.stack([(b.T * e) @ b for b, e in zip(bases, self._energies, strict=True)])
            self._energies = None
        known = self.capsule_dims_[codes] > 0
        if known.any():
            self.scale_ = fitted_scale(lengths_by_bases(features[known], self.bases_), codes[known])
        for code, rows in features_by_class(features.astype(np.float64), codes):
            self._moments[code] += rows.T @ rows
            bases[code] = self._leading_of_moment(self._moments[code])[1]
        self._set_bases(bases)
