"""What `import cappronet` costs, and that the import contract covers the package."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import cappronet

PACKAGE = Path(cappronet.__file__).parent


def test_the_contract_orders_every_entry_of_the_package():
    """`lint-imports` (make style) checks the imports; this, that nothing of the package is left out of its order."""
    contracts = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    ordered = {name for layer in contracts[0]["layers"] for name in layer.split(" | ")}
    entries = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert ordered == entries - {"__init__"}


def test_importing_the_package_brings_in_torch_and_nothing_else_heavy():
    code = """
import sys, torch
before = set(sys.modules)
import cappronet
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(sorted(new))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['cappronet']"


@pytest.mark.slow
def test_the_layer_needs_torch_and_nothing_else():
    code = """
import sys, torch
before = set(sys.modules)
from cappronet import CapsuleProjection, replace_head
CapsuleProjection(8, 4, 2)(torch.randn(3, 8)).sum().backward()
replace_head(torch.nn.Sequential(torch.nn.Linear(8, 4)), 2)(torch.randn(3, 8)).sum().backward()
print(sorted({name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names) - {"torch"}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['cappronet']"


def test_help_does_not_import_torch():
    code = "import sys; from cappronet.cli import app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.slow
def test_training_imports_nothing_that_it_does_not_use():
    """Lightning Fabric would import torchmetrics, and with it torchvision and transformers."""
    code = """
import sys
from cappronet.training.hardware import Hardware
Hardware(accelerator="cpu").fabric("32-true")
print([name for name in ("torchmetrics", "torchvision", "transformers", "timm") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names():
    assert all(hasattr(cappronet, name) for name in cappronet.__all__)
    assert set(cappronet.__all__) == {
        "CapProNet",
        "CapsuleClassifier",
        "CapsuleProjection",
        "GroupedNeurons",
        "capsule_lengths",
        "compare",
        "probe",
        "replace_head",
        "train",
    }
