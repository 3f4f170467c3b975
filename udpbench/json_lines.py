"""Files of JSON lines that only grow: how one is appended to, read, and mended after a death.

Owns lines and bytes; what a line means is for ``records`` to say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from udpbench.errors import RecordError
from udpbench.model import Finding

BLOCK_BYTES = 2**16


def append(fd: int, message: dict[str, Any], sync: bool = True) -> None:
    """Append one line, whole or not at all, and put it on the disk unless told otherwise.

    Raises OSError, for one where the disk is full.
    """
    line = json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    rest = memoryview(line.encode() + b"\n")
    size_bytes = os.fstat(fd).st_size
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        with suppress(OSError):  # what is no file of the disk has no size to cut
            os.ftruncate(fd, size_bytes)
        raise
    if sync:
        os.fsync(fd)


def cut_torn(fd: int) -> int:
    """Cut a torn last line off, in whose middle the next one would begin; return its bytes."""
    size_bytes = whole_bytes = os.fstat(fd).st_size
    found = -1
    while whole_bytes > 0 and found < 0:
        begin = max(whole_bytes - BLOCK_BYTES, 0)
        found = os.pread(fd, whole_bytes - begin, begin).rfind(b"\n")
        whole_bytes = begin + found + 1
    if whole_bytes < size_bytes:
        os.ftruncate(fd, whole_bytes)
    return size_bytes - whole_bytes


def sync_folder(folder: Path) -> None:
    """Put the new names themselves on the disk, not the files' content alone (fsync(2))."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], tuple[Finding, ...]]:
    """Return every whole line as an object; only the last line may be torn."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise no_run(path) from error
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    *whole, rest = raw.split(b"\n")
    findings = (_torn(path, len(whole) + 1, len(rest)),) if rest else ()
    return list(_objects(path, whole)), findings


def no_run(path: Path) -> RecordError:
    """Return the error of a folder without the file of a run."""
    return RecordError(f"{path}: no such file; is the folder of a run meant?")


def _objects(path: Path, lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        try:
            value = from_json(line)  # half the time of json.loads
        except ValueError as error:
            raise RecordError(f"{path}:{number}: not JSON: the file is damaged") from error
        if not isinstance(value, dict):
            raise RecordError(f"{path}:{number}: not an object: the file is foreign or damaged")
        yield value


def _torn(path: Path, number: int, size_bytes: int) -> Finding:
    return Finding(
        "warning",
        "the last line is torn and was left out: the run was killed while it wrote",
        f"{path}:{number}",
        f"{size_bytes}B",
        next_step="what was written before it is whole",
    )
