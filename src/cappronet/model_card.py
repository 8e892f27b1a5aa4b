"""The card of a model: what it is, what it was measured on, how to use it, in the format of the Hugging Face Hub."""

import json
from collections.abc import Mapping
from typing import Any

import tomli_w

from cappronet.backbones.pixels import sides

__all__ = ["model_card"]

HEADS = {
    "capsule": "a capsule projection: a subspace of dimension {c} for each class, scored by the projection's length",
    "group": "grouped neurons: {c} for each class, scored by their length",
    "subcenter": "sub-centers: the best of {c} unit vectors for each class",
}


def model_card(
    config: Mapping[str, Any],
    summary: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> str:
    """Write the card of a model, as Markdown with a header for the hub.

    Args:
        config: the arguments of `CapProNet`.
        summary: what a run measured at its end.
        environment: what it ran on.
        recipe: what it was asked for.
    """
    parts = [_header(config, summary), _about(config), _use(config)]
    if summary:
        parts.append(_measured(summary))
    if recipe:
        lines = ["## How it was trained", "", "```toml", tomli_w.dumps(recipe).strip(), "```", "", _ran_on(environment)]
        parts.append("\n".join(lines).strip())
    parts.append(LIMITS)
    return "\n\n".join(parts) + "\n"


def _header(config: Mapping[str, Any], summary: Mapping[str, Any] | None) -> str:
    """Facts for the hub; values are JSON, which YAML contains, so that no name can break out of its place."""
    lines = ["library_name: cappronet", 'tags: ["cappronet", "capsule-projection", "pytorch"]']
    if config["backbone"] != "features":
        lines.append("pipeline_tag: image-classification")
    if summary:
        result = {
            "task": {"type": "image-classification", "name": "Image classification"},
            "dataset": {"type": summary["data"], "name": summary["data"]},
            "metrics": [{"type": "accuracy", "value": round(100 - summary["error"], 4), "name": "accuracy, percent"}],
        }
        name = f"{config['backbone']} with {summary['head']}"
        lines.append(f"model-index: {json.dumps([{'name': name, 'results': [result]}])}")
    return "\n".join(["---", *lines, "---"])


def _about(config: Mapping[str, Any]) -> str:
    head = HEADS.get(config["head"], f"the control head `{config['head']}`").format(c=config["capsule_dim"])
    size, channels = config["image_size"], "grey" if config["in_channels"] == 1 else "colour"
    images = "{} images, {} x {}".format
    takes = f"vectors of {size} features" if config["backbone"] == "features" else images(channels, *sides(size))
    names = [str(name) for name in config["classes"]]
    some = ", ".join(names[:20]) + (f" and {len(names) - 20:,} more" if len(names) > 20 else "")
    rows = {
        "backbone": f"`{config['backbone']}`",
        "head": head,
        "takes": takes,
        "classes": f"{len(names):,}: {some}",
    }
    lines = [f"| {key} | {_cell(value)} |" for key, value in rows.items()]
    return "\n".join([f"# {config['backbone']} with a {config['head']} head", "", "| | |", "|---|---|", *lines])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _use(config: Mapping[str, Any]) -> str:
    lines = ["from cappronet import CapProNet", "", 'model = CapProNet.from_pretrained("path or name of this model")']
    if config["backbone"] == "features":
        return "\n".join(["## Use", "", "```python", *lines, "scores = model(features)  # (B, d) to (B, L)", "```"])
    lines += [
        "mean, std = (torch.tensor(model.config[name]).view(-1, 1, 1) for name in ('mean', 'std'))",
        "scores = model((pixels / 255 - mean) / std)  # (B, C, H, W) to (B, L); for capsules, their lengths",
    ]
    return "\n".join(["## Use", "", "```python", "import torch", *lines, "```"])


def _measured(summary: Mapping[str, Any]) -> str:
    """The numbers of the run's end."""
    where = summary.get("measured_on", "at the last epoch")
    shown = ("error", "error_top5", "calibration_error", "parameters", "head_parameters", "epochs", "seed")
    rows = [
        f"| {name.replace('_', ' ')}{' %' if 'error' in name else ''} | {_number(summary[name])} |"
        for name in shown
        if name in summary
    ]
    return "\n".join(["## Measured", "", f"On {summary['data']}, {where}.", "", "| | |", "|---|--:|", *rows])


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _ran_on(environment: Mapping[str, Any] | None) -> str:
    if not environment:
        return ""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    commit = f", commit {environment['commit']}" if environment["commit"] else ""
    return f"With {versions}{commit}."


LIMITS = """## Before you rely on it

The error was measured on images like those it was trained on; elsewhere measure it again. It names one of its classes
for any image whatsoever.

The capsule projection is that of *CapProNet: Deep Feature Learning via Orthogonal Projections onto Capsule Subspaces*
(Zhang, Edraki and Qi, NeurIPS 2018)."""
