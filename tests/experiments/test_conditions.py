from experiments.reproduction.conditions import conditions_table

LINEAR = "capsules against linear"


def row(head, errors, *, c=8, lr=0.1, validation=(), group="A", unit=False):
    tries = [{"changes": {"lr": lr}, "validation_errors": [error]} for error in validation]
    recipe = {"head": head, "capsule_dim": c, "lr": lr, "epochs": 12}
    recipe |= {"normalize": True, "scale": 25.0} if unit else {"normalize": False, "scale": "none"}
    return {
        "data": "data",
        "backbone": "resnet8",
        "head": f"{head} c={c}",
        "errors": errors,
        "parameters": 1,
        "seconds": 1.0,
        "seeds": list(range(len(errors))),
        "group": group,
        "recipe": recipe,
        "tries": tries,
    }


def cells(*rows):
    table = conditions_table([{"rows": rows}])
    line = [cell.replace("\N{NO-BREAK SPACE}", " ") for cell in table.rows[0]]
    return dict(zip(table.headings, line, strict=True))


def test_outcomes_follow_from_the_interval():
    linear = row("linear", [10.0, 11.0, 12.0])
    assert cells(linear, row("capsule", [5.0, 6.1, 6.9]))[LINEAR].startswith("capsules win, -5.00 ±")
    assert cells(linear, row("capsule", [15.0, 16.1, 16.9]))[LINEAR].startswith("capsules lose, +5.00 ±")
    assert cells(linear, row("capsule", [9.0, 12.0, 12.0]))[LINEAR].startswith("tie, +0.00 ±")
    assert cells(row("linear", [10.0]), row("capsule", [5.0]))[LINEAR] == "one seed"


def test_the_head_that_stands_for_all_is_chosen_by_validation_not_by_test_error():
    linear = row("linear", [10.0, 11.0], validation=[9.0])
    lucky = row("capsule", [1.0, 1.1], c=2, validation=[8.0, 9.0])
    chosen = row("capsule", [5.0, 6.0], c=4, validation=[9.5, 7.0], lr=0.4)
    line = cells(linear, lucky, chosen, row("cosine", [6.0, 7.5], validation=[8.0]))
    assert line["condition"] == "data, resnet8, 12 epochs, a learning rate for each head"
    assert line["error %"].split("; ")[1].startswith("capsule c=4: 5.50 ±")
    assert line[LINEAR].startswith("capsules win, -5.00 ± 0.00")
    assert line["against one vector for each class"].startswith("cosine c=8: tie, -1.25 ±")


def test_every_kind_of_head_with_one_vector_is_compared_with():
    linear, capsule = row("linear", [10.0, 11.0, 12.0]), row("capsule", [5.0, 6.0, 7.0])
    vectors = [row("cosine", [6.0, 5.0, 7.0]), row("weightnorm", [3.0, 4.0, 5.1]), row("cosine", [1.0, 1.0, 1.0], c=2)]
    told = cells(linear, capsule, *vectors)["against one vector for each class"].split("; ")
    assert [part.split(",")[0] for part in told] == [
        "cosine c=8: tie",
        "weightnorm c=8: capsules lose",
    ]


def test_capsules_of_one_dimension_have_one_vector_for_each_class():
    linear = row("linear", [10.0, 11.0, 12.0], validation=[9.0])
    capsule = row("capsule", [5.0, 6.1, 7.0], validation=[5.0], unit=True)
    lines = row("capsule", [8.0, 9.0, 10.0], c=1, validation=[8.0], unit=True)
    papers = row("capsule", [1.0, 1.0, 1.0], c=1, validation=[8.0])
    against = "against one vector for each class"
    assert cells(linear, capsule, lines, papers)[against].startswith("capsule c=1: capsules win, -2.97 ±")
    assert cells(linear, lines)[against] == ""
    assert cells(linear, capsule, papers)[against] == ""


def test_a_head_with_fewer_seeds_does_not_stand_for_all():
    linear, early = row("linear", [10.0, 11.0]), row("capsule", [1.0], c=2, validation=[1.0])
    assert cells(linear, early, row("capsule", [5.0, 6.0], c=4, validation=[2.0]))[LINEAR].startswith(
        "capsules win, -5.00"
    )


def test_without_tuning_the_papers_capsule_dimension_stands_for_all():
    line = cells(row("linear", [10.0, 11.0]), row("capsule", [1.0, 1.1], c=2), row("capsule", [5.0, 6.0], c=8))
    assert line["error %"].split("; ")[1].startswith("capsule c=8:")
    assert line["condition"].endswith("one learning rate")


def test_groups_without_both_heads_and_rows_without_runs_are_left_out():
    rows = [row("linear", [1.0, 2.0]), row("capsule", []), row("capsule", [1.0, 2.0], group="B")]
    assert not conditions_table([{"rows": rows}]).rows


def test_rates_that_were_tuned_and_agree_are_still_those_of_each_head():
    linear, capsule = row("linear", [10.0, 11.0], validation=[9.0]), row("capsule", [5.0, 6.0], validation=[7.0])
    capsule["recipe"]["pretrained"] = "timm"
    told = cells(linear, capsule)["condition"]
    assert told == "data, pretrained resnet8, 12 epochs, a learning rate for each head"


def test_the_papers_capsules_are_told_apart():
    linear, unit = row("linear", [10.0, 11.0, 12.0]), row("capsule", [5.0, 6.0, 7.0], unit=True, validation=[1.0])
    paper = row("capsule", [15.0, 16.0, 17.1], c=4, validation=[2.0])
    line = cells(linear, unit, paper)
    assert line[LINEAR].startswith("capsules win, -5.00")
    assert line["the paper's capsules against linear"].startswith("c=4: capsules lose, +5.03")
    assert cells(linear, unit)["the paper's capsules against linear"] == ""


def test_conditions_are_in_the_order_of_outcomes():
    errors = {"loses": [15.0, 16.1, 16.9], "ties": [9.0, 12.0, 12.0], "wins": [5.0, 6.1, 6.9]}
    rows = [
        measured
        for group, of_capsules in errors.items()
        for measured in (row("linear", [10.0, 11.0, 12.0], group=group), row("capsule", of_capsules, group=group))
    ]
    outcomes = [line[1].partition(",")[0] for line in conditions_table([{"rows": rows}]).rows]
    assert outcomes == ["capsules win", "tie", "capsules lose"]
