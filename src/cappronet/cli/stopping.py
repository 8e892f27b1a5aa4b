"""Ctrl-C and SIGTERM in a command: the first one stops it, further ones do not disturb what it does to stop."""

import atexit
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

__all__ = ["STOPPED", "ignore_signals", "leave_on_signals", "leave_stopped", "stop_on_signals"]

STOPPED = "stopped; run the same command again"
STOPPED_CODE = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)
PROGRAMS = ("cappronet", "cappronet.cli", "experiments")
# If a command has not stopped by then, the exception was lost in code that ignores exceptions: raise it again.
AGAIN_SECONDS = 5.0


def leave_on_signals() -> None:
    """While the modules of a command are imported, end it at once; nothing has been started yet.

    Does nothing where the command line is imported by another program or by a worker process.
    """
    words = sys.orig_argv
    if "-m" in words[:-1]:
        program = words[words.index("-m") + 1]
    else:
        program = Path(sys.argv[0]).stem if "-c" not in words else ""
    if program in PROGRAMS:
        _handle_with(_leave)


def stop_on_signals() -> None:
    """Raise KeyboardInterrupt at the first signal."""
    _handle_with(_stop)


def _handle_with(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell sets it for a job in the background
            signal.signal(number, handler)


def ignore_signals() -> None:
    """From here on the process ends by itself, and soon."""
    for number in SIGNALS:
        signal.signal(number, _ignore)  # with SIG_IGN, Python reports one that it has just noted
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def leave_stopped() -> None:
    """Exit with the code of a stopped command.

    Where KeyboardInterrupt was raised in code that Python made of a string, as a dataclass is, Python ends with SIGINT
    even though the exception was caught. So the process is left by the last of the functions that run at its end.
    """
    _stopped.append(True)
    raise SystemExit(STOPPED_CODE)


_stopped: list[bool] = []


@atexit.register  # before anything else is, so that it runs last
def _insist() -> None:
    if _stopped:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STOPPED_CODE)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(STOPPED_CODE)


def _stop(_number: int, _frame: FrameType | None) -> None:
    ignore_signals()
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
    raise KeyboardInterrupt
