"""The files of a receiver's log: names, sizes, removal.

Owns files named by a log's path, a worker and a number; touches no others, and never a pipe, which
belongs to its reader. The loop's writer fills them (native/receiver/log.c).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Optional

from udpbench.folder import Folder, calling_user
from udpbench.model.experiment import Log
from udpbench.model.record import LogFiles


def path_of(log: Log, worker: str) -> str:
    """Return the path of a worker's files without the trailing number."""
    return f"{log.path}.{worker}"


def files(path: str) -> list[tuple[str, int]]:
    """Return name and size in bytes of a log's regular files, in the order of writing."""
    try:
        folder = Folder.open(Path(path).parent)
    except FileNotFoundError:
        return []
    with folder:
        return _files(folder, Path(path).name)


def _files(folder: Folder, name: str) -> list[tuple[str, int]]:
    regular = [
        (number, file, status.st_size)
        for number, file, status in _entries(folder, name)
        if stat.S_ISREG(status.st_mode)
    ]
    return [(file, size_bytes) for _, file, size_bytes in sorted(regular)]


def _entries(folder: Folder, name: str) -> Iterator[tuple[int, str, os.stat_result]]:
    """Yield every entry with a log's name and a number, of any type."""
    pattern = re.compile(re.escape(name) + r"\.(\d+)")
    for file in folder.names():
        match = pattern.fullmatch(file)
        if match is not None:
            with suppress(FileNotFoundError):  # removed in the meantime
                yield int(match.group(1)), file, folder.status(file)


def refuse_existing(path: str) -> None:
    """Raise OSError if no log can be written or a file already exists.

    As root also if the folder, or a pipe in it, belongs to another user.
    """
    base = Path(path)
    step = "or name another path"
    try:
        folder = Folder.open(base.parent)
    except FileNotFoundError as error:
        text = f"receive.log: no folder {base.parent}; create it, {step}"
        raise OSError(errno.ENOENT, text) from error
    except OSError as error:
        text = f"receive.log: {base.parent}: {error.strerror}; fix that, {step}"
        raise OSError(error.errno, text) from error
    with folder:
        for _, file, status in _entries(folder, base.name):
            where = f"receive.log: {base.parent / file}"
            if stat.S_ISREG(status.st_mode):
                raise OSError(errno.EEXIST, f"{where} already exists; remove it, {step}")
            if status.st_uid not in (os.geteuid(), calling_user()):
                what = f"is a pipe of user {status.st_uid}, not of the user who runs udpbench"
                raise OSError(errno.EPERM, f"{where} {what}; remove it, {step}")


def total(path: str) -> LogFiles:
    """Return the number and total size of a log's files."""
    sizes = [size_bytes for _, size_bytes in files(path)]
    return LogFiles(path, len(sizes), sum(sizes))


def clear(folder: Folder, name: str) -> None:
    """Remove every file of a log from its folder."""
    for file, _ in _files(folder, name):
        folder.remove(file)


def settle(path: str, label: Optional[str]) -> None:
    """Remove or rename every file of a log, so that the next trial can write it."""
    base = Path(path)
    try:
        folder = Folder.open(base.parent)
    except FileNotFoundError:
        return
    with folder:
        if label is None:
            clear(folder, base.name)
            return
        for file, _ in _files(folder, base.name):
            number = file.rpartition(".")[2]
            folder.rename(file, f"{base.name}.{label}.{number}")
