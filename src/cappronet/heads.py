"""Classification heads, all called alike: features `(..., d)` in, one score for each class `(..., L)` out.

`CapsuleProjection` is the paper's head. The others are the controls that a comparison needs: the same neurons without
the projection, and what unit weights or several centres for each class give on their own.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cappronet import projection

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

Scale = float | Literal["learned"] | None

# Where a learned scale starts. Lengths of unit features end at 1, and with L classes softmax needs a scale of about
# log(L / loss) to get the loss down; lengths as in the paper grow with the features.
SCALE_OF_UNIT_FEATURES = 16.0
SCALE_OF_FEATURES = 1.0

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
        _check_sizes(in_features=in_features, num_classes=num_classes, capsule_dim=capsule_dim)
        if solver not in ("cholesky", "hyperpower"):
            raise ValueError(f"solver must be 'cholesky' or 'hyperpower', got {solver!r}")
        self.in_features, self.num_classes, self.capsule_dim = in_features, num_classes, capsule_dim
        self.solver, self.eps, self.normalize = solver, eps, normalize
        self.weight = nn.Parameter(torch.empty(num_classes, capsule_dim, in_features, device=device, dtype=dtype))
        projection.check_arguments(None, self.weight, eps)
        self.scale = _scale(scale, SCALE_OF_UNIT_FEATURES if normalize else SCALE_OF_FEATURES, device, dtype)
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
        return _scaled(projection.capsule_lengths(self._features(x), self.weight, self.eps, sigma=sigma), self.scale)

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
        cls, x: Tensor, y: Tensor, capsule_dim: int = 4, *, num_classes: int | None = None, **options: Any
    ) -> "CapsuleProjection":
        """Set each subspace in closed form: the `capsule_dim` leading directions of that class's features, by SVD.

        Of all subspaces of its dimension, this one keeps the most of the squared length of the class's features.

        Args:
            x: features `(n, d)`.
            y: their classes `(n,)`, integers from 0.
            capsule_dim: c; every class needs at least as many features.
            num_classes: L; by default one more than the largest class in `y`.
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
        for weight, features in zip(head.weight, x[y.argsort(stable=True)].split(counts.tolist()), strict=True):
            work = features.to(torch.promote_types(x.dtype, torch.float32))
            weight.copy_(torch.linalg.svd(work, full_matrices=False).Vh[:capsule_dim])
        return head

    def extra_repr(self) -> str:
        scale = "learned" if isinstance(self.scale, Tensor) else self.scale
        defaults = {"solver": "cholesky", "eps": 0.0, "normalize": False, "scale": None}
        options = {"solver": self.solver, "eps": self.eps, "normalize": self.normalize, "scale": scale}
        changed = [f"{name}={value!r}" for name, value in options.items() if value != defaults[name]]
        return ", ".join([f"{self.in_features}, {self.num_classes}, capsule_dim={self.capsule_dim}", *changed])

    def _features(self, x: Tensor) -> Tensor:
        return _unit(x) if self.normalize else x

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

    def __init__(self, basis: Tensor, *, normalize: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.num_classes, self.capsule_dim, self.in_features = basis.shape
        self.normalize, self.scale = normalize, scale
        self.register_buffer("weight", basis.flatten(0, 1).clone())

    def forward(self, x: Tensor) -> Tensor:
        """Capsule lengths: `(..., d) -> (..., L)`."""
        x = _unit(x) if self.normalize else x
        return _scaled(_group_lengths(F.linear(x, self.weight), self.capsule_dim), self.scale)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}, capsule_dim={self.capsule_dim}"


class GroupedNeurons(nn.Module):
    """The GroupNeuron ablation (Table 3): c neurons for each class, scored by the length of the group, no projection.

    Example:
        >>> GroupedNeurons(64, 10, capsule_dim=8)(torch.randn(32, 64)).shape
        torch.Size([32, 10])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        capsule_dim: int = 4,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(in_features=in_features, num_classes=num_classes, capsule_dim=capsule_dim)
        self.capsule_dim = capsule_dim
        self.neurons = nn.Linear(in_features, num_classes * capsule_dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """`|A_l x + b_l|`: `(..., d) -> (..., L)`."""
        return _group_lengths(self.neurons(x), self.capsule_dim)


class WeightNormalized(nn.Module):
    """`w_l'x / |w_l|`: weight normalization, whose absolute value is the capsule length for c = 1 (Section 2.4)."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(in_features=in_features, num_classes=num_classes)
        self.weight = nn.Parameter(torch.empty(num_classes, in_features, device=device, dtype=dtype))
        nn.init.uniform_(self.weight, -(in_features**-0.5), in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., d) -> (..., L)`."""
        return F.linear(x, _unit(self.weight))


class Subcenters(nn.Module):
    """The best of k unit centres for each class by cosine, times a scale: the discrete counterpart of a subspace.

    As in sub-center ArcFace (ECCV 2020), without its margin.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        centers: int = 4,
        *,
        scale: Scale = "learned",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(in_features=in_features, num_classes=num_classes, centers=centers)
        self.weight = nn.Parameter(torch.empty(num_classes, centers, in_features, device=device, dtype=dtype))
        self.scale = _scale(scale, SCALE_OF_UNIT_FEATURES, device, dtype)
        nn.init.uniform_(self.weight, -(in_features**-0.5), in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """`scale max_k cos(x, w_lk)`: `(..., d) -> (..., L)`."""
        cosines = F.linear(_unit(x), _unit(self.weight).flatten(0, 1)).unflatten(-1, self.weight.shape[:2])
        return _scaled(cosines.amax(-1), self.scale)


class Cosine(Subcenters):
    """`scale cos(x, w_l)`: unit features, unit weights, one centre for each class."""

    def __init__(self, in_features: int, num_classes: int, **options: Any) -> None:
        super().__init__(in_features, num_classes, centers=1, **options)


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


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def _scale(
    scale: Scale, start: float, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Parameter | float | None:
    if scale == "learned":
        return nn.Parameter(torch.full((), start, device=device, dtype=dtype))
    if scale is not None and not (isinstance(scale, int | float) and scale > 0):
        raise ValueError(f"scale must be None, a number above 0, or 'learned', got {scale!r}")
    return scale


def _scaled(scores: Tensor, scale: Tensor | float | None) -> Tensor:
    return scores if scale is None else scores * scale


def _unit(x: Tensor) -> Tensor:
    """`x / |x|` along the last dimension, with no overflow on the way; 0 stays 0."""
    largest = x.detach().abs().amax(-1, keepdim=True).clamp_min(1e-20)
    return F.normalize(x / largest, dim=-1, eps=1e-6)


def _group_lengths(y: Tensor, size: int) -> Tensor:
    return torch.linalg.vector_norm(y.unflatten(-1, (-1, size)), dim=-1)
