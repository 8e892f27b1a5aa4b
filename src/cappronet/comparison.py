"""The same recipe with several heads and seeds: runs side by side, finished ones kept, broken-off ones resumed."""

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cappronet.heads import HEADS
from cappronet.recipe import Recipe
from cappronet.runs import Run

if TYPE_CHECKING:
    from cappronet.training import Hardware

__all__ = ["DEFAULT", "VARIANTS", "Display", "Planned", "check", "execute", "plan"]

# What each name on the command line changes in the recipe.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"head": name, "normalize": False, "scale": "none"} for name in HEADS},
    "capsule-unit": {"head": "capsule", "normalize": True, "scale": "learned"},
}
GO_ON = "stopped and saved; the same command goes on from here"
# In a worker: it was asked to stop. A pool hands it one more run than it cancels.
STOPPED = threading.Event()
DEFAULT = ("linear", "group", "capsule", "capsule-unit")


class Display(Protocol):
    """Whoever shows how far things are."""

    def count(self, text: str, done: int, total: int) -> None:
        """Show that `done` of `total` steps are done."""


@dataclass(frozen=True)
class Planned:
    """A recipe and the folder that its run goes into."""

    recipe: Recipe
    folder: Path


def plan(base: Recipe, backbones: Sequence[str], heads: Sequence[str], seeds: int, folder: Path) -> list[Planned]:
    """Every backbone with every head and seed; a folder that holds another recipe's run is refused."""
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    unknown = [name for name in heads if name not in VARIANTS]
    if unknown:
        raise ValueError(f"unknown head {unknown[0]!r}; known are {', '.join(VARIANTS)}")
    planned = [
        Planned(
            base.changed(backbone=backbone, seed=seed, **VARIANTS[head]),
            folder / f"{backbone}-{head}-seed{seed}",
        )
        for backbone in backbones
        for head in heads
        for seed in range(seeds)
    ]
    check(planned)
    return planned


def check(planned: Sequence[Planned]) -> None:
    """Refuse folders that hold something else."""
    for run in planned:
        if run.folder.exists() and Run.open(run.folder).recipe != run.recipe:
            raise FileExistsError(f"{run.folder} holds a run of another recipe; choose another --folder")


def execute(planned: Sequence[Planned], jobs: int, hardware: "Hardware", display: Display, text: str = "run") -> None:
    """Train what is not finished, several runs at a time with one thread each."""
    waiting = [run for run in planned if not Run(run.folder).finished]
    if waiting:
        context = multiprocessing.get_context("spawn")
        workers = ProcessPoolExecutor(min(jobs, len(waiting)), context, _begin_worker)
        manager = SyncManager(ctx=context)
        manager.start(_end_with_parent)
        with manager, workers as pool:
            reports = manager.Queue()
            futures = [pool.submit(_train, i, run, hardware, reports) for i, run in enumerate(waiting)]
            try:
                _follow(futures, reports, display, text)
            except BaseException as error:
                for worker in multiprocessing.active_children():
                    if worker.name.startswith("SpawnProcess"):
                        worker.terminate()  # which a run takes as a request to save
                pool.shutdown(cancel_futures=True)
                if isinstance(error, KeyboardInterrupt):
                    raise InterruptedError(GO_ON) from None
                raise


def _follow(futures: Sequence["Future[None]"], reports: "queue.Queue[Any]", display: Display, text: str) -> None:
    """Show progress until every run is done; the first error ends it."""
    shares: dict[int, float] = {}
    while not all(future.done() for future in futures):
        try:
            index, share = reports.get(timeout=0.2)
            shares[index] = share
        except queue.Empty:
            continue
        finally:
            for future in futures:
                if future.done():
                    future.result()
        done = sum(future.done() for future in futures)
        now = f"{text} {min(done + 1, len(futures))}/{len(futures)}"
        display.count(now, int(1000 * sum(shares.values())), 1000 * len(futures))


def _train(index: int, planned: Planned, hardware: "Hardware", reports: Any) -> None:
    """One run in a worker process."""
    import torch

    from cappronet.training import Interrupted, train

    torch.set_num_threads(1)
    run = Run(planned.folder)
    if STOPPED.is_set():
        raise InterruptedError(GO_ON)
    if run.finished:  # by another call, since this one planned
        return
    report: Callable[[Any], None] = lambda now: reports.put((index, now.step / now.steps))  # noqa: E731
    try:
        train(planned.recipe, run, hardware, on_progress=report)
    except Interrupted:
        STOPPED.set()
        raise InterruptedError(GO_ON) from None


def _begin_worker() -> None:
    """Ctrl-C reaches every process; a run notes it while it trains, and a waiting worker has nothing to save."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()


def _end_with_parent() -> None:
    """Where the command was killed, no process of it may go on writing into folders that the next call takes up."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
