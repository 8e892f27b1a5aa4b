"""What damages and interrupts the package, as commands: `python -m experiments robustness NAME`."""

import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from cappronet.cli.display import print_table, progress_bar
from cappronet.cli.shared import console
from experiments.files import free_path, write_new

__all__ = ["robustness"]

robustness = App(
    name="robustness",
    group="Robustness",
    help="Kills, signals, damaged files and hostile inputs: inputs, and what failed.",
)
Seed = Annotated[int, Parameter(help="Decides what is drawn at random.")]
Output = Annotated[
    Path, Parameter(help="Where robustness_NAME.json is written; if it exists, robustness_NAME-2.json, and so on.")
]


@robustness.command
def kills(*, runs: int = 50, seed: Seed = 0, output: Output = Path("results")) -> None:
    """Kill a training run with SIGKILL at random moments and inside every write, resume it, and compare the weights.

    Parameters
    ----------
    runs
        Kills at random moments, each before the end of the run.
    """
    from experiments.robustness.kills import RECIPE, kill_and_resume

    _check_count("runs", runs)
    with tempfile.TemporaryDirectory() as folder, progress_bar(console) as report:
        results = kill_and_resume(Path(folder), runs, seed, report=report)
    _write("kills", "killed runs", {"seed": seed, "recipe": RECIPE.to_dict(), **results}, output)


@robustness.command
def signals(*, runs: int = 20, seed: Seed = 0, output: Output = Path("results")) -> None:
    """Send SIGINT and SIGTERM to parallel commands at random moments; each must stop in one line, with all saved.

    Parameters
    ----------
    runs
        Interruptions of each command.
    """
    from experiments.robustness.signals import interrupt

    _check_count("runs", runs)
    with tempfile.TemporaryDirectory() as folder, progress_bar(console) as report:
        kinds = interrupt(Path(folder), runs, seed, report=report)
    _write("signals", "interrupted commands", {"seed": seed, "kinds": kinds}, output)


@robustness.command
def tensors(*, inputs: int = 6000, seed: Seed = 0, output: Output = Path("results")) -> None:
    """Give the head tensors that arithmetic finds hard; lengths and gradients must be what the head promises.

    Parameters
    ----------
    inputs
        How many features and weights are drawn.
    """
    from experiments.robustness.tensors import run

    _check_count("inputs", inputs)
    with progress_bar(console) as report:
        kinds = run(inputs, seed=seed, report=report)
    _write("tensors", "hostile tensors", {"seed": seed, "kinds": kinds}, output)


@robustness.command
def models(*, flips: int = 1000, others: int = 200, seed: Seed = 0, output: Output = Path("results")) -> None:
    """Damage the files of a saved model, or put hostile values into them; loading must refuse or give the same model.

    Parameters
    ----------
    flips
        Single flipped bits.
    others
        Damages of each other kind.
    """
    from experiments.robustness.models import attack_models

    _check_count("flips", flips)
    _check_count("others", others)
    with progress_bar(console) as report:
        kinds = attack_models(flips, others, seed, report)
    _write("models", "damaged and hostile models", {"seed": seed, "kinds": kinds}, output)


@robustness.command
def files(*, inputs: int = 300, seed: Seed = 0, output: Output = Path("results")) -> None:
    """Damage every kind of file that the package reads; each must be refused in one line, or read.

    Parameters
    ----------
    inputs
        Damaged files of each kind.
    """
    from experiments.robustness.files import damaged_files

    _check_count("inputs", inputs)
    with tempfile.TemporaryDirectory() as folder, progress_bar(console) as report, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy and pandas, about what is strange in a file
        kinds = damaged_files(Path(folder), inputs, seed, report=report)
    _write("files", "damaged files", {"seed": seed, "kinds": kinds}, output)


def _check_count(option: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"--{option} must be at least 1, got {count}")


def _write(name: str, attack: str, results: dict[str, Any], output: Path) -> None:
    """Show the outcomes by kind, and write them with what they depend on."""
    from cappronet.training.run_folder import environment
    from experiments.robustness.outcomes import table

    content = {"attack": attack, "environment": environment(), **results}
    print_table(table(content), console)
    path = free_path(output, f"robustness_{name}")
    write_new(content, path)
    console.print(f"Written to {path}", markup=False, soft_wrap=True)
