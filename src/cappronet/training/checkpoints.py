"""Checkpoints with a digest: a damaged file is refused, never resumed from.

A checkpoint is a file of `torch.save`, which is a zip archive. The SHA-256 of all that precedes it is the archive's
comment, so the file is still one that `torch.load` reads.
"""

import hashlib
import struct
from pathlib import Path
from typing import Any, BinaryIO

import torch

from cappronet.data.files import sha256_of

__all__ = ["WHAT_TO_DO", "read_checkpoint", "write_checkpoint"]

MARK = b"sha256:"
COMMENT_SIZE = len(MARK) + 64
# What an archive without a comment ends with: a signature, 16 bytes of numbers, the length of the comment.
END, END_SIZE = b"PK\x05\x06", 22
PIECE = 1 << 20
WHAT_TO_DO = "restore a copy of it, or delete it to train from the beginning"


def write_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write a state with its digest."""
    try:
        torch.save(state, path)
    except RuntimeError as error:  # how torch reports a failed write
        reason = str(error).partition("\n")[0]
        raise OSError(f"the checkpoint could not be written to {path.parent}; is the disk full? ({reason})") from error
    with path.open("rb+") as file:
        file.seek(-2, 2)
        file.write(struct.pack("<H", COMMENT_SIZE))
    digest = sha256_of(path)
    with path.open("ab") as file:
        file.write(MARK + digest.encode())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a state; loading executes no code. Files of earlier versions have no digest to check."""
    try:
        with path.open("rb") as file:
            if not _is_intact(file):
                raise ValueError("its content does not match its SHA-256")
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # of torch, pickle and the archive, which share no class
        reason = str(error).partition("\n")[0] or "it is truncated"
        raise ValueError(f"{path} can't be read: {reason}; {WHAT_TO_DO}") from None
    if not isinstance(state, dict) or "step" not in state:
        raise ValueError(f"{path} is not a checkpoint of a run; {WHAT_TO_DO}")
    return state


def _is_intact(file: BinaryIO) -> bool:
    """Whether the content has the digest in the comment, or the file ends as one without a comment does."""
    size = file.seek(0, 2)
    file.seek(max(0, size - COMMENT_SIZE))
    last = file.read()
    if not last.startswith(MARK):
        ending = last[-END_SIZE:]
        return len(ending) < END_SIZE or (ending.startswith(END) and ending.endswith(b"\0\0"))
    digest = hashlib.sha256()
    file.seek(0)
    left = size - COMMENT_SIZE
    while piece := file.read(min(PIECE, left)):
        digest.update(piece)
        left -= len(piece)
    return last == MARK + digest.hexdigest().encode()
