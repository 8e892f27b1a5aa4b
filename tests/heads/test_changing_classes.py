"""Classes added to a head and removed from it, without training, and optimizers that live through it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cappronet import CapsuleProjection
from cappronet.data.datasets import load_dataset
from cappronet.probing.fitting import fit_head


@pytest.fixture(scope="module")
def digits():
    data = load_dataset("digits")
    return [(part.pixels.flatten(1) / 255.0, part.labels) for part in (data.train, data.test)]


def error(head, x, y):
    with torch.no_grad():
        return 100 * (head(x).argmax(-1) != y).double().mean().item()


@pytest.mark.parametrize("contrast", [0.0, 0.25])
@pytest.mark.parametrize("normalize", [False, True])
def test_two_digits_are_added_from_twenty_images(digits, normalize, contrast):
    (x, y), test = digits
    old = y < 8
    options = {"normalize": normalize, "contrast": contrast}
    head = CapsuleProjection.from_features(x[old], y[old], 8, **options)
    before = head(test[0])
    assert head.add_class(x[y == 8][:20], x[old], contrast=contrast) == 8
    assert head.add_class(x[y == 9][:20], x[old], contrast=contrast) == 9
    assert head.num_classes == 10
    assert head.weight.requires_grad
    whole = CapsuleProjection.from_features(x, y, 8, **options)
    assert error(whole, *test) < 4
    assert error(head, *test) < error(whole, *test) + 5  # of 360 images, 71 of them new
    head.remove_class(9)
    head.remove_class(8)
    assert head(test[0]).equal(before)


def test_adding_to_subspaces_that_were_set_is_setting_all(digits):
    (x, y), (x_test, _) = digits
    old = y < 8
    head = CapsuleProjection.from_features(x[old], y[old], 4, normalize=True)
    for label in (8, 9):
        head.add_class(x[y == label])
    whole = CapsuleProjection.from_features(x, y, 4, normalize=True)
    torch.testing.assert_close(head(x_test), whole(x_test), rtol=1e-5, atol=1e-5)


def test_a_trained_head_goes_on_training_after_a_class_was_added(digits):
    (x, y), test = digits
    old = y < 8
    head = fit_head(CapsuleProjection(64, 8, 4, normalize=True, scale="learned"), x[old], y[old], epochs=20)
    for label in (8, 9):
        head.add_class(x[y == label])
    # Trained subspaces avoid what all digits have in common; the new ones contain it, and attract every image.
    assert error(head, *test) > 50
    fit_head(head, x, y, epochs=20)
    assert error(head, *test) < 5


@pytest.mark.parametrize("count", [20, None])
def test_classes_next_to_trained_ones_are_as_long_and_attract_only_their_own(digits, count):
    (x, y), test = digits
    old = y < 8
    head = fit_head(CapsuleProjection(64, 8, 4, normalize=True, scale="learned"), x[old], y[old], epochs=20)
    for label in (8, 9):
        head.add_class(x[y == label][:count], x[old])
    assert error(head, *test) < 15
    known = test[1] < 8
    assert error(head, test[0][known], test[1][known]) < 15


def test_the_new_basis_keeps_the_most_and_is_as_long_as_the_others():
    head, x = CapsuleProjection(12, 3, 2).double(), torch.randn(50, 12).double() * torch.logspace(0, 1, 12)
    others = torch.randn(70, 12).double() * torch.logspace(1, 0, 12)
    head.add_class(x)
    kept = head(x)[:, 3].square().sum()
    torch.testing.assert_close(kept, torch.linalg.svdvals(x)[:2].square().sum())
    norms = head.weight.detach().square().sum(-1)
    torch.testing.assert_close(norms[3], norms[:3].mean().expand(2))
    head.add_class(x, others, contrast=0.7)
    gained = head(x)[:, 4].square().mean() - 0.7 * head(others)[:, 4].square().mean()
    largest = torch.linalg.eigvalsh(x.mT @ x / 50 - 0.7 * others.mT @ others / 70)[-2:].sum()
    torch.testing.assert_close(gained, largest)


def test_unit_features_are_what_a_unit_head_keeps():
    x = torch.randn(50, 12).double() * torch.rand(50, 1).double() * 100
    head = CapsuleProjection(12, 2, 3, normalize=True).double()
    head.add_class(x)
    expected = torch.linalg.svdvals(F.normalize(x))[:3].square().sum()
    torch.testing.assert_close(head(x)[:, 2].square().sum(), expected)
    whole = CapsuleProjection.from_features(x, torch.zeros(50, dtype=torch.int64), 3, normalize=True)
    torch.testing.assert_close(whole(x)[:, 0].square().sum(), expected)


def test_removing_keeps_the_others_in_order():
    head, x = CapsuleProjection(12, 5, 2), torch.randn(9, 12)
    before, folded = head(x).detach(), head.fold()
    head.remove_class(1)
    torch.testing.assert_close(head(x), before[:, [0, 2, 3, 4]])
    torch.testing.assert_close(folded(x), before, rtol=1e-5, atol=1e-5)  # it stands alone
    assert repr(head).startswith("CapsuleProjection(12, 4, capsule_dim=2")
    other = CapsuleProjection(12, 4, 2)
    other.load_state_dict(head.state_dict())
    assert other(x).equal(head(x))


def test_the_hyper_power_sequence_goes_on_without_a_restart():
    head, x = CapsuleProjection(12, 4, 2, solver="hyperpower"), torch.randn(9, 12)
    head.add_class(torch.randn(20, 12))
    assert not head.sigma.any()  # no training step yet: no estimate
    head(x)
    head.add_class(torch.randn(20, 12))
    head.remove_class(0)
    lengths = head(x)
    assert head.restarts == 0
    assert head.sigma.shape == (5, 2, 2)
    torch.testing.assert_close(lengths, head.eval()(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
        lambda p: torch.optim.Adafactor(p),
    ],
)
def test_an_optimizer_goes_on(make):
    """Rows of classes that stay move as they would if nothing had changed, momentum included."""
    x, y = torch.randn(40, 12), torch.arange(40) % 4
    model = nn.ModuleDict({"body": nn.Linear(12, 12), "head": CapsuleProjection(12, 4, 2)})
    optimizer = make(model.parameters())

    def step(model, optimizer, classes):
        optimizer.zero_grad()
        model["head"](model["body"](x))[:, classes].gather(1, y[:, None]).sum().backward()
        optimizer.step()

    for _ in range(3):
        step(model, optimizer, range(4))
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    model["head"].remove_class(0, optimizer=optimizer)  # then 1, 2, 3
    model["head"].add_class(torch.randn(20, 12), optimizer=optimizer)
    buffers = [value for value in optimizer.state[model["head"].weight].values() if value.ndim == 3]
    assert buffers
    for value in buffers:
        assert len(value) == 4
        assert value[3].equal(value[:3].mean(0) if (value >= 0).all() else torch.zeros_like(value[3]))
    if isinstance(optimizer, torch.optim.Adafactor):
        return  # which scales a step by the size of the whole weight
    y = y % 3
    step(model, optimizer, [0, 1, 2])
    step(twin, twin_optimizer, [1, 2, 3])
    torch.testing.assert_close(model["head"].weight[:3], twin["head"].weight[1:])
    torch.testing.assert_close(model["body"].weight, twin["body"].weight)


def test_a_new_optimizer_trains_the_new_weight():
    head = CapsuleProjection(12, 4, 2)
    head.add_class(torch.randn(20, 12))
    fresh = torch.optim.SGD(head.parameters(), 0.1)
    before = head.weight.detach().clone()
    head(torch.randn(5, 12)).sum().backward()
    fresh.step()
    assert not head.weight.equal(before)
    head.remove_class(0, optimizer=fresh)
    fresh.step()


def test_optimizers_that_can_not_go_on_say_so():
    head = CapsuleProjection(12, 4, 2)
    with pytest.raises(ValueError, match="does not hold this head's weight"):
        head.add_class(torch.randn(20, 12), optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1))
    quasi_newton = torch.optim.LBFGS(head.parameters())

    def closure():
        quasi_newton.zero_grad()
        loss = head(torch.ones(3, 12)).sum()
        loss.backward()
        return loss

    quasi_newton.step(closure)
    with pytest.raises(ValueError, match=r"LBFGS .* make a new optimizer"):
        head.remove_class(0, optimizer=quasi_newton)
    assert head.num_classes == 4  # nothing happened
    quasi_newton.step(closure)


def test_frozen_weights_stay_frozen_and_types_stay():
    head = CapsuleProjection(12, 4, 2, dtype=torch.bfloat16).requires_grad_(False)
    head.add_class(torch.randn(20, 12))
    assert head.weight.dtype == torch.bfloat16
    assert not head.weight.requires_grad


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.randn(20, 11), r"features must be floating-point \(n, 12\) for this head, got torch.float32 \(20, 11\)"),
        (torch.randn(12), r"features must be floating-point \(n, 12\)"),
        (torch.ones(20, 12, dtype=torch.int64), "got torch.int64"),
        (torch.randn(2, 12), "a subspace of dimension 3 needs at least 3 features, got 2"),
        (torch.full((20, 12), torch.nan), "features must be finite"),
    ],
)
def test_features_that_can_not_be_a_class_are_refused(features, message):
    head = CapsuleProjection(12, 4, 3)
    with pytest.raises(ValueError, match=message):
        head.add_class(features)
    with pytest.raises(
        ValueError, match=message.replace("features", "others") if "needs" not in message else "features"
    ):
        head.add_class(torch.randn(20, 12) if "needs" not in message else features, others=features)
    assert head.num_classes == 4


def test_a_parametrized_weight_is_refused():
    head = CapsuleProjection(12, 4, 3)
    nn.utils.parametrize.register_parametrization(head, "weight", nn.Identity())
    for change in (lambda: head.add_class(torch.randn(20, 12)), lambda: head.remove_class(0)):
        with pytest.raises(ValueError, match="remove_parametrizations"):
            change()
    nn.utils.parametrize.remove_parametrizations(head, "weight")
    assert head.add_class(torch.randn(20, 12)) == 4


def test_several_processes_are_refused(monkeypatch):
    head = CapsuleProjection(12, 4, 3)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    for change in (lambda: head.add_class(torch.randn(20, 12)), lambda: head.remove_class(0)):
        with pytest.raises(ValueError, match=r"in one of 2 processes.*single process"):
            change()
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    assert head.add_class(torch.randn(20, 12)) == 4


def test_a_contrast_needs_others():
    with pytest.raises(ValueError, match=r"contrast of 0\.5 needs .* others"):
        CapsuleProjection(12, 4, 3).add_class(torch.randn(20, 12), contrast=0.5)


def test_classes_that_can_not_be_removed_are_named():
    head = CapsuleProjection(12, 2, 3)
    for index in (2, -1):
        with pytest.raises(ValueError, match=f"class {index} can't be removed: the head has classes 0 to 1"):
            head.remove_class(index)
    head.remove_class(0)
    with pytest.raises(ValueError, match="the last class"):
        head.remove_class(0)
