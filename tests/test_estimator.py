"""`CapsuleClassifier` keeps scikit-learn's contract, and its subspaces are those that the maths says."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from cappronet import CapsuleClassifier, CapsuleProjection
from cappronet.subspaces import capsule_lengths, leading_directions

CONTRACT = [
    CapsuleClassifier(),
    CapsuleClassifier(solver="svd"),
    CapsuleClassifier("auto", solver="svd"),
    CapsuleClassifier("auto", epochs=20),
    CapsuleClassifier(2, solver="svd", center=True, normalize=False),
]


@parametrize_with_checks(CONTRACT)
def test_scikit_learns_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x[:1400], y[:1400], x[1400:], y[1400:]


def same_subspaces(a, b, tolerance=1e-9):
    """Projection matrices agree; bases need not."""
    return np.allclose(a.mT @ a, b.mT @ b, atol=tolerance)


def test_half_the_errors_of_logistic_regression():
    x, y = load_digits(return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    errors = {
        name: 100 * (1 - cross_val_score(model, x / 16, y, cv=folds).mean())
        for name, model in {
            "gradient": CapsuleClassifier(12),
            "svd": CapsuleClassifier(12, solver="svd"),
            "linear": LogisticRegression(max_iter=1000),
        }.items()
    }
    assert errors["linear"] > 2.5
    assert errors["gradient"] < 1.4
    assert errors["svd"] < 1.4


def test_closed_form_keeps_the_most_energy_of_each_class(digits):
    x, y, _, _ = digits
    model = CapsuleClassifier(5, solver="svd", normalize=False, intercept=False).fit(x, y)
    head = CapsuleProjection.from_features(torch.tensor(x), torch.tensor(y), 5)
    assert same_subspaces(model.bases_, head.weight.detach().numpy())
    assert model.scale_ > 0
    np.testing.assert_allclose(model.decision_function(x), head(torch.tensor(x)).detach(), rtol=1e-9)


def test_few_samples_give_the_same_directions_from_either_gram_matrix():
    rows = np.random.default_rng(0).standard_normal((40, 30))
    few, padded = rows[:20], np.vstack([rows[:20], np.zeros((20, 30))])
    for dim in (4, "auto"):
        (e, b), (f, a) = leading_directions(few, dim, 0.9), leading_directions(padded, dim, 0.9)
        np.testing.assert_allclose(e, f)
        np.testing.assert_allclose(a, b, atol=1e-10)
        np.testing.assert_allclose(b @ b.T, np.eye(len(b)), atol=1e-12)


def test_auto_keeps_the_energy_and_no_more(digits):
    x, y, _, _ = digits
    model = CapsuleClassifier("auto", solver="svd", energy=0.9, intercept=False).fit(x, y)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert len(set(model.capsule_dims_)) > 1
    for label, basis, dim in zip(model.classes_, model.bases_, model.capsule_dims_, strict=True):
        rows = unit[y == label]
        kept = ((rows @ basis.T) ** 2).sum(0) / len(rows)
        assert kept[: dim - 1].sum() < 0.9 <= kept[:dim].sum()
        assert not basis[dim:].any()


def test_gradient_starts_from_the_closed_form_and_keeps_dimensions(digits):
    x, y, x_test, y_test = digits
    start = CapsuleClassifier("auto", solver="svd", energy=0.8).fit(x, y)
    assert same_subspaces(CapsuleClassifier("auto", energy=0.8, epochs=0).fit(x, y).bases_, start.bases_, 1e-5)
    model = CapsuleClassifier("auto", energy=0.8, epochs=20).fit(x, y)
    assert list(model.capsule_dims_) == list(start.capsule_dims_)
    assert model.score(x_test, y_test) > start.score(x_test, y_test)
    for basis, dim in zip(model.bases_, model.capsule_dims_, strict=True):
        np.testing.assert_allclose(basis @ basis.T, np.diag(np.arange(len(basis)) < dim), atol=1e-12)


def test_gradient_is_seeded_and_leaves_the_global_state(digits):
    x, y, _, _ = digits
    before = torch.get_rng_state()
    first, same, other = (CapsuleClassifier(2, epochs=2, random_state=s).fit(x, y).bases_ for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("solver", ["svd", "gradient"])
def test_probabilities_mean_something(solver, digits):
    x, y, x_test, y_test = digits
    model = CapsuleClassifier(12, solver=solver).fit(x, y)
    found = log_loss(y_test, model.predict_proba(x_test))
    lengths = model.decision_function(x_test)
    other = []
    for factor in (0.25, 4):
        scores = factor * model.scale_ * lengths
        exponentials = np.exp(scores - scores.max(1, keepdims=True))
        other.append(log_loss(y_test, exponentials / exponentials.sum(1, keepdims=True)))
    assert found < min(other)
    assert found < log_loss(y_test, LogisticRegression(max_iter=1000).fit(x, y).predict_proba(x_test))


def test_coordinates_have_the_lengths(digits):
    x, y, x_test, _ = digits
    model = CapsuleClassifier("auto", solver="svd", energy=0.9).fit(x, y)
    coordinates = model.transform(x_test)
    assert coordinates.shape == (len(x_test), model.capsule_dims_.sum())
    parts = np.split(coordinates, np.cumsum(model.capsule_dims_)[:-1], axis=1)
    lengths = np.stack([np.linalg.norm(part, axis=1) for part in parts], axis=1)
    np.testing.assert_allclose(lengths, model.decision_function(x_test), rtol=1e-12)
    names = model.get_feature_names_out()
    assert len(names) == coordinates.shape[1]
    assert list(names[:2]) == ["0_0", "0_1"]


@pytest.mark.parametrize("options", [{}, {"capsule_dim": "auto"}, {"normalize": False}])
def test_partial_fits_add_up_to_one_fit(options, digits):
    x, y, _, _ = digits
    model = CapsuleClassifier(solver="svd", intercept=False, **options)
    whole, parts = clone(model).fit(x, y), clone(model)
    order = np.argsort(y[:700], kind="stable")  # batches with some of the classes only
    for rows in [*np.array_split(order, 7), np.arange(700, 1400)]:
        parts.partial_fit(x[rows], y[rows], classes=range(10))
    assert list(parts.capsule_dims_) == list(whole.capsule_dims_)
    assert same_subspaces(parts.bases_, whole.bases_)
    assert np.log(parts.scale_ / whole.scale_) == pytest.approx(0, abs=np.log(2))


def test_partial_fit_after_fit_goes_on_from_what_it_found(digits):
    x, y, x_test, y_test = digits
    model = CapsuleClassifier(8, solver="svd").fit(x[:100], y[:100])
    before = model.score(x_test, y_test)
    model.partial_fit(x[100:], y[100:])
    assert model.score(x_test, y_test) > before + 0.02


def test_partial_fit_by_gradient(digits):
    x, y, x_test, y_test = digits
    model = CapsuleClassifier(6)
    model.partial_fit(x[:60], y[:60], classes=range(10))
    assert model.capsule_dims_.max() <= 6
    before = model.score(x_test, y_test)
    for rows in np.array_split(np.arange(60, 1400), 5):
        model.partial_fit(x[rows], y[rows])
    assert list(model.capsule_dims_) == [6] * 10
    assert model.score(x_test, y_test) > before + 0.02
    with pytest.raises(ValueError, match="fitted by gradient"):
        model.set_params(solver="svd").partial_fit(x, y)


def test_partial_fit_says_what_it_needs(digits):
    x, y, _, _ = digits
    with pytest.raises(ValueError, match=r"classes=\.\.\."):
        CapsuleClassifier().partial_fit(x, y)
    model = CapsuleClassifier(solver="svd")
    with pytest.raises(ValueError, match=r"class np.int64\(9\).*add_class"):
        model.partial_fit(x, y, classes=range(9))
    model.partial_fit(x[y < 9], y[y < 9], classes=range(9))
    with pytest.raises(ValueError, match="add_class and remove_class"):
        model.partial_fit(x, y, classes=range(10))


@pytest.mark.parametrize("solver", ["svd", "gradient"])
def test_a_class_can_be_added_and_removed(solver, digits):
    x, y, x_test, y_test = digits
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    few = CapsuleClassifier(8, solver=solver, epochs=10).fit(x[y != 6], names[y[y != 6]])
    others = few.decision_function(x_test)
    model = pickle.loads(pickle.dumps(few)).add_class(x[y == 6], "six")
    assert list(model.classes_) == sorted(names)
    assert model.score(x_test[y_test == 6], names[y_test[y_test == 6]]) > 0.85
    assert model.score(x_test, names[y_test]) > 0.92
    model.remove_class("six")
    assert list(model.classes_) == list(few.classes_)
    assert np.array_equal(model.decision_function(x_test), others)


def test_an_added_class_by_svd_is_as_if_it_had_been_there(digits):
    x, y, _, _ = digits
    whole = CapsuleClassifier(8, solver="svd", intercept=False).fit(x, y)
    model = CapsuleClassifier(8, solver="svd", intercept=False).fit(x[y != 3], y[y != 3]).add_class(x[y == 3], 3)
    assert np.array_equal(model.classes_, whole.classes_)
    assert same_subspaces(model.bases_, whole.bases_)
    parts = CapsuleClassifier(8, solver="svd", intercept=False)
    parts.partial_fit(x[(y != 3)][:500], y[y != 3][:500], classes=[k for k in range(10) if k != 3])
    parts.add_class(x[y == 3][:50], 3).remove_class(5)
    rest = np.isin(y, [3, 5], invert=True).nonzero()[0]
    rest = rest[rest >= np.flatnonzero(y != 3)[499] + 1]
    parts.partial_fit(x[rest], y[rest]).partial_fit(x[y == 3][50:], y[y == 3][50:])
    assert same_subspaces(parts.bases_, np.delete(whole.bases_, 5, axis=0))


def test_add_and_remove_refuse_what_makes_no_sense(digits):
    x, y, _, _ = digits
    model = CapsuleClassifier(solver="svd").fit(x[y < 2], y[y < 2])
    for action, message in {
        (lambda: model.add_class(x, 1)): "already",
        (lambda: model.add_class(x, "one")): "of their type",
        (lambda: model.add_class(x[:, :5], 2)): "64 features",
        (lambda: model.remove_class(7)): "got 7",
        (lambda: model.remove_class(0).remove_class(1)): "at least two",
    }.items():
        with pytest.raises(ValueError, match=message):
            action()


def test_outliers_lie_outside_all_subspaces(digits):
    x, y, x_test, y_test = digits
    known, unknown = x_test[y_test < 5], x_test[y_test >= 5]
    model = CapsuleClassifier(8, solver="svd").fit(x[y < 5], y[y < 5])
    scores = model.outlier_score(np.vstack([known, unknown]))
    assert roc_auc_score(np.arange(len(scores)) >= len(known), scores) > 0.9
    assert ((scores >= 0) & (scores <= 1)).all()
    inside = CapsuleClassifier(2, solver="svd", intercept=False, normalize=False).fit(x, y)
    basis = inside.bases_[3]
    np.testing.assert_allclose(inside.outlier_score(5 * basis), 0, atol=1e-7)
    outside = np.linalg.svd(inside.bases_.reshape(-1, 64))[2][-2:]
    np.testing.assert_allclose(inside.outlier_score(outside), 1)
    np.testing.assert_allclose(inside.outlier_score(np.zeros((1, 64))), 1)
    mixed = np.cos(0.3) * basis[:1] + np.sin(0.3) * outside[:1]
    assert inside.outlier_score(mixed)[0] == pytest.approx(np.sin(0.3))


@pytest.mark.parametrize("solver", ["svd", "gradient"])
def test_the_intercept_halves_the_errors_on_centred_features(solver):
    x, y = load_digits(return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    error, without = (
        1 - cross_val_score(CapsuleClassifier(solver=solver, intercept=i), x - x.mean(0), y, cv=folds).mean()
        for i in (True, False)
    )
    assert error < 0.7 * without
    assert CapsuleClassifier(8, solver="svd").fit(x + 5, y).intercept_ == 0  # a strong mean of their own


def test_centring_subtracts_the_mean_of_all(digits):
    x, y, x_test, _ = digits
    centred = CapsuleClassifier(4, solver="svd", center=True).fit(x, y)
    by_hand = CapsuleClassifier(4, solver="svd").fit(x - x.mean(0), y)
    np.testing.assert_allclose(centred.mean_, x.mean(0))
    np.testing.assert_allclose(
        centred.predict_proba(x_test), by_hand.predict_proba(x_test - x.mean(0)), rtol=1e-6, atol=1e-12
    )


def test_grid_search_in_a_pipeline_with_labels_as_strings(digits):
    x, y, x_test, y_test = digits
    labels = np.array([f"digit {k}" for k in range(10)])
    search = GridSearchCV(
        make_pipeline(StandardScaler(with_mean=False), CapsuleClassifier(solver="svd")),
        {"capsuleclassifier__capsule_dim": [1, 10], "capsuleclassifier__center": [False, True]},
        cv=3,
    ).fit(x, labels[y].tolist())
    assert search.best_params_["capsuleclassifier__capsule_dim"] == 10
    assert search.score(x_test, labels[y_test]) > 0.9


def test_dimensions_are_limited_by_what_there_is(digits):
    x, y, _, _ = digits
    model = CapsuleClassifier(99, solver="svd", intercept=False).fit(x[:, 26:30], y)
    assert list(model.capsule_dims_) == [3] * 10
    few = CapsuleClassifier(8, solver="svd").fit(x[:20], y[:20])
    assert list(few.capsule_dims_) == list(np.bincount(y[:20]))
    nothing = CapsuleClassifier(3, solver="svd").fit(np.vstack([x[:50], np.zeros((5, 64))]), [*y[:50], *[10] * 5])
    assert np.isfinite(nothing.predict_proba(x)).all()
    assert CapsuleClassifier(3, solver="svd").fit(1e200 * x, y).score(1e200 * x, y) > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capsule_dim": 0}, "capsule_dim"),
        ({"capsule_dim": 2.5}, "capsule_dim"),
        ({"capsule_dim": True}, "capsule_dim"),
        ({"solver": "newton"}, "'gradient' or 'svd', got 'newton'"),
        ({"energy": 1.5}, "energy"),
        ({"epochs": -1}, "epochs"),
        ({"lr": -1.0}, "lr"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(options, message, digits):
    with pytest.raises(ValueError, match=message):
        CapsuleClassifier(**options).fit(digits[0], digits[1])


def test_lengths_of_many_samples_come_in_batches(digits, monkeypatch):
    x, y, x_test, _ = digits
    model = CapsuleClassifier(4, solver="svd", intercept=False).fit(x, y)
    unit = x_test / np.linalg.norm(x_test, axis=1, keepdims=True)
    monkeypatch.setattr("cappronet.estimator.NUMBERS", 1000)
    np.testing.assert_allclose(model.decision_function(x_test), capsule_lengths(unit, model.bases_), rtol=1e-12)


def test_closed_form_needs_no_torch_and_a_missing_sklearn_is_explained():
    code = """
import sys
from cappronet import CapsuleClassifier
CapsuleClassifier(1, solver="svd").fit([[1.0, 0], [0, 1]], [0, 1]).predict([[1.0, 0]])
print("torch" in sys.modules)
for name in [name for name in sys.modules if name.split(".")[0] in ("sklearn", "cappronet")]:
    del sys.modules[name]
sys.modules["sklearn"] = None
try:
    from cappronet import CapsuleClassifier
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "False", "this needs sklearn, which is not installed: pip install 'cappronet[sklearn]'"
    ]  # fmt: skip
