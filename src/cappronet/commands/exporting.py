"""`export`: a trained model as a file that other programs run."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cappronet.commands.shared import console

__all__ = ["export"]


def export(
    run: Path,
    /,
    *,
    kind: Annotated[Literal["onnx", "torch-export", "safetensors"], Parameter(name="--format")] = "onnx",
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> None:
    """Write a trained model as a file that runs without this package, and check it against the model.

    The file takes images as they are decoded, uint8 from 0 to 255, in batches of any size. It holds the normalization,
    the head folded to one linear map and a norm, and the names of the classes.

    Parameters
    ----------
    run
        The folder of a finished run.
    kind
        onnx: for onnxruntime and other engines. torch-export: for torch.export.load, in Python or C++. safetensors: the
        weights with the head folded, to be read into a network of your own.
    output
        The file; by default `exported` with the format's ending, in the run's folder.
    """
    from cappronet.export import FORMATS, description
    from cappronet.export import export as write
    from cappronet.model import CapProNet

    path = output or run / f"exported{FORMATS[kind].ending}"
    model = CapProNet.from_pretrained(run)
    with console.status(f"Exporting to {path}"):
        done = write(model, path, kind)
    about = description(model)
    shape = ", ".join(str(size) for size in about["input"]["shape"])
    lines = {
        "input": f"{about['input']['name']}, {about['input']['type']} ({shape})",
        "prepare": about["preprocessing"],
        "output": f"scores and probabilities, float32 (batch, {len(about['classes'])})",
        "checked": f"scores within {done.deviation:.1g} of the model's",
    }
    console.print(
        f"Written to {done.path} ({done.path.stat().st_size / 2**20:.1f} MB)", soft_wrap=True, highlight=False
    )
    for name, text in lines.items():
        console.print(f"  {name:<8} {text}", soft_wrap=True, highlight=False)
