"""What each head adds to a backbone."""

from cappronet import overhead


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
    assert "| resnet8 | capsule c=2 |" in overhead.markdown(found)
    assert overhead.table(found).row_count == 4
