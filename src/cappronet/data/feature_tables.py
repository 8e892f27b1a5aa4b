"""Features and labels in tables: CSV, TSV and parquet, read with pandas."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cappronet.data.files import one_line
from cappronet.data.limits import check_bytes

__all__ = ["TABLES", "FeatureTable", "read_columns", "read_table"]

TABLES = (".csv", ".tsv", ".parquet")
# What pandas and the copies of its table take at their peak, measured: for each cell, and for each column.
CELL_BYTES = 24
COLUMN_BYTES = 3072
CHUNK_BYTES = 2**20
TEXT = "text"  # the column with the texts that the features were made of


class FeatureTable(NamedTuple):
    """Features of a table.

    Attributes:
        x: the features `(n, d)`.
        y: the labels `(n,)`.
        label_column: the name of the column that the labels were read from.
        text: the texts that the features were made of: a column called text that is not numeric and not the label.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    label_column: str
    text: list[str] | None


def read_table(path: Path, label_column: str | None) -> FeatureTable:
    """The features, labels and texts of a table, which may lack a line of column names."""
    pandas = _installed("pandas")
    table = _data_frame(pandas, path)
    text = None
    if TEXT in table and label_column != TEXT and not pandas.api.types.is_numeric_dtype(table[TEXT].dtype):
        text = ["" if missing else str(item) for item, missing in zip(table[TEXT], table[TEXT].isna(), strict=True)]
        table = table.drop(columns=TEXT)
    columns = list(table.columns)
    if len(columns) < 2:
        raise ValueError(f"{path} has {len(columns)} columns, expected features and a label")
    label = label_column or ("label" if "label" in columns else columns[-1])
    if label not in columns:
        last = ", ".join(columns[-3:])
        raise ValueError(f"{path} has no column {label!r} for --label-column; its last columns are {last}")
    features = table.drop(columns=label)
    for name, dtype in features.dtypes.items():
        if not pandas.api.types.is_numeric_dtype(dtype):
            raise ValueError(
                f"column {name!r} of {path} is not numeric; only the label column {label!r} and a column called "
                f"{TEXT!r} may hold text"
            )
    if table[label].isna().any():
        row = int(table[label].isna().to_numpy().argmax())
        raise ValueError(f"{path} has no label in row {row} of column {label!r}: fill it in or remove the row")
    labels = table[label].to_numpy()
    x = features.to_numpy(dtype=np.float64, na_value=np.nan)
    return FeatureTable(x, labels if labels.dtype.kind in "iufb" else labels.astype(str), label, text)


def read_columns(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a table by name; numbers that are missing are NaN."""
    table = _data_frame(_installed("pandas"), path)
    return {name: _values(table[name]) for name in table.columns}


def _values(column: Any) -> NDArray[Any]:
    values: NDArray[Any] = column.to_numpy()
    if values.dtype.kind == "O" and hasattr(column.dtype, "na_value") and column.dtype.kind in "fiub":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)  # pandas' own types of numbers
    return values


def _data_frame(pandas: Any, path: Path) -> Any:
    """The table with its columns named by text."""
    parquet = _installed("pyarrow.parquet") if path.suffix.lower() == ".parquet" else None
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    check_bytes(path, path.stat().st_size)
    with _described(path):
        if parquet is not None:
            with parquet.ParquetFile(path) as file:
                rows, columns = file.metadata.num_rows, file.metadata.num_columns
        else:
            rows, columns = _lines(path), _first_line(path).count(separator) + 1
    check_bytes(path, columns * (rows * CELL_BYTES + COLUMN_BYTES), f"its table of {rows:,} x {columns:,}")
    with _described(path):
        if parquet is not None:
            # A repeated text is stored once: so it stays, or a small file could become many gigabytes.
            table = pandas.read_parquet(path, read_dictionary=[TEXT])
        else:
            named = {} if _has_names(path, separator) else {"header": None}
            table = pandas.read_csv(path, sep=separator, **named)
        table.columns = [str(name) for name in table.columns]
    # What pandas.to_csv writes as a first column without a name is the number of the row, not a feature.
    return table.loc[:, [name for name in table.columns if name != "Unnamed: 0"]]


@contextmanager
def _described(path: Path) -> Iterator[None]:
    """Whatever is raised for a damaged table becomes an error in one line; pandas and pyarrow raise any class."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{path} can't be read as a table ({one_line(error)}): save it again") from None


def _lines(path: Path) -> int:
    """How many lines a table has at most; short ones are filled up to the width of the first."""
    ends = {b"\n": 0, b"\r": 0}
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            for end in ends:
                ends[end] += chunk.count(end)
    return max(ends.values()) + 1


def _first_line(path: Path) -> str:
    """The first line of a table, with its end."""
    with path.open(newline="", encoding="utf-8") as file:
        return next(file, "")


def _has_names(path: Path, separator: str) -> bool:
    """Whether the first line of a table names its columns; the numbers 0, 1, ... or 1, 2, ... are pandas' names."""
    with path.open(newline="", encoding="utf-8") as file:
        cells = next(csv.reader(file, delimiter=separator), [])
    numeric = [cell for cell in cells if _is_number(cell)]
    counted = [str(i) for i in range(len(numeric) + 1)]
    return not numeric or numeric in (counted[:-1], counted[1:])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _installed(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        name = module.partition(".")[0]
        raise ModuleNotFoundError(f"tables need {name}, which is not installed: pip install {name}") from None
