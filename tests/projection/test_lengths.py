"""The maths against a slow reference, and the paper's statements about it."""

import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cappronet import projection
from cappronet.projection import capsule_lengths

D = 24
SIZES = [(L, c) for L in (1, 10, 1000) for c in (1, 2, 4, 8, 16, D)]
# (dtype, tolerance relative to the largest value of the reference)
PRECISIONS = [(torch.float64, 1e-10), (torch.float32, 1e-4)]


def assert_close(actual, expected, tolerance, scale=None):
    scale = expected.abs().max() if scale is None else scale
    assert actual.shape == expected.shape
    assert (actual.double() - expected).abs().max() <= tolerance * scale


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("L", "c"), SIZES)
def test_values_agree_with_the_pseudoinverse(L, c, dtype, tolerance):
    weight, x = reference.random_weight(L, c, D, dtype), reference.random_features(7, D, dtype=dtype)
    assert capsule_lengths(x, weight).dtype == dtype
    assert_close(capsule_lengths(x, weight), reference.lengths(x, weight), tolerance)
    assert_close(projection.capsules(x, weight), reference.capsules(x, weight), tolerance)
    assert_close(projection.coordinates(x, weight), reference.coordinates(x, weight), tolerance)
    assert_close(projection.projections(weight), reference.projections(weight), tolerance)
    expected = x.double().unsqueeze(-2) - reference.capsules(x, weight)
    assert_close(projection.residuals(x, weight), expected, tolerance, scale=x.abs().max())


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("L", "c"), SIZES)
def test_gradients_agree_with_the_pseudoinverse(L, c, dtype, tolerance):
    weight, x = reference.random_weight(L, c, D, dtype), reference.random_features(7, D, dtype=dtype)
    g = reference.random_features(7, L, dtype=dtype, seed=2)
    x.requires_grad_()
    weight.requires_grad_()
    dx, dw = torch.autograd.grad(capsule_lengths(x, weight), (x, weight), g)
    expected = torch.autograd.grad(reference.lengths(x, weight), (x, weight), g.double())
    assert_close(dx, expected[0].double(), tolerance)
    # Where c = d nothing is orthogonal to the subspace and the gradient is zero: measure against x t' instead.
    assert_close(dw, expected[1].double(), tolerance, scale=g.abs().max() * x.norm(dim=-1).max())


@pytest.mark.parametrize("c", [1, 3, D])
def test_projections_are_symmetric_idempotent_and_of_rank_c(c):
    P = projection.projections(reference.random_weight(5, c, D))
    torch.testing.assert_close(P, P.mT, rtol=0, atol=1e-12)
    torch.testing.assert_close(P @ P, P, rtol=0, atol=1e-11)
    assert torch.linalg.matrix_rank(P, rtol=1e-8).tolist() == [c] * 5


def test_length_and_residual_obey_pythagoras():
    weight, x = reference.random_weight(10, 4, D), reference.random_features(50, D)
    residual = projection.residuals(x, weight).norm(dim=-1)
    total = capsule_lengths(x, weight).square() + residual.square()
    torch.testing.assert_close(total, x.square().sum(-1, keepdim=True).expand_as(total), rtol=1e-12, atol=0)


def test_every_column_of_the_gradient_is_orthogonal_to_the_subspace():
    weight, x = reference.random_weight(10, 4, D).requires_grad_(), reference.random_features(1, D)
    (gradient,) = torch.autograd.grad(capsule_lengths(x, weight).sum(), weight)
    assert gradient.abs().max() > 0.1
    assert torch.bmm(gradient, weight.detach().mT).abs().max() < 1e-12
    novel = projection.residuals(x, weight.detach())[0]
    parallel = torch.einsum("lcd,ld->lc", gradient, novel) / novel.square().sum(-1, keepdim=True)
    torch.testing.assert_close(gradient, parallel.unsqueeze(-1) * novel.unsqueeze(1), rtol=0, atol=1e-11)


@pytest.mark.parametrize("c", [1, 4])
def test_too_large_a_step_makes_the_next_ones_smaller(c):
    weight, x = reference.random_weight(1, c, D).requires_grad_(), reference.random_features(1, D).requires_grad_()
    by_x, by_weight = torch.autograd.grad(capsule_lengths(x, weight).sum(), (x, weight))
    torch.testing.assert_close(by_x.norm(), torch.ones_like(by_x.norm()))
    longer = weight.detach() + 100 * by_weight
    gram = [basis[0] @ basis[0].mT for basis in (longer, weight.detach())]
    assert torch.linalg.eigvalsh(gram[0] - gram[1]).min() > -1e-9
    scaled = (7 * weight.detach()).requires_grad_()
    again_by_x, again_by_weight = torch.autograd.grad(capsule_lengths(x, scaled).sum(), (x, scaled))
    torch.testing.assert_close(again_by_x, by_x)
    torch.testing.assert_close(again_by_weight, by_weight / 7)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), c=st.integers(1, 6), spread=st.floats(0, 3), scale=st.floats(-5, 5))
def test_lengths_depend_on_the_subspace_alone(seed, c, spread, scale):
    weight, x = reference.random_weight(3, c, D, seed=seed), reference.random_features(5, D, seed=seed)
    left, right = torch.linalg.qr(reference.random_features(2, 3, c, c, seed=seed + 1))[0]
    mix = 10**scale * left * torch.logspace(-spread / 2, spread / 2, c, dtype=x.dtype) @ right
    expected = capsule_lengths(x, weight)
    torch.testing.assert_close(capsule_lengths(x, mix @ weight), expected, rtol=1e-7, atol=1e-7)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), c=st.integers(1, D), size=st.floats(-6, 6))
def test_lengths_lie_between_zero_and_the_feature_length(seed, c, size):
    x = 10**size * reference.random_features(20, D, dtype=torch.float32, seed=seed)
    lengths = capsule_lengths(x, reference.random_weight(4, c, D, torch.float32, seed=seed))
    assert (lengths >= 0).all()
    assert (lengths <= x.norm(dim=-1, keepdim=True) * (1 + 1e-5)).all()


def test_one_dimension_is_weight_normalization():
    weight, x = reference.random_weight(10, 1, D), reference.random_features(8, D)
    expected = (x @ weight[:, 0].mT).abs() / weight[:, 0].norm(dim=-1)
    torch.testing.assert_close(capsule_lengths(x, weight), expected, rtol=1e-12, atol=1e-12)


def test_coordinates_have_the_length_of_the_capsule():
    weight, x = reference.random_weight(10, 3, D), reference.random_features(8, D)
    lengths = projection.coordinates(x, weight).norm(dim=-1)
    torch.testing.assert_close(lengths, capsule_lengths(x, weight), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(projection.capsules(x, weight).norm(dim=-1), lengths, rtol=1e-12, atol=1e-12)


def test_bases_are_orthonormal_and_span_the_subspace():
    weight = reference.random_weight(10, 3, D)
    basis = projection.bases(weight)
    torch.testing.assert_close(basis @ basis.mT, torch.eye(3).double().expand(10, 3, 3), rtol=0, atol=1e-12)
    torch.testing.assert_close(weight @ projection.projections(basis), weight, rtol=0, atol=1e-12)


def test_the_ridge_is_the_papers():
    weight, x = reference.random_weight(10, 3, D), reference.random_features(8, D)
    sigma = torch.linalg.inv(weight @ weight.mT + 0.5 * torch.eye(3))
    u = torch.einsum("bd,lcd->blc", x, weight)
    expected = torch.einsum("blc,lce,ble->bl", u, sigma, u).sqrt()
    torch.testing.assert_close(capsule_lengths(x, weight, 0.5), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", [2, 3])
def test_a_hyper_power_step_raises_the_residual_to_its_order(order):
    gram = projection.regularized_gram(reference.random_weight(10, 4, D))
    start = torch.linalg.inv(gram) * 1.1
    sigma, before = projection.hyper_power_step(start, gram, order)
    _, after = projection.hyper_power_step(sigma, gram, order)
    torch.testing.assert_close(before, torch.full_like(before, 0.1 * 2), rtol=1e-9, atol=0)  # |0.1 I| for c = 4
    torch.testing.assert_close(after, torch.full_like(after, 0.1**order * 2), rtol=1e-9, atol=0)


def test_the_hyper_power_sequence_converges_to_the_inverse():
    gram = projection.regularized_gram(reference.random_weight(10, 4, D))
    sigma = gram / gram.square().sum((1, 2), keepdim=True)  # G' / |G|^2, a start that always converges
    for _ in range(40):
        sigma, _ = projection.hyper_power_step(sigma, gram)
    torch.testing.assert_close(sigma, torch.linalg.inv(gram), rtol=1e-9, atol=1e-12)


def test_impossible_arguments_are_refused_with_their_numbers():
    x, weight = torch.zeros(5, 8), torch.zeros(3, 2, 8)
    with pytest.raises(ValueError, match=r"\(\.\.\., 8\).*got \(5, 7\)"):
        capsule_lengths(x[:, :7], weight)
    with pytest.raises(ValueError, match="8 features has dimension 1 to 8, got capsule dimension 9"):
        capsule_lengths(x, torch.zeros(3, 9, 8))
    with pytest.raises(ValueError, match=r"\(L, c, d\).*\(6, 8\)"):
        capsule_lengths(x, weight.flatten(0, 1))
    with pytest.raises(ValueError, match=r"eps.*-0\.1"):
        capsule_lengths(x, weight, -0.1)
    with pytest.raises(ValueError, match=r"eps.*nan"):
        capsule_lengths(x, weight, float("nan"))
    with pytest.raises(TypeError, match=r"torch\.int64"):
        capsule_lengths(x.long(), weight)
    with pytest.raises(TypeError, match=r"torch\.int64"):
        capsule_lengths(x, weight.long())
    with pytest.raises(ValueError, match="order must be 2 or 3, got 4"):
        projection.hyper_power_step(torch.eye(2)[None], torch.eye(2)[None], order=4)


def conditioned(L, c, d, condition, seed=0):
    """Bases in float32 whose Gram matrices have this condition number, with eigenvalues spread evenly in the log."""
    q = torch.linalg.qr(reference.random_features(L, d, c, seed=seed)).Q
    mix = torch.linalg.qr(reference.random_features(L, c, c, seed=seed + 1)).Q
    return (q * torch.logspace(0, -math.log10(condition) / 2, c, dtype=q.dtype) @ mix).mT.float()


@pytest.mark.parametrize("d", [64, 512, 2048])
@pytest.mark.parametrize("c", [2, 8])
@pytest.mark.parametrize(("condition", "tolerance"), [(1e2, 1e-4), (1e3, 1e-3), (1e4, 1e-2)])
def test_the_accuracy_that_is_promised_in_float32(condition, tolerance, c, d):
    weight, x = conditioned(50, c, d, condition), reference.random_features(64, d, dtype=torch.float32)
    q = torch.linalg.qr(weight.double().mT).Q
    exact = torch.einsum("bd,ldc->lbc", x.double(), q).norm(dim=-1).mT
    error = (capsule_lengths(x, weight) - exact).abs()
    assert (error / exact).max() < tolerance
    assert (error / x.norm(dim=-1, keepdim=True)).max() < 1e-6 * condition
    # The view with coordinates has the same lengths.
    assert (projection.coordinates(x, weight).norm(dim=-1) - exact).abs().div(exact).max() < tolerance


@pytest.mark.parametrize("condition", [1e5, 1e6, 1e7, 1e9, 1e14])
def test_nothing_is_longer_than_the_features(condition):
    weight = conditioned(200, 4, 16, condition)
    x = torch.cat([weight[:8].flatten(0, 1), reference.random_features(32, 16, dtype=torch.float32)])
    norms = x.norm(dim=-1, keepdim=True)
    lengths = capsule_lengths(x, weight)
    coordinates = projection.coordinates(x, weight).norm(dim=-1)
    assert (lengths <= norms * (1 + 1e-6)).all()
    assert (coordinates <= norms * (1 + 1e-6)).all()
    assert (projection.capsules(x, weight).norm(dim=-1) <= norms * 1.001).all()
    assert ((coordinates - lengths).abs() <= 1e-3 * norms).all()


@pytest.mark.parametrize("parallel", [0.0, 1e-7, 1e-5, 1e-3])
def test_coordinates_with_parallel_columns_have_the_length_of_the_capsule(parallel):
    weight = reference.random_weight(100, 3, 12, torch.float32)
    weight[:, 2] = weight[:, 1] + parallel * reference.random_features(100, 12, dtype=torch.float32)
    x = reference.random_features(30, 12, dtype=torch.float32)
    lengths, norms = capsule_lengths(x, weight), x.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(
        projection.coordinates(x, weight).norm(dim=-1) / norms, lengths / norms, rtol=0, atol=1e-3
    )


def test_lengths_and_gradient_without_autograd_are_those_of_autograd():
    torch.manual_seed(0)
    x = torch.randn(20, 9, dtype=torch.float64)
    weight = torch.randn(5, 3, 9, dtype=torch.float64, requires_grad=True)
    lengths, gradient = projection.lengths_and_gradient(x, weight)
    expected = projection.capsule_lengths(x, weight)
    torch.testing.assert_close(lengths, expected.detach().mT, rtol=1e-12, atol=1e-12)
    g = torch.randn_like(lengths)
    (expected * g.mT).sum().backward()
    torch.testing.assert_close(gradient(g), weight.grad, rtol=1e-10, atol=1e-10)
    assert not lengths.requires_grad
