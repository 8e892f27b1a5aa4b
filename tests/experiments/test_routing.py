"""Dynamic routing: its formulas, its networks, and the study that trains them next to other heads."""

import math
import pickle
from dataclasses import replace
from functools import partial

import pytest
import torch

from cappronet.models.backbones import create_backbone
from cappronet.reporting import silent
from cappronet.training.recipe import Recipe
from experiments.studies import parts, routing_runs
from experiments.studies.commands import routing as command
from experiments.studies.parts import rows_of
from experiments.studies.routing import (
    CapsuleNetwork,
    PrimaryCapsules,
    RoutedCapsules,
    RoutedFeatures,
    coupling,
    margin_loss,
    route,
    squash,
)
from experiments.studies.routing_runs import CONTESTANTS, Contestant, Plan, measure, run, table


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_squashed_vectors_keep_their_direction():
    s = random(5, 4)
    v = squash(s)
    lengths = s.norm(dim=-1)
    torch.testing.assert_close(v.norm(dim=-1), lengths**2 / (1 + lengths**2))
    torch.testing.assert_close(torch.cosine_similarity(s, v), torch.ones(5, dtype=torch.float64))
    zero = torch.zeros(2, 4, requires_grad=True)
    squash(zero).sum().backward()
    assert squash(zero).eq(0).all()
    assert zero.grad.isfinite().all()


def test_each_lower_capsule_is_shared_out_once():
    logits = random(2, 6, 3)
    torch.testing.assert_close(coupling(logits).sum(-1), torch.ones(2, 6, dtype=torch.float64))
    shares = coupling(logits, none=True)
    nowhere = 1 / (1 + logits.exp().sum(-1))
    torch.testing.assert_close(shares.sum(-1) + nowhere, torch.ones(2, 6, dtype=torch.float64))
    assert torch.equal(coupling(torch.zeros(1, 1, 9), none=True), torch.full((1, 1, 9), 0.1))


def by_loops(votes, iterations):
    """Procedure 1 of the paper for one image, capsule by capsule: votes (I, L, D)."""
    lower, classes, _ = votes.shape
    b = [[0.0] * classes for _ in range(lower)]
    for _ in range(iterations):
        c = [[math.exp(b[i][j]) / sum(map(math.exp, b[i])) for j in range(classes)] for i in range(lower)]
        s = [sum(c[i][j] * votes[i, j] for i in range(lower)) for j in range(classes)]
        v = [x * x.norm() / (1 + x.norm() ** 2) for x in s]
        b = [[b[i][j] + float(votes[i, j] @ v[j]) for j in range(classes)] for i in range(lower)]
    return torch.stack(v)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_routing_is_the_procedure_of_the_paper(iterations):
    votes = random(2, 5, 3, 4)
    expected = torch.stack([by_loops(image, iterations) for image in votes])
    torch.testing.assert_close(route(votes, iterations), expected, rtol=1e-9, atol=1e-9)


def test_routing_follows_the_votes_that_agree():
    votes = torch.zeros(1, 5, 2, 2, dtype=torch.float64)
    votes[0, :4, 0, 0] = 2.0  # four capsules agree about the first class
    votes[0, 4, 0, 1] = 2.0  # one does not
    once, thrice = (route(votes, iterations)[0, 0] for iterations in (1, 3))
    assert thrice.norm() > once.norm()
    assert thrice[1] / thrice[0] < once[1] / once[0]


def test_routing_has_gradients():
    votes = random(2, 3, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(route, votes)


def test_margin_loss_by_hand():
    lengths = torch.tensor([[0.5, 0.3], [0.95, 0.05]])
    # (0.9 - 0.5)^2 + 0.5 (0.3 - 0.1)^2 for the first image; nothing for the second, whose lengths are outside
    assert margin_loss(lengths, torch.tensor([0, 0])).item() == pytest.approx((0.16 + 0.02) / 2)


def test_primary_capsules_are_groups_of_channels_at_a_position():
    primary = PrimaryCapsules(3, types=2, kernel=3, stride=1)
    x = torch.randn(2, 3, 4, 5)
    u, channels = primary(x), primary.convolution(x)
    assert u.shape == (2, 2 * 2 * 3, 8)
    torch.testing.assert_close(u[1, 6 + 4], squash(channels[1, 8:16, 1, 1]))  # second type, second row and column


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_network_has_the_sizes_of_the_paper():
    mnist = CapsuleNetwork(1, 28, 10)
    assert mnist.classes.weight.shape == (1152, 10, 16, 8)
    assert count(mnist) == 256 * 81 + 256 + 256 * 256 * 81 + 256 + 1152 * 10 * 16 * 8
    cifar = CapsuleNetwork(3, 32, 10, types=64, none=True, crop=24)
    assert cifar.classes.weight.shape == (64 * 4 * 4, 10, 16, 8)
    lengths = cifar(torch.randn(1, 3, 32, 32))
    assert lengths.shape == (1, 10)
    assert ((lengths >= 0) & (lengths < 1)).all()


def test_crops_are_random_in_training_and_central_otherwise():
    network = CapsuleNetwork(1, 8, 3, kernel=3, types=1, crop=6)
    seen = []
    network.convolution.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.arange(64.0).view(1, 1, 8, 8).expand(50, -1, -1, -1)
    network.eval()(x)
    network.train()(x)
    assert torch.equal(seen[0], x[..., 1:7, 1:7])
    corners = seen[1][:, 0, 0, 0]
    assert set(corners.tolist()) == {8.0 * row + column for row in range(3) for column in range(3)}
    assert torch.equal(seen[1] - corners.view(-1, 1, 1, 1), x[..., :6, :6])


@pytest.mark.parametrize(("feature_map", "primaries"), [(False, 8), (True, 8 * 8 * 8)])
def test_routing_is_a_head_of_a_resnet(feature_map, primaries):
    backbone = create_backbone("resnet8")
    model = RoutedFeatures(backbone, torch.zeros(1, 3, 32, 32), 10, feature_map=feature_map)
    assert model.head.weight.shape == (primaries, 10, 16, 8)
    assert count(model) == count(backbone) + primaries * 10 * 16 * 8
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert isinstance(model.head, RoutedCapsules)


TINY = Recipe(data="digits", train_size=200, backbone="resnet8", epochs=2, lr=0.1)
TINY_NETWORKS = (
    Contestant("ResNet-8, linear", "ours", TINY.changed(head="linear", backbone="pixels"), (0.0, 0.3), 100),
    Contestant("ResNet-8, routing of features", "routed features", TINY.changed(decay_head=False), (), 0),
)


@pytest.fixture
def inline(monkeypatch):
    """Measures parts in this process, and notes their names."""
    names = []

    def run_jobs(jobs, work, processes, report, text):
        for job in jobs:
            names.append(job[0].name)
            work(job, report)

    monkeypatch.setattr(parts, "run_jobs", run_jobs)
    monkeypatch.setattr(routing_runs, "ROUNDS", 2)
    return names


def test_the_study_tunes_trains_and_times(inline, tmp_path):
    plans = [Plan(contestant, tmp_path / "runs") for contestant in TINY_NETWORKS]
    content = run(plans, tmp_path / "routing.json", seeds=2, steps=True, jobs=1, report=silent)
    linear, routed = "digits-ResNet-8-linear", "digits-ResNet-8-routing-of-features"
    assert inline == [
        *(f"{linear}-lr0", f"{linear}-lr0.3"),
        *(f"{name}-seed{seed}" for seed in (0, 1) for name in (linear, routed)),
        "digits-steps",
    ]
    rows = [row for row in rows_of(content) if "error" in row]
    assert {row["lr"] for row in rows if row["network"] == "ResNet-8, linear"} == {0.3}  # 0 learns nothing
    assert all(row["error"] < 60 for row in rows if row["network"] == "ResNet-8, linear")
    shown = table(content)
    assert [(row[1], row[3]) for row in shown.rows] == [
        ("ResNet-8, linear", "2"),
        ("ResNet-8, routing of features", "2"),
    ]
    assert shown.rows[0][6] == "650"
    assert all(row[7] for row in shown.rows)  # a step was timed
    again = run(plans, tmp_path / "routing.json", seeds=2, jobs=1, report=silent)  # keeps the steps
    assert len(inline) == 7
    assert again == content


@pytest.mark.slow
def test_an_interrupted_run_continues_after_its_last_epoch(tmp_path):
    contestant = Contestant("tiny", "small capsule network", TINY.changed(optimizer="adamw", lr=1e-3, epochs=3))
    whole = Plan(contestant, tmp_path, lr=1e-3)
    (expected,) = measure(whole, silent)

    def stop(_text, done, _total):
        if done == 2:
            raise InterruptedError

    def resumed(plan):
        """The steps that follow an interruption in the last epoch, and the row."""
        steps = []
        with pytest.raises(InterruptedError):
            measure(interrupted, stop)
        (row,) = measure(plan, lambda _text, done, _total: steps.append(done))
        return steps, row

    interrupted = replace(whole, folder=tmp_path / "other")
    interrupted.folder.mkdir()
    assert resumed(interrupted) == ([2], expected)  # a batch of 128 of the 200 images is an epoch
    assert list(interrupted.folder.iterdir()) == []
    steps, row = resumed(replace(interrupted, lr=2e-3))
    assert steps == [0, 1, 2]  # a checkpoint of other settings is not continued
    assert row["lr"] == 2e-3


def test_parts_can_be_sent_to_other_processes(tmp_path):
    for contestant in CONTESTANTS:
        plan = Plan(contestant, tmp_path, lr=0.1)
        assert pickle.loads(pickle.dumps(plan.part)) == plan.part
    assert pickle.loads(pickle.dumps(partial(parts._measure, measure))).args == (measure,)


def test_networks_of_one_dataset_differ_in_network_and_loss_alone():
    for data, train_size in (("digits", 0), ("cifar10", 5000)):
        heads = [contestant for contestant in CONTESTANTS if contestant.recipe.data == data]
        assert [contestant.label for contestant in heads][-1] == "capsule network"
        assert {(c.recipe.epochs, c.recipe.train_size) for c in heads} == {(30, train_size)}
        assert {(c.rates, c.recipe.flip, c.recipe.padding) for c in heads[:-1]} == {
            ((0.2, 0.4, 0.8), data == "cifar10", 4 if data == "cifar10" else 0)
        }
    names = [Plan(contestant, None).name for contestant in CONTESTANTS]
    assert len(set(names)) == len(names)


def test_a_mistake_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="no network matches nothing"):
        command(only=["nothing"], folder=tmp_path, output=tmp_path)
    with pytest.raises(ValueError, match="--seeds must be at least 1, got 0"):
        command(seeds=0, folder=tmp_path, output=tmp_path)
    with pytest.raises(FileNotFoundError, match="--cifar10"):
        command(cifar10=tmp_path / "missing.npz", folder=tmp_path, output=tmp_path)
