"""What the README and the pages show is so."""

import json
import re
from pathlib import Path

import pytest

from cappronet import benchmark, estimator_benchmark, overhead, results, step_benchmark
from cappronet.reproduction import tables
from cappronet.studies import fixed_features, new_classes, unknown

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def between(name, page="README.md"):
    return re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", (ROOT / page).read_text(), re.DOTALL)[1]


def loaded(name):
    return json.loads((ROOT / "results" / name).read_text())


BLOCKS = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)]


@pytest.mark.parametrize("block", BLOCKS)
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


# A page, a table in it, the file that carries its numbers, and what makes the one of the other.
TABLES = [
    ("docs/embeddings.md", "estimator", "estimator_benchmark.json", estimator_benchmark.markdown),
    (
        "docs/embeddings.md",
        "fixed_features",
        "fixed_features.json",
        lambda content: fixed_features.grid(content).markdown(),
    ),
    ("docs/embeddings.md", "new_classes", "new_classes.json", lambda content: new_classes.grid(content).markdown()),
    ("docs/embeddings.md", "unknown", "unknown.json", lambda content: unknown.grid(content).markdown()),
    ("docs/reproduction.md", "overhead", "overhead.json", lambda content: overhead.grid(content).markdown()),
    ("docs/reproduction.md", "table3-cpu", "table3-cpu.json", lambda content: tables.grid(content["rows"]).markdown()),
    ("docs/reproduction.md", "table1-cpu", "table1-cpu.json", lambda content: tables.grid(content["rows"]).markdown()),
    (
        "docs/reproduction.md",
        "table3-cpu-tries",
        "table3-cpu.json",
        lambda content: tables.tried(content["rows"]).markdown(),
    ),
    (
        "docs/reproduction.md",
        "settings-cpu",
        "settings-cpu.json",
        lambda content: tables.grid(content["rows"]).markdown(),
    ),
]


@pytest.mark.parametrize(("page", "name", "file", "markdown"), TABLES, ids=[name for _, name, _, _ in TABLES])
def test_a_table_is_what_the_tool_measured(page, name, file, markdown):
    assert between(name, page) == markdown(loaded(file))


def test_every_table_of_numbers_is_checked():
    marked = {name for page in PAGES for name in re.findall(r"<!-- (\w[\w-]*) -->", (ROOT / page).read_text())}
    assert marked == {name for _, name, _, _ in TABLES} | {"comparison", "benchmark", "steps"}


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page):
    from cappronet.cli import app

    for name, rest in re.findall(r"^cappronet (\w+)(.*?)(?:#|$)", (ROOT / page).read_text(), re.MULTILINE):
        options = {option for argument in app[name].assemble_argument_collection() for option in argument.names}
        for option in re.findall(r"(?<= )--?[a-z][\w-]*", rest):
            assert option in options, (name, option)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert link.startswith("https://") or (ROOT / page).parent.joinpath(link).exists(), link


@pytest.mark.parametrize("file", sorted((ROOT / "results").glob("*.json")), ids=lambda file: file.name)
def test_a_result_file_names_no_place_on_the_machine_that_wrote_it(file):
    assert re.findall(r'"(?:/|[A-Z]:\\)[^"]*"', file.read_text()) == []
