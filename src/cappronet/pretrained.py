"""A model as a folder, here or on the Hugging Face Hub: how to build it, its weights, its card. None of it is executed.

config.json          the arguments of `CapProNet`
model.safetensors    its weights
README.md            its card
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from cappronet.extras import require

__all__ = ["CARD", "CONFIG", "WEIGHTS", "located", "read_card", "read_config", "read_weights", "upload", "write"]

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
# Longer than any card or configuration; a file of another kind is not read into memory.
LARGEST_TEXT = 64 * 2**20
HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], card: str) -> None:
    """Write a model into a folder; a card that is there already stays, since someone may have written on it."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, folder / WEIGHTS)
    except SafetensorError as error:
        raise OSError(f"the model could not be written to {folder}; is the disk full? ({error})") from error
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    if not (folder / CARD).exists():
        (folder / CARD).write_text(card, encoding="utf-8")


def located(name: str | Path, **options: Any) -> Path:
    """The folder of a model: a path, or a name on the hub such as `"someone/a-model"`, downloaded if need be.

    Args:
        name: a path, or the name; a name whose first part is a folder here is taken as a path.
        options: for `huggingface_hub.snapshot_download`: `revision`, `token`, `cache_dir`, `local_files_only`.
    """
    folder = Path(name)
    on_hub = isinstance(name, str) and HUB_NAME.fullmatch(name) and not folder.parent.exists()
    if folder.exists() or not on_hub:
        for file in (CONFIG, WEIGHTS):
            if not (folder / file).is_file():
                raise FileNotFoundError(f"{folder} holds no model: {file} is missing; {_instead(folder)}")
        return folder
    hub = require("huggingface_hub", "hub")
    try:
        place = hub.snapshot_download(str(name), allow_patterns=[CONFIG, WEIGHTS, CARD], **options)
    except (OSError, ValueError, require("huggingface_hub.errors", "hub").HfHubHTTPError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise OSError(f"there is no folder {name} here, and it can't be had from the hub: {reason}") from error
    return located(Path(place))


def _instead(folder: Path) -> str:
    """What a folder without a model has, or should have."""
    pickles = [
        path.name for path in sorted(folder.glob("*")) if path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt")
    ]
    return f"{pickles[0]} could execute code and is not loaded" if pickles else "a finished run has it"


def read_config(folder: Path) -> dict[str, Any]:
    """The arguments of a model, as plain values whose sizes agree with each other."""
    path = folder / CONFIG
    try:
        config = json.loads(_text(path))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} does not describe a model: {error}") from None
    # Defaults of these would be as long as the number says, and the number comes from elsewhere.
    for name, size in (("classes", "num_classes"), ("mean", "in_channels"), ("std", "in_channels")):
        value = config.get(name) if isinstance(config, dict) else None
        if not isinstance(value, list) or len(value) != config.get(size):
            raise ValueError(f"{path} does not describe a model: {name} must be a list with {size} entries")
    return config


def read_weights(folder: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights, once their names and shapes are known to be those of `expected`, whose tensors may be `meta`."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        problem = _difference(shapes, {name: tuple(tensor.shape) for name, tensor in expected.items()})
        if problem:
            raise ValueError(f"{path} holds another model than {CONFIG} describes: {problem}")
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged, or no safetensors file: {error}") from None


def _difference(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> str:
    """The first difference in names and shapes, in words."""
    for name, shape in expected.items():
        if name not in found:
            return f"it has no {name}"
        if found[name] != shape:
            return f"{name} is {found[name]}, expected {shape}"
    more = [name for name in found if name not in expected]
    return f"it has {more[0]} too" if more else ""


def read_card(folder: Path) -> str:
    """The card of a model; empty if there is none that can be read."""
    try:
        return _text(folder / CARD)
    except (OSError, ValueError):
        return ""


def _text(path: Path) -> str:
    if path.stat().st_size > LARGEST_TEXT:
        raise ValueError(f"{path} is too large for what it should be: {path.stat().st_size:,} bytes")
    return path.read_text(encoding="utf-8")


def upload(folder: Path, name: str, *, private: bool | None, token: str | None, message: str) -> str:
    """Send a saved model to the hub under a name, as one commit; the address of that commit."""
    hub = require("huggingface_hub", "hub")
    api = hub.HfApi(token=token)
    try:
        place = api.create_repo(name, private=private, exist_ok=True).repo_id
        return str(api.upload_folder(repo_id=place, folder_path=folder, commit_message=message))
    except (OSError, ValueError, require("huggingface_hub.errors", "hub").HfHubHTTPError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise OSError(f"{name} could not be sent to the hub: {reason}; log in with: hf auth login") from error
