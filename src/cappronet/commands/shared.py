"""What the commands share: the console, a recipe from a file and options, and the names of folders."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

from cyclopts import Parameter
from rich.console import Console

from cappronet.recipe import Recipe, shipped

if TYPE_CHECKING:
    Options = Any

__all__ = ["FIRST", "Options", "chosen_recipe", "console", "folder_name", "slug"]

# A run of many processes speaks with one voice.
FIRST = not any(int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))
console = Console(quiet=not FIRST)


def _options() -> type:
    """A dataclass with every field of a recipe, each None until it is given."""
    hints = get_type_hints(Recipe)
    fields: list[Any] = []
    for field in dataclasses.fields(Recipe):
        text = f"{field.metadata['help']} [default: {field.default if field.default != () else 'none'}]"
        negative = None if hints[field.name] is bool else ()
        several = get_origin(hints[field.name]) is tuple
        parameter = Parameter(help=text, show_default=False, negative=negative, consume_multiple=several)
        fields.append((field.name, Annotated[hints[field.name] | None, parameter], None))
    return dataclasses.make_dataclass("Options", fields, frozen=True, namespace={"__module__": __name__})


if not TYPE_CHECKING:
    Options = Annotated[_options(), Parameter(name="*", group="Recipe")]


def chosen_recipe(file: str | None, options: Options | None) -> Recipe:
    """The recipe of a file, or the default one, with the options that were given in its place."""
    from cappronet.datasets import DATASETS

    base = Recipe.from_toml(_recipe_path(file)) if file else Recipe()
    given = {name: value for name, value in vars(options).items() if value is not None} if options else {}
    chosen = base.changed(**given)
    path = Path(chosen.data).expanduser()
    if chosen.data in DATASETS or not path.exists():
        return chosen
    return chosen.changed(data=str(path.resolve()))  # a run is read from other folders too


def _recipe_path(name: str) -> Path:
    path = shipped(f"recipes/{name}.toml")
    return path if path.is_file() else Path(name)


def slug(text: str) -> str:
    """A dataset's name or path as part of a folder's name."""
    stem = Path(text).stem if "/" in text or text.endswith(".npz") else text
    return "".join(letter if letter.isalnum() else "-" for letter in stem).strip("-")


def folder_name(recipe: Recipe) -> str:
    """The folder of a run that was given none."""
    head = recipe.head_label.replace(" c=", "").replace(", ", "-").replace(" ", "-")
    return f"{slug(recipe.data)}-{recipe.backbone.replace('/', '-')}-{head}-seed{recipe.seed}"
