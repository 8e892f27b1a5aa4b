"""Feature vectors to classify: the same files as `probe` reads, whose labels, if there are any, are left out."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cappronet.data.arrays import map_npy, read_npz
from cappronet.data.feature_tables import TABLES, read_columns
from cappronet.data.limits import check_bytes, check_regular

__all__ = ["holds_rows", "read_rows"]

SUFFIXES = (".npz", ".npy", *TABLES)
KINDS = "a folder of cappronet embed, .npz, .npy, .csv, .tsv or .parquet"
# Names of features in archives and folders, in any case; the first one that is there is taken, so test samples before
# those that the model was fitted to.
NAMES = ("x_test", "test_features", "x", "features", "x_train")


def holds_rows(path: Path) -> bool:
    """Whether a path has the form of a file or folder of features; it need not exist."""
    return path.suffix.lower() in SUFFIXES or (path / "x_train.npy").is_file()


def read_rows(path: Path, dim: int, label_column: str | None = None) -> tuple[NDArray[np.float32], str]:
    """Features `(n, d)` of a file or folder, and which part of it they are, in words; nothing if they are all of it.

    Args:
        path: a folder of `cappronet embed`, an .npz, .npy, .csv, .tsv or .parquet.
        dim: d, the width that the model takes.
        label_column: for a table, the column of labels.
    """
    if label_column is not None and path.suffix.lower() not in TABLES:
        raise ValueError(f"--label-column is for tables ({', '.join(TABLES)}), which {path} is not")
    x, part = _read(path, dim, label_column)
    if x.ndim != 2 or x.dtype.kind not in "fiub" or len(x) == 0:
        raise ValueError(f"features of {path} are {x.dtype} {x.shape}, expected numbers (n, {dim})")
    if x.shape[1] != dim:
        raise ValueError(f"features of {path} are {x.shape[1]:,} wide, but this model takes {dim:,}")
    check_bytes(path, 4 * x.size, "its features as float32")
    with np.errstate(over="ignore"):  # what float32 can't hold is refused below
        rows = np.ascontiguousarray(x, dtype=np.float32)
    finite = np.isfinite(rows).all(1)
    if not finite.all():
        raise ValueError(f"features of {path} have NaN or infinity in row {int(finite.argmin())}: remove it")
    return rows, part


def _read(path: Path, dim: int, label_column: str | None) -> tuple[NDArray[Any], str]:
    kind = path.suffix.lower()
    if path.is_dir():
        arrays = {file.stem.lower(): file for file in sorted(path.glob("*.npy"))}
        name = _known_name(path, arrays)
        return map_npy(arrays[name]), f"the array {name!r}"
    check_regular(path)
    if kind == ".npy":
        return map_npy(path), ""
    if kind == ".npz":
        members, names = read_npz(path, lambda name: name.lower() in NAMES)
        arrays_by_name = {name.lower(): array for name, array in members.items()}
        name = _known_name(path, arrays_by_name, names)
        return arrays_by_name[name], f"the array {name!r}"
    if kind in TABLES:
        return _from_table(path, dim, label_column)
    raise ValueError(f"{path} is not a file of features, and this model takes features {dim:,} wide: expected {KINDS}")


def _known_name(path: Path, arrays: Any, names: Any = None) -> str:
    for name in NAMES:
        if name in arrays:
            return name
    present = ", ".join(names or arrays) or "none"
    raise ValueError(f"{path} has no known name for features, its arrays are {present}: expected {', '.join(NAMES)}")


def _from_table(path: Path, dim: int, label_column: str | None) -> tuple[NDArray[Any], str]:
    """The columns of numbers, without that of the labels."""
    columns = read_columns(path)
    names = list(columns)
    label = label_column or ("label" if "label" in names else names[-1] if len(names) == dim + 1 else None)
    if label is not None and label not in columns:
        last = ", ".join(names[-3:])
        raise ValueError(f"{path} has no column {label!r} for --label-column; its last columns are {last}")
    features = [name for name in names if name != label]
    for name in features:
        if columns[name].dtype.kind not in "fiub":
            raise ValueError(
                f"column {name!r} of {path} is not numeric: remove it, or name it with --label-column if it has labels"
            )
    part = f"without the labels in column {label!r}" if label is not None else ""
    return np.stack([columns[name].astype(np.float64) for name in features], axis=1), part
