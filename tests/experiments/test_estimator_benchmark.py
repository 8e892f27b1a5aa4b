"""The benchmark of the estimator measures what it says, on data that are what they are said to be."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from cappronet import CapsuleClassifier
from cappronet.data.features import read_features
from experiments.benchmarks import estimator as estimator_benchmark
from experiments.benchmarks.commands import estimator
from experiments.benchmarks.estimator import REFERENCE, digits, from_file, made_features, measure

FEW = {
    "capsule, svd": lambda: CapsuleClassifier(2, solver="svd"),
    REFERENCE: lambda: LogisticRegression(max_iter=10_000),
    "one step": lambda: LogisticRegression(max_iter=1),
    "nothing": DummyClassifier,
}


@pytest.fixture(scope="module")
def small():
    return made_features(400, 100, features=12, classes=3)


def test_all_classifiers_are_there():
    kinds = {type(make()).__name__ for make in estimator_benchmark.classifiers().values()}
    assert kinds == {
        "CapsuleClassifier", "LogisticRegression", "LinearSVC", "LinearDiscriminantAnalysis", "NearestCentroid",
        "QuadraticDiscriminantAnalysis", "KNeighborsClassifier",
    }  # fmt: skip


def test_some_classifiers_can_be_selected():
    assert list(estimator_benchmark.select(["default", "SVC"])) == ["capsule, default", REFERENCE, "LinearSVC"]
    assert "capsule, default" in estimator_benchmark.select([])
    with pytest.raises(ValueError, match=r"no classifier matches forest.*LinearSVC"):
        estimator_benchmark.select(["forest"])


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


@pytest.mark.slow
def test_errors_and_speeds_are_those_of_the_classifiers(small):
    told = []
    measured = measure(FEW, [small] * 3, lambda *progress: told.append(progress))
    assert sorted(name for name, _, _ in told) == sorted([*FEW] * 3)
    for name, make in FEW.items():
        assert measured[name]["error"] == pytest.approx(100 * (1 - make().fit(*small[:2]).score(*small[2:])))
        assert measured[name]["rounds"] == 3
    assert {name: result["converged"] for name, result in measured.items()} == {
        name: name != "one step" for name in FEW
    }  # fmt: skip
    assert measured[REFERENCE]["times_as_fast"] == {"median": 1, "low": 1, "high": 1}


def test_each_round_has_its_own_split():
    folds = list(digits())
    measured = measure({REFERENCE: lambda: KNeighborsClassifier(1)}, folds)
    wrong = sum((KNeighborsClassifier(1).fit(f.x, f.y).predict(f.x_test) != f.y_test).sum() for f in folds)
    assert measured[REFERENCE]["error"] == pytest.approx(100 * wrong / 1797)


def test_the_slow_are_fitted_once_but_never_the_reference(small, monkeypatch):
    monkeypatch.setattr(estimator_benchmark, "SLOW", 0.0)
    measured = measure(FEW, [small] * 3)
    assert {name: result["rounds"] for name, result in measured.items()} == {
        name: 3 if name == REFERENCE else 1 for name in FEW
    }  # fmt: skip


def test_a_classifier_that_refuses_is_shown_as_such(small):
    makers = {REFERENCE: LogisticRegression, "no": lambda: LogisticRegression(C=-1)}
    measured = measure(makers, [small] * 2)
    assert "'C' parameter" in measured["no"]["refused"]
    costs = {"machine": {"threads": 1}, "data": {"made": {"n": 400, "d": 12, "rivals": measured}}}
    assert "| no (refused) |  |" in estimator_benchmark.table(costs).markdown().splitlines()[3]


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
    with pytest.raises(ValueError, match=r"few\.npz.*test part"):
        from_file(read_features(tmp_path / "few.npz"))


@pytest.mark.slow
def test_the_command_prints_and_writes(tmp_path, small, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimator_benchmark, "classifiers", lambda: FEW | {"near": KNeighborsClassifier})
    np.savez("mine.npz", features=small.x, labels=small.y, test_features=small.x_test, test_labels=small.y_test)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator(features=Path("mine.npz"), rounds=2, output=Path("out.json"))
    shown = " ".join(capsys.readouterr().out.split())
    assert "mine.npz, 400" in shown
    costs = json.loads((tmp_path / "out.json").read_text())
    assert list(costs["data"]) == ["digits, 5 folds", "mine.npz"]
    assert costs["data"]["mine.npz"]["rivals"]["near"]["rounds"] == 2
    page = estimator_benchmark.table(costs).markdown().splitlines()
    assert len(page) == 2 + 2 * len(costs["data"]["mine.npz"]["rivals"])
    assert len({line.count("|") for line in page}) == 1
    assert "| one step (did not converge) |" in page[4]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"mine\.npz"):
        estimator(features=tmp_path / "mine.npz", output=tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()
