"""The head under PyTorch's transforms and in all the states a module gets into."""

import copy
import pickle

import pytest
import reference
import torch
from torch import nn
from torch.func import functional_call, jacfwd, jacrev, jvp, stack_module_state, vmap

from cappronet import CapsuleProjection, capsule_lengths

SOLVERS = ["cholesky", "hyperpower"]


def head(**options):
    return CapsuleProjection(16, 5, 3, **options)


def test_vmap_over_features_weights_and_both():
    x, weight = reference.random_features(4, 6, 16), reference.random_weight(12, 3, 16).view(4, 3, 3, 16)
    both = torch.stack([capsule_lengths(a, w) for a, w in zip(x, weight, strict=True)])
    torch.testing.assert_close(vmap(capsule_lengths)(x, weight), both)
    torch.testing.assert_close(vmap(capsule_lengths, (0, None))(x, weight[0]), capsule_lengths(x, weight[0]))
    weights = torch.stack([capsule_lengths(x[0], w) for w in weight])
    torch.testing.assert_close(vmap(capsule_lengths, (None, 0))(x[0], weight), weights)


def test_vmap_over_an_ensemble_of_heads_and_their_gradients():
    heads = [head() for _ in range(3)]
    parameters, buffers = stack_module_state(heads)
    x = torch.randn(7, 16)

    def loss(p, b):
        return functional_call(heads[0], (p, b), (x,)).square().sum()

    gradients = vmap(torch.func.grad(loss))(parameters, buffers)["weight"]
    for one, gradient in zip(heads, gradients, strict=True):
        (expected,) = torch.autograd.grad(one(x).square().sum(), one.weight)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_jacrev_agrees_with_the_reference():
    x, weight = reference.random_features(3, 8), reference.random_weight(4, 2, 8)
    for mine, theirs in zip(
        jacrev(capsule_lengths, (0, 1))(x, weight), jacrev(reference.lengths, (0, 1))(x, weight), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


def test_forward_mode_agrees_with_reverse_mode():
    x, weight = reference.random_features(3, 8), reference.random_weight(4, 2, 8)
    expected = jacrev(reference.lengths, (0, 1))(x, weight)
    for mine, theirs in zip(jacfwd(capsule_lengths, (0, 1))(x, weight), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)

    def function(lengths):
        return lambda w: lengths(x, w).square().sin().sum()

    hessian = jacrev(jacrev(function(reference.lengths)))(weight)
    for mixed in (jacfwd(jacrev(function(capsule_lengths))), jacrev(jacfwd(function(capsule_lengths)))):
        torch.testing.assert_close(mixed(weight), hessian, rtol=1e-8, atol=1e-8)
    with pytest.raises(RuntimeError, match=r"jacfwd\(jacrev"):  # PyTorch would return 0
        jacfwd(jacfwd(function(capsule_lengths)))(weight)
    _, tangent = jvp(capsule_lengths, (torch.zeros(2, 8).double(), weight), (torch.ones(2, 8).double(), weight))
    assert (tangent == 0).all()


def test_third_derivatives_agree_with_the_reference():
    x, weight = reference.random_features(5), reference.random_weight(2, 2, 5)

    def third(function):
        return jacrev(jacrev(jacrev(lambda w: function(x, w).sum())))(weight)

    torch.testing.assert_close(third(capsule_lengths), third(reference.lengths), rtol=1e-7, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_compile_in_train_and_eval(solver):
    layer = head(solver=solver, normalize=True, scale="learned")
    twin = copy.deepcopy(layer)
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(8, 16)
    for _ in range(3):
        for module in (compiled, twin):
            module.zero_grad()
            module(x).square().sum().backward()
        torch.testing.assert_close(layer.weight.grad, twin.weight.grad, rtol=1e-4, atol=1e-5)
        step = 0.3 * torch.randn_like(layer.weight)  # far enough for the hyper-power sequence to restart
        with torch.no_grad():
            for parameter in (layer.weight, twin.weight):
                parameter.add_(step)
    if solver == "hyperpower":
        assert layer.restarts == twin.restarts > 0
    torch.testing.assert_close(compiled.eval()(x), twin.eval()(x))


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_compiled_gradients_under_autocast_are_those_of_eager_ones(solver):
    x = torch.randn(8, 16)
    gradients = []
    layer = head(solver=solver, normalize=True, scale=25.0)
    for module in (torch.compile(layer, fullgraph=True), layer):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            lengths = module(x)
        lengths.square().sum().backward()
        gradients.append(layer.weight.grad.clone())
    compiled, eager = gradients
    assert compiled.dtype == torch.float32
    torch.testing.assert_close(compiled, eager, rtol=2**-7, atol=2**-7 * eager.abs().max().item())


def test_export_with_a_dynamic_batch():
    layer = head().eval()
    batch = {"x": {0: torch.export.Dim("batch")}}
    for module in (layer, layer.fold()):
        # Not strict is the default of newer versions of PyTorch.
        program = torch.export.export(module, (torch.randn(4, 16),), dynamic_shapes=batch, strict=False)
        x = torch.randn(9, 16)
        torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("solver", SOLVERS)
def test_autocast_keeps_the_factorization_in_float32(dtype, solver):
    layer, x = head(solver=solver), torch.randn(32, 16)
    expected = layer(x)
    (exact,) = torch.autograd.grad(expected.sum(), layer.weight)
    with torch.autocast("cpu", dtype=dtype):
        lengths = layer(x)
        (inside,) = torch.autograd.grad(lengths.sum(), layer.weight, retain_graph=True)
        sigma = layer.coordinates(x).float().norm(dim=-1)
    (outside,) = torch.autograd.grad(lengths.sum(), layer.weight)
    assert lengths.dtype == inside.dtype == torch.float32
    precision = torch.finfo(dtype).eps
    torch.testing.assert_close(lengths, expected, rtol=4 * precision, atol=4 * precision)
    torch.testing.assert_close(sigma, expected, rtol=8 * precision, atol=8 * precision)
    scale = exact.abs().max().item()
    torch.testing.assert_close(outside, exact, rtol=0, atol=8 * precision * scale)
    torch.testing.assert_close(inside, outside)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_module_in_half_precision(dtype, solver):
    layer = head(solver=solver).to(dtype)
    x = torch.randn(32, 16, dtype=dtype, requires_grad=True)
    lengths = layer(x)
    lengths.sum().backward()
    assert lengths.dtype == x.grad.dtype == layer.weight.grad.dtype == dtype
    expected = reference.lengths(x.detach(), layer.weight.detach())
    precision = torch.finfo(dtype).eps
    torch.testing.assert_close(lengths.double(), expected, rtol=4 * precision, atol=4 * precision)


def test_features_and_weights_of_different_precision_meet_in_the_higher():
    x, weight = torch.randn(4, 16), reference.random_weight(5, 3, 16)
    torch.testing.assert_close(capsule_lengths(x, weight), reference.lengths(x, weight))


@pytest.mark.parametrize("lead", [(), (7,), (2, 3), (2, 0, 3), (0,)])
def test_any_leading_shape(lead):
    layer, x = head(), torch.randn(*lead, 16, requires_grad=True)
    assert layer(x).shape == (*lead, 5)
    assert layer.capsules(x).shape == layer.residuals(x).shape == (*lead, 5, 16)
    assert layer.coordinates(x).shape == (*lead, 5, 3)
    assert layer.fold()(x).shape == (*lead, 5)
    layer(x).sum().backward()
    assert x.grad.shape == x.shape
    torch.testing.assert_close(layer(x).reshape(-1, 5), layer(x.reshape(-1, 16)))


def test_tensors_that_are_not_contiguous():
    layer, x = head().double(), reference.random_features(16, 6)
    weight = layer.weight.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not x.mT.is_contiguous()
    assert not weight.is_contiguous()
    torch.testing.assert_close(capsule_lengths(x.mT, weight), layer(x.mT.contiguous()))
    leaves = x.mT.requires_grad_(), weight.requires_grad_()
    gradient = torch.randn(5, 6).double().mT
    dx, dw = torch.autograd.grad(capsule_lengths(*leaves), leaves, gradient)
    expected = torch.autograd.grad(reference.lengths(*leaves), leaves, gradient)
    torch.testing.assert_close((dx, dw), expected, rtol=1e-9, atol=1e-10)
    assert layer(x.mT).is_contiguous()


@pytest.mark.parametrize("solver", SOLVERS)
def test_copies_keep_the_function(solver):
    layer, x = head(solver=solver, scale="learned"), torch.randn(4, 16)
    layer(x)
    layer.eval()
    fresh = head(solver=solver, scale="learned")
    fresh.load_state_dict(layer.state_dict(), strict=True)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fresh):
        assert twin.state_dict().keys() == layer.state_dict().keys()
        assert twin.eval()(x).equal(layer(x))


@pytest.mark.parametrize("solver", SOLVERS)
def test_meta_device_and_skip_init(solver):
    assert head(solver=solver, device="meta")(torch.empty(4, 16, device="meta")).shape == (4, 5)
    layer = nn.utils.skip_init(CapsuleProjection, 16, 5, 3, solver=solver)
    layer.weight.data.normal_()
    x = torch.randn(4, 16)
    torch.testing.assert_close(layer(x).double(), reference.lengths(x, layer.weight.detach()), rtol=1e-4, atol=1e-4)
