"""A capsule table and its run as one self-contained HTML file.

Numbers are stored as small integers in base64, thumbnails as WebP sprite sheets. All text that comes from the run, the
data or the file system is in one JSON element; the scripts insert it as text, never as markup.
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

from cappronet.data.files import write_atomically
from cappronet.explorer.table import CapsuleTable
from cappronet.extras import require
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run

__all__ = ["packed", "sprite_sheets", "write_page"]

# In the order of their dependencies.
SCRIPTS = (
    "data",
    "draw",
    "samples",
    "copy",
    "heat",
    "run",
    "plane",
    "sketch",
    "gestures",
    "strips",
    "image",
    "lists",
    "main",
)
# Coordinates in a page, over all classes and images, at most; each takes two bytes. With more, a class gets those of
# its own images, of the images predicted as it, and of those with the longest capsules in it.
MOST_COORDINATES = 4_000_000
FEWEST_IMAGES = 64  # images that a class has coordinates of, however many classes there are
MOST_ANGLES = 500_000  # with more, only the smallest angles of each pair
MOST_DIRECTIONS = 16  # principal directions of a class
SHEET_SIDE = 4096  # pixels, at most: WebP allows 16383, small devices less
LOSSLESS_BYTES = 2_000_000  # thumbnails up to this size are compressed without loss
LOSSY_QUALITY = 88
LOSSLESS_EFFORT = 50  # of 100; twice as much takes ten times as long


def write_page(table: CapsuleTable, run: str | Path, path: str | Path) -> None:
    """Write a table and the run it comes from as a new HTML file."""
    meta, arrays = packed(table)
    tile, sheets = (None, []) if table.thumbnails is None else sprite_sheets(table.thumbnails)
    blocks = {name: array.tobytes() for name, array in arrays.items()}
    blocks |= {f"sheet{i}": sheet for i, sheet in enumerate(sheets)}
    html = _rendered(
        style=_template("page.css"),
        script="\n".join(_template(f"{name}.js") for name in SCRIPTS),
        meta=embedded_json({**meta, "tile": tile, "run": _run_facts(Run.open(run))}),
        blocks={name: base64.b64encode(content).decode() for name, content in blocks.items()},
        noun=meta["noun"],
    )
    if Path(path).exists():
        raise FileExistsError(f"{path} exists; choose another file")
    write_atomically(Path(path), html.encode())


def _rendered(*, style: str, script: str, meta: str, blocks: dict[str, str], noun: str) -> str:
    """The page from its parts, which are our own files, escaped JSON or base64."""
    jinja2, markup = require("jinja2", "explore"), require("markupsafe", "explore").Markup
    template = jinja2.Environment(autoescape=True).from_string(_template("page.html"))
    return template.render(style=markup(style), script=markup(script), meta=markup(meta), blocks=blocks, noun=noun)


def _template(name: str) -> str:
    return (files("cappronet.explorer") / "templates" / name).read_text(encoding="utf-8")


def embedded_json(value: Any) -> str:
    """JSON that is safe inside a script element: it can neither close the element nor open a comment."""
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def packed(table: CapsuleTable) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The content of a table for the page: text and sizes as plain values, numbers as small arrays."""
    n, L = table.lengths.shape
    c = table.capsule_dim
    shown = min(n, max(FEWEST_IMAGES, MOST_COORDINATES // (L * c)))
    row_scale = np.maximum(table.lengths.max(1), np.finfo(np.float32).tiny)
    angle_count = min(c, max(1, MOST_ANGLES // L**2))
    arrays: dict[str, NDArray[Any]] = {
        "index": table.index.astype("<u4"),
        "labels": table.labels.astype("<u4"),
        "predictions": table.predictions.astype("<u4"),
        "norms": np.linalg.norm(table.features, axis=1).astype("<f4"),
        "residuals": table.residuals.astype("<f4"),
        "lengthScale": (row_scale / 65535).astype("<f4"),
        "lengths": np.round(table.lengths / row_scale[:, None] * 65535).astype("<u2"),
        "angles": np.round(table.angles[..., :angle_count] / 90 * 65535).astype("<u2"),
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
        "directions": min(c, MOST_DIRECTIONS),
        "angleCount": angle_count,
        "randomAngle": table.random_angle,
        "normalize": table.normalize,
        "scale": table.scale,
        "noun": "sample" if table.thumbnails is None else "image",
        "paths": list(table.paths),
        "texts": list(table.texts),
        "types": {name: array.dtype.str[1:] for name, array in arrays.items()},
    }
    return meta, arrays


def _planes(table: CapsuleTable, shown: int) -> dict[str, NDArray[Any]]:
    """Coordinates of `shown` images for each class, in units of 1/32767 of the largest, and its directions."""
    n, L = table.lengths.shape
    c, k = table.capsule_dim, min(table.capsule_dim, MOST_DIRECTIONS)
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
    planes = {"coordinateScale": scale, "coordinates": coordinates, "directions": directions, "shares": shares}
    return planes if shown == n else {**planes, "members": members}


def _members(table: CapsuleTable, label: int, shown: int) -> NDArray[np.int64]:
    """The images that matter most to a class, ascending: its own, those predicted as it, then the longest in it."""
    if shown == len(table):
        return np.arange(shown)
    rank = 2 * (table.labels != label) - 1 * ((table.labels != label) & (table.predictions == label))
    return np.sort(np.lexsort((-table.lengths[:, label], rank))[:shown])


def sprite_sheets(thumbnails: NDArray[np.uint8]) -> tuple[dict[str, int], list[bytes]]:
    """Pack thumbnails `(n, h, w, 1 or 3)` into WebP files; return the layout of the tiles and the files.

    Lossy WebP works in blocks of 16 pixels. Tiles are padded to whole blocks with repeated edges, so that neighbouring
    thumbnails do not bleed into each other.
    """
    n, h, w, channels = thumbnails.shape
    lossless = thumbnails.nbytes <= LOSSLESS_BYTES
    pitch_y, pitch_x = (h, w) if lossless else (16 * math.ceil(h / 16), 16 * math.ceil(w / 16))
    margin = ((0, 0), (0, pitch_y - h), (0, pitch_x - w), (0, 0))
    columns = min(max(1, SHEET_SIDE // pitch_x), math.ceil(math.sqrt(n * pitch_y / pitch_x)))
    tiles_per_sheet = columns * max(1, SHEET_SIDE // pitch_y)
    sheets = []
    for start in range(0, n, tiles_per_sheet):
        tiles = np.pad(thumbnails[start : start + tiles_per_sheet], margin, mode="edge")
        rows = math.ceil(len(tiles) / columns)
        grid = np.zeros((rows * columns, pitch_y, pitch_x, channels), np.uint8)
        grid[: len(tiles)] = tiles
        grid = grid.reshape(rows, columns, pitch_y, pitch_x, channels).transpose(0, 2, 1, 3, 4)
        sheets.append(_webp(grid.reshape(rows * pitch_y, columns * pitch_x, channels), lossless))
    layout = {"width": w, "height": h, "pitchX": pitch_x, "pitchY": pitch_y, "columns": columns}
    return {**layout, "tilesPerSheet": tiles_per_sheet, "sheets": len(sheets)}, sheets


def _webp(pixels: NDArray[np.uint8], lossless: bool) -> bytes:
    """An image `(h, w, 1 or 3)` as a WebP file."""
    rgb = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    file = io.BytesIO()
    quality = LOSSLESS_EFFORT if lossless else LOSSY_QUALITY
    require("PIL.Image", "explore").fromarray(rgb).save(file, "WEBP", lossless=lossless, quality=quality)
    return file.getvalue()


def _run_facts(run: Run) -> dict[str, Any]:
    """The recipe, the result and the metrics of a run."""
    summary = run.summary
    return {
        "name": run.folder.resolve().name,
        **{name: summary[name] for name in ("data", "backbone", "head")},
        "heldOut": run.selection.validation > 0,
        "probe": run.is_probe,
        "options": [] if run.is_probe else _options(run.recipe),
        "summary": summary,
        "metrics": run.metrics(),
    }


def _options(recipe: Recipe) -> list[dict[str, Any]]:
    """Every option of a recipe, with its explanation and whether it differs from the default."""
    default, given = Recipe().to_dict(), recipe.to_dict()
    return [
        {
            "name": field.name,
            "value": given[field.name],
            "changed": given[field.name] != default[field.name],
            "help": field.metadata["help"],
        }
        for field in dataclasses.fields(recipe)
    ]


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, with None."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
