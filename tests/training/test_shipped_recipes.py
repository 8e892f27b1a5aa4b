"""Every shipped recipe is built at full size and trained for a step; the paper's have the paper's parameters."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from cappronet.data.samples import Dataset, Images
from cappronet.heads import create_head
from cappronet.training.builders import build_model, build_optimizer, learning_rate
from cappronet.training.recipe import Recipe, shipped

ROOT = shipped("recipes")
NAMES = sorted(str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.glob("*/*.toml"))
REPOSITORY = Path(__file__).parents[2]
PAPER = tomllib.loads((REPOSITORY / "results" / "paper.toml").read_text())
ROWS = [(table, row) for table, rows in PAPER.items() for row in rows]
SHAPES = {"digits": (1, 8, 10), "cifar10": (3, 32, 10), "cifar100": (3, 32, 100), "svhn_extra": (3, 32, 10)}
# What one head may have that another has not.
OF_THE_HEAD = {"head", "capsule_dim", "eps"}


def images_like(name):
    """Two random images of a dataset's shape, with all of its classes."""
    channels, size, classes = SHAPES.get(name, (3, 224, 1000))
    pixels = torch.randint(0, 256, (2, channels, size, size), dtype=torch.uint8)
    images = Images(torch.tensor([0, classes - 1]), pixels)
    return Dataset(name, tuple(str(i) for i in range(classes)), images, images)


def but_for_the_head(recipe):
    return tuple(sorted((k, str(v)) for k, v in recipe.to_dict().items() if k not in OF_THE_HEAD))


def grouped():
    """Recipes that differ in nothing but the head: their backbone, by far the largest part, is built once."""
    groups = {}
    for name in NAMES:
        recipe = Recipe.from_toml(ROOT / f"{name}.toml")
        groups.setdefault(but_for_the_head(recipe), {})[name] = recipe
    return list(groups.values())


@pytest.mark.slow
@pytest.mark.parametrize("recipes", grouped(), ids=lambda recipes: next(iter(recipes)))
def test_recipes_are_built_and_make_a_step(recipes):
    if any("imagenet" in name or "fine-tuning" in name for name in recipes):
        pytest.importorskip("timm")
    first = next(iter(recipes.values())).changed(pretrained="none")  # pretrained weights would be downloaded
    data = images_like(first.data)
    model = build_model(first, data)
    x = data.train.pixels.float() / 255
    for recipe in recipes.values():
        sizes = (model.feature_dim, len(data.classes), recipe.capsule_dim)
        model.head = create_head(recipe.head, *sizes, **recipe.head_options())
        makes_a_step(recipe, model, x, data.train.labels)
    # The paper's column counts the backbone with a linear layer for ten classes, whatever the head and the dataset.
    parameters = sum(p.numel() for p in model.backbone.parameters()) + 10 * (model.feature_dim + 1)
    for _, row in ROWS:
        if row["recipe"] in recipes and "parameters" in row:
            digits = len(row["parameters"].partition(".")[2]) - 1
            assert f"{parameters / 1e6:.{digits}f}M" == row["parameters"]


def makes_a_step(recipe, model, x, y):
    optimizer = build_optimizer(recipe, model)
    before = [p.detach().clone() for p in model.head.parameters()]
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(recipe, 0, 100)
    optimizer.step()
    assert torch.isfinite(loss)
    assert any(not torch.equal(old, new) for old, new in zip(before, model.head.parameters(), strict=True))


def test_every_row_of_the_paper_has_its_recipe_and_every_recipe_its_row():
    assert {row["recipe"] for _, row in ROWS} == {name for name in NAMES if name.startswith("paper/")}
    assert {table: len(rows) for table, rows in PAPER.items()} == {"table1": 43, "table2": 8, "table3": 7}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_what_it_is(name):
    header = (ROOT / f"{name}.toml").read_text().partition("\n\n")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    assert f"cappronet train --recipe {name}\n" in header + "\n"
    assert "# Time: " in header
    for table, row in ROWS:
        if row["recipe"] == name:
            text = header.replace("\n# ", " ")
            assert f"Table {table[-1]}" in text
            assert f"{row['published']} %" in text


def test_heads_of_a_group_share_everything_else():
    groups = {}
    for name in NAMES:
        if name.startswith("paper/") and not name.endswith("-he"):
            groups.setdefault(name.rpartition("-")[0], []).append(Recipe.from_toml(ROOT / f"{name}.toml").to_dict())
    assert len(groups) == 15
    for recipes in groups.values():
        assert {recipe["head"] for recipe in recipes} >= {"linear", "capsule"}
        shared = [{k: v for k, v in recipe.items() if k not in OF_THE_HEAD} for recipe in recipes]
        assert all(values == shared[0] for values in shared)


def test_tables_at_the_scale_of_two_cores_have_their_recipes_and_a_control():
    tables = tomllib.loads((REPOSITORY / "experiments" / "reproduction" / "cpu.toml").read_text())
    for entries in tables.values():
        heads = {}
        for entry in entries:
            heads.setdefault(entry["recipe"], []).extend(head["head"] for head in entry["heads"])
        assert {str(Path(recipe).parent) for recipe in heads} <= {"cpu", "fine-tuning"}
        assert set(heads) <= set(NAMES)
        assert all("linear" in kinds for kinds in heads.values())


def expected_time(recipe):
    """Epochs times images times what a step took on the machine of the committed measurement."""
    measured = json.loads((REPOSITORY / "results" / "overhead.json").read_text())
    step = measured["backbones"][recipe.backbone]["linear"]["step"]["ms"]["median"] / 1000
    images = {"cifar10": 50_000, "cifar100": 50_000, "svhn_extra": 604_388, "imagenet": 1_281_167}[recipe.data]
    days = recipe.epochs * images / measured["batch"] * step / 86_400
    rounded = f"{days:.0f}" if days >= 10 else f"{days:.1f}"
    return f"{recipe.epochs} epochs, about {rounded} days on two CPU cores (results/overhead.json)."


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("paper/")])
def test_the_expected_time_is_that_of_the_measured_step(name):
    path = ROOT / f"{name}.toml"
    assert f"# Time: {expected_time(Recipe.from_toml(path))}\n" in path.read_text()
