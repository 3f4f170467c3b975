"""The hierarchy of cgroups v2, also where this process does not see it mounted."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from udpbench.agent.host.files import lines_of
from udpbench.agent.host.reading import ReadingHost as Host

SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT = 430, 431, 432
"""System call numbers, equal on every architecture (Linux 5.2); in glibc since 2.36."""
FSCONFIG_CMD_CREATE = 6
CLOSE_ON_EXEC = 1  # FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC


@contextmanager
def root_cgroup() -> Iterator[int]:
    """Yield the root of the cgroup hierarchy, through a detached mount."""
    with ExitStack() as opened:
        context = _kept(opened, _call(SYS_FSOPEN, b"cgroup2", CLOSE_ON_EXEC))
        _call(SYS_FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0)
        yield _kept(opened, _call(SYS_FSMOUNT, context, CLOSE_ON_EXEC, 0))


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cgroup2: {os.strerror(code)}")
    return result


def own_cgroup(host: Host) -> int:
    """Return the descriptor of this process's cgroup; OSError without."""
    rows = (line.partition("::") for line in lines_of(host.read_text("/proc/self/cgroup")))
    path = next((path for number, _, path in rows if number == "0"), "/")
    with root_cgroup() as root:
        return os.open(f".{path}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)


def _kept(opened: ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor
