"""What each head adds to a backbone."""

import json

import pytest

from cappronet import overhead
from cappronet.commands.reproducing import reproduce


def test_parameters_and_times_of_every_head():
    rounds = []
    found = overhead.run(
        ["resnet8"], batch=2, rounds=2, on_round=lambda name, done, total: rounds.append((done, total))
    )
    heads = found["backbones"]["resnet8"]
    assert set(heads) == set(overhead.HEADS)
    # 64 features, 10 classes: 64 * 10 * c weights instead of 64 * 10 and 10 biases.
    assert {name: cost["added"] for name, cost in heads.items()} == {
        "linear": 0,
        "group c=8": 7 * 640 + 70,
        "capsule c=2": 630,
        "capsule c=8": 7 * 640 - 10,
    }
    assert all(cost[kind]["ms"]["median"] > 0 for cost in heads.values() for kind in ("step", "inference"))
    assert heads["linear"]["step"]["ratio"]["median"] == 1
    assert rounds == [(0, 3), (1, 3), (2, 3)]
    assert "| resnet8 | capsule c=2 |" in overhead.grid(found).markdown()
    assert len(overhead.grid(found).lines) == 4


def test_a_measurement_that_was_cut_off_goes_on(tmp_path, monkeypatch):
    measured = []

    def measure(name, batch, rounds, on_round):
        measured.append(name)
        if name == "wrn_16_4":
            raise KeyboardInterrupt
        cost = {kind: {"ms": spread, "ratio": spread} for kind in ("step", "inference")}
        return {"linear": {"parameters": 1, "added": 0, **cost}}

    spread = {"median": 1.0, "low": 1.0, "high": 1.0}
    monkeypatch.setattr(overhead, "_measure", measure)
    place = {"folder": tmp_path / "runs", "output": tmp_path / "results"}
    with pytest.raises(KeyboardInterrupt):
        reproduce("overhead", **place)
    assert measured == ["resnet8", "resnet20", "resnet110", "preact_resnet164", "wrn_16_4"]
    measured.clear()
    reproduce("overhead", only=["resnet8", "densenet"], **place)
    assert measured == ["densenet_bc_100_12"]
    found = json.loads((tmp_path / "results" / "overhead.json").read_text())
    assert list(found["backbones"]) == ["resnet8", "resnet20", "resnet110", "preact_resnet164", "densenet_bc_100_12"]
    kept = tmp_path / "runs" / "overhead.json"
    kept.write_text(json.dumps({**found, "machine": {"device": "another"}}))
    measured.clear()
    reproduce("overhead", only=["resnet8"], **place)
    assert measured == ["resnet8"]
    assert json.loads((tmp_path / "results" / "overhead.json").read_text()) == found
    assert list(json.loads((tmp_path / "results" / "overhead-2.json").read_text())["backbones"]) == ["resnet8"]
