"""Recipes: documented, checked, and the same after a trip through a file."""

import dataclasses

import pytest

from cappronet.heads import HEADS
from cappronet.training.recipe import CHOICES, Recipe


def test_every_field_is_explained():
    for field in dataclasses.fields(Recipe):
        assert field.metadata["help"].endswith("."), field.name


def test_heads_are_those_there_are():
    assert set(CHOICES["head"]) == set(HEADS)


def test_a_recipe_survives_its_file(tmp_path):
    recipe = Recipe(lr=0.3, milestones=(3, 7), flip=True, scale=16, data='a "quoted" path\\x', schedule="multistep")
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml())
    assert Recipe.from_toml(path) == recipe
    assert "# Largest learning rate." in path.read_text()


def test_whole_numbers_serve_as_floats_and_numbers_as_scale():
    assert Recipe(lr=1).lr == 1.0
    assert isinstance(Recipe(lr=1).lr, float)
    assert Recipe(scale="16").scale == 16.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "unknown key 'epoch'; did you mean 'epochs'"),
        ("epochs = 2.5", "epochs must be a whole number, got 2.5"),
        ('lr = "fast"', "lr must be a number, got 'fast'"),
        ('head_optimizer = "adam"', "head_optimizer must be one of same, grassmann, got 'adam'"),
        ('eps = 0.1\nhead_optimizer = "grassmann"', "leave out .*eps = 0.1"),
        ("flip = 1", "flip must be true or false, got 1"),
        ("milestones = [1.5]", r"milestones must be a list of whole numbers, got \[1.5\]"),
        ('head = "capsul"', "head must be one of .* got 'capsul'; did you mean 'capsule'"),
        ("epochs = 0", "epochs must be at least 1, got 0"),
        ("lr = -0.1", "lr must not be negative, got -0.1"),
        ("ema = 1.0", "ema must be at least 0 and below 1, got 1.0"),
        ('scale = "big"', "scale must be a number, 'learned' or 'none', got 'big'"),
        ("epochs = ", "is not a TOML file"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"wrong\.toml.*{message}"):
        Recipe.from_toml(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no recipe"):
        Recipe.from_toml(tmp_path / "none.toml")


def test_labels_tell_heads_apart():
    assert Recipe(head="linear").head_label == "linear"
    assert Recipe(head="group", normalize=True).head_label == "group c=4"
    label = Recipe(capsule_dim=8, normalize=True, scale="learned").head_label
    assert label == "unit capsule c=8, scaled"
