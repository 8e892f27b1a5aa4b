"""Classes spread over two and four processes: every number is that of one process. Each check runs in all of them."""

import json

import pytest
from heads.sharded_checks import CHECKS, main
from processes import run_together

pytestmark = pytest.mark.xdist_group("sharding")  # one worker starts the processes, for all tests


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each process found, by number of processes; started once for all checks."""
    folder = tmp_path_factory.mktemp("sharding")
    run_together(main, (2, folder), (4, folder))
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
