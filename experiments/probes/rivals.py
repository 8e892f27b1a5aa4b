"""The classifiers that are compared, and the settings that each of them is tuned over: six for everyone.

The first setting of a list is the one that is taken where there are too few samples to choose.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from cappronet.probing.classifier import CapsuleClassifier
from experiments.probes.heads import HeadClassifier, mlp, named_head
from experiments.probes.machines import KernelSVM, LinearSVM

__all__ = ["CAPSULE", "LOGISTIC", "MLP", "RIVALS", "TUNED_CAPSULE", "Rival", "parameters"]

Setting = Mapping[str, Any]

CAPSULE, TUNED_CAPSULE = "capsule, default", "capsule, tuned"
LOGISTIC, MLP = "logistic regression", "MLP"
# What CapsuleClassifier is tuned over; "capsule, default" is CapsuleClassifier() and is not tuned.
CAPSULE_SETTINGS: Sequence[Setting] = [{"capsule_dim": c, "lr": lr} for lr in (0.01, 0.003) for c in (16, 8, 32)]
# Up to so many samples the kernel matrix of an RBF-SVM is affordable; above, Nystroem's features stand in for it.
EXACT_KERNEL, COMPONENTS = 12_000, 2_000


@dataclass(frozen=True)
class Rival:
    """A classifier, how it is made from a setting, and the settings to choose from for so many training samples."""

    make: Callable[..., Any]
    settings: Callable[[int], Sequence[Setting]]


def _grid(name: str, values: Sequence[Any]) -> Callable[[int], Sequence[Setting]]:
    return lambda _n: [{name: value} for value in values]


def _standardized(classifier: Any) -> Any:
    return make_pipeline(StandardScaler(), classifier)


def _neighbors(k: int, standardized: bool) -> Any:
    steps = [StandardScaler()] if standardized else []
    return make_pipeline(*steps, Normalizer(), KNeighborsClassifier(k, algorithm="brute"))


def _neighbors_settings(n: int) -> Sequence[Setting]:
    return [{"k": min(k, max(1, n // 2)), "standardized": scaled} for scaled in (False, True) for k in (5, 1, 20)]


def _rbf(width: float, C: float | None = None, alpha: float | None = None) -> Any:
    if C is not None:
        return _standardized(KernelSVM(C, width))
    return make_pipeline(StandardScaler(), _ScaledNystroem(width), RidgeClassifier(alpha))


class _ScaledNystroem(Nystroem):
    """Nystroem's features of the kernel exp(-width |x - y|^2 / d)."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(random_state=0)
        self.width = width

    def fit(self, X: Any, y: Any = None) -> Any:
        self.gamma, self.n_components = self.width / X.shape[1], min(COMPONENTS, len(X))
        return super().fit(X, y)


def _rbf_settings(n: int) -> Sequence[Setting]:
    if n > EXACT_KERNEL:
        return [{"width": width, "alpha": alpha} for alpha in (0.1, 0.01) for width in (1.0, 0.3, 0.1)]
    return [
        {"width": w, "C": C} for w, C in ((1.0, 1.0), (1.0, 10.0), (0.3, 10.0), (0.1, 10.0), (0.3, 1.0), (0.1, 100.0))
    ]


def _mlp(width: int, dropout: float, weight_decay: float) -> HeadClassifier:
    return HeadClassifier(mlp(width, dropout), lr=0.003, weight_decay=weight_decay)


def _mlp_settings(_n: int) -> Sequence[Setting]:
    choices = ((512, 0.5, 1.0), (512, 0.5, 0.01), (512, 0.8, 1.0), (512, 0.2, 1.0), (1024, 0.5, 1.0), (1024, 0.8, 0.01))
    return [{"width": width, "dropout": dropout, "weight_decay": decay} for width, dropout, decay in choices]


def _cosine(scale: Any, lr: float) -> HeadClassifier:
    return HeadClassifier(named_head("cosine", scale=scale), lr=lr)


def _subcenter(centers: int, scale: Any) -> HeadClassifier:
    return HeadClassifier(named_head("subcenter", centers, scale=scale), lr=0.01)


def _grouped(c: int, weight_decay: float) -> HeadClassifier:
    return HeadClassifier(named_head("group", c), lr=0.003, weight_decay=weight_decay)


def _complete(setting: Setting) -> dict[str, Any]:
    """All arguments of a CapsuleClassifier: a result is measured again when one of its defaults has changed."""
    return CapsuleClassifier(**setting).get_params()


RIVALS: Mapping[str, Rival] = {
    LOGISTIC: Rival(
        lambda C: _standardized(LogisticRegression(C=C, max_iter=1000)),
        _grid("C", (1.0, 0.1, 0.03, 0.01, 0.003, 0.001)),
    ),
    "linear SVM": Rival(lambda C: _standardized(LinearSVM(C)), _grid("C", (0.01, 0.003, 0.001, 3e-4, 1e-4, 0.1))),
    "LDA": Rival(
        lambda shrinkage: _standardized(LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)),
        _grid("shrinkage", ("auto", 0.01, 0.03, 0.1, 0.3, 0.9)),
    ),
    "ridge": Rival(
        lambda alpha: _standardized(RidgeClassifier(alpha)), _grid("alpha", (1e2, 1.0, 10.0, 1e3, 1e4, 1e5))
    ),
    "k-NN": Rival(_neighbors, _neighbors_settings),
    "RBF": Rival(_rbf, _rbf_settings),
    MLP: Rival(_mlp, _mlp_settings),
    "cosine": Rival(
        _cosine, lambda _n: [{"scale": s, "lr": lr} for s in ("learned", 25.0) for lr in (0.01, 0.003, 0.03)]
    ),
    "sub-center": Rival(
        _subcenter, lambda _n: [{"centers": k, "scale": s} for s in ("learned", 25.0) for k in (4, 2, 8)]
    ),
    "grouped neurons": Rival(
        _grouped, lambda _n: [{"c": c, "weight_decay": decay} for decay in (1.0, 0.01) for c in (8, 4, 16)]
    ),
    CAPSULE: Rival(CapsuleClassifier, lambda _n: [_complete({})]),
    TUNED_CAPSULE: Rival(CapsuleClassifier, lambda _n: [_complete(setting) for setting in CAPSULE_SETTINGS]),
}

# Where scikit-learn's estimators keep the numbers that a prediction needs.
LEARNED = ("coef_", "intercept_", "components_", "normalization_", "_fit_X")


def parameters(model: Any) -> int:
    """Numbers that a fitted classifier needs for a prediction, other than those of the standardization."""
    if isinstance(model, CapsuleClassifier):
        return int(model.capsule_dims_.sum()) * model.bases_.shape[2] + 1  # and the scale
    steps = [step for _, step in model.steps] if hasattr(model, "steps") else [model]
    return sum(
        step.parameters
        if hasattr(step, "parameters")
        else sum(getattr(step, name).size for name in LEARNED if hasattr(step, name))
        for step in steps
    )
