"""Very many classes: a backbone under DDP, and a capsule head whose classes are spread over the same processes.

    torchrun --nproc-per-node 2 examples/many_classes.py --classes 1000

Samples are made: each class is a random direction, and a sample is its direction plus noise. Replace `batch` by your
own loader with a `DistributedSampler`, and `backbone` by your network.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from cappronet import CapsuleProjection
from cappronet.heads.sharded_scores import sharded_cross_entropy, sharded_errors
from cappronet.heads.sharding import shard_classes


def batch(classes: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Labels drawn at random, and inputs near the directions of their classes."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(classes, 64, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(classes, (size,), generator=generator)
    return directions[labels] + 0.5 * torch.randn(size, 64, generator=generator), labels


def main() -> None:
    """Train for some steps in this process, one of several, and print the error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    rank, processes = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (processes,))

    torch.manual_seed(0)
    backbone = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128)).to(device))
    with torch.device("meta"):  # no process ever holds all bases
        head = CapsuleProjection(128, options.classes, capsule_dim=4, normalize=True, scale=25.0)
    head = shard_classes(head, mesh, gather=True)  # not inside DDP: each process has its own classes
    optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=0.01)

    for step in range(options.steps):
        x, y = batch(options.classes, 256 // processes, seed=1 + step * processes + rank)
        lengths = head(backbone(x.to(device)))  # of the batch of all processes, each with its own classes
        loss = sharded_cross_entropy(lengths, head.gather_labels(y.to(device)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with torch.no_grad():
        x, y = batch(options.classes, 1000 // processes, seed=-rank - 1)
        errors = sharded_errors(head(backbone(x.to(device))), head.gather_labels(y.to(device)))
    if rank == 0:
        print(f"{options.classes:,} classes, {len(head.weight.to_local()):,} of them in the first of {processes}")
        print(f"loss {loss.item():.3f}, error {100 * errors.double().mean().item():.2f} %")
    dist.barrier()  # a process that leaves early takes its connections with it
    time.sleep(0.2)  # for the threads of Gloo, which abort the process if they free a tensor while Python is leaving
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
