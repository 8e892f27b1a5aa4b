"""list: every name with a line about it, runs with their results, and no torch."""

import json
import subprocess
import sys

import pytest

from cappronet.cli import app, inventory
from cappronet.data.datasets import DATASETS, VALIDATION
from cappronet.data.files import locked
from cappronet.heads import HEADS
from cappronet.models.backbones import BACKBONES
from cappronet.training.recipe import CHOICES, Recipe
from cappronet.training.run_folder import Run


def listed(*arguments):
    app(["list", *map(str, arguments)], result_action="return_value")


def test_every_head_backbone_and_dataset_has_a_line():
    assert list(inventory.HEAD_LINES) == list(HEADS) == list(CHOICES["head"])
    assert list(inventory.BACKBONE_LINES) == list(BACKBONES)
    assert list(inventory.DATASET_LINES) == list(DATASETS)
    for name, count in VALIDATION.items():
        assert f"validates on {count:,}" in inventory.DATASET_LINES[name]


def test_the_papers_recipes_are_one_line_until_they_are_asked_for(capsys):
    listed()
    shown = capsys.readouterr().out
    assert [kind for kind in ("heads", "backbones", "datasets", "recipes") if f"{kind}\n" not in shown] == []
    assert "cpu/digits" in shown
    assert shown.count("paper/") == 1
    listed("recipes", "--all")
    shown = capsys.readouterr().out
    assert shown.count("paper/") == 54
    assert "resnet110-capsule2" in shown
    listed("heads")
    assert "resnet110" not in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["runs", "."]])
def test_nothing_heavy_is_imported(arguments, tmp_path):
    """Importing torch alone takes seconds."""
    Run(tmp_path / "begun").begin(Recipe())
    code = f"""
import sys
from cappronet.cli import app
app({["list", *arguments]!r}, result_action="return_value")
print(sorted({{"torch", "numpy", "timm", "sklearn", "pandas", "lightning_fabric"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]"
    assert ("begun" in done.stdout) == bool(arguments)


def test_runs_are_shown_with_their_results_and_how_far_they_are(tmp_path):
    finished, stopped, training = (Run(tmp_path / name) for name in ("a", "deep/b", "c"))
    for run in (finished, stopped, training):
        run.begin(Recipe(epochs=4))
    finished.write_json("summary.json", {"data": "digits", "backbone": "resnet8", "head": "linear", "error": 1.234})
    stopped.write_metrics([{"epoch": 1, "step": 9, "error": 12.5}, {"epoch": 2, "step": 18, "error": 8.0}])
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "recipe.toml").write_text("=")
    with locked(training.folder):
        table = inventory.run_table(tmp_path)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["a"] == ("digits", "resnet8", "linear", "finished", "1.23")
    assert rows["deep/b"] == ("digits", "resnet8", "capsule c=4", "not finished, epoch 2/4", "8.00")
    assert rows["c"][3:] == ("in progress, epoch 0/4", "")
    assert "not a TOML file" in rows["damaged"][3]


def test_a_folder_without_runs_and_none_at_all(tmp_path, capsys):
    listed("runs", tmp_path)
    assert f"no runs in {tmp_path}" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        listed("runs", tmp_path / "none")


def test_a_probe_is_among_the_runs(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "probe.json").write_text("{}")
    values = {"data": "mine", "backbone": "features", "head": "linear", "error": 3}
    (tmp_path / "p" / "summary.json").write_text(json.dumps(values))
    assert inventory.run_table(tmp_path).rows == [("p", "mine", "features", "linear", "probe", "3.00")]
