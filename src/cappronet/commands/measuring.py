"""`benchmark`: what things cost, against their rivals."""

import itertools
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cappronet.commands.shared import console
from cappronet.display import progress_bar

__all__ = ["benchmark"]


def benchmark(
    what: Literal["head", "training"] = "head",
    /,
    *,
    shape: Annotated[list[str] | None, Parameter(negative="")] = None,
    rounds: int = 15,
    threads: int | None = None,
    device: str = "cpu",
    growth: bool = True,
    output: Path | None = None,
) -> None:
    """Time the capsule head, or a whole training step with it, against its rivals.

    head: against a linear layer of its size, the plain inverse and a loop over classes, and how cost grows with each
    size. training: a ResNet-20 step with a capsule head against one with a linear head, what the loop adds to the bare
    step, and what augmentation takes. Rivals run interleaved; ratios are taken within each round. All numbers go to a
    JSON file.

    Parameters
    ----------
    what
        head or training.
    shape
        head: a shape B,d,L,c: batch, features, classes, capsule dimension. Can be given several times. By default
        ImageNet's 256,2048,1000,8, CIFAR-10's 128,64,10,8 and 128,160,100,8.
    rounds
        How often each rival is measured.
    threads
        How many CPU threads PyTorch may use; by default all.
    device
        Where to run: cpu, cuda, cuda:1.
    growth
        head: also measure how cost grows when B, d, L or c doubles.
    output
        The JSON file to write; it must not exist yet. By default benchmark-TIME.json in this folder.
    """
    import torch

    from cappronet import benchmark as bench
    from cappronet import step_benchmark

    if rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {rounds}")
    if threads is not None:
        torch.set_num_threads(threads)
    path = output or Path(f"benchmark-{datetime.now():%Y%m%d-%H%M%S}.json")
    if path.exists():
        raise FileExistsError(f"{path} exists and is left as it is; choose another --output")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} of --output does not exist; make it first")
    if what == "training":
        with progress_bar(console) as show:
            costs = step_benchmark.run(rounds=rounds, on_round=lambda n: show.count("measuring", n, rounds))
        console.print(step_benchmark.table(costs))
        bench.write(costs, path)
        console.print(f"Written to {path}")
        return
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
    bench.write(results, path)
    console.print(f"Written to {path}")
