"""What `test_resharding.py` runs in each process of a stage: resume from the stage before, train, save."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from cappronet import CapProNet
from cappronet.heads.collectives import leave_together
from cappronet.heads.sharded_scores import sharded_cross_entropy
from cappronet.heads.sharding import shard_classes
from cappronet.models import hub
from cappronet.models.shared_files import write_weights_together
from cappronet.training.sharded_head import read_state, take_apart, write_state

D, STEPS = 6, 8
SIZES = (7, 10, 1000)
SOLVERS = ("cholesky", "hyperpower")


def network_of(classes, solver):
    torch.manual_seed(0)
    options = {"in_channels": 1, "image_size": D, "normalize": True, "scale": "learned", "solver": solver}
    return CapProNet("features", classes, 2, **options).double()


def batch(classes, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(12, D, dtype=torch.float64, generator=generator)
    return x, torch.randint(classes, (12,), generator=generator)


def optimizer_of(network):
    return torch.optim.SGD(network.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-3)


def run_stage(stage, folder, classes, solver):
    """Some steps, sharded, from the state that the stage before has written."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    network = network_of(classes, solver)
    shard_classes(network.head, mesh)
    optimizer = optimizer_of(network)
    name = f"{classes}-{solver}"
    if stage:
        state = torch.load(folder / f"{name}-{stage - 1}.pt", weights_only=True)
        read_state(folder, state, network, optimizer)
    for step in range(STEPS * stage, STEPS * (stage + 1)):
        x, y = batch(classes, step)
        optimizer.zero_grad()
        sharded_cross_entropy(network(x), y).backward()
        optimizer.step()
    check_shares(network, optimizer, classes)
    state = write_state(folder / f"{name}-{stage}.safetensors", network, optimizer)
    if dist.get_rank() == 0:
        torch.save(state, folder / f"{name}-{stage}.pt")
    dist.barrier()


def check_shares(network, optimizer, classes):
    """No process holds more than its share of the bases, their gradients and the optimizer's state."""
    share = -(-classes // dist.get_world_size())
    weight = network.head.weight
    held = [weight, weight.grad, optimizer.state[weight]["momentum_buffer"]]
    assert all(isinstance(tensor, DTensor) and len(tensor.to_local()) <= share for tensor in held)
    assert {"model/head.weight"} < take_apart({"model": network.state_dict()})[1].keys()


def save_model(folder, classes):
    """A model as `train --shard-head` saves it, in several files."""
    torch.manual_seed(0)
    network = CapProNet("features", classes, 2, in_channels=1, image_size=D, scale="learned")
    with torch.device("meta"):
        expected = CapProNet(**network.config).state_dict()
    shard_classes(network.head, init_device_mesh("cpu", (dist.get_world_size(),)))
    if dist.get_rank() == 0:
        folder.mkdir()
    dist.barrier()
    write_weights_together(folder, network.state_dict(), expected, max_shard_size=100)
    if dist.get_rank() == 0:
        hub.describe(folder, network.config, "")
    dist.barrier()


def check_failed_write(folder):
    """A folder that only the first process would write to is missing: the same error in all of them."""
    tensors = {"a": torch.ones(3)}
    with pytest.raises(OSError, match=r"missing.*could not be written"):
        write_weights_together(folder / "missing", tensors, tensors)
    dist.barrier()


def main(rank, world, stage, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store-{stage}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=120))
    for classes in SIZES:
        for solver in SOLVERS:
            run_stage(stage, folder, classes, solver)
    save_model(folder / f"model-{stage}", 10)
    check_failed_write(folder)
    leave_together()
