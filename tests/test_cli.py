"""The command line as a user meets it: real processes, real output, one line for a mistake."""

import json
import subprocess
import sys

import pytest


def cappronet(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "cappronet.cli", *arguments], capture_output=True, text=True, cwd=cwd, timeout=120
    )


def test_help_explains_every_command_and_option():
    assert "benchmark" in cappronet("--help").stdout
    shown = cappronet("benchmark", "--help").stdout
    for option in ("--shape", "--rounds", "--threads", "--device", "--output"):
        assert option in shown


def test_benchmark_prints_tables_and_writes_a_file(tmp_path):
    done = cappronet("benchmark", "--shape", "8,12,4,3", "--rounds", "2", "--output", "out.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for text in ("B=8 d=12 L=4 c=3", "loop over", "growth from", "2 L", "Written to out.json"):
        assert text in done.stdout
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["shapes"]["B=8 d=12 L=4 c=3"]["capsule"]["both"]["ratio"]["median"] > 0
    assert results["growth"]["2 c"]["shape"] == "B=128 d=256 L=100 c=16"
    assert results["machine"]["threads"] >= 1


def test_an_existing_file_is_not_overwritten(tmp_path):
    (tmp_path / "mine.json").write_text("precious")
    done = cappronet("benchmark", "--shape", "8,12,4,3", "--output", "mine.json", cwd=tmp_path)
    assert (tmp_path / "mine.json").read_text() == "precious"
    assert done.returncode == 1
    assert done.stderr.strip() == "error: mine.json exists and is left as it is; choose another --output"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "8,12"], "a shape is four whole numbers B,d,L,c such as 128,64,10,8; got '8,12'"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--output", "nowhere/out.json"], "the folder nowhere of --output does not exist; make it first"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, tmp_path):
    done = cappronet("benchmark", *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == f"error: {message}"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_suggests_the_nearest():
    done = cappronet("benchmrk")
    assert done.returncode != 0
    assert "benchmark" in done.stdout + done.stderr
