"""Training with a head whose classes are spread over all processes: start, loss, errors, checkpoints, saved model."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from cappronet import projection
from cappronet.data.files import sha256_of
from cappronet.data.samples import Dataset
from cappronet.heads import CapsuleProjection
from cappronet.heads.sharded_scores import sharded_cross_entropy, sharded_errors
from cappronet.heads.sharding import ShardedProjection, shard_classes
from cappronet.models import hub
from cappronet.models.network import CapProNet
from cappronet.models.shared_files import read_rows, write_together, write_weights_together
from cappronet.training.builders import build_model
from cappronet.training.loop import Trainer
from cappronet.training.recipe import Recipe

__all__ = ["ShardedTrainer", "read_state", "take_apart", "write_state"]


class ShardedTrainer(Trainer):
    """A run whose head has its classes spread over all processes; the backbone is sharded by FSDP2."""

    def built(self, data: Dataset) -> CapProNet:
        """The network with the classes of its head spread; no process ever holds all of them."""
        _check_recipe(self.recipe)
        network = build_model(self.recipe, data, without_head=True)
        mesh = self.fabric.strategy.device_mesh["data_parallel"]  # type: ignore[attr-defined]
        _shard_head(network, self.recipe, mesh)
        return network

    @property
    def head(self) -> ShardedProjection:
        """The sharded head."""
        assert isinstance(self.network.head, ShardedProjection)
        return self.network.head

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of the batch of all processes."""
        smoothing = self.recipe.label_smoothing
        return sharded_cross_entropy(self.model(x), self.head.gather_labels(y), label_smoothing=smoothing)

    def measured(self) -> Iterable[tuple[str, float]]:
        """Errors and loss on the evaluation samples."""
        return _classification_metrics(self.model, self.head, self.test_batches.epoch(0))

    def weights(self) -> dict[str, Any]:
        """Write what is sharded into a file, each process its own rows; return the rest and the name of the file."""
        return write_state(self.run.folder / f"checkpoint-{self.step}.safetensors", self.network, self.raw_optimizer)

    def save(self) -> None:
        """Write a checkpoint; the rows of the one before are removed once the new one is complete."""
        super().save()
        if self.fabric.is_global_zero:
            self.run.remove_shards(keep=f"checkpoint-{self.step}.safetensors")

    def load_weights(self, state: dict[str, Any]) -> None:
        """Take this process's rows from a checkpoint of any number of processes."""
        if "shards" not in state:
            raise ValueError("it was written without --shard-head: resume without it")
        read_state(self.run.folder, state, self.network, self.raw_optimizer)

    def trained(self) -> CapProNet:
        """The network as it is: in parts."""
        return self.network.eval()

    def save_model(self, network: CapProNet) -> None:
        """Write the trained model, each process its own rows."""
        with torch.device("meta"):
            expected = CapProNet(**network.config).state_dict()
        write_weights_together(self.run.folder, network.state_dict(), expected)
        if self.fabric.is_global_zero:
            hub.describe(self.run.folder, network.config, network.card)


def write_state(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Write the sharded tensors of a network and its optimizer into a file, each process its own rows.

    Returns:
        All the rest of their states and, as `shards`, the name of the file; in the first process also its digest.
    """
    model, optimizer_state = get_state_dict(network, optimizer)
    rest, sharded = take_apart({"model": model, "optimizer": optimizer_state})
    write_together(path, sharded)
    digest = sha256_of(path) if dist.get_rank() == 0 else ""
    return {**rest, "shards": {"file": path.name, "sha256": digest}}


def read_state(folder: Path, state: Mapping[str, Any], network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Take what `write_state` returned in its first process, and this process's rows, of any number of processes.

    Raises:
        ValueError: the file with the rows is missing or damaged.
    """
    path = folder / Path(state["shards"]["file"]).name
    if not path.is_file() or sha256_of(path) != state["shards"]["sha256"]:
        raise ValueError(f"{path.name} is missing, or its content does not match its SHA-256")
    model, optimizer_state = get_state_dict(network, optimizer)
    template = {"model": model, "optimizer": optimizer_state}
    read_rows(path, take_apart(template)[1])
    whole = _merged(template, state)
    set_state_dict(network, optimizer, model_state_dict=whole["model"], optim_state_dict=whole["optimizer"])


def _check_recipe(recipe: Recipe) -> None:
    """Refuse recipes that need the head whole."""
    if recipe.head != "capsule":
        raise ValueError(f"--shard-head spreads the classes of a capsule head, this one is {recipe.head}: remove it")
    for key, off in (("mixup", 0), ("cutmix", 0), ("balance", "none"), ("head_optimizer", "same")):
        if getattr(recipe, key) != off:
            raise ValueError(f"--shard-head does not work with {key} = {getattr(recipe, key)!r}: set it to {off!r}")
    if recipe.head_start == "features":
        raise ValueError("--head-start features needs the whole head: use uniform or orthonormal with --shard-head")


@torch.no_grad()
def _shard_head(network: CapProNet, recipe: Recipe, mesh: DeviceMesh) -> None:
    """Spread the classes of the network's head over all processes, and start them as the recipe says."""
    assert isinstance(network.head, CapsuleProjection)
    head = shard_classes(network.head, mesh, gather=True)
    if isinstance(head.scale, Tensor) and recipe.scale_start:
        head.scale.to_local().fill_(recipe.scale_start)  # type: ignore[attr-defined]
    if recipe.head_start == "orthonormal":
        weight = head.weight.to_local()  # type: ignore[attr-defined]
        weight.copy_(projection.bases(weight))


@torch.no_grad()
def _classification_metrics(
    model: nn.Module, head: ShardedProjection, batches: Iterable[tuple[Tensor, Tensor]]
) -> Iterator[tuple[str, float]]:
    """Errors in percent and cross-entropy over all samples, without all scores of any of them in one process."""
    training = model.training
    model.eval()
    count = wrong = wrong_top5 = 0
    loss = 0.0
    for x, y in batches:
        rows = torch.tensor(len(y), device=x.device)
        dist.all_reduce(rows, dist.ReduceOp.MAX)
        missing = int(rows) - len(y)  # the last batch need not divide: every process brings as many rows as the first
        x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])])
        y = torch.cat([y, y.new_full((missing,), -1)])
        scores, labels = model(x), head.gather_labels(y)
        real = labels >= 0
        labels = labels.clamp_min(0)
        wrong += int((sharded_errors(scores, labels) & real).sum())
        if head.num_classes > 5:
            wrong_top5 += int((sharded_errors(scores, labels, 5) & real).sum())
        losses = sharded_cross_entropy(scores, labels, reduction="none")
        loss += losses[real].double().sum().item()
        count += int(real.sum())
    model.train(training)
    yield "error", 100 * wrong / count
    if head.num_classes > 5:
        yield "error_top5", 100 * wrong_top5 / count
    yield "loss", loss / count


def take_apart(tree: Any, path: str = "") -> tuple[Any, dict[str, DTensor]]:
    """A state without its tensors that are spread over processes, and those by their paths in it."""
    if isinstance(tree, DTensor):
        return None, {path: tree}
    if not isinstance(tree, Mapping):
        return tree, {}
    parts = {name: take_apart(value, f"{path}/{name}" if path else str(name)) for name, value in tree.items()}
    sharded = {name: tensor for _, tensors in parts.values() for name, tensor in tensors.items()}
    return {name: rest for name, (rest, tensors) in parts.items() if not (rest is None and tensors)}, sharded


def _merged(tree: Any, rest: Any) -> Any:
    if isinstance(tree, DTensor):
        return tree
    if not isinstance(tree, Mapping):
        return rest
    return {
        name: _merged(value, rest[name] if not isinstance(value, DTensor) else None) for name, value in tree.items()
    }
