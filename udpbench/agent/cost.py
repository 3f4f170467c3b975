"""What a worker's thread costs while its loop runs: CPU time, switches, and cycles where offered.

Counts its own thread alone. Softirq work is nobody's thread; the snapshot has it by CPU.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
from typing import Optional

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
"""Machine → number of perf_event_open(2), which no library wraps."""
HARDWARE = 0
EVENTS = {"cycles": 0, "instructions": 1}
"""Name → PERF_COUNT_HW_*; include/uapi/linux/perf_event.h, as all numbers here."""
TIMES = 1 | 2
"""PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING: they differ where events took turns."""
ATTRIBUTES_BYTES = 64
"""PERF_ATTR_SIZE_VER0."""


class Cost:
    """What the calling thread spends from now on."""

    def __init__(self) -> None:
        self._counters = {name: opened(HARDWARE, event) for name, event in EVENTS.items()}
        self._before = _usage()

    def end(self) -> dict[str, int]:
        """Return what was spent by name; what this machine does not offer is not there."""
        after = _usage()
        spent = {name: after[name] - self._before[name] for name in after}
        for name, counter in self._counters.items():
            count = counted(counter) if counter is not None else None
            if count is not None:
                spent[name] = count
        return spent


def _usage() -> dict[str, int]:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return {
        "user_ns": round(used.ru_utime * 10**9),
        "system_ns": round(used.ru_stime * 10**9),
        "voluntary_switches": used.ru_nvcsw,
        "involuntary_switches": used.ru_nivcsw,
    }


def opened(kind: int, event: int) -> Optional[int]:
    """Return a counter of the calling thread, counting from now on; None where it is not offered.

    A virtual machine often has no hardware events, and perf_event_paranoid may forbid them.
    """
    number = PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        return None
    attributes = struct.pack("=IIQQQQ", kind, ATTRIBUTES_BYTES, event, 0, 0, TIMES)
    buffer = ctypes.create_string_buffer(attributes.ljust(ATTRIBUTES_BYTES, b"\0"))
    own_thread, any_cpu, no_group, close_on_exec = 0, -1, -1, 8
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.syscall(number, buffer, own_thread, any_cpu, no_group, close_on_exec))
    return fd if fd >= 0 else None


def counted(counter: int) -> Optional[int]:
    """Close a counter and return what it counted; None where it did not count all the time."""
    count, enabled_ns, running_ns = struct.unpack("=QQQ", os.read(counter, 24))
    os.close(counter)
    return int(count) if enabled_ns == running_ns > 0 else None
