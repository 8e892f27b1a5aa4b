"""Feature vectors in files: those that `cappronet embed` writes, and your own arrays as .npz, .npy, CSV or parquet.

`embed` writes a folder with `x_train.npy`, `y_train.npy`, `x_test.npy` and `y_test.npy`, which are mapped, not read:
features need not fit in memory. Its `features.json` names the classes, says where the features came from and holds a
digest of every file, which is checked when the file is read; `backbone.safetensors` holds the weights of the network
that made them. Earlier versions wrote all of this into one .npz, which is still read.
"""

import json
import zipfile
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cappronet.data.arrays import UNREADABLE, array_header, map_npy, read_npz
from cappronet.data.digests import DESCRIPTION, check_digests
from cappronet.data.feature_tables import TABLES, read_table
from cappronet.data.files import one_line
from cappronet.data.limits import check_bytes, check_regular
from cappronet.data.names import checked_names

__all__ = [
    "FeatureData",
    "feature_arrays",
    "has_test_part",
    "holds_features",
    "read_description",
    "read_features",
    "with_test",
]

# Usual names of features and labels, in any case; the first pair that is there is taken.
PAIRS = (("x_train", "y_train"), ("features", "labels"), ("x", "y"))
TEST_PAIRS = (("x_test", "y_test"), ("test_features", "test_labels"))
# And of the texts that the features were made of.
TEXTS, TEST_TEXTS = ("text_train", "text"), ("text_test", "test_text")
MOST_CHARACTERS = 1000  # of a text, which then takes at most as much memory as 1,000 features
KINDS = "a folder of cappronet embed, .npz, .npy (with --labels), .csv, .tsv or .parquet"
CHUNK_BYTES = 2**24


@dataclass(frozen=True, eq=False)
class FeatureData:
    """Features `(n, d)` in float32 with their classes, numbered from 0; arrays may be mapped files.

    Attributes:
        path: the file or folder that was read.
        classes: the names of the classes.
        x_train: training features `(n, d)`.
        y_train: their classes `(n,)`.
        x_test: test features, if there are any.
        y_test: their classes.
        source: for features that `cappronet embed` made, the network and the data they came from.
        self_contained: whether `path` holds everything, including the test part.
        label_column: of a table, the column that the labels were read from.
        text_train: the texts that the training features were made of, if the file has them, shortened to 1,000
            characters each.
        text_test: those of the test features.
    """

    path: Path
    classes: tuple[str, ...]
    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32] | None = None
    y_test: NDArray[np.int64] | None = None
    source: dict[str, Any] | None = None
    self_contained: bool = True
    label_column: str | None = None
    text_train: tuple[str, ...] | None = None
    text_test: tuple[str, ...] | None = None

    @property
    def dim(self) -> int:
        """d, the width of the feature vectors."""
        return int(self.x_train.shape[1])


def read_features(path: Path, labels: Path | None = None, label_column: str | None = None) -> FeatureData:
    """Read and check features.

    Args:
        path: a folder of `cappronet embed`; an .npz with x_train and y_train (and x_test, y_test), features and labels,
            or X and y; an .npy of features; a table as .csv, .tsv or .parquet with one row for each sample. The texts
            that the features were made of may be in text_train and text_test, or in a column called text.
        labels: for an .npy, the .npy with the labels.
        label_column: for a table, the column with the labels; by default the one called label, else the last.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no feature file {path}: expected {KINDS}")
    kind = path.suffix.lower()
    if (labels is not None) != (kind == ".npy"):
        raise ValueError(
            f"an .npy of features and --labels with the .npy of its labels belong together, got {path} and {labels}"
        )
    if label_column is not None and kind not in TABLES:
        raise ValueError(f"--label-column is for tables ({', '.join(TABLES)}), which {path} is not")
    if path.is_dir():
        return _from_folder(path)
    check_regular(path)
    if kind == ".npz":
        return _from_npz(path)
    if labels is not None:
        return _checked(path, map_npy(path), map_npy(labels))
    if kind in TABLES:
        table = read_table(path, label_column)
        return replace(_checked(path, table.x, table.y, text=table.text), label_column=table.label_column)
    raise ValueError(f"{path} is not a feature file: expected {KINDS}")


def feature_arrays(x: NDArray[Any], y: NDArray[Any], training: FeatureData | None = None) -> FeatureData:
    """Features and labels that are arrays already, or, with `training`, those as its test part."""
    if training is None:
        return replace(_checked(Path("arrays"), x, y), self_contained=False)
    test = _checked(Path("test arrays"), x, y)
    return with_test(training, test)


def with_test(data: FeatureData, test: FeatureData) -> FeatureData:
    """The training part of one file with the samples of another as its test part."""
    if data.y_test is not None:
        raise ValueError(f"{data.path} already has a test part: leave {test.path} out")
    if data.dim != test.dim:
        raise ValueError(
            f"features of {data.path} are {data.dim} wide, those of {test.path} {test.dim}: they must agree"
        )
    numbers = {name: number for number, name in enumerate(data.classes)}
    for name in test.classes:
        if name not in numbers:
            raise ValueError(f"class {name!r} of {test.path} is not among the training classes of {data.path}")
    renumbered = np.array([numbers[name] for name in test.classes])[test.y_train]
    same_file = data.path == test.path
    return replace(data, x_test=test.x_train, y_test=renumbered, text_test=test.text_train, self_contained=same_file)


def holds_features(path: Path) -> bool:
    """Whether a folder or an .npz has features `(n, d)` in floating point, not images; False for anything else."""
    try:
        if path.is_dir():
            x = map_npy(path / "x_train.npy")
            return x.ndim == 2 and x.dtype.kind == "f"
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            names = {_plain_name(name): name for name in archive.namelist()}
            pair = _pair(names, PAIRS)
            if pair is None:
                return False
            with archive.open(names[pair[0]]) as file:
                shape, dtype = array_header(file)
            return len(shape) == 2 and dtype.kind == "f"
    except UNREADABLE:
        return False


def has_test_part(path: Path) -> bool:
    """Whether a folder or an .npz of features names a test part; its arrays are not read."""
    try:
        if path.is_dir():
            return _pair({file.stem for file in path.glob("*.npy")}, TEST_PAIRS) is not None
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            return _pair({_plain_name(name) for name in archive.namelist()}, TEST_PAIRS) is not None
    except UNREADABLE:
        return False


def read_description(folder: Path) -> dict[str, Any]:
    """What `features.json` of a feature folder says; nothing, if there is none."""
    file = folder / DESCRIPTION
    if not file.exists():
        return {}
    check_regular(file)
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(described, dict):
            raise ValueError(f"it holds {type(described).__name__}, expected an object")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} can't be read as JSON ({one_line(error)}): fix or delete it") from None
    return described


def _from_folder(path: Path) -> FeatureData:
    if not (path / "x_train.npy").exists():
        raise ValueError(f"{path} is not a folder of features: x_train.npy is missing")
    if path.suffix == ".part":
        raise ValueError(f"{path} is not complete: run the same cappronet embed command again to finish it")
    described = read_description(path)
    check_digests(path, described, ".npy", ".json")
    arrays = {file.stem: map_npy(file) for file in sorted(path.glob("*.npy"))}
    classes = described.get("classes")
    if classes is None:
        return _from_arrays(path, arrays, None, described.get("source"))
    if not isinstance(classes, list) or not all(isinstance(name, str | int) for name in classes):
        raise ValueError(f"the classes in {path / DESCRIPTION} must be a list of names: fix or delete it")
    return _from_arrays(path, arrays, np.array([str(name) for name in classes]), described.get("source"))


def _from_npz(path: Path) -> FeatureData:
    used = {"classes", "source", *TEXTS, *TEST_TEXTS, *(name for pair in (*PAIRS, *TEST_PAIRS) for name in pair)}
    members, names = read_npz(path, lambda name: _plain_name(name) in used)
    arrays = {_plain_name(name): array for name, array in members.items()}
    if _pair(arrays, PAIRS) is None:
        present = ", ".join(_plain_name(name) for name in names)
        raise ValueError(
            f"{path} has no known names for features and labels, its arrays are {present or 'none'}: expected "
            "x_train and y_train (and x_test, y_test), features and labels, or X and y"
        )
    source = None
    if "source" in arrays:  # anyone's array may be called source
        try:
            source = json.loads(str(arrays["source"]))
        except (json.JSONDecodeError, RecursionError):
            source = None
    return _from_arrays(path, arrays, arrays.get("classes"), source)


def _from_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], classes: NDArray[Any] | None, source: Any
) -> FeatureData:
    """The training part, and the test part if there is one."""
    train, test = _pair(arrays, PAIRS), _pair(arrays, TEST_PAIRS)
    if train is None:
        raise ValueError(f"{path} has x_train.npy, but y_train.npy is missing")
    if test is None and any(name in arrays for pair in TEST_PAIRS for name in pair):
        raise ValueError(f"{path} has only one of x_test and y_test: give both or neither")
    data = _checked(path, arrays[train[0]], arrays[train[1]], classes, _first(arrays, TEXTS), "training ")
    if test is not None:
        text = _first(arrays, TEST_TEXTS)
        data = with_test(data, _checked(path, arrays[test[0]], arrays[test[1]], classes, text, "test "))
    return replace(data, source=source if isinstance(source, dict) and "network" in source else None)


def _plain_name(member: str) -> str:
    """The name of an array in an .npz, in lower case."""
    return member.removesuffix(".npy").lower()


def _pair(names: Container[str], pairs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    return next((pair for pair in pairs if pair[0] in names and pair[1] in names), None)


def _first(arrays: Mapping[str, NDArray[Any]], names: Sequence[str]) -> NDArray[Any] | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The rows of an array, some megabytes at a time."""
    step = max(1, CHUNK_BYTES // max(1, array.nbytes // len(array)))
    for start in range(0, len(array), step):
        yield array[start : start + step]


def _checked(
    path: Path,
    x: NDArray[Any],
    y: NDArray[Any],
    names: NDArray[Any] | None = None,
    text: NDArray[Any] | Sequence[str] | None = None,
    part: str = "",
) -> FeatureData:
    """Features as finite float32 and labels as numbers of classes, or an error that says what is wrong with them."""
    if x.ndim != 2 or x.dtype.kind not in "fiub" or 0 in x.shape:
        hint = "; to make features of images, use cappronet embed" if x.ndim in (3, 4) else ""
        raise ValueError(f"{part}features of {path} are {x.dtype} {x.shape}, expected numbers (n, d){hint}")
    if y.shape not in ((len(x),), (len(x), 1)):
        raise ValueError(f"{path} has {len(x)} {part}features but labels of shape {y.shape}: give one label for each")
    check_bytes(path, y.nbytes, f"its {part}labels")
    y = np.asarray(y).reshape(-1)
    if x.dtype != np.float32 or not x.flags.c_contiguous:
        check_bytes(path, 4 * x.size, f"its {part}features as float32")
        with np.errstate(over="ignore"):  # what float32 can't hold is refused below
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
    return FeatureData(path, classes, x, numbers, text_train=_texts(path, text, len(x), part))


def _texts(path: Path, text: NDArray[Any] | Sequence[str] | None, count: int, part: str) -> tuple[str, ...] | None:
    """The texts of the samples, shortened; text that is not valid Unicode gets question marks."""
    if text is None:
        return None
    if isinstance(text, np.ndarray) and (text.dtype.kind != "U" or text.ndim != 1):
        raise ValueError(
            f"{part}texts of {path} are {text.dtype} {text.shape}, expected text (n,): make them an array of str"
        )
    texts = tuple(_shortened(str(item)) for item in text)
    if len(texts) != count:
        raise ValueError(f"{path} has {count} {part}features but {len(texts)} texts: give one text for each")
    return texts


def _shortened(text: str) -> str:
    shown = text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
    return shown.encode("utf-8", "replace").decode("utf-8")


def _numbered(
    path: Path, y: NDArray[Any], names: NDArray[Any] | None, part: str
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of the classes and the number of each label's class; text, whole numbers and booleans are labels."""
    if y.dtype.kind == "f":
        if not np.array_equal(y, np.round(y)) or np.abs(y).max() > 2**53:
            raise ValueError(
                f"{part}labels of {path} have fractions or NaN, or are too large: expected text or whole numbers"
            )
        y = y.astype(np.int64)
    if y.dtype.kind not in "iubU":
        raise ValueError(f"{part}labels of {path} are {y.dtype}, expected text or whole numbers")
    if names is not None:
        if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= names.size:
            raise ValueError(f"{part}labels of {path} must be 0 to {names.size - 1} for its {names.size} named classes")
        return checked_names(path, (str(name) for name in names.reshape(-1))), y.astype(np.int64)
    labels, numbers = np.unique(y, return_inverse=True)
    return checked_names(path, (str(name) for name in labels)), numbers.astype(np.int64)
