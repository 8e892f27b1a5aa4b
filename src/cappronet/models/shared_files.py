"""Safetensors files that several processes write together, each its own rows: none of them holds a tensor whole.

The rows of a tensor follow each other in the file, so a process that knows the shapes knows where its own belong. What
results is a file as any other. Reading takes the rows that a process needs, however many processes wrote them.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from cappronet.models.weight_files import DTYPES, MAX_SHARD_SIZE, by_file, write_index

__all__ = ["local_rows", "read_rows", "write_together", "write_weights_together"]

ALIGNMENT = 8


def local_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """What this process writes of a tensor, and the number of its first row: nothing of what others have too."""
    if not isinstance(tensor, DTensor):
        return (tensor if dist.get_rank() == 0 else tensor.new_empty(0)), 0
    mesh, placement = tensor.device_mesh, tensor.placements[-1]
    first_copy = all(number == 0 for number in (mesh.get_coordinate() or [0])[:-1])
    if placement.is_shard(0):
        start = -(-tensor.shape[0] // mesh.size(-1)) * mesh.get_local_rank(mesh.ndim - 1)
        return (tensor.to_local() if first_copy else tensor.to_local()[:0]), start
    if not placement.is_replicate():
        raise ValueError(f"only tensors that are sharded by rows can be written, this one is {tensor.placements}")
    return (tensor.to_local() if dist.get_rank() == 0 else tensor.to_local().new_empty(0)), 0


def write_weights_together(
    folder: Path,
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    max_shard_size: int | str = MAX_SHARD_SIZE,
) -> None:
    """Write the weights of a model from all processes: one file or, above a size, several with an index.

    Args:
        folder: on a file system that all processes share.
        tensors: the same names and shapes in all processes.
        expected: what a model in one process holds, on the meta device: the order and the types of what is written.
        max_shard_size: as `CapProNet.save_pretrained` takes it.
    """
    files = by_file(expected, max_shard_size)
    for file, names in files.items():
        write_together(folder / file, {name: tensors[name] for name in names}, {n: expected[n].dtype for n in names})
    if dist.get_rank() == 0:
        write_index(folder, files, expected)
    dist.barrier()


def write_together(path: Path, tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype] | None = None) -> None:
    """Write a safetensors file from all processes, in place of an older one once it is safely on the disk.

    Args:
        path: the file, on a file system that all processes share.
        tensors: the same names and shapes in all processes.
        dtypes: what to write tensors as; by default as they are.
    """
    kinds = {name: (dtypes or {}).get(name, tensor.dtype) for name, tensor in tensors.items()}
    header, offsets, size = _header({name: (tensor.shape, kinds[name]) for name, tensor in tensors.items()})
    temporary = path.with_name(f".{path.name}.{_first_process()}")

    def allocate() -> None:
        if dist.get_rank() == 0:
            temporary.write_bytes(header)
            os.truncate(temporary, len(header) + size)

    def write() -> None:
        with temporary.open("rb+") as file:
            for name, tensor in tensors.items():
                rows, start = local_rows(tensor.detach())
                if not rows.numel():
                    continue
                width = math.prod(tensor.shape[1:]) * kinds[name].itemsize
                file.seek(len(header) + offsets[name] + start * width)
                file.write(_bytes(rows.to("cpu", kinds[name])))
            file.flush()
            os.fsync(file.fileno())

    try:
        _together(allocate, path)
        _together(write, path)
    except OSError:
        if dist.get_rank() == 0:
            temporary.unlink(missing_ok=True)
        raise
    if dist.get_rank() == 0:
        temporary.replace(path)
    dist.barrier()


def _together(work: Callable[[], None], path: Path) -> None:
    """Do something in all processes; where it fails in one, it fails in all."""
    failure = ""
    try:
        work()
    except OSError as error:
        failure = str(error)
    failures: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(failures, failure)
    if any(failures):
        raise OSError(f"{path} could not be written: {max(failures)}; do all processes share the folder?")


def read_rows(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors, in place, with their rows in a file: of a sharded tensor, with those of this process."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            for name, tensor in tensors.items():
                local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                stored = file.get_slice(name)
                if tuple(stored.get_shape()) != tuple(tensor.shape):
                    raise ValueError(f"{path}: {name} is {stored.get_shape()}, expected {tuple(tensor.shape)}")
                if not tensor.ndim:
                    local.copy_(file.get_tensor(name))
                elif local.numel():
                    start = 0
                    if isinstance(tensor, DTensor) and tensor.placements[-1].is_shard(0):
                        mesh = tensor.device_mesh
                        start = -(-tensor.shape[0] // mesh.size(-1)) * mesh.get_local_rank(mesh.ndim - 1)
                    local.copy_(stored[start : start + len(local)])
    except SafetensorError as error:
        raise ValueError(f"{path} can't be read: {error}") from None


def _header(tensors: Mapping[str, tuple[torch.Size, torch.dtype]]) -> tuple[bytes, dict[str, int], int]:
    """The beginning of a safetensors file, where each tensor begins after it, and the bytes of all of them."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    entries: dict[str, object] = {}
    offsets, position = {}, 0
    # By falling width of their numbers, as the library writes them: everything is aligned.
    for name, (shape, dtype) in sorted(tensors.items(), key=lambda item: (-item[1][1].itemsize, item[0])):
        end = position + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": names[dtype], "shape": list(shape), "data_offsets": [position, end]}
        offsets[name], position = position, end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, offsets, position


def _bytes(rows: Tensor) -> Any:
    return memoryview(rows.contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _first_process() -> int:
    """The process id of rank 0, by which a file of a killed run is recognized."""
    number = [os.getpid()]
    dist.broadcast_object_list(number, src=0)
    return number[0]
