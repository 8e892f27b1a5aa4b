"""The benchmarks as commands: `head`, `step`, `estimator`, `overhead`, `scale` and `sampled_classes`."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cappronet.cli.display import print_table, progress_bar
from cappronet.cli.shared import console
from experiments.files import free_path, write_new

__all__ = ["estimator", "head", "overhead", "sampled_classes", "scale", "step"]

Rounds = Annotated[int, Parameter(help="How often each contestant is measured.")]
Threads = Annotated[int | None, Parameter(help="CPU threads for PyTorch and NumPy; by default all.")]
NewFile = Annotated[
    Path | None,
    Parameter(help="The JSON file to write, which must not exist yet. By default benchmark-TIME.json here."),
]


def head(
    *,
    shape: Annotated[list[str] | None, Parameter(negative="")] = None,
    rounds: Rounds = 15,
    threads: Threads = None,
    device: str = "cpu",
    growth: bool = True,
    against: Path | None = None,
    output: NewFile = None,
) -> None:
    """Time the capsule head against a linear layer of its size, and measure its peak memory.

    The plain inverse of Eq. (2) and a loop over classes are measured too, and how the cost grows with each size.

    Parameters
    ----------
    shape
        Batch, features, classes and capsule dimension as B,d,L,c; can be given several times. By default ImageNet's
        256,2048,1000,8, CIFAR-10's 128,64,10,8 and 128,160,100,8.
    device
        Where to run: cpu, cuda, cuda:1.
    growth
        Also measure how the cost grows when B, d, L or c doubles.
    against
        Time the capsule head against that of another source tree instead: the folder src of another checkout.
    """
    path = _prepare(rounds, threads, output)
    from experiments.benchmarks import against as other
    from experiments.benchmarks import head as benchmark

    shapes = [benchmark.Shape.parse(text) for text in shape] if shape else benchmark.SHAPES
    if against is not None:
        with progress_bar(console) as report:
            results = other.run(against, shapes, rounds=rounds, device=device, report=report)
        print_table(other.table(results), console)
        _write(results, path)
        return
    base = benchmark.GROWTH if growth else None
    with progress_bar(console) as report:
        results = benchmark.run(shapes, growth=base, rounds=rounds, device=device, report=report)
    print_table(benchmark.table(results), console)
    if growth:
        print_table(benchmark.growth_table(results), console)
    _write(results, path)


def step(
    *,
    backbone: str = "resnet20",
    capsule_dim: int = 8,
    rounds: Rounds = 15,
    threads: Threads = None,
    output: NewFile = None,
) -> None:
    """Time a training step with a capsule head and with a linear head.

    Also measured: what the training loop adds to the bare step, and how long augmentation takes.

    Parameters
    ----------
    backbone
        The backbone, which takes images of 32 x 32 pixels.
    capsule_dim
        The capsule dimension c.
    """
    path = _prepare(rounds, threads, output)
    from experiments.benchmarks import step as benchmark

    with progress_bar(console) as report:
        results = benchmark.run(backbone, capsule_dim, rounds=rounds, report=report)
    print_table(benchmark.table(results), console)
    _write(results, path)


def estimator(
    *,
    features: Path | None = None,
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    large: Annotated[bool, Parameter(negative="")] = False,
    rounds: Rounds = 3,
    threads: Threads = None,
    output: NewFile = None,
) -> None:
    """Compare CapsuleClassifier with scikit-learn's classifiers: errors, and times to fit and to predict.

    Runs on digits and on 50,000 made features, or on yours.

    Parameters
    ----------
    features
        A file of features and labels, from cappronet embed or your own, instead of made features.
    only
        Only classifiers whose name contains this, and LogisticRegression; can be given several times.
    large
        Instead of the comparison, fit CapsuleClassifier(8) to 300,000 made features of 1,000 classes from a memory map,
        and measure time and peak memory.
    """
    path = _prepare(rounds, threads, output)
    from cappronet.data.features import read_features
    from cappronet.extras import require

    require("sklearn", "sklearn")
    if large:
        from experiments.benchmarks import large_fit

        if features is not None or only:
            raise ValueError("--large makes its own features and fits one classifier: leave --features and --only out")
        with progress_bar(console) as report:
            results = large_fit.run(report=report)
        print_table(large_fit.table(results), console)
        _write(results, path)
        return
    from experiments.benchmarks import estimator as benchmark

    data = read_features(features) if features is not None else None
    with progress_bar(console) as report:
        results = benchmark.run(data, only=only or (), rounds=rounds, report=report)
    print_table(benchmark.table(results), console)
    _write(results, path)


def overhead(
    *,
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    rounds: Rounds = 5,
    folder: Path = Path("runs/reproduce"),
    output: Path = Path("results"),
) -> None:
    """Measure the parameters and the time that each head adds to each backbone (Section 4.3 of the paper).

    An interrupted measurement resumes with the backbones that are missing.

    Parameters
    ----------
    only
        Only backbones whose name contains this; can be given several times.
    folder
        Where finished backbones are kept until the measurement is complete.
    output
        Where overhead.json is written; if it exists, overhead-2.json, and so on.
    """
    _check_rounds(rounds)
    from experiments.benchmarks import overhead as benchmark

    backbones = benchmark.select(only or ())
    with progress_bar(console) as report:
        record = folder / "overhead.json"
        results = benchmark.run(backbones, rounds=rounds, record=record, report=report)
    print_table(benchmark.table(results), console)
    _write(results, free_path(output, "overhead"))


def scale(
    *,
    classes: Annotated[list[int] | None, Parameter(negative="")] = None,
    processes: Annotated[list[int] | None, Parameter(negative="")] = None,
    rounds: Rounds = 5,
    threads: int = 1,
    million: bool = True,
    memory: float = 14.0,
    again: Annotated[bool, Parameter(negative="")] = False,
    folder: Path = Path("runs/scale"),
    output: Path = Path("results"),
) -> None:
    """Measure heads whose classes are spread over processes: speed, memory of each process, bytes sent.

    An interrupted measurement resumes with the points that are missing. It takes about ten minutes.

    Parameters
    ----------
    classes
        Numbers of classes; repeat the option for several. By default 1,000 to 1,000,000.
    processes
        Numbers of processes; repeat the option for several. By default 1, 2 and 4.
    threads
        CPU threads of each process.
    million
        Also measure a million classes with 256 features and c = 2.
    memory
        Leave out what needs more than this many GiB, over all processes.
    again
        Measure every point, also those that an earlier measurement has finished, and replace scale.json at the end.
    folder
        Where finished points are kept until the measurement is complete.
    output
        Where scale.json is written; if it exists, scale-2.json, and so on.
    """
    _check_rounds(rounds)
    from experiments.benchmarks import scale as benchmark
    from experiments.benchmarks import scale_tables as tables

    for name, values in (("--classes", classes), ("--processes", processes), ("--threads", [threads])):
        if values is not None and min(values) < 1:
            raise ValueError(f"{name} must be at least 1, got {min(values)}")
    chosen = (classes or benchmark.CLASSES, processes or benchmark.PROCESSES)
    points = list(benchmark.planned(*chosen, rounds=rounds, threads=threads, million=million))
    with progress_bar(console) as report:
        results = benchmark.run(points, memory=memory, record=folder / "scale.json", again=again, report=report)
    for shown in (tables.table(results), tables.exponent_table(results), tables.paper_table(results)):
        if shown is not None and shown.rows:
            print_table(shown, console)
    if again:
        (output / "scale.json").unlink(missing_ok=True)
    _write(results, free_path(output, "scale"))


def sampled_classes(
    *,
    seeds: int = 3,
    threads: Threads = None,
    folder: Path = Path("runs/scale"),
    output: Path = Path("results"),
) -> None:
    """Train with all of 10,000 made classes and with a sample of them in each step: errors and times.

    An interrupted study resumes with the runs that are missing.

    Parameters
    ----------
    seeds
        Runs of each kind, with seeds 0, 1, ...
    folder
        Where finished runs are kept until the study is complete.
    output
        Where sampled_classes.json is written; if it exists, sampled_classes-2.json, and so on.
    """
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    _set_threads(threads)
    from experiments.benchmarks import scale_sampling as study

    with progress_bar(console) as report:
        results = study.run(range(seeds), record=folder / "sampled_classes.json", report=report)
    print_table(study.table(results), console)
    _write(results, free_path(output, "sampled_classes"))


def _prepare(rounds: int, threads: int | None, output: Path | None) -> Path:
    """Check the options before anything is measured; return the file to write."""
    _check_rounds(rounds)
    path = output or Path(f"benchmark-{datetime.now():%Y%m%d-%H%M%S}.json")
    if path.exists():
        raise FileExistsError(f"{path} exists and is not overwritten; choose another --output")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} of --output does not exist; create it first")
    _set_threads(threads)
    return path


def _set_threads(threads: int | None) -> None:
    if threads is None:
        return
    import torch

    if threads < 1:
        raise ValueError(f"--threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)


def _check_rounds(rounds: int) -> None:
    if rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {rounds}")


def _write(results: dict[str, object], path: Path) -> None:
    write_new(results, path)
    console.print(f"Written to {path}", soft_wrap=True, markup=False)
