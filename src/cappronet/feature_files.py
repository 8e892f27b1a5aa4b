"""Files of feature vectors: those that `cappronet embed` writes, and anyone's own arrays as .npz, .npy, CSV or parquet.

An .npz of ours is not compressed and its arrays start at multiples of 64 bytes, so they are mapped, not read: features
that do not fit in memory can be used.
"""

import csv
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FeatureData", "holds_features", "pack", "read_features", "with_test"]

# Names that people give to features and labels, in any case; the first pair found is taken.
PAIRS = (("x_train", "y_train"), ("features", "labels"), ("x", "y"))
TEST_PAIRS = (("x_test", "y_test"), ("test_features", "test_labels"))
KINDS = ".npz, .npy (with --labels), .csv, .tsv or .parquet"
ALIGNMENT = 64
# The id that Android's zipalign gave to an extra field of zeros, which readers skip.
PADDING_FIELD = 0xD935
# Lengths in a zip file: of a member's header without name and extra fields, and of the field that holds large sizes.
LOCAL_HEADER, ZIP64_FIELD = 30, 20
CHUNK = 2**24
# What numpy and zipfile raise for files that are damaged or hold something else than arrays.
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    RuntimeError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True, eq=False)
class FeatureData:
    """Features `(n, d)` in float32 with their classes, numbered from 0; arrays may be mapped files.

    `source` says where features came from if `cappronet embed` made them: the network and the data. `alone` says that
    the file holds everything, also the test part.
    """

    path: Path
    classes: tuple[str, ...]
    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32] | None = None
    y_test: NDArray[np.int64] | None = None
    source: dict[str, Any] | None = None
    alone: bool = True

    @property
    def dim(self) -> int:
        """d, the width of the feature vectors."""
        return int(self.x_train.shape[1])


def read_features(path: Path, labels: Path | None = None, label_column: str | None = None) -> FeatureData:
    """Read a file of features and check it.

    Args:
        path: an .npz with x_train and y_train (and x_test, y_test), features and labels, or X and y; an .npy of
            features; a table as .csv, .tsv or .parquet with one row for each sample.
        labels: for an .npy, the .npy with the labels.
        label_column: for a table, the column with the labels; by default the one called label, else the last.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no feature file {path}: expected {KINDS}")
    kind = path.suffix.lower()
    if (labels is not None) != (kind == ".npy"):
        raise ValueError(
            f"--labels names the .npy of labels that belongs to an .npy of features, got {path} and {labels}"
        )
    if label_column is not None and kind in (".npy", ".npz"):
        raise ValueError(f"--label-column is for tables (.csv, .tsv, .parquet), and {path} is none")
    if kind == ".npz":
        return _from_npz(path)
    if labels is not None:
        x, y = _load_npy(path), _load_npy(labels)
    elif kind in (".csv", ".tsv", ".parquet"):
        x, y = _from_table(path, kind, label_column)
    else:
        raise ValueError(f"{path} is no kind of feature file that is known: expected {KINDS}")
    return _checked(path, x, y)


def with_test(data: FeatureData, test: FeatureData) -> FeatureData:
    """The training part of one file with the samples of another as its test part."""
    if data.y_test is not None:
        raise ValueError(f"{data.path} has a test part already: leave {test.path} out")
    if data.dim != test.dim:
        raise ValueError(
            f"features of {data.path} are {data.dim} wide, those of {test.path} {test.dim}: they must agree"
        )
    numbers = {name: number for number, name in enumerate(data.classes)}
    for name in test.classes:
        if name not in numbers:
            raise ValueError(f"class {name!r} of {test.path} is not in {data.path}, which is trained on")
    renumbered = np.array([numbers[name] for name in test.classes])[test.y_train]
    return replace(data, x_test=test.x_train, y_test=renumbered, alone=data.path == test.path)


def holds_features(path: Path) -> bool:
    """Whether an .npz has features `(n, d)` in floating point, not images; False for what is no .npz at all."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = _names(archive)
            found = _pair(names)
            shape, _, dtype, _ = _header(archive, names[found[0]]) if found else ((), False, np.dtype(int), 0)
            return len(shape) == 2 and dtype.kind == "f"
    except UNREADABLE:
        return False


def pack(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays, which may be mapped files, into an uncompressed .npz; the same arrays give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            # The array's own header is padded to 64 bytes, so it is enough that this one ends at a multiple of it.
            assert archive.fp is not None
            header_end = archive.fp.tell() + LOCAL_HEADER + len(member.filename) + ZIP64_FIELD + 4
            padding = -header_end % ALIGNMENT
            member.extra = struct.pack("<HH", PADDING_FIELD, padding) + bytes(padding)
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
                for rows in _chunks(array):
                    file.write(rows.tobytes())


def _chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """An array in parts of some megabytes along its first dimension."""
    if array.ndim == 0:
        yield array
        return
    step = max(1, CHUNK // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), step):
        yield array[start : start + step]


def _from_npz(path: Path) -> FeatureData:
    try:
        with zipfile.ZipFile(path) as archive:
            names = _names(archive)
            found, test = _pair(names), _pair(names, TEST_PAIRS)
            wanted = {*(found or ()), *(test or ()), "classes", "source"} & set(names)
            arrays = {name: _member(path, archive, names[name]) for name in wanted}
    except UNREADABLE as error:
        raise ValueError(
            f"{path} can't be read as an .npz file ({_one_line(error)}): save it again with numpy.savez, "
            "without object arrays"
        ) from None
    if found is None:
        has = ", ".join(names) or "none"
        raise ValueError(
            f"{path} has no features that are known, its arrays are {has}: expected x_train and y_train (and x_test, "
            "y_test), features and labels, or X and y"
        )
    if test is None and any(name in names for pair in TEST_PAIRS for name in pair):
        raise ValueError(f"{path} has only one of x_test and y_test: give both or neither")
    data = _checked(path, arrays[found[0]], arrays[found[1]], arrays.get("classes"), "training ")
    if test is not None:
        data = with_test(data, _checked(path, arrays[test[0]], arrays[test[1]], arrays.get("classes"), "test "))
    return replace(data, source=_described(arrays.get("source")))


def _described(source: NDArray[Any] | None) -> dict[str, Any] | None:
    """What `embed` wrote of its network; an array that happens to be called source is something else."""
    try:
        found = json.loads(str(source))
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and "network" in found else None


def _names(archive: zipfile.ZipFile) -> dict[str, str]:
    """From the names of arrays, in lower case, to the members that hold them."""
    return {name.removesuffix(".npy").lower(): name for name in archive.namelist()}


def _pair(names: Mapping[str, str], pairs: Sequence[tuple[str, str]] = PAIRS) -> tuple[str, str] | None:
    return next((pair for pair in pairs if pair[0] in names and pair[1] in names), None)


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, Fortran order, type and length of the header of an array in an .npz."""
    with archive.open(name) as file:
        return _read_header(file)


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return shape, fortran, dtype, file.tell()


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of an .npz: mapped where the file allows it, else read."""
    member = archive.getinfo(name)
    shape, fortran, dtype, length = _header(archive, name)
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)  # where the lengths of the name and of the extra field stand
        start = member.header_offset + LOCAL_HEADER + sum(struct.unpack("<HH", file.read(4)))
    offset = start + length
    if member.compress_type == zipfile.ZIP_STORED and shape and not fortran and not dtype.hasobject:
        whole = int(np.prod(shape)) * dtype.itemsize == member.file_size - length
        if whole and offset % ALIGNMENT == 0 and 0 not in shape:
            # Copy on write: torch wants memory that it could change, and the file must not.
            return np.memmap(path, dtype, "c", offset, shape)
    with archive.open(name) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _load_npy(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except UNREADABLE as error:
        raise ValueError(
            f"{path} can't be read as an .npy file ({_one_line(error)}): save it with numpy.save"
        ) from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} is not an .npy file but an archive: call it .npz")
    return array


def _from_table(path: Path, kind: str, label_column: str | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """The features and the labels of a table, which may lack a line of names."""
    pandas = _installed("pandas")
    try:
        if kind == ".parquet":
            _installed("pyarrow")
            table = pandas.read_parquet(path)
        else:
            separator = "\t" if kind == ".tsv" else ","
            named = {} if _has_names(path, separator) else {"header": None}
            table = pandas.read_csv(path, sep=separator, **named)
    except (OSError, ValueError, UnicodeDecodeError) as error:  # pandas' and pyarrow's own are among these
        raise ValueError(f"{path} can't be read as a table ({_one_line(error)})") from None
    table.columns = [str(name) for name in table.columns]
    # What pandas.to_csv writes as a first column without a name is the number of the row, not a feature.
    table = table.loc[:, [name for name in table.columns if name != "Unnamed: 0"]]
    columns = list(table.columns)
    if len(columns) < 2:
        raise ValueError(f"{path} has {len(columns)} columns, expected features and a label")
    column = label_column or ("label" if "label" in columns else columns[-1])
    if column not in columns:
        near = ", ".join(columns[-3:])
        raise ValueError(f"{path} has no column {column!r} for --label-column; its last columns are {near}")
    features = table.drop(columns=column)
    for name, dtype in features.dtypes.items():
        if not pandas.api.types.is_numeric_dtype(dtype):
            raise ValueError(f"column {name!r} of {path} is not numeric, and only the label {column!r} need not be")
    if table[column].isna().any():
        row = int(table[column].isna().to_numpy().argmax())
        raise ValueError(f"{path} has no label in row {row} of column {column!r}: fill it in or remove the row")
    values = table[column].to_numpy()
    return features.to_numpy(
        dtype=np.float64, na_value=np.nan
    ), values if values.dtype.kind in "iufb" else values.astype(str)


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
        raise ModuleNotFoundError(f"tables need {module}, which is not installed: pip install {module}") from None


def _checked(
    path: Path, x: NDArray[Any], y: NDArray[Any], names: NDArray[Any] | None = None, part: str = ""
) -> FeatureData:
    """Features as finite float32 and labels as numbers of classes, or an error that says what is wrong with them."""
    if x.ndim != 2 or x.dtype.kind not in "fiub" or 0 in x.shape:
        hint = "; for images there is: cappronet embed" if x.ndim in (3, 4) else ""
        raise ValueError(f"{part}features of {path} are {x.dtype} {x.shape}, expected numbers (n, d){hint}")
    if y.shape not in ((len(x),), (len(x), 1)):
        raise ValueError(f"{path} has {len(x)} {part}features but labels of shape {y.shape}: give one for each")
    y = np.asarray(y).reshape(-1)
    if x.dtype != np.float32 or not x.flags.c_contiguous:
        with np.errstate(over="ignore"):  # what float32 can't hold is found below
            x = np.ascontiguousarray(x, dtype=np.float32)
    row = 0
    for rows in _chunks(x):
        good = np.isfinite(rows).all(1)
        if not good.all():
            raise ValueError(
                f"{part}features of {path} have NaN or infinity in row {row + int(good.argmin())}: remove it"
            )
        row += len(rows)
    classes, numbers = _numbered(path, y, names, part)
    return FeatureData(path, classes, x, numbers)


def _numbered(
    path: Path, y: NDArray[Any], names: NDArray[Any] | None, part: str
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of the classes and the number of each label's class; text, whole numbers and booleans are labels."""
    if y.dtype.kind == "f":
        if not np.array_equal(y, np.round(y)):
            raise ValueError(f"{part}labels of {path} have fractions or NaN: expected classes as text or whole numbers")
        y = y.astype(np.int64)
    if y.dtype.kind not in "iubU":
        raise ValueError(f"{part}labels of {path} are {y.dtype}, expected text or whole numbers")
    if names is not None:
        if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= names.size:
            raise ValueError(f"{part}labels of {path} must be 0 to {names.size - 1} for its {names.size} named classes")
        return tuple(str(name) for name in names.reshape(-1)), y.astype(np.int64)
    found, numbers = np.unique(y, return_inverse=True)
    return tuple(str(name) for name in found), numbers.astype(np.int64)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
