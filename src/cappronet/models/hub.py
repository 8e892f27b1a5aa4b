"""A model as a folder, on disk or on the Hugging Face Hub. Nothing in it is executed when it is loaded.

config.json          the arguments of `CapProNet`, and the SHA-256 of the weights and of these arguments
model.safetensors    its weights; of a large model, several files with an index
README.md            its card
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cappronet.data.files import in_use, nearest_sibling, one_line, sha256_of, write_atomically
from cappronet.extras import require
from cappronet.models.configuration import check_configuration, shown
from cappronet.models.weight_files import (
    COPY_AGAIN,
    DTYPES,
    INDEX,
    MOST_TEXT_BYTES,
    PARTS,
    WEIGHTS,
    Stored,
    read_text,
    weight_files,
    write_weights,
)

__all__ = [
    "CARD",
    "CONFIG",
    "check_digests",
    "check_weights",
    "describe",
    "located",
    "read_card",
    "read_config",
    "upload",
    "write",
]

CONFIG, CARD = "config.json", "README.md"
# A configuration has names of classes, which also have weights: at most this, and so much for each byte of the weights.
CONFIG_BYTES, CONFIG_BYTES_PER_BYTE = 2**20, 256
HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")


def write(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], card: str, max_shard_size: int | str
) -> None:
    """Write a model into a folder; an existing card is kept, since someone may have edited it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder, tensors, max_shard_size)
    describe(folder, config, card)


def describe(folder: Path, config: Mapping[str, Any], card: str) -> None:
    """Write the configuration and the card of a model whose weights are in the folder."""
    digests = {name: sha256_of(folder / name) for name in weight_files(folder)} | {CONFIG: _digest(config)}
    text = json.dumps({**config, "sha256": digests}, indent=1) + "\n"
    write_atomically(folder / CONFIG, text.encode())
    if not (folder / CARD).exists():
        write_atomically(folder / CARD, card.encode(errors="replace"))


def _digest(config: Mapping[str, Any]) -> str:
    """Of what a configuration says, however it is laid out in its file."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def located(name: str | Path, **options: Any) -> Path:
    """The folder of a model: a path, or a name on the hub such as `"someone/a-model"`, downloaded if necessary.

    Args:
        name: the path or the name; a name whose first part is a local folder is a path.
        options: for `huggingface_hub.snapshot_download`: `revision`, `token`, `cache_dir`, `local_files_only`.
    """
    folder = Path(name)
    on_hub = isinstance(name, str) and HUB_NAME.fullmatch(name) and not folder.parent.exists()
    if folder.exists() or not on_hub:
        if not folder.exists():
            raise FileNotFoundError(f"there is no folder {folder}{nearest_sibling(folder)}")
        for file in (CONFIG, *weight_files(folder)):
            if not (folder / file).is_file():  # a pipe or a device is none: reading it may not end
                _refuse_unfinished(folder)
                state = "is not a regular file" if (folder / file).exists() else "is missing"
                raise FileNotFoundError(f"{folder} contains no model: {file} {state}; {_remedy(folder)}")
        return folder
    hub = require("huggingface_hub", "hub")
    try:
        downloaded = hub.snapshot_download(str(name), allow_patterns=[CONFIG, WEIGHTS, INDEX, PARTS, CARD], **options)
    except (OSError, ValueError, require("huggingface_hub.errors", "hub").HfHubHTTPError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise OSError(f"there is no folder {name}, and it can't be downloaded from the hub: {reason}") from error
    return located(Path(downloaded))


def _refuse_unfinished(folder: Path) -> None:
    """An error if a folder without a model is that of a run: it gets its model at the end."""
    if in_use(folder):
        raise FileNotFoundError(f"the run in {folder} is in progress in another process: wait until it ends")
    if (folder / "recipe.toml").is_file():
        raise FileNotFoundError(f"{folder} is not finished; resume it with: cappronet train --resume {folder}")


def _remedy(folder: Path) -> str:
    """What to do about a folder without a model."""
    pickles = [
        path.name for path in sorted(folder.glob("*")) if path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt")
    ]
    if pickles:
        return f"{pickles[0]} could execute code and is not loaded; save the model with save_pretrained"
    return "give the folder of a finished run or of save_pretrained"


def read_config(folder: Path, stored: Mapping[str, Stored]) -> tuple[dict[str, Any], Any]:
    """The arguments of a model, with sizes that fit the weights, and the digests that its files had when written."""
    path = folder / CONFIG
    size = sum((folder / name).stat().st_size for name in weight_files(folder))
    most = min(MOST_TEXT_BYTES, CONFIG_BYTES + CONFIG_BYTES_PER_BYTE * size)
    try:
        config = json.loads(read_text(path, most))
    except (ValueError, RecursionError) as error:  # JSON, Unicode, numbers of thousands of digits
        raise ValueError(f"{path} does not describe a model ({one_line(error)}); {COPY_AGAIN}") from None
    digests = config.pop("sha256", None) if isinstance(config, dict) else None
    try:
        check_configuration(config, {name: tensor.shape for name, tensor in stored.items()})
    except ValueError as error:
        raise ValueError(f"{path} does not describe a model: {error}") from None
    return config, digests


def check_weights(folder: Path, stored: Mapping[str, Stored], expected: Mapping[str, Tensor]) -> None:
    """Compare names, shapes and types in the weights files with `expected`, whose tensors may be `meta`."""
    problem = _difference(stored, expected)
    if problem:
        raise ValueError(f"{folder / weight_files(folder)[0]} does not match {CONFIG}: {problem}")


def check_digests(folder: Path, config: Mapping[str, Any], digests: Any) -> None:
    """Compare all files with the digests in config.json. Models of earlier versions have none, and are accepted."""
    if digests is None:
        return
    files = weight_files(folder)
    if not isinstance(digests, dict) or set(digests) != {*files, CONFIG}:
        raise ValueError(
            f"{folder / CONFIG} is damaged: its sha256 does not name {', '.join(files)} and {CONFIG}; {COPY_AGAIN}"
        )
    for name in (CONFIG, *files):
        if digests[name] != (_digest(config) if name == CONFIG else sha256_of(folder / name)):
            raise ValueError(
                f"{folder / name} is damaged or was changed: its SHA-256 is not the one in {CONFIG}; {COPY_AGAIN}. "
                f"If you changed it on purpose, delete the entry sha256 in {CONFIG}"
            )


def _difference(stored: Mapping[str, Stored], expected: Mapping[str, Tensor]) -> str:
    """The first difference in names, shapes and types, as text; empty if there is none."""
    for name, tensor in expected.items():
        if name not in stored:
            return f"it has no {name}"
        dtype, shape = stored[name]
        if shape != tuple(tensor.shape):
            return f"{name} is {shown(shape)}, expected {tuple(tensor.shape)}"
        if not _converts(DTYPES.get(dtype), tensor.dtype):
            return f"{name} is {dtype}, expected {tensor.dtype}; save the model in that precision"
    more = [name for name in stored if name not in expected]
    return f"it has an unexpected {shown(more[0])}" if more else ""


def _converts(dtype: torch.dtype | None, expected: torch.dtype) -> bool:
    """Whether every value of one type is a value of the other: half precision in float32, nothing else."""
    if dtype is None or dtype == expected:
        return dtype is not None
    both = dtype.is_floating_point and expected.is_floating_point
    return both and torch.promote_types(dtype, expected) == expected


def read_card(folder: Path) -> str:
    """The card of a model; empty if it is missing or can't be read."""
    try:
        return read_text(folder / CARD, MOST_TEXT_BYTES)
    except (OSError, ValueError):
        return ""


def upload(folder: Path, name: str, *, private: bool | None, token: str | None, message: str) -> str:
    """Upload a saved model to the hub as one commit; return the address of that commit."""
    hub = require("huggingface_hub", "hub")
    api = hub.HfApi(token=token)
    try:
        repository = api.create_repo(name, private=private, exist_ok=True).repo_id
        return str(api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message))
    except (OSError, ValueError, require("huggingface_hub.errors", "hub").HfHubHTTPError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise OSError(f"{name} could not be uploaded to the hub: {reason}; log in with: hf auth login") from error
