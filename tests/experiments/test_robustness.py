"""All attacks report in one shape, and what is published has no failures."""

import json
from pathlib import Path

import pytest

from experiments.robustness import signals
from experiments.robustness.commands import models, tensors
from experiments.robustness.models import HOSTILE
from experiments.robustness.outcomes import row, summary, table

RESULTS = Path(__file__).parents[2] / "results"


def test_what_is_neither_refused_nor_handled_is_a_failure():
    entry = row("bits", ["refused", "handled", "silent", "refused", "crashed", "silent"], seconds=3)
    failures = {"crashed": 1, "silent": 2}
    assert entry == {"kind": "bits", "inputs": 6, "refused": 2, "handled": 1, "failures": failures, "seconds": 3}
    results = {"attack": "damage", "kinds": [entry, row("none", [])]}
    assert table(results).rows == [("bits", "6", "2", "1", "3"), ("none", "0", "0", "0", "0")]
    assert summary([results]).rows == [("damage", "2", "6", "2", "1", "3")]


def test_tensors_and_models_are_written_with_their_commit(tmp_path, capsys):
    tensors(inputs=20, output=tmp_path)
    models(flips=4, others=2, output=tmp_path)
    written = [json.loads((tmp_path / f"robustness_{name}.json").read_text()) for name in ("tensors", "models")]
    for content in written:
        assert {"attack", "environment", "seed", "kinds"} <= content.keys()
        assert "commit" in content["environment"]
        assert not any(entry["failures"] for entry in content["kinds"])
    assert sum(entry["inputs"] for entry in written[0]["kinds"]) == 20
    assert sum(entry["inputs"] for entry in written[1]["kinds"]) == 4 + 4 * 2 + len(HOSTILE)
    assert "hostile configurations" in capsys.readouterr().out


@pytest.mark.slow
def test_a_signal_at_a_random_moment_is_handled(tmp_path):
    (entry,) = signals.interrupt(tmp_path, runs=1, seed=3, commands=("cappronet probe",))
    assert (entry["kind"], entry["inputs"], entry["failures"]) == ("cappronet probe", 1, {})


@pytest.mark.parametrize(
    ("name", "least"), [("tensors", 6000), ("models", 1000), ("files", 3000), ("kills", 90), ("signals", 60)]
)
def test_published_attacks_found_no_failure(name, least):
    content = json.loads((RESULTS / f"robustness_{name}.json").read_text())
    assert sum(entry["inputs"] for entry in content["kinds"]) >= least
    assert [entry["kind"] for entry in content["kinds"] if entry["failures"]] == []
    assert not content["environment"]["commit"].endswith("dirty")
