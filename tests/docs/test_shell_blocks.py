"""What a newcomer is told to type works, command by command, in an empty folder."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cappronet.cli import app

ROOT = Path(__file__).parents[2]
RUN = "runs/digits-resnet8-capsule4-seed0"
# Pages whose commands need no more than the digits that the package ships, and what is there in the end.
PAGES = {
    "quickstart.md": [f"{RUN}/summary.json", "report.html", "digit.png", "runs/compare-digits/comparison.json"],
    "embeddings.md": ["digits/x_train.npy", "runs/probe/summary.json", "runs/probe/probe.json", "questions.html"],
    "export.md": [f"{RUN}/exported.onnx", f"{RUN}/exported.pt2", "weights.safetensors"],
}
# Installation is another test's; here the package is there.
BEFORE = ("git clone", "pip install")
# What would take long is made short.
SHORT = {"compare": ["--epochs", "1", "--seeds", "1", "--jobs", "1"], "probe": ["--tries", "2", "--folds", "2"]}


def commands(page):
    """The commands of a page's shell blocks: one a line, or several lines in quotes."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    lines: list[str] = []
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        if lines and lines[-1].count('"') % 2:
            lines[-1] += f"\n{line}"
        else:
            lines.append(line)
    return [command for command in lines if not command.startswith(BEFORE)]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    if page == "export.md":  # which begins with a trained model
        app(["train"], result_action="return_value")
    for command in commands(page):
        words = shlex.split(command, comments=True)
        if words[0] == "cappronet":
            app([*words[1:], *SHORT.get(words[1], [])], result_action="return_value")
        else:
            subprocess.run(command, shell=True, check=True, timeout=120)
    assert [name for name in PAGES[page] if not (tmp_path / name).is_file()] == []
