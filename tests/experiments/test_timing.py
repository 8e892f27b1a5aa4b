"""The timing loop, with turns that take as long as the tests say."""

import pytest

from experiments.benchmarks.timing import Timing, part_of, seconds, spread, take_turns


def test_contestants_take_turns_in_a_new_order_for_each_round():
    seen = []

    def turn(name):
        return lambda number: seen.append((number, name)) or {"work": 1.0}

    names = ["a", "b", "c", "d"]
    timing = take_turns({name: turn(name) for name in names}, 6)
    rounds = [[name for number, name in seen if number == wanted] for wanted in range(6)]
    assert [number for number, _ in seen] == sorted(number for number, _ in seen)
    assert all(sorted(order) == names for order in rounds)
    assert len({tuple(order) for order in rounds}) > 1
    assert [timing.rounds(name) for name in names] == [6] * 4


def test_warm_up_is_not_counted():
    seen = []
    timing = take_turns({"a": lambda number: seen.append(number) or {"work": float(number)}}, 2, warm_up=1)
    assert seen == [-1, 0, 1]
    assert timing.seconds("a") == [0.0, 1.0]


def test_slow_contestants_sit_out_but_never_the_reference():
    turns = {
        "fast": lambda _: {"fit": 1.0, "predict": 1.0},
        "slow": lambda _: {"fit": 2.0, "predict": 2.0},
        "reference": lambda _: {"fit": 9.0, "predict": 0.0},
    }
    timing = take_turns(turns, 5, slow=3.0, slow_rounds=2, never_slow=["reference"])
    assert {name: timing.rounds(name) for name in turns} == {"fast": 5, "slow": 2, "reference": 5}


def test_a_turn_without_laps_is_not_counted():
    timing = take_turns({"a": lambda number: {"work": 1.0} if number else {}, "b": lambda _: {"work": 1.0}}, 3)
    assert (timing.rounds("a"), timing.rounds("b")) == (2, 3)


def test_ratios_are_taken_within_a_round():
    ours = {0: {"x": 2.0, "y": 4.0}, 2: {"x": 3.0, "y": 3.0}}
    theirs = {0: {"x": 1.0, "y": 1.0}, 1: {"x": 9.0, "y": 9.0}, 2: {"x": 6.0, "y": 6.0}}
    timing = Timing({"a": ours, "b": theirs})
    assert timing.ratios("a", "b", "x") == [2.0, 0.5]
    assert timing.ratios("a", "b") == [3.0, 0.5]
    assert timing.seconds("a", "y") == [4.0, 3.0]


def test_a_call_is_timed_by_the_clock():
    times = iter([10.0, 12.5])
    assert seconds(lambda: None, lambda: next(times)) == 2.5


def test_spread_is_the_median_with_the_10_to_90_percent_range():
    assert spread([float(value) for value in range(100, -1, -1)]) == {"median": 50.0, "low": 10.0, "high": 90.0}
    assert spread([7.0]) == {"median": 7.0, "low": 7.0, "high": 7.0}


def test_progress_is_that_of_the_whole():
    told = []
    for number, name in enumerate(("first", "second")):
        report = part_of(lambda *progress: told.append(progress), number, 2, name)
        take_turns({"a": lambda _: {"work": 1.0}}, 2, report=report)
    assert told == [("first: a", 0, 4), ("first: a", 1, 4), ("second: a", 2, 4), ("second: a", 3, 4)]
    with pytest.raises(ZeroDivisionError):
        take_turns({"a": lambda _: 1 / 0}, 1)
