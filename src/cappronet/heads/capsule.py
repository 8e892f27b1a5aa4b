"""The capsule projection layer: the paper's head."""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from cappronet import projection
from cappronet.heads.classes import check_changeable, new_basis, replace_weight
from cappronet.heads.controls import (
    SCALE_OF_FEATURES,
    SCALE_OF_UNIT_FEATURES,
    Scale,
    check_floating,
    check_sizes,
    group_lengths,
    scaled,
    start_scale,
    start_weight,
    unit,
)

__all__ = ["CapsuleProjection", "FoldedProjection", "next_sigma"]

# The hyper-power sequence is restarted from the exact inverse where a step would leave a residual above this.
LARGEST_RESIDUAL = 1e-3


class CapsuleProjection(nn.Module):
    """The capsule projection layer: a learned subspace for each class, scored by the length of the projection onto it.

    It replaces `nn.Linear(in_features, num_classes)`, and its output goes into the same cross-entropy.

    Args:
        in_features: d, the width of the feature vector.
        num_classes: L, the number of capsule subspaces.
        capsule_dim: c, the dimension of each subspace, at most `in_features`. The paper uses 2, 4 and 8.
        solver: how training computes the normalization matrix: `"cholesky"`, exact; `"hyperpower"`, one step of the
            paper's sequence (Section 3.1) for each forward pass, from the last result; `"orthonormal"`, not at all: the
            bases start orthonormal, and `cappronet.heads.GrassmannSGD` keeps them so, as no other optimizer does. In
            eval mode always exact.
        eps: the ridge added to W'W. The authors ran 1e-4 (CIFAR-10) and 1e-7; 0 is the exact projection.
        normalize: project x/|x|, so that lengths are the cosines of the angles to the subspaces.
        scale: what multiplies the lengths: nothing, a number, or `"learned"`: one parameter that starts at 16 with
            `normalize` and at 1 without. The paper has neither unit features nor a scale, and that is the default.
            Trained end to end on CIFAR-100 with 512 features, unit features and a scale of 25 made far fewer errors
            than a linear layer and fewer than a cosine head, while the paper's form made no fewer than a linear layer
            (`python -m experiments end-to-end`); on frozen features they are what `CapsuleClassifier` uses.

    Attributes:
        weight: the bases `(L, c, d)`. `weight.view(L * c, d)` is the layout of the paper and of the authors' layer, and
            a state with a weight of that shape loads.
        sigma: with `solver="hyperpower"`, the normalization matrices of the last training step `(L, c, c)`.
        restarts: with `solver="hyperpower"`, how often the sequence was restarted from the exact inverse.

    Example:
        >>> head = CapsuleProjection(64, 10, capsule_dim=8)
        >>> head(torch.randn(32, 64)).shape
        torch.Size([32, 10])
    """

    sigma: Tensor
    restarts: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        capsule_dim: int = 4,
        *,
        solver: Literal["cholesky", "hyperpower", "orthonormal"] = "cholesky",
        eps: float = 0.0,
        normalize: bool = False,
        scale: Scale = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(in_features=in_features, num_classes=num_classes, capsule_dim=capsule_dim)
        if solver not in ("cholesky", "hyperpower", "orthonormal"):
            raise ValueError(f"solver must be 'cholesky', 'hyperpower' or 'orthonormal', got {solver!r}")
        if solver == "orthonormal" and eps:
            raise ValueError(f"orthonormal bases need no ridge: eps must be 0 with solver='orthonormal', got {eps}")
        self.in_features, self.num_classes, self.capsule_dim = in_features, num_classes, capsule_dim
        self.solver, self.eps, self.normalize = solver, eps, normalize
        self.weight = nn.Parameter(torch.empty(num_classes, capsule_dim, in_features, device=device, dtype=dtype))
        projection.check_arguments(None, self.weight, eps)
        self.scale = start_scale(scale, self._initial_scale, device, dtype)
        if solver == "hyperpower":
            state = torch.promote_types(self.weight.dtype, torch.float32)
            sigma = torch.empty(num_classes, capsule_dim, capsule_dim, device=device, dtype=state)
            self.register_buffer("sigma", sigma)
            self.register_buffer("restarts", torch.empty((), device=device, dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as the authors' CIFAR-10 layer and `nn.Linear` do: uniform in +-1/sqrt(d). A learned scale restarts.

        With `solver="orthonormal"` the bases start in the same subspaces.
        """
        start_weight(self.weight)
        if self.solver == "orthonormal" and not self.weight.is_meta:
            with torch.no_grad():
                self.weight.copy_(projection.bases(self.weight))
        if isinstance(self.scale, nn.Parameter):
            nn.init.constant_(self.scale, self._initial_scale)
        if self.solver == "hyperpower":
            nn.init.zeros_(self.sigma)  # no estimate yet: the first step is exact
            nn.init.zeros_(self.restarts)

    @property
    def _initial_scale(self) -> float:
        return SCALE_OF_UNIT_FEATURES if self.normalize else SCALE_OF_FEATURES

    def forward(self, x: Tensor) -> Tensor:
        """Capsule lengths, the logits: `(..., d) -> (..., L)`."""
        solver = self.solver if self.training else "cholesky"
        sigma = self._next_sigma() if solver == "hyperpower" else None
        lengths = projection.capsule_lengths(
            self._features(x), self.weight, self.eps, sigma=sigma, orthonormal=solver == "orthonormal"
        )
        return scaled(lengths, self.scale)

    def capsules(self, x: Tensor) -> Tensor:
        """`v_l = P_l x`: `(..., d) -> (..., L, d)`."""
        return projection.capsules(self._features(x), self.weight, self.eps)

    def coordinates(self, x: Tensor) -> Tensor:
        """`(W'W)^(-1/2) W' x`, each capsule in c numbers with the length it has: `(..., d) -> (..., L, c)`."""
        return projection.coordinates(self._features(x), self.weight, self.eps)

    def residuals(self, x: Tensor) -> Tensor:
        """`x - v_l`, what each subspace does not contain: `(..., d) -> (..., L, d)`."""
        return projection.residuals(self._features(x), self.weight, self.eps)

    def projections(self) -> Tensor:
        """The projection matrices `P_l (L, d, d)`."""
        return projection.projections(self.weight, self.eps)

    @torch.no_grad()
    def fold(self) -> "FoldedProjection":
        """The same function for inference: one linear map and a norm, in operations that export anywhere."""
        basis = projection.bases(self.weight, self.eps)
        scale = self.scale.item() if isinstance(self.scale, Tensor) else self.scale
        return FoldedProjection(basis, normalize=self.normalize, scale=scale).train(self.training)

    @classmethod
    @torch.no_grad()
    def from_linear(cls, linear: nn.Linear, capsule_dim: int = 4, **options: Any) -> "CapsuleProjection":
        """Start from a trained linear layer: each subspace contains that class's weight vector.

        The other directions are random, orthogonal to it and as long, or all of length 1 with `solver="orthonormal"`. A
        bias has no counterpart and is dropped.
        """
        w = linear.weight
        head = cls(linear.in_features, linear.out_features, capsule_dim, device=w.device, dtype=w.dtype, **options)
        directions = torch.cat([w.unsqueeze(1), head.weight[:, 1:]], dim=1)
        basis = projection.bases(directions)  # Cholesky keeps the first direction, as Gram-Schmidt does
        sizes = torch.linalg.vector_norm(w, dim=-1)[:, None, None]
        head.weight.copy_(basis if head.solver == "orthonormal" else basis * sizes)
        return head

    @classmethod
    @torch.no_grad()
    def from_features(
        cls,
        x: Tensor,
        y: Tensor,
        capsule_dim: int = 4,
        *,
        num_classes: int | None = None,
        contrast: float = 0.0,
        **options: Any,
    ) -> "CapsuleProjection":
        """Set each subspace in closed form: the `capsule_dim` leading directions of that class's features, by SVD.

        Of all subspaces of its dimension, this one keeps the most of the squared length of the class's features (with
        `normalize`, of unit features).

        Args:
            x: features `(n, d)`.
            y: their classes `(n,)`, integers from 0.
            capsule_dim: c; every class needs at least as many features.
            num_classes: L; by default one more than the largest class in `y`.
            contrast: keep the most of the class's mean squared length minus `contrast` times that of all other
                features. Where classes have much in common, as in a network's features, 0.5 can be far better than 0.
            options: for the constructor: `normalize`, `scale`, `solver`, `eps`.
        """
        if x.ndim != 2 or not x.is_floating_point() or y.shape != x.shape[:1] or y.is_floating_point():
            raise ValueError(
                f"from_features needs floating-point features (n, d) and integer classes (n,), "
                f"got {x.dtype} {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}"
            )
        counts = torch.bincount(y, minlength=num_classes or 0)
        if num_classes is not None and len(counts) > num_classes:
            raise ValueError(f"classes must be 0 to {num_classes - 1}, got {len(counts) - 1}")
        head = cls(x.shape[1], len(counts), capsule_dim, device=x.device, dtype=x.dtype, **options)
        if counts.min() < capsule_dim:
            raise ValueError(
                f"class {counts.argmin()} has {counts.min()} features, but a subspace of dimension {capsule_dim} needs "
                f"at least {capsule_dim}: give more features or a smaller capsule_dim"
            )
        features = head._projected(x)
        total = features.mT @ features if contrast else None
        for weight, own in zip(head.weight, features[y.argsort(stable=True)].split(counts.tolist()), strict=True):
            if total is None:
                _, directions = projection.leading_directions(own, capsule_dim)
            else:
                moment = own.mT @ own
                others = (total - moment) / max(1, len(x) - len(own))
                _, directions = projection.leading_eigenvectors(moment / len(own) - contrast * others, capsule_dim)
            weight.copy_(directions)
        return head

    @torch.no_grad()
    def add_class(
        self,
        features: Tensor,
        others: Tensor | None = None,
        *,
        contrast: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> int:
        """Add a class without training; the other classes' bases, and so their lengths, stay as they are.

        Give features of the other classes if the head was trained. Trained subspaces avoid the directions that classes
        share; one that keeps the most of its own features does not, and would attract samples of every class. With
        `others`, the new subspace avoids their directions until its features are as long in it as theirs are in their
        own. Without them it is spanned by the leading directions of its features, which completes a head made by
        `from_features`: the result is the head that all classes at once would have given.

        `weight` becomes a new parameter, which an optimizer made before does not hold: pass that optimizer as
        `optimizer` to continue with its state, or make a new one. Change classes before a model is compiled, and in one
        process: among several, and for a parametrized weight, it is refused.

        Args:
            features: features of the new class `(n, d)`, at least `capsule_dim` of them, as they enter the head.
            others: features of other classes `(m, d)`.
            contrast: keep the most of the new class's mean squared length minus `contrast` times that of the others.
                For a head of `from_features(contrast=...)`, give the same number. The default chooses it as above.
            optimizer: one that holds `weight`. What it remembers of each class, such as a momentum, starts at 0 for the
                new one, and what cannot be negative, such as a mean of squared gradients, at the other classes' mean.

        Returns:
            The number of the new class, which is the last.

        Example:
            >>> head = CapsuleProjection(64, 10, capsule_dim=8)
            >>> head.add_class(torch.randn(20, 64))
            10
            >>> head(torch.randn(32, 64)).shape
            torch.Size([32, 11])
        """
        check_changeable(self)
        own = self._projected(self._checked("features", features, self.capsule_dim))
        if contrast and others is None:
            raise ValueError(f"a contrast of {contrast} needs features of other classes: pass them as others")
        rest = None if others is None else self._projected(self._checked("others", others, 1))
        basis = new_basis(own, self.weight, self.eps, rest, contrast)
        # As long as the other rows, so that a learning rate and weight decay mean the same for it.
        size = self.weight.square().sum(-1).mean().sqrt()
        basis = (basis * torch.where(size > 0, size, 1.0)).unsqueeze(0)
        weight = nn.Parameter(torch.cat([self.weight, basis.to(self.weight)]))
        replace_weight(self, weight, torch.arange(len(weight), device=weight.device), optimizer)
        return self.num_classes - 1

    @torch.no_grad()
    def remove_class(self, index: int, *, optimizer: Optimizer | None = None) -> None:
        """Remove the class with this number; those above it move down by one, and all keep their lengths.

        `weight` becomes a new parameter: see `add_class` for what that means for optimizers.
        """
        if not 0 <= index < self.num_classes:
            raise ValueError(f"class {index} can't be removed: the head has classes 0 to {self.num_classes - 1}")
        if self.num_classes == 1:
            raise ValueError("the last class of a head can't be removed")
        check_changeable(self)
        rows = torch.arange(self.num_classes, device=self.weight.device)
        rows = rows[rows != index]
        replace_weight(self, nn.Parameter(self.weight[rows]), rows, optimizer)

    def _checked(self, name: str, x: Tensor, least: int) -> Tensor:
        if x.ndim != 2 or x.shape[1] != self.in_features or not x.is_floating_point():
            raise ValueError(
                f"{name} must be floating-point (n, {self.in_features}) for this head, got {x.dtype} {tuple(x.shape)}"
            )
        if len(x) < least:
            raise ValueError(f"a subspace of dimension {self.capsule_dim} needs at least {least} {name}, got {len(x)}")
        if not x.isfinite().all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")
        return x

    def _projected(self, x: Tensor) -> Tensor:
        """Features as the head projects them, in a precision and on a device in which its bases can be found."""
        return self._features(x.to(self.weight.device, torch.promote_types(x.dtype, torch.float32)))

    def extra_repr(self) -> str:
        scale = "learned" if isinstance(self.scale, Tensor) else self.scale
        defaults = {"solver": "cholesky", "eps": 0.0, "normalize": False, "scale": None}
        options = {"solver": self.solver, "eps": self.eps, "normalize": self.normalize, "scale": scale}
        changed = [f"{name}={value!r}" for name, value in options.items() if value != defaults[name]]
        return ", ".join([f"{self.in_features}, {self.num_classes}, capsule_dim={self.capsule_dim}", *changed])

    def _features(self, x: Tensor) -> Tensor:
        return unit(x) if self.normalize else x

    def _next_sigma(self) -> Tensor:
        return next_sigma(self.weight, self.sigma, self.restarts, self.eps)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take the authors' layout of the weight, and states that were saved under the other solver."""
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.shape == (self.num_classes * self.capsule_dim, self.in_features):
            state_dict[prefix + "weight"] = weight.view(self.weight.shape)
        for name in ("sigma", "restarts"):
            if self.solver == "hyperpower":
                state_dict.setdefault(prefix + name, torch.zeros_like(getattr(self, name)))
            else:
                state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *args)


@torch.no_grad()
def next_sigma(
    weight: Tensor,
    sigma: Tensor,
    restarts: Tensor,
    eps: float,
    *,
    largest: Callable[[Tensor], Tensor] = torch.max,
    anywhere: Callable[[Tensor], Tensor] = torch.any,
) -> Tensor:
    """One warm hyper-power step, or the exact inverse where the step would not be good enough; `sigma` gets the result.

    `largest` and `anywhere` reduce over all classes, for a head that holds only some of them.
    """
    gram = projection.regularized_gram(weight, eps)
    new, residual = projection.hyper_power_step(sigma.to(gram.dtype), gram)
    restart = ~(largest(residual).square() <= LARGEST_RESIDUAL)  # a step squares the residual; NaN restarts too
    restarts += restart & anywhere(sigma)
    if torch.compiler.is_compiling():  # a graph has no branches: it computes both and chooses
        new = torch.where(restart, projection.normalization_matrix(weight, eps), new)
    elif restart.is_meta or restart:
        new = projection.normalization_matrix(weight, eps)
    sigma.copy_(new)
    return new


class FoldedProjection(nn.Module):
    """A trained `CapsuleProjection` for inference: orthonormal bases as one linear map, then the norm of each group."""

    weight: Tensor
    scale: Tensor | None

    def __init__(self, basis: Tensor, *, normalize: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.num_classes, self.capsule_dim, self.in_features = basis.shape
        self.normalize = normalize
        self.register_buffer("weight", basis.flatten(0, 1).clone())
        self.register_buffer("scale", None if scale is None else basis.new_tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        """Capsule lengths: `(..., d) -> (..., L)`."""
        check_floating(x)
        dtype = torch.promote_types(x.dtype, self.weight.dtype)
        # The square of a length must neither overflow nor vanish, whatever the size of the features.
        size = None if self.normalize else x.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        x = unit(x) if size is None else x / size
        lengths = group_lengths(F.linear(x.to(dtype), self.weight.to(dtype)), self.capsule_dim)
        return scaled(lengths if size is None else lengths * size, self.scale)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}, capsule_dim={self.capsule_dim}"
