"""Heads are fitted on fixed features: seeded, alone with their random numbers, and to the right answer."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from torch import nn

from cappronet.data.datasets import load_dataset
from cappronet.heads import HEADS, CapsuleProjection, create_head
from cappronet.probing.fitting import fit_head


@pytest.fixture(scope="module")
def digits():
    data = load_dataset("digits")
    x, x_test = (part.pixels.flatten(1) / 255 for part in (data.train, data.test))
    return x, data.train.labels, x_test, data.test.labels


def error(head, x, y):
    with torch.no_grad():
        return (head(x).argmax(1) != y).float().mean().item()


@pytest.mark.parametrize("name", HEADS)
def test_every_head_learns_the_digits(name, digits):
    torch.manual_seed(0)
    x, y, x_test, y_test = digits
    head = create_head(name, 64, 10, 4)
    assert error(head, x_test, y_test) > 0.5
    assert fit_head(head, x, y, epochs=20) is head
    assert not head.training
    assert error(head, x_test, y_test) < 0.15  # weightnorm, whose scores end at |x|, is the last with 0.11


def test_gradient_improves_on_the_closed_form(digits):
    x, y, x_test, y_test = digits
    head = CapsuleProjection.from_features(x, y, 4, normalize=True, scale="learned")
    before = error(head, x_test, y_test)
    assert error(fit_head(head, x, y), x_test, y_test) < before


def test_a_linear_head_reaches_the_least_loss():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 5, generator=draw), torch.randint(3, (300,), generator=draw)
    best = LogisticRegression(C=1e10, tol=1e-8).fit(x.numpy(), y.numpy())
    least = log_loss(y.numpy(), best.predict_proba(x.numpy()))
    torch.manual_seed(0)
    head = fit_head(nn.Linear(5, 3), x, y, epochs=300)
    assert least <= nn.functional.cross_entropy(head(x), y).item() < least + 1e-4


def test_same_seed_same_weights_and_the_global_state_is_untouched(digits):
    x, y, _, _ = digits
    starts = [CapsuleProjection.from_features(x, y, 2, scale="learned") for _ in range(3)]
    before = torch.get_rng_state()
    first, same, other = (fit_head(h, x, y, epochs=2, seed=s) for h, s in zip(starts, (1, 1, 2), strict=True))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.weight, same.weight)
    assert not torch.equal(first.weight, other.weight)


def test_rows_of_zeros_stay_zero(digits):
    x, y, _, _ = digits
    head = CapsuleProjection.from_features(x, y, 3, normalize=True, scale="learned")
    with torch.no_grad():
        head.weight[4, 1:] = 0
    start = head.weight.detach().clone()
    fit_head(head, x, y, epochs=2, weight_decay=0.1)
    assert (head.weight[4, 1:] == 0).all()
    assert (head.weight[4, 0] != start[4, 0]).any()


def test_decay_shrinks_weights_but_no_bias_or_scale():
    x, y = torch.zeros(8, 3), torch.arange(8) % 2  # no gradient reaches the weights
    linear, cosine = create_head("linear", 3, 2), create_head("cosine", 3, 2)
    starts = [p.detach().clone() for p in (linear.weight, cosine.weight, cosine.scale)]
    fit_head(linear, x, y, epochs=4, batch_size=8, lr=0.1, weight_decay=0.5)
    fit_head(cosine, x, y, epochs=4, batch_size=8, lr=0.1, weight_decay=0.5)
    factor = linear.weight / starts[0]
    assert 0.8 < factor.min() < factor.max() < 0.99
    torch.testing.assert_close(factor, factor[0, 0].expand(2, 3))
    torch.testing.assert_close(cosine.weight / starts[1], factor[0, 0].expand(2, 1, 3))
    assert cosine.scale == starts[2]


def test_features_take_the_heads_precision_and_epochs_are_reported():
    reports = []
    head = CapsuleProjection(5, 3, 2, dtype=torch.float64)
    x, y = torch.randn(7, 5), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    fit_head(head, x, y, epochs=3, report=lambda *now: reports.append(now))
    assert reports == [("fitting", done, 3) for done in (1, 2, 3)]
    assert head.weight.dtype == torch.float64
    assert x.grad is None


def test_features_that_require_gradients_get_none():
    x = torch.randn(7, 5, requires_grad=True)
    fit_head(nn.Linear(5, 3), x, torch.tensor([0, 1, 2, 0, 1, 2, 0]), epochs=1)
    assert x.grad is None


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (torch.zeros(4), torch.zeros(4).long(), {}, r"\(n, d\).*\(4,\)"),
        (torch.zeros(4, 3).long(), torch.zeros(4).long(), {}, "floating point.*int64"),
        (torch.zeros(0, 3), torch.zeros(0).long(), {}, "at least 1"),
        (torch.zeros(4, 3), torch.zeros(5).long(), {}, "4 features.*5"),
        (torch.zeros(4, 3), torch.zeros(4), {}, "integer classes.*float32"),
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, 1]), {}, "0 to 1 for a head of 2 classes, got 0 to 2"),
        (torch.zeros(4, 3), torch.tensor([0, 1, -1, 1]), {}, "got -1 to 1"),
        (torch.zeros(4, 3), torch.zeros(4).long(), {"epochs": -1}, "epochs"),
        (torch.zeros(4, 3), torch.zeros(4).long(), {"batch_size": 0}, "batch_size"),
        (torch.zeros(4, 3), torch.zeros(4).long(), {"lr": 0.0}, "lr must"),
        (torch.full((4, 3), torch.nan), torch.zeros(4).long(), {}, "loss became nan in epoch 1"),
    ],
)
def test_what_makes_no_sense_is_refused(x, y, options, message):
    with pytest.raises(ValueError, match=message):
        fit_head(nn.Linear(3, 2), x, y, **options)


def test_a_frozen_head_is_refused():
    with pytest.raises(ValueError, match="requires_grad_"):
        fit_head(nn.Linear(3, 2).requires_grad_(False), torch.zeros(4, 3), torch.zeros(4).long())
