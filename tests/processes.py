"""Processes that work together, forked from one that has imported torch: importing it in each takes seconds."""

import multiprocessing

# Modules of functions that tests run in processes.
PRELOADED = ["heads.sharded_checks", "training.resharding_steps"]


def run_together(function, world, *arguments):
    """Call `function(rank, world, *arguments)` in as many processes, and return their exit codes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
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
