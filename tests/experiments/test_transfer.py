"""Transfer: finished networks are found, their frozen features classified, and heads compared."""

import pytest

from cappronet.reporting import silent
from cappronet.training.loop import train
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run
from experiments.reproduction.entries import read_entries
from experiments.studies import parts, transfer
from experiments.studies.commands import transfer as command
from experiments.studies.transfer import Network, measure, networks, run, table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Networks on digits whose features are the pixels, whatever the training."""
    folder = tmp_path_factory.mktemp("transfer")
    recipe = Recipe(data="digits", train_size=100, backbone="pixels", head="linear", epochs=1)
    for seed in (0, 1):
        train(recipe.changed(seed=seed), Run(folder / f"linear-seed{seed}"))
    return folder


def network(folder, head="linear", seed=0):
    return Network("end-to-end", head, seed, folder / f"linear-seed{seed}", "digits")


def test_frozen_features_are_classified_from_few_and_all_images(folder):
    rows = {(row["classifier"], row["images"]): row for row in measure(network(folder), silent)}
    assert rows.keys() == {(name, images) for name in ("logistic regression", "1-NN") for images in ("20", "all")}
    for name in ("logistic regression", "1-NN"):
        few, everything = rows[name, "20"]["errors"], rows[name, "all"]["errors"]
        assert (len(few), len(everything)) == (5, 1)
        assert len(set(few)) > 1
        assert everything[0] < sum(few) / 5 < 25
    assert rows["1-NN", "all"]["errors"][0] < 5
    assert rows["logistic regression", "all"]["penalty"] in transfer.PENALTIES
    assert "penalty" not in rows["1-NN", "all"]


def test_networks_are_measured_once_and_compared_with_the_linear_head(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "DRAWS", {"20": 1})
    monkeypatch.setattr(parts, "run_jobs", lambda jobs, work, *rest: [work(job, silent) for job in jobs])
    measured = [network(folder, "linear", 0), network(folder, "linear", 1)]
    path = tmp_path / "transfer.json"
    content = run(measured, tmp_path / "parts", path, jobs=1, report=silent)
    assert run(measured, tmp_path / "parts", path, jobs=1, report=silent) == content
    for part in content["parts"]:  # as if another head made five points fewer
        rows = [{**row, "head": "capsule", "errors": [e - 5 for e in row["errors"]]} for row in part["rows"]]
        part["rows"] += rows
    shown = table(content, "end-to-end")
    assert shown.headings[2:] == ("logistic regression, 20", "1-NN, 20")
    assert [row[:2] for row in shown.rows] == [(head, "2") for head in ("linear", "capsule")]
    assert not table(content, "superclasses").rows
    linear, capsule = (row[2:] for row in shown.rows)
    assert all(" ± " in cell and "(" not in cell for cell in linear)
    for cell, of_linear in zip(capsule, linear, strict=True):
        mean = float(of_linear.split()[0])
        assert cell == f"{mean - 5:.2f} (-5.00 ± 0.00)"


def test_other_weights_are_another_part(folder):
    first, second = (network(folder, seed=seed).part for seed in (0, 1))
    assert first.identity["model"] != second.identity["model"]
    assert first.name != second.name


def test_finished_networks_of_both_tables_are_found(tmp_path):
    for name, head in (("end-to-end", "linear"), ("superclasses", "cosine, scale 25")):
        (entry,) = (entry for entry in read_entries(name, "cpu") if entry.label == head)
        run_dir = entry.run(tmp_path, 1).folder
        run_dir.mkdir(parents=True)
        (run_dir / "summary.json").write_text("{}")
    finished, missing = networks(tmp_path, {"cifar10": "/there/cifar10.npz"})
    assert [(n.trained_on, n.head, n.seed, n.target) for n in finished] == [
        ("end-to-end", "linear", 1, "/there/cifar10.npz"),
        ("superclasses", "cosine, scale 25", 1, "cifar100"),
    ]
    assert len(missing) == 3 * (9 + 4) - 2


def test_without_networks_the_command_says_what_to_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="run end-to-end and superclasses first"):
        command(folder=tmp_path, output=tmp_path)
