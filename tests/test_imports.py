"""The layout is the architecture: what may import what, and what `import cappronet` costs."""

import ast
import subprocess
import sys
from pathlib import Path

import cappronet

PACKAGE = Path(cappronet.__file__).parent
# Each module may import those before it.
ORDER = [
    "extras",
    "grid",
    "projection",
    "control_heads",
    "optimizers",
    "heads",
    "fitting",
    "subspaces",
    "estimator",
    "replacement",
    "novelty",
    "benchmark",
    "recipe",
    "backbones",
    "image_files",
    "feature_files",
    "datasets",
    "batches",
    "model_card",
    "pretrained",
    "model",
    "export",
    "ingredients",
    "distributed",
    "runs",
    "embedding",
    "evaluation",
    "probe_heads",
    "probe",
    "probe_folder",
    "training",
    "step_benchmark",
    "estimator_benchmark",
    "results",
    "figures",
    "explorer",
    "comparison",
    "reproduction",
    "overhead",
    "prediction",
    "studies",
    "display",
    "commands",
    "cli",
]


def imported(path):
    """Modules of this package that a file imports, at its top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "cappronet":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found


def test_imports_go_one_way():
    names = {path.parent.stem if path.stem == "__init__" else path.stem for path in PACKAGE.glob("*/__init__.py")}
    names |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert names == set(ORDER)
    for i, name in enumerate(ORDER):
        files = [PACKAGE / f"{name}.py"] if (PACKAGE / f"{name}.py").is_file() else (PACKAGE / name).glob("*.py")
        for file in files:
            assert imported(file) - {name} <= set(ORDER[:i]), file


def test_backbones_and_heads_do_not_know_each_other():
    assert all("heads" not in imported(file) for file in (PACKAGE / "backbones").glob("*.py"))
    assert "backbones" not in imported(PACKAGE / "heads.py")


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


def test_help_does_not_import_torch():
    code = "import sys; from cappronet.cli import app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_public_names():
    assert all(hasattr(cappronet, name) for name in cappronet.__all__)
    assert set(cappronet.__all__) == {
        "CapProNet",
        "CapsuleClassifier",
        "CapsuleProjection",
        "GroupedNeurons",
        "capsule_lengths",
        "replace_head",
    }
