"""What the README shows is so."""

import json
import re
from pathlib import Path

import pytest

from cappronet import benchmark, results, step_benchmark

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def between(name):
    return re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", README, re.DOTALL)[1]


def loaded(name):
    return json.loads((ROOT / "results" / name).read_text())


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
    present |= {f"{path.name}/" for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert listed == present
    for name in tree.splitlines()[0].split():
        assert (ROOT / name).exists(), name
    for folder in re.findall(r"^([\w/]+)/ ", tree, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


def test_the_comparison_is_what_the_tool_measured():
    assert between("comparison") == results.markdown(results.read_rows(ROOT / "results" / "compare_digits.json"))


def test_the_benchmarks_are_what_the_tool_measured():
    measured = loaded("benchmark.json")
    assert between("benchmark") == benchmark.markdown(measured)
    assert between("steps") == step_benchmark.markdown(loaded("training_benchmark.json"))
    imagenet = measured["shapes"]["B=256 d=2048 L=1000 c=8"]["capsule"]["both"]["ratio"]["median"]
    assert f"{imagenet:.2f} times a linear layer with as many weights" in README.replace("\n", " ")


def test_commands_and_options_exist():
    from cappronet.cli import app
    from cappronet.recipe import Recipe

    for line in re.findall(r"^cappronet (\w+)(.*?)(?:#|$)", README, re.MULTILINE):
        assert app[line[0]]
        for option in re.findall(r"--([\w-]+)", line[1]):
            assert hasattr(Recipe, option.replace("-", "_")) or option in ("seeds", "recipe", "resume"), option


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/theory.md", "docs/decisions.md"])
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert link.startswith("https://") or (ROOT / page).parent.joinpath(link).exists(), link
