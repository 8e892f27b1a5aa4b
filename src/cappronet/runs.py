"""The run folder: the only thing that training hands to what comes after it.

recipe.toml        what was asked for
environment.json   versions, device, commit and data it ran with
metrics.jsonl      one line for each epoch
events.out.*       the same for TensorBoard, where it is installed
checkpoint.pt      where to go on after an interruption; removed at the end
config.json, model.safetensors, README.md    the trained model and its card
summary.json       the result; its presence means that the run is finished
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile

import torch

from cappronet.recipe import Recipe

__all__ = ["Run", "environment", "write_atomically"]


class Run:
    """A run folder by its path."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._events: Any = None

    @classmethod
    def new(cls, folder: str | Path) -> "Run":
        """A folder that does not exist yet; one that does is never touched."""
        run = cls(folder)
        if run.folder.exists():
            raise FileExistsError(
                f"{run.folder} exists; continue it with --resume {run.folder}, or choose another folder with --run"
            )
        return run

    def begin(self, recipe: Recipe) -> None:
        """Make the folder, and write down what was asked for."""
        self.folder.mkdir(parents=True)
        write_atomically(self.folder / "recipe.toml", recipe.to_toml().encode())

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """A folder that a run was started in."""
        run = cls(folder)
        if not run.begun:
            raise FileNotFoundError(f"{run.folder} is not a run folder: it has no recipe.toml")
        return run

    @property
    def begun(self) -> bool:
        """Whether a run was started here."""
        return (self.folder / "recipe.toml").is_file()

    @property
    def recipe(self) -> Recipe:
        """What was asked for."""
        return Recipe.from_toml(self.folder / "recipe.toml")

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return (self.folder / "summary.json").is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """The result of a finished run."""
        if not self.finished:
            raise FileNotFoundError(
                f"{self.folder} is not finished; continue it with: cappronet train --resume {self.folder}"
            )
        return json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))

    @property
    def environment(self) -> dict[str, Any]:
        """What the run ran on."""
        return json.loads((self.folder / "environment.json").read_text(encoding="utf-8"))

    def write_json(self, name: str, values: Any) -> None:
        """Write a JSON file in one piece."""
        write_atomically(self.folder / name, (json.dumps(values, indent=1) + "\n").encode())

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, one for each epoch."""
        path = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []

    def write_metrics(self, lines: Iterable[dict[str, Any]]) -> None:
        """Replace `metrics.jsonl`."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomically(self.folder / "metrics.jsonl", text.encode())

    def log_epoch(self, line: dict[str, Any]) -> None:
        """Add an epoch's numbers to the TensorBoard events, where TensorBoard is installed."""
        if find_spec("tensorboard") is None:
            return
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.folder), purge_step=line["epoch"])
        for name, value in line.items():
            if name not in ("epoch", "step"):
                self._events.add_scalar(name, value, line["epoch"])
        self._events.flush()

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint once the new one is safely on the disk."""
        _replace(self.folder / "checkpoint.pt", lambda path: _save(state, path))

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, or None if there is none yet. Loading executes no code."""
        path = self.folder / "checkpoint.pt"
        if not path.is_file():
            return None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (UnpicklingError, BadZipFile, RuntimeError, EOFError, OSError) as error:
            reason = str(error).partition("\n")[0] or "it ends too early"
            raise ValueError(f"{path} can't be read: {reason}") from None
        if not isinstance(state, dict) or "step" not in state:
            raise ValueError(f"{path} is not a checkpoint of a run")
        return state

    def remove_checkpoint(self) -> None:
        """A finished run needs none."""
        (self.folder / "checkpoint.pt").unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that, whatever happens, it holds either the old content or the new."""
    _replace(path, lambda temporary: temporary.write_bytes(content))


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _save(state: dict[str, Any], path: Path) -> None:
    try:
        torch.save(state, path)
    except RuntimeError as error:  # how torch reports a failed write
        reason = str(error).partition("\n")[0]
        raise OSError(f"the checkpoint could not be written to {path.parent}; is the disk full? ({reason})") from error


def environment(**more: Any) -> dict[str, Any]:
    """Versions, machine and commit: what a number depends on beside its recipe."""
    versions = {}
    for name in ("cappronet", "torch", "torchvision", "timm", "lightning-fabric", "numpy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        # Result files are published: of a path on this machine, its last part is enough.
        "command": [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]],
        **more,
    }


def _commit() -> str | None:
    """The commit of the code that runs, if it runs from a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
