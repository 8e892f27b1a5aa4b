"""The benchmark of the estimator measures what it says, on data that are what they are said to be."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from cappronet import CapsuleClassifier, estimator_benchmark
from cappronet.commands.measuring import benchmark
from cappronet.estimator_benchmark import REFERENCE, digits, from_file, made_features, measure
from cappronet.feature_files import read_features

FEW = {
    "capsule, svd": lambda: CapsuleClassifier(2, solver="svd"),
    REFERENCE: lambda: LogisticRegression(max_iter=10_000),
    "one step": lambda: LogisticRegression(max_iter=1),
    "nothing": DummyClassifier,
}


@pytest.fixture(scope="module")
def small():
    return made_features(400, 100, features=12, classes=3)


def test_all_rivals_are_there():
    kinds = {type(make()).__name__ for make in estimator_benchmark.rivals().values()}
    assert kinds == {
        "CapsuleClassifier", "LogisticRegression", "LinearSVC", "LinearDiscriminantAnalysis", "NearestCentroid",
        "QuadraticDiscriminantAnalysis", "KNeighborsClassifier",
    }  # fmt: skip


def test_digits_are_tested_once_each():
    folds = list(digits())
    assert [len(fold.y) + len(fold.y_test) for fold in folds] == [1797] * 5
    assert sum(len(fold.y_test) for fold in folds) == 1797
    tested, whole = np.vstack([f.x_test for f in folds]), np.vstack([folds[0].x, folds[0].x_test])
    assert np.array_equal(tested[np.lexsort(tested.T)], whole[np.lexsort(whole.T)])


def test_made_features_are_as_described(small):
    assert small.x.shape == (400, 12)
    assert small.x_test.shape == (100, 12)
    assert small.x.dtype == np.float32
    assert small.x.min() == 0
    assert set(small.y) == {0, 1, 2}
    assert np.mean(np.concatenate([small.x, small.x_test]) ** 2) == pytest.approx(1, rel=1e-5)
    again = made_features(400, 100, features=12, classes=3)
    assert np.array_equal(again.x_test, small.x_test)
    x, y, _, _ = made_features(4000, 0, features=60)
    variances = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    assert variances[0] > 5 * variances[7] > 25 * variances[50]
    means = np.stack([x[y == k].mean(0) for k in range(10)])
    by_chance = variances.sum() / 400  # the mean square distance of the mean of 400 samples
    assert (((means - means.mean(0)) ** 2).sum(1) > 3 * by_chance).all()


def test_errors_and_times_are_those_of_the_rivals(small):
    seen = []
    found = measure(FEW, [small] * 3, lambda name, number: seen.append((number, name)))
    assert sorted(seen) == sorted((number, name) for number in range(3) for name in FEW)
    assert [name for _, name in seen[:4]] != [name for _, name in seen[4:8]]
    for name, make in FEW.items():
        assert found[name]["error"] == pytest.approx(100 * (1 - make().fit(*small[:2]).score(*small[2:])))
        assert 0 < found[name]["fit_seconds"]["low"] <= found[name]["fit_seconds"]["high"]
        assert found[name]["rounds"] == 3
    assert {name: result["converged"] for name, result in found.items()} == {
        name: name != "one step" for name in FEW
    }  # fmt: skip
    assert found[REFERENCE]["times_as_fast"] == {"median": 1, "low": 1, "high": 1}


def test_the_slow_are_fitted_once_but_never_the_reference(small, monkeypatch):
    monkeypatch.setattr(estimator_benchmark, "SLOW", 0.0)
    found = measure(FEW, [small] * 3)
    assert {name: result["rounds"] for name, result in found.items()} == {
        name: 3 if name == REFERENCE else 1 for name in FEW
    }  # fmt: skip


def test_a_rival_that_refuses_is_shown_as_such(small):
    makers = {REFERENCE: LogisticRegression, "no": lambda: LogisticRegression(C=-1)}
    found = measure(makers, [small] * 2)
    assert "'C' parameter" in found["no"]["refused"]
    costs = {"data": {"made": {"n": 400, "d": 12, "rivals": found}}}
    assert "| no (refused) |  |" in estimator_benchmark.markdown(costs).splitlines()[3]


def test_a_file_with_and_without_a_test_part(tmp_path, small):
    np.savez(
        tmp_path / "both.npz", features=small.x, labels=small.y, test_features=small.x_test, test_labels=small.y_test
    )
    np.savez(tmp_path / "one.npz", features=small.x, labels=small.y)
    both, one = (from_file(read_features(tmp_path / f"{name}.npz")) for name in ("both", "one"))
    assert np.array_equal(both.x_test, small.x_test)
    assert len(one.y_test) == 80
    assert len(one.y) == 320
    assert np.bincount(one.y_test) == pytest.approx(np.bincount(small.y) / 5, abs=1)
    np.savez(tmp_path / "few.npz", features=small.x[:4], labels=np.arange(4) % 3)
    with pytest.raises(ValueError, match=r"few\.npz has too few samples"):
        from_file(read_features(tmp_path / "few.npz"))


def test_the_command_prints_and_writes(tmp_path, small, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimator_benchmark, "rivals", lambda: FEW | {"near": KNeighborsClassifier})
    np.savez("mine.npz", features=small.x, labels=small.y, test_features=small.x_test, test_labels=small.y_test)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        benchmark("estimator", features=Path("mine.npz"), rounds=2, output=Path("out.json"))
    shown = " ".join(capsys.readouterr().out.split())
    assert "mine.npz: 400 x 12, 3 classes" in shown
    costs = json.loads((tmp_path / "out.json").read_text())
    assert list(costs["data"]) == ["digits, 5 folds", "mine.npz"]
    assert costs["data"]["mine.npz"]["rivals"]["near"]["rounds"] == 2
    page = estimator_benchmark.markdown(costs).splitlines()
    assert len(page) == 2 + 2 * len(costs["data"]["mine.npz"]["rivals"])
    assert len({line.count("|") for line in page}) == 1
    assert "| one step (did not converge) |" in page[4]


def test_features_belong_to_the_estimator(tmp_path):
    with pytest.raises(ValueError, match="--features is for benchmark estimator"):
        benchmark("training", features=tmp_path / "mine.npz", output=tmp_path / "out.json")
    with pytest.raises(FileNotFoundError, match=r"no feature file .*mine\.npz"):
        benchmark("estimator", features=tmp_path / "mine.npz", output=tmp_path / "out.json")
