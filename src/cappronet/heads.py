"""Classification heads, all called alike: features `(..., d)` in, one score for each class `(..., L)` out.

`CapsuleProjection` is the paper's head. The controls that a comparison needs stand in `control_heads`; `HEADS` has all
of them by name.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from cappronet import projection
from cappronet.control_heads import (
    SCALE_OF_FEATURES,
    SCALE_OF_UNIT_FEATURES,
    Cosine,
    GroupedNeurons,
    Scale,
    Subcenters,
    WeightNormalized,
    check_sizes,
    group_lengths,
    scaled,
    start_scale,
    unit,
)
from cappronet.optimizers import carry_over, refuse_from_now_on

__all__ = [
    "HEADS",
    "CapsuleProjection",
    "Cosine",
    "FoldedProjection",
    "GroupedNeurons",
    "Subcenters",
    "WeightNormalized",
    "create_head",
]

# The hyper-power sequence is restarted from the exact inverse where a step would leave a residual above this.
LARGEST_RESIDUAL = 1e-3


class CapsuleProjection(nn.Module):
    """The capsule projection layer: a learned subspace for each class, scored by the length of the projection onto it.

    It stands where `nn.Linear(in_features, num_classes)` stood, and its output goes into the same cross-entropy.

    Args:
        in_features: d, the width of the feature vector.
        num_classes: L, the number of capsule subspaces.
        capsule_dim: c, the dimension of each subspace, at most `in_features`. The paper uses 2, 4 and 8.
        solver: how the normalization matrix is found in training: `"cholesky"`, exact, or `"hyperpower"`, one step of
            the paper's sequence (Section 3.1) for each forward, from the last one's result. In eval mode always exact.
        eps: the ridge added to W'W. The authors ran 1e-4 (CIFAR-10) and 1e-7; 0 is the exact projection.
        normalize: project x/|x|, so that lengths are the cosines of the angles to the subspaces.
        scale: what multiplies the lengths: nothing, a number, or `"learned"`: one parameter that starts at 16 with
            `normalize` and at 1 without. The paper has neither unit features nor a scale.

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
        solver: Literal["cholesky", "hyperpower"] = "cholesky",
        eps: float = 0.0,
        normalize: bool = False,
        scale: Scale = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(in_features=in_features, num_classes=num_classes, capsule_dim=capsule_dim)
        if solver not in ("cholesky", "hyperpower"):
            raise ValueError(f"solver must be 'cholesky' or 'hyperpower', got {solver!r}")
        self.in_features, self.num_classes, self.capsule_dim = in_features, num_classes, capsule_dim
        self.solver, self.eps, self.normalize = solver, eps, normalize
        self.weight = nn.Parameter(torch.empty(num_classes, capsule_dim, in_features, device=device, dtype=dtype))
        projection.check_arguments(None, self.weight, eps)
        self.scale = start_scale(scale, SCALE_OF_UNIT_FEATURES if normalize else SCALE_OF_FEATURES, device, dtype)
        if solver == "hyperpower":
            state = torch.promote_types(self.weight.dtype, torch.float32)
            sigma = torch.empty(num_classes, capsule_dim, capsule_dim, device=device, dtype=state)
            self.register_buffer("sigma", sigma)
            self.register_buffer("restarts", torch.empty((), device=device, dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as the authors' CIFAR-10 layer and `nn.Linear` do: uniform in +-1/sqrt(d)."""
        bound = self.in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.solver == "hyperpower":
            nn.init.zeros_(self.sigma)  # no estimate yet: the first step is exact
            nn.init.zeros_(self.restarts)

    def forward(self, x: Tensor) -> Tensor:
        """Capsule lengths, the logits: `(..., d) -> (..., L)`."""
        sigma = self._next_sigma() if self.solver == "hyperpower" and self.training else None
        return scaled(projection.capsule_lengths(self._features(x), self.weight, self.eps, sigma=sigma), self.scale)

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

        The other directions are random, orthogonal to it and as long. A bias has no counterpart and is dropped.
        """
        w = linear.weight
        head = cls(linear.in_features, linear.out_features, capsule_dim, device=w.device, dtype=w.dtype, **options)
        directions = torch.cat([w.unsqueeze(1), head.weight[:, 1:]], dim=1)
        basis = projection.bases(directions)  # Cholesky keeps the first direction, as Gram-Schmidt does
        head.weight.copy_(basis * torch.linalg.vector_norm(w, dim=-1)[:, None, None])
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
                features. Where classes share much, as in the features of a network, 0.5 can be far better than 0.
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
        seen = head._seen(x)
        total = seen.mT @ seen if contrast else None
        for weight, own in zip(head.weight, seen[y.argsort(stable=True)].split(counts.tolist()), strict=True):
            others = None if total is None else (total - own.mT @ own) / max(1, len(x) - len(own))
            weight.copy_(_leading_directions(own, capsule_dim, others, contrast))
        return head

    @torch.no_grad()
    def add_class(
        self,
        features: Tensor,
        others: Tensor | None = None,
        *,
        contrast: float = 0.0,
        optimizer: Optimizer | None = None,
    ) -> int:
        """Add a class without training: its subspace is the `capsule_dim` leading directions of its features, by SVD.

        The other classes' bases, and so their lengths, stay as they are, and a head of `from_features` becomes the one
        that all classes at once would have given. Trained subspaces avoid what classes share, and one by SVD does not:
        it would draw the other classes' images to itself. Make a head by `from_features` of what the trained one saw,
        and add to that; or go on training after the class was added.

        `weight` becomes a new parameter. An optimizer made before holds the old one: give it as `optimizer` to have it
        go on with the new one, its state included, or make a new optimizer; one that still holds the old parameter
        refuses to step. Change classes before a model is wrapped for several processes or compiled.

        Args:
            features: features of the new class `(n, d)`, at least `capsule_dim` of them, as the head gets them.
            others: features of other classes `(m, d)`, for the `contrast`.
            contrast: keep the most of the new class's mean squared length minus `contrast` times that of the others:
                for a head of `from_features`, what that was made with.
            optimizer: one that holds `weight`. What it remembers of each class, such as a momentum, starts at 0 for the
                new one, and what can't be negative, such as a mean of squared gradients, at the other classes' mean.

        Returns:
            The number of the new class, which is the last.

        Example:
            >>> head = CapsuleProjection(64, 10, capsule_dim=8)
            >>> head.add_class(torch.randn(20, 64))
            10
            >>> head(torch.randn(32, 64)).shape
            torch.Size([32, 11])
        """
        own = self._seen(self._checked("features", features, self.capsule_dim))
        if contrast and others is None:
            raise ValueError(f"a contrast of {contrast} needs features of the others")
        moment = None
        if others is not None:
            seen = self._seen(self._checked("others", others, 1))
            moment = seen.mT @ seen / len(seen)
        basis = _leading_directions(own, self.capsule_dim, moment, contrast)
        # As long as the other rows, so that a learning rate and weight decay mean the same for it.
        size = self.weight.square().sum(-1).mean().sqrt()
        basis = (basis * torch.where(size > 0, size, 1.0)).unsqueeze(0)
        weight = nn.Parameter(torch.cat([self.weight, basis.to(self.weight)]))
        self._replace_weight(weight, torch.arange(len(weight), device=weight.device), optimizer)
        return self.num_classes - 1

    @torch.no_grad()
    def remove_class(self, index: int, *, optimizer: Optimizer | None = None) -> None:
        """Remove the class with this number; those above it move down by one, and all keep their lengths.

        What `add_class` says of optimizers holds here too.
        """
        if not 0 <= index < self.num_classes:
            raise ValueError(f"class {index} can't be removed: the head has classes 0 to {self.num_classes - 1}")
        if self.num_classes == 1:
            raise ValueError("the last class of a head can't be removed")
        rows = torch.arange(self.num_classes, device=self.weight.device)
        rows = rows[rows != index]
        self._replace_weight(nn.Parameter(self.weight[rows]), rows, optimizer)

    def _replace_weight(self, weight: nn.Parameter, rows: Tensor, optimizer: Optimizer | None) -> None:
        """Go on with bases of other classes: `rows` are their old numbers, and L stands for a new class."""
        old = self.weight
        if optimizer is not None:  # first, because it may refuse
            carry_over(optimizer, old, weight, rows)
        weight.requires_grad_(old.requires_grad)
        self.weight, self.num_classes = weight, len(weight)
        if self.solver == "hyperpower":
            known = self.sigma.any()  # all zero: no estimate yet
            self.sigma = torch.cat([self.sigma, self.sigma.new_zeros(1, *self.sigma.shape[1:])])[rows]
            if known and len(weight) > len(old):
                self.sigma[-1] = projection.normalization_matrix(weight[-1:], self.eps)[0]
        refuse_from_now_on(old)

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

    def _seen(self, x: Tensor) -> Tensor:
        """Features as the head projects them, in a precision and on a device that its bases can be found in."""
        return self._features(x.to(self.weight.device, torch.promote_types(x.dtype, torch.float32)))

    def extra_repr(self) -> str:
        scale = "learned" if isinstance(self.scale, Tensor) else self.scale
        defaults = {"solver": "cholesky", "eps": 0.0, "normalize": False, "scale": None}
        options = {"solver": self.solver, "eps": self.eps, "normalize": self.normalize, "scale": scale}
        changed = [f"{name}={value!r}" for name, value in options.items() if value != defaults[name]]
        return ", ".join([f"{self.in_features}, {self.num_classes}, capsule_dim={self.capsule_dim}", *changed])

    def _features(self, x: Tensor) -> Tensor:
        return unit(x) if self.normalize else x

    @torch.no_grad()
    def _next_sigma(self) -> Tensor:
        """One warm hyper-power step, or the exact inverse where the step would not be good enough."""
        gram = projection.regularized_gram(self.weight, self.eps)
        sigma, residual = projection.hyper_power_step(self.sigma.to(gram.dtype), gram)
        restart = ~(residual.square().max() <= LARGEST_RESIDUAL)  # a step squares the residual; NaN restarts too
        self.restarts += restart & self.sigma.any()
        if torch.compiler.is_compiling():  # a graph has no branches: it computes both and chooses
            sigma = torch.where(restart, projection.normalization_matrix(self.weight, self.eps), sigma)
        elif restart.is_meta or restart:
            sigma = projection.normalization_matrix(self.weight, self.eps)
        self.sigma.copy_(sigma)
        return sigma

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
        x = unit(x) if self.normalize else x
        return scaled(group_lengths(F.linear(x, self.weight), self.capsule_dim), self.scale)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}, capsule_dim={self.capsule_dim}"


# From name to constructor, all called as (in_features, num_classes, capsule_dim, **options).
HEADS: Mapping[str, Callable[..., nn.Module]] = {
    "capsule": CapsuleProjection,
    "group": GroupedNeurons,
    "linear": lambda d, L, _, **options: nn.Linear(d, L, **options),
    "cosine": lambda d, L, _, **options: Cosine(d, L, **options),
    "weightnorm": lambda d, L, _, **options: WeightNormalized(d, L, **options),
    "subcenter": Subcenters,
}


def create_head(name: str, in_features: int, num_classes: int, capsule_dim: int = 4, **options: Any) -> nn.Module:
    """A head by name; `capsule_dim` is the size of a class's group, unused by heads that have none."""
    if name not in HEADS:
        raise ValueError(f"unknown head {name!r}; known are {', '.join(HEADS)}")
    return HEADS[name](in_features, num_classes, capsule_dim, **options)


def _leading_directions(features: Tensor, count: int, others: Tensor | None, contrast: float) -> Tensor:
    """The orthonormal `(count, d)` that keep the most of features `(n, d)`, less what they keep of the others.

    With the others' mean of x x' `(d, d)`: the trace of B (S - contrast S_others) B' is largest for the leading
    eigenvectors of the difference. Without them these are the right singular vectors of the features.
    """
    if others is None or contrast == 0:
        return torch.linalg.svd(features, full_matrices=False).Vh[:count]
    difference = features.mT @ features / len(features) - contrast * others
    return torch.linalg.eigh(difference).eigenvectors.mT.flip(0)[:count]
