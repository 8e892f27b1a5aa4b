"""Where the experiments find the repository's files, and how they write theirs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "free_path", "write_new"]

# The repository: the experiments run from a checkout and are not part of the installed package.
ROOT = Path(__file__).parents[1]


def free_path(folder: Path, name: str) -> Path:
    """The first of `NAME.json`, `NAME-2.json`, ... that does not exist; the folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    path, number = folder / f"{name}.json", 1
    while path.exists():
        number += 1
        path = folder / f"{name}-{number}.json"
    return path


def write_new(content: Mapping[str, Any], path: Path) -> None:
    """Write a new JSON file; an existing one is never overwritten."""
    with path.open("x", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
