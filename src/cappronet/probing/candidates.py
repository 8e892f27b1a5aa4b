"""How a head is fitted to features with a setting, and what comes of it: a module that takes features as they are."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn.utils import skip_init

from cappronet.heads import MLP, CapsuleProjection, Centering, GroupedNeurons, create_head
from cappronet.heads.controls import FIXED_SCALE
from cappronet.probing.classifier import CapsuleClassifier
from cappronet.probing.fitting import fit_head
from cappronet.probing.settings import Setting

__all__ = ["MOST_ITERATIONS", "epochs_and_batch", "fit", "folded", "model_options", "new_head", "resolved"]

LARGEST_BATCH = 256
# As many epochs as give about this many steps, within bounds: of linear, grouped and MLP heads.
STEPS, FEWEST_EPOCHS, MOST_EPOCHS = 300, 10, 50
# Of L-BFGS in a logistic regression.
MOST_ITERATIONS = 1000


def model_options(setting: Setting) -> dict[str, Any]:
    """The arguments of `CapProNet` for the head of a setting; logistic regression is a linear head once fitted."""
    name = "linear" if setting.head == "logistic" else setting.head
    options: dict[str, Any] = {"head": name, "capsule_dim": setting.capsule_dim}
    if setting.head == "capsule":
        options |= {"centered": True, "normalize": True, "scale": setting.scale or FIXED_SCALE}
    if setting.head == "mlp":
        options |= {"width": setting.width, "hidden_dropout": setting.dropout}
    return options


def new_head(setting: Setting, d: int, classes: int) -> nn.Module:
    """The head of a setting, not fitted yet: of capsules, `Centering` and `CapsuleProjection` in a sequence."""
    options = model_options(setting)
    name, c, centered = options.pop("head"), options.pop("capsule_dim"), options.pop("centered", False)
    head = create_head(name, d + centered, classes, c, **options)
    return nn.Sequential(Centering(d), head) if centered else head


def resolved(setting: Setting, head: nn.Module) -> Setting:
    """The setting with the dimension and the scale that a fitted capsule head has: few samples span less."""
    if not isinstance(head, nn.Sequential):
        return setting
    capsules = head[1]
    assert isinstance(capsules, CapsuleProjection)
    assert isinstance(capsules.scale, float)
    return replace(setting, capsule_dim=capsules.capsule_dim, scale=capsules.scale)


def folded(head: nn.Module) -> nn.Module:
    """A fitted head as it is used for inference: bases are orthonormal."""
    if isinstance(head, nn.Sequential) and isinstance(head[1], CapsuleProjection):
        return nn.Sequential(head[0], head[1].fold())
    return head


def fit(setting: Setting, x: Tensor, y: Tensor, classes: int, seed: int = 0) -> nn.Module:
    """Fit any head but nearest neighbours to features `(n, d)`; the result takes features that are not scaled."""
    if setting.head == "capsule":
        return _fitted_capsules(setting, x, y, seed)
    scaling = _Scaling(setting.features, x)
    if setting.head == "logistic":
        head: nn.Module = _fitted_logistic(setting, scaling(x), y)
    else:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)  # for the start of the weights, and for dropout
            head = new_head(setting, x.shape[1], classes)
            options: dict[str, Any] = {"lr": setting.lr, "weight_decay": setting.weight_decay, "seed": seed}
            epochs, batch_size = epochs_and_batch(len(x))
            fit_head(nn.Sequential(scaling, head), x, y, epochs=epochs, batch_size=batch_size, **options)
    scaling.fold_into(head)
    return head


def epochs_and_batch(n: int) -> tuple[int, int]:
    """Epochs and batch size of a fit to n samples."""
    batch_size = min(LARGEST_BATCH, max(32, n // 8))
    return min(MOST_EPOCHS, max(FEWEST_EPOCHS, round(STEPS * batch_size / n))), batch_size


def _fitted_capsules(setting: Setting, x: Tensor, y: Tensor, seed: int) -> nn.Module:
    """A `CapsuleClassifier` as modules, in single precision."""
    options: dict[str, Any] = {"lr": setting.lr, "scale": setting.scale or "auto", "random_state": seed}
    fitted = CapsuleClassifier(setting.capsule_dim, **options).fit(x.numpy(), y.numpy())
    (L, c, width), d = fitted.bases_.shape, x.shape[1]
    centering = Centering(d)
    head = skip_init(CapsuleProjection, d + 1, L, c, normalize=True, scale=float(fitted.scale_))
    with torch.no_grad():
        centering.origin[:d] = torch.from_numpy(fitted.mean_)
        centering.origin[d] = -fitted.intercept_
        head.weight.zero_()  # features that do not vary get no constant, and bases then have no entry for it
        head.weight[..., :width] = torch.from_numpy(fitted.bases_)
    return nn.Sequential(centering, head).eval()


@torch.no_grad()
def _fitted_logistic(setting: Setting, x: Tensor, y: Tensor) -> nn.Linear:
    """scikit-learn's logistic regression as a linear layer."""
    with warnings.catch_warnings():  # what has not converged is judged by its errors, like everything else
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = LogisticRegression(C=setting.C, max_iter=MOST_ITERATIONS).fit(x.numpy(), y.numpy())
    weight, bias = fitted.coef_, fitted.intercept_
    if len(weight) == 1:  # of two classes: the difference of their scores
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    linear = skip_init(nn.Linear, x.shape[1], len(weight))
    linear.weight.copy_(torch.from_numpy(weight))
    linear.bias.copy_(torch.from_numpy(bias))
    return linear.eval()


class _Scaling(nn.Module):
    """`(x - shift) factor`, which is folded into the weights of a head once it is fitted."""

    shift: Tensor
    factor: Tensor

    def __init__(self, kind: str, x: Tensor) -> None:
        super().__init__()
        if kind == "standard":
            factor, shift = torch.std_mean(x, 0)
            factor = torch.where(factor > 1e-6 * factor.max(), factor, 1.0).reciprocal()
        else:
            shift = torch.zeros(())
            size = x.square().mean().sqrt()
            factor = torch.where(size > 0, size, 1.0).reciprocal()
        self.register_buffer("shift", shift)
        self.register_buffer("factor", factor)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) * self.factor

    @torch.no_grad()
    def fold_into(self, head: nn.Module) -> None:
        """Change the head's weights so that it gives the same scores for features that are not scaled."""
        linear = head.neurons if isinstance(head, GroupedNeurons) else head.hidden if isinstance(head, MLP) else head
        assert isinstance(linear, nn.Linear)
        linear.weight.mul_(self.factor)
        linear.bias.sub_(linear.weight @ self.shift.expand(linear.in_features))
