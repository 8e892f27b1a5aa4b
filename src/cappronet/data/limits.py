"""What is checked before a file is read: that it is a regular file, and that its content fits into memory.

A few bytes can announce an array of terabytes, and a pipe never ends. Readers in this package therefore compare what a
file announces in its header with `max_bytes()` before they allocate anything. Mapped arrays are not limited.
"""

import os
from pathlib import Path

__all__ = ["VARIABLE", "check_bytes", "check_regular", "max_bytes"]

# The environment variable that sets the limit, in bytes.
VARIABLE = "CAPPRONET_MAX_BYTES"
# Where the system does not say how much memory there is.
DEFAULT = 8 * 2**30
MEMORY_INFO = Path("/proc/meminfo")
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def max_bytes() -> int:
    """How many bytes a file may take in memory: CAPPRONET_MAX_BYTES, else the memory that is available."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return _available()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"the environment variable {VARIABLE} must be a number of bytes, got {text!r}")
    return int(text)


def check_bytes(path: Path, needed: int, what: str = "it") -> None:
    """Refuse what would take more memory than `max_bytes()`, before it is read."""
    limit = max_bytes()
    if needed > limit:
        raise ValueError(
            f"{path} is not read: {what} would take {_readable(needed)} of memory, and the limit is "
            f"{_readable(limit)}; set {VARIABLE} to raise it"
        )


def check_regular(path: Path) -> None:
    """Refuse pipes, devices and folders, whatever links to them; reading them may never end."""
    if path.is_file():
        return
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    raise ValueError(f"{path} is not a regular file: remove it, or put the file itself there")


def _available() -> int:
    """The memory that programs can still get, as the system says it; on other systems, all there is."""
    try:
        lines = MEMORY_INFO.read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        try:
            free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, OSError, ValueError):
            free = DEFAULT
    try:
        return min(free, int(CONTAINER_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # outside a container there is no such file, or it holds "max"
        return free


def _readable(count: int) -> str:
    """A number of bytes in the largest unit that leaves at least 1."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count} bytes"
