"""`CapsuleClassifier` keeps scikit-learn's contract, and its subspaces are those that the maths says."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_train, parametrize_with_checks

from cappronet import CapsuleClassifier, CapsuleProjection
from cappronet.novelty import boundary_score
from cappronet.probing import descent
from cappronet.probing.closed_form import class_subspace, leading_of_features, lengths_by_bases
from cappronet.probing.descent import Samples, Schedule, Subspaces, descend
from cappronet.probing.subspaces import default_dim, default_schedule

CONTRACT = [
    CapsuleClassifier(),
    CapsuleClassifier(solver="svd"),
    CapsuleClassifier("auto", solver="svd"),
    CapsuleClassifier(1, solver="gradient", center=False, scale="learned"),
    CapsuleClassifier(2, solver="svd", center=True, normalize=False),
    CapsuleClassifier(early_stopping=True),
    CapsuleClassifier(hidden_size=16, normalize=False, early_stopping=True, n_iter_no_change=50),
]


# What classifiers that earlier versions pickled do not have.
OF_THIS_VERSION = (
    *("hidden_size", "dropout", "early_stopping", "validation_fraction", "n_iter_no_change", "tol", "verbose"),
    *("_feature_mean", "_feature_weight", "_calibration"),
)


@parametrize_with_checks(CONTRACT[:1])
def test_scikit_learns_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(CONTRACT[1:])
def test_scikit_learns_contract_with_options(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x[:1400], y[:1400], x[1400:], y[1400:]


def same_subspaces(a, b, tolerance=1e-9):
    """Projection matrices agree; bases need not."""
    return np.allclose(a.mT @ a, b.mT @ b, atol=tolerance)


@pytest.mark.slow
def test_half_the_errors_of_logistic_regression():
    x, y = load_digits(return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    errors = {
        name: 100 * (1 - cross_val_score(model, x / 16, y, cv=folds).mean())
        for name, model in {
            "gradient": CapsuleClassifier(),
            "svd": CapsuleClassifier(12, solver="svd"),
            "linear": LogisticRegression(max_iter=1000),
        }.items()
    }
    assert errors["linear"] > 2.5
    assert errors["gradient"] < 1.4
    assert errors["svd"] < 1.4


def test_closed_form_keeps_the_most_energy_of_each_class(digits):
    x, y, _, _ = digits
    model = CapsuleClassifier(5, solver="svd", normalize=False, intercept=False, center=False).fit(x, y)
    head = CapsuleProjection.from_features(torch.tensor(x), torch.tensor(y), 5)
    assert same_subspaces(model.bases_, head.weight.detach().numpy())
    assert model.scale_ > 0
    np.testing.assert_allclose(model.decision_function(x), head(torch.tensor(x)).detach(), rtol=1e-9)


def test_few_samples_give_the_same_directions_from_either_gram_matrix():
    rows = np.random.default_rng(0).standard_normal((40, 30))
    few, padded = rows[:20], np.vstack([rows[:20], np.zeros((20, 30))])
    for dim in (4, "auto"):
        (e, b), (f, a) = leading_of_features(few, dim, 0.9), leading_of_features(padded, dim, 0.9)
        np.testing.assert_allclose(e, f)
        np.testing.assert_allclose(a, b, atol=1e-10)
        np.testing.assert_allclose(b @ b.T, np.eye(len(b)), atol=1e-12)


def test_auto_keeps_the_energy_and_no_more(digits):
    x, y, _, _ = digits
    model = CapsuleClassifier("auto", solver="svd", energy=0.9, intercept=False, center=False).fit(x, y)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert len(set(model.capsule_dims_)) > 1
    for label, basis, dim in zip(model.classes_, model.bases_, model.capsule_dims_, strict=True):
        rows = unit[y == label]
        kept = ((rows @ basis.T) ** 2).sum(0) / len(rows)
        assert kept[: dim - 1].sum() < 0.9 <= kept[:dim].sum()
        assert not basis[dim:].any()


def test_gradient_starts_from_the_means_of_the_classes(digits):
    x, y, x_test, y_test = digits
    start = CapsuleClassifier(1, epochs=0).fit(x, y)
    centred = x - x.mean(0)
    unit = np.hstack([centred, np.full((len(x), 1), start.intercept_)])
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    for label, basis in zip(start.classes_, start.bases_, strict=True):
        mean = unit[y == label].mean(0)
        np.testing.assert_allclose(np.abs(basis[0] @ mean), np.linalg.norm(mean), rtol=1e-6)
    model = CapsuleClassifier().fit(x, y)
    assert model.score(x_test, y_test) > start.score(x_test, y_test)
    for basis in model.bases_:
        np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "dim"), [((50, 1280, 10), 1), ((200, 1280, 10), 4), ((50_000, 1280, 10), 16), ((18_000, 384, 150), 4)]
)
def test_the_default_dimension_follows_samples_and_room(shape, dim):
    assert default_dim(*shape) == dim


def test_few_samples_are_classified_by_the_means_of_their_classes(digits):
    x, y, x_test, y_test = digits
    rows = np.concatenate([np.flatnonzero(y == label)[:2] for label in range(10)])
    model = CapsuleClassifier().fit(x[rows], y[rows])
    assert list(model.capsule_dims_) == [1] * 10
    closed = CapsuleClassifier(1, solver="svd").fit(x[rows], y[rows])
    assert np.array_equal(model.bases_, closed.bases_)
    assert CapsuleClassifier(solver="gradient").fit(x[rows], y[rows]).score(x_test, y_test) > 0.5


def test_a_large_scale_is_chosen_where_classes_share_almost_everything(monkeypatch):
    monkeypatch.setattr("cappronet.probing.subspaces.MANY_SAMPLES", 4000)
    rng = np.random.default_rng(0)
    y = np.arange(10_000) % 4
    x = rng.standard_normal((10_000, 30)) / np.arange(1, 31)
    own = np.hstack([np.zeros((4, 20)), rng.standard_normal((4, 10))])[y]
    assert CapsuleClassifier().fit(x + 0.02 * own, y).scale_ == 100
    assert CapsuleClassifier().fit(x + 0.2 * own, y).scale_ == 25


def noisy(n, seed):
    """Blobs in 100 dimensions of which three tenths have the label of another class: no one can be sure of any."""
    rng = np.random.default_rng(seed)
    y = rng.integers(4, size=n)
    x = 2 * np.eye(4, 100)[y] + rng.standard_normal((n, 100))
    return x, np.where(rng.random(n) < 0.3, (y + rng.integers(1, 4, size=n)) % 4, y)


def test_probabilities_from_many_samples_suit_samples_that_were_not_trained_on(monkeypatch):
    x, y = noisy(2000, 0)
    monkeypatch.setattr("cappronet.probing.trained.CALIBRATION_STEP", 4)
    settings = {"epochs": 40, "scale": 100.0}
    plain = CapsuleClassifier(**settings).fit(x, y)
    assert plain.scale_ == 100
    monkeypatch.setattr("cappronet.probing.trained.MANY_SAMPLES", 2000)
    calibrated = CapsuleClassifier(**settings).fit(x, y)
    x_test, y_test = noisy(4000, 1)
    losses = [log_loss(y_test, model.predict_proba(x_test)) for model in (plain, calibrated)]
    by_hand = lengths_by_bases(calibrated._features(x_test), calibrated.bases_)
    best = min(log_loss(y_test, softmax(s * by_hand, axis=1)) for s in np.geomspace(0.1, 100, 60))
    assert losses[1] < losses[0] / 2
    assert losses[1] < best + 0.01


def test_a_calibrated_classifier_goes_on_training_with_its_own_scale(monkeypatch):
    x, y = noisy(2000, 0)
    monkeypatch.setattr("cappronet.probing.trained.MANY_SAMPLES", 2000)
    monkeypatch.setattr("cappronet.probing.trained.CALIBRATION_STEP", 4)
    model = CapsuleClassifier(scale=40.0).fit(x, y)
    fitted, trained_with = model.scale_, []
    monkeypatch.setattr(
        "cappronet.probing.trained.descend", lambda model, *_, **__: trained_with.append(model.scale.item())
    )
    model.partial_fit(x[:100], y[:100])
    assert fitted < 30
    assert trained_with == [pytest.approx(40)]
    assert model.scale_ == pytest.approx(fitted)


def test_too_few_held_out_samples_leave_the_scale_of_the_training(digits):
    x, y, _, _ = digits
    assert CapsuleClassifier(early_stopping=True).fit(x, y).scale_ == 25
    assert CapsuleClassifier(early_stopping=True, validation_fraction=0.4).fit(x, y).scale_ != 25


@pytest.mark.parametrize("solver", ["svd", "gradient"])
def test_a_weight_counts_as_copies(solver, digits):
    x, y, x_test, _ = digits
    x, y = x[:100], y[:100]
    weights = np.random.default_rng(0).integers(0, 3, 100)
    weighted = CapsuleClassifier(2, solver=solver).fit(x, y, sample_weight=weights)
    repeated = CapsuleClassifier(2, solver=solver).fit(np.repeat(x, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.predict_proba(x_test), repeated.predict_proba(x_test), atol=1e-6)
    plain = CapsuleClassifier(2, solver=solver).fit(x, y).predict_proba(x_test)
    assert np.abs(weighted.predict_proba(x_test) - plain).max() > 0.01


@pytest.mark.parametrize("solver", ["svd", "gradient"])
def test_class_weights_shift_the_odds(solver, digits):
    x, y, x_test, _ = digits
    plain = CapsuleClassifier(4, solver=solver).fit(x, y).predict_proba(x_test)
    weights = {label: 5.0 if label == 3 else 1.0 for label in range(10)}
    shifted = CapsuleClassifier(4, solver=solver, class_weight=weights).fit(x, y)
    expected = plain * np.where(np.arange(10) == 3, 5.0, 1.0)
    np.testing.assert_allclose(
        shifted.predict_proba(x_test), expected / expected.sum(1, keepdims=True), rtol=1e-4, atol=1e-9
    )
    assert (shifted.predict(x_test) == 3).sum() >= (plain.argmax(1) == 3).sum()


def test_half_precision_is_fitted_in_single(digits):
    x, y, x_test, _ = digits
    half, single = (CapsuleClassifier(epochs=2).fit(x.astype(kind), y) for kind in (np.float16, np.float32))
    assert np.array_equal(half.bases_, single.bases_)
    assert np.array_equal(half.predict(x_test.astype(np.float16)), single.predict(x_test))


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
    model = CapsuleClassifier(solver="svd", intercept=False, center=False, **options)
    whole, parts = clone(model).fit(x, y), clone(model)
    order = np.argsort(y[:700], kind="stable")  # batches with some of the classes only
    for rows in [*np.array_split(order, 7), np.arange(700, 1400)]:
        parts.partial_fit(x[rows], y[rows], classes=range(10))
    assert list(parts.capsule_dims_) == list(whole.capsule_dims_)
    assert same_subspaces(parts.bases_, whole.bases_)
    assert np.log(parts.scale_ / whole.scale_) == pytest.approx(0, abs=np.log(2))


def test_partial_fit_continues_after_fit(digits):
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
    scores = []
    for number in (0, 6):
        name = names[number]
        few = CapsuleClassifier(8, solver=solver).fit(x[y != number], names[y[y != number]])
        others = few.decision_function(x_test)
        model = pickle.loads(pickle.dumps(few)).add_class(x[y == number], name)
        assert list(model.classes_) == sorted(names)
        scores.append(model.score(x_test[y_test == number], names[y_test[y_test == number]]))
        assert model.score(x_test, names[y_test]) > 0.92
        model.remove_class(name)
        assert list(model.classes_) == list(few.classes_)
        assert np.array_equal(model.decision_function(x_test), others)
    assert np.mean(scores) > 0.85


def test_an_added_class_by_svd_is_as_if_it_had_been_there(digits):
    x, y, _, _ = digits
    whole = CapsuleClassifier(8, solver="svd", intercept=False, center=False).fit(x, y)
    model = (
        CapsuleClassifier(8, solver="svd", intercept=False, center=False)
        .fit(x[y != 3], y[y != 3])
        .add_class(x[y == 3], 3)
    )
    assert np.array_equal(model.classes_, whole.classes_)
    assert same_subspaces(model.bases_, whole.bases_)
    parts = CapsuleClassifier(8, solver="svd", intercept=False, center=False)
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
        (lambda: model.add_class(x, 1)): "exists already",
        (lambda: model.add_class(x, "one")): "same type",
        (lambda: model.add_class(x[:, :5], 2)): "64 features",
        (lambda: model.remove_class(7)): "got 7",
        (lambda: model.remove_class(0).remove_class(1)): "at least two",
    }.items():
        with pytest.raises(ValueError, match=message):
            action()


def test_residuals_are_the_sines_of_angles(digits):
    x, y, _, _ = digits
    inside = CapsuleClassifier(2, solver="svd", intercept=False, normalize=False, center=False).fit(x, y)
    basis = inside.bases_[3]
    np.testing.assert_allclose(inside.residual_score(5 * basis), 0, atol=1e-7)
    outside = np.linalg.svd(inside.bases_.reshape(-1, 64))[2][-2:]
    np.testing.assert_allclose(inside.residual_score(outside), 1)
    np.testing.assert_allclose(inside.residual_score(np.zeros((1, 64))), 1)
    mixed = np.cos(0.3) * basis[:1] + np.sin(0.3) * outside[:1]
    assert inside.residual_score(mixed)[0] == pytest.approx(np.sin(0.3))


@pytest.mark.parametrize("solver", ["svd", "gradient"])
def test_the_outlier_score_is_that_of_the_study(solver, digits):
    x, y, x_test, y_test = digits
    x, y, known, unknown = x[y < 5], y[y < 5], x_test[y_test < 5], x_test[y_test >= 5]
    model = CapsuleClassifier(8, solver=solver).fit(x, y)
    unit, tested = (
        np.hstack([part - model.mean_, np.full((len(part), 1), model.intercept_)]) for part in (x, known[:50])
    )
    unit, tested = (torch.tensor(part / np.linalg.norm(part, axis=1, keepdims=True)) for part in (unit, tested))
    expected = boundary_score(torch.tensor(model.bases_), tested, unit.mean(0))
    np.testing.assert_allclose(model.outlier_score(known[:50]), expected, rtol=1e-9)
    scores = np.concatenate([model.outlier_score(known), model.outlier_score(unknown)])
    assert roc_auc_score(np.arange(len(scores)) >= len(known), scores) > 0.93


def test_the_mean_of_the_outlier_score_is_that_of_all_samples(digits):
    x, y, x_test, _ = digits
    whole, parts = CapsuleClassifier(4, solver="svd", center=False), CapsuleClassifier(4, solver="svd", center=False)
    whole.partial_fit(x[:900], y[:900], classes=range(10))
    parts.partial_fit(x[:900], y[:900], classes=range(10))
    before = parts.outlier_score(x_test)
    rest = np.argsort(y[900:]) + 900
    parts.partial_fit(x[rest[:250]], y[rest[:250]]).partial_fit(x[rest[250:]], y[rest[250:]])
    whole.partial_fit(x[900:], y[900:])
    np.testing.assert_allclose(parts.outlier_score(x_test), whole.outlier_score(x_test), rtol=1e-6)
    assert not np.allclose(before, whole.outlier_score(x_test))


def test_without_a_mean_or_another_class_the_outlier_score_is_the_residual(digits):
    x, y, x_test, _ = digits
    model = CapsuleClassifier(4, solver="svd").fit(x, y)
    state = {name: value for name, value in model.__getstate__().items() if name not in OF_THIS_VERSION}
    earlier = CapsuleClassifier.__new__(CapsuleClassifier)
    earlier.__setstate__(state)
    np.testing.assert_array_equal(earlier.outlier_score(x_test), model.residual_score(x_test))
    assert np.array_equal(earlier.predict(x_test), model.predict(x_test))
    assert earlier.get_params() == model.get_params()
    one = CapsuleClassifier(4, solver="svd").fit(x[y == 3], y[y == 3])
    np.testing.assert_array_equal(one.outlier_score(x_test), one.residual_score(x_test))


def test_small_sets_take_few_steps_and_large_ones_few_epochs():
    assert default_schedule(1437, 64, 1437, 10) == (8, 128, 0.02)
    assert default_schedule(1437, 400, 1437, 77) == (27, 256, 0.003)
    assert default_schedule(100, 64, 100, 2) == (150, 100, 0.01)
    assert default_schedule(10_000, 512, 10_000, 10) == (8, 256, 0.01)
    assert default_schedule(50_000, 512, 50_000, 10) == (5, 256, 0.01)


def test_padded_rows_change_no_step():
    chance = torch.Generator().manual_seed(0)
    bases, x = (torch.randn(*shape, generator=chance, dtype=torch.float64) for shape in ((60, 4, 417), (500, 417)))
    samples = Samples(x, torch.arange(500) % 60, torch.ones(500, dtype=torch.float64))
    aligned, plain = Subspaces(bases, 5.0), Subspaces(bases, 5.0, aligned=False)
    assert (aligned.padding, plain.padding) == (15, 0)
    for model in (aligned, plain):
        descend(model, samples, Schedule(2, 100, 0.01), weight_decay=0.1)
    torch.testing.assert_close(aligned.bases, plain.bases)
    assert not aligned.padded[..., 417:].any()
    assert aligned.loss(samples) == pytest.approx(plain.loss(samples))


def test_with_few_samples_steps_are_as_long_for_any_number_of_features():
    rates = {d: default_schedule(200, d, 200, 10).lr for d in (4, 64, 1024)}
    assert rates == {4: 0.01, 64: 0.0075, 1024: 0.001875}  # a step of d numbers is 0.06 long, up to the usual rate


def test_early_stopping_takes_the_subspaces_with_the_lowest_held_out_loss(digits, monkeypatch):
    x, y, x_test, y_test = digits
    losses = []
    measure = descent.Subspaces.loss
    monkeypatch.setattr(descent.Subspaces, "loss", lambda *a: losses.append(measure(*a)) or losses[-1])
    noisy = np.where(np.arange(len(y)) % 4 == 0, np.random.default_rng(0).permutation(y), y)
    model = CapsuleClassifier(epochs=100, early_stopping=True, n_iter_no_change=3).fit(x, noisy)
    assert len(losses) == model.n_iter_ < 100
    assert np.argmin(losses) == model.n_iter_ - 4
    whole = CapsuleClassifier(epochs=100).fit(x, noisy)
    assert whole.n_iter_ == 100
    assert model.score(x_test, y_test) > whole.score(x_test, y_test)


def test_samples_that_cannot_be_held_out_are_all_fitted_to():
    model = CapsuleClassifier(1, solver="gradient", early_stopping=True, epochs=3).fit(np.eye(3), [0, 1, 2])
    assert model.n_iter_ == 3
    assert list(model.predict(np.eye(3))) == [0, 1, 2]


def test_an_interrupted_fit_leaves_a_usable_classifier(digits, monkeypatch):
    x, y, x_test, y_test = digits
    steps = iter(range(30))
    backward = descent.Subspaces.backward

    def interrupted(*arguments):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        backward(*arguments)

    monkeypatch.setattr(descent.Subspaces, "backward", interrupted)
    with pytest.warns(UserWarning, match=r"interrupted after 2 of 8 epochs"):
        model = CapsuleClassifier().fit(x, y)
    assert model.n_iter_ == 2
    assert model.score(x_test, y_test) > 0.8
    for basis in model.bases_:
        np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-12)


def test_a_fit_interrupted_before_its_training_leaves_nothing_of_an_earlier_one(digits, monkeypatch):
    x, y, _, _ = digits
    model = CapsuleClassifier(2, epochs=1).fit(x, y)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("cappronet.probing.trained.first_bases", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y)
    with pytest.raises(NotFittedError):
        model.predict(x)


def test_progress_is_shown_only_if_asked_for(digits, capsys):
    x, y, _, _ = digits
    CapsuleClassifier(2, epochs=2).fit(x, y)
    assert capsys.readouterr() == ("", "")
    CapsuleClassifier(2, epochs=2, verbose=True, early_stopping=True).fit(x, y)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("epoch 1/2")
    assert "held-out loss" in lines[1]


def test_a_hidden_layer_separates_what_subspaces_of_the_features_cannot():
    """Rings around each other: their radii are the classes, and unit features have lost them."""
    rng = np.random.default_rng(0)
    y = np.arange(600) % 2
    directions = rng.standard_normal((600, 2))
    x = (1 + y)[:, None] * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    options = {"normalize": False, "center": False, "epochs": 60, "lr": 0.02}
    plain = CapsuleClassifier(1, intercept=False, **options).fit(x[:400], y[:400])
    hidden = CapsuleClassifier(2, hidden_size=32, dropout=0.0, **options).fit(x[:400], y[:400])
    assert plain.score(x[400:], y[400:]) < 0.8
    assert hidden.score(x[400:], y[400:]) > 0.95
    assert hidden.bases_.shape == (2, 2, 32)
    assert hidden.hidden_weight_.shape == (32, 3)
    assert np.array_equal(pickle.loads(pickle.dumps(hidden)).predict_proba(x), hidden.predict_proba(x))


def test_a_hidden_layer_takes_part_in_everything(digits):
    x, y, x_test, y_test = digits
    model = CapsuleClassifier(4, hidden_size=64).fit(x[y < 9], y[y < 9])
    known, unknown = model.outlier_score(x_test[y_test < 9]), model.outlier_score(x_test[y_test == 9])
    assert unknown.mean() > known.mean()
    model.add_class(x[y == 9], 9)
    assert model.score(x_test, y_test) > 0.85
    before, score = model.hidden_weight_, model.score(x_test, y_test)
    for _ in range(5):
        model.partial_fit(x, y)
    assert not np.array_equal(model.hidden_weight_, before)
    assert model.score(x_test, y_test) > score
    assert model.transform(x_test).shape == (len(x_test), 40)
    again = model.set_params(hidden_size=None).fit(x, y)
    assert again.hidden_weight_ is None
    assert again.bases_.shape[2] == 65


def test_weights_of_samples_do_not_raise_the_precision(digits):
    x, y, _, _ = digits
    rows = x[y == 3].astype(np.float32)
    for some in (rows, rows[:20]):  # from moments and from features
        subspace = class_subspace(some, np.ones(len(some)), 4, 1.0, 5)
        single = leading_of_features(some, 4)
        assert subspace.held_out.dtype == np.float32
        np.testing.assert_allclose(np.abs((subspace.basis * single[1]).sum(1)), 1, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["svd", "gradient"])
def test_the_intercept_halves_the_errors_on_centred_features(solver):
    x, y = load_digits(return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    error, without = (
        1 - cross_val_score(CapsuleClassifier(solver=solver, intercept=i), x - x.mean(0), y, cv=folds).mean()
        for i in (True, False)
    )
    assert error < 0.7 * without
    assert CapsuleClassifier(8, center=False).fit(x + 5, y).intercept_ == 0  # a strong mean of their own


def test_centring_subtracts_the_mean_of_all(digits):
    x, y, x_test, _ = digits
    centred = CapsuleClassifier(4, solver="svd", center=True).fit(x, y)
    by_hand = CapsuleClassifier(4, solver="svd", center=False).fit(x - x.mean(0), y)
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
        ({"scale": 0.0}, "scale"),
        ({"scale": "large"}, "scale"),
        ({"energy": 1.5}, "energy"),
        ({"epochs": -1}, "epochs"),
        ({"lr": -1.0}, "lr"),
        ({"batch_size": 0}, "batch_size"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"random_state": "seven"}, "seven"),
        ({"validation_fraction": 0.7}, "validation_fraction.*0.7"),
        ({"n_iter_no_change": 0}, "n_iter_no_change"),
        ({"tol": -1.0}, "tol"),
        ({"dropout": 1.0}, "dropout"),
        ({"hidden_size": 0}, "hidden_size"),
    ],
)
@pytest.mark.parametrize("solver", ["gradient", "svd"])
def test_parameters_that_make_no_sense_are_refused(options, message, solver, digits):
    with pytest.raises(ValueError, match=message):
        CapsuleClassifier(**{"solver": solver, **options}).fit(digits[0], digits[1])


SIZES = [(dtype, size) for dtype in (np.float32, np.float64) for size in (1e-36, 1e-24, 1e-18, 1e18, 1e35)]


@pytest.mark.parametrize(("dtype", "size"), [*SIZES, (np.float64, 1e-160), (np.float64, 1e200)])
@pytest.mark.parametrize("options", [{}, {"normalize": False}, {"center": True}])
@pytest.mark.parametrize("solver", ["svd", "gradient"])
def test_features_of_any_size_are_fitted_alike(solver, dtype, options, size):
    """Enough samples that second moments are used, in the precision of the features."""
    rng = np.random.default_rng(0)
    y = np.arange(200) % 4
    x = (2 * rng.standard_normal((4, 6))[y] + rng.standard_normal((200, 6))).astype(dtype)
    model = CapsuleClassifier(2, solver=solver, epochs=5, **options)
    huge = size * x.astype(np.float64)
    if not model.normalize and not 1e-140 < size < 1e140:
        with pytest.raises(ValueError, match=r"rescale them, or set normalize=True"):
            model.fit(huge.astype(dtype), y)
        return
    expected = clone(model).fit(x, y).predict_proba(x)
    np.testing.assert_allclose(
        model.fit(huge.astype(dtype), y).predict_proba(huge.astype(dtype)), expected, rtol=0, atol=2e-3
    )


@pytest.mark.parametrize("solver", ["svd", "gradient"])
def test_a_class_without_a_value_is_refused(solver, digits):
    x, y, _, _ = digits
    for labels in (y, y.astype(float)):
        model = CapsuleClassifier(2, solver=solver, epochs=1).fit(x[:200], labels[:200])
        with pytest.raises(ValueError, match="NaN"):
            model.add_class(x[:9], float("nan"))
        assert len(model.classes_) == 10


@pytest.mark.parametrize("options", [{}, {"solver": "svd"}, {"center": True}, {"solver": "svd", "normalize": False}])
def test_what_needs_an_intercept(options):
    """As the docstring says: blobs on opposite sides of the origin lie in the same subspaces."""
    check_classifiers_train("CapsuleClassifier", CapsuleClassifier(**options))
    with pytest.raises(AssertionError):
        check_classifiers_train("CapsuleClassifier", CapsuleClassifier(intercept=False, **options))


def test_lengths_of_many_samples_come_in_batches(digits, monkeypatch):
    x, y, x_test, _ = digits
    model = CapsuleClassifier(4, solver="svd", intercept=False, center=False).fit(x, y)
    unit = x_test / np.linalg.norm(x_test, axis=1, keepdims=True)
    monkeypatch.setattr("cappronet.probing.fitted.BATCH_NUMBERS", 1000)
    np.testing.assert_allclose(model.decision_function(x_test), lengths_by_bases(unit, model.bases_), rtol=1e-12)


@pytest.mark.slow
def test_the_package_loads_without_torch_and_a_missing_sklearn_is_explained():
    code = """
import sys
import cappronet
print("torch" in sys.modules)
sys.modules["sklearn"] = None
try:
    from cappronet import CapsuleClassifier
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lazy, reason = done.stdout.splitlines()
    assert lazy == "False"
    assert "pip install 'cappronet[sklearn]'" in reason
