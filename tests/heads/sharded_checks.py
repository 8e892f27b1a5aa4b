"""What `test_sharding.py` runs in each of several processes: every check compares with a head in one process."""

import json
import traceback
from datetime import timedelta
from itertools import cycle

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from cappronet.heads import CapsuleProjection
from cappronet.heads.collectives import leave_together
from cappronet.heads.sampling import sample_classes, sampled_cross_entropy
from cappronet.heads.sharded_scores import sharded_cross_entropy, sharded_errors, sharded_topk
from cappronet.heads.sharding import class_range, shard_classes

B, INPUTS, D, C = 12, 10, 16, 3
CASES = [
    {},
    {"normalize": True, "scale": "learned"},
    {"solver": "hyperpower"},
    {"solver": "hyperpower", "normalize": True, "scale": "learned"},
]

SIZES = (7, 10, 1000)
# Steps after which weights are compared, where it is not a matter of how errors grow.
FEW = 6


class Network(nn.Module):
    """A linear backbone, so that gradients of features matter, and a head."""

    def __init__(self, L, **options):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Linear(INPUTS, D, dtype=torch.float64)
        self.head = CapsuleProjection(D, L, C, dtype=torch.float64, **options)

    def forward(self, x):
        return self.head(self.backbone(x).tanh())


def batch(L, step, n=B):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(n, INPUTS, dtype=torch.float64, generator=generator)
    return x, torch.randint(L, (n,), generator=generator)


def optimizer_of(network):
    return torch.optim.SGD(network.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-3)


def plain_steps(network, L, steps=20, first=0, smoothing=0.0, optimizer=None):
    """Train in one process; return the losses."""
    optimizer = optimizer or optimizer_of(network)
    losses = []
    for step in range(first, first + steps):
        x, y = batch(L, step)
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x), y, label_smoothing=smoothing)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def near(a, b, tolerance=1e-6):
    a, b = whole(a.detach()), whole(b.detach())
    assert a.shape == b.shape, (a.shape, b.shape)
    assert (a - b).abs().max() <= tolerance, (a - b).abs().max()


def same_state(network, reference):
    for (name, ours), theirs in zip(network.state_dict().items(), reference.state_dict().values(), strict=True):
        assert (whole(ours) - theirs).abs().max() <= 1e-6, name


def check_one_step(mesh, _):
    for L in SIZES:
        for case in CASES:
            reference, network = Network(L, **case), Network(L, **case)
            shard_classes(network.head, mesh)
            x, y = batch(L, 0)
            expected, lengths = reference(x), network(x)
            assert isinstance(lengths, DTensor)
            start, end = class_range(L, mesh)
            assert lengths.to_local().shape == (B, end - start)
            near(lengths, expected)
            for smoothing in (0.0, 0.1):
                for one in (reference, network):
                    one.zero_grad()
                loss = sharded_cross_entropy(lengths, y, label_smoothing=smoothing)
                theirs = F.cross_entropy(expected, y, label_smoothing=smoothing)
                near(loss, theirs)
                theirs.backward(retain_graph=True)
                loss.backward(retain_graph=True)
                for ours, expected_gradient in zip(network.parameters(), reference.parameters(), strict=True):
                    near(ours.grad, expected_gradient.grad)


def check_twenty_steps(mesh, _):
    for L, case in zip(cycle(SIZES), CASES, strict=False):
        reference, network = Network(L, **case), Network(L, **case)
        shard_classes(network.head, mesh)
        optimizer = optimizer_of(network)
        losses = []
        for step in range(20):
            x, y = batch(L, step)
            optimizer.zero_grad()
            loss = sharded_cross_entropy(network(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        expected = plain_steps(reference, L)
        assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) <= 1e-6
        same_state(network, reference)


def check_loss_parallel(mesh, _):
    L = 10
    reference, network = Network(L), Network(L)
    shard_classes(network.head, mesh)
    optimizer = optimizer_of(network)
    for step in range(FEW):
        x, y = batch(L, step)
        optimizer.zero_grad()
        with loss_parallel():
            F.cross_entropy(network(x), y).backward()
        optimizer.step()
    plain_steps(reference, L, FEW)
    same_state(network, reference)
    with loss_parallel():  # what the documentation says of it
        assert F.cross_entropy(network(x), torch.full_like(y, L)).full_tensor() == 0


def check_gathered_features(mesh, _):
    """Each process has its own part of the batch, and the backbone's gradients are averaged, as DDP does."""
    L, rank, processes = 10, dist.get_rank(), dist.get_world_size()
    for case in CASES[:2]:
        reference, network = Network(L, **case), Network(L, **case)
        shard_classes(network.head, mesh, gather=True)
        optimizer, part = optimizer_of(network), B // processes
        for step in range(FEW):
            x, y = (rows[rank * part : (rank + 1) * part] for rows in batch(L, step))
            optimizer.zero_grad()
            sharded_cross_entropy(network(x), network.head.gather_labels(y)).backward()
            for parameter in network.backbone.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= processes
            optimizer.step()
        plain_steps(reference, L, FEW)
        same_state(network, reference)


def check_data_parallel_copies(mesh, _):
    """A mesh of two dimensions: copies of the head see different parts of the batch."""
    L, world = 7, dist.get_world_size()
    for shape in {(world, 1), (1, world), (2, world // 2)}:
        two = init_device_mesh("cpu", shape, mesh_dim_names=("data", "classes"))
        reference, network = Network(L, **CASES[1]), Network(L, **CASES[1])
        shard_classes(network.head, two)
        optimizer, part = optimizer_of(network), B // shape[0]
        group, number = two.get_group("data"), two.get_local_rank("data")
        for step in range(FEW):
            x, y = (rows[number * part : (number + 1) * part] for rows in batch(L, step))
            optimizer.zero_grad()
            sharded_cross_entropy(network(x), y).backward()
            for parameter in network.backbone.parameters():
                dist.all_reduce(parameter.grad, group=group)
                parameter.grad /= shape[0]
            optimizer.step()
        plain_steps(reference, L, FEW)
        same_state(network, reference)


def check_autocast(mesh, _):
    torch.manual_seed(0)
    reference, network = CapsuleProjection(D, 10, C), CapsuleProjection(D, 10, C)
    network.load_state_dict(reference.state_dict())
    shard_classes(network, mesh)
    x, y = torch.randn(B, D, generator=torch.Generator().manual_seed(0)), torch.arange(B) % 10
    with torch.autocast("cpu", torch.bfloat16):
        expected, lengths = reference(x), network(x)
        assert lengths.dtype == expected.dtype == torch.float32
        F.cross_entropy(expected, y).backward()
        sharded_cross_entropy(lengths, y).backward()
    near(lengths, expected, 0.01)  # bfloat16 has eight bits
    near(network.weight.grad, reference.weight.grad, 0.001)


def check_predictions(mesh, _):
    for L in SIZES:
        network, reference = Network(L), Network(L)
        shard_classes(network.head, mesh).eval()
        x, y = batch(L, 0, 50)
        with torch.no_grad():
            lengths, expected = network(x), reference(x)
        for k in (1, 5, 7):
            values, classes = sharded_topk(lengths, k)
            theirs = expected.topk(k)
            near(values, theirs.values)
            assert torch.equal(classes, theirs.indices)
            wrong = (theirs.indices != y.unsqueeze(1)).all(1)
            assert torch.equal(sharded_errors(lengths, y, k), wrong)
            assert wrong.any() or k == 7
    ties = DTensor.from_local(torch.ones(3, 2), mesh, [Shard(1)])
    assert torch.equal(sharded_topk(ties)[1], torch.zeros(3, 1, dtype=torch.long))


def check_nobody_holds_more_than_its_share(mesh, _):
    L = 1000
    with torch.device("meta"):
        head = CapsuleProjection(D, L, C, dtype=torch.float64, solver="hyperpower")
    torch.manual_seed(0)
    shard_classes(head, mesh)
    optimizer = torch.optim.AdamW(head.parameters())
    x, y = torch.randn(B, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), torch.arange(B)
    sharded_cross_entropy(head(x), y).backward()
    optimizer.step()
    share = -(-L // dist.get_world_size())
    held = [head.weight, head.weight.grad, *optimizer.state[head.weight].values(), head.sigma]
    held = [tensor.to_local() for tensor in held if tensor.ndim]
    assert len(held) == 5
    for tensor in held:
        assert len(tensor) <= share
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    count = torch.tensor(head.weight.to_local().numel())
    dist.all_reduce(count)
    assert count == L * C * D
    local = shard_classes(CapsuleProjection(D, 10, C), mesh).weight.to_local()  # of a head that every process had
    assert local.untyped_storage().nbytes() == local.numel() * local.element_size()


def check_heads_on_meta_start_as_in_one_process(mesh, _):
    for case in CASES:
        with torch.device("meta"):
            head = CapsuleProjection(D, 7, C, **case)
        torch.manual_seed(5)
        shard_classes(head, mesh)
        after = torch.rand(())
        torch.manual_seed(5)
        reference = CapsuleProjection(D, 7, C, **case)
        assert torch.equal(after, torch.rand(()))
        for ours, theirs in zip(head.state_dict().values(), reference.state_dict().values(), strict=True):
            assert torch.equal(ours.full_tensor(), theirs)


def check_local_classes_as_a_head(mesh, _):
    network, reference = Network(7, **CASES[1]), Network(7, **CASES[1])
    head = shard_classes(network.head, mesh)
    start, end = class_range(7, mesh)
    x = torch.randn(B, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    near(head.local().capsules(x), reference.head.capsules(x)[:, start:end])
    near(head.local().fold()(x), reference.head(x)[:, start:end])
    assert f"classes {start} to {end - 1} here" in repr(head)


def check_sampled_classes(mesh, _):
    """Exact at a share of 1; below it, the loss of one process over the same classes, and no gradient for others."""
    L = 10
    x, y = batch(L, 0, 4)
    for case in CASES[:2]:
        for share in (1.0, 0.5):
            reference, network = Network(L, **case), Network(L, **case)
            head = shard_classes(network.head, mesh)
            start, end = class_range(L, mesh)
            generators = [torch.Generator().manual_seed(dist.get_rank()) for _ in range(2)]
            features = network.backbone(x).tanh()
            loss = sampled_cross_entropy(head, features, y, share, generator=generators[0])
            loss.backward()
            parts = [None] * dist.get_world_size()
            drawn = sample_classes(y, start, end, share, generators[1]) + start
            dist.all_gather_object(parts, drawn.tolist())
            classes = sorted(label for part in parts for label in part) if share < 1 else list(range(L))
            assert set(y.tolist()) <= set(classes)
            position = torch.tensor([classes.index(label) for label in y.tolist()])
            expected = F.cross_entropy(reference(x)[:, classes], position)
            expected.backward()
            near(loss, expected)
            for ours, theirs in zip(network.parameters(), reference.parameters(), strict=True):
                near(ours.grad, theirs.grad)
            others = [label for label in range(L) if label not in classes]
            assert bool(others) == (share < 1)
            assert not whole(head.weight.grad)[others].any()
    refused(lambda: sampled_cross_entropy(head, features, y, 0.0), "share", "above 0")
    refused(lambda: sampled_cross_entropy(head, features.detach(), y + 9, 0.5), "0 to 9")


def refused(work, *words):
    """The same error in every process; none waits for another."""
    try:
        work()
    except (ValueError, TypeError) as error:
        text = str(error)
        assert all(word in text for word in words), text
        assert "\n" not in text
        dist.barrier()
        return
    raise AssertionError("not refused")


def check_bad_inputs(mesh, _):
    rank, world = dist.get_rank(), dist.get_world_size()
    small = CapsuleProjection(D, world - 1, C)
    refused(lambda: shard_classes(small, mesh), f"{world - 1} classes", f"{world} processes", f"at most {world - 1}")
    refused(lambda: shard_classes(nn.Linear(4, 4), mesh), "CapsuleProjection", "Linear")
    head = shard_classes(CapsuleProjection(D, 10, C), mesh)
    refused(lambda: shard_classes(head, mesh), "not sharded yet")
    x, y = torch.ones(B, D), torch.arange(B) % 10
    scores = head(x)
    bad = y.clone()
    bad[3] = 10
    refused(lambda: sharded_cross_entropy(scores, bad), "0 to 9", "10 classes", "got 10")
    bad[3] = -1
    refused(lambda: sharded_cross_entropy(scores, bad), "got -1")
    refused(
        lambda: sharded_cross_entropy(scores, torch.where(torch.arange(B) == 2, rank, y)), "different labels", "row 2"
    )
    refused(lambda: sharded_cross_entropy(scores, y.float()), "whole numbers")
    refused(lambda: sharded_cross_entropy(x, y), "sharded over classes")
    refused(lambda: sharded_topk(scores, 11), "1 to 10", "got 11")
    refused(lambda: head(torch.ones(B + rank, D)), f"{B} to {B + world - 1}", f"this one {B + rank}")
    refused(lambda: head(x + torch.arange(D) * rank), "different features", "gather=True")
    refused(lambda: head(torch.ones(2, B, D)), "(B, d)", f"(2, {B}, {D})")
    refused(lambda: head(torch.ones(B, D + 1)), f"(..., {D})")
    # What only one process has: the others do not wait for it.
    refused(lambda: head(torch.ones(B, D + rank)), "different shapes", f"({B}, {D + rank})")
    refused(lambda: head(x if rank else torch.ones(B, 1, D)), "different shapes", "this one torch.float32")
    refused(lambda: sharded_cross_entropy(scores, y if rank else y.float()), "different shapes or types")
    refused(lambda: sharded_cross_entropy(scores, bad if rank else y), "different labels", "row 3")
    gathering = shard_classes(CapsuleProjection(D, 10, C), mesh, gather=True)
    scores, labels = gathering(x), gathering.gather_labels(bad if rank == 1 else y)
    refused(lambda: sharded_cross_entropy(scores, labels), "0 to 9", "got -1")
    refused(lambda: gathering.gather_labels(y[: B - rank]), f"{B - world + 1} to {B}", "drop_last")
    refused(lambda: gathering(x[: B - rank]), f"{B - world + 1} to {B}", f"this one {B - rank}")
    refused(lambda: head.add_class(x), "a single process")


def check_checkpoints_of_other_numbers_of_processes(mesh, folder):
    """Train 10 steps here and save; continue from what another number of processes saved after 10 steps."""
    L, case, world = 10, CASES[3], dist.get_world_size()

    def state(network, optimizer):
        model, optim = get_state_dict(network, optimizer)
        return {"model": model, "optimizer": optim}

    def trained(network, optimizer, first):
        for step in range(first, first + 10):
            x, y = batch(L, step)
            optimizer.zero_grad()
            sharded_cross_entropy(network(x), y).backward()
            optimizer.step()

    network = Network(L, **case)
    shard_classes(network.head, mesh)
    optimizer = optimizer_of(network)
    trained(network, optimizer, 0)
    dcp.save(state(network, optimizer), checkpoint_id=folder / str(world))
    reference = Network(L, **case)
    plain_steps(reference, L)
    for other in (2, 4):
        if not (folder / str(other) / ".metadata").exists():
            continue
        network = Network(L, **case)
        shard_classes(network.head, mesh)
        optimizer = optimizer_of(network)
        there = state(network, optimizer)
        dcp.load(there, checkpoint_id=folder / str(other))
        set_state_dict(network, optimizer, model_state_dict=there["model"], optim_state_dict=there["optimizer"])
        trained(network, optimizer, 10)
        same_state(network, reference)


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}


def main(rank, world, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store-{world}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("classes",))
    results = {}
    for name, check in CHECKS.items():
        try:
            check(mesh, folder)
            results[name] = "ok"
        except Exception:
            results[name] = traceback.format_exc()
            break  # the processes no longer agree on what comes next
        finally:
            (folder / f"results-{world}-{rank}.json").write_text(json.dumps(results))
    if results.keys() == CHECKS.keys():
        leave_together()
    else:  # others may wait for something else
        dist.destroy_process_group()
