"""The card of a model in the format of the Hugging Face Hub: what it is, its results, how to use it."""

import json
import re
from collections.abc import Mapping
from typing import Any

import tomli_w

from cappronet.models.backbones.pixels import sides
from cappronet.reporting import Table

__all__ = ["model_card"]

HEAD_DESCRIPTIONS = {
    "capsule": "a capsule projection: a subspace of dimension {c} for each class; the score is the projection's length",
    "group": "grouped neurons: {c} for each class; the score is the norm of their outputs",
    "subcenter": "sub-centers: {c} unit vectors for each class; the score is the best cosine similarity",
    "mlp": "an MLP with one hidden layer",
}

LONGEST_NAME = 80
# Letters, digits, underscores inside words, and marks that are no Markdown; a point only at the end of a word.
PLAIN_NAME = re.compile(r"""(?:[^\W_]|(?<=[^\W_])_(?=[^\W_])|[ ,'"()+%-]|\.(?=[ ]|$))*""")
LOOKALIKES = str.maketrans(
    "`|<>", "'\N{BROKEN BAR}\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
)


def model_card(
    config: Mapping[str, Any],
    summary: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    heading: str = "How it was trained",
) -> str:
    """Write the card of a model, as Markdown with a header for the hub.

    Args:
        config: the arguments of `CapProNet`.
        summary: the results at the end of the run.
        environment: the versions and the commit it ran with.
        recipe: the settings it was trained or fitted with, of any kind; None values are left out.
        heading: the title of the section with these settings.
    """
    parts = [_header(config, summary), _about(config), _use(config)]
    if summary:
        parts.append(_results(summary))
    if recipe:
        parts.append(_settings(heading, recipe, environment))
    parts.append(LIMITATIONS)
    return "\n\n".join(parts) + "\n"


def _header(config: Mapping[str, Any], summary: Mapping[str, Any] | None) -> str:
    """Metadata for the hub. Values are JSON, a subset of YAML, so that no name can break the header."""
    lines = ["library_name: cappronet", 'tags: ["cappronet", "capsule-projection", "pytorch"]']
    if not _takes_vectors(config):
        lines.append("pipeline_tag: image-classification")
    if summary:
        result = {
            "task": {"type": "image-classification", "name": "Image classification"},
            "dataset": {"type": summary["data"], "name": summary["data"]},
            "metrics": [{"type": "accuracy", "value": round(100 - summary["error"], 4), "name": "accuracy, percent"}],
        }
        name = f"{config['backbone']} with {summary['head']}"
        index = json.dumps([{"name": name, "results": [result]}])
        lines.append(f"model-index: {_without_tags(index)}")
    return "\n".join(["---", *lines, "---"])


def _takes_vectors(config: Mapping[str, Any]) -> bool:
    return config["backbone"] == "features"


def _about(config: Mapping[str, Any]) -> str:
    head = HEAD_DESCRIPTIONS.get(config["head"], f"the control head `{config['head']}`").format(c=config["capsule_dim"])
    size, channels = config["image_size"], "grey" if config["in_channels"] == 1 else "colour"
    images = "{} images, {} x {}".format
    takes = f"vectors of {size} features" if _takes_vectors(config) else images(channels, *sides(size))
    names = config["classes"]
    first_names = ", ".join(_inert(name) for name in names[:20]) + (
        f" and {len(names) - 20:,} more" if len(names) > 20 else ""
    )
    rows: list[tuple[str, ...]] = [
        ("backbone", f"`{config['backbone']}`"),
        ("head", head),
        ("input", takes),
        ("classes", f"{len(names):,}: {first_names}"),
    ]
    return f"# {config['backbone']} with a {config['head']} head\n\n{Table(('', ''), rows, names=2).markdown()}"


def _inert(name: Any) -> str:
    """A name from elsewhere, in which Markdown and HTML mean nothing: as code if it is more than words.

    Control characters and what UTF-8 can't hold become a replacement character; the four characters that could end the
    code, a cell of a table or begin a tag become ones that look like them.
    """
    text = " ".join(str(name).split())
    text = text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if PLAIN_NAME.fullmatch(text) else f"`{text.translate(LOOKALIKES)}`"


def _without_tags(text: str) -> str:
    """JSON or TOML whose strings have angle brackets as escapes."""
    return text.replace("<", "\\u003C").replace(">", "\\u003E")


def _use(config: Mapping[str, Any]) -> str:
    lines = ["from cappronet import CapProNet", "", 'model = CapProNet.from_pretrained("path or name of this model")']
    if _takes_vectors(config):
        return "\n".join(["## Use", "", "```python", *lines, "scores = model(features)  # (B, d) to (B, L)", "```"])
    lines.append("scores = model(model.normalize(pixels))  # (B, C, H, W) from 0 to 255 to (B, L)")
    return "\n".join(["## Use", "", "```python", *lines, "```"])


def _results(summary: Mapping[str, Any]) -> str:
    """The numbers at the end of the run."""
    where = summary.get("measured_on", "after the last epoch")
    shown = ("error", "error_top5", "calibration_error", "parameters", "head_parameters", "epochs", "seed")
    rows: list[tuple[str, ...]] = [
        (f"{name.replace('_', ' ')}{' %' if 'error' in name else ''}", _number(summary[name]))
        for name in shown
        if name in summary
    ]
    return f"## Results\n\nOn {_inert(summary['data'])}, {where}.\n\n{Table(('', ''), rows).markdown()}"


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _settings(heading: str, recipe: Mapping[str, Any], environment: Mapping[str, Any] | None) -> str:
    """The settings as TOML, and the versions."""
    settings = {name: value for name, value in recipe.items() if value is not None}
    lines = [
        f"## {heading}",
        "",
        "```toml",
        _without_tags(tomli_w.dumps(settings)).strip(),
        "```",
        "",
        _versions(environment),
    ]
    return "\n".join(lines).strip()


def _versions(environment: Mapping[str, Any] | None) -> str:
    if not environment:
        return ""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    commit = f", commit {environment['commit']}" if environment["commit"] else ""
    return f"With {versions}{commit}."


LIMITATIONS = """## Limitations

The error was measured on data like the training data; measure it again on yours. The model assigns every input to one
of its classes, even an input that belongs to none of them.

The capsule projection is from *CapProNet: Deep Feature Learning via Orthogonal Projections onto Capsule Subspaces*
(Zhang, Edraki and Qi, NeurIPS 2018)."""
