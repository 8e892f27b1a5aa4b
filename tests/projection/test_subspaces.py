"""Subspaces: angles between them, what they leave out, and subspaces set in closed form, against NumPy and SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

from cappronet import projection


def orthonormal(L, c, d):
    return torch.linalg.qr(torch.randn(L, d, c, dtype=torch.float64)).Q.mT.contiguous()


def test_principal_angles_are_scipys():
    a, b = orthonormal(3, 4, 12), orthonormal(2, 4, 12)
    angles = projection.principal_angles(a, b)
    assert angles.shape == (3, 2, 4)
    for i in range(3):
        for j in range(2):
            expected = np.sort(subspace_angles(a[i].T.numpy(), b[j].T.numpy()))
            np.testing.assert_allclose(angles[i, j].numpy(), expected, atol=1e-7)


def test_principal_angles_of_equal_and_orthogonal_subspaces():
    basis = torch.eye(6, dtype=torch.float64).view(3, 2, 6)
    angles = projection.principal_angles(basis, basis)
    assert angles.diagonal(dim1=0, dim2=1).abs().max() < 1e-7
    assert (angles[0, 1] - math.pi / 2).abs().max() < 1e-7


def test_coordinate_bases_are_the_nearest_orthonormal_ones():
    weight = torch.randn(3, 4, 9, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(weight, full_matrices=False)
    torch.testing.assert_close(projection.coordinate_bases(weight), u @ vh)


def test_relative_residuals_are_the_sines_of_the_angles():
    weight, x = torch.randn(5, 3, 8, dtype=torch.float64), torch.randn(7, 8, dtype=torch.float64)
    lengths = projection.capsule_lengths(x, weight)
    norms = x.norm(dim=-1, keepdim=True)
    expected = projection.residuals(x, weight).norm(dim=-1) / norms
    torch.testing.assert_close(projection.relative_residuals(lengths, norms), expected)
    assert projection.relative_residuals(torch.zeros(1), torch.zeros(1)).item() == 1
    assert projection.relative_residuals(torch.tensor([1.0 + 1e-7]), torch.ones(1)).item() == 0


@pytest.mark.parametrize(("n", "d"), [(50, 8), (6, 20), (8, 8)])
def test_leading_directions_are_the_singular_vectors(n, d):
    x = torch.randn(n, d, dtype=torch.float64) * torch.logspace(0, 1, d, dtype=torch.float64)
    energies, directions = projection.leading_directions(x, 4)
    _, values, vh = torch.linalg.svd(x, full_matrices=False)
    torch.testing.assert_close(energies, values[:4] ** 2)
    torch.testing.assert_close(directions @ directions.T, torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close((directions @ vh[:4].T).abs(), torch.eye(4, dtype=torch.float64), atol=1e-8, rtol=0)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    assert (largest > 0).all()


@pytest.mark.parametrize(("n", "d"), [(30, 10), (6, 20)])
def test_directions_of_features_that_span_less_are_still_orthonormal(n, d):
    x = torch.randn(n, 2, dtype=torch.float64) @ torch.randn(2, d, dtype=torch.float64)
    energies, directions = projection.leading_directions(x, 4)
    torch.testing.assert_close(directions @ directions.T, torch.eye(4, dtype=torch.float64))
    assert energies[2:].abs().max() < 1e-9 * energies[0]
    torch.testing.assert_close(x @ directions[:2].T @ directions[:2], x)


@pytest.mark.parametrize("count", [0, 6])
def test_more_directions_than_there_are_is_refused(count):
    with pytest.raises(ValueError, match=f"1 to 5 .*got {count}"):
        projection.leading_directions(torch.randn(5, 8), count)


def test_contrasted_directions_reach_the_length_and_avoid_the_others():
    d = 12
    shared = torch.zeros(d, dtype=torch.float64)
    shared[0] = 3.0  # what all samples have in common
    own = shared + torch.randn(400, d, dtype=torch.float64) * torch.tensor([0.1] * 6 + [1.0] * 6)
    others = shared + 0.3 * torch.randn(500, d, dtype=torch.float64)
    moment = others.T @ others / 500
    plain = projection.leading_directions(own, 3)[1]
    assert (others @ plain.T).norm(dim=1).mean() > 2.5
    contrasted = projection.contrasted_directions(own, 3, moment, 2.0)
    torch.testing.assert_close(contrasted @ contrasted.T, torch.eye(3, dtype=torch.float64))
    assert (own @ contrasted.T).norm(dim=1).mean().item() == pytest.approx(2.0, rel=0.05)
    assert (others @ contrasted.T).norm(dim=1).mean() < 1.5
