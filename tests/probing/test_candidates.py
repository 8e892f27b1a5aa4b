"""The heads of a probe: each fitted as what it is, and then a module that takes features as they are."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from cappronet import CapsuleClassifier
from cappronet.heads import MLP
from cappronet.probing.candidates import fit, folded, new_head, resolved
from cappronet.probing.settings import Amount, Setting, first_settings

LOGISTIC = Setting("logistic", C=0.1, features="standard")
HIDDEN = Setting("mlp", lr=0.003, weight_decay=0.1, features="standard", width=32, dropout=0.5)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x[:600].astype(np.float32), y[:600]


def tensors(x, y):
    return torch.from_numpy(x), torch.from_numpy(y)


@torch.no_grad()
def probabilities_of(head, x):
    return head(torch.from_numpy(x)).softmax(-1).numpy()


def test_the_first_capsule_setting_is_the_default_classifier(digits):
    x, y = digits
    amount = Amount(len(y), x.shape[1], 10, fewest=400)
    (setting,) = first_settings("capsule", 1, amount)
    classifier = CapsuleClassifier().fit(x, y)
    head = fit(setting, *tensors(x, y), 10)
    assert resolved(setting, head).capsule_dim == classifier.capsule_dims_[0] == 8
    assert resolved(setting, head).scale == classifier.scale_ == 25
    probabilities = probabilities_of(head, x)
    np.testing.assert_allclose(probabilities, classifier.predict_proba(x), atol=2e-5)
    torch.testing.assert_close(folded(head)(torch.from_numpy(x)), head(torch.from_numpy(x)), rtol=1e-5, atol=1e-4)


def test_capsules_of_very_few_samples_have_the_dimensions_that_these_span(digits):
    x, y = digits
    rows = np.concatenate([np.flatnonzero(y == label)[: 1 + label % 3] for label in range(10)])
    setting = Setting("capsule", 4, 0.003, features="centred")
    classifier = CapsuleClassifier(4).fit(x[rows], y[rows])
    assert sorted(set(classifier.capsule_dims_)) == [1, 2, 3]
    head = fit(setting, *tensors(x[rows], y[rows]), 10)
    probabilities = probabilities_of(head, x)
    np.testing.assert_allclose(probabilities, classifier.predict_proba(x), atol=2e-5)
    again = new_head(resolved(setting, head), 64, 10)
    again.load_state_dict(head.state_dict())
    assert again(torch.from_numpy(x)).equal(head(torch.from_numpy(x)))


def test_features_that_do_not_vary_leave_finite_scores():
    x, y = torch.full((12, 3), 7.0), torch.arange(12) % 2
    head = fit(Setting("capsule", 2, 0.01, features="centred"), x, y, 2)
    assert head(x).isfinite().all()


@pytest.mark.parametrize("classes", [2, 10])
def test_logistic_regression_is_that_of_scikit_learn(digits, classes):
    x, y = (part[digits[1] < classes] for part in digits)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000)).fit(x, y)
    head = fit(LOGISTIC, *tensors(x, y), classes)
    assert isinstance(head, nn.Linear)
    probabilities = probabilities_of(head, x)
    np.testing.assert_allclose(probabilities, pipeline.predict_proba(x), atol=2e-3)  # an n or n - 1 in the deviations
    assert np.mean(probabilities.argmax(1) == pipeline.predict(x)) > 0.995


def test_an_mlp_takes_features_as_they_are_and_depends_on_the_seed_alone(digits):
    x, y = tensors(*digits)
    head = fit(HIDDEN, x, y, 10)
    assert isinstance(head, MLP)
    assert (head(x).argmax(-1) == y).double().mean() > 0.95
    torch.rand(3)
    again, other = fit(HIDDEN, x, y, 10), fit(HIDDEN, x, y, 10, seed=1)
    assert again(x).equal(head(x))
    assert not other(x).equal(head(x))
    shifted = fit(HIDDEN, 2 * x + 32, y, 10)
    torch.testing.assert_close(shifted(2 * x + 32), head(x), rtol=1e-2, atol=1e-2)
