"""Section 3.1: one warm step for each training forward, exact at the start, guarded, saved with the model."""

import pytest
import reference
import torch
import torch.nn.functional as F

from cappronet import CapsuleProjection
from cappronet.heads.capsule import LARGEST_RESIDUAL


def layer():
    return CapsuleProjection(16, 5, 3, solver="hyperpower")


def residual(head):
    gram = head.weight.detach() @ head.weight.detach().mT
    return (torch.eye(3) - gram @ head.sigma).norm(dim=(1, 2)).max().item()


def move(head, size):
    with torch.no_grad():
        head.weight.add_(size * torch.randn_like(head.weight))


def test_the_first_step_is_exact_and_no_restart():
    head, x = layer(), torch.randn(4, 16)
    torch.testing.assert_close(head(x).double(), reference.lengths(x, head.weight.detach()), rtol=1e-5, atol=1e-5)
    assert head.restarts == 0
    assert residual(head) < 1e-4


def test_small_updates_are_followed_without_restart():
    head, x = layer(), torch.randn(4, 16)
    for _ in range(50):
        move(head, 1e-3)
        lengths = head(x)
        assert residual(head) < LARGEST_RESIDUAL
        torch.testing.assert_close(lengths.double(), reference.lengths(x, head.weight.detach()), rtol=1e-3, atol=1e-3)
    assert head.restarts == 0


def test_a_large_update_restarts_from_the_exact_inverse():
    head, x = layer(), torch.randn(4, 16)
    head(x)
    move(head, 0.5)
    torch.testing.assert_close(head(x).double(), reference.lengths(x, head.weight.detach()), rtol=1e-4, atol=1e-4)
    assert head.restarts == 1
    with torch.no_grad():
        head.sigma.fill_(torch.nan)
    assert head(x).isfinite().all()
    assert head.restarts == 2


@pytest.mark.parametrize("parallel", [0.0, 1e-6, 1e-4, 1e-3])
def test_lengths_near_duplicate_columns_are_at_most_those_of_the_features(parallel):
    head, x = CapsuleProjection(16, 50, 3, solver="hyperpower"), torch.randn(64, 16)
    with torch.no_grad():
        head.weight[:, 1] = head.weight[:, 0] + parallel * torch.randn(50, 16)
        x[:30] = head.weight[:10].flatten(0, 1)
    for _ in range(5):
        assert (head(x) <= x.norm(dim=-1, keepdim=True) * (1 + 1e-6)).all()
        move(head, 1e-6)


def test_eval_is_exact_and_leaves_the_state_alone():
    head, x = layer(), torch.randn(4, 16)
    head(x)
    state = head.sigma.clone()
    move(head, 0.5)
    head.eval()
    torch.testing.assert_close(head(x).double(), reference.lengths(x, head.weight.detach()), rtol=1e-4, atol=1e-4)
    assert head.sigma.equal(state)
    assert head.restarts == 0


def test_it_learns_what_the_exact_solver_learns():
    torch.manual_seed(1)
    warm, exact = layer(), CapsuleProjection(16, 5, 3)
    exact.load_state_dict(warm.state_dict(), strict=True)
    x, y = torch.randn(40, 16), torch.arange(40) % 5
    for head in (warm, exact):
        optimizer = torch.optim.SGD(head.parameters(), lr=0.05, momentum=0.9)
        for _ in range(100):
            optimizer.zero_grad()
            F.cross_entropy(head(x), y).backward()
            optimizer.step()
    torch.testing.assert_close(warm.projections(), exact.projections(), rtol=0, atol=1e-2)
    assert F.cross_entropy(warm(x), y) < 1.0


def test_the_state_is_saved_and_restored():
    head, x = layer(), torch.randn(4, 16)
    head(x)
    move(head, 0.5)
    head(x)
    move(head, 1e-2)
    twin = layer()
    twin.load_state_dict(head.state_dict(), strict=True)
    assert twin.restarts == 1
    assert twin(x).equal(head(x))


@pytest.mark.parametrize(("saved", "loaded"), [("cholesky", "hyperpower"), ("hyperpower", "cholesky")])
def test_states_move_between_solvers(saved, loaded):
    head, x = CapsuleProjection(16, 5, 3, solver=saved), torch.randn(4, 16)
    head(x)
    twin = CapsuleProjection(16, 5, 3, solver=loaded)
    twin.load_state_dict(head.state_dict(), strict=True)
    torch.testing.assert_close(twin(x), head(x), rtol=1e-4, atol=1e-4)
