"""What the README tells a new user to type first works, word for word, in an empty folder."""

import sys
from pathlib import Path

import pytest

from tools.first_steps import PAGE, install_command, steps, timed


def test_the_path_is_the_readmes():
    assert install_command() == 'pip install ".[all]"'
    commands = steps()
    assert list(commands) == ["classifier", "train", "explore"]
    assert "CapsuleClassifier().fit(x, y)" in commands["classifier"][-1]
    assert commands["train"][-1] == "cappronet train"
    assert commands["explore"][-1].startswith("cappronet explore runs/")


@pytest.mark.slow
def test_a_new_users_first_commands_lead_to_a_page(tmp_path, capfd):
    seconds = timed(steps(), tmp_path, Path(sys.executable).parent)
    shown = capfd.readouterr().err
    assert "% error\n" in shown
    assert "misclassified" in shown
    assert (tmp_path / PAGE).read_text().startswith("<!doctype html>")
    assert list(seconds) == ["classifier", "train", "explore"]
    with capfd.disabled():
        sys.stdout.write(f"\nthe README's first steps, in seconds: {seconds}\n")
