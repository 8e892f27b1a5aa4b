"""Processes that work together, forked from one that has imported torch: importing it in each takes seconds."""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys


def run_together(function, *stages):
    """Call `function(rank, world, ...)` in as many processes, for one stage `(world, ...)` after the other.

    Returns:
        The exit codes of the processes of each stage.
    """
    done = subprocess.run(
        [sys.executable, __file__],
        input=pickle.dumps((function, stages)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout.splitlines()[-1])


def forked(function, world, *arguments):
    """The exit codes of the processes of one stage."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=function, args=(rank, world, *arguments)) for rank in range(world)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=300)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()


if __name__ == "__main__":
    called, planned = pickle.load(sys.stdin.buffer)  # which imports the module of the function
    codes = [forked(called, *stage) for stage in planned]
    sys.stdout.write(f"\n{json.dumps(codes)}\n")
