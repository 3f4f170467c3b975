"""The notes of who uses a namespace or a machine, as abstract sockets that any process can read.

Trusted only if the kernel shows that whoever opened the socket is root or the same user, and if it
listens, SO_PEERCRED that so is who listens. Read-only; ``locks`` writes them.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Callable, Optional

from udpbench.agent.host.files import lines_of, names, read
from udpbench.agent.host.namespace import RUN_FOLDER
from udpbench.agent.host.reading import ReadingHost
from udpbench.agent.host.unix_names import unix_names

PREFIX = "udpbench/"
SUFFIX = ".lock"
"""Ends the name of the file of a note of root's."""
UNIX_SOCKETS = "/proc/thread-self/net/unix"
CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid"""
Names = list[tuple[str, Optional[int], bool]]
"""Sockets after the prefix, with who opened each, None if unknown, and whether it listens."""


@dataclass(frozen=True)
class Note:
    """One note, parsed from its name; if its socket listens, the pid comes from the kernel."""

    lock: str
    netns: int
    pid: int
    run: str

    def __str__(self) -> str:
        return f"run {self.run} (pid {self.pid})"

    @property
    def name(self) -> str:
        """Name of its file, and suffix of its socket's name."""
        return f"{self.lock}-{self.netns}-{self.pid}-{self.run}"


def read_note(name: str) -> Optional[Note]:
    """Return the note with a name; None if the name is not from udpbench."""
    parts = name.split("-", 3)
    if len(parts) != 4 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    return Note(parts[0], int(parts[1]), int(parts[2]), parts[3])


def note_names(host: ReadingHost, prefix: str = PREFIX) -> Iterator[Names]:
    """Yield the names of all notes of this namespace with their users; None if unknown.

    The users are the kernel's word, so names that others have bound cost a comparison each. A
    kernel without unix_diag prints the NUL of an abstract name as ``@``, and lists clients.
    """
    try:
        for piece in unix_names(prefix.encode()):
            yield [(name.decode(errors="replace"), user, open_) for name, user, open_ in piece]
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        mark = f"@{prefix}"
        lines = lines_of(host.read_text(UNIX_SOCKETS))
        for name in sorted({line.partition(mark)[2] for line in lines if mark in line}):
            yield [(name, None, True)]


def are_users_listed() -> bool:
    """Return whether this kernel lists sockets with their users, so that none need listen."""
    try:
        next(unix_names(PREFIX.encode()))
    except OSError:
        return False
    return True


def proven_notes(
    names: Names, is_asked: Callable[[int], bool], prefix: str = PREFIX
) -> Iterator[tuple[Note, int]]:
    """Yield each note of the users asked for, with the user from the kernel."""
    for name, user, listens in names:
        if user is not None and not is_asked(user):
            continue
        note = read_note(name.partition("/")[2])
        if note is None:
            continue
        if user is not None and not listens:
            yield note, user
            continue
        try:
            owner = _owner(f"\0{prefix}{name}")
        except BlockingIOError:  # others have filled its queue
            if user is not None:
                yield note, user
            continue
        if owner is not None:
            yield replace(note, pid=owner[0]), owner[1]


def roots_notes(host: ReadingHost) -> Iterator[Note]:
    """Yield the notes of root's living runs, for who may read their files and lock none.

    Not from sockets: in the namespace of a container root is whoever is root there.
    """
    held = {line.split()[-3] for line in lines_of(read(host, "/proc/locks")) if " FLOCK " in line}
    for name in names(host, RUN_FOLDER):
        note = read_note(name[: -len(SUFFIX)]) if name.endswith(SUFFIX) else None
        with suppress(OSError):  # it has ended meanwhile
            file = host.path(f"{RUN_FOLDER}/{name}").lstat()
            device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
            if note is not None and f"{device}:{file.st_ino}" in held:
                yield note


def trusted_notes(host: ReadingHost) -> Iterator[Note]:
    """Yield the notes that a user without root believes."""
    for listed in note_names(host):
        yield from (note for note, user in proven_notes(listed, is_trusted) if is_trusted(user))


def is_trusted(user: int) -> bool:
    """Return whether a user's notes are believed: root's and this user's own."""
    return user in (0, os.geteuid())


def _owner(name: str) -> Optional[tuple[int, int]]:
    """Return (pid, uid) of the process that listens on an abstract name; None if there is none.

    BlockingIOError if its queue is full.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
            peer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        except BlockingIOError:
            raise
        except OSError:
            return None
    pid, user, _ = CREDENTIALS.unpack(peer)
    return pid, user
