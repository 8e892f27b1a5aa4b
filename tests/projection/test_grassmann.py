"""Geodesics against the matrix exponential that defines them."""

import pytest
import reference
import torch

from cappronet import projection


def point_and_velocity(L, c, d, size=1.0):
    basis = projection.bases(reference.random_features(L * c, d).view(L, c, d))
    velocity = projection.tangent(basis, torch.randn(L, c, d, dtype=torch.float64))
    return basis, size * velocity


def test_a_tangent_vector_is_orthogonal_to_the_basis_and_projecting_twice_changes_nothing():
    basis, velocity = point_and_velocity(4, 3, 10)
    assert (velocity @ basis.mT).abs().max() < 1e-14
    torch.testing.assert_close(projection.tangent(basis, velocity), velocity)
    mixing = torch.randn(4, 3, 3, dtype=torch.float64) @ basis
    assert projection.tangent(basis, mixing).abs().max() < 1e-14


@pytest.mark.parametrize(("c", "d"), [(1, 2), (3, 10), (8, 20), (4, 5), (3, 3)])
@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 10.0])
def test_the_geodesic_is_the_matrix_exponential(c, d, size):
    """`expm(H S' - S H') S`: the turn that takes S along H and leaves everything orthogonal to both as it is."""
    basis, velocity = point_and_velocity(4, c, d, size)
    turn = torch.linalg.matrix_exp(velocity.mT @ basis - basis.mT @ velocity)
    torch.testing.assert_close(projection.geodesic(basis, velocity), basis @ turn.mT, rtol=0, atol=1e-12)


def test_the_geodesic_is_the_formula_by_thin_svd():
    basis, velocity = point_and_velocity(4, 3, 10)
    u, s, vh = torch.linalg.svd(velocity.mT, full_matrices=False)
    expected = basis.mT @ vh.mT @ torch.diag_embed(s.cos()) @ vh + u @ torch.diag_embed(s.sin()) @ vh
    torch.testing.assert_close(projection.geodesic(basis, velocity).mT, expected)


def test_singular_values_are_the_angles_that_subspaces_move_by():
    basis, velocity = point_and_velocity(5, 3, 12, 0.1)
    moved = projection.geodesic(basis, velocity)
    angles = projection.principal_angles(basis, moved)[range(5), range(5)]
    torch.testing.assert_close(angles, torch.linalg.svdvals(velocity).flip(-1))


def test_velocities_without_full_rank_move_only_what_they_should():
    basis, velocity = point_and_velocity(2, 3, 10)
    velocity[:, 1:] = 0
    moved = projection.geodesic(basis, velocity)
    torch.testing.assert_close(moved[:, 1:], basis[:, 1:])
    torch.testing.assert_close(moved @ moved.mT, torch.eye(3, dtype=torch.float64).expand(2, 3, 3))
    torch.testing.assert_close(projection.geodesic(basis, 0 * velocity), basis)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_reach_the_result(bad):
    basis, velocity = point_and_velocity(2, 3, 10)
    velocity[0, 0, 0] = bad
    moved = projection.geodesic(basis, velocity)
    assert not moved[0].isfinite().all()
    assert moved[1].isfinite().all()
