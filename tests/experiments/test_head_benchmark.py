"""The benchmark measures what it says."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from cappronet.heads import CapsuleProjection
from experiments.benchmarks import against
from experiments.benchmarks import head as benchmark
from experiments.benchmarks.commands import head
from experiments.benchmarks.head import INFERENCE, LIMIT, TRAINING, BatchedInverse, ClassLoop, Shape

ROOT = Path(__file__).parents[2]
SMALL = Shape(8, 12, 4, 3)


@pytest.mark.parametrize("alternative", [BatchedInverse, ClassLoop])
def test_the_alternatives_compute_the_same_lengths(alternative):
    layer, other, x = CapsuleProjection(12, 4, 3), alternative(12, 4, 3), torch.randn(8, 12)
    layer.load_state_dict(other.state_dict())
    torch.testing.assert_close(other(x), layer(x), rtol=1e-3, atol=1e-4)


def test_every_head_is_measured_against_its_limit():
    measured = benchmark.measure(SMALL, rounds=4)
    assert list(measured) == [*TRAINING, *INFERENCE]
    for name, result in measured.items():
        assert result["rounds"] == 4
        assert ("backward" in result) == (name in TRAINING)
        assert ("peak_memory" in result) == (name in TRAINING)
    for name in (LIMIT, measured["eval: capsule"]["limit"]):
        assert measured[name]["both"]["ratio"] == {"median": 1, "low": 1, "high": 1}


def shape_of(value):
    return {name: shape_of(part) for name, part in value.items()} if isinstance(value, dict) else type(value)


@pytest.mark.slow
def test_the_command_writes_what_the_tables_read(tmp_path, capsys):
    head(shape=["8,12,4,3"], rounds=2, output=tmp_path / "out.json")
    results, published = (
        json.loads(path.read_text()) for path in (tmp_path / "out.json", ROOT / "results" / "benchmark.json")
    )
    ours, theirs = (shape_of(content) for content in (results, published))
    small, published_heads = ours["shapes"]["B=8 d=12 L=4 c=3"], theirs["shapes"]["B=128 d=64 L=10 c=8"]
    assert small.items() >= published_heads.items()  # heads may have been added since
    assert {name: value for name, value in ours.items() if name != "shapes"} == {
        name: value for name, value in theirs.items() if name != "shapes"
    }
    assert len(benchmark.table(results).rows) == len(TRAINING) + len(INFERENCE)
    assert [row[0] for row in benchmark.growth_table(results).rows] == list(benchmark.grown(SMALL))
    assert "batched inverse" in capsys.readouterr().out


def test_another_source_tree_takes_turns_with_this_one(tmp_path, capsys):
    shutil.copytree(ROOT / "src" / "cappronet", tmp_path / "cappronet")
    modules = dict(sys.modules)
    theirs = against.head_of(tmp_path)
    assert theirs is not CapsuleProjection
    assert Path(theirs.forward.__code__.co_filename).is_relative_to(tmp_path)
    assert all(sys.modules[name] is module for name, module in modules.items() if name.startswith("cappronet"))
    head(shape=["8,12,4,3"], rounds=2, against=tmp_path, output=tmp_path / "out.json")
    measured = json.loads((tmp_path / "out.json").read_text())["shapes"]["B=8 d=12 L=4 c=3"]
    assert list(measured) == ["capsule", "capsule, hyper-power", "eval: capsule"]
    assert all(costs["ratio"]["median"] > 0 for costs in measured.values())
    assert "hyper-power" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="folder src of another checkout"):
        against.head_of(tmp_path / "cappronet")


def test_peak_memory_counts_every_live_byte():
    peak = benchmark.peak_memory(lambda s: torch.nn.Linear(s.d, s.L, bias=False), Shape(64, 128, 32, 1), "cpu", True)
    x, weight, y = 64 * 128 * 4, 128 * 32 * 4, 64 * 32 * 4
    assert 2 * x + 2 * weight + y <= peak <= 2 * x + 2 * weight + 3 * y + 4096


def test_the_head_never_holds_a_capsule_for_each_image_and_class():
    shape = Shape(32, 512, 100, 2)
    capsules = shape.B * shape.L * shape.d * 4
    peak = benchmark.peak_memory(TRAINING["capsule"], shape, "cpu", True)
    assert peak < 1.2 * benchmark.peak_memory(TRAINING[LIMIT], shape, "cpu", True)
    assert peak < capsules < benchmark.peak_memory(TRAINING["loop over classes"], shape, "cpu", True)


def test_growth_doubles_one_size_at_a_time():
    shapes = benchmark.grown(SMALL)
    assert shapes["base"] == SMALL
    assert [shapes[k] for k in ("2 B", "2 d", "2 L", "2 c")] == [
        Shape(16, 12, 4, 3), Shape(8, 24, 4, 3), Shape(8, 12, 8, 3), Shape(8, 12, 4, 6)
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["128,64,10", "a,b,c,d", "1,2,3,4,5", "0,4,2,2", "8,4,2,5", ""])
def test_a_shape_that_makes_no_sense_is_refused(text):
    with pytest.raises(ValueError, match=f"got '{text}'"):
        Shape.parse(text)
