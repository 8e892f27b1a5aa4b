"""Metrics against values worked out by hand or by others."""

import pytest
import reference
import torch

from cappronet import CapsuleProjection
from cappronet.training.metrics import calibration_error, capsule_statistics, classification_metrics, predict


def test_errors():
    scores = torch.arange(10.0).flip(0).expand(4, 10)  # class 0 first, then 1, 2, ...
    labels = torch.tensor([0, 4, 5, 0])  # first, fifth, sixth, first
    found = dict(classification_metrics(scores, labels))
    assert found["error"] == 50
    assert found["error_top5"] == 25
    expected = torch.nn.functional.cross_entropy(scores, labels).item()
    assert found["loss"] == pytest.approx(expected)


def test_few_classes_have_no_top_five():
    assert "error_top5" not in dict(classification_metrics(torch.randn(4, 5), torch.zeros(4, dtype=torch.long)))


def test_calibration_error():
    probabilities = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.6, 0.4]])
    labels = torch.tensor([0, 1, 0])  # 80 % sure and half right; 60 % sure and right
    expected = (2 * abs(0.5 - 0.8) + abs(1 - 0.6)) / 3
    assert calibration_error(probabilities.log(), labels) == pytest.approx(expected, abs=1e-6)


def test_capsule_statistics():
    head = CapsuleProjection(6, 2, 2).double()
    with torch.no_grad():
        head.weight.zero_()
        head.weight[0, 0, 0], head.weight[0, 1, 1] = 1, 2  # condition 4
        head.weight[1, 0, 0], head.weight[1, 1, 2] = 1, 2  # shares one direction
    found = dict(capsule_statistics(head))
    assert found == {"condition": pytest.approx(4), "largest_cosine": pytest.approx(1)}
    assert dict(capsule_statistics(torch.nn.Linear(2, 2))) == {}


def test_random_subspaces_lean_on_each_other_as_known():
    head = CapsuleProjection(64, 10, 2)
    head.load_state_dict({"weight": reference.random_weight(10, 2, 64, torch.float32)})
    assert dict(capsule_statistics(head))["largest_cosine"] == pytest.approx(0.19, abs=0.05)


def test_predict_restores_the_mode():
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(3, 2))
    batches = [(torch.ones(2, 3), torch.tensor([0, 1])), (torch.ones(1, 3), torch.tensor([1]))]
    scores, labels = predict(model, batches)
    assert model.training
    assert scores.shape == (3, 2)
    torch.testing.assert_close(scores[0], scores[2])  # batches of other sizes may be summed in another order
    assert labels.tolist() == [0, 1, 1]
