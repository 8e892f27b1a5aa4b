"""Heads whose classes are spread over processes: what the benchmark measures and counts."""

import json

import pytest

from experiments.benchmarks import scale, scale_sampling, scale_tables
from experiments.benchmarks.commands import scale as scale_command


def test_every_head_is_measured_in_one_and_in_two_processes():
    *plain, gathered = scale.planned([1000], [1, 2], million=False)
    assert {(point["c"], point["share"], point["processes"]) for point in plain} == {
        (c, share, count) for c, share in ((4, 1.0), (4, 0.1), (0, 1.0)) for count in (1, 2)
    }
    assert [point["gather"] for point in (*plain, gathered)] == [False] * 6 + [True]


@pytest.mark.slow
def test_two_processes_hold_half_and_send_what_the_batch_takes(tmp_path, monkeypatch):
    planned = scale.planned

    def some(*arguments, **options):
        """Without the points that nothing is asserted of."""
        points = planned(*arguments, **options)
        return (point for point in points if point["share"] == 1 and (point["c"] or point["processes"] == 2))

    monkeypatch.setattr(scale, "planned", some)
    scale_command(
        classes=[1000], processes=[1, 2], rounds=1, million=False, folder=tmp_path / "runs", output=tmp_path / "results"
    )
    results = json.loads((tmp_path / "results" / "scale.json").read_text())
    *plain, gathered = results["points"]
    by_point = {(entry["point"]["c"], entry["point"]["processes"]): entry for entry in plain}
    one, two = by_point[4, 1], by_point[4, 2]
    weights = 1000 * 4 * 512 * 4
    assert one["peak_bytes"] >= 3 * weights
    assert two["peak_bytes"] < 0.7 * one["peak_bytes"]
    assert one["resident_bytes"] > one["peak_bytes"]
    assert scale_tables.sent_bytes(one["payloads"], 1) == 0
    # The gradient of the features, and less than 200 bytes for each sample in the loss and the checks.
    features = 32 * 512 * 4
    assert features <= scale_tables.sent_bytes(two["payloads"], 2) <= features + 32 * 200
    assert gathered["payloads"]["allgather"] == features + 32 * 8  # and the labels
    assert gathered["payloads"]["reducescatter"] == features
    assert gathered["losses"] == pytest.approx(two["losses"], abs=1e-4)
    assert two["payloads"].keys() == by_point[0, 2]["payloads"].keys() == {"allreduce"}
    for c in (4, 0):
        assert by_point[c, 2]["payloads"]["allreduce"] >= features
        assert by_point[c, 2]["samples_per_second"] > 0
    assert one["losses"] == pytest.approx(two["losses"], abs=1e-4)
    assert len(scale_tables.table(results).rows) == 3
    eight, sixty_four = scale_tables.paper_table(results).rows
    assert eight[2] == "2.86"  # 3 * 4 * 1e6 * 4 * 512 / 8
    assert float(sixty_four[2]) == pytest.approx(float(eight[2]) / 8, abs=0.01)
    assert float(eight[4]) == pytest.approx(2 * 1024 * 512 * 4 * 7 / 8 / 1e6, rel=0.1)  # features there and back


def test_an_interrupted_measurement_resumes_and_leaves_out_what_does_not_fit(tmp_path, monkeypatch):
    measured = []

    def measure(point):
        measured.append((point["L"], point["c"], point["share"]))
        if len(measured) == 4:
            raise KeyboardInterrupt
        spread = {"median": point["L"] / 1000, "low": 1.0, "high": 1.0}
        return {"seconds": spread, "samples_per_second": 32.0, "resident_bytes": 1, "peak_bytes": 1, "payloads": {}}

    monkeypatch.setattr(scale, "_measure", measure)
    monkeypatch.setattr(scale, "_refuse_without_memory", lambda *_: None)
    points = list(scale.planned([10_000, 100_000], [1], million=True))
    record = tmp_path / "runs" / "scale.json"
    with pytest.raises(KeyboardInterrupt):
        scale.run(points, memory=4.0, record=record)
    measured[:] = [None] * 4  # no further interruption
    results = scale.run(points, memory=4.0, record=record)
    assert measured[4:] == [(100_000, 4, 1.0), (100_000, 4, 0.1), (100_000, 0, 1.0)]
    assert len(results["points"]) == len(points) == 7
    assert "seconds" not in results["points"][-1]  # a million classes need more than 4 GiB
    assert scale_tables.exponents(results) == {
        (head, 1): pytest.approx(1.0) for head in ("capsule c=4", "capsule c=4, 10% of classes", "linear")
    }
    assert "needs 7" in scale_tables.table(results).rows[-1][3]
    measured[:] = [None] * 4
    scale.run(points[:1], memory=4.0, record=record, again=True)
    assert measured[4:] == [(10_000, 4, 1.0)]


def test_a_ring_sends_all_but_the_own_share():
    assert scale_tables.sent_bytes({"allreduce": 100}, 4) == 150
    assert scale_tables.sent_bytes({"allgather": 100, "reducescatter": 100}, 2) == 100


def test_what_would_not_fit_is_left_out_by_counting():
    point = {"L": 1_000_000, "d": 512, "c": 4, "share": 1.0, "B": 32, "processes": 2}
    assert scale.needed_bytes(point) > 3 * 4 * 1_000_000 * 512 * 4 > scale.MEMORY * 2**30
    assert scale.needed_bytes({**point, **scale.MILLION}) < scale.MEMORY * 2**30


def test_a_sampled_loss_is_compared_with_the_exact_one(tmp_path):
    setting = scale_sampling.Setting(classes=50, inputs=8, d=8, c=2, batch=32, steps=60, test=500)
    record = tmp_path / "runs" / "sampled.json"
    results = scale_sampling.run([0, 1], setting, (1.0, 0.1), record=record)
    exact, sampled = ([r for r in results["runs"] if r["share"] == share] for share in (1.0, 0.1))
    for one, other in zip(exact, sampled, strict=True):
        assert one["error"] < 90  # of 98 by chance
        assert other["train_loss"] < one["train_loss"]  # its denominator lacks classes
    again = scale_sampling.run([0, 1], setting, (1.0, 0.1), record=record)
    assert again == results
    rows = scale_sampling.table(results).rows
    assert [row[0] for row in rows] == ["100%", "10%"]
    assert rows[0][2] == ""
