"""Scores of unknown inputs: what they compute, how they are measured, and that they find what they should."""

import itertools

import pytest
import reference
import torch
from torch import nn

from cappronet import CapsuleProjection, novelty
from cappronet.data.datasets import load_dataset
from cappronet.novelty import SCORES, auroc, fit_scores, fpr_at_95_tpr, separations
from cappronet.probing.fitting import fit_head


@pytest.fixture(scope="module")
def digits():
    """Features (the pixels) and classes of digits 0 to 7, test images of them, and images of 8 and 9."""
    data = load_dataset("digits")
    x, y = data.train.pixels.flatten(1) / 255.0, data.train.labels
    x_test, y_test = data.test.pixels.flatten(1) / 255.0, data.test.labels
    return x[y < 8], y[y < 8], x_test[y_test < 8], x_test[y_test >= 8]


@pytest.mark.parametrize("seed", range(5))
def test_auroc_and_fpr_count_pairs(seed):
    from sklearn.metrics import roc_auc_score, roc_curve

    torch.manual_seed(seed)
    known, unknown = torch.randint(8, (37,)) / 2, torch.randint(3, 12, (23,)) / 2  # many ties
    pairs = list(itertools.product(known.tolist(), unknown.tolist()))
    assert auroc(known, unknown) == sum((b > a) + (a == b) / 2 for a, b in pairs) / len(pairs)
    labels, scores = torch.cat([torch.zeros(37), torch.ones(23)]), torch.cat([known, unknown])
    assert auroc(known, unknown) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    thresholds = sorted(set(known.tolist()))
    lowest = next(t for t in thresholds if sum(k <= t for k in known.tolist()) >= 0.95 * 37)
    assert fpr_at_95_tpr(known, unknown) == sum(u <= lowest for u in unknown.tolist()) / 23
    passed_unknown, passed_known, _ = roc_curve(labels == 0, -scores, drop_intermediate=False)
    assert fpr_at_95_tpr(known, unknown) == pytest.approx(passed_unknown[passed_known >= 0.95].min(), abs=1e-12)


def test_exactly_95_percent_is_enough():
    known = torch.arange(20.0)  # 19 of 20 are 95 %
    assert fpr_at_95_tpr(known, torch.tensor([18.0, 18.5, 19.0, 20.0])) == 0.25
    assert auroc(torch.zeros(3), torch.zeros(4)) == 0.5
    assert auroc(torch.zeros(3), torch.ones(4)) == 1.0


@pytest.mark.parametrize("bad", [torch.empty(0), torch.tensor([0.1, torch.nan]), torch.zeros(2, 2)])
def test_scores_that_can_not_be_compared_are_refused(bad):
    for measure in (auroc, fpr_at_95_tpr):
        with pytest.raises(ValueError, match="known inputs must be"):
            measure(bad, torch.zeros(3))
        with pytest.raises(ValueError, match="unknown inputs must be"):
            measure(torch.zeros(3), bad)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_residual_is_what_the_nearest_subspace_lacks(normalize):
    head, x = CapsuleProjection(16, 5, 3, normalize=normalize, scale=7.0).double(), reference.random_features(1500, 16)
    capsules = reference.capsules(x, head.weight.detach())
    shares = (x.unsqueeze(1) - capsules).norm(dim=-1) / x.norm(dim=-1, keepdim=True)
    expected = shares.amin(-1)
    torch.testing.assert_close(novelty.residual(head, x), expected)
    cosines = capsules.norm(dim=-1).amax(-1) / x.norm(dim=-1)
    torch.testing.assert_close(novelty.angle(head, x), cosines.acos().rad2deg())
    torch.testing.assert_close(novelty.residual(head, 1e-3 * x), expected)  # a ratio
    assert novelty.residual(head, torch.zeros(1, 16)) == 1
    inside = capsules[:, 2].float()
    assert novelty.residual(head, inside).max() < 1e-6


def test_outside_is_what_all_subspaces_lack():
    head, x = CapsuleProjection(16, 3, 2).double(), reference.random_features(20, 16)
    basis = torch.linalg.qr(head.weight.detach().flatten(0, 1).mT).Q
    expected = (x - x @ basis @ basis.mT).norm(dim=-1) / x.norm(dim=-1)
    torch.testing.assert_close(novelty.outside(head, x), expected)
    whole = CapsuleProjection(16, 8, 2)
    assert novelty.outside(whole, x).max() < 1e-3
    y = torch.arange(20) % 3
    assert "outside" in fit_scores(head, x, y)
    assert "outside" not in fit_scores(whole, x, y)


def test_energy_and_softmax_are_those_of_the_scores():
    linear, x, y = nn.Linear(16, 5).double(), reference.random_features(30, 16), torch.arange(30) % 5
    capsule = CapsuleProjection(16, 5, 3, scale=9.0).double()
    for head, name in ((linear, "energy"), (capsule, "length energy")):
        scores, logits = fit_scores(head, x, y), head(x).detach()
        torch.testing.assert_close(scores[name](x), -logits.exp().sum(-1).log())
        torch.testing.assert_close(scores["max softmax"](x), 1 - logits.softmax(-1).amax(-1))
    sharp = fit_scores(CapsuleProjection(16, 5, 3, scale=500.0), x, y)["max softmax"](x)
    assert len(sharp.unique()) == 30  # 1 - p would be 0 for many


@pytest.mark.parametrize("classes", [5, 120])
def test_gen_sums_over_the_hundred_largest_probabilities(classes):
    head, x = nn.Linear(16, classes).double(), 9 * reference.random_features(1100, 16)
    with torch.no_grad():
        p = head(x).softmax(-1).sort(descending=True).values[:, :100]
    scores = fit_scores(head, x, torch.arange(1100) % classes)["gen"](x)
    torch.testing.assert_close(scores, (p * (1 - p)).pow(0.1).sum(-1))
    # 1 - p would be 0 for the sharpest, and their order lost
    sharp = nn.Linear(1, 2).double()
    with torch.no_grad():
        sharp.weight.copy_(torch.tensor([[1.0], [0.0]]))
        sharp.bias.zero_()
    margins = torch.tensor([[50.0], [60.0], [70.0]]).double()
    expected = 2 * (-0.2 * margins.squeeze()).mul(0.5).exp()  # both terms are (e^-m)^0.1
    torch.testing.assert_close(fit_scores(sharp, x[:3, :1], torch.arange(3) % 2)["gen"](margins), expected)


def test_fdbd_is_the_mean_distance_to_decision_boundaries_over_that_from_the_mean():
    head, x = nn.Linear(6, 4).double(), reference.random_features(1100, 6)
    weight, bias = head.weight.detach(), head.bias.detach()
    scores = fit_scores(head, x, torch.arange(1100) % 4)["fdbd"](x)
    for i in (0, 7, 1099):
        logits = weight @ x[i] + bias
        k = int(logits.argmax())
        distances = []
        for other in set(range(4)) - {k}:
            normal = weight[k] - weight[other]
            foot = x[i] - (logits[k] - logits[other]) / normal.norm() ** 2 * normal  # where both classes score the same
            assert (weight[k] - weight[other]) @ foot + bias[k] - bias[other] == pytest.approx(0, abs=1e-12)
            distances.append((x[i] - foot).norm().item())
        expected = sum(distances) / 3 / (x[i] - x.mean(0)).norm().item()
        assert scores[i].item() == pytest.approx(-expected, rel=1e-12)


@pytest.mark.parametrize("normalize", [False, True])
def test_fdbd_of_capsules_divides_margins_by_their_gradients(normalize):
    head = CapsuleProjection(9, 4, 2, normalize=normalize, scale=25.0).double()
    plain = CapsuleProjection(9, 4, 2).double()
    plain.load_state_dict({"weight": head.weight})
    x = reference.random_features(30, 9)
    points = nn.functional.normalize(x) if normalize else x
    scores = fit_scores(head, x, torch.arange(30) % 4)["fdbd"](x)
    for i in (0, 11, 29):
        gradients = torch.func.jacrev(plain)(points[i])
        lengths = plain(points[i]).detach()
        k = int(lengths.argmax())
        distances = [(lengths[k] - lengths[j]) / (gradients[k] - gradients[j]).norm() for j in set(range(4)) - {k}]
        expected = sum(distances) / 3 / (points[i] - points.mean(0)).norm()
        torch.testing.assert_close(scores[i], -expected.detach())


def test_the_boundary_score_takes_subspaces_of_different_dimensions():
    basis = torch.linalg.qr(reference.random_features(9, 9)).Q[:6].view(3, 2, 9)
    ragged = torch.cat([basis, torch.zeros(3, 1, 9)], dim=1)
    x, mean = reference.random_features(30, 9), torch.ones(9).double()
    torch.testing.assert_close(novelty.boundary_score(ragged, x, mean), novelty.boundary_score(basis, x, mean))
    # half way between two subspaces there is no distance to one boundary, and the third is as far as it is
    between = basis[0, 0] + basis[1, 0]
    expected = -(1.0 / 2**0.5) / 2 / (between - mean).norm()
    torch.testing.assert_close(novelty.boundary_score(basis, between[None], mean)[0], expected)
    assert (novelty.boundary_score(basis[:1], x, mean) == 0).all()


def test_fdbd_is_for_heads_whose_boundaries_are_known():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            return self.linear(x).relu()

    assert set(SCORES) - set(fit_scores(Other(), torch.randn(30, 6), torch.arange(30) % 3)) == {
        "residual", "outside", "length energy", "fdbd",
    }  # fmt: skip


@pytest.mark.parametrize("make", [nn.Linear, CapsuleProjection])
def test_one_class_and_inputs_of_zeros_have_finite_scores(make):
    scores = fit_scores(make(6, 1), torch.randn(30, 6), torch.zeros(30, dtype=torch.int64))
    for name, score in scores.items():
        assert score(torch.zeros(2, 6)).isfinite().all(), name


def test_mahalanobis_is_the_distance_to_the_nearest_mean():
    x, y = reference.random_features(200, 6), torch.arange(200) % 4
    x[:, 5] = 2.0  # does not vary
    z = reference.random_features(11, 6)
    means = torch.stack([x[y == k].mean(0) for k in range(4)])
    covariance = sum((x[y == k] - means[k]).mT @ (x[y == k] - means[k]) for k in range(4)) / 200
    precision = torch.linalg.pinv(covariance)
    gaps = z.unsqueeze(1) - means
    expected = torch.einsum("nkd,de,nke->nk", gaps, precision, gaps).amin(-1)
    torch.testing.assert_close(fit_scores(nn.Linear(6, 4), x, y)["mahalanobis"](z), expected)


def test_vim_is_the_energy_with_one_more_logit():
    head, x, y = nn.Linear(6, 3).double(), reference.random_features(200, 6), torch.arange(200) % 3
    z = reference.random_features(11, 6)
    origin = -torch.linalg.pinv(head.weight.detach()) @ head.bias.detach()
    assert head(origin).abs().max() < 1e-12
    _, _, directions = torch.linalg.svd(x - origin)
    null = directions[3:].mT
    with torch.no_grad():
        alpha = head(x).amax(-1).mean() / ((x - origin) @ null).norm(dim=-1).mean()
        virtual = alpha * ((z - origin) @ null).norm(dim=-1)
        probability = torch.cat([head(z), virtual.unsqueeze(1)], dim=1).softmax(-1)[:, -1]
    order = fit_scores(head, x, y)["vim"](z).argsort()
    assert order.equal(probability.argsort())


def test_knn_is_the_distance_to_the_fiftieth_neighbour():
    x, y, z = torch.randn(2100, 6), torch.arange(2100) % 4, torch.randn(1100, 6)
    unit = nn.functional.normalize
    expected = torch.cdist(unit(z), unit(x)).kthvalue(50, dim=-1).values.double()
    torch.testing.assert_close(fit_scores(nn.Linear(6, 4), x, y)["knn"](z), expected, rtol=1e-4, atol=1e-5)
    for few, k in ((8, 1), (80, 2), (160, 4)):  # at most a tenth of the samples of a class
        scores = fit_scores(nn.Linear(6, 4), x[:few], y[:few])["knn"](z)
        expected = torch.cdist(unit(z), unit(x[:few])).kthvalue(k, dim=-1).values.double()
        torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


def test_class_residual_sets_subspaces_for_any_head():
    x, y = torch.randn(200, 12), torch.arange(200) % 4 * 2  # classes 1, 3, 5 have no image
    scores = fit_scores(nn.Linear(12, 7), x, y)["class residual"](x)
    unit = nn.functional.normalize(x)
    capsule = fit_scores(CapsuleProjection(12, 7, 3), x, y)["class residual"](x)
    for found, size in ((scores, 4), (capsule, 3)):
        spaces = [torch.linalg.svd(unit[y == k]).Vh[:size] for k in (0, 2, 4, 6)]
        expected = torch.stack([(unit - unit @ b.mT @ b).norm(dim=-1) for b in spaces]).amin(0)
        torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=1e-4)


def test_each_score_tells_other_digits_and_noise_from_known_ones(digits):
    x, y, known, unknown = digits
    generator = torch.Generator().manual_seed(0)
    kinds = {"other digits": unknown, "noise": torch.rand(500, 64, generator=generator)}
    capsule = CapsuleProjection.from_features(x, y, 8, normalize=True, scale=16.0)
    linear = fit_head(nn.Linear(64, 8), x, y, epochs=30)
    for head in (capsule, linear):
        scores = fit_scores(head, x, y)
        lacking = {"energy"} if head is capsule else {"residual", "outside", "length energy"}
        assert set(scores) == set(SCORES) - lacking
        found = separations(scores, known, kinds)
        for name, pairs in found.items():
            for kind, (area, passed) in pairs.items():
                assert 0 <= passed <= 1
                # The subspaces together span all but the pixels that no digit has ink in: outside is rounding alone.
                if (name, kind) != ("outside", "other digits"):
                    assert area > 0.6, (name, kind, area)
        assert found["class residual"]["noise"] == (1.0, 0.0)
        assert found["class residual"]["other digits"][0] > 0.93
    residuals = separations({"residual": fit_scores(capsule, x, y)["residual"]}, known, kinds)["residual"]
    assert residuals["noise"] == (1.0, 0.0)
    assert residuals["other digits"][0] > 0.97


def test_the_head_stays_as_it_was():
    head, x = CapsuleProjection(16, 5, 3, solver="hyperpower"), torch.randn(30, 16)
    for score in fit_scores(head, x, torch.arange(30) % 5).values():
        assert score(x).dtype == torch.float64
        assert not score(x).requires_grad
    assert head.training
    assert not head.sigma.any()


def test_what_scores_can_not_be_fitted_to_is_refused():
    for x, y in ((torch.randn(3, 4), torch.zeros(2)), (torch.randn(4), torch.zeros(4).long())):
        with pytest.raises(ValueError, match="scores are fitted to features"):
            fit_scores(nn.Linear(4, 2), x, y)
