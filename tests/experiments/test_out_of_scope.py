"""Out-of-distribution inputs on frozen features: the bootstrap counts what it should, and the study measures scores."""

import json

import numpy as np
import pytest
import torch

from cappronet.novelty import auroc, fpr_at_95_tpr
from cappronet.reporting import silent
from experiments.__main__ import app
from experiments.probes.sets import load
from experiments.studies import out_of_scope
from experiments.studies.resampling import drawn_counts, drawn_means, interval, separation

D, L = 20, 4


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Known classes in planes of their own, and inputs of a plane that no class has, under the names of real sets."""
    chance = np.random.default_rng(0)
    directions = np.linalg.qr(chance.standard_normal((D, D)))[0]

    def features(y):
        planes = directions.reshape(-1, 2, D)[y] + 0.02 * chance.standard_normal((len(y), 2, D))
        return np.einsum("nc,ncd->nd", chance.uniform(0.5, 1.5, (len(y), 2)), planes).astype(np.float32)

    y, y_test = np.arange(160) % L, np.arange(120) % L
    parts = {"x_train": features(y), "y_train": y, "x_test": features(y_test), "y_test": y_test}
    np.savez(tmp_path / "clinc150.npz", **parts, x_unknown=features(np.full(50, 7)))
    monkeypatch.setattr(out_of_scope, "BOOTSTRAP", 50)
    monkeypatch.setattr(out_of_scope, "CAPSULE_DIM", 2)
    load.cache_clear()
    return tmp_path


def test_counts_are_those_of_drawing_with_replacement():
    counts = drawn_counts(40, 300, seed=0)
    assert (counts.sum(1) == 40).all()
    assert (counts == 0).float().mean().item() == pytest.approx((1 - 1 / 40) ** 40, abs=0.02)
    assert counts.equal(drawn_counts(40, 300, seed=0))
    assert not counts.equal(drawn_counts(40, 300, seed=1))


def test_a_draw_is_measured_as_if_its_samples_were_repeated():
    torch.manual_seed(0)
    known, unknown = torch.randint(8, (37,)) / 2, torch.randint(3, 12, (23,)) / 2  # many ties
    counts = drawn_counts(37, 20, seed=0), drawn_counts(23, 20, seed=1)
    areas, rates = separation(known, unknown, *counts)
    for i in range(20):
        repeated = [x.repeat_interleave(c[i].long()) for x, c in ((known, counts[0]), (unknown, counts[1]))]
        assert areas[i].item() == pytest.approx(auroc(*repeated), abs=1e-12)
        assert rates[i].item() == pytest.approx(fpr_at_95_tpr(*repeated), abs=1e-12)


def test_intervals_cover_test_samples_and_seeds():
    assert interval(torch.arange(1001.0)) == pytest.approx([25, 975])
    same = drawn_means(torch.full((3, 100), 0.7), seed=0)
    assert same.unique().tolist() == pytest.approx([0.7])
    apart = drawn_means(torch.tensor([[0.0], [1.0], [2.0]]).expand(3, 4000), seed=0)
    assert apart.mean().item() == pytest.approx(1.0, abs=0.05)
    assert apart.var().item() == pytest.approx(2 / 3 / 3, abs=0.03)  # of a mean of three


def test_the_study_measures_every_score_of_both_heads(folder):
    told = []
    results = out_of_scope.run(folder, lambda *progress: told.append(progress))
    assert [done for _, done, _ in told] == list(range(7))
    results = json.loads(json.dumps(results))
    assert list(results["environment"]["data"]) == ["clinc150"]
    (measured,) = results["sets"].values()
    assert (measured["known"], measured["unknown"]) == (120, 50)
    assert all(len(errors) == 3 and max(errors) < 5 for errors in measured["errors"].values())
    rows = {(row["head"], row["score"]): row for row in results["rows"]}
    usual = {"class residual", "max softmax", "gen", "fdbd", "mahalanobis", "vim", "knn"}
    assert {score for head, score in rows if head == "capsule"} == usual | {"residual", "outside", "length energy"}
    assert {score for head, score in rows if head == "linear"} == usual | {"energy"}
    for row in rows.values():
        for measure in ("auroc", "fpr"):
            low, high = row[f"{measure} interval"]
            assert low - 0.02 <= sum(row[measure]) / 3 <= high + 0.02
    assert min(rows["capsule", "residual"]["auroc"]) > 0.95
    best = max(rows.values(), key=lambda row: sum(row["auroc"]))
    assert best["auroc gap"] == [0, 0]
    assert all(row["auroc gap"][0] <= 0.01 for row in rows.values())


def test_the_table_marks_what_is_as_good_as_the_best():
    def row(score, areas, gap):
        rates = {"fpr": [0.5, 0.5], "fpr interval": [0.4, 0.6], "fpr gap": [0.0, 0.0]}
        return {"pair": "a", "head": "linear", "score": score, "auroc": areas, **rates} | {
            "auroc interval": [0.7, 0.8], "auroc gap": gap}  # fmt: skip

    rows = [row("knn", [0.7, 0.8], [-0.1, 0.0]), row("gen", [0.6, 0.7], [-0.2, -0.1])]
    shown = out_of_scope.table({"sets": {"a": {"errors": {"linear": [10.0, 12.0]}}}, "rows": rows})
    assert shown.rows == [
        ("linear", "gen", "65.0 ± 5.0 / 50.0† ± 10.0", "65.0 / 50.0"),
        ("linear", "knn", "75.0† ± 5.0 / 50.0† ± 10.0", "75.0 / 50.0"),
    ]
    assert "a: 11.0 % (linear)" in shown.title


def test_files_that_are_missing_or_lack_a_part_are_named(folder, capsys):
    pairs, missing = out_of_scope.available(folder)
    assert [pair.known for pair in pairs] == ["clinc150"]
    assert missing == ["cifar10-mobilenet_v2.npz", "cifar100-mobilenet_v2.npz"]
    with pytest.raises(FileNotFoundError, match="clinc150, cifar10-mobilenet_v2"):
        out_of_scope.available(folder / "none")
    with np.load(folder / "clinc150.npz") as file:
        parts = {name: file[name] for name in file.files if name != "x_unknown"}
    np.savez(folder / "clinc150.npz", **parts)
    with pytest.raises(ValueError, match=r"clinc150.npz.*x_unknown"):
        out_of_scope.run(folder, silent)
    with pytest.raises(FileNotFoundError, match="--features"):
        app(["out-of-scope", "--features", str(folder / "none")])


def test_the_command_writes_a_result_file(folder, monkeypatch, capsys):
    monkeypatch.setattr(out_of_scope, "SEEDS", (0,))
    app(["out-of-scope", "--features", str(folder), "--output", str(folder / "results")], result_action="return_value")
    out = capsys.readouterr().out
    assert "Skipped" in out
    assert "fdbd" in out
    assert json.loads((folder / "results/out_of_scope.json").read_text())["study"] == "out_of_scope"
