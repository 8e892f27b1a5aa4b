"""Pages keep what they promise: code runs, commands and options exist, links lead somewhere, the tree is the files'."""

import re
from pathlib import Path

import pytest

from tools.reference import PAGE, command_reference

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
SLOW = "docs/quickstart.md-0"  # it trains a network
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}", marks=[pytest.mark.slow] if f"{page}-{number}" == SLOW else [])
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)
    assert len(names) > 1


def commands(program, page):
    """What a page tells to type, in blocks and in sentences: the name of a command and the rest of the line."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    return re.findall(rf"(?:^|`|-- +){program} ([a-z][\w-]*)([^`#\n]*)", text, re.MULTILINE)


def options(app, name):
    return {option for argument in app[name].assemble_argument_collection() for option in argument.names}


def unknown_options(app, page, program):
    return [
        (name, option)
        for name, rest in commands(program, page)
        for option in re.findall(r"(?<= )--?[a-z][\w-]*", rest)
        if option not in options(app, name) | {"--help"}
    ]


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page):
    from cappronet.cli import app

    assert {name for name, _ in commands("cappronet", page)} <= set(app)
    assert unknown_options(app, page, "cappronet") == []


@pytest.mark.parametrize("page", PAGES)
def test_experiments_and_their_options_exist(page):
    from experiments.__main__ import app

    assert {name for name, _ in commands("python -m experiments", page)} <= set(app)
    assert unknown_options(app, page, "python -m experiments") == []


def test_pages_tell_many_commands():
    assert sum(len(commands("cappronet", page)) for page in PAGES) > 50
    assert sum(len(commands("python -m experiments", page)) for page in PAGES) > 15


def test_the_reproduction_page_names_every_experiment():
    from experiments.__main__ import app

    page = (ROOT / "docs/reproduction.md").read_text()
    items = re.search(r"\n(- `table1`.*?)\n\n", page, re.DOTALL)[1]
    named = [name for item in items.splitlines() for name in re.findall(r"`([\w-]+)`", item.partition(":")[0])]
    assert sorted(named) == sorted(name for name in app if not name.startswith("-"))


def test_the_command_reference_is_that_of_the_program():
    assert PAGE.read_text() == command_reference(), "run: python -m tools.reference"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", text):
        address = "".join(link)
        assert address.startswith("https://") or (ROOT / page).parent.joinpath(address).exists(), address


def test_files_that_pages_name_exist():
    pattern = r"`((?:examples|experiments|recipes|results|src|tests|tools|docs)/[^`\s]*)`"
    named = {path for page in PAGES for path in re.findall(pattern, (ROOT / page).read_text())}
    assert {"examples/own_loop.py", "src/cappronet/heads/controls.py"} <= named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def entries(folder):
    """The modules and packages of a folder."""
    inside = {path.name for path in folder.glob("*.py")}
    return inside | {f"{path.name}/" for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"}


def test_the_tree_is_that_of_the_files():
    text = (ROOT / "docs/architecture.md").read_text()
    tree = re.search(r"```\n(src/cappronet/\n.*?)```", text, re.DOTALL)[1]
    parts = re.split(r"^(\S+/)[^\n]*\n", tree, flags=re.MULTILINE)[1:]
    listed = {
        name: set(re.findall(r"^  (\S+)", body, re.MULTILINE)) for name, body in zip(*[iter(parts)] * 2, strict=True)
    }
    assert listed.pop("src/cappronet/") == entries(ROOT / "src/cappronet")
    packages = {name for name in entries(ROOT / "experiments") if name.endswith("/")}
    assert listed.pop("experiments/") == packages
    assert [folder for folder in listed if not (ROOT / folder).is_dir()] == []


def test_new_code_goes_where_the_architecture_says():
    text = (ROOT / "docs" / "architecture.md").read_text()
    five = re.search(r"## Where new code goes\n\n((?:- .*\n)+)", text)[1].splitlines()
    assert len(five) == 5
    for name, file in [
        ("HEADS", "src/cappronet/heads/__init__.py"),
        ("BACKBONES", "src/cappronet/models/backbones/__init__.py"),
        ("DATASETS", "src/cappronet/data/datasets.py"),
    ]:
        assert any(f"`{name}`" in line for line in five)
        assert re.search(rf"^{name}\b", (ROOT / file).read_text(), re.MULTILINE), (name, file)
    assert "app.command(" in (ROOT / "src/cappronet/cli/__init__.py").read_text()
    assert "app.command(" in (ROOT / "experiments/__main__.py").read_text()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


AVOIDED = re.compile(r"learns? along|equal tries|\bbears?\b|meets the unknown|mend or remove|cut off", re.IGNORECASE)


def test_words_that_are_avoided():
    files = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for folder in ("docs", "src", "examples", "experiments", "recipes", "tools"):
        files += [p for p in (ROOT / folder).rglob("*") if p.suffix in {".md", ".py", ".toml", ".html", ".js", ".sh"}]
    assert len(files) > 100
    used = [(str(path.relative_to(ROOT)), word) for path in files for word in AVOIDED.findall(path.read_text())]
    assert used == []
