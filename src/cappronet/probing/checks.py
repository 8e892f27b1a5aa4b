"""What a `CapsuleClassifier` refuses: parameters, labels and classes that make no sense."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from cappronet.probing.fitting import check_settings

__all__ = ["check_parameters", "checked_label", "class_codes"]


def check_parameters(model: Any) -> None:
    """Refuse parameters of a classifier with which nothing can be fitted."""
    c = model.capsule_dim
    if c != "auto" and not (isinstance(c, int | np.integer) and not isinstance(c, bool) and c >= 1):
        raise ValueError(f"capsule_dim must be a whole number of at least 1 or 'auto', got {c!r}")
    if model.solver not in ("auto", "gradient", "svd"):
        raise ValueError(f"solver must be 'auto', 'gradient' or 'svd', got {model.solver!r}")
    if model.scale not in ("auto", "learned") and (isinstance(model.scale, str) or not 0 < model.scale < np.inf):
        raise ValueError(f"scale must be a number above 0, 'auto' or 'learned', got {model.scale!r}")
    if not 0 < model.energy <= 1:
        raise ValueError(f"energy must be above 0 and at most 1, got {model.energy!r}")
    # Whatever the solver: a grid over both should fail for both.
    epochs, batch_size, lr = (1 if value is None else value for value in (model.epochs, model.batch_size, model.lr))
    check_settings(epochs=epochs, batch_size=batch_size, lr=lr, weight_decay=model.weight_decay)
    check_random_state(model.random_state)
    _check_hidden_layer(model)
    if not 0 < model.validation_fraction <= 0.5:
        raise ValueError(f"validation_fraction must be above 0 and at most 0.5, got {model.validation_fraction!r}")
    if model.n_iter_no_change < 1 or not model.tol >= 0:
        raise ValueError(
            f"n_iter_no_change must be at least 1 and tol at least 0, got {model.n_iter_no_change} and {model.tol}"
        )


def _check_hidden_layer(model: Any) -> None:
    h = model.hidden_size
    if h is not None and not (isinstance(h, int | np.integer) and not isinstance(h, bool) and h >= 1):
        raise ValueError(f"hidden_size must be a whole number of at least 1 or None, got {h!r}")
    if h is not None and model.solver == "svd":
        raise ValueError("a hidden layer is trained by gradient: set hidden_size=None, or solver to 'gradient'")
    if not 0 <= model.dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {model.dropout!r}")


def checked_label(label: Any, classes: NDArray[Any]) -> NDArray[Any]:
    """A label for a new class, as an array of one."""
    array = np.asarray([label])
    if (array.dtype.kind in "US") != (classes.dtype.kind in "US") and classes.dtype.kind != "O":
        raise ValueError(f"a new label must be of the same type as the classes {list(classes)}, got {array[0]!r}")
    if array[0] != array[0]:
        raise ValueError("a new label must equal itself, got NaN: give the class a number or a name")
    if array[0] in classes:
        raise ValueError(f"class {array[0]!r} exists already: call remove_class first, or give another label")
    return array


def class_codes(y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.intp]:
    """The positions of labels `(n,)` among sorted classes."""
    codes = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    unknown = y[classes[codes] != y]
    if len(unknown):
        raise ValueError(f"y has the class {unknown[0]!r}, which is not among {list(classes)}: use add_class")
    return codes
