"""The benchmark of a training step measures what it names."""

import json
from pathlib import Path

import pytest

from experiments.benchmarks import step as step_benchmark
from experiments.benchmarks.commands import step

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_costs_and_their_ratios():
    told = []
    costs = step_benchmark.run("resnet8", 4, rounds=3, image_size=8, report=lambda *progress: told.append(progress))
    assert [(done, total) for _, done, total in told] == [(done, 24) for done in range(24)]
    assert set(costs["ms"]) == {name for pair in step_benchmark.RATIOS.values() for name in pair}
    assert set(costs["ratios"]) == set(step_benchmark.RATIOS)
    table = step_benchmark.table(costs)
    assert "resnet8, c=4" in table.headings[0]
    ratio = costs["ratios"]["loop / bare step"]
    cells = (f"{ratio['median']:.3f}", f"{ratio['low']:.3f} to {ratio['high']:.3f}")
    assert ("loop / bare step", *cells) in table.rows


@pytest.mark.slow
def test_the_result_has_the_form_of_the_published_one():
    published = json.loads((ROOT / "results" / "training_benchmark.json").read_text())
    costs = step_benchmark.run("resnet8", 2, rounds=1, image_size=8)
    assert costs.keys() == published.keys()
    for name, value in published.items():
        assert type(costs[name]) is type(value), name
        if isinstance(value, dict):  # rows may have been added since
            assert costs[name].keys() >= value.keys(), name


def test_the_command_refuses_what_it_can_not_do(tmp_path):
    (tmp_path / "there.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"there\.json exists"):
        step(output=tmp_path / "there.json")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        step(output=tmp_path / "nowhere" / "out.json")
    with pytest.raises(ValueError, match="--rounds must be at least 1, got 0"):
        step(rounds=0, output=tmp_path / "out.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there.json"]
