"""The benchmark measures what it says."""

import pytest
import torch

from cappronet import benchmark
from cappronet.benchmark import INFERENCE, LIMIT, TRAINING, BatchedInverse, ClassLoop, Shape
from cappronet.heads import CapsuleProjection

SMALL = Shape(8, 12, 4, 3)


@pytest.mark.parametrize("rival", [BatchedInverse, ClassLoop])
def test_the_rivals_compute_the_same_lengths(rival):
    layer, other, x = CapsuleProjection(12, 4, 3), rival(12, 4, 3), torch.randn(8, 12)
    layer.load_state_dict(other.state_dict())
    torch.testing.assert_close(other(x), layer(x), rtol=1e-3, atol=1e-4)


def test_every_rival_is_measured_against_its_limit():
    found = dict(benchmark.measure(SMALL, rounds=4))
    assert list(found) == [*TRAINING, *INFERENCE]
    for name, result in found.items():
        assert result["rounds"] == 4
        assert result["both"]["ms"]["low"] <= result["both"]["ms"]["median"] <= result["both"]["ms"]["high"]
        assert ("backward" in result) == (name in TRAINING)
    for name in (LIMIT, found["eval: capsule"]["limit"]):
        assert found[name]["both"]["ratio"]["median"] == 1


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
