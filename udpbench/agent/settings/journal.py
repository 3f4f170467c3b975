"""What was changed on this host and is not yet undone, on disk before the change is made.

One file per run and network namespace, /run/udpbench/<run>-<netns>.jsonl, gone after a reboot like
the settings it describes. Whoever has it open holds its lock. It never touches a setting.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from udpbench.agent.host.system import Host
from udpbench.errors import RestoreError
from udpbench.file_lock import lock_file
from udpbench.json_lines import DamagedLine, append, parse_lines
from udpbench.model import Setting
from udpbench.protocol import decode

FOLDER = "/run/udpbench"
DOOR_SUFFIX = ".sock"
"""Of the agent's socket beside its journal (``agent/reconnect``)."""
FORMAT = 1
_RUN = re.compile(r"[\w.:+-]+", re.ASCII)


@dataclass(frozen=True)
class Entry:
    """One change; ``after`` means something only if the change is known to be ``applied``."""

    seq: int
    setting: Setting
    before: Any
    after: Any = None
    applied: bool = False
    index: Optional[int] = None
    """Of the interface that the target names: a name may change, or become another one's."""
    along: tuple[Any, ...] = ()
    """While its link may be down for the change or the undoing: requests for what it had before."""


@dataclass(frozen=True)
class Identity:
    """Where a journal belongs; ``netns_cookie`` is never used twice in a boot, the inode may be."""

    run: str
    boot_id: str
    netns: int
    netns_cookie: Optional[int]
    ends_with_run: bool = field(default=False, compare=False)
    """The namespace was made for this run's agent; nobody can enter it once that is dead."""

    def same_place(self, other: Identity) -> bool:
        """Say whether both are of the same boot and network namespace, whatever the run."""
        return replace(self, run="") == replace(other, run="")


def identify(host: Host, run: str, ends_with_run: bool = False) -> Identity:
    """Return the identity of this process's namespace for a run."""
    return Identity(run, host.boot_id(), host.netns(), host.netns_cookie(), ends_with_run)


class Journal:
    """The journal of one run in one namespace; the file appears with the first change.

    Its lock is flock(2) on the file, so it ends with the process. Files are made 0600, in a folder
    0700. What is about to change is on disk before ``begin`` returns; the rest is only written,
    which outlives the process: a replay can do without it, and fsync(2) takes 3 ms on ext4.
    """

    def __init__(self, host: Host, run: str, ends_with_run: bool = False) -> None:
        if not _RUN.fullmatch(run):
            raise ValueError(f"run {run!r}: a name holds only letters, digits and ._:+-")
        self.identity = identify(host, run, ends_with_run)
        self.path = host.path(FOLDER) / f"{run}-{self.identity.netns}.jsonl"
        self._file: Optional[int] = None
        self._entries: dict[int, Entry] = {}
        self._last = 0

    @classmethod
    def open(cls, host: Host, path: Path, wait: bool = False) -> Journal:
        """Return the journal in a file that another process left, and take its lock.

        Raises RestoreError if it is of another boot or namespace, or damaged; where it is
        locked, waits for the lock or raises as well. A last line without its end is cut off. One
        without any whole line is removed: FileNotFoundError.
        """
        file = _lock(path, wait)
        try:
            _remove_unbegun(path)
            identity, entries, last, size = _load(path)
            journal = cls(host, identity.run)
            _check_place(path, identity, journal.identity)
            os.ftruncate(file, size)
        except BaseException:
            os.close(file)
            raise
        journal.path, journal._file = path, file
        journal._entries, journal._last = entries, last
        return journal

    @property
    def last_seq(self) -> int:
        """The number of the latest change; 0 before the first."""
        return self._last

    @property
    def pending(self) -> tuple[Entry, ...]:
        """What is not undone yet, in the order of the changes."""
        return tuple(self._entries.values())

    @property
    def file(self) -> Optional[int]:
        """The descriptor that holds the lock; None if there is no file."""
        return self._file

    def begin(self, setting: Setting, before: Any, index: Optional[int] = None) -> Entry:
        """Record what is about to be changed and what was read; OSError if that fails."""
        entry = Entry(self._last + 1, setting, before, index=index)
        line = {"seq": entry.seq, "setting": asdict(setting), "before": before, "index": index}
        try:
            if self._file is None:
                self._create()
            self._append(line, durable=True)
        except BaseException:
            # A file without its first line, as of a full disk, would make the next lines useless.
            if self._file is not None:
                self.discard()
            raise
        self._last = entry.seq
        self._entries[entry.seq] = entry
        return entry

    def applied(self, entry: Entry, after: Any) -> Entry:
        """Record what was read back after the change."""
        self._append({"seq": entry.seq, "after": after})
        entry = replace(self._entries[entry.seq], after=after, applied=True)
        self._entries[entry.seq] = entry
        return entry

    def record_along(self, entry: Entry, along: Sequence[Any]) -> None:
        """Record what a write may take along with a link, or with nothing, that all of it is back.

        A failure to record it is harmless as long as this process lives.
        """
        self._entries[entry.seq] = replace(self._entries[entry.seq], along=tuple(along))
        with suppress(OSError):
            self._append({"seq": entry.seq, "along": along})

    def undone(self, entry: Entry) -> None:
        """Record that a change is undone; the file goes with the last one.

        A failure to record it is harmless: a replay finds the value as it was before.
        """
        del self._entries[entry.seq]
        with suppress(OSError):
            if self._entries:
                self._append({"seq": entry.seq, "undone": True})
            else:
                self.path.unlink()
        if not self._entries:
            self.close()

    def discard(self) -> None:
        """Remove a file in which nothing is pending: who made it came to no change."""
        if not self._entries:
            self.path.unlink(missing_ok=True)
            self.close()

    def close(self) -> None:
        """Let go of the file and its lock; what is pending stays on disk."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _create(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._file = os.open(self.path, flags, 0o600)
        except FileExistsError as error:
            raise RestoreError(
                f"{self.path}: run {self.identity.run} has left changes here that are not undone; "
                "undo them first: udpbench restore"
            ) from error
        lock_file(self._file, wait=True)
        self._append({"journal": FORMAT, **asdict(self.identity)})
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _append(self, line: dict[str, Any], durable: bool = False) -> None:
        if self._file is None:
            raise OSError(errno.EBADF, "the journal is closed", str(self.path))
        append(self._file, line, sync=durable)


def _lock(path: Path, wait: bool) -> int:
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    if not lock_file(file, wait):
        os.close(file)
        raise RestoreError(
            f"{path}: a running agent or its guardian has the journal open; "
            "wait for that run to end, or stop it"
        )
    if os.fstat(file).st_nlink == 0:
        os.close(file)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return file


def _remove_unbegun(path: Path) -> None:
    """Remove a file without a whole line: who made it died before its first change."""
    if b"\n" not in path.read_bytes():
        path.unlink()
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _check_place(path: Path, written: Identity, own: Identity) -> None:
    if not written.same_place(own):
        raise RestoreError(
            f"{path}: the journal is of another boot or network namespace; "
            f"what it describes is not here; remove it: rm {path}"
        )


def _load(path: Path) -> tuple[Identity, dict[int, Entry], int, int]:
    """Return identity, pending entries, last number and the bytes of whole lines."""
    data = path.read_bytes()
    entries: dict[int, Entry] = {}
    last = 0
    number = 1
    try:
        (head, *lines), torn_bytes = parse_lines(data)
        identity = _identity(head)
        for number, plain in enumerate(lines, start=2):  # noqa: B007 - named in the error
            last = max(last, plain["seq"])
            _replay(entries, plain)
    except (ValueError, KeyError, TypeError) as error:
        where = error.number if isinstance(error, DamagedLine) else number
        raise RestoreError(
            f"{path}:{where}: the journal is damaged ({error}); "
            f"undo by hand what it describes, then remove it: rm {path}"
        ) from error
    return identity, entries, last, len(data) - torn_bytes


def _identity(head: dict[str, Any]) -> Identity:
    if head.pop("journal") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    return Identity(**head)


def _replay(entries: dict[int, Entry], plain: dict[str, Any]) -> None:
    seq = plain["seq"]
    if "setting" in plain:
        setting, index = decode(Setting, plain["setting"]), plain.get("index")
        entries[seq] = Entry(seq, setting, plain["before"], index=index)
    elif "along" in plain:
        along = ((noun, tuple(map(tuple, fields))) for noun, fields in plain["along"])
        entries[seq] = replace(entries[seq], along=tuple(along))
    elif "after" in plain:
        entries[seq] = replace(entries[seq], after=plain["after"], applied=True)
    else:
        del entries[seq]


@dataclass(frozen=True)
class Leftovers:
    """Journals on this host: of this namespace, to be restored; of what is gone, to be removed.

    Gone is another boot, and a namespace made for a run whose agent and guardian are dead. Those of
    this boot's other namespaces are in neither: they are not ours to judge.
    """

    here: tuple[Path, ...]
    stale: tuple[Path, ...]
    hidden: bool = False
    """Root keeps journals here, which another user can neither read nor replay."""


def leftovers(host: Host) -> Leftovers:
    """Return what runs have left here; a journal too damaged to be placed counts as here."""
    here: list[Path] = []
    stale: list[Path] = []
    own = identify(host, "")
    try:
        names = host.listdir(FOLDER) if host.exists(FOLDER) else []
    except PermissionError:
        return Leftovers((), (), hidden=True)
    for path in (host.path(FOLDER) / name for name in names if name.endswith(".jsonl")):
        try:
            identity = _load(path)[0]
        except RestoreError:
            here.append(path)
            continue
        except FileNotFoundError:
            continue
        ended = identity.ends_with_run and _is_held(path) is False
        if identity.boot_id != own.boot_id or ended:
            stale.append(path)
        elif identity.same_place(own):
            here.append(path)
    return Leftovers(tuple(here), tuple(stale))


def remove_stale(host: Host) -> None:
    """Remove the journals of what is gone."""
    for path in leftovers(host).stale:
        path.unlink(missing_ok=True)


def run_of(path: Path) -> str:
    """Return the name of the run that a journal's file is of."""
    return path.stem.rpartition("-")[0]


def abandoned(host: Host) -> tuple[Path, ...]:
    """Return the journals of this place that no living process holds."""
    return tuple(path for path in leftovers(host).here if _is_held(path) is False)


def in_use(host: Host) -> tuple[Path, ...]:
    """Return the journals of this place that a process holds: a run, its guardian or a restore."""
    return tuple(path for path in leftovers(host).here if _is_held(path))


def _is_held(path: Path) -> Optional[bool]:
    """Say whether a process holds a journal's lock; None if the file is gone."""
    try:
        os.close(_lock(path, wait=False))
    except RestoreError:
        return True
    except FileNotFoundError:
        return None
    return False
