"""kill -9 in the middle of a training run, at random moments and inside every write; then it is resumed.

A run that was killed and resumed must end with the weights and metrics of one that was not, bit for bit. Python tells
an audit hook of every file that is opened for writing, renamed or removed, and of every folder that is made. The run is
killed at each of these events in turn; a file that is half written is cut to half its size first.
"""

import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from cappronet.data.files import one_line
from cappronet.reporting import Report, silent
from cappronet.training.loop import Hardware, train
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run
from experiments.robustness.outcomes import HANDLED, row

__all__ = ["RECIPE", "kill_and_resume"]

RECIPE = Recipe(epochs=3, train_size=300, batch_size=60, flip=True, ema=0.9)
WRITES = os.O_WRONLY | os.O_RDWR
# A run takes seconds; one that takes this long hangs.
PATIENCE = 300.0
# The machine is not equally fast at all times. Of the moments that are drawn, at most this multiple may be missed.
MOST_TOO_LATE = 4
TOO_LATE = "the run had ended before"


def kill_and_resume(
    folder: Path, runs: int = 50, seed: int = 0, recipe: Recipe = RECIPE, every: int = 1, report: Report = silent
) -> dict[str, Any]:
    """Kill a run at `runs` random moments and at its writes, resume it each time, and compare it with a whole one.

    Args:
        folder: an existing, empty folder for the runs.
        runs: kills at random moments, each before the end of the run.
        seed: decides the moments.
        recipe: what is trained.
        every: kill at each of the writes (1), at every second (2), ...
        report: called with the kind of kill, the kills done and their number.

    Returns:
        How many writes a whole run has, and a row for each kind of kill; `too_late` counts the moments that were drawn
        again because the run had ended before.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lightning_fabric", __name__])
    _finished(_started(context, folder / "warm-up", recipe))  # the first one loads what the others have
    began = time.perf_counter()
    _finished(_started(context, folder / "whole", recipe))
    seconds = time.perf_counter() - began
    events = int((folder / "whole.events").read_text())
    chance = random.Random(seed)
    writes = range(1, events + 1, every)
    total = runs + len(writes)
    moments, too_late = Counter[str](), 0
    while moments.total() < runs:
        report("random moment", moments.total(), total)
        name = f"moment-{moments.total()}-{too_late}"
        outcome = _one(context, folder / name, recipe, seconds=chance.uniform(0, seconds))
        if outcome == TOO_LATE:
            too_late += 1
            if too_late > MOST_TOO_LATE * runs:
                raise RuntimeError(f"runs end before they are killed: the first took {seconds:.1f} seconds")
            continue
        moments[outcome] += 1
    inside = Counter[str]()
    for number, event in enumerate(writes):
        report("inside a write", runs + number, total)
        inside[_one(context, folder / f"write-{event}", recipe, event=event)] += 1
    report("kills", total, total)
    kinds = [row("random moment", moments, too_late=too_late), row("inside a write", inside)]
    return {"writes": events, "seconds": round(seconds, 2), "kinds": kinds}


def _one(context: ForkServerContext, folder: Path, recipe: Recipe, seconds: float = 0.0, event: int = 0) -> str:
    """Kill a run after so many seconds, or at the event of this number, and resume it; what became of it."""
    process = _started(context, folder, recipe, event)
    if not event:
        process.join(seconds)
        process.kill()
    process.join(PATIENCE)
    if process.exitcode != -signal.SIGKILL:
        return TOO_LATE if process.exitcode == 0 else "the run did not end"
    if not Run(folder).finished:
        try:
            _finished(_started(context, folder, recipe))
        except RuntimeError as error:
            return f"not resumed: {one_line(error)}"
    return _difference(folder.with_name("whole"), folder) or HANDLED


def _difference(whole: Path, resumed: Path) -> str:
    """What differs between a run and one that was killed and resumed."""
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (whole, resumed))
    if ours.keys() != theirs.keys() or not all(ours[name].equal(theirs[name]) for name in ours):
        return "other weights"
    lines = [[{**line, "seconds": 0} for line in Run(folder).metrics()] for folder in (whole, resumed)]
    if lines[0] != lines[1]:
        return "other metrics"
    left = sorted(path.name for path in resumed.iterdir() if path.name.startswith("."))
    return f"left {left[0].rpartition('.')[0] or left[0]}" if left and left != [".lock"] else ""


def _started(context: ForkServerContext, folder: Path, recipe: Recipe, event: int = 0) -> ForkServerProcess:
    process = context.Process(target=_train, args=(folder, recipe, event), daemon=True)
    process.start()
    return process


def _finished(process: ForkServerProcess) -> None:
    process.join(PATIENCE)
    if process.exitcode != 0:
        process.kill()
        raise RuntimeError(f"a run ended with exit code {process.exitcode}")


def _train(folder: Path, recipe: Recipe, event: int) -> None:
    """A run in a process of its own, new or resumed, which kills itself at the event of this number."""
    import torch

    torch.set_num_threads(1)
    counted = _count_events(folder, event)
    run = Run(folder) if Run(folder).begun else Run.new(folder)
    train(recipe, run, Hardware(accelerator="cpu"))
    folder.with_suffix(".events").write_text(str(counted()))


def _count_events(folder: Path, last: int) -> Callable[[], int]:
    """Count what happens to the files of a folder; kill this process at the event number `last`, if that is not 0."""
    count = 0

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if name not in ("open", "os.rename", "os.remove", "os.mkdir") or not str(arguments[0]).startswith(str(folder)):
            return
        path = Path(str(arguments[0]))
        if path.suffix == ".events" or (name == "open" and not arguments[2] & WRITES):
            return
        count += 1
        if count == last:
            if name == "open" and path.name.startswith(".") and path.is_file():
                os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: count
