import pytest
import torch

from cappronet.projection import gram

CONDITIONS = [1, 1e2, 1e4, 1e5, 1e6, 1e8, 1e12, 1e16]


def bases_of_condition(condition, dtype, c=4, d=32, sizes=(1e-3, 1.0, 1e3)):
    """One basis for each size, with `W'W` of this condition number."""
    generator = torch.Generator().manual_seed(round(condition))
    spectrum = torch.logspace(0, -torch.tensor(condition).log10().item() / 2, c, dtype=torch.float64)
    bases = []
    for size in sizes:
        left, _ = torch.linalg.qr(torch.randn(c, c, dtype=torch.float64, generator=generator))
        right, _ = torch.linalg.qr(torch.randn(d, c, dtype=torch.float64, generator=generator))
        bases.append(size * (left * spectrum) @ right.mT)
    return torch.stack(bases).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_short_way_is_taken_only_where_it_changes_nothing(condition, dtype, monkeypatch):
    for weight in [bases_of_condition(condition, dtype, sizes=[size]) for size in (1e-3, 1.0, 1e3)]:
        short = gram.inverse_factor(weight, 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(gram, "_can_branch", lambda x: False)
            assert torch.equal(short, gram.inverse_factor(weight, 0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dependent_columns_are_never_well_conditioned(dtype):
    outcomes = set()
    for condition in CONDITIONS:
        weight = bases_of_condition(condition, dtype, sizes=[1.0])
        eye = torch.eye(weight.shape[1], dtype=dtype).expand(1, -1, -1)
        G = gram._gram(weight, 0.0, eye)
        outcome = (gram._well_conditioned(G, gram._inverse_root(G, eye)), gram._dependent(G, eye).any().item())
        assert outcome != (True, True)
        outcomes.add(outcome)
    assert {(True, False), (False, True)} <= outcomes


@pytest.mark.parametrize("bad", [0.0, torch.inf, torch.nan, 1e30])
def test_one_class_out_of_range_leaves_the_short_way(bad):
    weight = bases_of_condition(10, torch.float32, sizes=[1.0, 1.0])
    expected = gram.inverse_factor(weight[:1], 0.0)
    weight[1] = bad
    assert torch.equal(gram.inverse_factor(weight, 0.0)[:1], expected)
    assert gram.inverse_factor(weight, 0.0).isfinite().all()
