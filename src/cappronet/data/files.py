"""Files that are written whole or not at all, folders with one writer at a time, and errors in one line."""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cappronet.reporting import did_you_mean

__all__ = [
    "LOCK",
    "in_use",
    "locked",
    "nearest_sibling",
    "new_folder",
    "one_line",
    "remove_leftovers",
    "replace_file",
    "sha256_of",
    "write_atomically",
]

# The file that marks a folder as being written; the system releases its lock when the process ends, however it ends.
LOCK = ".lock"
# How long to wait for a process that only looks whether a folder is in use.
LOCK_SECONDS = 0.5
# The locks of this process, which a forked child must not keep.
_held: set[int] = set()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that, whatever happens, it holds either the old content or the new."""
    replace_file(path, lambda temporary: temporary.write_bytes(content))


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Have `write` make a file under a temporary name; it takes the place of `path` once it is safely on the disk."""
    remove_leftovers(path.parent, path.name)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write to, under a temporary name; it becomes `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.mkdir()
    try:
        yield temporary
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FileExistsError(f"{path} exists and is left as it is: choose another folder")
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove the temporary files and folders, of `name` or of any, whose process was killed while it wrote them."""
    with suppress(OSError):  # a folder that can't be listed has nothing to tidy, and the write itself reports it
        for file in folder.iterdir():
            stem, _, process = file.name.rpartition(".")
            known = stem == f".{name}" if name else stem.startswith(".") and len(stem) > 1
            if not (known and process.isascii() and process.isdigit()) or _is_running(int(process)):
                continue
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    if sys.platform == "win32":  # os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    except OverflowError:
        return False
    return not _is_zombie(process)


def _is_zombie(process: int) -> bool:
    """Whether it has ended and only its entry is left: in a container, there may be no one to collect orphans."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has just ended, or the system has no such files
        return False
    return status.rpartition(")")[2].split()[:1] == ["Z"]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which must exist, until the block is left or this process ends.

    Raises:
        BlockingIOError: another process has it.
    """
    path = folder / LOCK
    deadline = time.monotonic() + LOCK_SECONDS
    while (descriptor := _lock(path)) is None:
        if time.monotonic() > deadline:
            raise BlockingIOError(f"another process is writing to {folder}: wait until it ends, or choose another name")
        time.sleep(0.02)
    _held.add(descriptor)
    try:
        yield
    finally:
        _held.discard(descriptor)
        _release(path, descriptor)


def in_use(folder: Path) -> bool:
    """Whether another process has locked the folder."""
    if not (folder / LOCK).exists():
        return False
    descriptor = _lock(folder / LOCK)
    if descriptor is None:
        return True
    _release(folder / LOCK, descriptor)
    return False


def _release(path: Path, descriptor: int) -> None:
    if sys.platform == "win32":  # an open file can't be removed
        os.close(descriptor)
        path.unlink(missing_ok=True)
    else:
        path.unlink(missing_ok=True)
        os.close(descriptor)


if sys.platform == "win32":

    def _lock(path: Path) -> int | None:
        """Open the file for this process alone; None if another one has it open, which keeps it from being removed."""
        try:
            path.unlink(missing_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except (PermissionError, FileExistsError):
            return None

else:
    import fcntl

    def _lock(path: Path) -> int | None:
        """Open and lock the file; None if another process has it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:  # a file system without locks
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # the one who had it has just removed it
        return None

    def _close_inherited() -> None:
        for descriptor in _held:
            with suppress(OSError):
                os.close(descriptor)
        _held.clear()

    # A child that outlives a killed parent, such as a reader of image files, would hold the parent's lock.
    os.register_at_fork(after_in_child=_close_inherited)


def sha256_of(path: Path) -> str:
    """The SHA-256 digest of a file's content, in hexadecimal; the file is read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def one_line(error: BaseException) -> str:
    """What an exception says, without line breaks; its kind if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def nearest_sibling(path: Path) -> str:
    """The end of an error message about a path that is not there: the path next to it with the most similar name."""
    try:
        siblings = [path.with_name(other.name) for other in path.parent.iterdir()]
    except (OSError, ValueError):
        return ""
    # Files of one kind are alike in their suffix, and all files of a folder in the rest of the path.
    return did_you_mean(str(path), [str(other) for other in siblings if did_you_mean(path.stem, [other.stem])])
