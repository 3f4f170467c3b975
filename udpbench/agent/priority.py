"""The priority of the calling thread, for CPU and for disk; read back, nothing is decided.

On Linux they are the thread's own, also where POSIX means the process (sched(7), ioprio_set(2)).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading

IOPRIO_SET_AND_GET = {"x86_64": (251, 252), "aarch64": (30, 31)}
"""Numbers of the system calls; the C library has no names for them."""
IO_CLASSES = {"realtime": 1, "best-effort": 2, "idle": 3}
IO_CLASS_SHIFT = 13  # include/uapi/linux/ioprio.h
WHO_PROCESS = 1
_NEEDS = "to be better than normal needs root, CAP_SYS_NICE; or leave it out"


def take(priority: str, io_priority: str) -> None:
    """Give the calling thread its priorities, ``normal``, ``nice -5``, ``fifo 10`` and the like.

    OSError with both in words where the kernel refuses.
    """
    for text, do in ((priority, _take_cpu), (io_priority, _take_disk)):
        if text == "normal":
            continue
        try:
            do(text)
        except OSError as error:
            needs = f"; {_NEEDS}" if error.errno in (errno.EPERM, errno.EACCES) else ""
            raise OSError(error.errno, f"priority {text}: {error.strerror}{needs}") from error


def _take_cpu(text: str) -> None:
    policy, _, level = text.partition(" ")
    thread, wanted = threading.get_native_id(), int(level)
    if policy == "nice":
        os.setpriority(os.PRIO_PROCESS, thread, wanted)
        got = os.getpriority(os.PRIO_PROCESS, thread)
    else:
        # What the thread starts beside itself, such as the writer of a log, is not of its kind.
        alone = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, alone, os.sched_param(wanted))
        got = os.sched_getparam(0).sched_priority
    if got != wanted:
        raise OSError(errno.EINVAL, f"read back {got}")


def _take_disk(text: str) -> None:
    """Set the I/O priority; threads that this one starts later have it, too (block/ioprio.c)."""
    word, _, level = text.partition(" ")
    wanted = IO_CLASSES[word] << IO_CLASS_SHIFT | int(level or 0)
    set_it, get_it = IOPRIO_SET_AND_GET.get(platform.machine(), (-1, -1))
    _call(set_it, wanted)
    got = _call(get_it)
    if got != wanted:
        raise OSError(errno.EINVAL, f"read back {got:#x}")


def _call(number: int, *value: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, WHO_PROCESS, 0, *value))  # 0: the calling thread
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
