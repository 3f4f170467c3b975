"""Gives up what a process may do, for good, down to the capabilities that it names.

Capabilities: include/uapi/linux/capability.h and capabilities(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Collection

from udpbench.agent.host.files import lines_of
from udpbench.agent.host.reading import ReadingHost

OBSERVER_USER = 2_100_000_000
"""A user and group without an account: it owns no process, file or sysctl (but CAP_NET_ADMIN writes
net's). Whatever runs as ``nobody`` could stop a process of that user, or lower its limits. Others
give no such number: systemd's DynamicUser ends at 65519, its containers at 1879048191, SSSD at
2000200000; from 2**31 on a program may take it for negative."""
NOBODY = 65534
"""The kernel's overflow user, who has an account of this name everywhere and owns nothing."""
SYS_PTRACE, DAC_READ_SEARCH = 19, 2
VERSION_3 = 0x20080522
"""_LINUX_CAPABILITY_VERSION_3: 64 bits in two structs."""
PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 8, 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
LAST = "/proc/sys/kernel/cap_last_cap"
STATUS = "/proc/thread-self/status"


def keep_only(host: ReadingHost, kept: Collection[int], user: int = OBSERVER_USER) -> None:
    """Become a user with no more than these capabilities, and never get another one.

    Programs that are run have none. A user who is not root, or is root in a user namespace alone,
    stays who it is. OSError if something could not be given up.
    """
    permitted = held(host)["CapPrm"]
    left = permitted & mask(kept)
    _call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if os.geteuid() == 0:
        _bound(host, left)
        _leave_root(host, user)
    header = struct.pack("=Ii", VERSION_3, 0)
    low, high = left & 0xFFFFFFFF, left >> 32
    _call("capset", header, struct.pack("=6I", low, low, 0, high, high, 0))
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _prove(host, left)


def mask(numbers: Collection[int]) -> int:
    """Return capabilities as bits."""
    return sum(1 << number for number in set(numbers))


def held(host: ReadingHost) -> dict[str, int]:
    """Return this thread's sets, and NoNewPrivs, as in proc_pid_status(5)."""
    lines = (line.split(":") for line in lines_of(host.read_text(STATUS)))
    return {
        key: int(value, 16) for key, value in lines if key.startswith("Cap") or key == "NoNewPrivs"
    }


def _bound(host: ReadingHost, left: int) -> None:
    """Take all others out of the bounding set; it needs CAP_SETPCAP, and is given up with it."""
    for number in range(int(host.read_text(LAST)) + 1):
        if not left & 1 << number:
            _call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0)


def _leave_root(host: ReadingHost, user: int) -> None:
    """Leave uid 0, which may write root's files whatever its capabilities are."""
    if host.read_text("/proc/self/uid_map").split() != ["0", "0", "4294967295"]:
        return  # in a user namespace, whose root is an ordinary user outside
    _call("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _prove(host: ReadingHost, left: int) -> None:
    now = held(host)
    excess = [name for name in ("CapPrm", "CapEff", "CapInh", "CapAmb") if now[name] & ~left]
    if excess or not now["NoNewPrivs"]:
        raise OSError(errno.EPERM, f"capabilities could not be given up: {now}")


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    passed = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    if name == "prctl":
        passed[0] = arguments[0]
    if getattr(libc, name)(*passed) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
