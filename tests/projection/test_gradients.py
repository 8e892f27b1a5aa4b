"""Derivatives: finite differences, second order, and never NaN or infinite from finite input."""

import itertools

import pytest
import reference
import torch
from torch.autograd import gradcheck, gradgradcheck

from cappronet import projection
from cappronet.projection import capsule_lengths


@pytest.mark.parametrize("c", [1, 3, 6])
def test_first_and_second_derivatives(c):
    x = reference.random_features(4, 6).requires_grad_()
    weight = reference.random_weight(3, c, 6).requires_grad_()
    assert gradcheck(capsule_lengths, (x, weight))
    assert gradgradcheck(capsule_lengths, (x, weight))
    assert gradcheck(lambda x, w: capsule_lengths(x, w, 0.3), (x, weight))


@pytest.mark.parametrize("function", [projection.capsules, projection.coordinates, projection.residuals])
def test_derivatives_of_the_views(function):
    x = reference.random_features(4, 6).requires_grad_()
    weight = reference.random_weight(3, 3, 6).requires_grad_()
    assert gradcheck(function, (x, weight))
    assert gradgradcheck(function, (x, weight))


def test_coordinates_are_differentiable_where_eigenvalues_coincide():
    x = reference.random_features(4, 6).requires_grad_()
    weight = torch.eye(6).double()[None, :3].requires_grad_()
    assert gradcheck(projection.coordinates, (x, weight))
    assert gradgradcheck(projection.coordinates, (x, weight))


def test_coordinates_and_their_gradients_are_finite_for_weights_of_any_size():
    weight = reference.random_weight(5, 3, 6, torch.float32)
    weight[0], weight[1], weight[2, 1], weight[3] = 1e25, 0, weight[2, 0], 1e-20
    x = reference.random_features(4, 6, dtype=torch.float32).requires_grad_()
    coordinates = projection.coordinates(x, weight.requires_grad_())
    assert coordinates.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(coordinates.sum(), (x, weight)))


def test_a_warm_sigma_has_the_gradient_of_the_inverse():
    """The factor (I - P) survives: holding sigma fixed would lose it."""
    x = reference.random_features(4, 6).requires_grad_()
    weight = reference.random_weight(3, 2, 6).requires_grad_()
    moved = weight.detach() + 1e-3 * reference.random_features(3, 2, 6)
    sigma, _ = projection.hyper_power_step(projection.normalization_matrix(moved), projection.regularized_gram(weight))
    warm = torch.autograd.grad(capsule_lengths(x, weight, sigma=sigma.detach()).sum(), (x, weight))
    exact = torch.autograd.grad(capsule_lengths(x, weight).sum(), (x, weight))
    for a, b in zip(warm, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    fixed = (
        torch.einsum("bd,lcd,lce->ble", x, weight, sigma.detach()) * (x @ weight.flatten(0, 1).mT).view(4, 3, 2)
    ).sum(-1)
    (lost,) = torch.autograd.grad(fixed.sqrt().sum(), weight)
    assert (lost - exact[1]).abs().max() > 0.1


def features(size):
    """Zero, inside subspace 0, orthogonal to it, and generic."""
    x = torch.zeros(4, 8)
    x[1, :2], x[2, 4:], x[3] = size, size, size * torch.linspace(-1, 1, 8)
    return x


def bases(size):
    """Independent, repeated and zero columns; columns of very different size; c = d comes from the caller."""
    weight = torch.zeros(5, 2, 8)
    weight[0, 0, 0], weight[0, 1, 1] = size, size
    weight[1] = size
    weight[2, 0] = size
    weight[4] = torch.tensor([1e20, 1e-20])[:, None] * torch.linspace(1, 2, 8)
    return weight


SIZES = (0.0, 1e-20, 1e-10, 1.0, 1e10, 1e20)


@pytest.mark.parametrize(("size", "spread"), list(itertools.product(SIZES, SIZES)))
@pytest.mark.parametrize("full", [False, True])
def test_finite_input_gives_finite_lengths_and_gradients(size, spread, full):
    x = features(size).requires_grad_()
    weight = (spread * torch.eye(8).expand(2, 8, 8).clone() if full else bases(spread)).requires_grad_()
    lengths = capsule_lengths(x, weight)
    gradients = torch.autograd.grad(lengths.sum(), (x, weight), create_graph=True)
    assert lengths.isfinite().all()
    assert all(g.isfinite().all() for g in gradients)
    fast = torch.autograd.grad(capsule_lengths(x, weight).sum(), (x, weight))
    assert all(g.isfinite().all() for g in fast)
    assert lengths[0].tolist() == [0.0] * len(weight)


def test_zero_features_have_zero_gradients_of_first_and_second_order():
    x = torch.zeros(3, 8, requires_grad=True)
    weight = reference.random_weight(4, 2, 8, torch.float32).requires_grad_()
    gradients = torch.autograd.grad(capsule_lengths(x, weight).sum(), (x, weight), create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in gradients), (x, weight), allow_unused=True)
    for g in (*gradients, *(g for g in second if g is not None)):
        assert (g == 0).all()


@pytest.mark.parametrize("size", [1e-20, 1e-10, 1e10, 1e20])
def test_lengths_scale_with_features_of_any_size(size):
    x = reference.random_features(6, 8, dtype=torch.float32)
    weight = reference.random_weight(4, 3, 8, torch.float32)
    torch.testing.assert_close(capsule_lengths(size * x, weight) / size, capsule_lengths(x, weight))


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1e3, 1e15])
def test_lengths_do_not_depend_on_the_size_of_the_weight(size):
    x = reference.random_features(6, 8, dtype=torch.float32)
    weight = reference.random_weight(4, 3, 8, torch.float32)
    torch.testing.assert_close(capsule_lengths(x, size * weight), capsule_lengths(x, weight))


@pytest.mark.parametrize("d", [8, 300, 2048])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dependent_columns_span_what_is_left(d, dtype):
    """A column that is a combination of the others adds nothing, to the root of the precision."""
    weight = reference.random_weight(200, 4, d, dtype)
    mix = reference.random_features(200, 8, 4, dtype=dtype)
    x = reference.random_features(16, d, dtype=dtype).requires_grad_()
    dependent = torch.bmm(mix, weight).requires_grad_()
    lengths = capsule_lengths(x, dependent)
    tolerance = 30 * torch.finfo(dtype).eps ** 0.5
    torch.testing.assert_close(lengths, capsule_lengths(x, weight), rtol=tolerance, atol=tolerance)
    assert all(g.isfinite().all() for g in torch.autograd.grad(lengths.sum(), (x, dependent)))
