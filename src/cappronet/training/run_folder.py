"""The run folder: all that training passes on to the commands that follow.

recipe.toml        what was asked for; of a probe, probe.json
environment.json   versions, device, commit and data it ran with
metrics.jsonl      one line for each epoch
events.out.*       the same for TensorBoard, where it is installed
checkpoint.pt      where to resume after an interruption; removed at the end
checkpoint-N.safetensors    with --shard-head: what all processes wrote of the checkpoint of step N
config.json, model.safetensors, README.md    the trained model and its card
summary.json       the result; its presence means that the run is finished
images.npz         images that were given as arrays, see cappronet.train
.lock              only while a process trains here
"""

import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cappronet.data.files import (
    LOCK,
    in_use,
    locked,
    nearest_sibling,
    remove_leftovers,
    replace_file,
    write_atomically,
)
from cappronet.training.recipe import Recipe

if TYPE_CHECKING:
    from cappronet.data.selection import Selection

__all__ = ["IMAGES", "Run", "environment"]


# The settings and results of a probe.
PROBE = "probe.json"
# Images that were given as arrays: of a run, or next to the runs of a comparison.
IMAGES = "images.npz"


class Run:
    """A run folder by its path. Torch is imported only where it is needed, so that runs are listed at once."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._must_be_new = False
        self._option = "--run"
        self._events: Any = None

    @classmethod
    def new(cls, folder: str | Path, option: str = "--run") -> "Run":
        """A folder for a new run. One that holds anything is never touched, also if it appears after this call.

        Args:
            folder: its path.
            option: what the error for an existing folder says to choose another one with.
        """
        run = cls(folder)
        run._must_be_new, run._option = True, option
        run.refuse_in_progress()
        run._refuse_content()
        return run

    def begin(self, recipe: Recipe) -> None:
        """Make the folder, and write down what was asked for."""
        self._refuse_content()
        self.folder.mkdir(parents=True, exist_ok=True)  # one that was made and got no recipe is taken
        write_atomically(self.folder / "recipe.toml", recipe.to_toml().encode())
        self._must_be_new = False

    @contextmanager
    def claimed(self, recipe: Recipe) -> Iterator[None]:
        """Have the folder alone, with this recipe in it, until the block is left or the process ends.

        Raises:
            BlockingIOError: another process trains here.
            FileExistsError: the folder holds something else, or a finished run.
        """
        self.refuse_in_progress()
        if not self.begun:
            self._refuse_content()
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder))
            except BlockingIOError:
                raise self._in_progress() from None
            if self.begun and not self._must_be_new:
                self._refuse_other(recipe)
                remove_leftovers(self.folder)
            else:
                self.begin(recipe)
            yield

    def refuse_in_progress(self) -> None:
        """An error if another process trains here."""
        if self.in_progress:
            raise self._in_progress()

    def _in_progress(self) -> BlockingIOError:
        return BlockingIOError(
            f"the run in {self.folder} is in progress in another process: wait until it ends, or choose another folder"
        )

    def _refuse_content(self) -> None:
        """An error if the folder holds more than a killed process leaves that had only just made it."""
        if not self.folder.exists():
            return
        if self.folder.is_dir() and all(_is_beginning(path.name) for path in self.folder.iterdir()):
            return
        self.refuse_finished()
        if not (self.folder / "recipe.toml").is_file():
            raise FileExistsError(f"{self.folder} exists and holds no run: choose another folder with {self._option}")
        raise FileExistsError(
            f"{self.folder} holds an unfinished run: resume it with: cappronet train --resume {self.folder}, or choose "
            f"another folder with {self._option}"
        )

    def refuse_finished(self) -> None:
        """An error with the result, if the run is finished."""
        if self.finished:
            result = self.result
            raise FileExistsError(
                f"{self.folder} holds a finished run{f' ({result})' if result else ''}: train again in another folder "
                f"with {self._option}"
            )

    def _refuse_other(self, recipe: Recipe) -> None:
        """An error if the run in the folder is of another recipe, or finished."""
        there = self.recipe
        if there != recipe:
            ours, theirs = recipe.to_dict(), there.to_dict()
            names = ", ".join(name for name in ours if ours[name] != theirs[name])
            raise FileExistsError(f"{self.folder} holds a run of another recipe: {names} differ; choose another folder")
        self.refuse_finished()

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """A folder that a run was started in."""
        run = cls(folder)
        if not run.folder.exists():
            raise FileNotFoundError(f"there is no folder {run.folder}{nearest_sibling(run.folder)}")
        if not run.begun:
            raise FileNotFoundError(f"{run.folder} is not a run folder: it has no recipe.toml and no {PROBE}")
        return run

    @property
    def begun(self) -> bool:
        """Whether training was started here, or a probe saved its model here."""
        return (self.folder / "recipe.toml").is_file() or self.is_probe

    @property
    def in_progress(self) -> bool:
        """Whether a process trains here."""
        return in_use(self.folder)

    @property
    def is_probe(self) -> bool:
        """Whether a probe saved its model here; such a folder has no training to resume."""
        return (self.folder / PROBE).is_file()

    @property
    def recipe(self) -> Recipe:
        """What was asked for; of a probe, which had no recipe, an error says so."""
        path = self.folder / "recipe.toml"
        if self.is_probe and not path.is_file():
            raise ValueError(f"{self.folder} is the result of a probe, which was not trained from a recipe")
        return Recipe.from_toml(path)

    @property
    def selection(self) -> "Selection":
        """The data that the model was trained or fitted on, and measured on."""
        from cappronet.data.selection import Selection

        if (self.folder / "recipe.toml").is_file():
            return self.recipe.selection
        return Selection.from_dict(json.loads((self.folder / PROBE).read_text(encoding="utf-8"))["data"])

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return (self.folder / "summary.json").is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """The result of a finished run."""
        if not self.finished:
            raise FileNotFoundError(
                f"{self.folder} is not finished; resume it with: cappronet train --resume {self.folder}"
            )
        return json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))

    @property
    def result(self) -> str:
        """The error of a finished run in words; nothing where its summary has none."""
        try:
            error = float(self.summary["error"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        measured = "" if self.is_probe else "validation " if self.recipe.validation else "test "
        return f"{measured}error {error:.2f} %"

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
        from cappronet.training.checkpoints import write_checkpoint

        replace_file(self.folder / "checkpoint.pt", lambda path: write_checkpoint(state, path))

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, or None if there is none yet. Loading executes no code."""
        from cappronet.training.checkpoints import read_checkpoint

        path = self.folder / "checkpoint.pt"
        if not path.is_file():
            return None
        return read_checkpoint(path)

    def remove_checkpoint(self) -> None:
        """A finished run needs none."""
        (self.folder / "checkpoint.pt").unlink(missing_ok=True)
        self.remove_shards()

    def remove_shards(self, keep: str = "") -> None:
        """Remove the parts that several processes wrote of earlier checkpoints."""
        for path in self.folder.glob("checkpoint-*.safetensors"):
            if path.name != keep:
                path.unlink(missing_ok=True)


def _is_beginning(name: str) -> bool:
    """Whether a process that ended before it had written the recipe leaves such a file."""
    return name in (LOCK, IMAGES) or name.startswith((".recipe.toml.", f".{IMAGES}."))


def environment(**more: Any) -> dict[str, Any]:
    """Versions, machine and commit: what a result depends on in addition to its recipe."""
    import torch

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
        # Result files are published, so only the last part of a path on this machine is written.
        "command": [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]],
        **more,
    }


def _commit() -> str | None:
    """The commit of the code that runs, if it runs from a checkout of its own repository.

    A package that is merely installed somewhere below another repository is not tracked by it.
    """
    here = Path(__file__).resolve()
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40")


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says; None where it fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
