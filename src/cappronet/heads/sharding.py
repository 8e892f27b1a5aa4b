"""A capsule head with its classes spread over processes: each holds, trains and updates the bases of its own classes.

Each Gram matrix belongs to one class, so the projection itself needs no communication. What a step sends has the size
of the batch: features where they are gathered, their gradient, and a few numbers for each sample.
"""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.utils import parametrize

from cappronet import projection
from cappronet.heads.capsule import CapsuleProjection, next_sigma
from cappronet.heads.collectives import check_labels, check_same_batch, gathered, used_in_parts, with_averaged_gradient
from cappronet.heads.controls import scaled

__all__ = ["ShardedProjection", "class_range", "shard_classes"]

# How many numbers of a head on the meta device are drawn at once.
DRAWN_AT_ONCE = 2**22


def shard_classes(
    head: CapsuleProjection, mesh: DeviceMesh, *, gather: bool = False, check: bool = True
) -> "ShardedProjection":
    """Spread the classes of a head over processes, in place, as `fully_shard` does: `weight` becomes a `DTensor`.

    The head then returns lengths as a `DTensor` that is sharded over classes. `sharded_cross_entropy`, `sharded_topk`
    and `sharded_errors` take it as it is, and so does `F.cross_entropy` inside
    `torch.distributed.tensor.parallel.loss_parallel`. The outcome is that of one process up to rounding. Call this in
    all processes, before the optimizer is made.

    A head on the meta device gets its first bases here, those that one process would have drawn from the same seed, and
    no process ever holds all of them. Of any other head, each process keeps its share of its own copy.

    Args:
        head: the head, the same in all processes.
        mesh: one dimension spreads the classes. Of two, the last does, and along the first are copies that see other
            batches: their gradients are averaged.
        gather: whether each process brings its own part of the batch, as with DDP or FSDP. The head then gathers the
            features of all processes that share the classes, and labels go through `gather_labels`. The gradient that
            the features get is scaled so that an average over processes, as DDP and FSDP take it, is that of the mean
            loss. Otherwise those processes must all bring the same features.
        check: refuse batches that differ between processes where they must not, which costs two small messages a step.

    Raises:
        ValueError: there are too few classes for the processes, or the head can't be sharded.
    """
    _check_shardable(head, mesh)
    start, end = class_range(head.num_classes, mesh)
    spread = [*[Replicate()] * (mesh.ndim - 1), Shard(0)]
    names = ["weight", "sigma"] if head.solver == "hyperpower" else ["weight"]
    shares = _drawn(head, start, end, mesh.device_type) if head.weight.is_meta else _sliced(head, start, end)
    for name, share in shares.items():
        share = share.to(_device(mesh))
        _copy_from_first(share, mesh, whole=name not in names)
        placements = spread if name in names else [Replicate()] * mesh.ndim
        shape = getattr(head, name).shape
        whole = DTensor.from_local(
            share, mesh, placements, run_check=False, shape=shape, stride=torch.empty(shape, device="meta").stride()
        )
        if name in ("sigma", "restarts"):
            setattr(head, name, whole)
        else:
            setattr(head, name, nn.Parameter(whole, requires_grad=getattr(head, name).requires_grad))
    head.__class__ = ShardedProjection
    sharded = cast(ShardedProjection, head)
    sharded.mesh, sharded.gather, sharded.check = mesh, gather, check
    return sharded


class ShardedProjection(CapsuleProjection):
    """A `CapsuleProjection` whose classes are spread over processes: made by `shard_classes`."""

    mesh: DeviceMesh
    gather: bool
    check: bool

    @property
    def class_mesh(self) -> DeviceMesh:
        """The processes that together hold all classes once."""
        return _class_mesh(self.mesh)

    def forward(self, x: Tensor) -> Tensor:
        """Capsule lengths `(B, d) -> (B, L)`, sharded over classes; with `gather`, of the batch of all processes."""
        x = self.shared_features(x)
        weight, scale = self.shared_parameters()
        sigma = self._next_sigma() if self.solver == "hyperpower" and self.training else None
        lengths = scaled(projection.capsule_lengths(self._features(x), weight, self.eps, sigma=sigma), scale)
        shape = torch.Size((len(x), self.num_classes))
        return DTensor.from_local(
            lengths, self.class_mesh, [Shard(1)], run_check=False, shape=shape, stride=(self.num_classes, 1)
        )

    def gather_labels(self, labels: Tensor) -> Tensor:
        """The labels `(B,)` of all processes whose features the head gathers, in their order."""
        if self.check:
            check_same_batch(labels, self.class_mesh, contents=False)
        return gathered(labels, self.class_mesh) if self.gather else labels

    @torch.no_grad()
    def local(self) -> CapsuleProjection:
        """This process's classes as a head of its own, with the same memory: for capsules, coordinates and `fold`."""
        weight = _local(self.weight)
        scale = _local(self.scale).item() if isinstance(self.scale, Tensor) else self.scale
        options: dict[str, Any] = {"eps": self.eps, "normalize": self.normalize, "scale": scale}
        head = CapsuleProjection(self.in_features, len(weight), self.capsule_dim, device="meta", **options)
        head.weight = nn.Parameter(weight, requires_grad=False)
        return head.train(self.training)

    def extra_repr(self) -> str:
        start, end = class_range(self.num_classes, self.mesh)
        return f"{super().extra_repr()}, classes {start} to {end - 1} here"

    def shared_features(self, x: Tensor) -> Tensor:
        """The features of the whole batch, each process's gradient of which counts for its own classes."""
        if isinstance(x, DTensor):
            raise TypeError("features must be a plain tensor, got a DTensor: pass x.to_local(), or x.full_tensor()")
        if self.check:  # first, so that what one process refuses below all refuse
            check_same_batch(x.detach(), self.class_mesh, contents=not self.gather)
        if x.ndim != 2:
            raise ValueError(f"a sharded head takes features (B, d), got {tuple(x.shape)}: flatten them first")
        projection.check_arguments(x, _local(self.weight), self.eps)
        return gathered(x, self.class_mesh) if self.gather else used_in_parts(x, self.class_mesh)

    def check_labels(self, labels: Tensor, rows: int) -> None:
        """An error in every process if labels are not classes of this head, or differ between processes."""
        if self.check:
            check_labels(labels, rows, self.num_classes, self.class_mesh)

    def shared_parameters(self) -> tuple[Tensor, Tensor | float | None]:
        """This process's bases and the scale, whose gradients count for all classes and all copies."""
        weight = with_averaged_gradient(_local(self.weight), self.mesh)
        if not isinstance(self.scale, Tensor):
            return weight, self.scale
        return weight, with_averaged_gradient(used_in_parts(_local(self.scale), self.class_mesh), self.mesh)

    def _next_sigma(self) -> Tensor:
        """One warm hyper-power step; where any class of any process needs a restart, all restart, as in one process."""
        group = self.class_mesh.get_group()

        def largest(residual: Tensor) -> Tensor:
            largest = residual.max().nan_to_num(torch.inf)
            dist.all_reduce(largest, dist.ReduceOp.MAX, group)
            return largest

        def anywhere(sigma: Tensor) -> Tensor:
            flag = sigma.any().to(torch.int32)
            dist.all_reduce(flag, dist.ReduceOp.MAX, group)
            return flag.bool()

        weight, sigma = _local(self.weight), _local(self.sigma)
        return next_sigma(weight, sigma, _local(self.restarts), self.eps, largest=largest, anywhere=anywhere)


def class_range(num_classes: int, mesh: DeviceMesh) -> tuple[int, int]:
    """The first class of this process, and the one after its last: blocks of equal size, of which the last is shorter.

    This is how `Shard` divides a tensor.
    """
    classes = _class_mesh(mesh)
    size = -(-num_classes // classes.size())
    start = min(size * classes.get_local_rank(), num_classes)
    return start, min(start + size, num_classes)


def _class_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The last dimension of a mesh: the processes that together hold all classes once."""
    if mesh.ndim == 1:
        return mesh
    if mesh.mesh_dim_names is None:
        raise ValueError("the dimensions of a mesh of two need names: init_device_mesh(..., mesh_dim_names=(...))")
    return mesh[mesh.mesh_dim_names[-1]]


def _check_shardable(head: nn.Module, mesh: DeviceMesh) -> None:
    if not isinstance(head, CapsuleProjection) or isinstance(head, ShardedProjection):
        raise ValueError(f"shard_classes takes a CapsuleProjection that is not sharded yet, got {type(head).__name__}")
    if parametrize.is_parametrized(head):
        raise ValueError("a head with parametrized tensors can't be sharded: remove the parametrizations first")
    if mesh.ndim > 2:
        raise ValueError(f"a mesh has one dimension, for classes, or two, for data and classes; got {mesh.ndim}")
    processes, L = _class_mesh(mesh).size(), head.num_classes
    size = -(-L // processes)
    if size * (processes - 1) >= L:
        raise ValueError(
            f"{L} classes can't be spread over {processes} processes: in blocks of {size} some processes would have "
            f"none; use at most {-(-L // size)}"
        )


def _sliced(head: CapsuleProjection, start: int, end: int) -> dict[str, Tensor]:
    """Copies of this process's share of the state: a view would keep the whole in memory."""
    state = {name: tensor.detach() for name, tensor in head.state_dict().items()}
    return {name: tensor[start:end].clone() if tensor.ndim else tensor.clone() for name, tensor in state.items()}


def _drawn(head: CapsuleProjection, start: int, end: int, device: str) -> dict[str, Tensor]:
    """The state of a new head for these classes.

    Every process draws the numbers of all classes, some at a time, and keeps its own: the bases do not depend on how
    many processes there are, and the generator ends where it would in one.
    """
    L, c, d = head.weight.shape
    options: dict[str, Any] = {
        "solver": head.solver,
        "normalize": head.normalize,
        "scale": "learned" if isinstance(head.scale, Tensor) else head.scale,
        "dtype": head.weight.dtype,
    }
    weight = torch.empty(end - start, c, d, dtype=head.weight.dtype)
    step = max(1, DRAWN_AT_ONCE // (c * d))
    for first in range(0, L, step):
        block = CapsuleProjection(d, min(step, L - first), c, **options)
        low, high = max(first, start), min(first + len(block.weight), end)
        if low < high:
            weight[low - start : high - start] = block.weight.detach()[low - first : high - first]
    state = {name: tensor.detach() for name, tensor in block.state_dict().items()}
    if head.solver == "hyperpower":
        state["sigma"] = torch.zeros(end - start, c, c, dtype=state["sigma"].dtype)
    return {name: tensor.to(device) for name, tensor in {**state, "weight": weight}.items()}


def _copy_from_first(share: Tensor, mesh: DeviceMesh, *, whole: bool) -> None:
    """Give copies of the same tensor the same numbers: those along the data dimension, or, `whole`, all of them."""
    if mesh.ndim == 2:
        dist.broadcast(share, group=mesh.get_group(0), group_src=0)
    if whole:
        dist.broadcast(share, group=_class_mesh(mesh).get_group(), group_src=0)


def _device(mesh: DeviceMesh) -> torch.device:
    if mesh.device_type == "cpu":
        return torch.device("cpu")
    return torch.device(mesh.device_type, torch.get_device_module(mesh.device_type).current_device())


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
