"""A trained model as a file that other programs run: ONNX, a PyTorch program, or weights with the folded head.

The file takes decoded images, integers from 0 to 255, and contains the class names; running it does not need this
package. Every file is run once and its scores are compared with the model's before it gets its final name.
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

from cappronet.data.normalization import Normalization
from cappronet.extras import require
from cappronet.models.network import CapProNet
from cappronet.models.weight_files import write_tensors

__all__ = ["FORMATS", "Deployed", "Exported", "description", "export"]

# The largest accepted difference to the model's scores, relative to the largest score if that is above 1.
TOLERANCE = 1e-4
# Sizes of the batches that a file is checked with; the first one is traced.
BATCH_SIZES = (2, 1, 5)
OUTPUTS = ["scores", "probabilities"]


class Deployed(nn.Module):
    """A model for inference, including its preprocessing, with the head folded into one linear map and a norm.

    Takes `images`, uint8 `(B, C, H, W)`, or, where the backbone is `features`, `features`, float32 `(B, d)`.
    """

    factor: Tensor
    summand: Tensor

    def __init__(self, model: CapProNet) -> None:
        super().__init__()
        self.model = model
        self.head = model.head.fold() if hasattr(model.head, "fold") else model.head  # type: ignore[operator]
        self.pixels = not model.takes_vectors
        self.register_buffer("factor", model.normalization.factor)
        self.register_buffer("summand", model.normalization.summand)
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The score of each class, for a capsule head its length, and its probability, both `(B, L)`."""
        scores = self.head(self.model.features(self.prepared(x)))
        return scores, scores.softmax(-1)

    def prepared(self, x: Tensor) -> Tensor:
        """Inputs as the model takes them."""
        return Normalization(self.factor, self.summand)(x) if self.pixels else x.float()

    def example(self, count: int) -> Tensor:
        """Random inputs of the right type and shape."""
        shape, generator = (count, *self.model.input_shape), torch.Generator().manual_seed(count)
        if not self.pixels:
            return torch.randn(shape, generator=generator)
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8)

    @property
    def input_name(self) -> str:
        """The name of the input in the file."""
        return "images" if self.pixels else "features"


@dataclass(frozen=True)
class Exported:
    """A file that was written and checked.

    Attributes:
        path: the file.
        deviation: the largest difference to the model's scores, relative to the largest score if that is above 1.
    """

    path: Path
    deviation: float


def export(model: CapProNet, path: str | Path, kind: str = "onnx") -> Exported:
    """Write a model as a file that runs without this package, and check that it computes the same.

    Args:
        model: a trained model.
        path: the file, which must not exist yet.
        kind: `"onnx"`, for onnxruntime and others; `"torch-export"`, for `torch.export.load`; `"safetensors"`, the
            weights with the folded head, for your own implementation of the network.

    Raises:
        FileExistsError: the file exists.
        ValueError: the written file computes something else than the model; it is deleted.
    """
    path = Path(path)
    if kind not in FORMATS:
        raise ValueError(f"unknown format {kind!r}; choose one of {', '.join(FORMATS)}")
    if path.exists():
        raise FileExistsError(f"{path} exists; delete it or choose another file with --output")
    path.parent.mkdir(parents=True, exist_ok=True)
    form = FORMATS[kind]
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        with torch.no_grad():
            deployed = Deployed(model.eval())
            form.write(deployed, temporary)
            run = form.load(temporary, deployed)
            deviation = max(_deviation(run(x), deployed, x) for x in map(deployed.example, BATCH_SIZES))
        if not deviation <= TOLERANCE:
            raise ValueError(
                f"scores of the {kind} file differ from the model's by {deviation:.2g}; nothing was written"
            )
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(path, deviation)


def _deviation(scores: Tensor, deployed: Deployed, x: Tensor) -> float:
    """From the scores of the model with its head as trained."""
    expected = deployed.model(deployed.prepared(x))
    return float((scores - expected).abs().max() / expected.abs().max().clamp_min(1))


def description(model: CapProNet) -> dict[str, Any]:
    """What a program needs to know about the file, as plain values."""
    config = model.config
    takes = {"name": "images", "type": "uint8", "shape": ["batch", *model.input_shape]}
    if model.takes_vectors:
        takes |= {"name": "features", "type": "float32"}
        preprocessing = "none: the same features that the model was fitted to"
    else:
        channels, height, width = model.input_shape
        colours = "grey" if channels == 1 else "RGB"
        size = f"{height} x {width}"
        scale = (
            f"shorter side to {model.file_crop.shorter_side}, center crop {size}" if config["files"] else f"to {size}"
        )
        preprocessing = f"{colours}, scaled {scale}, channels first, 0 to 255; the file normalizes them itself"
    return {
        "classes": [str(name) for name in config["classes"]],
        "input": takes,
        "preprocessing": preprocessing,
        "outputs": {"scores": "one per class; the capsule length for a capsule head", "probabilities": "their softmax"},
        "model": config,
        "cappronet": version("cappronet"),
    }


def _as_text(model: CapProNet) -> dict[str, str]:
    """For formats whose metadata is text: strings unchanged, everything else as JSON."""
    values = description(model)
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def _program(deployed: Deployed) -> Any:
    """The traced program, for any batch size."""
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(deployed, (deployed.example(BATCH_SIZES[0]),), dynamic_shapes=({0: batch},))


def _write_onnx(deployed: Deployed, path: Path) -> None:
    for module in ("onnx", "onnxscript", "onnxruntime"):
        require(module, "export")
    program = torch.onnx.export(
        deployed,
        (deployed.example(BATCH_SIZES[0]),),
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
    write_tensors(path, _folded(deployed), _as_text(deployed.model))


def _folded(deployed: Deployed) -> dict[str, Tensor]:
    """The tensors of the backbone and of the folded head, under the names of the model."""
    return {
        f"{part}.{name}": tensor
        for part, module in _parts(deployed).items()
        for name, tensor in module.state_dict().items()
    }


def _parts(deployed: Deployed) -> dict[str, nn.Module]:
    """What has weights: the backbone, the centring of its features if there is one, and the folded head."""
    model = deployed.model
    centering = {} if model.centering is None else {"centering": model.centering}
    return {"backbone": model.backbone, **centering, "head": deployed.head}


def _load_weights(path: Path, deployed: Deployed) -> Callable[[Tensor], Tensor]:
    """The same network with the weights of the file."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    loaded = Deployed(CapProNet(**deployed.model.config))
    for name, module in _parts(loaded).items():
        prefix = f"{name}."
        module.load_state_dict({key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)})
    return lambda x: loaded(x)[0]


@dataclass(frozen=True)
class Format:
    """How a kind of file is written and, for the check, run."""

    suffix: str
    write: Callable[[Deployed, Path], None]
    load: Callable[[Path, Deployed], Callable[[Tensor], Tensor]]


FORMATS: Mapping[str, Format] = {
    "onnx": Format(".onnx", _write_onnx, _load_onnx),
    "torch-export": Format(".pt2", _write_program, _load_program),
    "safetensors": Format(".safetensors", _write_weights, _load_weights),
}
