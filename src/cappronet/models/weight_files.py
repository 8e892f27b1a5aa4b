"""The weights of a model as safetensors files: one or, above a size, several with an index, as the hub has them.

model.safetensors                   all weights; or
model-00001-of-0000N.safetensors    some of them, each tensor whole in one file
model.safetensors.index.json        which tensor is in which file
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cappronet.data.files import one_line, replace_file, write_atomically
from cappronet.models.configuration import shown

__all__ = [
    "COPY_AGAIN",
    "DTYPES",
    "INDEX",
    "MAX_SHARD_SIZE",
    "MOST_TEXT_BYTES",
    "PARTS",
    "WEIGHTS",
    "Stored",
    "by_file",
    "load_weights",
    "read_header",
    "read_text",
    "weight_files",
    "write_index",
    "write_tensors",
    "write_weights",
]

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# The names of files with some of the weights: for downloads, and with their number and how many there are.
PARTS = "model-*-of-*.safetensors"
PART = re.compile(r"model-([0-9]{5})-of-([0-9]{5})\.safetensors")
# As the hub's own libraries have it: larger models are easier to download in parts.
MAX_SHARD_SIZE = "5GB"
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
# Larger than any index, card or configuration; a larger file is not read into memory.
MOST_TEXT_BYTES = 64 * 2**20
# An index has less text for a tensor than the header of its file: at most this, and the bytes of all files.
INDEX_BYTES = 2**20
COPY_AGAIN = "copy or download the model again, or save it again with save_pretrained"
# The types of torch by their names in safetensors files.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class Stored(NamedTuple):
    """What the header of a weights file says of one tensor."""

    dtype: str
    shape: tuple[int, ...]


def by_file(tensors: Mapping[str, Tensor], max_shard_size: int | str = MAX_SHARD_SIZE) -> dict[str, list[str]]:
    """The names of tensors, by the file they belong in: one, or several of at most this size.

    Tensors keep their order. One that is larger than the size has a file of its own, since an index can't split it.

    Args:
        tensors: of any device, `meta` included.
        max_shard_size: bytes, or a number with KB, MB, GB or TB, powers of 1,000.
    """
    most = _bytes_in(max_shard_size)
    files: list[list[str]] = [[]]
    room = most
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if files[-1] and size > room:
            files.append([])
            room = most
        files[-1].append(name)
        room -= size
    if len(files) == 1:
        return {WEIGHTS: files[0]}
    return {f"model-{i:05}-of-{len(files):05}.safetensors": names for i, names in enumerate(files, 1)}


def _bytes_in(size: int | str) -> int:
    text = str(size).strip().upper()
    number, factor = (text[:-2], UNITS[text[-2:]]) if text[-2:] in UNITS else (text, 1)
    try:
        result = int(float(number) * factor)
    except (ValueError, OverflowError):
        result = 0
    if result < 1:
        raise ValueError(f"max_shard_size must be a number of bytes or such as '500MB' or '5GB', got {size!r}")
    return result


def write_weights(folder: Path, tensors: Mapping[str, Tensor], max_shard_size: int | str = MAX_SHARD_SIZE) -> None:
    """Write the weights of a model, one file after the other, and remove what an earlier model had in other files."""
    files = by_file(tensors, max_shard_size)
    for file, names in files.items():
        write_tensors(folder / file, {name: tensors[name] for name in names})
    write_index(folder, files, tensors)


def write_index(folder: Path, files: Mapping[str, Iterable[str]], tensors: Mapping[str, Tensor]) -> None:
    """Write the index of several files, which are there already; remove the weights of an earlier model."""
    if WEIGHTS not in files:
        places = {name: file for file, names in files.items() for name in names}
        size = sum(tensors[name].numel() * tensors[name].element_size() for name in places)
        content = {"metadata": {"total_size": size}, "weight_map": places}
        write_atomically(folder / INDEX, (json.dumps(content, indent=1) + "\n").encode())
    earlier = {path.name for path in folder.iterdir() if PART.fullmatch(path.name)} | {WEIGHTS, INDEX}
    for name in earlier - {*files, INDEX if WEIGHTS not in files else ""}:
        (folder / name).unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with the permissions that other new files have; the library's own are 0600."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def save(temporary: Path) -> None:
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(contiguous, temporary, metadata)
        temporary.chmod(mode)

    try:
        replace_file(path, save)
    except SafetensorError as error:
        raise OSError(f"the model could not be written to {path.parent}; is the disk full? ({error})") from error


def weight_files(folder: Path) -> tuple[str, ...]:
    """The names of the files that a model's weights are in: one, or an index and those that it names.

    Raises:
        ValueError: the index is damaged, or names something else than files of this folder.
    """
    places = _index(folder)
    return (WEIGHTS,) if places is None else (INDEX, *sorted(set(places.values())))


def read_header(folder: Path) -> dict[str, Stored]:
    """What the weights files hold, by name; no tensor is read."""
    places = _index(folder)
    if places is None:
        return _header(folder / WEIGHTS)
    stored: dict[str, Stored] = {}
    for file in sorted(set(places.values())):
        header = _header(folder / file)
        expected = {name for name, place in places.items() if place == file}
        for name in sorted(expected ^ header.keys()):
            problem = "it has no" if name in expected else "it has an unexpected"
            raise ValueError(f"{folder / file} does not match {INDEX}: {problem} {shown(name)}; {COPY_AGAIN}")
        stored |= header
    return stored


def load_weights(folder: Path, model: nn.Module) -> None:
    """Copy the weights into a model, file by file; their names and shapes were checked before."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    for file in weight_files(folder):
        if file == INDEX:
            continue
        try:
            tensors = load_file(folder / file)
        except SafetensorError as error:
            raise ValueError(f"{folder / file} can't be read ({one_line(error):.200}); {COPY_AGAIN}") from None
        # Copies: kernels round differently on unaligned memory.
        model.load_state_dict(tensors, strict=file == WEIGHTS)


def _header(path: Path) -> dict[str, Stored]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: Stored(part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged or not a safetensors file ({one_line(error):.200}); {COPY_AGAIN}"
        ) from None


def _index(folder: Path) -> dict[str, str] | None:
    """The file of each tensor; None for a model in one file."""
    path = folder / INDEX
    if (folder / WEIGHTS).exists() or not path.exists():
        return None
    files = [file for file in folder.iterdir() if PART.fullmatch(file.name) and file.is_file()]
    try:
        most = min(MOST_TEXT_BYTES, INDEX_BYTES + sum(file.stat().st_size for file in files))
        content = json.loads(read_text(path, most))
        places = content.get("weight_map") if isinstance(content, dict) else None
        problem = _problem(places)
    except (ValueError, RecursionError) as error:
        problem = one_line(error)
    if problem:
        raise ValueError(f"{path} is no index of weights: {problem:.200}; {COPY_AGAIN}")
    return places


def _problem(places: Any) -> str:
    """What is wrong with the files that an index names; empty if nothing is. A name can't lead out of the folder."""
    if not isinstance(places, dict) or not places:
        return "weight_map must be an object from the name of each tensor to its file"
    matches = []
    for file in set(map(str, places.values())):
        match = PART.fullmatch(file)
        if match is None:
            return f"it names {shown(file)}, expected files such as model-00001-of-00002.safetensors"
        matches.append(match)
    numbers = sorted(int(match[1]) for match in matches)
    if {int(match[2]) for match in matches} != {len(numbers)} or numbers != list(range(1, len(numbers) + 1)):
        return f"its files must be numbered from 1 to how many there are, got {', '.join(m[0] for m in matches):.100}"
    return ""


def read_text(path: Path, most: int) -> str:
    """The text of a regular file of at most so many bytes."""
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is too large: {path.stat().st_size:,} bytes, expected at most {most:,}")
    return content.decode()
