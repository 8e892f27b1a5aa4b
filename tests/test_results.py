"""Tables over seeds."""

import math

import pytest

from cappronet.results import comparison, interval


def test_the_interval_is_students():
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(4.302653 * 1 / math.sqrt(3), rel=1e-6)  # t(0.975, 2) = 4.302653
    assert interval([5.0]) == math.inf


def test_runs_are_gathered_over_seeds_in_order():
    def run(backbone, head, error):
        return {"data": "d", "backbone": backbone, "head": head, "error": error, "parameters": 7, "seconds": error}

    rows = comparison([run("b", "linear", 1.0), run("b", "capsule", 4.0), run("b", "linear", 3.0)])
    assert [(row.head, row.errors, row.mean, row.seconds) for row in rows] == [
        ("linear", (1.0, 3.0), 2.0, 2.0),
        ("capsule", (4.0,), 4.0, 4.0),
    ]
