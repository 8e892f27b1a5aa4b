"""The probes as a command."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cappronet.cli.display import print_table, progress_bar
from cappronet.cli.shared import console
from cappronet.extras import require

__all__ = ["probes"]

Words = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")]


def probes(
    *,
    features: Path | None = None,
    only: Words = None,
    samples: Words = None,
    rivals: Words = None,
    again: Words = None,
    jobs: int = 1,
    output: Path = Path("results"),
) -> None:
    """Compare classifiers on real frozen features, from 1 to all samples of each class, with one tuning budget.

    Every measurement is written to probes.json at once; after an interruption, the same command resumes.

    Parameters
    ----------
    features
        The folder of feature files, .npz with x_train, y_train, x_test and y_test: banking77.npz, clinc150.npz,
        cifar10-mobilenet_v2.npz, cifar10-lite0.npz, cifar100-mobilenet_v2.npz, cifar100-lite0.npz. Missing ones are
        skipped; the pixels of digits need no file.
    only
        Only sets whose name contains one of these.
    samples
        Samples of each class: numbers, imbalanced, all. By default 1 2 5 20 100 imbalanced all.
    rivals
        Only classifiers whose name contains one of these.
    again
        Classifiers whose name contains one of these are measured again on the selected sets and numbers of samples, for
        example after their code has changed.
    jobs
        Processes, each with one thread.
    output
        The folder of probes.json, to which results are added.
    """
    if features is not None and not features.is_dir():
        raise FileNotFoundError(f"--features: there is no folder {features}")
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    require("sklearn", "sklearn")
    require("scipy.stats", "train")  # needed for the intervals at the end: better to fail now
    from experiments.probes.running import Plan, check_samples, run, select_rivals
    from experiments.probes.sets import DRAWS, available
    from experiments.probes.tables import all_table, compared_table, rivals_table, samples_table

    sets, missing = available(features, only or ())
    check_samples(samples or ())
    plan = Plan(sets, features, samples or tuple(DRAWS), select_rivals(rivals or ()), again or ())
    if missing:
        _say(f"Skipped, because --features has no file of them: {', '.join(missing)}")
    with progress_bar(console) as report:
        content = run(plan, output / "probes.json", jobs=jobs, report=report)
    for table in (all_table(content), samples_table(content), compared_table(content), rivals_table(content)):
        if table.rows:
            print_table(table, console)
    _say(f"Written to {output / 'probes.json'}")


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)
