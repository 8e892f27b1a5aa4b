"""SIGINT and SIGTERM at random moments of a parallel command: it stops in one line, soon, with everything saved.

The signals go to the process, to its group or to both, once or three times. The first moment is when Python has run
the first lines of the command; before that, a signal ends it as it ends any Python program.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from cappronet.data.files import one_line
from cappronet.data.selection import Selection
from cappronet.probing.embedding import embed
from cappronet.reporting import Report, silent
from cappronet.training.run_folder import Run
from experiments.files import ROOT
from experiments.robustness.outcomes import HANDLED, row

__all__ = ["COMMANDS", "interrupt"]

PACKAGE = (sys.executable, "-m", "cappronet.cli")
DIGITS = "digits-features"
# Each takes longer than `LAST_MOMENT`, with two worker processes.
COMMANDS = {
    "cappronet compare": (
        *(*PACKAGE, "compare", "--epochs", "60", "--seeds", "2", "--backbones", "resnet8", "--heads", "capsule"),
        *("--jobs", "2", "--folder", "runs"),
    ),
    "python -m experiments table3": (
        *(sys.executable, "-m", "experiments", "table3", "--only", "digits", "--seeds", "1", "--jobs", "2"),
        *("--folder", "runs", "--output", "results"),
    ),
    "cappronet probe": (*PACKAGE, "probe", DIGITS, "--jobs", "2", "--tries", "12", "--folder", "runs/probe"),
}
# Seconds after the start up to which signals are sent; about half of them are spent on imports.
LAST_MOMENT = 10.0
MOST_SECONDS = 10.0
STOPPED_CODE = 130
ENDED = "the command had ended before"


def interrupt(
    folder: Path, runs: int = 20, seed: int = 0, commands: tuple[str, ...] = (), report: Report = silent
) -> list[dict[str, Any]]:
    """Interrupt each command `runs` times; a row for each, with the `slowest` end in seconds after the first signal.

    Args:
        folder: an existing, empty folder to work in.
        runs: interruptions of each command.
        seed: decides moments, signals and targets.
        commands: names in `COMMANDS`; by default all.
        report: called with the command, the interruptions done and their number.
    """
    embed("pixels", Selection("digits"), folder / DIGITS)
    rows = []
    for name in commands or tuple(COMMANDS):
        chance = random.Random(f"{name} {seed}")
        outcomes, slowest, attempts = Counter[str](), 0.0, 0
        while outcomes.total() < runs:
            report(name, outcomes.total(), runs)
            own = folder / f"{name.rpartition(' ')[2]}-{attempts}"
            own.mkdir()
            (own / DIGITS).symlink_to(folder / DIGITS)
            outcome, seconds = _one(COMMANDS[name], own, chance)
            attempts += 1
            if outcome == ENDED and attempts < 5 * runs:
                continue  # draw again
            outcomes[outcome] += 1
            slowest = max(slowest, seconds)
        rows.append(row(name, outcomes, slowest=round(slowest, 2)))
    return rows


def _one(command: tuple[str, ...], folder: Path, chance: random.Random) -> tuple[str, float]:
    """Interrupt a command once; what became of it, and how long after the first signal it ended."""
    moment, target = chance.uniform(0, LAST_MOMENT), chance.choice(("process", "group", "both"))
    signals = chance.choices((signal.SIGINT, signal.SIGTERM), k=chance.choice((1, 3)))
    process = _started(command, folder)
    began = time.monotonic()
    while process.poll() is None and not _handles_signals(process.pid):
        time.sleep(0.02)
    time.sleep(max(0.0, moment - (time.monotonic() - began)))
    if process.poll() is not None:
        process.communicate()
        return ENDED, 0.0
    first = time.monotonic()
    for number in signals:
        with suppress(ProcessLookupError):
            if target != "group":
                process.send_signal(number)
            if target != "process":
                os.killpg(process.pid, number)
        time.sleep(chance.uniform(0, 0.4))
    try:
        _, errors = process.communicate(timeout=6 * MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "it did not end within a minute", 6 * MOST_SECONDS
    while _members(process.pid) and time.monotonic() - first < 6 * MOST_SECONDS:
        time.sleep(0.05)
    seconds = time.monotonic() - first
    if seconds > MOST_SECONDS:
        return "it took longer than ten seconds", seconds
    if process.returncode != STOPPED_CODE:
        return f"exit code {process.returncode}", seconds
    if len(errors.strip().splitlines()) != 1 or not errors.startswith("stopped"):
        return "not one line", seconds
    return _unsaved(folder) or HANDLED, seconds


def _unsaved(folder: Path) -> str:
    """What is wrong with the files that a stopped command left; nothing is an empty text."""
    hidden = [path.name for path in folder.rglob(".*")]
    if hidden:
        return f"left {hidden[0].rpartition('.')[0] or hidden[0]}"
    for recipe in folder.rglob("recipe.toml"):
        run = Run(recipe.parent)
        try:
            if not run.finished and run.metrics() and run.load_checkpoint() is None:
                return "a run without a checkpoint"
        except (OSError, ValueError) as error:
            return f"not saved: {one_line(error)}"
    return ""


def _started(command: tuple[str, ...], folder: Path) -> "subprocess.Popen[str]":
    """A command in a session of its own. It may be interrupted even if this process, in the background, may not."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _handles_signals(process: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return False
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def _members(session: int) -> list[str]:
    """The processes of a session that have not ended."""
    listed = subprocess.run(["ps", "-e", "-o", "sid=,stat=,pid="], capture_output=True, text=True, check=True).stdout
    lines = (line.split() for line in listed.splitlines())
    return [pid for sid, state, pid in lines if int(sid) == session and not state.startswith("Z")]
