"""The result file of the probes, to which every measurement adds a row, whichever process made it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cappronet.data.files import locked, write_atomically
from cappronet.training.run_folder import environment
from experiments.probes.sets import same_features

__all__ = ["Record"]

Content = dict[str, Any]
# What identifies a row: of a choice of settings by the first three, of a fit by all four.
KEYS = ("set", "samples", "rival", "draw")


class Record:
    """A JSON file that always holds whole rows: it is replaced after each, under a lock that processes share.

    environments   versions, machine and commit of each command that added rows
    sets           what identifies each set of features: sizes, a digest of the labels, lengths
    tuning         for each set, number of samples and rival: settings, validation errors, the best one
    fits           for each of their draws: the error and the cost of a fit; `run` is the number of its environment
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Content:
        """All that was measured so far."""
        if not self.path.exists():
            return {"environments": [], "sets": {}, "tuning": [], "fits": []}
        try:
            content: Content = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{self.path} can't be read as JSON ({error}): fix or delete it") from None
        return content

    def begin(self, sets: Mapping[str, Any], outdated: Callable[[Mapping[str, Any]], bool] = lambda _: False) -> None:
        """Note what a command runs on and which sets it measures.

        Args:
            sets: the description of each set.
            outdated: of which rows of `tuning` and `fits` this is true, they are removed, to be measured again.
        """

        def change(content: Content) -> None:
            for name, described in sets.items():
                if not same_features(content["sets"].setdefault(name, described), described):
                    raise ValueError(
                        f"{self.path} has results of other features called {name}: choose another --output or delete it"
                    )
            for part in ("tuning", "fits"):
                content[part] = [row for row in content[part] if not outdated(row)]
            if content["environments"][-1:] != [now := environment()]:
                content["environments"].append(now)

        self._change(change)

    def add(self, part: str, row: Mapping[str, Any]) -> None:
        """Add a row to `tuning` or `fits`, in place of an earlier one of the same measurement."""

        def change(content: Content) -> None:
            others = [other for other in content[part] if any(other.get(k) != row.get(k) for k in KEYS)]
            content[part] = [*others, {**row, "run": len(content["environments"]) - 1}]

        self._change(change)

    def _change(self, change: Callable[[Content], None]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.parent):
            content = self.read()
            change(content)
            write_atomically(self.path, _text(content).encode())


def _text(content: Content) -> str:
    """JSON with a line for each row."""
    parts = []
    for name, part in content.items():
        if isinstance(part, list):
            inside = ",\n".join(f"  {json.dumps(row)}" for row in part)
        else:
            inside = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in part.items())
        opening, closing = "[]" if isinstance(part, list) else "{}"
        lines = f"\n{inside}\n " if inside else ""
        parts.append(f" {json.dumps(name)}: {opening}{lines}{closing}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
