"""SHA-256 digests of the files of a feature folder, in its `features.json`: damage never passes unnoticed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cappronet.data.files import sha256_of
from cappronet.data.limits import check_regular

__all__ = ["DESCRIPTION", "check_digests", "with_digests", "without_digests"]

# The file of a feature folder that names the classes and the source, and holds the digests.
DESCRIPTION = "features.json"
KEY = "sha256"


def with_digests(folder: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a folder with a digest of itself and of every other file there."""
    names = sorted(file.name for file in folder.iterdir() if file.name != DESCRIPTION and file.name[0] != ".")
    digests = {DESCRIPTION: _content_digest(described)} | {name: sha256_of(folder / name) for name in names}
    return {**described, KEY: digests}


def without_digests(described: Mapping[str, Any]) -> dict[str, Any]:
    """The description as it was before the digests were added."""
    return {name: value for name, value in described.items() if name != KEY}


def check_digests(folder: Path, described: Mapping[str, Any], *suffixes: str) -> None:
    """Compare the files of a folder that have these suffixes with their digests; a folder without digests passes."""
    digests = described.get(KEY, {})
    if not isinstance(digests, dict) or any(Path(name).name != name for name in digests):
        raise ValueError(f"{folder / DESCRIPTION} is damaged: {KEY!r} is not a table of digests; {_remedy(folder)}")
    for name, expected in digests.items():
        if Path(name).suffix not in suffixes:
            continue
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder / name} is missing: {_remedy(folder)}")
        check_regular(folder / name)
        digest = _content_digest(described) if name == DESCRIPTION else sha256_of(folder / name)
        if digest != expected:
            raise ValueError(f"{folder / name} was damaged or changed after it was written: {_remedy(folder)}")


def _content_digest(described: Mapping[str, Any]) -> str:
    """Of what a description says, not of how its JSON is laid out."""
    return hashlib.sha256(json.dumps(without_digests(described), sort_keys=True).encode()).hexdigest()


def _remedy(folder: Path) -> str:
    return (
        f"remove {folder} and make it again with cappronet embed, or, if you changed it yourself, remove {KEY!r} from "
        f"{DESCRIPTION}"
    )
