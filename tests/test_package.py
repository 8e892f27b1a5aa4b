"""What people install: the wheel and the sdist, alone, with nothing of the repository or of the extras around."""

import importlib.metadata
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytest.importorskip("build")
pytest.importorskip("hatchling")

pytestmark = pytest.mark.xdist_group("package")  # one process builds what all of them use
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A wheel, made from the sdist, and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def in_repository(pattern):
    return {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern) if path.is_file()}


def test_the_wheel_has_all_that_runs_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    code = in_repository("src/cappronet/**/*")
    wanted = {name.removeprefix("src/") for name in code if "__pycache__" not in name}
    wanted |= {f"cappronet/{name}" for name in in_repository("recipes/**/*.toml")}
    assert {"cappronet/py.typed", "cappronet/explorer/templates/page.html"} <= wanted
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == wanted
    assert any(name.endswith("licenses/LICENSE") for name in about)


def test_the_sdist_has_what_a_test_run_needs(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt", "conftest.py", "mkdocs.yml"}
    for pattern in (
        "tests/**/*.py",
        "experiments/**/*.py",
        "experiments/**/*.toml",
        "docs/*.md",
        "docs/images/*",
        "examples/*.py",
        "recipes/**/*.toml",
        "results/*",
    ):
        wanted |= in_repository(pattern)
    assert wanted <= names


def requirements(name, extra=""):
    """What a distribution asks for, under this interpreter."""
    for text in importlib.metadata.requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def needed_by(name):
    """The distributions that come with one that is installed without extras."""
    found, open_ = set(), [Requirement(name)]
    while open_:
        wanted = open_.pop()
        key = (wanted.name, frozenset(wanted.extras))
        if key in found:
            continue
        found.add(key)
        for extra in ("", *wanted.extras):
            open_ += requirements(wanted.name, extra)
    return {distribution for distribution, _ in found}


@pytest.fixture(scope="module")
def alone(built, tmp_path_factory):
    """The commands of an environment that has the wheel and what it requires, and not one package more."""
    folder = tmp_path_factory.mktemp("alone")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in needed_by("cappronet") - {"cappronet"}:
        distribution = importlib.metadata.distribution(name)
        for first in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / first).exists():
                (site / first).symlink_to(distribution.locate_file(first))
    python = folder / "bin" / "python"
    options = ["install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", str(built[0])]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *options], check=True, timeout=120)
    return python.parent


def called(alone, folder, *words):
    return subprocess.run([alone / words[0], *words[1:]], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def workplace(alone, tmp_path_factory):
    """A folder with a run, features, and a file that is no image."""
    folder = tmp_path_factory.mktemp("workplace")
    trained = called(alone, folder, "cappronet", "train", "--run", "run", "--epochs", "2", "--accelerator", "cpu")
    assert trained.returncode == 0, trained.stderr
    assert float(re.search(r"test error ([\d.]+) %", trained.stdout)[1]) < 50
    embedded = called(alone, folder, "cappronet", "embed", "pixels", "--data", "digits", "-o", "digits")
    assert embedded.returncode == 0, embedded.stderr
    (folder / "image.png").write_bytes(b"")
    return folder


@pytest.mark.slow
def test_the_wheel_alone_trains_on_digits(alone, workplace, tmp_path):
    where = called(alone, tmp_path, "python", "-c", "import cappronet; print(cappronet.__file__)")
    assert str(alone.parent) in where.stdout
    missing = called(alone, tmp_path, "python", "-c", "import timm")
    assert "No module named 'timm'" in missing.stderr
    program = ["export", "run", "--format", "torch-export", "--output", str(tmp_path / "model.pt2")]
    for command in (["evaluate", "run"], program, ["list", "recipes", "--all"]):
        done = called(alone, workplace, "cappronet", *command)
        assert done.returncode == 0, done.stderr
    assert "paper/cifar10-resnet110-capsule8" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("train --backbone resnet10t --epochs 1", "vision"),
        ("train --data cifar10 --cache .", "vision"),
        ("compare --epochs 1", "train"),
        ("predict run image.png", "vision"),
        ("explore run", "explore"),
        ("export run", "export"),
        ("embed resnet10t --data digits -o features", "vision"),
        ("probe digits", "sklearn"),
    ],
)
def test_a_command_says_which_extra_it_lacks(alone, workplace, words, extra):
    before = sorted(workplace.rglob("*"))
    done = called(alone, workplace, "cappronet", *words.split())
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert f"pip install 'cappronet[{extra}]'" in done.stderr
    assert sorted(workplace.rglob("*")) == before


def test_extras_are_those_that_the_code_names():
    named = set()
    for path in (ROOT / "src").rglob("*.py"):
        named |= set(re.findall(r'(?<!np\.)require\([^()]*, "(\w+)"\)', path.read_text()))
    declared = set(importlib.metadata.metadata("cappronet").get_all("Provides-Extra"))
    assert named <= declared
    assert declared - named == {"all", "dev"}
    for extra in named:
        assert all(
            extra in requirement.extras for requirement in requirements("cappronet", "all") if requirement.extras
        )


def test_the_public_workflow_calls_what_exists():
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert {"lint", "types", "tests", "docs", "wheel"} <= set(jobs)
    commands = "\n".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake (\w+)", commands)) <= targets
    assert ".ci/run" in commands
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
