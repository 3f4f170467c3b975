"""Whether sockets of a user's program have a filter, asked through copies of their descriptors."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from collections.abc import Collection, Iterable
from typing import Optional

from udpbench.agent.host.files import names, read
from udpbench.agent.host.socket_options import any_true, has_filter
from udpbench.agent.host.socket_owners import SEARCH_NS, inode_of
from udpbench.agent.host.system import Host

ANSWERS = {True: b"1", False: b"0", None: b"?"}
COPY_S = 2
MOST_DESCRIPTORS = 2**16
SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 434, 438
"""On every architecture (asm-generic/unistd.h); Linux 5.3 and 5.6."""


def any_filtered(host: Host, pids: Iterable[int], inodes: Collection[int]) -> Optional[bool]:
    """Return whether a process's socket has a filter; None if that cannot be asked.

    It is asked through a copy of the descriptor (pidfd_getfd(2)), which needs the rights of a
    debugger. By root in a process that may hang: what another user puts in the socket's place
    meanwhile may never let itself be closed (FUSE), whatever signal comes.
    """
    if os.geteuid() != 0:
        return _any_filtered(host, pids, inodes)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(write_end, 0)
            os.closerange(1, MOST_DESCRIPTORS)  # so that nobody waits for its end
            os.write(0, ANSWERS[_any_filtered(host, pids, inodes)])
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as answers:
        if not select.select([answers], [], [], COPY_S)[0]:
            os.kill(child, signal.SIGKILL)
            return None
        answer = answers.read(1)
    os.waitpid(child, 0)
    return {text: known for known, text in ANSWERS.items()}.get(answer)


def _any_filtered(host: Host, pids: Iterable[int], inodes: Collection[int]) -> Optional[bool]:
    end_ns, answers = host.clock_ns() + SEARCH_NS, dict[int, Optional[bool]].fromkeys(inodes)
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
            answers[inode_of(target)] = _filtered(pid, int(name), inode_of(target))
        if not left or host.clock_ns() > end_ns:
            break
    return any_true(answers.values())


def _same_class(host: Host, pid: int) -> bool:
    """Return whether a process's packets are classified as ours.

    A socket takes the net_cls and net_prio of cgroup v1 of who copies it (__receive_sock).
    """
    ours, its = (
        [row for row in (read(host, f"/proc/{who}/cgroup") or "").splitlines() if "net_" in row]
        for who in ("self", pid)
    )
    return ours == its


def _filtered(pid: int, fd: int, inode: int) -> Optional[bool]:
    call = ctypes.CDLL(None, use_errno=True).syscall
    process = call(SYS_PIDFD_OPEN, pid, 0)
    if process < 0:
        return None
    own = call(SYS_PIDFD_GETFD, process, fd, 0)
    os.close(process)
    if own < 0:
        return None
    try:
        return has_filter(own) if os.fstat(own).st_ino == inode else None
    finally:
        os.close(own)
