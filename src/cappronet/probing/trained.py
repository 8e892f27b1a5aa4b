"""A `CapsuleClassifier` fitted by gradient: where it starts, held-out samples, the hidden layer, interrupted fits."""

import math
import warnings
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from cappronet.heads.controls import FIXED_SCALE
from cappronet.probing.closed_form import held_out_weights, lengths_by_bases, orthonormal
from cappronet.probing.descent import (
    HiddenSubspaces,
    Patience,
    Samples,
    Schedule,
    Subspaces,
    descend,
    first_hidden_layer,
    hidden_features,
)
from cappronet.probing.fitted import FittedSubspaces
from cappronet.probing.scale import Floats, Integers, fitted_scale, rms_length, rows_by_class
from cappronet.probing.subspaces import MANY_SAMPLES, default_schedule, first_bases, validated_scale
from cappronet.reporting import progress_for

__all__ = ["TrainedSubspaces"]

# From MANY_SAMPLES on, one in 50 is held out, about 2,000 at most, for the scale of the probabilities; it takes 500.
CALIBRATION_STEP, MOST_FOR_CALIBRATION, FEWEST_FOR_CALIBRATION = 50, 2_000, 500
# New classes are contrasted with the moment of about this many samples, and with the lengths of about so many.
SAMPLES_FOR_MOMENT, SAMPLES_FOR_LENGTH = 10_000, 1_000


class TrainedSubspaces(FittedSubspaces):
    """Subspaces trained with cross-entropy, and a hidden layer with them where the parameters ask for one."""

    scale: float | Literal["auto", "learned"]
    epochs: int | None
    batch_size: int | None
    lr: float | None
    weight_decay: float
    hidden_size: int | None
    dropout: float
    early_stopping: bool
    validation_fraction: float
    n_iter_no_change: int
    tol: float
    verbose: bool
    random_state: int | np.random.RandomState | None
    _dim: int | Literal["auto"]
    _trained: tuple[Floats, float] | None

    def _fit_by_gradient(self, prepared: Floats, codes: Integers, weights: Floats) -> None:
        """Choose the scale, start from the means of the classes, train, and calibrate the probabilities."""
        held_out = self._held_out(prepared, codes, weights)
        schedule, seed = self._schedule((weights - held_out)[weights > held_out]), self._seed()
        factor = self._factor(prepared, weights)
        dtype = _precision(held_out < weights, schedule)
        samples, others = _samples(factor, prepared, codes, weights - held_out, dtype), None
        if self.early_stopping and held_out.any():
            samples, others = samples.weighted(), _samples(factor, prepared, codes, held_out, dtype).weighted()
        x, L = samples.x, len(self.classes_)
        if self.hidden_size is not None:
            self._start_hidden_layer(prepared, weights, seed)
            x = hidden_features(x, *self._layer(factor, x.dtype))
        c = min(int(self._dim), max(1, x.shape[1] - 1))
        scale = FIXED_SCALE if isinstance(self.scale, str) else self.scale
        if self.scale == "auto" and self.hidden_size is None:
            scale = validated_scale(samples, L, c, seed)
        bases = list(first_bases(x, samples.y, samples.weights, L, c, seed).double().numpy())
        self._train(bases, samples, factor, scale, schedule, seed, others)
        features = self._hidden(prepared)
        self._calibrate(features, codes, held_out)
        self._note(features, codes, weights)

    def _held_out(self, prepared: Floats, codes: Integers, weights: Floats) -> Floats:
        """How much of the weight of each sample is not trained on: for early stopping or, of many, for calibration."""
        held_out, smallest = np.zeros_like(weights), 0.0
        if self.early_stopping:
            step = 1 / self.validation_fraction
        elif len(codes) >= MANY_SAMPLES:
            step = smallest = max(CALIBRATION_STEP, len(codes) / MOST_FOR_CALIBRATION)
        else:
            return held_out
        for _, rows in rows_by_class(codes):
            if weights[rows].sum() >= smallest:
                held_out[rows] = held_out_weights(prepared[rows], weights[rows], step)
        return held_out

    def _calibrate(self, features: Floats, codes: Integers, held_out: Floats) -> None:
        """Fit the scale of the probabilities to the samples that were held out, if there are enough of them."""
        rows = held_out > 0
        if held_out.sum() >= FEWEST_FOR_CALIBRATION:
            lengths = lengths_by_bases(features[rows], self.bases_)
            self._calibration = fitted_scale(lengths, codes[rows], held_out[rows]) / self.scale_
            self.scale_ *= self._calibration

    def _train_once(self, bases: list[Floats], prepared: Floats, codes: Integers) -> None:
        """One pass over samples, from these bases and the present scale and hidden layer."""
        weights = np.ones(len(codes))
        schedule, factor = self._schedule(weights)._replace(epochs=1), self._factor(prepared, weights)
        samples = _samples(factor, prepared, codes, weights, _precision(weights > 0, schedule))
        scale = self.scale_ / self._calibration / (factor if self.hidden_size is None else 1)
        self._train(bases, samples, factor, scale, schedule, self._seed())
        self._note(self._hidden(prepared), codes, weights)

    def _train(
        self,
        bases: list[Floats],
        samples: Samples,
        factor: float,
        scale: float,
        schedule: Schedule,
        seed: int,
        held_out: Samples | None = None,
    ) -> None:
        """Train from these bases on; an interrupt from the keyboard leaves the subspaces of that moment."""
        self._set_bases(bases)
        model = self._model(samples.x.dtype, factor, scale, seed)
        if isinstance(model, HiddenSubspaces):
            model.shared_mask = len(samples.x) <= schedule.batch_size
        patience = None if held_out is None else Patience(held_out, self.n_iter_no_change, self.tol)
        options: dict[str, Any] = {"weight_decay": self.weight_decay, "seed": seed, "patience": patience}
        with progress_for(None, quiet=not self.verbose, log=True) as report:
            try:
                descend(model, samples, schedule, report=report, **options)
            except KeyboardInterrupt:
                warnings.warn(
                    f"the fit was interrupted after {model.epochs} of {schedule.epochs} epochs: the classifier has the "
                    "subspaces of that moment and can be used; fit again for better ones",
                    stacklevel=5,
                )
        self.n_iter_ = model.epochs
        self._set_bases(orthonormal(model.bases.detach().double(), self.capsule_dims_))
        self.scale_ = self._calibration * (model.scale.item() if model.learned else scale)
        if isinstance(model, HiddenSubspaces):
            self.hidden_weight_ = factor * model.weight.detach().double().numpy()
            self.hidden_bias_ = model.bias.detach().double().numpy()
        else:
            self.scale_ *= factor

    def _model(self, dtype: torch.dtype, factor: float, scale: float, seed: int) -> Subspaces:
        bases, learned = torch.from_numpy(self.bases_).to(dtype), self.scale == "learned"
        if self.hidden_size is None:
            return Subspaces(bases, scale, learned=learned)
        layer = self._layer(factor, dtype)
        return HiddenSubspaces(bases, scale, *layer, dropout=self.dropout, seed=seed, learned=learned)

    def _start_hidden_layer(self, prepared: Floats, weights: Floats, seed: int) -> None:
        assert self.hidden_size is not None
        weight, bias = first_hidden_layer(self.hidden_size, prepared.shape[1], seed)
        self.hidden_weight_, self.hidden_bias_ = self._factor(prepared, weights) * weight.numpy(), bias.numpy().copy()

    def _layer(self, factor: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Weight and bias of the hidden layer for features that were multiplied by the factor."""
        assert self.hidden_weight_ is not None
        assert self.hidden_bias_ is not None
        return torch.from_numpy(self.hidden_weight_ / factor).to(dtype), torch.from_numpy(self.hidden_bias_).to(dtype)

    def _factor(self, prepared: Floats, weights: Floats) -> float:
        """What features are multiplied by for the training: to a mean square of 1 in all, below a hidden layer each."""
        size = 1.0 if self.normalize else rms_length(prepared, weights)
        return (1 if self.hidden_size is None else math.sqrt(prepared.shape[1])) / size

    def _note(self, features: Floats, codes: Integers, weights: Floats) -> None:
        """Store what is needed of the training features: their mean, and what new classes are contrasted with."""
        self._add_to_mean(features, weights)
        rows = slice(None, None, max(1, len(features) // SAMPLES_FOR_MOMENT))
        moment = features[rows].T @ features[rows] / len(features[rows])
        rows = slice(None, None, max(1, len(features) // SAMPLES_FOR_LENGTH))
        lengths = lengths_by_bases(features[rows], self.bases_)
        self._trained = moment, float(np.take_along_axis(lengths, codes[rows, None], axis=1).mean())

    def _schedule(self, weights: Floats) -> Schedule:
        chosen: dict[str, Any] = {"epochs": self.epochs, "batch_size": self.batch_size, "lr": self.lr}
        n, d, L, hidden = len(weights), self.n_features_in_, len(self.classes_), self.hidden_size is not None
        defaults = default_schedule(n, d, float(weights.sum()), L, hidden=hidden)
        return defaults._replace(**{name: value for name, value in chosen.items() if value is not None})

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))


def _precision(fitted: NDArray[np.bool_], schedule: Schedule) -> type[np.floating[Any]]:
    """A fit in one batch runs in float64: it is cheap, and its result is then that of copies in place of weights."""
    return np.float64 if fitted.sum() <= schedule.batch_size else np.float32


def _samples(factor: float, prepared: Floats, codes: Integers, weights: Floats, dtype: Any) -> Samples:
    """The samples, their features multiplied by the factor, as tensors: where nothing changes, without a copy."""
    features = prepared if factor == 1 else factor * prepared
    x = torch.from_numpy(features.astype(dtype, copy=False))
    return Samples(x, torch.from_numpy(codes), torch.from_numpy(weights))
