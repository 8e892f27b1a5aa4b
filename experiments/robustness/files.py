"""Damaged files: every reader of the package is given thousands of them, and must refuse them or read them, no more.

A damaged file has bits flipped, bytes replaced, a part removed, repeated or filled with zeros. The outcome is one of

- refused: a `ValueError` or an `OSError` in one line, which is what a user should see;
- handled: the damage is in a byte that means nothing, or, in formats without a checksum, it is another valid file;
- a failure: a file that has checksums was read, and its content is not what was written; or any other exception.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cappronet.data.datasets import load_dataset
from cappronet.data.digests import with_digests
from cappronet.data.features import FeatureData, read_features
from cappronet.data.images import read_image
from cappronet.extras import require
from cappronet.reporting import Report, silent
from cappronet.training.recipe import Recipe
from experiments.robustness.outcomes import HANDLED, REFUSED, row

__all__ = ["KINDS", "damaged", "damaged_files", "flipped_bit"]

ROWS, WIDTH = 24, 6


@dataclass(frozen=True)
class Kind:
    """A kind of file: how a good one is written, and what its content is when it is read."""

    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    checksums: bool = False


def damaged_files(
    folder: Path, count: int = 1000, seed: int = 0, kinds: tuple[str, ...] = (), report: Report = silent
) -> list[dict[str, Any]]:
    """Damage each kind of file `count` times; for each kind, what became of them.

    Args:
        folder: an existing, empty folder to write the files to.
        count: damaged files of each kind.
        seed: decides the damage.
        kinds: names in `KINDS`; by default all.
        report: called with the kind, the files done and their number.
    """
    rows = []
    for number, name in enumerate(kinds or tuple(KINDS)):
        own = folder / str(number)
        own.mkdir()
        rows.append(row(name, _outcomes(name, own, count, seed, report)))
    return rows


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The content with one to three kinds of damage."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = chance.choice(DAMAGES)(content, chance)
    return content


def flipped_bit(content: bytes, chance: random.Random) -> bytes:
    """The content with one bit changed."""
    place = chance.randrange(len(content)) if content else 0
    return (
        content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :]
        if content
        else b""
    )


def _outcomes(name: str, folder: Path, count: int, seed: int, report: Report) -> Iterator[str]:
    kind = KINDS[name]
    target = kind.write(folder)
    intact, original = target.read_bytes(), kind.read(folder)
    chance = random.Random(f"{name} {seed}")
    for number in range(count):
        report(name, number, count)
        target.write_bytes(damaged(intact, chance))
        try:
            changed = kind.read(folder) != original
            yield "another content was read" if changed and kind.checksums else HANDLED
        except Exception as error:  # every class is an outcome
            one_line = isinstance(error, ValueError | OSError) and "\n" not in str(error)
            yield REFUSED if one_line else type(error).__name__


def _replaced(content: bytes, chance: random.Random) -> bytes:
    start, length = _span(content, chance)
    return content[:start] + chance.randbytes(length) + content[start + length :]


def _removed(content: bytes, chance: random.Random) -> bytes:
    start, length = _span(content, chance)
    return content[:start] + content[start + length :]


def _repeated(content: bytes, chance: random.Random) -> bytes:
    start, length = _span(content, chance)
    return content[: start + length] + content[start:]


def _zeroed(content: bytes, chance: random.Random) -> bytes:
    start, length = _span(content, chance)
    return content[:start] + bytes(length) + content[start + length :]


def _truncated(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _span(content: bytes, chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(len(content) + 1)
    return start, min(chance.choice((1, 1, 2, 4, 8, 64)), len(content) - start)


DAMAGES = (flipped_bit, flipped_bit, _replaced, _removed, _repeated, _zeroed, _truncated)


def _arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    y = np.arange(ROWS) % 3
    return {"x_train": x, "y_train": y, "x_test": x[:6], "y_test": y[:6], "classes": np.array(["ant", "bee", "cat"])}


def _pixels() -> Any:
    return np.random.default_rng(0).integers(0, 256, (ROWS, 12, 12, 3), dtype=np.uint8)


def _content(data: FeatureData) -> tuple[Any, ...]:
    arrays = (data.x_train, data.y_train, data.x_test, data.y_test)
    return data.classes, *(None if array is None else (array.shape, array.tobytes()) for array in arrays)


def _write_features(folder: Path) -> Path:
    np.savez_compressed(folder / "a.npz", **_arrays())
    return folder / "a.npz"


def _write_images(folder: Path) -> Path:
    y = np.arange(ROWS) % 3
    np.savez_compressed(folder / "a.npz", x_train=_pixels(), y_train=y, x_test=_pixels()[:6], y_test=y[:6])
    return folder / "a.npz"


def _write_array(folder: Path) -> Path:
    np.save(folder / "y.npy", _arrays()["y_train"])
    np.save(folder / "x.npy", _arrays()["x_train"])
    return folder / "x.npy"


def _write_folder(name: str, folder: Path) -> Path:
    arrays = _arrays()
    described = {"classes": arrays.pop("classes").tolist(), "source": {"network": {}, "data": {"data": "digits"}}}
    for array, values in arrays.items():
        np.save(folder / f"{array}.npy", values)
    (folder / "features.json").write_text(json.dumps(with_digests(folder, described), indent=1))
    return folder / name


def _write_table(name: str, folder: Path) -> Path:
    frame = require("pandas", "tables").DataFrame(_arrays()["x_train"], columns=[f"f{i}" for i in range(WIDTH)])
    frame["label"] = _arrays()["classes"][_arrays()["y_train"]]
    if name.endswith("parquet"):
        frame.to_parquet(folder / name)
    else:
        frame.to_csv(folder / name, index=False)
    return folder / name


def _write_image(name: str, folder: Path) -> Path:
    require("PIL.Image", "train").fromarray(_pixels()[0]).save(folder / name)
    return folder / name


def _write_recipe(folder: Path) -> Path:
    (folder / "a.toml").write_text(Recipe().to_toml())
    return folder / "a.toml"


def _table(name: str) -> Kind:
    return Kind(lambda folder: _write_table(name, folder), lambda folder: _content(read_features(folder / name)))


def _image(name: str) -> Kind:
    return Kind(lambda folder: _write_image(name, folder), lambda folder: read_image(folder / name).tobytes())


def _file_of_folder(name: str) -> Kind:
    return Kind(
        lambda folder: _write_folder(name, folder), lambda folder: _content(read_features(folder)), checksums=True
    )


KINDS: Mapping[str, Kind] = {
    "features, .npz": Kind(_write_features, lambda folder: _content(read_features(folder / "a.npz")), checksums=True),
    "images, .npz": Kind(
        _write_images, lambda folder: load_dataset(str(folder / "a.npz")).fingerprint(), checksums=True
    ),
    "features, .npy": Kind(_write_array, lambda folder: _content(read_features(folder / "x.npy", folder / "y.npy"))),
    "feature folder, x_train.npy": _file_of_folder("x_train.npy"),
    "feature folder, y_train.npy": _file_of_folder("y_train.npy"),
    "feature folder, features.json": _file_of_folder("features.json"),
    "table, .csv": _table("a.csv"),
    "table, .parquet": _table("a.parquet"),
    **{
        f"image, {suffix}": _image(f"a{suffix}") for suffix in (".png", ".jpg", ".gif", ".bmp", ".ppm", ".tif", ".webp")
    },
    "recipe, .toml": Kind(_write_recipe, lambda folder: Recipe.from_toml(folder / "a.toml")),
}
