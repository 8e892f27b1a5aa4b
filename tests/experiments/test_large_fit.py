"""The large fit is made from files in half precision, in a process of its own."""

import numpy as np
import pytest

from experiments.benchmarks import large_fit
from experiments.benchmarks.commands import estimator


def test_files_are_as_described(tmp_path):
    large_fit.make_files(tmp_path, 500, 50, d=16, classes=5)
    x, y = np.load(tmp_path / "x_train.npy"), np.load(tmp_path / "y_train.npy")
    assert (x.dtype, x.shape, y.shape) == (np.float16, (500, 16), (500,))
    assert np.load(tmp_path / "x_test.npy").shape == (50, 16)
    assert x.min() == 0
    assert set(y) == set(range(5))
    means = np.stack([x[y == k].mean(0) for k in range(5)]).astype(np.float32)
    nearest = ((x[:, None].astype(np.float32) - means) ** 2).sum(-1).argmin(1)
    assert 0.3 < (nearest == y).mean() < 1  # classes differ, and overlap


@pytest.mark.slow
def test_a_fit_is_measured_in_a_process_of_its_own():
    results = large_fit.run(600, 100, d=16, classes=4, c=2)
    assert results["error"] < 70
    assert results["peak_bytes"] >= results["peak_bytes_before"] > 1e7
    (cells,) = large_fit.table(results).rows
    assert cells[:3] == ("600 x 16, float16", "4", "2")


def test_options_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--large.*--only"):
        estimator(large=True, only=["SVC"], output=tmp_path / "out.json")
