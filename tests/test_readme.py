"""What the README shows is so."""

import json
import re
from pathlib import Path

import pytest

from cappronet import benchmark

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_code_runs(block):
    names = {}
    exec(block, names)
    assert len(names) > 1


def test_the_tree_is_that_of_the_files():
    tree = re.search(r"## What is where\n\n```\n(.*?)```", README, re.DOTALL)[1]
    listed = set(re.findall(r"^  (\w+\.py|\w+/)", tree, re.MULTILINE))
    package = ROOT / "src" / "cappronet"
    present = {path.name for path in package.glob("*.py")}
    assert listed == present
    for name in tree.splitlines()[0].split():
        assert (ROOT / name).exists(), name
    for folder in re.findall(r"^([\w/]+)/ ", tree, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


def test_the_benchmark_table_is_what_the_tool_measured():
    table = re.search(r"<!-- benchmark -->\n(.*?)\n<!-- /benchmark -->", README, re.DOTALL)[1]
    results = json.loads((ROOT / "results" / "benchmark.json").read_text())
    assert table.strip() == benchmark.markdown(results)
    imagenet = results["shapes"]["B=256 d=2048 L=1000 c=8"]["capsule"]["both"]["ratio"]["median"]
    assert f"{imagenet:.2f} times a linear layer with as many weights" in README.replace("\n", " ")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/theory.md", "docs/decisions.md"])
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text())
    for link in links:
        assert link.startswith("https://") or (ROOT / page).parent.joinpath(link).exists(), link
