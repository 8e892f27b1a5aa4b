"""Jobs in parallel, each in a process of its own with one thread; an interruption lets every job save first.

A worker and its parent share nothing but a pipe. The parent sends one job at a time and the worker answers with its
progress and its end, so nothing is queued, and no process waits for a lock that a killed one holds.

Signals never interrupt the parent or a worker: both note them and look at the flag. A worker starts with its signals
blocked, since Ctrl-C and a shell's SIGTERM may reach every process of the group while it still imports its modules.
"""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import Any

from cappronet.reporting import Report, duration, silent
from cappronet.training.interruption import Interruption, signals_blocked, unblock_signals

__all__ = ["RESUME_HINT", "pace", "run_jobs"]

RESUME_HINT = "stopped and saved; run the same command again to resume"
# How long workers may take to save before they are killed.
SAVE_SECONDS = 60.0
# How long a worker may take to exit after that; killed before, those that compile networks leave semaphores behind.
EXIT_SECONDS = 5.0
# How often the parent looks whether it was asked to stop.
POLL_SECONDS = 0.1
# Progress is shown in thousandths of a job.
PARTS = 1000

# A job, done in a worker, which reports its progress. It raises InterruptedError when a signal stopped it.
Work = Callable[[Any, Report], None]


@dataclass(eq=False)
class _Worker:
    """A process, the parent's end of its pipe, its own number, that of its job, and whether it has anything to save."""

    process: SpawnProcess
    pipe: Connection
    number: int
    job: int | None = None
    started: bool = False


def run_jobs(
    jobs: Sequence[Any],
    work: Work,
    processes: int,
    report: Report = silent,
    text: str = "job",
    assigned: Callable[[Any, int], Any] = lambda job, _number: job,
) -> None:
    """Call `work(job, report)` for every job, several at a time; the first error stops the others and is raised.

    Args:
        jobs: what is passed to `work`; like `work` itself, it must be picklable.
        work: a function of a module.
        processes: how many jobs run at the same time.
        report: told the sum of all jobs' progress. The first report of a job says where it begins: what an earlier call
            has done of an interrupted one took none of the time that the rest is estimated from, and does not count.
        text: what a job is called there. After the first job, it also says how long jobs take and how long the rest
            will take.
        assigned: makes what is passed to `work` from a job and the number of its process, from 0: which device it uses.

    Raises:
        InterruptedError: after Ctrl-C or SIGTERM, when every job has saved.
    """
    waiting = list(enumerate(jobs))[::-1]
    progress, begun = [0.0] * len(jobs), dict[int, float]()
    finished, started = 0, time.monotonic()
    with Interruption(patient=True) as interruption, _workers(work, min(processes, len(jobs)), interruption) as workers:
        for worker in workers:
            _hand_out(worker, waiting, assigned)
        while busy := {worker.pipe: worker for worker in workers if worker.job is not None}:
            for pipe in wait(list(busy), POLL_SECONDS):
                worker = busy[pipe]  # type: ignore[index]
                event, value = _receive(worker, interruption)
                assert worker.job is not None
                if event == "failed":
                    raise value
                if event == "progress":
                    begun.setdefault(worker.job, value)
                progress[worker.job] = value
                if event == "finished":
                    finished += 1
                    _hand_out(worker, waiting, assigned)
            _check(interruption)
            shown = f"{text} {min(finished + 1, len(jobs))}/{len(jobs)}"
            done, left = sum(progress) - sum(begun.values()), len(jobs) - sum(progress)
            if finished and done:
                shown += pace(time.monotonic() - started, done, left, len(workers))
            report(shown, round(PARTS * done), round(PARTS * (done + left)))
    _check(interruption)  # a signal during the last moments must stop the caller, too


def pace(seconds: float, done: float, left: float, processes: int) -> str:
    """How long a job takes and how long all that are left will take, as text; both numbers include parts of jobs."""
    return f"  {duration(seconds * processes / done)} each, about {duration(seconds * left / done)} left"


def _check(interruption: Interruption) -> None:
    if interruption.signal is not None:
        raise InterruptedError(RESUME_HINT)


def _hand_out(worker: _Worker, waiting: list[tuple[int, Any]], assigned: Callable[[Any, int], Any]) -> None:
    """Give a worker the next job, if there is one."""
    worker.job = None
    if waiting:
        worker.job, job = waiting.pop()
        with suppress(BrokenPipeError):  # it has died, which the next `_receive` reports
            worker.pipe.send(assigned(job, worker.number))


def _receive(worker: _Worker, interruption: Interruption) -> tuple[str, Any]:
    try:
        event: tuple[str, Any] = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        _check(interruption)
        raise ChildProcessError(
            f"a worker process ended with exit code {worker.process.exitcode}, perhaps for lack of memory: "
            "run the same command again, with fewer --jobs if it repeats"
        ) from None
    worker.started = True
    return event


@contextmanager
def _workers(work: Work, count: int, interruption: Interruption) -> Iterator[list[_Worker]]:
    """Start processes, and end these and no others when the block is left."""
    context = multiprocessing.get_context("spawn")
    workers: list[_Worker] = []
    try:
        resource_tracker.ensure_running()  # multiprocessing starts it with the first process, and unblocks signals
        for number in range(count):
            _check(interruption)
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, work))  # no daemon: it may have workers of its own
            with signals_blocked(), _main_module_hidden(work):
                process.start()
            theirs.close()
            workers.append(_Worker(process, ours, number))
        yield workers
    except BaseException:
        _let_save(workers)
        raise
    for worker in workers:
        worker.pipe.close()  # an idle worker takes that as the end
    for worker in workers:
        worker.process.join(SAVE_SECONDS)
        worker.process.kill()
        worker.process.join()


@contextmanager
def _main_module_hidden(work: Work) -> Iterator[None]:
    """Start processes that do not import the program's main module, unless the work is defined there.

    It would run a script again in every process, if the script has no `if __name__ == "__main__"`.
    """
    function = work.func if isinstance(work, partial) else work
    if function.__module__ == "__main__":
        yield
        return
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _let_save(workers: Sequence[_Worker]) -> None:
    """Ask every worker to save and end, and read what they still send, which would block them otherwise."""
    for worker in workers:
        if worker.started:
            worker.process.terminate()
        else:  # it has nothing to save, and might hear nothing for as long as it imports
            worker.process.kill()
    deadline = time.monotonic() + SAVE_SECONDS
    listening = {worker.pipe: worker for worker in workers}
    while listening and time.monotonic() < deadline:
        for pipe in wait(list(listening), timeout=1.0):
            try:
                listening[pipe].pipe.recv()  # type: ignore[index]
            except (EOFError, OSError):
                del listening[pipe]  # type: ignore[arg-type]
    for worker in workers:
        worker.process.join(EXIT_SECONDS)
        worker.process.kill()
        worker.process.join()


def _serve(pipe: Connection, work: Work) -> None:
    """What a worker process does: one job after the other, until the parent closes the pipe or asks it to stop."""
    _end_with_parent()
    interruption = Interruption(patient=True).__enter__()  # for the life of the process
    unblock_signals()
    import torch

    torch.set_num_threads(1)
    while _do_next(pipe, work, interruption):
        pass
    pipe.close()  # the parent waits for this


def _do_next(pipe: Connection, work: Work, interruption: Interruption) -> bool:
    """Do the next job; False when there is none, or when it failed."""
    while not pipe.poll(POLL_SECONDS):
        if interruption.signal is not None:
            return False
    try:
        job = pipe.recv()
    except (EOFError, OSError):
        return False
    try:
        if interruption.signal is not None:
            raise InterruptedError(RESUME_HINT)
        pipe.send(("started", 0.0))
        work(job, lambda _text, done, total: pipe.send(("progress", done / max(1, total))))
        pipe.send(("finished", 1.0))
    except Exception as error:
        with suppress(OSError):  # the parent has died, or does not listen any more
            pipe.send(("failed", error))
        return False
    return True


def _end_with_parent() -> None:
    """Where the parent was killed, no worker may keep writing into folders that the next call takes up."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
