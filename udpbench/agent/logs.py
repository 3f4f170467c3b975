"""The files of a receiver's log: their names, and what is found, kept and removed of them.

Owns files whose name is a log's path, a worker and a number; touches no other, and never a pipe,
which somebody made to be written to. The loop's writer fills them (native/log.c).
"""

from __future__ import annotations

import errno
import re
import stat
from pathlib import Path
from typing import Any, Optional

from udpbench.model import LogFiles


def path_of(options: dict[str, Any], worker: str) -> str:
    """Return what the names of a worker's files begin with; a number follows."""
    return f"{options['path']}.{worker}"


def files(path: str) -> list[Path]:
    """Return the regular files of a log in the order in which they were written."""
    base = Path(path)
    named = re.compile(re.escape(base.name) + r"\.(\d+)")
    found = []
    for file in base.parent.glob(f"{_literal(base.name)}.*"):
        match = named.fullmatch(file.name)
        if match is not None and stat.S_ISREG(file.lstat().st_mode):
            found.append((int(match.group(1)), file))
    return [file for _, file in sorted(found)]


def _literal(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def refuse_existing(path: str) -> None:
    """Raise OSError where a folder is missing, or a file is there that is not this run's."""
    base = Path(path)
    if not base.parent.is_dir():
        text = f"receive.log: no folder {base.parent}; make it, or name another path"
        raise OSError(errno.ENOENT, text)
    found = files(path)
    if found:
        text = f"receive.log: {found[0]} is there already; remove it, or name another path"
        raise OSError(errno.EEXIST, text)


def found(path: str) -> LogFiles:
    """Return what is there of a log."""
    sizes = [file.stat().st_size for file in files(path)]
    return LogFiles(path, len(sizes), sum(sizes))


def remove(path: str) -> None:
    """Remove every file of a log."""
    for file in files(path):
        file.unlink()


def settle(path: str, label: Optional[str]) -> None:
    """Remove every file of a log, or give it a label, so that it is not in the next trial's way."""
    if label is None:
        remove(path)
        return
    for file in files(path):
        stem, _, number = file.name.rpartition(".")
        file.rename(file.with_name(f"{stem}.{label}.{number}"))
