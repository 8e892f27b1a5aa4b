"""Worker processes of a probe, each with one thread."""

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import TracebackType
from typing import Any, Self

import joblib
import torch
from joblib import cpu_count
from joblib.externals.loky.backend import resource_tracker as loky_tracker
from threadpoolctl import threadpool_limits

from cappronet.reporting import Report
from cappronet.training.interruption import signals_blocked

__all__ = ["Workers", "cpu_count"]

TRACKERS = (loky_tracker, resource_tracker)


class Workers:
    """Runs tasks in processes of its own, or in this one if it is for one job, and reports how many are done.

    Processes map large arrays instead of copying them, copy on write: torch needs memory that it could write to.
    """

    def __init__(self, jobs: int, total: int, report: Report) -> None:
        self.done, self.total, self.report = 0, total, report
        options: dict[str, Any] = {"return_as": "generator_unordered", "batch_size": 1, "mmap_mode": "c"}
        self.parallel = joblib.Parallel(jobs, backend="loky", **options)

    def __enter__(self) -> Self:
        self.parallel.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.parallel.__exit__(kind, error, traceback)

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The results of the function for each tuple of arguments, in their order."""
        results: list[Any] = [None] * len(tasks)
        calls = (joblib.delayed(_numbered)(i, function, task) for i, task in enumerate(tasks))
        if self.parallel.n_jobs > 1:
            for tracker in TRACKERS:  # which start with the first process, and unblock signals
                tracker.ensure_running()
        with signals_blocked():  # Ctrl-C reaches every process of a terminal; the workers leave it to this one
            running = self.parallel(calls)
        with _closing(running) as outputs:
            for number, result in outputs:
                results[number] = result
                self.done += 1
                self.report("fitting", self.done, self.total)
        return results


@contextmanager
def _closing(outputs: Generator[Any, None, None]) -> Iterator[Iterator[Any]]:
    """End the tasks that are left when the caller stops, without joblib's warning that there were some.

    Nor does joblib warn of a worker that it starts anew because it has loaded large features.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        try:
            yield outputs
        finally:
            warnings.simplefilter("ignore", UserWarning)
            outputs.close()


def _numbered(number: int, function: Callable[..., Any], task: tuple[Any, ...]) -> tuple[int, Any]:
    with _one_thread():
        return number, function(*task)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for each fit: they run side by side, and their results do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)
