"""What each head adds to a backbone."""

import json

import pytest

from experiments.benchmarks import overhead
from experiments.benchmarks.commands import overhead as overhead_command


@pytest.mark.slow
def test_parameters_and_times_of_every_head():
    told = []
    results = overhead.run(["resnet8"], batch=2, rounds=2, report=lambda *progress: told.append(progress))
    heads = results["backbones"]["resnet8"]
    assert set(heads) == set(overhead.VARIANTS)
    # 64 features, 10 classes: 64 * 10 * c weights instead of 64 * 10 and 10 biases.
    assert {name: cost["added"] for name, cost in heads.items()} == {
        "linear": 0,
        "group c=8": 7 * 640 + 70,
        "capsule c=2": 630,
        "capsule c=8": 7 * 640 - 10,
    }
    for phase in ("step", "inference"):
        assert heads["linear"][phase]["ratio"] == {"median": 1, "low": 1, "high": 1}
    assert [(done, total) for _, done, total in told] == [(done, 12) for done in range(12)]
    assert "| resnet8 | capsule c=2 |" in overhead.table(results).markdown()
    assert len(overhead.table(results).rows) == 4


def test_an_interrupted_measurement_resumes(tmp_path, monkeypatch):
    measured = []

    def measure(name, batch, rounds, report):
        measured.append(name)
        if name == "wrn_16_4":
            raise KeyboardInterrupt
        cost = {kind: {"ms": spread, "ratio": spread} for kind in ("step", "inference")}
        return {"linear": {"parameters": 1, "added": 0, **cost}}

    spread = {"median": 1.0, "low": 1.0, "high": 1.0}
    monkeypatch.setattr(overhead, "_measure", measure)
    folders = {"folder": tmp_path / "runs", "output": tmp_path / "results"}
    with pytest.raises(KeyboardInterrupt):
        overhead_command(**folders)
    assert measured == ["resnet8", "resnet20", "resnet110", "preact_resnet164", "wrn_16_4"]
    measured.clear()
    overhead_command(only=["resnet8", "densenet"], **folders)
    assert measured == ["densenet_bc_100_12"]
    results = json.loads((tmp_path / "results" / "overhead.json").read_text())
    assert list(results["backbones"]) == ["resnet8", "resnet20", "resnet110", "preact_resnet164", "densenet_bc_100_12"]
    record = tmp_path / "runs" / "overhead.json"
    record.write_text(json.dumps({**results, "machine": {"device": "another"}}))
    measured.clear()
    overhead_command(only=["resnet8"], **folders)
    assert measured == ["resnet8"]
    assert json.loads((tmp_path / "results" / "overhead.json").read_text()) == results
    assert list(json.loads((tmp_path / "results" / "overhead-2.json").read_text())["backbones"]) == ["resnet8"]


def test_a_backbone_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"vgg.*resnet8"):
        overhead_command(only=["vgg"], folder=tmp_path, output=tmp_path)
