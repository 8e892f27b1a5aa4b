"""A trained model as a file that other programs run: ONNX, a PyTorch program, or weights with the folded head.

What is written takes images as they are decoded, whole numbers from 0 to 255, and carries the names of its classes. It
needs nothing of this package. Before it gets its name it is run, and its scores are compared with the model's.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cappronet.batches import RESIZED
from cappronet.extras import require
from cappronet.model import CapProNet

__all__ = ["FORMATS", "Deployed", "Exported", "description", "export"]

# The largest difference to the model's scores, relative to the largest of them where that is above 1.
TOLERANCE = 1e-4
# Batches that a file is checked with; the first is what it is made from.
BATCHES = (2, 1, 5)
OUTPUTS = ["scores", "probabilities"]


class Deployed(nn.Module):
    """A model for inference with its preprocessing inside and its head folded: one linear map and a norm.

    Takes `images`, uint8 `(B, C, H, W)`, or, where the backbone is `features`, `features`, float32 `(B, d)`.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: CapProNet) -> None:
        super().__init__()
        self.model = model
        self.head = model.head.fold() if hasattr(model.head, "fold") else model.head  # type: ignore[operator]
        self.pixels = model.config["backbone"] != "features"
        shape = (-1, 1, 1) if self.pixels else (-1,)
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(model.config[name]).view(shape))
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The score of each class, for a capsule head its length, and its probability, both `(B, L)`."""
        scores = self.head(self.model.features(self.prepared(x)))
        return scores, scores.softmax(-1)

    def prepared(self, x: Tensor) -> Tensor:
        """Inputs as the model takes them."""
        return ((x.float() / 255 if self.pixels else x) - self.mean) / self.std

    def example(self, count: int) -> Tensor:
        """So many inputs of the right type and shape, of noise."""
        shape, generator = (count, *self.model.input_shape), torch.Generator().manual_seed(count)
        if not self.pixels:
            return torch.randn(shape, generator=generator)
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8)

    @property
    def input_name(self) -> str:
        """What the input is called in the file."""
        return "images" if self.pixels else "features"


@dataclass(frozen=True)
class Exported:
    """A file that was written and checked.

    Attributes:
        path: where it is.
        deviation: how far its scores are from the model's, at most, relative to the largest where that is above 1.
    """

    path: Path
    deviation: float


def export(model: CapProNet, path: str | Path, kind: str = "onnx") -> Exported:
    """Write a model as a file that runs without this package, and check that it computes the same.

    Args:
        model: a trained model.
        path: the file; one that exists is never touched.
        kind: `"onnx"`, for onnxruntime and others; `"torch-export"`, for `torch.export.load`; `"safetensors"`, the
            weights with the head folded, for whoever writes the network anew.

    Raises:
        FileExistsError: there is such a file.
        ValueError: what was written computes something else than the model; it is removed.
    """
    path = Path(path)
    if kind not in FORMATS:
        raise ValueError(f"unknown format {kind!r}; known are {', '.join(FORMATS)}")
    if path.exists():
        raise FileExistsError(f"{path} exists; remove it or choose another file with --output")
    path.parent.mkdir(parents=True, exist_ok=True)
    form = FORMATS[kind]
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        with torch.no_grad():
            deployed = Deployed(model.eval())
            form.write(deployed, temporary)
            run = form.load(temporary, deployed)
            deviation = max(_deviation(run(x), deployed, x) for x in map(deployed.example, BATCHES))
        if not deviation <= TOLERANCE:
            raise ValueError(f"the {kind} file would differ by {deviation:.2g} from the model; nothing was written")
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(path, deviation)


def _deviation(found: Tensor, deployed: Deployed, x: Tensor) -> float:
    """Against the model with its head as it was trained."""
    scores = deployed.model(deployed.prepared(x))
    return float((found - scores).abs().max() / scores.abs().max().clamp_min(1))


def description(model: CapProNet) -> dict[str, Any]:
    """What a program needs to know of the file, in plain values."""
    config = model.config
    takes = {"name": "images", "type": "uint8", "shape": ["batch", *model.input_shape]}
    if config["backbone"] == "features":
        takes |= {"name": "features", "type": "float32"}
        prepare = "feature vectors as the model was fitted to"
    else:
        channels, height, width = model.input_shape
        colours = "grey" if channels == 1 else "RGB"
        size = f"{height} x {width}"
        scale = f"shorter side to {RESIZED}, then the middle {size}" if config["files"] else f"to {size}"
        prepare = f"{colours}, scaled {scale}, channels first, 0 to 255; the rest is in the file"
    return {
        "classes": [str(name) for name in config["classes"]],
        "input": takes,
        "preprocessing": prepare,
        "outputs": {"scores": "of each class; capsule lengths for a capsule head", "probabilities": "their softmax"},
        "model": config,
        "cappronet": version("cappronet"),
    }


def _as_text(model: CapProNet) -> dict[str, str]:
    """For formats that hold nothing but text beside their numbers: strings as they are, the rest as JSON."""
    values = description(model)
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def _program(deployed: Deployed) -> Any:
    """The traced program, for any size of the batch."""
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(deployed, (deployed.example(BATCHES[0]),), dynamic_shapes=({0: batch},))


def _write_onnx(deployed: Deployed, path: Path) -> None:
    for module in ("onnx", "onnxscript", "onnxruntime"):
        require(module, "export")
    program = torch.onnx.export(
        deployed,
        (deployed.example(BATCHES[0]),),
        input_names=[deployed.input_name],
        output_names=OUTPUTS,
        dynamic_shapes=({0: "batch"},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(_as_text(deployed.model))
    program.save(path, external_data=False)


def _load_onnx(path: Path, deployed: Deployed) -> Callable[[Tensor], Tensor]:
    runtime = require("onnxruntime", "export")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(["scores"], {deployed.input_name: x.numpy()})[0])


def _write_program(deployed: Deployed, path: Path) -> None:
    texts = {f"{name}.json": json.dumps(value) for name, value in description(deployed.model).items()}
    with path.open("wb") as file:
        torch.export.save(_program(deployed), file, extra_files=texts)


def _load_program(path: Path, _deployed: Deployed) -> Callable[[Tensor], Tensor]:
    with path.open("rb") as file:
        run = torch.export.load(file).module()
    return lambda x: run(x)[0]


def _write_weights(deployed: Deployed, path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in _folded(deployed).items()}, path, _as_text(deployed.model))


def _folded(deployed: Deployed) -> dict[str, Tensor]:
    """The backbone's tensors and the head's, under the names that the model has for them."""
    backbone = {f"backbone.{name}": tensor for name, tensor in deployed.model.backbone.state_dict().items()}
    return {**backbone, **{f"head.{name}": tensor for name, tensor in deployed.head.state_dict().items()}}


def _load_weights(path: Path, deployed: Deployed) -> Callable[[Tensor], Tensor]:
    """The same network with the weights that the file holds."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    again = Deployed(CapProNet(**deployed.model.config))
    for name, module in (("backbone", again.model.backbone), ("head", again.head)):
        prefix = f"{name}."
        module.load_state_dict({key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)})
    return lambda x: again(x)[0]


@dataclass(frozen=True)
class Format:
    """How a kind of file is written and, for the check, run."""

    ending: str
    write: Callable[[Deployed, Path], None]
    load: Callable[[Path, Deployed], Callable[[Tensor], Tensor]]


FORMATS: Mapping[str, Format] = {
    "onnx": Format(".onnx", _write_onnx, _load_onnx),
    "torch-export": Format(".pt2", _write_program, _load_program),
    "safetensors": Format(".safetensors", _write_weights, _load_weights),
}
