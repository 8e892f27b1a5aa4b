"""Every number in the pages is one that the project measured: tables and sentences are compared with result files."""

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from statistics import mean

import pytest

from cappronet.training import results
from cappronet.training.recipe import Recipe
from experiments.probes import comparing, rivals
from experiments.studies.transfer import PENALTIES
from tools.tables import NOT_RUN, TABLES, table_in, with_tables

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def loaded(name):
    return json.loads((ROOT / "results" / name).read_text())


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_was_measured(name):
    page, _, _ = TABLES[name]
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert len(table_in(text, name).splitlines()) > 2 or table_in(text, name) == NOT_RUN
    assert table_in(text, name) == table_in(with_tables(page), name), "run: python -m tools.tables"


def test_every_table_of_numbers_is_checked():
    marked = {name for page in PAGES for name in re.findall(r"<!-- (\w[\w-]*) -->", (ROOT / page).read_text())}
    assert marked == TABLES.keys() | {"outcomes"}


def test_folded_tables_have_as_many_rows_as_they_say():
    counted = {}
    for page in PAGES:
        folded = re.findall(r"<summary>(.*?)</summary>(.*?)</details>", (ROOT / page).read_text(), re.DOTALL)
        for summary, content in folded:
            if said := re.search(r"(\d+) (?:rows|heads at|heads on|scores|ways)", summary):
                counted[summary] = (int(said[1]), content.count("\n|") - 2)
    assert len(counted) == 7
    assert {summary: counts for summary, counts in counted.items() if counts[0] != counts[1]} == {}


def test_every_key_of_a_recipe_is_explained():
    page = (ROOT / "docs" / "api" / "recipe.md").read_text()
    assert [row.split("`")[1] for row in table_in(page, "recipe").splitlines()[2:]] == [f.name for f in fields(Recipe)]
    assert page == with_tables("api/recipe"), "run: python -m tools.tables"


@dataclass
class Outcome:
    """A row of "When to use it": where the errors of a control and of a capsule head are, and how they are shown."""

    setting: str
    file: str
    where: dict
    control: tuple[str, str]  # as in the file, as on the page
    capsule: tuple[str, str]
    unit: str
    key: str = "head"
    errors: str = "errors"

    def line(self):
        a, b = (self.measured(name) for name, _ in (self.control, self.capsule))
        count = f"{len(a)} {self.unit}{'s' if len(a) > 1 else ''}"
        shown = (f"{self.control[1]}: {cell(a)}", f"{self.capsule[1]}: {cell(b)}", count, self.verdict(a, b))
        return f"| {self.setting} | {' | '.join(shown)} |"

    def measured(self, name):
        wanted = {**self.where, self.key: name}
        (row,) = (row for row in loaded(self.file)["rows"] if all(row[key] == wanted[key] for key in wanted))
        return row[self.errors]

    def verdict(self, a, b):
        difference = mean(b) - mean(a)
        margin = results.interval([y - x for x, y in zip(a, b, strict=True)])
        return "no clear difference" if abs(difference) <= margin else f"{'fewer' if difference < 0 else 'more'} errors"


def cell(errors):
    return f"{mean(errors):.2f}" + (f" ± {results.interval(errors):.2f}" if len(errors) > 1 else "")


LINEAR, C_4 = ("linear", "linear"), ("capsule c=4", "c=4")
UNIT = ("unit capsule c=8, scale 25", "unit c=8, scale 25")


@dataclass
class ProbeOutcome:
    """A row for `CapsuleClassifier()` and tuned logistic regression on a set of frozen features."""

    setting: str
    features: str
    samples: str

    def line(self):
        measured = comparing.results(loaded("probes.json"))
        ours, theirs = (measured[self.features, self.samples, rival] for rival in (rivals.CAPSULE, rivals.LOGISTIC))
        n = len(ours.row.errors)
        cells = (
            f"logistic regression: {theirs.cell}",
            f"`CapsuleClassifier()`: {ours.cell}",
            f"{n} draw{'s' if n > 1 else ''}",
            comparing.verdict(comparing.compare(ours, theirs)),
        )
        return f"| {self.setting} | {' | '.join(cells)} |"


OUTCOMES = [
    ProbeOutcome("frozen features of CIFAR-100 by EfficientNet-Lite0, 500 images per class", "cifar100-lite0", "all"),
    ProbeOutcome("the same, 20 images per class", "cifar100-lite0", "20"),
    ProbeOutcome("the same, 5 images per class", "cifar100-lite0", "5"),
    ProbeOutcome("frozen features of questions to a bank by MiniLM, about 130 per class", "banking77", "all"),
    ProbeOutcome("the same, 20 questions per class", "banking77", "20"),
    ProbeOutcome("the pixels of digits, about 140 images per class", "digits", "all"),
    Outcome("two classes added from 20 images each", "new_classes.json", {"net": "capsule", "images": 20},
            ("linear head refitted", "linear head, refitted"),
            ("subspaces set, two added, contrast 0.5", "from features, contrast 0.5"), "draw", key="method",
            errors="all"),
    Outcome("ResNet-8 trained end to end on digits, one learning rate for all", "compare_digits.json",
            {"backbone": "resnet8"}, LINEAR, C_4, "seed"),
    Outcome("the same, learning rate tuned for each head, on held-out images", "table3-cpu.json",
            {"data": "digits, held-out images"}, LINEAR, ("capsule c=8", "c=8"), "seed"),
    Outcome("ResNet-8 with 512 features trained end to end on CIFAR-100, learning rate tuned for each head",
            "end-to-end-cpu.json", {"group": "cifar100-resnet8-d512"}, LINEAR, UNIT, "seed"),
    Outcome("the same with 64 features", "widths-cpu.json", {"group": "cifar100-resnet8-d64"}, LINEAR, UNIT, "seed"),
    Outcome("the same with 1,024 features", "widths-cpu.json", {"group": "cifar100-resnet8-d1024"},
            LINEAR, UNIT, "seed"),
    Outcome("the same with 512 features and 24 epochs instead of 12", "longer-schedule-cpu.json",
            {"group": "cifar100-resnet8-d512-24-epochs"}, LINEAR, UNIT, "seed"),
    Outcome("EfficientNet-Lite0 fine-tuned on 5,000 images of CIFAR-100, learning rate tuned for each head",
            "fine-tuned-heads-cpu.json", {"group": "cifar100-5000-lite0"}, LINEAR, UNIT, "seed"),
    Outcome("the same", "fine-tuned-heads-cpu.json", {"group": "cifar100-5000-lite0"},
            ("cosine, scale 25", "cosine, scale 25"), UNIT, "seed"),
    Outcome("ResNet-8 trained end to end on 5,000 images of CIFAR-10", "table3-cpu.json",
            {"data": "cifar10, 5,000 images"}, LINEAR, C_4, "seed"),
    Outcome("the same, learning rate tuned for each head", "tuned-cifar10-cpu.json", {"group": "cifar10-5000-tuned"},
            LINEAR, UNIT, "seed"),
    Outcome("the same with 40 % wrong labels", "label-noise-cpu.json", {"group": "cifar10-5000-noise40"},
            LINEAR, UNIT, "seed"),
]  # fmt: skip


def test_when_to_use_it_says_what_was_measured():
    assert table_in((ROOT / "docs/when-to-use.md").read_text(), "outcomes").splitlines()[2:] == [
        outcome.line() for outcome in OUTCOMES
    ]


def test_the_readme_shows_four_of_these_rows():
    head, *rows = table_in((ROOT / "README.md").read_text(), "outcomes").splitlines()
    complete = table_in((ROOT / "docs/when-to-use.md").read_text(), "outcomes").splitlines()
    assert head == complete[0]
    assert len(rows) == 5
    assert [row for row in rows if row not in complete] == []
    assert {row.split(" | ")[-1] for row in rows[1:]} == {"fewer errors |", "more errors |", "no clear difference |"}


def test_what_is_said_of_the_comparison_on_digits_was_measured():
    rows = [results.row_from(row) for row in loaded("compare_digits.json")["rows"]]
    pixels, resnet = ({row.head: row for row in rows if row.backbone == name} for name in ("pixels", "resnet8"))
    for head in ("capsule c=4", "unit capsule c=4, scale 25"):
        assert 0.45 < pixels[head].mean / pixels["linear"].mean < 0.55
        assert pixels[head].mean + pixels[head].half_width < pixels["group c=4"].mean - pixels["group c=4"].half_width
    gaps = {head: results.difference(row, resnet["linear"]) for head, row in resnet.items() if head != "linear"}
    assert [head for head, gap in gaps.items() if abs(gap.mean) > gap.half_width] == ["unit capsule c=4, scale 25"]
    gap = gaps["unit capsule c=4, scale 25"]
    assert round(gap.mean, 1) == 0.4
    assert gap.mean - gap.half_width < 0.02


def test_what_is_said_of_heads_trained_end_to_end_was_measured():
    rows = {row["head"]: results.row_from(row) for row in loaded("end-to-end-cpu.json")["rows"] if row["errors"]}
    linear, cosine, unit = (rows[head] for head in ("linear", "cosine, scale 25", "unit capsule c=8, scale 25"))
    assert {len(row.errors) for row in rows.values()} == {3}

    def clear(row, other):
        difference = results.difference(row, other)
        return abs(difference.mean) > difference.half_width

    assert clear(unit, linear)
    assert clear(unit, cosine)
    assert not clear(rows["group c=8"], linear)
    assert not clear(rows["unit capsule c=8, scale 25, Grassmann step"], unit)
    assert not clear(rows["unit capsule c=16, scale 25"], unit)
    assert clear(rows["capsule c=8"], linear)
    assert round(rows["capsule c=8"].mean - linear.mean, 1) == 1.5
    assert rows["unit capsule c=16, scale 25"].mean < unit.mean
    line, normed = rows["unit capsule c=1, scale 25"], rows["weightnorm"]
    assert [round(row.mean - other.mean, 1) for row, other in ((line, cosine), (unit, line))] == [-1.8, -1.8]
    assert clear(line, cosine)
    assert clear(unit, line)
    assert clear(normed, linear)
    assert [round(row.mean - linear.mean) for row in (line, cosine, normed)] == [-7, -5, 3]
    assert line.parameters == cosine.parameters < linear.parameters
    assert (round(unit.mean - linear.mean), round(unit.mean - cosine.mean)) == (-9, -4)
    assert 0.5 < (linear.mean - cosine.mean) / (linear.mean - unit.mean) < 0.6
    losses = {row["head"]: mean(row["train_losses"]) for row in loaded("end-to-end-cpu.json")["rows"] if row["errors"]}
    *fastest, third, fourth, fifth, _, _, _, _ = sorted(losses, key=losses.__getitem__)
    assert set(fastest) == {"unit capsule c=16, scale 25", "unit capsule c=8, scale 25, Grassmann step"}
    assert (third, fourth, fifth) == (unit.head, line.head, cosine.head)
    assert min(losses.values()) > 0.5


def test_what_is_said_of_networks_trained_again_was_measured():
    first, again = (
        {row["head"]: row for row in loaded(f"{folder}end-to-end-cpu.json")["rows"]} for folder in ("", "repeated/")
    )
    assert first["weightnorm"]["errors"] == again["weightnorm"]["errors"]
    assert first["weightnorm"]["commits"] != again["weightnorm"]["commits"]
    paper, repeated = (rows["capsule c=8"] for rows in (first, again))
    assert paper["errors"][0] == repeated["errors"][0]
    text = " ".join((ROOT / "docs/reproduction.md").read_text().split())
    new, old = (" and ".join(f"{error:.2f}" for error in row["errors"][1:]) for row in (repeated, paper))
    assert f"made {new} instead of {old} %" in text
    assert all(first[head] == again[head] for head in first if head not in ("weightnorm", "capsule c=8"))
    assert {name: paper[name] for name in ("recipe", "tries")} == {name: repeated[name] for name in ("recipe", "tries")}
    gap = results.difference(results.row_from(repeated), results.row_from(first["linear"]))
    assert f"difference to the linear head is {gap.mean:+.2f} ± {gap.half_width:.2f}, which includes zero" in text
    assert abs(gap.mean) < gap.half_width


def test_the_recipe_of_wide_features_is_the_one_that_was_measured():
    path = ROOT / "recipes/cpu/cifar100-resnet8-d512.toml"
    rows = {row["head"]: row for row in loaded("end-to-end-cpu.json")["rows"]}
    unit, linear = rows[UNIT[0]], rows["linear"]
    shipped = Recipe.from_toml(path).changed(compile=unit["recipe"]["compile"]).to_dict()
    assert {name: shipped[name] for name in unit["recipe"]} == unit["recipe"]
    assert f"# Expected: {mean(unit['errors']):.1f} % errors, the mean of three seeds" in path.read_text()
    assert f"a learning rate tuned for it: {mean(linear['errors']):.1f} %" in path.read_text()


def test_what_is_said_of_a_longer_schedule_was_measured():
    rows = loaded("longer-schedule-cpu.json")["rows"]
    assert {(row["recipe"]["precision"], row["recipe"]["epochs"]) for row in rows} == {("bf16-mixed", 24)}
    linear, cosine, unit = (results.row_from(row) for row in rows)
    short = {row["head"]: row for row in loaded("end-to-end-cpu.json")["rows"]}
    assert {short[row.head]["recipe"]["precision"] for row in (linear, cosine, unit)} == {"32-true"}
    for row in (linear, cosine, unit):
        assert 2.5 < mean(short[row.head]["errors"]) - row.mean < 4.5
    for other, points in ((linear, -9), (cosine, -4)):
        gap = results.difference(unit, other)
        assert (gap.n, round(gap.mean)) == (3, points)
        assert gap.mean + gap.half_width < 0
    assert min(loss for row in rows for loss in row["train_losses"]) > 0.8


def test_what_is_said_of_narrower_and_wider_features_was_measured():
    rows = loaded("end-to-end-cpu.json")["rows"] + loaded("widths-cpu.json")["rows"]
    gaps, at_the_edge = {}, []
    for backbone, points in (("resnet8_d64", -5), ("resnet8_d512", -9), ("resnet8_d1024", -8)):
        heads = {row["head"]: row for row in rows if row["backbone"] == backbone}
        precision = "bf16-mixed" if backbone == "resnet8_d1024" else "32-true"
        assert {row["recipe"]["precision"] for row in heads.values()} == {precision}
        gap = results.difference(*(results.row_from(heads[head]) for head in (UNIT[0], "linear")))
        assert (gap.n, round(gap.mean)) == (3, points)
        assert gap.mean + gap.half_width < 0
        gaps[backbone] = gap
        for head in (UNIT[0], "linear"):
            rates = [trial["changes"]["lr"] for trial in heads[head]["tries"]]
            at_the_edge += [(backbone, head, edge) for edge in (0, -1) if heads[head]["recipe"]["lr"] == rates[edge]]
    for gap, other in combinations(gaps.values(), 2):
        assert abs(gap.mean - other.mean) < gap.half_width + other.half_width
    assert gaps["resnet8_d1024"].mean > gaps["resnet8_d512"].mean
    assert at_the_edge == [("resnet8_d64", UNIT[0], 0)]


def test_what_is_said_of_superclasses_was_measured():
    rows = loaded("superclasses-cpu.json")["rows"]
    linear, cosine, unit = (results.row_from(row) for row in rows)
    assert [row.head for row in (linear, cosine, unit)] == ["linear", "cosine, scale 25", "unit capsule c=8, scale 25"]
    for other, points in ((linear, -5), (cosine, -3)):
        gap = results.difference(unit, other)
        assert (gap.n, round(gap.mean)) == (3, points)
        assert gap.mean + gap.half_width < 0
    assert 0.49 < (linear.mean - cosine.mean) / (linear.mean - unit.mean) < 0.6
    rates = {row["head"]: row["recipe"]["lr"] for row in rows}
    assert rates[unit.head] == rates["linear"]
    assert [row["head"] for row in rows if row["recipe"]["lr"] == row["tries"][0]["changes"]["lr"]] == [cosine.head]


def test_what_is_said_of_few_images_with_tuned_rates_was_measured():
    rows = loaded("tuned-cifar10-cpu.json")["rows"]
    linear, *others = (results.row_from(row) for row in rows)
    assert (linear.head, len(others)) == ("linear", 4)
    for row in others:
        gap = results.difference(row, linear)
        assert gap.n == 3
        assert 1 < gap.mean < 3
        assert (gap.mean > gap.half_width) == (row.head != "group c=8")
        assert row.head != "capsule c=8" or round(gap.mean) == 3
    after_tuning = {row["head"]: min(mean(trial["validation_errors"]) for trial in row["tries"]) for row in rows}
    assert after_tuning["unit capsule c=8, scale 25"] < after_tuning["linear"]
    losses = {row["head"]: mean(row["train_losses"]) for row in rows}
    assert sorted(losses, key=losses.__getitem__)[:2] == ["unit capsule c=8, scale 25", "cosine, scale 25"]


def test_what_is_said_of_wrong_labels_was_measured():
    rows = loaded("label-noise-cpu.json")["rows"]
    assert {row["group"] for row in rows} == {"cifar10-5000-noise40"}
    linear, cosine, unit = (results.row_from(row) for row in rows)
    assert [row.head for row in (linear, cosine, unit)] == ["linear", "cosine, scale 25", UNIT[0]]
    for row, points in ((cosine, 6), (unit, 7)):
        gap = results.difference(row, linear)
        assert (gap.n, round(gap.mean)) == (3, points)
        assert gap.mean > gap.half_width
    gap = results.difference(unit, cosine)
    assert abs(gap.mean) < gap.half_width
    text = " ".join((ROOT / "docs/reproduction.md").read_text().split())
    right, wrong = 0.6, 0.4  # the wrong labels are spread over nine classes
    entropy = -right * math.log(right) - wrong * math.log(wrong / 9)
    assert f"has a cross-entropy of {entropy:.2f} on such images" in text
    losses = [mean(row["train_losses"]) for row in rows]
    assert "linear head is at {:.2f}, the cosine head at {:.2f} and the capsule head at {:.2f}".format(*losses) in text
    tuned = [min(mean(trial["validation_errors"]) for trial in row["tries"]) for row in rows]
    assert max(tuned) - min(tuned) < 2
    gains = []
    for row in rows:
        curve = dict(zip(row["epochs"], map(mean, zip(*row["curves"], strict=True)), strict=True))
        assert 49 < curve[60] < 50
        gains.append(round(curve[60] - curve[80]))
    assert gains == [8, 3, 2]
    assert {row["recipe"]["lr"] for row in rows} == {0.2, 0.4}


def test_what_is_said_of_fine_tuned_heads_was_measured():
    rows = loaded("fine-tuned-heads-cpu.json")["rows"]
    linear, cosine, *capsules = (results.row_from(row) for row in rows)
    assert [row.head for row in (linear, cosine)] == ["linear", "cosine, scale 25"]
    gap = results.difference(cosine, linear)
    assert (gap.n, round(gap.mean)) == (3, -3)
    assert gap.mean + gap.half_width < 0
    for capsule in capsules:
        against_linear, against_cosine = (results.difference(capsule, other) for other in (linear, cosine))
        assert -2 < against_linear.mean < -1
        assert (against_linear.mean + against_linear.half_width < 0) == ("c=16" in capsule.head)
        assert 0.9 < against_cosine.mean < 2
        assert against_cosine.mean > against_cosine.half_width
    losses = {row["head"]: mean(row["train_losses"]) for row in rows}
    assert min(losses, key=losses.__getitem__) == "unit capsule c=16, scale 25"


def test_what_is_said_of_learning_rates_on_cifar_was_measured():
    for file in ("end-to-end-cpu.json", "tuned-cifar10-cpu.json"):
        rates = {row["head"]: row["recipe"]["lr"] for row in loaded(file)["rows"] if row["errors"]}
        capsules = [rate for head, rate in rates.items() if "capsule" in head]
        assert len(capsules) >= 2
        assert max(capsules) <= rates["linear"] / 2
    rows = loaded("widths-cpu.json")["rows"]
    assert len({row["recipe"]["lr"] for row in rows if row["backbone"] == "resnet8_d1024"}) == 1


def transfer_errors(trained_on):
    """By classifier and images of each class, then by head and seed: the mean test error."""
    errors = {}
    rows = [row for part in loaded("transfer.json")["parts"] for row in part["rows"]]
    for row in (row for row in rows if row["trained_on"] == trained_on):
        by_seed = errors.setdefault((row["classifier"], row["images"]), {}).setdefault(row["head"], {})
        by_seed[row["seed"]] = mean(row["errors"])
    assert len(errors) == 4
    return errors


def clear_difference(errors, head, other):
    """Whether a head has fewer or more errors than another, with an interval that excludes zero."""
    gaps = [errors[head][seed] - errors[other][seed] for seed in range(3)]
    if abs(mean(gaps)) <= results.interval(gaps):
        return ""
    return "fewer" if mean(gaps) < 0 else "more"


def test_what_is_said_of_transfer_was_measured():
    cosine, capsule, line = "cosine, scale 25", "unit capsule c=8, scale 25", "unit capsule c=1, scale 25"
    settings = transfer_errors("end-to-end")
    assert {clear_difference(errors, line, "linear") for errors in settings.values()} == {"fewer"}
    assert not any(clear_difference(errors, line, cosine) for errors in settings.values())
    assert {clear_difference(errors, "capsule c=8", "linear") for errors in settings.values()} == {"more"}
    against_linear = {name: clear_difference(errors, "weightnorm", "linear") for name, errors in settings.items()}
    assert against_linear.pop(("logistic regression", "20")) == ""
    assert set(against_linear.values()) == {"more"}
    assert {clear_difference(errors, cosine, "linear") for errors in settings.values()} == {"fewer"}
    assert [name for name, errors in settings.items() if clear_difference(errors, capsule, "linear") != "fewer"] == [
        ("logistic regression", "20")
    ]
    assert not any(clear_difference(errors, capsule, cosine) for errors in settings.values())
    assert not any(clear_difference(errors, "group c=8", "linear") for errors in settings.values())
    wide = "unit capsule c=16, scale 25"
    against_cosine = {name: clear_difference(errors, wide, cosine) for name, errors in settings.items()}
    assert against_cosine.pop(("1-NN", "all")) == ""
    assert set(against_cosine.values()) == {"more"}
    for (_, images), errors in settings.items():
        assert clear_difference(errors, wide, "linear") == ("fewer" if images == "all" else "")


def test_what_is_said_of_penalties_in_transfer_was_measured():
    rows = [row for part in loaded("transfer.json")["parts"] for row in part["rows"] if "penalty" in row]
    assert {(row["trained_on"], row["images"]) for row in rows if row["penalty"] == max(PENALTIES)} == {
        ("end-to-end", "all")
    }
    weakest = Counter(row["head"] for row in rows if row["penalty"] == max(PENALTIES))
    assert weakest == {"linear": 2, "group c=8": 2, "capsule c=8": 3, "weightnorm": 3}


@pytest.mark.parametrize(("other", "least", "most"), [("linear", 4.5, 9.2), ("cosine, scale 25", 1.45, 3)])
def test_what_is_said_of_transfer_from_superclasses_was_measured(other, least, most):
    capsule = "unit capsule c=8, scale 25"
    for errors in transfer_errors("superclasses").values():
        assert clear_difference(errors, capsule, other) == "fewer"
        assert least < mean(errors[other].values()) - mean(errors[capsule].values()) < most


def test_what_is_said_of_all_of_cifar10_was_measured():
    (row,) = loaded("table1-cpu.json")["rows"]
    assert (row["head"], row["recipe"]["epochs"], len(row["errors"])) == ("unit capsule c=8, scale 25", 28, 1)
    mirrored = loaded("speedrun_mirrored.json")
    assert (mirrored["samples"], mirrored["mirror"]) == (10_000, True)
    text = " ".join((ROOT / "docs/reproduction.md").read_text().split())
    assert text.count(f"makes {row['errors'][0]:.2f} % errors") == 2
    assert f"makes {mirrored['error']:.2f} %, an accuracy of {mirrored['accuracy']:.2f} %" in text
    assert f"two processes, {row['seconds'] / 60:.0f} minutes" in text


def test_what_is_said_of_dynamic_routing_was_measured():
    rows = [row for part in loaded("routing.json")["parts"] for row in part["rows"]]
    assert {row["data"] for row in rows} == {"digits"}
    errors, steps = {}, {row["network"]: row["step_ms"] for row in rows if "step_ms" in row}
    for row in (row for row in rows if "error" in row):
        errors.setdefault(row["network"], {})[row["seed"]] = row["error"]
    linear, *others = errors
    assert linear == "ResNet-8, linear"
    assert not any(clear_difference(errors, network, linear) for network in others)
    capsule, *routing, network = [steps[name]["median"] / steps[linear]["median"] for name in others]
    assert [round(ratio, 1) for ratio in routing] == [1.6, 1.8]
    assert 6.5 < network < 7
    assert capsule < 1.15
    assert steps[others[0]]["low"] < steps[linear]["high"]
    parameters = {row["network"]: row["parameters"] for row in rows if "error" in row}
    assert round(parameters[others[-1]] / parameters[linear]) == 10


# Classifiers that are farther from the default than grouped neurons and the MLP.
FARTHER = ("logistic regression", "linear SVM", "LDA", "ridge", "k-NN", "RBF", "cosine", "sub-center")


def test_what_is_said_of_the_probes_was_measured():
    measured = comparing.results(loaded("probes.json"))
    sets = list(dict.fromkeys(name for name, _, _ in measured))
    assert len(sets) == 7

    def verdicts(rival, *sizes):
        pairs = [(measured[n, size, rivals.CAPSULE], measured[n, size, rival]) for n in sets for size in sizes]
        return [comparing.verdict(comparing.compare(ours, theirs)) for ours, theirs in pairs]

    assert set(verdicts(rivals.LOGISTIC, "all")) == {"fewer errors"}
    others = {rival: verdicts(rival, "all") for rival in rivals.RIVALS if rival != rivals.CAPSULE}
    assert not any("more errors" in told for told in others.values())
    assert others["grouped neurons"].count("fewer errors") == 3
    assert all(told.count("fewer errors") > 3 for rival, told in others.items() if rival in FARTHER)
    assert "more errors" not in verdicts(rivals.MLP, "all") + verdicts(rivals.LOGISTIC, "5", "20")
    hundred = verdicts(rivals.LOGISTIC, "100")
    assert (hundred.count("fewer errors"), hundred.count("more errors")) == (2, 1)
    assert hundred[sets.index("cifar10-lite0")] == "more errors"
    assert "more errors" not in verdicts(rivals.MLP, "1", "2", "100")
    linear_in_few = ("linear SVM", "ridge", "cosine")
    better = [
        (rival, i // 2) for rival in linear_in_few for i, v in enumerate(verdicts(rival, "5", "20")) if v[0] == "m"
    ]
    assert len(better) == 8
    assert {sets[i] for _, i in better} == {"cifar10-mobilenet_v2", "cifar100-mobilenet_v2"}
    for rival in set(rivals.RIVALS) - {
        rivals.CAPSULE,
        rivals.LOGISTIC,
        rivals.MLP,
        *linear_in_few,
        rivals.TUNED_CAPSULE,
    }:
        assert "more errors" not in verdicts(rival, "5", "20", "100"), rival
    assert not any("more errors" in verdicts(rival, "100") for rival in (*linear_in_few, rivals.TUNED_CAPSULE))
    tuned = verdicts(rivals.TUNED_CAPSULE, "5", "20")
    assert (tuned.count("fewer errors"), tuned.count("more errors"), tuned[0]) == (6, 1, "more errors")
    assert set(verdicts(rivals.TUNED_CAPSULE, "100", "all")) == {"no clear difference"}
    fewest = verdicts(rivals.LOGISTIC, "1", "2")
    assert fewest[-4:] == ["more errors"] * 4  # CIFAR-100
    assert "more errors" not in fewest[:-4]
    uneven = verdicts(rivals.LOGISTIC, "imbalanced")
    assert (uneven.count("fewer errors"), uneven.count("more errors")) == (4, 1)
    assert uneven[sets.index("cifar10-mobilenet_v2")] == "more errors"
    assert verdicts(rivals.MLP, "imbalanced").count("more errors") == 3
    few = verdicts(rivals.MLP, "5", "20")
    sentences = {i for i, name in enumerate(name for name in sets for _ in "ab") if name in ("banking77", "clinc150")}
    assert {i for i, text in enumerate(few) if text == "more errors"} < sentences
    assert few.count("more errors") == 3
    fits = {rival: [measured[name, "all", rival].fit for name in sets] for rival in (rivals.CAPSULE, rivals.MLP)}
    assert all(ours < theirs for ours, theirs in zip(*fits.values(), strict=True))
    for rival, lowest, highest in ((rivals.LOGISTIC, 0.5, 2.3), (rivals.MLP, 0.03, 0.9)):
        ratios = [fit / measured[name, "all", rival].fit for name, fit in zip(sets, fits[rivals.CAPSULE], strict=True)]
        assert (float(f"{min(ratios):.1g}"), round(max(ratios), 1)) == (lowest, highest)
    for rival, highest in ((rivals.CAPSULE, 3), (rivals.LOGISTIC, 6)):
        errors = [measured[name, "all", rival].calibration for name in sets]
        assert (round(min(errors)), round(max(errors))) == (1, highest)


def test_what_is_said_of_scores_on_frozen_features_was_measured():
    rows = loaded("out_of_scope.json")["rows"]
    pairs = list(loaded("out_of_scope.json")["sets"])
    best = {pair: max((r for r in rows if r["pair"] == pair), key=lambda r: mean(r["auroc"])) for pair in pairs}
    assert {(row["head"], row["score"]) for row in best.values()} == {("capsule", "fdbd")}

    def best_of(measure, pair):
        same = [r for r in rows if r["pair"] == pair and r[f"{measure} gap"][0] <= 0 <= r[f"{measure} gap"][1]]
        return {(row["head"], row["score"]) for row in same}

    capsule = ("capsule", "fdbd")
    assert [best_of("auroc", pair) for pair in pairs] == [
        {capsule, ("capsule", "class residual"), ("linear", "fdbd")},
        {capsule, ("capsule", "gen")},
        {capsule},
    ]
    assert capsule in best_of("fpr", pairs[0])
    assert best_of("fpr", pairs[1]) == {("capsule", "vim")}
    assert best_of("fpr", pairs[2]) == {("linear", "vim"), ("linear", "energy")}
    assert min(mean(row["fpr"]) for row in rows if row["pair"] != pairs[0]) > 0.5
    inside = {(r["pair"], r["score"]): mean(r["auroc"]) for r in rows if r["head"] == "capsule"}
    for pair in pairs[1:]:
        assert inside[pair, "outside"] < min(inside[pair, "residual"], inside[pair, "length energy"])
    assert (pairs[0], "outside") not in inside
    lengths = [row for row in rows if row["score"] in ("residual", "outside", "length energy")]
    assert all((row["head"], row["score"]) not in best_of("auroc", row["pair"]) for row in lengths)


@pytest.mark.parametrize("page", ["README.md", "docs/when-to-use.md", "docs/benchmarks.md"])
def test_what_the_head_costs_is_what_was_measured(page):
    text = " ".join((ROOT / page).read_text().split())
    heads = loaded("benchmark.json")["shapes"]["B=256 d=2048 L=1000 c=8"]
    ratio = heads["capsule"]["both"]["ratio"]["median"]
    capsule, linear = (heads[name]["both"]["ms"]["median"] for name in ("capsule", "linear, d to L"))
    assert f"{ratio:.2f} times" in text
    assert f"about {capsule / linear:.0f} times as long" in text
    if "ms" in text.split():
        assert f"{capsule:.0f} ms" in text
        assert f"{linear:.1f} ms" in text
    if "ResNet-20" in text and page != "docs/benchmarks.md":  # which has the whole table
        step_ratio = loaded("training_benchmark.json")["ratios"]["capsule head / linear head"]["median"]
        assert f"{step_ratio:.2f} times" in text


@pytest.mark.parametrize(
    "file", sorted((ROOT / "results").rglob("*.json")), ids=lambda file: file.relative_to(ROOT).as_posix()
)
def test_a_result_file_names_no_folder_of_the_machine_that_wrote_it(file):
    assert re.findall(r'"(?:/|[A-Z]:\\)[^"]*"', file.read_text()) == []
