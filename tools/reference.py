"""The command reference, docs/commands.md, written from the program: `python -m tools.reference`."""

import dataclasses
import re
import sys
from pathlib import Path
from unittest.mock import patch

from cappronet.cli import app
from cappronet.training.recipe import Recipe

__all__ = ["PAGE", "command_reference"]

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"

INTRODUCTION = """# Commands

Generated from the program by `python -m tools.reference`; `cappronet COMMAND --help` shows the same in a terminal.
Options of `train` from "Data" to "Hardware" are keys of a [recipe file](api/recipe.md) as well, except those that say
where and with how many processes to train.

`--quiet`, or `-q`, is an option of every command: it shows no progress, only results and errors. `cappronet
--install-completion` sets up the completion of commands and options with Tab, for bash, zsh and fish.

An error is reported in one line; `CAPPRONET_TRACEBACK=1` in the environment shows its whole traceback. Files whose
content would take more than the available memory are not read; `CAPPRONET_MAX_BYTES` sets another limit, in bytes.
"""


def command_reference() -> str:
    """The page as the commands are now."""
    with patch.object(sys, "argv", ["cappronet"]):  # else usage lines name the program that generates the page
        text = str(app.generate_docs(heading_level=1))
    text = text[text.index("**Commands**:") :]  # the site and code hosts make their own table of contents
    return f"{INTRODUCTION}\n{_without_repetition(text).rstrip()}\n"


def _without_repetition(text: str) -> str:
    """The text without the recipe's options in `compare`, which takes those of `train` as well."""
    start, end = text.index("## cappronet compare"), text.index("## cappronet evaluate")
    compare = text[start:end]
    for field in dataclasses.fields(Recipe):
        option = f"--{field.name.replace('_', '-')}"
        compare = re.sub(rf"^\* `{option}[ ,`].*\n", "", compare, flags=re.MULTILINE)
    compare = re.sub(r"^\*\*\w+\*\*:\n\n(?=\n|\*\*|$|## )", "", compare, flags=re.MULTILINE)  # groups left empty
    note = "**Recipe**: the same options as [`train`](#cappronet-train), from Data to Hardware.\n\n"
    return text[:start] + re.sub(r"\n{3,}", "\n\n", compare) + note + text[end:]


if __name__ == "__main__":
    PAGE.write_text(command_reference(), encoding="utf-8")
