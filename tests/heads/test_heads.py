"""The layers: what they compute, how they start, what they load, what they refuse."""

import pytest
import reference
import torch
import torch.nn.functional as F
from torch import nn

from cappronet import CapsuleProjection, GroupedNeurons
from cappronet.heads import HEADS, Cosine, Subcenters, WeightNormalized, create_head


@pytest.mark.parametrize("name", HEADS)
def test_every_head_has_the_same_call_and_learns(name):
    layer = create_head(name, 8, 3, 2)
    x, y = torch.randn(60, 8), torch.arange(60) % 3
    x[torch.arange(60), y] += 4
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    first = F.cross_entropy(layer(x), y).item()
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(layer(x), y).backward()
        optimizer.step()
    assert layer(x.view(3, 20, 8)).shape == (3, 20, 3)
    assert F.cross_entropy(layer(x), y).item() < first / 2


def test_an_unknown_head_is_refused():
    with pytest.raises(ValueError, match=r"unknown head 'capsul'.*capsule, group, linear"):
        create_head("capsul", 8, 3)


def test_the_layer_is_the_function():
    layer, x = CapsuleProjection(16, 5, 3).double(), reference.random_features(7, 16)
    weight = layer.weight.detach()
    torch.testing.assert_close(layer(x), reference.lengths(x, weight))
    torch.testing.assert_close(layer.capsules(x), reference.capsules(x, weight))
    torch.testing.assert_close(layer.coordinates(x), reference.coordinates(x, weight))
    torch.testing.assert_close(layer.residuals(x), x.unsqueeze(1) - reference.capsules(x, weight))
    torch.testing.assert_close(layer.projections(), reference.projections(weight))


def test_it_starts_as_the_authors_layer():
    weight = CapsuleProjection(64, 100, 8).weight.detach()
    assert weight.abs().max() <= 1 / 8
    assert weight.std() == pytest.approx(1 / 8 / 3**0.5, rel=0.02)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("scale", [None, 7.0, "learned"])
def test_unit_features_and_scale(normalize, scale):
    layer, x = CapsuleProjection(16, 5, 3, normalize=normalize, scale=scale).double(), reference.random_features(7, 16)
    features = F.normalize(x, dim=-1) if normalize else x
    factor = {None: 1.0, 7.0: 7.0, "learned": 16.0 if normalize else 1.0}[scale]
    torch.testing.assert_close(layer(x), factor * reference.lengths(features, layer.weight.detach()))
    torch.testing.assert_close(factor * layer.coordinates(x).norm(dim=-1), layer(x))
    layer(x).sum().backward()
    if scale == "learned":
        assert layer.scale.grad == pytest.approx(layer(x).sum().item() / factor)
    if normalize:
        assert layer(1e3 * x).allclose(layer(x))


@pytest.mark.parametrize("size", [0.0, 1e-20, 1e20])
@pytest.mark.parametrize("name", ["capsule", "cosine", "subcenter", "weightnorm"])
def test_unit_vectors_of_any_size_stay_finite(name, size):
    options = {"normalize": True} if name == "capsule" else {}
    layer, x = create_head(name, 8, 3, 2, **options), torch.full((4, 8), size, requires_grad=True)
    layer(x).sum().backward()
    assert layer(x).isfinite().all()
    assert x.grad.isfinite().all()
    assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["capsule", "folded", "cosine", "subcenter", "weightnorm"])
def test_zero_and_tiny_unit_vectors_stay_finite_in_every_precision(name, dtype):
    options = {"normalize": True, "scale": "learned"} if name in ("capsule", "folded") else {}
    layer = create_head("capsule" if name == "folded" else name, 8, 3, 2, dtype=dtype, **options)
    tiny = torch.finfo(dtype).tiny
    x = torch.tensor([[0.0] * 8, [tiny / 4] * 8, [tiny] * 8, [torch.finfo(dtype).max] * 8], dtype=dtype)
    if name == "folded":
        assert layer.fold()(x).isfinite().all()
        torch.testing.assert_close(layer.fold()(x)[2], layer.fold()(x)[3])
        return
    with torch.no_grad():
        layer.weight[0] = 0
    x = x[:2].requires_grad_() if name != "weightnorm" else torch.ones(2, 8, dtype=dtype, requires_grad=True)
    layer(x).sum().backward()
    assert layer(x).isfinite().all()
    assert x.grad.isfinite().all()
    assert layer.weight.grad.isfinite().all()
    if name == "capsule":
        assert (layer(x)[0] == 0).all()


@pytest.mark.parametrize("size", [1e-35, 1e-25, 1.0, 1e19, 1e30])
def test_folded_heads_take_features_of_any_size(size):
    layer, x = CapsuleProjection(64, 10, 8), size * torch.randn(9, 64)
    torch.testing.assert_close(layer.fold()(x) / size, layer(x).detach() / size)


@pytest.mark.parametrize("normalize", [False, True])
def test_precisions_are_promoted_by_every_view(normalize):
    layer, x = CapsuleProjection(16, 5, 3, normalize=normalize), torch.randn(4, 16)
    for view in (layer, layer.capsules, layer.coordinates, layer.residuals, layer.fold()):
        assert view(x.double()).dtype == torch.float64
        assert view(x.bfloat16()).dtype == torch.float32
        torch.testing.assert_close(view(x.double()).float(), view(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(view(x.bfloat16()), view(x), rtol=0.05, atol=0.05)
        with pytest.raises(TypeError, match=r"x must be floating point, got torch.int64: convert it.*x\.float\(\)"):
            view(torch.ones(4, 16, dtype=torch.int64))


@pytest.mark.parametrize("options", [{}, {"normalize": True}, {"solver": "hyperpower"}])
def test_a_reset_starts_everything_anew(options):
    layer = CapsuleProjection(16, 5, 3, scale="learned", **options)
    start = layer.scale.item()
    blank = CapsuleProjection(16, 5, 3, scale="learned", device="meta", **options).to_empty(device="cpu")
    for head in (blank, layer):
        with torch.no_grad():
            head.scale.fill_(torch.nan)
        head.reset_parameters()
        assert head.scale.item() == start
        assert head.weight.abs().max() <= 0.25
        assert head(torch.randn(3, 16)).isfinite().all()
    other = Subcenters(16, 5, 4, device="meta").to_empty(device="cpu")
    other.reset_parameters()
    assert other.scale.item() == 16


@pytest.mark.parametrize("options", [{}, {"normalize": True, "scale": "learned"}, {"eps": 0.1, "scale": 3.0}])
def test_folding_keeps_the_function(options):
    layer, x = CapsuleProjection(64, 10, 8, **options).eval(), torch.randn(50, 64)
    folded = layer.fold()
    assert not folded.training
    assert list(folded.parameters()) == []
    torch.testing.assert_close(folded(x), layer(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(folded.double()(x.double()), layer.double()(x.double()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("solver", ["cholesky", "hyperpower"])
def test_features_in_float64_pass_through_heads_in_float32(solver):
    layer, x = CapsuleProjection(16, 5, 3, solver=solver), reference.random_features(7, 16).requires_grad_()
    layer(x).sum().backward()
    assert x.grad.dtype == torch.float64
    tolerance = 1e-12 if solver == "cholesky" else 1e-5
    torch.testing.assert_close(layer(x), reference.lengths(x, layer.weight.detach()), rtol=tolerance, atol=tolerance)


def test_the_authors_layout_loads():
    matrix = torch.randn(10, 16)  # class l owns rows 2l and 2l + 1
    layer = CapsuleProjection(16, 5, 2)
    layer.load_state_dict({"weight": matrix}, strict=True)
    x = torch.randn(3, 16)
    rows = matrix[6:8].double()
    expected = (x.double() @ rows.mT @ torch.linalg.inv(rows @ rows.mT) @ rows).norm(dim=-1)
    torch.testing.assert_close(layer(x)[:, 3].double(), expected, rtol=1e-5, atol=1e-5)
    model = nn.ModuleDict({"head": CapsuleProjection(16, 5, 2, solver="hyperpower")})
    model.load_state_dict({"head.weight": matrix}, strict=True)
    torch.testing.assert_close(model["head"](x), layer(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict({"weight": matrix[:9]})


def test_from_linear_contains_the_weight_vectors():
    linear = nn.Linear(32, 6)
    layer = CapsuleProjection.from_linear(linear, 4, scale=2.0)
    assert layer.scale == 2.0
    torch.testing.assert_close(layer.weight[:, 0], linear.weight, rtol=1e-4, atol=1e-5)
    gram = layer.weight @ layer.weight.mT
    norms = linear.weight.square().sum(-1)[:, None, None]
    torch.testing.assert_close(gram / norms, torch.eye(4).expand(6, 4, 4), rtol=0, atol=1e-4)
    one = CapsuleProjection.from_linear(linear, 1)
    x = torch.randn(9, 32)
    expected = F.linear(x, F.normalize(linear.weight, dim=-1)).abs()
    torch.testing.assert_close(one(x), expected, rtol=1e-4, atol=1e-5)


def test_from_features_is_the_best_subspace():
    x, y = torch.randn(300, 12) * torch.logspace(0, 1, 12), torch.arange(300) % 4
    layer = CapsuleProjection.from_features(x, y, 3)
    assert layer.weight.shape == (4, 3, 12)
    own = layer(x).gather(1, y[:, None]).square().sum()
    total = sum(torch.linalg.svdvals(x[y == k])[:3].square().sum() for k in range(4))
    torch.testing.assert_close(own, total, rtol=1e-4, atol=0)
    gram = layer.weight @ layer.weight.mT
    torch.testing.assert_close(gram, torch.eye(3).expand(4, 3, 3), rtol=0, atol=1e-5)


def test_from_features_classifies_digits():
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = torch.from_numpy(data.data).float(), torch.from_numpy(data.target)
    layer = CapsuleProjection.from_features(x[::2], y[::2], 10, normalize=True)
    error = (layer(x[1::2]).argmax(-1) != y[1::2]).float().mean()
    assert error < 0.03


def test_from_features_refuses_what_it_cannot_do():
    x, y = torch.randn(10, 6), torch.arange(10) % 3
    with pytest.raises(ValueError, match="class 1 has 3 features, but a subspace of dimension 4"):
        CapsuleProjection.from_features(x, y, 4)
    with pytest.raises(ValueError, match="class 3 has 0 features"):
        CapsuleProjection.from_features(x, y, 2, num_classes=4)
    with pytest.raises(ValueError, match="classes must be 0 to 1, got 2"):
        CapsuleProjection.from_features(x, y, 2, num_classes=2)
    with pytest.raises(ValueError, match=r"\(10, 6\) and torch.float32 \(10,\)"):
        CapsuleProjection.from_features(x, y.float(), 2)


def test_grouped_neurons_are_a_dense_layer_and_a_norm():
    layer, x = GroupedNeurons(16, 5, 3), torch.randn(7, 16)
    y = x @ layer.neurons.weight.mT + layer.neurons.bias
    torch.testing.assert_close(layer(x), y.view(7, 5, 3).norm(dim=-1))
    assert sum(p.numel() for p in layer.parameters()) == 5 * 3 * 17


def test_weight_normalization_is_the_capsule_of_dimension_one_with_a_sign():
    layer, x = WeightNormalized(16, 5), torch.randn(7, 16)
    capsule = CapsuleProjection(16, 5, 1)
    capsule.load_state_dict({"weight": layer.weight})
    torch.testing.assert_close(layer(x).abs(), capsule(x), rtol=1e-4, atol=1e-5)
    assert (layer(x) < 0).any()


def test_cosine_and_subcenters():
    x = torch.randn(7, 16)
    one, many = Cosine(16, 5, scale=3.0), Subcenters(16, 5, 4, scale=3.0)
    torch.testing.assert_close(one(x), 3 * F.cosine_similarity(x[:, None], one.weight[:, 0], dim=-1))
    torch.testing.assert_close(many(x), 3 * F.cosine_similarity(x[:, None, None], many.weight, dim=-1).amax(-1))


def test_impossible_arguments_are_refused_with_their_numbers():
    with pytest.raises(ValueError, match="4 features has dimension 1 to 4, got capsule dimension 5"):
        CapsuleProjection(4, 3, 5)
    with pytest.raises(ValueError, match="capsule_dim must be at least 1, got 0"):
        CapsuleProjection(4, 3, 0)
    with pytest.raises(ValueError, match="num_classes must be at least 1, got -1"):
        GroupedNeurons(4, -1)
    with pytest.raises(ValueError, match=r"eps.*-1"):
        CapsuleProjection(4, 3, 2, eps=-1)
    with pytest.raises(ValueError, match=r"solver.*'inverse'"):
        CapsuleProjection(4, 3, 2, solver="inverse")
    with pytest.raises(ValueError, match=r"scale.*-2"):
        CapsuleProjection(4, 3, 2, scale=-2)
    with pytest.raises(ValueError, match=r"\(\.\.\., 4\).*\(2, 5\)"):
        CapsuleProjection(4, 3, 2)(torch.zeros(2, 5))


def test_repr_shows_what_was_chosen():
    assert repr(CapsuleProjection(64, 10)) == "CapsuleProjection(64, 10, capsule_dim=4)"
    shown = repr(CapsuleProjection(64, 10, 8, solver="hyperpower", eps=1e-4, normalize=True, scale="learned"))
    assert shown == (
        "CapsuleProjection(64, 10, capsule_dim=8, solver='hyperpower', eps=0.0001, normalize=True, scale='learned')"
    )


@pytest.mark.slow
def test_a_hundred_thousand_classes_train():
    layer = CapsuleProjection(512, 100_000, 4)
    x, y = torch.randn(16, 512), torch.arange(16) * 6000
    loss = F.cross_entropy(layer(x), y)
    loss.backward()
    with torch.no_grad():
        layer.weight.sub_(layer.weight.grad, alpha=1.0)
    assert F.cross_entropy(layer(x), y) < loss
