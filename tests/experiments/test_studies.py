"""The studies on digits: they run, reuse trained networks, and measure what they should."""

import json

import numpy as np
import pytest

from cappronet.data.datasets import load_dataset
from cappronet.reporting import silent
from cappronet.training.run_folder import Run
from experiments.studies import frozen, new_classes, unknown

pytestmark = pytest.mark.slow  # networks are trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module")
def added(folder):
    return new_classes.run("digits", folder, silent)


def errors(results, net, method, images, part="all"):
    (row,) = [r for r in results["rows"] if (r["net"], r["method"], r["images"]) == (net, method, images)]
    return sum(row[part]) / len(row[part])


@pytest.mark.slow
def test_new_classes_are_learned_without_training(added, folder):
    added = json.loads(json.dumps(added))
    assert added["recipes"]["capsule"]["classes"] == list(range(8))
    assert added["environment"]["data"] == load_dataset("digits").fingerprint()
    limit = errors(added, "capsule", "retrained on all ten classes", 0)
    assert limit == pytest.approx(Run(folder / "ten-classes").summary["error"], abs=1e-4)
    before = Run(folder / "eight-classes").summary["error"]
    assert added["before"]["capsule"] == pytest.approx(before, abs=1e-9)
    for net in ("capsule", "linear"):
        few, everything = (errors(added, net, "subspaces set, two added", n) for n in (5, 0))
        assert everything < few
        assert everything < errors(added, net, "nearest class mean", 0)
        assert everything < 15
        for part, share in (("new", 71 / 360), ("old", 289 / 360)):
            assert errors(added, net, "subspaces set, two added", 0, part) * share <= everything
    # as the documentation of add_class warns
    plain = errors(added, "capsule", "trained subspaces, two added", 0, "old")
    assert plain > 2 * errors(added, "capsule", "subspaces set, two added", 0, "old")


@pytest.mark.slow
def test_new_classes_table_and_page(added):
    text = new_classes.table(added).markdown()
    lines = text.splitlines()
    assert len(added["rows"]) == 1 + 4 * (8 + 6)
    assert len(lines) == 2 + 1 + 8 + 6
    assert len({line.count("|") for line in lines}) == 1
    assert len(new_classes.table(added).rows) == 1 + 8 + 6
    means = [f"{errors(added, 'linear', 'nearest class mean', n):.2f}" for n in (5, 20, 100, 0)]
    (line,) = [line for line in lines if line.startswith("| linear | nearest class mean |")]
    assert [cell.split()[0] for cell in line.split("|")[3:7]] == means
    drawn = [row for row in added["rows"] if row["images"] == 5]
    assert all(len(row["all"]) == new_classes.QUICK_DRAWS for row in drawn)
    assert "±" in text


def test_other_images_reuse_the_networks(added, folder):
    told = []
    results = json.loads(json.dumps(unknown.run("digits", folder, lambda *progress: told.append(progress))))
    assert all(0 <= done <= total for _, done, total in told)
    assert not [text for text, _, _ in told if "training eight" in text or "training images" in text]
    assert results["errors"]["capsule"] == pytest.approx(added["before"]["capsule"])
    kinds = ["held-out classes", "photo patches", "shuffled pixels", "noise", "gaussian-noise"]
    assert list(results["images"]) == ["known", *kinds]
    assert results["images"]["known"] + results["images"]["held-out classes"] == 360
    rows = {(row["net"], row["score"]): row["kinds"] for row in results["rows"]}
    for net in ("capsule", "linear"):
        held_out, *others = (rows[net, "class residual"][kind][0] for kind in kinds)
        assert held_out > 0.9
        assert min(others) > 0.95
        assert held_out > rows[net, "max softmax"]["held-out classes"][0]
    text = unknown.table(results).markdown()
    assert "residual, angle" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1
    assert len(unknown.table(results).rows) == len(results["rows"])


def test_a_study_does_not_take_over_another_run(added, folder, tmp_path):
    with pytest.raises(FileExistsError, match=r"eight-classes.*another recipe"):
        frozen.trained(frozen.recipe("digits").changed(seed=1), folder / "eight-classes", silent, None)
    data = load_dataset("digits")
    x, y = data.train.pixels[:, 0].numpy(), data.train.labels.numpy() % 3
    np.savez(tmp_path / "three.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(ValueError, match="ten classes"):
        new_classes.run(str(tmp_path / "three.npz"), tmp_path / "runs", silent)
