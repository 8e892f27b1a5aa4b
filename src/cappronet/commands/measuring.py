"""`benchmark`: what things cost, against their rivals."""

import itertools
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from cappronet.commands.shared import console
from cappronet.display import progress_bar

__all__ = ["benchmark"]


def benchmark(
    what: Literal["head", "training", "estimator"] = "head",
    /,
    *,
    shape: Annotated[list[str] | None, Parameter(negative="")] = None,
    features: Path | None = None,
    rounds: int | None = None,
    threads: int | None = None,
    device: str = "cpu",
    growth: bool = True,
    output: Path | None = None,
) -> None:
    """Time the capsule head, a whole training step with it, or CapsuleClassifier against their rivals.

    head: against a linear layer of its size, the plain inverse and a loop over classes, and how cost grows with each
    size. training: a ResNet-20 step with a capsule head against one with a linear head, what the loop adds to the bare
    step, and what augmentation takes. estimator: CapsuleClassifier against scikit-learn's classifiers, their errors and
    the times to fit and predict, on digits and on 50,000 made features or yours. Rivals run interleaved; ratios are
    taken within each round. All numbers go to a JSON file.

    Parameters
    ----------
    what
        head, training or estimator.
    shape
        head: a shape B,d,L,c: batch, features, classes, capsule dimension. Can be given several times. By default
        ImageNet's 256,2048,1000,8, CIFAR-10's 128,64,10,8 and 128,160,100,8.
    features
        estimator: a file of features and labels, as cappronet embed writes it or your own, in place of made features.
    rounds
        How often each rival is measured: by default 15 times, estimator 3 times.
    threads
        How many CPU threads PyTorch and NumPy may use; by default all.
    device
        Where to run: cpu, cuda, cuda:1.
    growth
        head: also measure how cost grows when B, d, L or c doubles.
    output
        The JSON file to write; it must not exist yet. By default benchmark-TIME.json in this folder.
    """
    import torch

    from cappronet import benchmark as bench

    if rounds is None:
        rounds = 3 if what == "estimator" else 15
    if rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {rounds}")
    if features is not None and what != "estimator":
        raise ValueError(f"--features is for benchmark estimator, not for benchmark {what}")
    if threads is not None:
        torch.set_num_threads(threads)
    path = output or Path(f"benchmark-{datetime.now():%Y%m%d-%H%M%S}.json")
    if path.exists():
        raise FileExistsError(f"{path} exists and is left as it is; choose another --output")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} of --output does not exist; make it first")
    if what == "training":
        results = _training(rounds)
    elif what == "estimator":
        results = _estimator(features, rounds)
    else:
        results = _head(shape, rounds, device, growth)
    bench.write(results, path)
    console.print(f"Written to {path}")


def _head(shape: list[str] | None, rounds: int, device: str, growth: bool) -> dict[str, Any]:
    from cappronet import benchmark as bench

    shapes = [bench.Shape.parse(text) for text in shape] if shape else bench.SHAPES
    steps = len(shapes) + (5 if growth else 0)
    base = bench.GROWTH if growth else None
    with progress_bar(console) as show:
        begun = itertools.count()
        results = bench.run(
            shapes,
            growth=base,
            rounds=rounds,
            device=device,
            progress=lambda text: show.count(text, next(begun), steps),
        )
    for name, found in results["shapes"].items():
        bench.table(console, name, found)
    if growth:
        bench.growth_table(console, results["growth"])
    return results


def _training(rounds: int) -> dict[str, Any]:
    from cappronet import step_benchmark

    with progress_bar(console) as show:
        costs = step_benchmark.run(rounds=rounds, on_round=lambda n: show.count("measuring", n, rounds))
    console.print(step_benchmark.table(costs))
    return costs


def _estimator(features: Path | None, rounds: int) -> dict[str, Any]:
    from cappronet import estimator_benchmark
    from cappronet.feature_files import read_features

    data = read_features(features) if features is not None else None
    with progress_bar(console) as show:
        costs = estimator_benchmark.run(data, rounds=rounds, on_fit=show.count)
    for table in estimator_benchmark.tables(costs):
        console.print(table)
    return costs
