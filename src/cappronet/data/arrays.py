"""Arrays in `.npy` and `.npz` files: what their headers announce is checked before anything is read."""

import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cappronet.data.files import one_line
from cappronet.data.limits import check_bytes, check_regular

__all__ = ["UNREADABLE", "array_header", "map_npy", "read_npz"]

# What numpy and zipfile raise for files that are damaged or hold something else than arrays.
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    RuntimeError,
    OverflowError,
    MemoryError,
    SyntaxError,
    tokenize.TokenError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


def map_npy(path: Path) -> NDArray[Any]:
    """The array of an .npy, mapped: it may be larger than memory."""
    check_regular(path)
    try:
        # Copy on write: torch wants memory that it could write to, and the file must not change.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except UNREADABLE as error:
        raise ValueError(f"{path} can't be read as an .npy file ({one_line(error)}): save it with numpy.save") from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} can't be read as an .npy file: it is an archive, call it .npz")
    return array


def read_npz(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The wanted arrays of an .npz by name, and the names of all of its arrays.

    The checksums of the arrays that are read are compared, and the names of all with those in front of their content.
    """
    check_regular(path)
    with _described(path), zipfile.ZipFile(path) as archive:
        _check_directory(path, archive)
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        chosen = {name: info for name, info in members.items() if wanted(name)}
        for name, info in members.items():
            with archive.open(info) as file:  # compares the name with the one in front of the content
                if name in chosen:
                    _check_header(file, info.file_size)
    check_bytes(path, sum(info.file_size for info in chosen.values()))
    arrays = {}
    with _described(path), zipfile.ZipFile(path) as archive:
        for name, info in chosen.items():
            with archive.open(info) as file:
                arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
                file.read()  # the checksum is compared at the end
    return arrays, list(members)


@contextmanager
def _described(path: Path) -> Iterator[None]:
    """Whatever is raised for a damaged archive becomes an error that says what to do."""
    try:
        yield
    except UNREADABLE as error:
        raise ValueError(
            f"{path} can't be read as an .npz file, it may be truncated ({one_line(error)}): "
            "save it again with numpy.savez_compressed, without object arrays"
        ) from None


def array_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """What the header of an .npy says, without reading the array."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _check_directory(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse an archive whose end announces another number of files than its directory has: some would be missing."""
    with path.open("rb") as file:
        file.seek(-22 - len(archive.comment), os.SEEK_END)  # the end record has 22 bytes, and a comment
        announced = struct.unpack("<4s4H", file.read(12))[-1]
    if announced not in (len(archive.infolist()), 0xFFFF):  # which stands for a number that needs more bits
        raise zipfile.BadZipFile(f"its end announces {announced} files, its directory has {len(archive.infolist())}")


def _check_header(file: Any, size: int) -> None:
    """Refuse an array whose header announces more bytes than the archive has of it."""
    shape, dtype = array_header(file)
    announced = math.prod(shape) * dtype.itemsize
    if announced > size and not dtype.hasobject:
        raise ValueError(f"an array of {shape} would need {announced:,} bytes, but the archive has {size:,}")
