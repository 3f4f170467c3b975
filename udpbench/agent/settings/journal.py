"""Journal of changes on this host that are not yet undone, on disk before each change is made.

One file per run and network namespace, /run/udpbench/<run>-<netns>.jsonl, which a reboot removes
along with the settings. The process that has it open holds its lock. Never touches a setting.
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
from udpbench.folder import lock_file
from udpbench.json_lines import DamagedLine, append, parse_lines
from udpbench.model.host import Setting
from udpbench.protocol import decode

FOLDER = "/run/udpbench"
DOOR_SUFFIX = ".sock"
"""The end of the name of the agent's socket beside its journal (``agent/reconnect``)."""
FORMAT = 1
_RUN = re.compile(r"[\w.:+-]+", re.ASCII)


@dataclass(frozen=True)
class Entry:
    """One change; ``after`` is valid only if ``applied``."""

    seq: int
    setting: Setting
    before: Any
    after: Any = None
    applied: bool = False
    index: Optional[int] = None
    """Index of the target's interface, because a name may change or be reused."""
    along: tuple[Any, ...] = ()
    """While the change or its undoing may take the link down: requests that recreate its state."""


@dataclass(frozen=True)
class Identity:
    """Where a journal belongs; ``netns_cookie`` is unique per boot, the inode may be reused."""

    run: str
    boot_id: str
    netns: int
    netns_cookie: Optional[int]
    ends_with_run: bool = field(default=False, compare=False)
    """The namespace was made for this run's agent and ends with it."""

    def same_place(self, other: Identity) -> bool:
        """Return whether both are of the same boot and network namespace, of any run."""
        return replace(self, run="") == replace(other, run="")


def identify(host: Host, run: str, ends_with_run: bool = False) -> Identity:
    """Return the identity of this process's namespace for a run."""
    return Identity(run, host.boot_id(), host.netns(), host.netns_cookie(), ends_with_run)


class Journal:
    """The journal of one run in one namespace; the file is created with the first change.

    Its lock is flock(2) on the file, so it ends with the process. File mode 0600, folder 0700. A
    planned change is on disk before ``begin`` returns; other lines are written without fsync(2),
    which takes 3 ms on ext4: they survive the process, and a replay does not need them. So do all
    lines of a namespace that ends with the run, and with the machine.
    """

    def __init__(self, host: Host, run: str, ends_with_run: bool = False) -> None:
        if not _RUN.fullmatch(run):
            raise ValueError(f"run {run!r}: a name may contain only letters, digits and ._:+-")
        self.identity = identify(host, run, ends_with_run)
        self.path = host.path(FOLDER) / f"{run}-{self.identity.netns}.jsonl"
        self._file: Optional[int] = None
        self._entries: dict[int, Entry] = {}
        self._last = 0
        self._elsewhere = False
        """It is another namespace's, and only changes of the machine can be undone from here."""

    @classmethod
    def open(cls, host: Host, path: Path, wait: bool = False) -> Journal:
        """Return the journal in a file left by another process, and take its lock.

        Of another namespace only changes of the machine are pending here. RestoreError if there are
        none, if it belongs to another boot, is damaged, or is locked (unless ``wait``). An
        incomplete last line is cut off. A file without any complete line is removed:
        FileNotFoundError.
        """
        file = _lock(path, wait)
        try:
            _remove_unbegun(path)
            identity, entries, last, size = _load(path)
            journal = cls(host, identity.run)
            journal._elsewhere = not identity.same_place(journal.identity)
            if journal._elsewhere:
                _check_of_machine(host, path, identity, journal.identity, entries)
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
        """Changes that are not undone and can be from here, in order."""
        entries = tuple(self._entries.values())
        if not self._elsewhere:
            return entries
        return tuple(entry for entry in entries if entry.setting.scope == "machine")

    @property
    def file(self) -> Optional[int]:
        """The descriptor that holds the lock; None if there is no file."""
        return self._file

    def begin(self, setting: Setting, before: Any, index: Optional[int] = None) -> Entry:
        """Record a planned change and the value read before; OSError if that fails."""
        entry = Entry(self._last + 1, setting, before, index=index)
        line = {"seq": entry.seq, "setting": asdict(setting), "before": before, "index": index}
        try:
            if self._file is None:
                self._create()
            self._append(line, durable=not self.identity.ends_with_run)
        except BaseException:
            # Without its first line, e.g. on a full disk, the next lines would be useless.
            if self._file is not None:
                self.discard()
            raise
        self._last = entry.seq
        self._entries[entry.seq] = entry
        return entry

    def applied(self, entry: Entry, after: Any) -> Entry:
        """Record the value read back after the change."""
        self._append({"seq": entry.seq, "after": after})
        entry = replace(self._entries[entry.seq], after=after, applied=True)
        self._entries[entry.seq] = entry
        return entry

    def record_along(self, entry: Entry, along: Sequence[Any]) -> None:
        """Record what a write may remove from a link; an empty list once it has been restored.

        A failure to record it is harmless while this process lives.
        """
        self._entries[entry.seq] = replace(self._entries[entry.seq], along=tuple(along))
        with suppress(OSError):
            self._append({"seq": entry.seq, "along": along})

    def undone(self, entry: Entry) -> None:
        """Record that a change is undone; the file goes with the last one.

        A failure to record it is harmless: a replay finds the original value.
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
        """Remove a file without pending changes."""
        if not self._entries:
            self.path.unlink(missing_ok=True)
            self.close()

    def close(self) -> None:
        """Close the file and release its lock; pending changes stay on disk."""
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
    """Remove a file without a complete line: its process died before its first change."""
    if b"\n" not in path.read_bytes():
        path.unlink()
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _of_machine(written: Identity, own: Identity, entries: dict[int, Entry]) -> bool:
    """Return whether changes outlive the namespace from which they were made."""
    scopes = {entry.setting.scope for entry in entries.values()}
    return written.boot_id == own.boot_id and "machine" in scopes


def _check_of_machine(
    host: Host, path: Path, written: Identity, own: Identity, entries: dict[int, Entry]
) -> None:
    if not _of_machine(written, own, entries):
        returned = _returned(host, written, own, entries)
        if returned:
            raise RestoreError(
                f"{path}: the network namespace is gone in which run {written.run} set what an "
                "interface that came back from it may still have; set back by hand what is not as "
                f"it was ({'; '.join(returned)}), then type: rm {path}"
            )
        raise RestoreError(
            f"{path}: the journal belongs to another boot or network namespace; "
            f"there is nothing to restore here; remove it: rm {path}"
        )


def _returned(host: Host, written: Identity, own: Identity, entries: dict[int, Entry]) -> list[str]:
    """Return what cards had before, and may not have, that came here from a namespace that ended.

    The kernel gives them to its first namespace, by index and name unless these are taken there;
    what is virtual ends (net/core/dev.c: default_device_exit_net).
    """
    if written.boot_id != own.boot_id:
        return []
    values = []
    for entry in entries.values():
        name = host.name_of(entry.index) if entry.index is not None else None
        setting = entry.setting
        is_set = name is not None and name in setting.target and setting.value is not None
        if is_set and host.exists(f"/sys/class/net/{name}/device"):
            values.append(f"{setting.kind} {setting.target}: {entry.before}")
    return values if values and _has_ended(host, written.netns) else []


def _has_ended(host: Host, netns: int) -> bool:
    """Return whether a network namespace has neither a process nor a name."""
    link = f"net:[{netns}]"
    processes = filter(str.isdecimal, host.listdir("/proc"))
    inhabited = any(link == host.link_target(f"/proc/{pid}/ns/net") for pid in processes)
    return not inhabited and link not in host.read_text("/proc/self/mountinfo")


def _load(path: Path) -> tuple[Identity, dict[int, Entry], int, int]:
    """Return identity, pending entries, last number and size in bytes of complete lines."""
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
            f"undo its changes by hand, then remove it: rm {path}"
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
    elif plain.get("undone") is True:
        del entries[seq]
    else:
        raise ValueError("neither setting, along, after nor undone: true")


@dataclass(frozen=True)
class Leftovers:
    """Journals on this host: those to restore from this namespace, and stale ones to remove.

    From here, too: changes of the machine by another namespace's agent, if it and its guardian are
    dead, and those of cards that came back from one that ended. Stale are journals of another boot,
    and of a namespace made for a run whose agent and guardian are dead. Journals of this boot's
    other namespaces are in neither list.
    """

    here: tuple[Path, ...]
    stale: tuple[Path, ...]
    hidden: bool = False
    """Root has journals here, which this user can neither read nor replay."""


def leftovers(host: Host) -> Leftovers:
    """Return the journals left by runs; an unreadable one counts as one of this namespace."""
    here: list[Path] = []
    stale: list[Path] = []
    own = identify(host, "")
    try:
        names = host.listdir(FOLDER) if host.exists(FOLDER) else []
    except PermissionError:
        return Leftovers((), (), hidden=True)
    for path in (host.path(FOLDER) / name for name in names if name.endswith(".jsonl")):
        try:
            if _is_of_living(path, own):
                continue
            identity, entries, _, _ = _load(path)
        except RestoreError:
            here.append(path)
            continue
        except FileNotFoundError:
            continue
        if identity.boot_id != own.boot_id or (identity.ends_with_run and _is_dead(path)):
            stale.append(path)
        elif identity.same_place(own) or (
            _is_dead(path)
            and (_of_machine(identity, own, entries) or _returned(host, identity, own, entries))
        ):
            here.append(path)
    return Leftovers(tuple(here), tuple(stale))


def _is_of_living(path: Path, own: Identity) -> bool:
    """Return whether a journal is of another lab's namespace and in use: its lines are not ours.

    To read all lines of three parallel runs takes 0.1 s at each start.
    """
    with path.open("rb") as file, suppress(ValueError, KeyError, TypeError):
        (head,), _ = parse_lines(file.readline())
        identity = _identity(head)
        is_elsewhere = identity.ends_with_run and not identity.same_place(own)
        return is_elsewhere and _is_held(path) is True
    return False


def remove_stale(host: Host) -> None:
    """Remove stale journals."""
    for path in leftovers(host).stale:
        path.unlink(missing_ok=True)


def run_of(path: Path) -> str:
    """Return the run name in a journal's file name."""
    return path.stem.rpartition("-")[0]


def abandoned(host: Host) -> tuple[Path, ...]:
    """Return the journals to restore from this namespace that no running process holds."""
    return tuple(path for path in leftovers(host).here if _is_dead(path))


def in_use(host: Host) -> tuple[Path, ...]:
    """Return the journals of this namespace held by a run, a guardian or a restore."""
    return tuple(path for path in leftovers(host).here if _is_held(path))


def _is_dead(path: Path) -> bool:
    """Return whether a journal is there and no process holds it."""
    return _is_held(path) is False


def _is_held(path: Path) -> Optional[bool]:
    """Return whether a process holds a journal's lock; None if the file no longer exists."""
    try:
        os.close(_lock(path, wait=False))
    except RestoreError:
        return True
    except FileNotFoundError:
        return None
    return False
