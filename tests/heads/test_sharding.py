"""Classes spread over two and four processes: every number is that of one process. Each check runs in all of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from heads.sharded_checks import CHECKS

pytestmark = pytest.mark.xdist_group("sharding")  # one process starts the others, for all tests

SCRIPT = Path(__file__).with_name("sharded_checks.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each process found, by number of processes; started once for all checks, since importing torch is slow."""
    folder = tmp_path_factory.mktemp("sharding")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    for world in (2, 4):
        command = [sys.executable, str(SCRIPT)]
        processes = [
            subprocess.Popen([*command, str(rank), str(world), str(folder)], env=environment) for rank in range(world)
        ]
        try:
            for process in processes:
                process.wait(timeout=300)
        finally:
            for process in processes:
                process.kill()
    return {
        world: [json.loads((folder / f"results-{world}-{rank}.json").read_text()) for rank in range(world)]
        for world in (2, 4)
    }


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("check", CHECKS)
def test_processes_agree_with_one(results, check, world):
    for rank, found in enumerate(results[world]):
        assert found.get(check) == "ok", f"process {rank}: {found.get(check, 'not reached')}"
