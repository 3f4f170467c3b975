"""What worker processes use while a phase goes on: CPU time, and memory as the mean of its samples.

Reads other processes from outside and never asks them; holds two numbers for each of them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from udpbench.agent.host import Host

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SCHEDULER_CLOCK = 2
"""CPUCLOCK_SCHED: to the nanosecond; include/linux/posix-timers_types.h."""


@dataclass
class _Process:
    cpu_ns: Optional[int]
    memory_bytes: int = 0
    samples: int = 0


class Usage:
    """The processes of one crew over one phase."""

    def __init__(self, host: Host, pids: Iterable[int]) -> None:
        self._host = host
        self._of = {pid: _Process(cpu_ns(pid)) for pid in sorted(set(pids))}

    def tick(self) -> None:
        """Take one sample of memory; a process that is gone has none any more."""
        for pid, process in self._of.items():
            found = resident_bytes(self._host, pid)
            if found is not None:
                process.memory_bytes += found
                process.samples += 1

    def cpu_ns(self, pid: int) -> Optional[int]:
        """Return the CPU time since the phase began; None where the process is gone."""
        process, now_ns = self._of.get(pid), cpu_ns(pid)
        if process is None or process.cpu_ns is None or now_ns is None:
            return None
        return now_ns - process.cpu_ns

    def memory_bytes(self, pid: int) -> Optional[int]:
        """Return the mean of the samples; None where there is none."""
        process = self._of.get(pid)
        if process is None or process.samples == 0:
            return None
        return process.memory_bytes // process.samples


def cpu_ns(pid: int) -> Optional[int]:
    """Return user and system time of all threads of a process; None where it is gone."""
    try:
        # The clock of another process: clock_getcpuclockid(3) makes its number like this.
        return time.clock_gettime_ns((~pid << 3) | _SCHEDULER_CLOCK)
    except OSError:
        return None


def resident_bytes(host: Host, pid: int) -> Optional[int]:
    """Return the resident memory of a process; None where it is gone."""
    try:
        return int(host.read_text(f"/proc/{pid}/statm").split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return None


def shared_bytes(host: Host, pid: int) -> Optional[int]:
    """Return a process's share of memory (PSS: pages that several map are divided among them).

    None where the process is gone or the kernel is older than 4.14.
    """
    try:
        text = host.read_text(f"/proc/{pid}/smaps_rollup")
    except OSError:
        return None
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) * 1024 if found is not None else None
