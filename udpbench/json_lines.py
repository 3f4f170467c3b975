"""Append-only files of JSON lines: append, read, and cut off a line that a crash left torn.

Owns lines and bytes; ``records`` and the agent's journal say what a line means. Standard library:
json reads lines in 1.4 times the time of pydantic_core, a whole run folder in 1.05 times.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

BLOCK_BYTES = 2**16


class DamagedLine(ValueError):
    """A complete line that is not a JSON object; ``number`` is its line number."""

    def __init__(self, number: int, fault: str) -> None:
        self.number = number
        super().__init__(fault)


def append(fd: int, message: dict[str, Any], sync: bool = True) -> None:
    """Append one line completely or not at all; with ``sync``, flush it to disk.

    Raises OSError, for example if the disk is full.
    """
    line = json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Names of hosts and folders may contain lone surrogates, which UTF-8 cannot encode.
    rest = memoryview(line.encode(errors="replace") + b"\n")
    size_bytes = os.fstat(fd).st_size
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        with suppress(OSError):  # a device has no size to truncate to
            os.ftruncate(fd, size_bytes)
        raise
    if sync:
        os.fsync(fd)


def cut_torn(fd: int) -> int:
    """Cut off a torn last line, so that the next line starts a new one; return its bytes."""
    size_bytes = whole_bytes = os.fstat(fd).st_size
    end = -1
    while whole_bytes > 0 and end < 0:
        begin = max(whole_bytes - BLOCK_BYTES, 0)
        end = os.pread(fd, whole_bytes - begin, begin).rfind(b"\n")
        whole_bytes = begin + end + 1
    if whole_bytes < size_bytes:
        os.ftruncate(fd, whole_bytes)
    return size_bytes - whole_bytes


def open_regular(path: Path, folder_fd: int | None = None) -> IO[bytes]:
    """Open a regular file to read; a pipe or a device, which might never end, is an OSError.

    With the descriptor of its folder, the name alone is looked up, and there.
    """
    name = path if folder_fd is None else path.name
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # open(2) waits on a pipe
    fd = os.open(name, flags, dir_fd=folder_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def parse_lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return every complete line as an object, and the bytes of a torn last line.

    Raises DamagedLine.
    """
    *whole, torn = data.split(b"\n")
    return [_object(number, line) for number, line in enumerate(whole, start=1)], len(torn)


def _object(number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise DamagedLine(number, "not JSON: the file is damaged") from error
    if not isinstance(value, dict):
        raise DamagedLine(number, "not an object: the file is damaged, or not udpbench's")
    return value
