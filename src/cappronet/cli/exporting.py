"""`export`: a trained model as a file that other programs run."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from cappronet.cli.display import print_text, printable
from cappronet.cli.shared import console

__all__ = ["export"]


def export(
    run: Path,
    /,
    *,
    kind: Annotated[Literal["onnx", "torch-export", "safetensors"], Parameter(name="--format")] = "onnx",
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> None:
    """Write a trained model as a file that runs without this package, and check it against the model.

    The file takes decoded images, uint8 from 0 to 255, in batches of any size. It contains the normalization, the head
    folded into one linear map and a norm, and the class names.

    Parameters
    ----------
    run
        The folder of a finished run.
    kind
        onnx: for onnxruntime and other engines. torch-export: for torch.export.load, in Python or C++. safetensors: the
        weights with the folded head, to load into your own implementation.
    output
        The file to write. By default `exported` with the format's suffix, in the run's folder.
    """
    from cappronet.models.export import FORMATS, description
    from cappronet.models.export import export as write
    from cappronet.models.network import CapProNet

    path = output or run / f"exported{FORMATS[kind].suffix}"
    model = CapProNet.from_pretrained(run)
    with console.status(Text(printable(f"Exporting to {path}"))):
        exported = write(model, path, kind)
    about = description(model)
    shape = ", ".join(str(size) for size in about["input"]["shape"])
    facts = {
        "input": f"{about['input']['name']}, {about['input']['type']} ({shape})",
        "prepare": about["preprocessing"],
        "output": f"scores and probabilities, float32 (batch, {len(about['classes'])})",
        "checked": f"scores within {exported.deviation:.1g} of the model's",
    }
    size = exported.path.stat().st_size / 2**20
    print_text(f"Written to {exported.path} ({size:.1f} MB)", console, highlight=False)
    for name, text in facts.items():
        print_text(f"  {name:<8} {text}", console, highlight=False)
