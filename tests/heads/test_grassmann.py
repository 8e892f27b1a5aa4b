"""SGD on subspaces: exact against its definition, orthonormal for ever, the same after a trip through a file."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cappronet import CapsuleProjection, projection
from cappronet.heads import CombinedOptimizer, GrassmannSGD

RETRACTIONS = ("geodesic", "qr")


def random_bases(L=3, c=2, d=8, dtype=torch.float64):
    return nn.Parameter(projection.bases(torch.randn(L, c, d, dtype=dtype)))


def distance_from_orthonormal(weight):
    return (weight @ weight.mT - torch.eye(weight.shape[1], dtype=weight.dtype)).abs().max().item()


def task(d=12, L=4):
    """Features of L classes, each around a plane of its own."""
    x, y = torch.randn(80, d, dtype=torch.float64), torch.arange(80) % L
    x[torch.arange(80), y] += 3
    return x, y


def orthonormal_head(d=12, L=4, c=2, **options):
    return CapsuleProjection(d, L, c, solver="orthonormal", **options, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("retraction", RETRACTIONS)
def test_bases_stay_orthonormal_over_ten_thousand_steps(retraction):
    weight = random_bases(dtype=torch.float32)
    optimizer = GrassmannSGD([weight], lr=0.1, momentum=0.9, retraction=retraction)
    gradients, largest = torch.randn(50, *weight.shape), 0.0
    for step in range(10_000):
        weight.grad = gradients[step % 50]
        optimizer.step()
        if step % 100 == 99:
            largest = max(largest, distance_from_orthonormal(weight))
    assert largest < 1e-6


def test_a_step_is_the_geodesic_of_the_projected_gradient():
    weight = random_bases()
    start, gradient = weight.detach().clone(), torch.randn_like(weight)
    optimizer = GrassmannSGD([weight], lr=0.3)
    weight.grad = gradient
    optimizer.step()
    for before, after, g in zip(start, weight.detach(), gradient, strict=True):
        velocity = -0.3 * (g - g @ before.T @ before)
        turn = torch.linalg.matrix_exp(velocity.T @ before - before.T @ velocity)
        torch.testing.assert_close(after, before @ turn.T, rtol=0, atol=1e-13)


def test_the_qr_retraction_is_gram_schmidt_and_agrees_with_the_geodesic_to_first_order():
    start = random_bases()
    gradient = projection.tangent(start, torch.randn_like(start)).detach()
    distances = []
    for lr in (1e-2, 5e-3):
        ends = []
        for retraction in RETRACTIONS:
            weight = nn.Parameter(start.detach().clone())
            weight.grad = gradient
            GrassmannSGD([weight], lr=lr, retraction=retraction).step()
            ends.append(weight.detach())
        q, r = torch.linalg.qr((start - lr * gradient).mT)
        torch.testing.assert_close(ends[1].mT, q * r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1))
        distances.append((ends[0] - ends[1]).norm().item())
    assert distances[0] / distances[1] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_that_of_sgd_projected_at_the_new_basis(nesterov):
    weight, gradients = random_bases(), torch.randn(5, 3, 2, 8, dtype=torch.float64)
    optimizer = GrassmannSGD([weight], lr=0.1, momentum=0.9, nesterov=nesterov)
    basis, buffer = weight.detach().clone(), torch.zeros_like(weight)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
        buffer = 0.9 * buffer + gradient
        direction = gradient + 0.9 * buffer if nesterov else buffer
        basis = projection.geodesic(basis, -0.1 * projection.tangent(basis, direction))
        torch.testing.assert_close(weight.detach(), basis)
    torch.testing.assert_close(optimizer.state[weight]["momentum_buffer"], buffer)


def test_momentum_survives_a_step():
    """A step moves each vector of a basis in parallel, so that the buffer still belongs to it.

    Bases Q S span the subspaces of S, and their gradients are Q times those of S. If steps turned bases within their
    subspaces, momentum would act on other vectors afterwards, and the two runs would part.
    """
    x, y = task()
    head = orthonormal_head(normalize=True, scale=8.0)
    turned = copy.deepcopy(head)
    rotation = torch.linalg.qr(torch.randn(4, 2, 2, dtype=torch.float64)).Q
    with torch.no_grad():
        turned.weight.copy_(rotation @ head.weight)
    start = projection.projections(head.weight.detach())
    for layer in (head, turned):
        optimizer = GrassmannSGD([layer.weight], lr=0.1, momentum=0.9)
        for _ in range(30):
            optimizer.zero_grad()
            F.cross_entropy(layer(x), y).backward()
            optimizer.step()
    assert (head.projections() - start).abs().max() > 0.1
    torch.testing.assert_close(turned.projections(), head.projections(), rtol=0, atol=1e-10)
    torch.testing.assert_close(turned.weight, rotation @ head.weight, rtol=0, atol=1e-10)


@pytest.mark.parametrize("retraction", RETRACTIONS)
def test_momentum_alone_carries_a_basis_on_its_way(retraction):
    """Without further gradients the first motion continues along one geodesic: no vector turns around."""
    weight = random_bases(1, 2, 8)
    start = weight.detach().clone()
    gradient = projection.tangent(start, torch.randn_like(start))
    optimizer = GrassmannSGD([weight], lr=0.001, momentum=0.9, retraction=retraction)
    for step in range(20):
        weight.grad = gradient if step == 0 else torch.zeros_like(gradient)
        optimizer.step()
    distance = 0.001 * sum(0.9**step for step in range(20))
    torch.testing.assert_close((start - weight.detach()) / distance, gradient, rtol=0, atol=0.05)


def test_the_orthonormal_solver_trains_as_the_exact_one():
    x, y = task()
    heads = [orthonormal_head(normalize=True, scale=8.0)]
    heads.append(CapsuleProjection(12, 4, 2, normalize=True, scale=8.0, dtype=torch.float64))
    heads[1].load_state_dict(heads[0].state_dict())
    losses = []
    for head in heads:
        optimizer = GrassmannSGD([head.weight], lr=0.2, momentum=0.9, nesterov=True)
        for _ in range(40):
            optimizer.zero_grad()
            loss = F.cross_entropy(head(x), y)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(heads[0].weight, heads[1].weight, rtol=0, atol=1e-10)
    assert losses[0] < 0.5


@pytest.mark.parametrize("options", [{}, {"normalize": True, "scale": 25.0}])
def test_orthonormal_bases_need_no_factorization(options, monkeypatch):
    head, x = orthonormal_head(**options), torch.randn(9, 12, dtype=torch.float64, requires_grad=True)
    exact = CapsuleProjection(12, 4, 2, **options, dtype=torch.float64)
    exact.load_state_dict(head.state_dict())
    gradients = []
    for layer in (head, exact):
        layer(x).square().sum().backward()
        gradients += [x.grad.clone(), layer.weight.grad]
        x.grad = None
    torch.testing.assert_close(gradients[0], gradients[2])
    torch.testing.assert_close(gradients[1], gradients[3])
    for view in ("forward", "capsules", "coordinates", "residuals"):
        torch.testing.assert_close(getattr(head, view)(x), getattr(exact, view)(x))
    torch.testing.assert_close(head.fold()(x), head(x))

    def refused(*_args, **_options):
        raise AssertionError("a factorization")

    monkeypatch.setattr(torch.linalg, "cholesky_ex", refused)
    head(x).sum().backward()
    with pytest.raises(AssertionError, match="a factorization"):
        head.eval()(x)  # exact, whatever the bases are, such as a moving average of them


def test_second_derivatives_are_those_of_the_projection():
    x, weight = torch.randn(4, 6, dtype=torch.float64), random_bases(3, 2, 6)
    hessians = [
        torch.autograd.functional.hessian(
            lambda w, o=orthonormal: projection.capsule_lengths(x, w, orthonormal=o).sum(), weight.detach()
        )
        for orthonormal in (False, True)
    ]
    torch.testing.assert_close(*hessians)


def test_an_orthonormal_head_starts_in_the_subspaces_of_the_exact_one():
    torch.manual_seed(3)
    exact = CapsuleProjection(64, 10, 8)
    torch.manual_seed(3)
    head = CapsuleProjection(64, 10, 8, solver="orthonormal")
    assert distance_from_orthonormal(head.weight) < 1e-6
    torch.testing.assert_close(head.projections(), exact.projections(), atol=1e-4, rtol=0)
    assert "solver='orthonormal'" in repr(head)
    assert set(head.state_dict()) == {"weight"}


def test_heads_made_from_something_else_start_orthonormal_too():
    linear = nn.Linear(12, 4)
    x, y = task()
    for head in (
        CapsuleProjection.from_linear(linear, 2, solver="orthonormal"),
        CapsuleProjection.from_features(x.float(), y, 2, solver="orthonormal"),
    ):
        assert distance_from_orthonormal(head.weight) < 1e-6


def test_classes_can_be_added_and_removed_during_training():
    x, y = task()
    head = orthonormal_head(scale=2.0)
    optimizer = CombinedOptimizer(GrassmannSGD([head.weight], lr=0.1, momentum=0.9))

    def train(labels):
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(head(x), labels).backward()
            optimizer.step()

    train(y)
    assert head.add_class(x[y == 0] + 1, optimizer=optimizer) == 4
    before = head.weight.detach().clone()
    train(y + 1)
    assert head.weight.shape == (5, 2, 12)
    assert (head.weight - before).abs().amax((1, 2)).min() > 1e-4
    head.remove_class(1, optimizer=optimizer)
    train(y)
    assert distance_from_orthonormal(head.weight) < 1e-12


def network_and_optimizer():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), CapsuleProjection(16, 4, 2, solver="orthonormal", scale=4.0))
    rest = torch.optim.AdamW(network[0].parameters(), lr=0.01)
    return network, CombinedOptimizer(rest, GrassmannSGD([network[2].weight], lr=0.2, momentum=0.9))


def train(network, optimizer, scheduler, steps):
    x, y = torch.randn(40, 12, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 4
    for _ in range(steps):
        loss = F.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return loss.item()


def schedule(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)


def test_a_combined_optimizer_is_saved_and_restored_bit_for_bit():
    network, optimizer = network_and_optimizer()
    first = train(network, optimizer, schedule(optimizer), 1)
    network, optimizer = network_and_optimizer()
    scheduler = schedule(optimizer)
    train(network, optimizer, scheduler, 7)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in (network, optimizer, scheduler)], file)
    assert train(network, optimizer, scheduler, 7) < first
    file.seek(0)
    resumed, restored = network_and_optimizer()
    again = schedule(restored)
    for part, state in zip((resumed, restored, again), torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(resumed, restored, again, 7)
    assert all(
        torch.equal(ours, theirs) for ours, theirs in zip(resumed.parameters(), network.parameters(), strict=True)
    )
    assert [group["lr"] for group in restored.param_groups] == pytest.approx([0.01 * 0.97**14, 0.2 * 0.97**14])


def test_a_combined_optimizer_does_what_its_parts_do_and_survives_a_copy():
    network, combined = network_and_optimizer()
    apart, same = network_and_optimizer()
    parts = same.optimizers
    copied = copy.deepcopy((network, combined))
    for model, step in ((network, combined.step), (apart, lambda: [part.step() for part in parts]), (copied[0], None)):
        model(torch.ones(3, 12)).sum().backward()
        (step or copied[1].step)()
    for other in (apart, copied[0]):
        assert all(torch.equal(*pair) for pair in zip(other.parameters(), network.parameters(), strict=True))
    assert combined.step(lambda: 3.0) == 3.0
    with pytest.raises(ValueError, match="before they are combined"):
        combined.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def test_a_learning_rate_of_zero_leaves_every_bit():
    weight = random_bases(dtype=torch.float32)
    start = weight.detach().clone()
    weight.grad = torch.ones_like(weight)
    optimizer = GrassmannSGD([weight], lr=0.0, momentum=0.9)
    optimizer.step()
    assert torch.equal(weight.detach(), start)
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], weight.grad)


def test_gradients_that_are_not_finite_show_in_the_weights_as_with_sgd():
    weight = random_bases()
    weight.grad = torch.full_like(weight, float("nan"))
    GrassmannSGD([weight], lr=0.1).step()
    assert weight.isnan().any()


def test_half_precision_stays_orthonormal_to_its_digits():
    weight = nn.Parameter(random_bases(dtype=torch.float32).bfloat16())
    optimizer = GrassmannSGD([weight], lr=0.1, momentum=0.9)
    for _ in range(20):
        weight.grad = torch.randn_like(weight)
        optimizer.step()
    assert distance_from_orthonormal(weight.detach().float()) < 0.02


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GrassmannSGD(CapsuleProjection(8, 3, 2).parameters()), "W'W differs from I.*solver='orthonormal'"),
        (lambda: GrassmannSGD(nn.Linear(8, 3).parameters()), r"takes bases \(L, c, d\), got.*\(3, 8\)"),
        (lambda: GrassmannSGD([random_bases()], lr=-1.0), "lr must be at least 0.*got -1.0"),
        (lambda: GrassmannSGD([random_bases()], momentum=1.0), "momentum.*below 1, got 0.1 and 1.0"),
        (lambda: GrassmannSGD([random_bases()], nesterov=True), "Nesterov momentum needs"),
        (lambda: GrassmannSGD([random_bases()], retraction="polar"), "'geodesic' or 'qr', got 'polar'"),
        (lambda: CapsuleProjection(8, 3, 2, solver="orthonormal", eps=0.1), "eps must be 0.*got 0.1"),
    ],
)
def test_mistakes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
