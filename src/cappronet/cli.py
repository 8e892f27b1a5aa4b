"""The command line: every command under one name, and errors as one line."""

import signal

from cyclopts import App
from rich.console import Console
from rich.markup import escape

from cappronet.commands.exploring import explore
from cappronet.commands.exporting import export
from cappronet.commands.features import embed, probe
from cappronet.commands.inventory import list_
from cappronet.commands.measuring import benchmark
from cappronet.commands.models import evaluate, predict
from cappronet.commands.reproducing import reproduce
from cappronet.commands.shared import FIRST
from cappronet.commands.training import compare, train

__all__ = ["app", "main"]

app = App(name="cappronet", help="Capsule projection heads: train them, compare them, look inside.")
for command in (train, compare, evaluate, predict, embed, probe, explore, export, benchmark, reproduce):
    app.command(command)
app.command(list_, name="list")


def main() -> None:
    """Run the command line; a user's mistake ends in one line and a non-zero exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever asks to stop gets what Ctrl-C gets
    try:
        app()
    except (OSError, ValueError, ArithmeticError, ImportError) as error:
        if isinstance(error, InterruptedError) and not FIRST:  # of many processes, one says so
            raise SystemExit(130) from None
        message = str(error).strip().partition("\n")[0] or type(error).__name__
        Console(stderr=True).print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
        raise SystemExit(130 if isinstance(error, InterruptedError) else 1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
