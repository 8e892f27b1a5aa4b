"""A slow float64 reference built on `torch.linalg.pinv`, and weights like those of a trained layer."""

import torch
from torch import Tensor


def random_weight(L: int, c: int, d: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Random bases `(L, c, d)` whose Gram eigenvalues lie between 0.11 and 2.45, as in trained ResNet-110 heads."""
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(L, d, c, dtype=torch.float64, generator=generator))
    mix, _ = torch.linalg.qr(torch.randn(L, c, c, dtype=torch.float64, generator=generator))
    eigenvalues = torch.empty(L, 1, c, dtype=torch.float64).uniform_(0.11, 2.45, generator=generator)
    return (q * eigenvalues.sqrt() @ mix).mT.contiguous().to(dtype)


def random_features(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def projections(weight: Tensor) -> Tensor:
    basis = weight.double().mT
    return basis @ torch.linalg.pinv(basis)


def capsules(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("lde,...e->...ld", projections(weight), x.double())


def lengths(x: Tensor, weight: Tensor) -> Tensor:
    return torch.linalg.vector_norm(capsules(x, weight), dim=-1)


def coordinates(x: Tensor, weight: Tensor) -> Tensor:
    w = weight.double()
    eigenvalues, q = torch.linalg.eigh(w @ w.mT)
    root = q * eigenvalues.rsqrt().unsqueeze(-2) @ q.mT
    return torch.einsum("lcd,...d->...lc", root @ w, x.double())
