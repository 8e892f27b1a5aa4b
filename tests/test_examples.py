"""The examples run as they are."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_it_runs_from_anywhere(path, tmp_path):
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "CapsuleProjection" in done.stdout
    assert list(tmp_path.iterdir()) == []
