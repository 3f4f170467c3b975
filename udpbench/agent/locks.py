"""Locks on network namespaces and machines, so that two runs never measure each other.

Each lock is a note that disappears with its process, however that ends. Root's notes are files in
/run/udpbench under flock(2), and root trusts no others, because any user can bind an abstract
socket of any name. Other users' notes are such sockets, trusted only if the kernel shows that the
process belongs to root or to the same user; for these users root keeps sockets as well as files.
They listen only where the kernel does not list who opened them: whoever can connect can keep this
process busy, or send it an open file whose closing takes as long as they like (SO_LINGER).

    namespace   this run is the only one in the network namespace
    machine     this run uses the machine, in any namespace
    changes     this run alone may change settings that the machine shares
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Optional

from udpbench.agent.host.system import Host
from udpbench.agent.notes import (
    PREFIX,
    SUFFIX,
    Names,
    Note,
    are_users_listed,
    is_trusted,
    note_names,
    proven_notes,
    read_note,
)
from udpbench.agent.settings.journal import FOLDER, in_use, run_of
from udpbench.folder import lock_file
from udpbench.model.limits import Scope
from udpbench.protocol import Lock, Use

RESTORES_S = 10.0
"""Half of the controller's limit for hello; most settings take milliseconds, a link seconds."""
SCAN_NS = 5_000_000
"""Longest scan of other users' notes: any user can bind ten thousands of names, and the agent has
one thread. What is left is scanned next."""
PAUSE = 99
"""Pause after a scan, as a multiple of its duration: at most 1 % of the agent's time."""
USERS_MAX = 64
"""Reported until they are asked for: a user may own a range of user ids (subuid(5))."""
RUN_NAME_BYTES = 40
"""Longer run names are truncated: an abstract name has at most 107 bytes."""
QUEUE = 4096
"""Backlog until ``watch`` accepts connections; capped by somaxconn."""
ACCEPTED = 64
"""Connections accepted in one ``watch``, of 10 µs each: others may connect without end."""


class Held(Exception):
    """Another run holds a lock that this one needs."""

    def __init__(self, lock: Lock, holder: str) -> None:
        self.lock = lock
        self.holder = holder
        super().__init__(f"the {lock} is held by {holder}")


class Locks:
    """The notes of one agent; they end with the process."""

    def __init__(
        self, host: Host, run: str, as_root: Optional[bool] = None, prefix: str = PREFIX
    ) -> None:
        self._host = host
        self._run = self.short(run)
        self._netns = host.netns()
        self._as_root = os.geteuid() == 0 if as_root is None else as_root
        self._prefix = prefix
        self._files: dict[Note, int] = {}
        self._sockets: dict[Note, socket.socket] = {}
        self._seen: dict[tuple[int, str], str] = {}
        """(user, run) → description; reported once, however many agents the run has here."""
        self._scan: Optional[Iterator[Names]] = None
        """The rest of a scan of other users' notes."""
        self._due_ns = 0

    def take(self, scopes: Collection[Scope], use: Use) -> None:
        """Take all locks that this run needs, or none; raises Held with the run that has one.

        A namespace always belongs to one run, even on a shared machine. OSError if root cannot
        write notes.
        """
        if not scopes:
            return
        locks: list[Lock] = ["namespace"] if "namespace" in scopes else []
        if use != "none":
            locks.append("machine")
        if use == "alone" and "machine" in scopes:
            locks.append("changes")
        with self._gate():
            self._refuse(locks, use)
            try:
                for lock in locks:
                    self._write(lock)
                # Check again: if two users' processes race, at least one sees the other.
                self._refuse(locks, use)
            except Held:
                self._remove()
                raise

    def change_machine(self) -> None:
        """Become the only run that may change machine settings; raises Held if another one is."""
        with self._gate():
            self._refuse(["changes"], "shared")
            try:
                self._write("changes")
                self._refuse(["changes"], "shared")
            except Held:
                self._remove("changes")
                raise

    def release(self) -> None:
        """Release all locks."""
        with self._gate():
            self._remove()

    def watch(self) -> None:
        """Record other runs on this machine; accept and close connections to our sockets."""
        for listener in self._sockets.values():
            with suppress(OSError):
                for _ in range(ACCEPTED):
                    listener.accept()[0].close()
        if self._sockets:
            with self._gate():
                for note in self._others("machine"):
                    self._seen.setdefault((0, note.run), str(note))
            self._scan_notes()

    def _scan_notes(self) -> None:
        """Record which other users have a run here, and go on with a long list another time.

        These runs are reported, not waited for; of them only the user is the kernel's word.
        """
        begun_ns = self._host.clock_ns()
        if begun_ns < self._due_ns:
            return
        self._scan = self._scan or note_names(self._host, self._prefix)
        for names in self._scan:
            for note, user in self._proven(names, self._is_news):
                if note.lock == "machine" and self._is_news(user) and len(self._seen) < USERS_MAX:
                    self._seen[user, ""] = f"a run of user {user}"
            if self._host.clock_ns() - begun_ns >= SCAN_NS:
                break
        else:
            self._scan = None
        ended_ns = self._host.clock_ns()
        self._due_ns = ended_ns + PAUSE * (ended_ns - begun_ns)

    def _is_news(self, user: int) -> bool:
        """Return whether a user is another one, and none of its runs is recorded yet."""
        return not is_trusted(user) and (user, "") not in self._seen

    def others(self) -> tuple[str, ...]:
        """Return the other runs that used the machine since the last call."""
        self.watch()
        seen, self._seen = self._seen, {}
        return tuple(sorted(seen.values()))

    def runs(self) -> frozenset[str]:
        """Return the runs that have an agent in this namespace, as ``short`` names."""
        with self._gate():
            return frozenset(note.run for note in self._notes() if note.netns == self._netns)

    def await_restores(self) -> tuple[str, ...]:
        """Wait until guardians or ``udpbench restore`` have restored the settings of dead runs.

        Returns the runs that are still being restored at the deadline.
        """
        with suppress(TimeoutError):
            self._host.wait_for("restoring", lambda: not self._restored(), RESTORES_S)
        return self._restored()

    def _restored(self) -> tuple[str, ...]:
        """Return the runs whose journal is held by a process other than their agents."""
        # In this order, a run that dies in between counts as dead.
        runs = [run_of(path) for path in in_use(self._host)]
        living = self.runs() if runs else ()
        return tuple(run for run in runs if self.short(run) not in living)

    @staticmethod
    def short(run: str) -> str:
        """Return a run's name as it appears in notes."""
        return run.encode()[:RUN_NAME_BYTES].decode(errors="ignore")

    def _refuse(self, locks: Collection[Lock], use: Use) -> None:
        for lock in locks:
            if lock == "machine" and use == "shared":
                continue
            for note in self._others(lock):
                if lock != "namespace" or note.netns == self._netns:
                    raise Held(lock, str(note))

    def _others(self, lock: Lock) -> Iterator[Note]:
        """Yield the notes of other runs; agents of the same run may share a machine."""
        return (note for note in self._notes() if note.lock == lock and note.run != self._run)

    def _write(self, lock: Lock) -> None:
        note = Note(lock, self._netns, os.getpid(), self._run)
        if note in self._sockets:
            return
        if self._as_root:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self._path(note), flags, 0o600)
            if not lock_file(file):  # held from another PID namespace
                os.close(file)
                raise Held(lock, str(note))
            self._files[note] = file
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sockets[note] = listener
        # A random name, which no other process can bind first.
        listener.bind(f"\0{self._prefix}{secrets.token_hex(4)}/{note.name}")
        listener.setblocking(False)
        if not are_users_listed():
            listener.listen(QUEUE)

    def _remove(self, *locks: Lock) -> None:
        """Remove these notes; all if none are given."""
        for note in [note for note in self._sockets if not locks or note.lock in locks]:
            self._sockets.pop(note).close()
            if note in self._files:
                self._path(note).unlink(missing_ok=True)
                os.close(self._files.pop(note))

    def _path(self, note: Note) -> Path:
        return self._host.path(FOLDER) / f"{note.name}{SUFFIX}"

    def _gate(self) -> AbstractContextManager[None]:
        """Let one root process at a time read and change the files."""
        return self._folder_locked() if self._as_root else nullcontext()

    @contextmanager
    def _folder_locked(self) -> Iterator[None]:
        path = self._host.path(FOLDER)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(folder)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise PermissionError(
                    errno.EPERM, f"other users can access it: chmod 700 {path}", str(path)
                )
            lock_file(folder, wait=True)
            yield
        finally:
            os.close(folder)

    def _notes(self) -> Iterator[Note]:
        """Yield the notes that are trusted."""
        if self._as_root:
            yield from self._in_files()
            return
        yield from self._sockets
        for names in note_names(self._host, self._prefix):
            yield from (note for note, user in self._proven(names, is_trusted) if is_trusted(user))

    def _proven(self, names: Names, is_asked: Callable[[int], bool]) -> Iterator[tuple[Note, int]]:
        """Yield each note of these users but our own."""
        notes = proven_notes(names, is_asked, self._prefix)
        return ((note, user) for note, user in notes if note not in self._sockets)

    def _in_files(self) -> Iterator[Note]:
        """Yield the notes of living processes and remove those of dead ones."""
        for path in sorted(self._host.path(FOLDER).glob(f"*{SUFFIX}")):
            note = read_note(path.name[: -len(SUFFIX)])
            if note is None:
                continue
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if lock_file(file):
                    path.unlink()
                else:
                    yield note
            finally:
                os.close(file)
