"""Jobs in worker processes: results, progress, errors, and what an interruption does to the caller's other children."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from cappronet.training.workers import run_jobs


def write(job, report):
    """A job of the tests: it leaves a file, as a run leaves its folder."""
    path, number = job
    report("writing", 0, 2)
    report("writing", 1, 2)
    (path / f"{number}.txt").write_text(str(os.getpid()))


def resume(job, report):
    """A job of which some quarters were done before."""
    for quarter in range(job, 5):
        report("resuming", quarter, 4)


def fail(job, report):
    raise ValueError(f"job {job} can't be done")


def die(job, report):
    os._exit(3)


@pytest.mark.slow
def test_every_job_is_done_and_progress_reaches_the_end(tmp_path):
    reports = []
    run_jobs([(tmp_path, i) for i in range(5)], write, 2, lambda *report: reports.append(report), "job")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{i}.txt" for i in range(5)]
    processes = {path.read_text() for path in tmp_path.iterdir()}
    assert len(processes) <= 2
    assert str(os.getpid()) not in processes
    done = [done for _, done, _ in reports]
    assert done == sorted(done)
    assert reports[-1][1:] == (5000, 5000)


@pytest.mark.slow
def test_what_was_done_of_a_job_before_does_not_count():
    reports = []
    run_jobs([0, 3, 2], resume, 1, lambda *report: reports.append(report), "job")
    done = [done for _, done, _ in reports]
    assert done == sorted(done)
    assert done[0] == 0
    assert reports[0][2] == 3000
    assert reports[-1][1:] == (1750, 1750)


def test_no_jobs_start_no_process():
    reports = []
    run_jobs([], write, 2, lambda *report: reports.append(report))
    assert reports == []


def test_an_error_of_a_job_is_raised():
    with pytest.raises(ValueError, match="job 7 can't be done"):
        run_jobs([7], fail, 1)


def test_a_worker_that_dies_is_an_error_with_its_exit_code():
    with pytest.raises(ChildProcessError, match="exit code 3"):
        run_jobs([0], die, 1)


PROGRAM = """
    import multiprocessing, signal, sys, time
    from pathlib import Path
    from cappronet.training.workers import run_jobs

    def wait(job, report):
        # As a training run does: note the signal, save, then say so. Compiled networks hold semaphores as well.
        global semaphore
        semaphore = multiprocessing.get_context("spawn").Semaphore()
        stopped = []
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
        Path(job, "begun").touch()
        while not stopped:
            report("waiting", 0, 1)
            time.sleep(0.001)
        Path(job, "saved").touch()
        raise InterruptedError("stopped")

    def live():
        time.sleep(600)

    if __name__ == "__main__":
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        child = multiprocessing.get_context("spawn").Process(target=live)
        child.start()
        try:
            run_jobs([sys.argv[1]], wait, 1)
        except InterruptedError as error:
            print(error, child.is_alive(), flush=True)
        child.kill()
"""


SEVERAL = [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]


@pytest.mark.slow
@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM], SEVERAL])
def test_an_interruption_lets_jobs_save_and_leaves_other_children_alone(tmp_path, signals):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not Path(tmp_path, "begun").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for number in signals:
        process.send_signal(number)
    output, errors = process.communicate(timeout=120)
    assert "leaked" not in errors  # every worker could clean up
    assert "resume" in output
    assert output.strip().endswith("True")  # the caller's other child lives
    assert Path(tmp_path, "saved").exists()
