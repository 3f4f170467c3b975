"""What the agent may do, each tried for real and left as it was; never guessed from a user id."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from udpbench.agent.host import Host
from udpbench.agent.sockets import SO_RCVBUFFORCE

SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
MACHINE_SYSCTL = "/proc/sys/net/core/netdev_max_backlog"
"""Not there at all in any but the machine's own network namespace."""

KTHREADD = 2


def tried(host: Host) -> dict[str, bool]:
    """Return capability → whether trying it worked."""
    return {
        "net_admin": _net_admin(),
        "rcvbuf_force": _rcvbuf_force(),
        "machine_sysctl": _machine_sysctl(host),
        "kernel_threads": _kernel_threads(host),
        "real_time": _real_time(),
    }


def _net_admin() -> bool:
    """Give the loopback interface the flags it has, which needs the right in this namespace."""
    request = struct.pack("16sh22x", b"lo", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            now = fcntl.ioctl(probe, SIOCGIFFLAGS, request)
            fcntl.ioctl(probe, SIOCSIFFLAGS, now)
        except OSError:
            return False
    return True


def _kernel_threads(host: Host) -> bool:
    """Pin the mother of all kernel threads to where it is; NAPI's threads take the same right.

    Where processes have a namespace of their own, as in a container, there is none to be pinned.
    """
    try:
        if host.read_text(f"/proc/{KTHREADD}/comm").strip() != "kthreadd":
            return False
        os.sched_setaffinity(KTHREADD, os.sched_getaffinity(KTHREADD))
    except OSError:
        return False
    return True


def _real_time() -> bool:
    """Be scheduled first in, first out for a moment, which needs the right over the machine."""
    now, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    os.sched_setscheduler(0, now, parameters)
    return True


def _rcvbuf_force() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 2**16)
        except OSError:
            return False
    return True


def _machine_sysctl(host: Host) -> bool:
    """Open a host-wide sysctl for writing, and write nothing."""
    try:
        os.close(os.open(host.path(MACHINE_SYSCTL), os.O_WRONLY))
    except OSError:
        return False
    return True
