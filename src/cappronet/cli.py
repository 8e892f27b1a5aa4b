"""The command line. Heavy imports stand inside the commands, so that `cappronet --help` answers at once."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["app", "main"]

app = App(name="cappronet", help="Capsule projection heads: train them, compare them, look inside.")


@app.command
def benchmark(
    *,
    shape: Annotated[list[str] | None, Parameter(negative="")] = None,
    rounds: int = 15,
    threads: int | None = None,
    device: str = "cpu",
    growth: bool = True,
    output: Path | None = None,
) -> None:
    """Time the capsule head against a linear layer of its size, the plain inverse and a loop over classes.

    Rivals run interleaved; ratios are taken within each round. Prints a table for each shape, how cost grows with each
    size, and writes all numbers to a JSON file.

    Parameters
    ----------
    shape
        A shape B,d,L,c: batch, features, classes, capsule dimension. Can be given several times. By default ImageNet's
        256,2048,1000,8, CIFAR-10's 128,64,10,8 and 128,160,100,8.
    rounds
        How often each rival is measured.
    threads
        How many CPU threads PyTorch may use; by default all.
    device
        Where to run: cpu, cuda, cuda:1.
    growth
        Also measure how cost grows when B, d, L or c doubles.
    output
        The JSON file to write; it must not exist yet. By default benchmark-<time>.json in this folder.
    """
    import torch

    from cappronet import benchmark as bench

    if rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {rounds}")
    if threads is not None:
        torch.set_num_threads(threads)
    path = output or Path(f"benchmark-{datetime.now():%Y%m%d-%H%M%S}.json")
    if path.exists():
        raise FileExistsError(f"{path} exists and is left as it is; choose another --output")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} of --output does not exist; make it first")
    shapes = [bench.Shape.parse(text) for text in shape] if shape else bench.SHAPES
    steps = len(shapes) + (5 if growth else 0)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=steps, completed=-1)
        results = bench.run(
            shapes,
            growth=bench.GROWTH if growth else None,
            rounds=rounds,
            device=device,
            progress=lambda text: bar.update(task, advance=1, description=text),
        )
    for name, found in results["shapes"].items():
        bench.table(console, name, found)
    if growth:
        bench.growth_table(console, results["growth"])
    bench.write(results, path)
    console.print(f"Written to {path}")


def main() -> None:
    """Run the command line; a user's mistake ends in one line and exit code 1."""
    try:
        app()
    except (OSError, ValueError, RuntimeError) as error:
        message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        Console(stderr=True).print(f"[red]error:[/red] {message}", highlight=False, soft_wrap=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
