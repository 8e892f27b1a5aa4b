"""The command line: nine commands, with errors reported in one line."""

# ruff: noqa: E402
from cappronet.cli.stopping import STOPPED, ignore_signals, leave_on_signals, leave_stopped, stop_on_signals

leave_on_signals()  # the imports below take a moment

import os
import traceback
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter
from rich.text import Text

from cappronet.cli.display import printable
from cappronet.cli.errors import (
    ERRORS,
    VARIABLE,
    error_line,
    print_error,
    print_stopped,
    wants_traceback,
    whole_traceback,
)
from cappronet.cli.exploring import explore
from cappronet.cli.exporting import export
from cappronet.cli.features import embed, probe
from cappronet.cli.inventory import list_
from cappronet.cli.models import evaluate, predict
from cappronet.cli.shared import IS_MAIN_PROCESS, console
from cappronet.cli.training import compare, train

__all__ = ["app", "main", "run_app", "usage_error"]


def usage_error(error: CycloptsError) -> Text:
    """What a wrong command or option looks like: one line, as every other error."""
    return Text(printable(f"error: {' '.join(str(error).split())}"))


app = App(
    name="cappronet",
    help="Capsule projection heads: train, compare, inspect and export.",
    help_epilogue=f"An error is reported in one line; with {VARIABLE}=1 in the environment, with its traceback.",
    error_formatter=usage_error,
    error_console=ERRORS,
    suppress_keyboard_interrupt=False,
)
for command in (train, compare, evaluate, predict, embed, probe, explore, export):
    app.command(command)
app.command(list_, name="list")
app.register_install_completion_command()
app.meta.suppress_keyboard_interrupt = False  # it does not take this from its app
app.meta.group_parameters = Group("Output", sort_key=99)


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    quiet: Annotated[bool, Parameter(alias="-q", negative="", show_default=False)] = False,
) -> Any:
    """Run a command, with the option that all of them take.

    Parameters
    ----------
    tokens
        The command and its arguments.
    quiet
        Show no progress, only results and errors.
    """
    before = console.shows_progress
    console.shows_progress = before and not quiet
    try:
        return app(tokens)
    finally:
        console.shows_progress = before


def main() -> None:
    """Run the command line."""
    run_app(app.meta)


def run_app(app: App) -> None:
    """Run an app; an error ends in one line, or in its traceback if that is asked for, and a non-zero exit code."""
    try:
        stop_on_signals()
        try:
            app()
        except Exception as error:
            ignore_signals()
            _leave(error)
        finally:
            ignore_signals()
    except KeyboardInterrupt:
        ignore_signals()
        _leave(InterruptedError(STOPPED))


def _leave(error: Exception) -> None:
    """Report the error, and exit; of several processes that were stopped, one reports it."""
    stopped = isinstance(error, InterruptedError)
    if isinstance(error, BrokenPipeError):  # as in `cappronet list | head`: whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python complains when it flushes the rest
        raise SystemExit(1) from None
    if IS_MAIN_PROCESS or not stopped:
        if wants_traceback():
            traceback.print_exception(whole_traceback(error))
        elif stopped:
            print_stopped(error_line(error))
        else:
            print_error(error_line(error))
    if stopped:
        leave_stopped()
    raise SystemExit(1) from None
