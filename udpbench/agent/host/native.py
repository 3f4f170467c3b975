"""The C extension outside of loops: system calls and the GSO limit.

Imports ``udpbench._native`` on first use: an agent starts without it. OSError with the kernel's
reason.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Union

CLOSE_ON_EXEC = 8  # PERF_FLAG_FD_CLOEXEC, include/uapi/linux/perf_event.h


class ExtensionError(OSError):
    """The extension is missing or of another version."""


def _extension() -> tuple[Any, Any]:
    """Return cffi's two halves of the extension."""
    try:
        from udpbench._native import ffi, lib
    except ImportError as error:
        raise _unusable(error) from error
    return ffi, lib


def _unusable(error: Exception) -> ExtensionError:
    text = f"udpbench's C extension cannot be used: {error}; reinstall udpbench on this host"
    return ExtensionError(errno.ENOSYS, text)


def _call(name: str, *arguments: Union[int, bytearray]) -> int:
    ffi, lib = _extension()
    passed = [
        ffi.from_buffer(argument) if isinstance(argument, bytearray) else argument
        for argument in arguments
    ]
    try:
        result = int(getattr(lib, name)(*passed))
    except AttributeError as error:
        raise _unusable(error) from error
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def bpf(command: int, attributes: bytearray) -> int:
    """Return the result of a command, which may modify the attributes (bpf(2))."""
    return _call("ub_bpf", command, attributes, len(attributes))


def perf_event_open(attributes: bytearray, thread: int, cpu: int) -> int:
    """Return the descriptor of a counter without a group (perf_event_open(2))."""
    return _call("ub_perf_event_open", attributes, thread, cpu, -1, CLOSE_ON_EXEC)


def io_priority() -> int:
    """Return the calling thread's I/O class and level as one number (ioprio_get(2))."""
    return _call("ub_ioprio_get")


def set_io_priority(priority: int) -> None:
    """Set the calling thread's I/O priority."""
    _call("ub_ioprio_set", priority)


def try_io_uring(with_buffers: bool) -> None:
    """Create and close an io_uring, with or without provided buffers."""
    _call("ub_uring_try", with_buffers)


def gso_max(fd: int) -> int:
    """Return the maximum datagrams per GSO message, sent on a connected socket."""
    return _call("ub_gso_max", fd)
