"""What ``run`` judged while it measured, beside its run: ``judged.jsonl``, which may be deleted.

A line has the result of one trial with the rows of its tables, where in the trial's line its facts
and changes are, a digest of what it was judged from (that line, those of its series, and the code
that judges), and a seal by a key that this user alone can read. Results of others, of another build
or of other lines are not believed: their trials are judged anew.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from udpbench.folder import Folder, calling_user
from udpbench.json_lines import DamagedLine, whole_lines
from udpbench.model.record import Status, TrialRecord
from udpbench.model.result import Result, ResultTable, Row

JUDGED_FILE = "judged.jsonl"
KEY_FILE = "judged.key"
KEY_BYTES = 32
PARTS = ("facts", "changes", "selftests")
"""Fields of a record that are nearly alike in all of a run, and that nearly every output shows."""
MOST_ROWS = 500
"""Rows of a table from which on it is read from the record instead."""
_BEGIN, _MIDDLE, _END = b'["', b'",', b"]\n"
_SEAL = slice(len(_BEGIN), len(_BEGIN) + 64)
_CONTENT = slice(_SEAL.stop + len(_MIDDLE), -len(_END))
_SOURCE = slice(len('{"source":"'), len('{"source":"') + 64)


@dataclass(frozen=True)
class JudgedTrial:
    """The result of a trial, and what of its record is asked for with it."""

    source: str
    """What it was judged from, by ``SourceDigest``."""
    status: Status
    """Its record's; that of the result may differ."""
    built_in_lab: bool
    started_at: str
    result: Result
    """Without its tables."""
    tables: dict[str, str] | None
    """Table that has rows → these as JSON; None where all are read from the record."""
    parts: dict[str, tuple[int, int]]
    """Field of its record → where its text begins and ends in the trial's line."""


@cache
def _code() -> bytes:
    """Return a digest of the code on which results depend: what judges, and what that imports."""
    package, digest = Path(__file__).parent, hashlib.sha256()
    rooms = (package / room for room in ("analysis", "model", "records"))
    files = [*package.glob("*.py"), *(file for room in rooms for file in room.rglob("*.py"))]
    for file in sorted(files):
        digest.update(b"%s\0" % file.relative_to(package).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.digest()


class SourceDigest:
    """A digest of what this build judges: a trial's line, and before it those of its series."""

    def __init__(self) -> None:
        self._series = hashlib.sha256()

    def add(self, part: bytes) -> None:
        """Add a line of the series."""
        self._series.update(part)

    def with_line(self, line: bytes) -> str:
        """Return the digest of a trial's line with the series as it is so far."""
        parts = _code(), hashlib.sha256(line).digest(), self._series.digest()
        return hashlib.sha256(b"".join(parts)).hexdigest()


def own_key(make: bool = False) -> bytes | None:
    """Return this user's key, with sudo the calling user's; None if there is none to rely on."""
    with suppress(OSError, KeyError), Folder.open(_place(), make=make) as held:
        if make and KEY_FILE not in held.names():
            held.write(KEY_FILE, os.urandom(KEY_BYTES), 0o600)
        fd = held.file(KEY_FILE, os.O_RDONLY | os.O_NONBLOCK)
        with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
            state = os.fstat(fd)
            private = stat.S_ISREG(state.st_mode) and not state.st_mode & 0o077
            if private and state.st_uid in (calling_user(), os.geteuid()):
                key = file.read(KEY_BYTES + 1)
                return key if len(key) == KEY_BYTES else None
    return None


def _place() -> Path:
    """Return the folder of the key: in the calling user's cache."""
    own = calling_user() == os.geteuid()
    cache_home, home = (os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "HOME"))
    if own and cache_home.startswith("/"):
        return Path(cache_home) / "udpbench"
    known = own and home.startswith("/")
    return Path(home if known else pwd.getpwuid(calling_user()).pw_dir) / ".cache" / "udpbench"


def rows_kept(tables: Sequence[ResultTable]) -> dict[str, str] | None:
    """Return the rows of a result's tables as a judged trial has them; None of none, or of many."""
    kept = {}
    for table in tables:
        rows = list(islice(table.rows(), MOST_ROWS + 1))
        if len(rows) > MOST_ROWS:
            return None
        if rows:
            kept[table.name] = json.dumps(rows, allow_nan=False)
    return kept if tables else None


def sealed(content: bytes, key: bytes) -> bytes:
    """Return the line of a judged trial's JSON text."""
    return b"".join((_BEGIN, _seal(content, key), _MIDDLE, content, _END))


def unsealed(path: Path, folder_fd: int | None, key: bytes) -> dict[str, bytes]:
    """Return digest → JSON text of each judged trial that was sealed with a key."""
    with suppress(OSError, DamagedLine):
        return dict(_contents(path, folder_fd, key))
    return {}


def _contents(path: Path, folder_fd: int | None, key: bytes) -> Iterator[tuple[str, bytes]]:
    for _, line, _ in whole_lines(path, folder_fd, follow=False):
        content = line[_CONTENT] if line is not None else b""
        if line is not None and hmac.compare_digest(line[_SEAL], _seal(content, key)):
            yield content[_SOURCE].decode(), content


def _seal(content: bytes, key: bytes) -> bytes:
    return hmac.digest(key, content, "sha256").hex().encode()


class LaterRecord(TrialRecord):
    """A record whose result was kept: the rest is read from its file where it is asked for."""

    def __init__(
        self, judged: JudgedTrial, part: Callable[[str], Any], read: Callable[[], TrialRecord]
    ) -> None:
        self.__dict__.update(
            trial=judged.result.trial,
            status=judged.status,
            built_in_lab=judged.built_in_lab,
            started_at=judged.started_at,
            _result=judged.result,
            _tables=judged.tables,
            _part=part,
            _read=read,
        )

    def whole(self) -> TrialRecord:
        """Return itself, read; from then on it is an ordinary record."""
        known = vars(self)
        del known["_part"]
        known |= {**vars(known.pop("_read")()), "trial": self.trial}
        object.__setattr__(self, "__class__", TrialRecord)
        return self

    def __eq__(self, other: object) -> bool:
        return self.whole() == other

    __hash__ = TrialRecord.__hash__


class _Later:
    """A field of a record that is read alone, or with all others."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, record: LaterRecord | None, _: type) -> Any:
        if record is None:
            return self
        if self._name not in PARTS:
            return getattr(record.whole(), self._name)
        known = vars(record)
        return known.setdefault(self._name, known["_part"](self._name))


for _each in fields(TrialRecord):
    if _each.name not in ("trial", "status", "built_in_lab", "started_at"):
        setattr(LaterRecord, _each.name, _Later(_each.name))


def kept_result(record: TrialRecord) -> Result | None:
    """Return how a record was judged when it was measured, if this user's own run kept that."""
    result: Result | None = vars(record).get("_result")
    return result


def kept_rows(record: TrialRecord) -> Callable[[str], Iterable[Row]] | None:
    """Return what has the rows of each table of a kept result; None if they are in the record."""
    tables: dict[str, str] | None = vars(record).get("_tables")
    if tables is None:
        return None
    return lambda name: map(tuple, json.loads(tables.get(name, "[]")))
