"""``Include`` of an ssh_config, which paramiko leaves out: one text with everything in its place.

An included file's own ``Host`` and ``Match`` count only where the block they are included in does
(ssh_config(5)), so both become one ``Match``. Reads files and decides nothing about a host.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

MAX_DEPTH = 16
"""As OpenSSH has it (readconf.c, READCONF_MAX_DEPTH)."""
LINE = re.compile(r"\s*(?P<key>\w+)\s*(?:=\s*|\s)(?P<value>.*?)\s*\Z", re.DOTALL)
EVERYWHERE = "Host *"
Block = tuple[str, ...]
"""The criteria of ``Match``, as words; none for what counts everywhere."""


def expanded(path: Path) -> str:
    """Return the text of a configuration with every ``Include`` replaced by what it names.

    Raises OSError where a file is there and cannot be read, ValueError where one cannot be used.
    """
    return "".join(_lines(path, (), path.parent, 0))


def _lines(path: Path, outer: Block, folder: Path, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise ValueError(f"{path}: Include goes deeper than {MAX_DEPTH} files")
    block = outer
    with path.open() as file:
        for line in file:
            found = LINE.match(line)
            key = found["key"].lower() if found is not None else ""
            if found is None or key not in ("include", "host", "match"):
                yield line.rstrip("\n") + "\n"
            elif key == "include":
                for included in _named(found["value"], folder):
                    yield from _lines(included, block, folder, depth + 1)
                    yield _header(block)
            else:
                block = outer + _criteria(key, found["value"])
                yield _header(block) if depth else line.rstrip("\n") + "\n"


def _named(value: str, folder: Path) -> Iterator[Path]:
    """Yield the files that an Include names; as with a shell's pattern, there may be none."""
    for word in shlex.split(value):
        pattern = Path(word).expanduser()
        place = Path(pattern.anchor) if pattern.is_absolute() else folder
        yield from sorted(place.glob(str(pattern.relative_to(pattern.anchor))))


def _criteria(key: str, value: str) -> Block:
    """Return a block's head as criteria; ``Host`` looks at the name as it was given."""
    if key == "host":
        return ("originalhost", ",".join(shlex.split(value)))
    words = tuple(shlex.split(value))
    return () if words == ("all",) else words


def _header(block: Block) -> str:
    return f"Match {shlex.join(block)}\n" if block else f"{EVERYWHERE}\n"
