"""Whether a user's program's sockets have a filter or are tunnels, asked through their copies."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from collections.abc import Collection, Iterable
from typing import Optional

from udpbench.agent.host.files import lines_of, names, read
from udpbench.agent.host.socket_options import any_true, has_filter, is_tunnel
from udpbench.agent.host.socket_owners import SEARCH_NS, inode_of
from udpbench.agent.host.system import Host

Answers = tuple[Optional[bool], ...]
"""One for each question."""
QUESTIONS = (has_filter, is_tunnel)
UNKNOWN: Answers = (None,) * len(QUESTIONS)
WRITTEN = {True: b"1", False: b"0", None: b"?"}
COPY_S = 2
MOST_DESCRIPTORS = 2**16
SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 434, 438
"""On every architecture (asm-generic/unistd.h); Linux 5.3 and 5.6."""


def ask_sockets(host: Host, pids: Iterable[int], inodes: Collection[int]) -> Answers:
    """Return whether a process's socket has a filter, and is a tunnel; None: cannot be asked.

    They are asked through a copy of the descriptor (pidfd_getfd(2)), which needs the rights of a
    debugger. By root in a process that may hang: what another user puts in the socket's place
    meanwhile may never let itself be closed (FUSE), whatever signal comes.
    """
    if os.geteuid() != 0:
        return _ask(host, pids, inodes)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(write_end, 0)
            os.closerange(1, MOST_DESCRIPTORS)  # so that nobody waits for its end
            os.write(0, b"".join(WRITTEN[each] for each in _ask(host, pids, inodes)))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as answers:
        if not select.select([answers], [], [], COPY_S)[0]:
            os.kill(child, signal.SIGKILL)
            return UNKNOWN
        written = answers.read(len(QUESTIONS))
    os.waitpid(child, 0)
    known = {text[0]: answer for answer, text in WRITTEN.items()}
    return tuple(known[each] for each in written) or UNKNOWN


def _ask(host: Host, pids: Iterable[int], inodes: Collection[int]) -> Answers:
    end_ns, answers = host.clock_ns() + SEARCH_NS, dict.fromkeys(inodes, UNKNOWN)
    left = set(inodes)
    places = (
        (pid, name)
        for pid in pids
        if _same_class(host, pid)
        for name in names(host, f"/proc/{pid}/fd")
    )
    for pid, name in places:
        target = host.link_target(f"/proc/{pid}/fd/{name}") or ""
        if target[:8] == "socket:[" and inode_of(target) in left:
            left.discard(inode_of(target))
            answers[inode_of(target)] = _answers(pid, int(name), inode_of(target))
        if not left or host.clock_ns() > end_ns:
            break
    return tuple(map(any_true, zip(*answers.values()))) or UNKNOWN


def _same_class(host: Host, pid: int) -> bool:
    """Return whether a process's packets are classified as ours.

    A socket takes the net_cls and net_prio of cgroup v1 of who copies it (__receive_sock).
    """
    ours, its = (
        [
            row
            for row in lines_of(read(host, f"/proc/{who}/cgroup"))
            if "net_" in "".join(row.split(":")[1:2])
        ]
        for who in ("self", pid)
    )
    return ours == its


def _answers(pid: int, fd: int, inode: int) -> Answers:
    call = ctypes.CDLL(None, use_errno=True).syscall
    process = call(SYS_PIDFD_OPEN, pid, 0)
    if process < 0:
        return UNKNOWN
    own = call(SYS_PIDFD_GETFD, process, fd, 0)
    os.close(process)
    if own < 0:
        return UNKNOWN
    try:
        is_it = os.fstat(own).st_ino == inode
        return tuple(ask(own) for ask in QUESTIONS) if is_it else UNKNOWN
    finally:
        os.close(own)
