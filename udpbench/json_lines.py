"""Lines of append-only files and of pipes: append, read, and cut off what a crash left torn.

Owns lines and bytes, and what JSON of anybody may cost: its depth, its numbers, and the memory that
reading it takes. ``records``, the agent's journal and ``protocol`` say what a line means. Standard
library: json reads lines in 1.4 times the time of pydantic_core, a whole run folder in 1.05 times.
"""

from __future__ import annotations

import errno
import json
import os
import select
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import IO, Any, Callable, Optional

BLOCK_BYTES = 2**16
MOST_BYTES = 2**30
"""Limit of what is read from one file; compressed data count as uncompressed."""
MOST_LINE_BYTES = 2**26
"""As of a reply of an agent."""
MOST_LEVELS = 64
"""Most nested lists and objects; records have 12."""
ROOM_BYTES = 2**26
ROOM_TIMES = 3
"""Reading may take so many times the content, and ROOM_BYTES."""
LIST_BYTES, OBJECT_BYTES, ITEM_BYTES = 80, 200, 64
"""Memory of Python 3.11 for an empty list, a small object, and an item of either, rounded up."""
LOOK_BYTES = 2**20
"""Step of the estimate between two questions for the memory of the process."""
KERNEL_FILES = frozenset(
    ("binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "efivarfs", "fusectl")
) | {"mqueue", "nsfs", "proc", "pstore", "resctrl", "securityfs", "selinuxfs", "sysfs", "tracefs"}
"""File systems whose regular files are answers of the kernel."""
_OPENING, _CLOSING = b"[{", b"]}"
_LEVELS = bytes.maketrans(_OPENING + _CLOSING, b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - {*_OPENING, *_CLOSING})


class DamagedLine(ValueError):
    """A complete line that is not a JSON object; ``number`` is its line number."""

    def __init__(self, number: int, fault: str) -> None:
        self.number = number
        super().__init__(fault)


Source = Callable[[Optional[float]], bytes]
"""Seconds to wait, None: without end → what has arrived, empty at the end; raises TimeoutError."""


class LineTooLong(ValueError):
    """A line of a pipe exceeds its limit; it is skipped, and the next one can be read."""


class LinePipe:
    """Lines of bounded length that another process writes into a pipe."""

    def __init__(self, source: int | Source, limit_bytes: int = MOST_LINE_BYTES) -> None:
        """``source`` is the pipe's descriptor, or what receives from a connection."""
        self._receive = partial(_read_in_time, source) if isinstance(source, int) else source
        self.fd = source if isinstance(source, int) else -1
        self.limit_bytes = limit_bytes
        self.ended = False
        self._rest = bytearray()
        self._lines: deque[bytes | None] = deque()
        self._skipping = False

    @property
    def rest(self) -> bytes:
        """What was read of a line that has not ended."""
        return bytes(self._rest)

    def read(self, deadline_ns: int | None = None) -> list[bytes | None]:
        """Return the lines completed by one read, None for one beyond the limit.

        Empty at the deadline, a time of CLOCK_MONOTONIC; 0 waits for nothing.
        """
        with suppress(TimeoutError):
            self._fill(deadline_ns)
        lines, self._lines = [*self._lines], deque()
        return lines

    def next(self, deadline_ns: int | None = None) -> bytes:
        """Return the next line, or what there is of it at the end of the pipe.

        Raises EOFError after that, TimeoutError at the deadline, LineTooLong.
        """
        while not self._lines and not self.ended:
            self._fill(deadline_ns)
        if self._lines:
            line = self._lines.popleft()
        else:
            line, self._rest = self.rest, bytearray()
            if not line:
                raise EOFError
        if line is None:
            raise LineTooLong(f"a line is longer than {self.limit_bytes} B")
        return line

    def _fill(self, deadline_ns: int | None) -> None:
        """Read once."""
        left_ns = None if deadline_ns is None else max(deadline_ns - time.monotonic_ns(), 0)
        chunk = self._receive(None if left_ns is None else left_ns / 10**9)
        self.ended = not chunk
        begin = len(self._rest)  # before it there is no end of a line
        self._rest += chunk
        while (end := self._rest.find(b"\n", begin)) >= 0:
            with memoryview(self._rest) as whole:
                line = bytes(whole[:end])
            del self._rest[: end + 1]
            if not self._skipping:
                self._lines.append(line if end <= self.limit_bytes else None)
            self._skipping, begin = False, 0
        if len(self._rest) > self.limit_bytes:
            self._rest.clear()
            if not self._skipping:
                self._lines.append(None)
            self._skipping = True


def _read_in_time(fd: int, left_s: float | None) -> bytes:
    if left_s is not None and not select.select([fd], [], [], left_s)[0]:
        raise TimeoutError
    return os.read(fd, BLOCK_BYTES)


def append(fd: int, message: dict[str, Any], sync: bool = True) -> bytes:
    """Append one line completely or not at all, and return it; with ``sync``, flush it to disk.

    Raises OSError, for example if the disk is full.
    """
    line = compact(message) + b"\n"
    append_line(fd, line)
    if sync:
        os.fsync(fd)
    return line


def compact(plain: Any) -> bytes:
    """Return JSON data as text, as it is in a line."""
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Names of hosts and folders may contain lone surrogates, which UTF-8 cannot encode.
    return text.encode(errors="replace")


def append_line(fd: int, line: bytes) -> None:
    """Append a line completely or not at all; raises OSError."""
    rest = memoryview(line)
    size_bytes = os.fstat(fd).st_size
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        with suppress(OSError):  # a device has no size to truncate to
            os.ftruncate(fd, size_bytes)
        raise


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


def open_regular(path: Path, folder_fd: int | None = None, follow: bool = True) -> IO[bytes]:
    """Open a regular file to read; a pipe or a device, which might never end, is an OSError.

    With the descriptor of its folder, the name alone is looked up, and there; without ``follow``
    the name must be no link.
    """
    name = path if folder_fd is None else path.name
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    held = os.open(name, flags, dir_fd=folder_fd)
    try:
        return open_held(held, path)
    finally:
        os.close(held)


def open_held(held: int, path: Path) -> IO[bytes]:
    """Open what is held by O_PATH to read, if it is a regular file that is no kernel's; OSError.

    Opening a device may do something, and reading /proc/kmsg takes the log away.
    """
    state = os.fstat(held)
    if stat.S_ISDIR(state.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if stat.S_ISLNK(state.st_mode):
        raise OSError(
            errno.ELOOP, "a link, which is not followed; put the file itself there", str(path)
        )
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if _file_system(state.st_dev) in KERNEL_FILES:
        raise OSError(errno.EINVAL, "a file of the kernel", str(path))
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.fdopen(os.open(f"/proc/self/fd/{held}", flags), "rb", BLOCK_BYTES)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _file_system(device: int) -> str:
    """Return the type of a mounted file system; empty if it is on a disk, or not known."""
    if os.major(device) != 0:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", errors="replace") as mounts:  # noqa: PTH123 - as below
        for fields in map(str.split, mounts):
            if fields[2] == number:
                return fields[fields.index("-") + 1]
    return ""


def read_lines(
    path: Path, room: Room, folder_fd: int | None = None, follow: bool = True
) -> Iterator[tuple[int, dict[str, Any] | None, int]]:
    """Yield number, object and bytes of each line of a file; a torn last line has no object.

    As ``whole_lines``; raises DamagedLine for content that is no object, too.
    """
    for number, line, size_bytes in whole_lines(path, folder_fd, follow):
        yield number, object_in(number, line, room) if line is not None else None, size_bytes


def whole_lines(
    path: Path, folder_fd: int | None = None, follow: bool = True
) -> Iterator[tuple[int, bytes | None, int]]:
    """Yield number, text and bytes of each line of a file; a torn last line has no text.

    Opened as by ``open_regular``. Raises OSError if the file is not regular or too large,
    DamagedLine for a line without end.
    """
    with open_regular(path, folder_fd, follow) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        number = 0
        while size_bytes <= MOST_BYTES and (line := file.readline(MOST_LINE_BYTES + 1)):
            number += 1
            whole = line.endswith(b"\n")
            if not whole and len(line) > MOST_LINE_BYTES:
                limit = f"{MOST_LINE_BYTES // 2**20}MiB"
                raise DamagedLine(number, f"longer than {limit}: not a line of udpbench's")
            yield number, line if whole else None, len(line)
            if not whole:
                break  # what comes behind it meanwhile is its rest
            size_bytes = max(size_bytes, file.tell())  # somebody may append to it meanwhile
    if size_bytes > MOST_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MOST_BYTES // 2**20}MiB", str(path))


def parse_lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return every complete line as an object, and the bytes of a torn last line.

    Raises DamagedLine.
    """
    *whole, torn = data.split(b"\n")
    room = Room()
    return [object_in(number, line, room) for number, line in enumerate(whole, start=1)], len(torn)


def object_in(number: int, line: bytes, room: Room) -> dict[str, Any]:
    """Return the object that a line is, if there is room for it; raises DamagedLine."""
    try:
        room.hold(line, parsed_bytes(line))
        value = parse_json(line)
    except ValueError as error:
        raise DamagedLine(number, f"{error}: the file is damaged") from error
    if not isinstance(value, dict):
        raise DamagedLine(number, "not an object: the file is damaged, or not udpbench's")
    return value


class Room:
    """The memory that reading may take: ROOM_TIMES its content, and ROOM_BYTES.

    What is read has an upper estimate. Only beyond that is the memory of the process looked at,
    which other threads use, too.
    """

    def __init__(self) -> None:
        self._begin_bytes = _resident_bytes()
        self._content_bytes = self._estimate_bytes = self._unseen_bytes = 0

    def hold(self, data: bytes, cost_bytes: int) -> None:
        """Count JSON text that will be parsed and kept; ValueError if there is no room for it.

        ``cost_bytes`` are its ``parsed_bytes``.
        """
        self._content_bytes += len(data)
        self._estimate_bytes += cost_bytes
        self._unseen_bytes += cost_bytes
        most_bytes = ROOM_TIMES * self._content_bytes + ROOM_BYTES
        if self._estimate_bytes > most_bytes and self._unseen_bytes > LOOK_BYTES:
            self._unseen_bytes = 0
            taken_bytes = _resident_bytes() - self._begin_bytes
            if taken_bytes + cost_bytes > most_bytes:
                limit = f"{ROOM_TIMES} times its size and {ROOM_BYTES // 2**20}MiB"
                raise ValueError(f"it would take more memory than {limit}")


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - Path is slower
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def parsed_bytes(data: bytes) -> int:
    """Return about the most memory that JSON text takes as Python's objects, text included."""
    lists, objects = data.count(b"["), data.count(b"{")
    items = data.count(b",") + lists + objects
    width = 1 if data.isascii() else 4  # of a character, in the text to which data is decoded
    structure_bytes = LIST_BYTES * lists + OBJECT_BYTES * objects + ITEM_BYTES * items
    return (1 + width) * len(data) + structure_bytes


def parse_json(data: bytes) -> Any:
    """Return the value of JSON text from anybody; ValueError if it is none, or absurd.

    Infinite numbers, deep nesting, and more values than there is room for are absurd.
    """
    if parsed_bytes(data) > ROOM_TIMES * len(data) + ROOM_BYTES:
        raise ValueError("more values than are read at once")
    levels = accumulate(memoryview(data.translate(_LEVELS, _NO_BRACKETS)).cast("b"))
    if max(levels, default=0) > MOST_LEVELS:
        raise ValueError(f"nested deeper than {MOST_LEVELS} levels")
    try:
        return _DECODER.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError("not a finite number")
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
