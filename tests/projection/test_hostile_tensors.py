"""The fuzzer of `experiments/robustness/tensors.py`, for a few seconds: no promise is broken by any tensor."""

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.robustness import tensors
from experiments.robustness.tensors import WEIGHTS, draw, failures, run


@settings(deadline=None, max_examples=150, derandomize=True)
@given(seed=st.integers(0, 10**9))
def test_every_promise_is_kept(seed):
    case = draw(seed)
    assert failures(case) == [], case.kind


def test_the_long_form_counts_by_kind_of_weight():
    rows = run(60, seed=7)
    assert [row["kind"] for row in rows] == [f"{name} weight" for name in WEIGHTS]
    assert sum(row["handled"] for row in rows) == sum(row["inputs"] for row in rows) == 60
    assert all(row["failures"] == {} for row in rows)


def test_a_broken_promise_is_counted_once(monkeypatch):
    monkeypatch.setattr(tensors, "failures", lambda _case: ["a length is not finite", "a gradient is not finite"])
    rows = run(20, seed=7)
    assert sum(row["inputs"] for row in rows) == sum(sum(row["failures"].values()) for row in rows) == 20
    assert all(name.startswith("a length is not finite: ") for row in rows for name in row["failures"])
