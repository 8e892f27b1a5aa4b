"""A new user's path, timed: the README's own commands, in an empty folder, for `python -m tools.first_steps`.

It installs the package into a new environment, fits `CapsuleClassifier`, and trains a model and writes its page. What
has to be downloaded is downloaded first, into pip's cache, and not timed.
"""

import json
import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cappronet.data.files import write_atomically
from cappronet.reporting import Table
from cappronet.training.run_folder import environment

__all__ = ["PAGE", "install_command", "steps", "table", "timed"]

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULT = ROOT / "results" / "first_steps.json"
# What `cappronet explore` writes in the end.
PAGE = "report.html"


def steps() -> dict[str, list[str]]:
    """The commands of the README by what they do: a classifier on embeddings, a trained model, and a page about it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (classifier,) = re.findall(
        r"```python\n(.*?CapsuleClassifier\(\)\.fit.*?)```", text.partition("## Use it")[0], re.S
    )
    commands = re.findall(r"^cappronet (?:train|explore)\b[^#\n]*", text, re.MULTILINE)
    named = {command.split()[1]: ["sh", "-c", command.strip()] for command in commands}
    return {"classifier": ["python", "-c", classifier], "train": named["train"], "explore": named["explore"]}


def install_command() -> str:
    """The line of the README that installs everything."""
    lines = re.findall(
        r"^pip install [^#\n]*all[^#\n]*", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    return lines[0].strip()


def timed(commands: Mapping[str, list[str]], folder: Path, programs: Path) -> dict[str, float]:
    """The seconds that each command takes in a folder, with the programs of an environment; an error ends it."""
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    seconds = {}
    for name, command in commands.items():
        started = time.perf_counter()
        subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, check=True, stdout=sys.stderr)
        seconds[name] = round(time.perf_counter() - started, 1)
    return seconds


def table(result: Mapping[str, Any]) -> Table:
    """The seconds of each step, and of all."""
    rows = [(step, f"{seconds:.0f}") for step, seconds in result["seconds"].items()]
    return Table(("step", "seconds"), [*rows, ("all", f"{result['total']:.0f}")])


def main() -> None:
    """Time the whole path in a new environment, and write the result file."""
    with TemporaryDirectory() as temporary:
        folder, programs = Path(temporary) / "work", Path(temporary) / "venv" / "bin"
        folder.mkdir()
        venv.create(programs.parent, with_pip=True)
        install = install_command()
        download = install.replace("pip install", f"pip download --quiet --dest {temporary}/files")
        timed({"download": ["sh", "-c", download]}, ROOT, programs)
        seconds = timed({"install": ["sh", "-c", install]}, ROOT, programs) | timed(steps(), folder, programs)
        if not (folder / PAGE).is_file():
            raise FileNotFoundError(f"the README's commands wrote no {PAGE}")
    result = {"seconds": seconds, "total": round(sum(seconds.values()), 1), "environment": environment()}
    write_atomically(RESULT, (json.dumps(result, indent=1) + "\n").encode())
    sys.stdout.write(f"{result['total']:.0f} s after the download: {seconds}\nWritten to {RESULT}\n")


if __name__ == "__main__":
    main()
