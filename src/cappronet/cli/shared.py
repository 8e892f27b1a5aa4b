"""What the commands share: the console, a recipe from a file and options, and folder names."""

import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

from cyclopts import Group, Parameter

from cappronet.cli.display import CommandConsole
from cappronet.reporting import IS_MAIN_PROCESS
from cappronet.training.recipe import GROUPS, Recipe, choose_recipe, recipe_names

if TYPE_CHECKING:
    Options = Any

__all__ = [
    "DATA",
    "HARDWARE",
    "IS_MAIN_PROCESS",
    "Options",
    "chosen_recipe",
    "console",
    "folder_name",
    "recipe_names",
    "slug",
]

# A folder name shows this many settings; more are a digest.
NAMED_CHANGES = 3
console = CommandConsole(quiet=not IS_MAIN_PROCESS)
# The groups of options in `--help`: those of the recipe, which options of the commands themselves may join.
_GROUPS = {name: Group(name, sort_key=number) for number, name in enumerate(GROUPS)}
DATA, HARDWARE = Parameter(group=_GROUPS["Data"]), Parameter(group=_GROUPS["Hardware"])


def _options() -> type:
    """A dataclass with every field of a recipe, each None until it is given."""
    hints = get_type_hints(Recipe)
    fields: list[Any] = []
    for field in dataclasses.fields(Recipe):
        text = f"{field.metadata['help']} [default: {field.default if field.default != () else 'none'}]"
        negative = None if hints[field.name] is bool else ()
        several = get_origin(hints[field.name]) is tuple
        group = _GROUPS[field.metadata["group"]]
        parameter = Parameter(help=text, group=group, show_default=False, negative=negative, consume_multiple=several)
        fields.append((field.name, Annotated[hints[field.name] | None, parameter], None))
    return dataclasses.make_dataclass("Options", fields, frozen=True, namespace={"__module__": __name__})


if not TYPE_CHECKING:
    Options = Annotated[_options() | None, Parameter(name="*")]


def chosen_recipe(file: str | None, options: Options | None) -> Recipe:
    """The recipe of a file, or the default recipe, with the given options in place of its values."""
    given = {name: value for name, value in vars(options).items() if value is not None} if options else {}
    return choose_recipe(file, given)


def slug(text: str) -> str:
    """A dataset's name or path as part of a folder name."""
    stem = Path(text).stem if "/" in text or text.endswith(".npz") else text
    return "".join(letter if letter.isalnum() else "-" for letter in stem).strip("-")


def folder_name(recipe: Recipe) -> str:
    """The default folder of a run: data, backbone, head and seed, then what else differs from the default recipe."""
    head = recipe.head_label.replace(" c=", "").replace(", ", "-").replace(" ", "-")
    named = f"{slug(recipe.data)}-{recipe.backbone.replace('/', '-')}-{head}-seed{recipe.seed}"
    changes = _unnamed_changes(recipe)
    if len(changes) > NAMED_CHANGES:
        return f"{named}-{hashlib.sha256(repr(changes).encode()).hexdigest()[:8]}"
    return "-".join([named, *(_short(name, value) for name, value in changes.items())])


def _unnamed_changes(recipe: Recipe) -> dict[str, Any]:
    """The values that differ from the default recipe, without those that the name of a folder shows anyway."""
    default = dataclasses.asdict(Recipe())
    changes = {name: value for name, value in dataclasses.asdict(recipe).items() if value != default[name]}
    of_label = {"capsule_dim", "normalize", "scale"} & changes.keys()
    in_label = {name for name in of_label if recipe.changed(**{name: default[name]}).head_label != recipe.head_label}
    shown = {"data", "backbone", "head", "seed", *in_label}
    return {name: value for name, value in changes.items() if name not in shown}


def _short(name: str, value: Any) -> str:
    """A setting as part of a folder name: `lr0.05`, `train-size200`, `flip`, `no-nesterov`, `milestones5-8`."""
    word = name.replace("_", "-")
    if isinstance(value, bool):
        return word if value else f"no-{word}"
    if name == "pretrained":
        return f"{word}-{slug(value)}"
    if isinstance(value, str):
        return value
    return word + "-".join(str(number).removesuffix(".0") for number in _listed(value))


def _listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
