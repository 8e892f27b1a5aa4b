"""A run that is killed with SIGKILL, anywhere, resumes to the weights and metrics it would have had."""

import pytest

from experiments.robustness.kills import RECIPE, kill_and_resume


@pytest.mark.slow
def test_killed_runs_resume_bit_for_bit(tmp_path):
    results = kill_and_resume(tmp_path, runs=3, recipe=RECIPE.changed(epochs=2), every=6)
    moments, writes = results["kinds"]
    assert moments["failures"] == writes["failures"] == {}
    assert moments["handled"] == moments["inputs"] == 3  # all of them before the end of the run
    assert writes["handled"] == writes["inputs"] == len(range(1, results["writes"] + 1, 6))
