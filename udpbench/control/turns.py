"""Whose turn it is to use a lab: the wait of test sessions that would measure each other.

A lab in use is a listening abstract Unix socket, one for each host, which the kernel frees however
its owner dies. Whoever waits is connected to it and so sees its end. Starts no agent.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from udpbench.errors import DeadlineExceeded
from udpbench.model import SECOND_NS, Lab
from udpbench.units import format_duration

PREFIX = "\0udpbench/turn/"
BUILT_IN = "built-in lab"
"""What all built-in labs of a machine share: its CPUs."""
NAME_BYTES = 90
"""Longer names are cut: an abstract name has 107 bytes, the prefix included (unix(7))."""
QUEUE = 4096
"""Connections that may wait; net.core.somaxconn caps it."""


@contextmanager
def turn(labs: Sequence[Lab], limit_ns: int) -> Iterator[Lab]:
    """Yield the first of the labs that nobody uses, and keep it from others within the block.

    Raises DeadlineExceeded, naming who uses them, where none becomes free in time.
    """
    deadline_ns = time.monotonic_ns() + limit_ns
    while True:
        for lab in labs:
            with ExitStack() as taken:
                if all(_take(name, taken) for name in hosts_of(lab)):
                    yield lab
                    return
        _await_an_end(labs, deadline_ns, limit_ns)


def hosts_of(lab: Lab) -> tuple[str, ...]:
    """Return what a lab occupies, sorted, so that labs that share a host exclude each other."""
    if lab.built_in:
        return (BUILT_IN,)
    names = {host.connect.ssh or host.connect.by for host in lab.hosts}
    return tuple(sorted(n.encode()[:NAME_BYTES].decode(errors="ignore") for n in names))


def _take(name: str, taken: ExitStack) -> bool:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(PREFIX + name)
    except OSError as error:
        listening.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    listening.listen(QUEUE)
    taken.enter_context(listening)
    return True


def _await_an_end(labs: Sequence[Lab], deadline_ns: int, limit_ns: int) -> None:
    """Return once a lab may be free, because one of those who use it has let go of a host."""
    with ExitStack() as stack:
        busy: list[socket.socket] = []
        for lab in labs:
            users = [one for name in hosts_of(lab) if (one := _connected(name, stack)) is not None]
            if not users:
                return
            busy += users
        left_ns = max(deadline_ns - time.monotonic_ns(), 0)
        if not select.select(busy, [], [], left_ns / SECOND_NS)[0]:
            pids = ", ".join(str(pid) for pid in sorted({_owner(one) for one in busy}))
            names = " or ".join(lab.name for lab in labs)
            raise DeadlineExceeded(
                f"waited {format_duration(limit_ns)} in vain until process {pids} no longer uses "
                f"lab {names}; let it end, or raise udpbench_wait"
            )


def _connected(name: str, stack: ExitStack) -> socket.socket | None:
    """Return a connection to whoever uses a host; None where nobody does (any longer)."""
    connected = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        connected.connect(PREFIX + name)
    except ConnectionRefusedError:
        return None
    return connected


def _owner(connected: socket.socket) -> int:
    """Return the process that listens at the other end (unix(7), SO_PEERCRED)."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid: int = struct.unpack("3i", credentials)[0]
    return pid
