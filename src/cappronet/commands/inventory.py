"""`list`: the names that the other commands take."""

from typing import Literal

from cappronet.commands.shared import console
from cappronet.recipe import shipped

__all__ = ["list_"]


def list_(what: Literal["backbones", "datasets", "heads", "recipes"] | None = None, /) -> None:
    """Name the backbones, datasets, heads and recipes that the other commands take.

    Parameters
    ----------
    what
        Only these; by default all four.
    """
    for kind in (what,) if what else ("backbones", "datasets", "heads", "recipes"):
        console.print(f"[bold]{kind}[/bold]")
        for name in _names(kind):
            console.print(f"  {name}", highlight=False)


def _names(kind: str) -> list[str]:
    if kind == "backbones":
        from cappronet.backbones import BACKBONES

        return [*BACKBONES, "every other name is timm's"]
    if kind == "datasets":
        from cappronet.datasets import DATASETS, VALIDATION

        notes = {
            name: f" (the paper validates on {size:,} of its training images)" for name, size in VALIDATION.items()
        }
        sources = ["a folder of images by class", "an .npz file with x_train, y_train, x_test, y_test"]
        return [*(f"{name}{notes.get(name, '')}" for name in DATASETS), *sources]
    if kind == "heads":
        from cappronet.heads import HEADS

        return list(HEADS)
    root = shipped("recipes")
    return [str(path.relative_to(root).with_suffix("")) for path in sorted(root.glob("*/*.toml"))]
