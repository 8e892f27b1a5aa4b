"""What the user reads when a command fails: one line, or with CAPPRONET_TRACEBACK=1 the whole traceback."""

import os
import re

from rich.console import Console
from rich.text import Text

from cappronet.cli.display import printable

__all__ = ["ERRORS", "VARIABLE", "error_line", "print_error", "print_stopped", "wants_traceback", "whole_traceback"]

# The environment variable that asks for tracebacks.
VARIABLE = "CAPPRONET_TRACEBACK"
# Where errors are printed; a terminal wraps a long line, and nothing else does.
ERRORS = Console(stderr=True, soft_wrap=True)
# Errors that our own code raises for mistakes of the user; others are explained, or shown with their class.
EXPECTED = (OSError, ValueError, ArithmeticError, ImportError)
# How torch and Lightning Fabric say that there is no such device, or no memory left.
NO_DEVICE = re.compile(
    r"(?P<name>CUDA|MPS)Accelerator`? can ?not run|not compiled with (?P<build>CUDA)|no NVIDIA driver|No CUDA GPUs"
    r"|No HIP GPUs|No supported (?P<kind>GPU) backend|invalid device ordinal",
    re.IGNORECASE,
)
NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|Storage size calculation overflowed|bad_alloc", re.IGNORECASE
)


def error_line(error: BaseException) -> str:
    """What went wrong and what to do, in one line without the word error."""
    message = str(error).strip().partition("\n")[0]
    device = NO_DEVICE.search(message) if isinstance(error, RuntimeError | AssertionError) else None
    if device:
        name = (device["name"] or device["kind"] or "CUDA").upper()
        return f"no {name} device is available on this machine: use --accelerator cpu, for a benchmark --device cpu"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_MEMORY.search(message)):
        return "there is not enough memory for this: use a smaller --batch-size, model or dataset, or another machine"
    if isinstance(error, RecursionError):
        return f"a file or an option is nested too deeply: simplify it; {VARIABLE}=1 shows where"
    if isinstance(error, EXPECTED):
        return printable(message or type(error).__name__)
    kind = type(error).__name__
    return printable(
        f"unexpected {kind}: {message or 'no message'}; {VARIABLE}=1 shows the traceback, please report it"
    )


def print_error(line: str) -> None:
    """Print a line to standard error, after the word error."""
    ERRORS.print(Text.assemble(("error:", "red"), " ", printable(line)), highlight=False)


def print_stopped(line: str) -> None:
    """Print to standard error that a command was stopped, which is no error."""
    ERRORS.print(Text(printable(line)), highlight=False)


def wants_traceback() -> bool:
    """Whether the environment asks for tracebacks."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def whole_traceback(error: BaseException) -> BaseException:
    """The error with every error that led to it, also those that its message replaces."""
    link: BaseException | None = error
    while link is not None:
        link.__suppress_context__ = False
        link = link.__context__
    return error
