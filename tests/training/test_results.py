"""Tables over seeds."""

import json
import math

import pytest

from cappronet.training.recipe import Recipe
from cappronet.training.results import Row, comparison, comparison_table, difference, interval, read_rows, write_rows


def test_the_interval_is_students():
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(4.302653 * 1 / math.sqrt(3), rel=1e-6)  # t(0.975, 2) = 4.302653
    assert interval([5.0]) == math.inf


def test_runs_are_gathered_over_seeds_in_order():
    def run(backbone, head, error):
        values = {"error": error, "best_error": error - 0.5, "parameters": 7, "seconds": error, "seed": int(error)}
        return {"data": "d", "backbone": backbone, "head": head, **values}

    rows = comparison([run("b", "linear", 1.0), run("b", "capsule", 4.0), run("b", "linear", 3.0)])
    assert [(row.head, row.seeds, row.errors, row.best_errors, row.mean, row.seconds) for row in rows] == [
        ("linear", (1, 3), (1.0, 3.0), (0.5, 2.5), 2.0, 2.0),
        ("capsule", (4,), (4.0,), (3.5,), 4.0, 4.0),
    ]


def test_a_difference_is_paired_by_seed():
    linear = Row("d", "b", "linear", (5.0, 6.0, 9.0), 1, 1.0, seeds=(0, 1, 3))
    capsule = Row("d", "b", "capsule", (7.5, 4.0, 5.5), 1, 1.0, seeds=(2, 0, 1))
    found = difference(capsule, linear)  # -1 with seed 0, -0.5 with seed 1
    assert (found.mean, found.n) == (-0.75, 2)
    assert found.p == pytest.approx(2 * math.atan(1 / 3) / math.pi)  # Student with one degree of freedom is Cauchy
    assert difference(capsule, Row("d", "b", "linear", (5.0,), 1, 1.0, seeds=(0,))) is None
    assert difference(linear, linear).p == 1


def test_rows_survive_their_file_and_make_a_table(tmp_path):
    rows = [
        Row("digits", "pixels", "linear", (5.0, 6.0), 650, 1.5),
        Row("digits", "pixels", "capsule c=4", (2.0, 2.5), 2560, 2.0),
    ]
    path = tmp_path / "rows.json"
    write_rows(rows, Recipe(epochs=3), path)
    assert read_rows(path) == rows
    assert json.loads(path.read_text())["recipe"]["epochs"] == 3
    assert (
        "| digits | pixels | linear | 5.50 | ± 6.35 | 2 | 650 |" in comparison_table(rows).without("seconds").markdown()
    )
