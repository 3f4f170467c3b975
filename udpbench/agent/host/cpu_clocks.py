"""CPU time and perf counters of processes and threads in nanoseconds.

psutil and /proc count in ticks.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Optional

from udpbench.agent.host import native

_SCHEDULER_CLOCK = 2
"""CPUCLOCK_SCHED: nanosecond resolution; include/linux/posix-timers_types.h."""
HARDWARE = 0
SOFTWARE = 1
TASK_CLOCK = 1
"""PERF_COUNT_SW_TASK_CLOCK: a thread's running time in nanoseconds."""
EVENTS = {"cycles": 0, "instructions": 1}
"""Name → PERF_COUNT_HW_*; all numbers here are from include/uapi/linux/perf_event.h."""
TIMES = 1 | 2
"""PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING: they differ if events were multiplexed."""
ATTRIBUTES_BYTES = 64
"""PERF_ATTR_SIZE_VER0."""


def cpu_ns(pid: int) -> Optional[int]:
    """Return user and system time of all threads of a process in ns; None if it has ended."""
    try:
        # Clock id of another process, as computed by clock_getcpuclockid(3).
        return time.clock_gettime_ns((~pid << 3) | _SCHEDULER_CLOCK)
    except OSError:
        return None


def open_counter(kind: int, event: int, thread: int = 0, cpu: int = -1) -> Optional[int]:
    """Return a perf counter that is counting; None if not available.

    By default for the calling thread on any CPU. Virtual machines often have no hardware events,
    and perf_event_paranoid may forbid them.
    """
    attributes = struct.pack("=IIQQQQ", kind, ATTRIBUTES_BYTES, event, 0, 0, TIMES)
    try:
        padded = bytearray(attributes.ljust(ATTRIBUTES_BYTES, b"\0"))
        return native.perf_event_open(padded, thread, cpu)
    except OSError:
        return None


def close_counter(counter: int) -> Optional[int]:
    """Close a counter and return its count; None if it was multiplexed."""
    count, enabled_ns, running_ns = struct.unpack("=QQQ", os.read(counter, 24))
    os.close(counter)
    return int(count) if enabled_ns == running_ns > 0 else None
