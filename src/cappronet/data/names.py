"""Names of classes: text that every file and terminal can hold."""

from collections.abc import Iterable
from pathlib import Path

__all__ = ["checked_names"]


def checked_names(path: Path, names: Iterable[str]) -> tuple[str, ...]:
    """The names of the classes in a file or folder, after a check that they can be written as UTF-8."""
    names = tuple(names)
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the class {name!r} of {str(path)!r} has a name that is not UTF-8: rename it") from None
    return names
