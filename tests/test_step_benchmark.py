"""The benchmark of a training step measures what it names."""

from rich.console import Console

from cappronet import step_benchmark


def test_costs_and_their_ratios(capsys):
    rounds = []
    costs = step_benchmark.run("resnet8", 4, rounds=3, image_size=8, on_round=rounds.append)
    assert rounds == [0, 1, 2]
    assert set(costs["ms"]) == {name for pair in step_benchmark.RATIOS.values() for name in pair}
    assert all(0 < value["low"] <= value["median"] <= value["high"] for value in costs["ms"].values())
    assert costs["ratios"]["augmentation / bare step"]["median"] < 1
    Console().print(step_benchmark.table(costs))
    shown = capsys.readouterr().out
    assert "resnet8, c=4" in shown
    assert f"{costs['ratios']['loop / bare step']['median']:.3f}" in shown
