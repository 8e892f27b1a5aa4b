"""A capsule table and its run, packed into one HTML file that needs nothing else.

Numbers go into the page as small integers in base64, thumbnails as sheets of WebP. All words of the run, of the data
and of the file system stand in one JSON text; the scripts show them as text and never as markup.
"""

import base64
import dataclasses
import io
import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cappronet.explorer.table import CapsuleTable
from cappronet.extras import require
from cappronet.recipe import Recipe
from cappronet.runs import Run, write_atomically

__all__ = ["packed", "sprite_sheets", "write_page"]

# In the order in which they need each other.
SCRIPTS = ("data", "draw", "heat", "run", "plane", "sketch", "gestures", "strips", "image", "lists", "main")
# The most coordinates in a page, over all classes and images; each takes two bytes. Beyond it, a class has those of
# its own images, of those taken for it, and of those with the longest capsules in it.
COORDINATES = 4_000_000
FEWEST_IMAGES = 64  # that a class has coordinates of, however many classes there are
ANGLES = 500_000  # beyond it, only the smallest angle of each pair
DIRECTIONS = 16  # principal directions of a class, at most
SHEET = 4096  # pixels on a side of a sprite sheet, at most: WebP ends at 16383, small devices before
LOSSLESS = 2_000_000  # bytes of pixels that are kept as they are
QUALITY = 88  # of what is not
EFFORT = 50  # to pack what is; twice as much takes ten times as long


def write_page(table: CapsuleTable, run: str | Path, path: str | Path) -> None:
    """Write a table and the run it comes from as a new HTML file."""
    meta, arrays = packed(table)
    tile, sheets = sprite_sheets(table.thumbnails)
    blocks = {name: array.tobytes() for name, array in arrays.items()}
    blocks |= {f"sheet{i}": sheet for i, sheet in enumerate(sheets)}
    html = _rendered(
        style=_template("page.css"),
        script="\n".join(_template(f"{name}.js") for name in SCRIPTS),
        meta=embedded_json({**meta, "tile": tile, "run": _story(Run.open(run))}),
        blocks={name: base64.b64encode(content).decode() for name, content in blocks.items()},
    )
    if Path(path).exists():
        raise FileExistsError(f"{path} exists; choose another file")
    write_atomically(Path(path), html.encode())


def _rendered(*, style: str, script: str, meta: str, blocks: dict[str, str]) -> str:
    """The page from its parts, which are ours, escaped or base64 already."""
    jinja2, markup = require("jinja2", "explore"), require("markupsafe", "explore").Markup
    template = jinja2.Environment(autoescape=True).from_string(_template("page.html"))
    return template.render(style=markup(style), script=markup(script), meta=markup(meta), blocks=blocks)


def _template(name: str) -> str:
    return (files("cappronet.explorer") / "templates" / name).read_text(encoding="utf-8")


def embedded_json(value: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def packed(table: CapsuleTable) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What the page knows of a table: words and sizes as plain values, and arrays of small numbers."""
    n, L = table.lengths.shape
    c = table.capsule_dim
    shown = min(n, max(FEWEST_IMAGES, COORDINATES // (L * c)))
    row_scale = np.maximum(table.lengths.max(1), np.finfo(np.float32).tiny)
    kept = min(c, max(1, ANGLES // L**2))
    arrays: dict[str, NDArray[Any]] = {
        "index": table.index.astype("<u4"),
        "labels": table.labels.astype("<u4"),
        "predictions": table.predictions.astype("<u4"),
        "norms": np.linalg.norm(table.features, axis=1).astype("<f4"),
        "residuals": table.residuals.astype("<f4"),
        "lengthScale": (row_scale / 65535).astype("<f4"),
        "lengths": np.round(table.lengths / row_scale[:, None] * 65535).astype("<u2"),
        "angles": np.round(table.angles[..., :kept] / 90 * 65535).astype("<u2"),
        "conditions": table.conditions.astype("<f4"),
        **_planes(table, shown),
    }
    meta = {
        "classes": list(table.classes),
        "split": table.split,
        "total": table.total,
        "images": n,
        "capsuleDim": c,
        "featureDim": table.basis.shape[2],
        "shown": shown,
        "directions": min(c, DIRECTIONS),
        "anglesKept": kept,
        "randomAngle": table.random_angle,
        "normalize": table.normalize,
        "scale": table.scale,
        "paths": list(table.paths),
        "types": {name: array.dtype.str[1:] for name, array in arrays.items()},
    }
    return meta, arrays


def _planes(table: CapsuleTable, shown: int) -> dict[str, NDArray[Any]]:
    """For each class the coordinates of `shown` images, in units of 1/32767 of its largest; and its directions."""
    n, L = table.lengths.shape
    c, k = table.capsule_dim, min(table.capsule_dim, DIRECTIONS)
    members = np.empty((L, shown), "<u4")
    coordinates = np.empty((L, shown, c), "<i2")
    scale = np.empty(L, "<f4")
    directions, shares = np.empty((L, k, c), "<f4"), np.empty((L, k), "<f4")
    for label in range(L):
        chosen = _members(table, label, shown)
        y = table.coordinates(label, chosen)
        largest = max(float(np.abs(y).max()), float(np.finfo(np.float32).tiny))
        members[label], scale[label] = chosen, largest / 32767
        coordinates[label] = np.round(y / largest * 32767)
        rows, parts = table.principal_directions(label)
        directions[label], shares[label] = rows[:k], parts[:k]
    found = {"coordinateScale": scale, "coordinates": coordinates, "directions": directions, "shares": shares}
    return found if shown == n else {**found, "members": members}


def _members(table: CapsuleTable, label: int, shown: int) -> NDArray[np.int64]:
    """The images that matter most to a class, in their order: its own, those taken for it, then the longest in it."""
    if shown == len(table):
        return np.arange(shown)
    rank = 2 * (table.labels != label) - 1 * ((table.labels != label) & (table.predictions == label))
    return np.sort(np.lexsort((-table.lengths[:, label], rank))[:shown])


def sprite_sheets(thumbnails: NDArray[np.uint8]) -> tuple[dict[str, int], list[bytes]]:
    """Thumbnails `(n, h, w, 1 or 3)` side by side in WebP files, and where they are in them.

    WebP works in blocks of 16 pixels. Thumbnails that fill whole blocks, their edges repeated, do not stain each other.
    """
    image = require("PIL.Image", "explore")
    n, h, w, channels = thumbnails.shape
    lossless = thumbnails.nbytes <= LOSSLESS
    pitch_y, pitch_x = (h, w) if lossless else (16 * math.ceil(h / 16), 16 * math.ceil(w / 16))
    margin = ((0, 0), (0, pitch_y - h), (0, pitch_x - w), (0, 0))
    columns = min(max(1, SHEET // pitch_x), math.ceil(math.sqrt(n * pitch_y / pitch_x)))
    for_each = columns * max(1, SHEET // pitch_y)
    sheets = []
    for start in range(0, n, for_each):
        part = np.pad(thumbnails[start : start + for_each], margin, mode="edge")
        rows = math.ceil(len(part) / columns)
        whole = np.zeros((rows * columns, pitch_y, pitch_x, channels), np.uint8)
        whole[: len(part)] = part
        whole = whole.reshape(rows, columns, pitch_y, pitch_x, channels).transpose(0, 2, 1, 3, 4)
        picture = image.fromarray(
            np.repeat(
                whole.reshape(rows * pitch_y, columns * pitch_x, channels), 4 - channels if channels == 1 else 1, axis=2
            )
        )
        file = io.BytesIO()
        picture.save(file, "WEBP", lossless=lossless, quality=EFFORT if lossless else QUALITY)
        sheets.append(file.getvalue())
    tile = {"width": w, "height": h, "pitchX": pitch_x, "pitchY": pitch_y, "columns": columns, "forEach": for_each}
    return {**tile, "sheets": len(sheets)}, sheets


def _story(run: Run) -> dict[str, Any]:
    """What was asked for and what came of it."""
    recipe = run.recipe
    default, given = Recipe().to_dict(), recipe.to_dict()
    options = [
        {
            "name": f.name,
            "value": given[f.name],
            "changed": given[f.name] != default[f.name],
            "help": f.metadata["help"],
        }
        for f in dataclasses.fields(recipe)
    ]
    return {
        "name": run.folder.resolve().name,
        "data": Path(recipe.data).stem,
        "backbone": recipe.backbone,
        "head": recipe.head_label,
        "heldOut": recipe.validation > 0,
        "options": options,
        "summary": run.summary,
        "metrics": run.metrics(),
    }


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
