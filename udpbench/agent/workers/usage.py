"""Resource use of workers: of their processes, read from outside, and of a thread, by itself."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from udpbench.agent.host.cpu_clocks import EVENTS, HARDWARE, close_counter, cpu_ns, open_counter
from udpbench.agent.host.system import Host

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class _Memory:
    total_bytes: int = 0
    samples: int = 0


@dataclass(frozen=True)
class _Reading:
    """CPU time of all processes at a point in time."""

    clock_ns: int
    packets: int
    cpu_ns: dict[int, Optional[int]]


class Usage:
    """Resource use of the workers' processes over one phase."""

    def __init__(self, host: Host, pids: Iterable[int]) -> None:
        self._host = host
        self._memory = {pid: _Memory() for pid in sorted(set(pids))}
        self._begin: Optional[_Reading] = None
        self._end: Optional[_Reading] = None
        """The first and the last reading under load: with packets before and after it."""
        self._latest: Optional[_Reading] = None

    def read_cpu(self, packets: int) -> None:
        """Record each process's CPU time, and the total packets so far."""
        before = self._latest
        if before is not None and 0 < before.packets < packets:
            self._begin = self._begin or before
            self._end = before
        spent = {pid: cpu_ns(pid) for pid in self._memory}
        self._latest = _Reading(time.monotonic_ns(), packets, spent)

    def read_memory(self) -> None:
        """Sample the memory of each running process."""
        for pid, memory in self._memory.items():
            size_bytes = resident_bytes(self._host, pid)
            if size_bytes is not None:
                memory.total_bytes += size_bytes
                memory.samples += 1

    def under_load(self, pid: int) -> tuple[Optional[int], Optional[int]]:
        """Return CPU time and duration in ns of an interval under load.

        None without two readings under load, or if the process had ended at one of them.
        """
        begin, end = self._begin, self._end
        if begin is None or end is None or end.clock_ns <= begin.clock_ns:
            return None, None
        first_ns, last_ns = begin.cpu_ns.get(pid), end.cpu_ns.get(pid)
        if first_ns is None or last_ns is None:
            return None, None
        return last_ns - first_ns, end.clock_ns - begin.clock_ns

    def memory_bytes(self, pid: int) -> Optional[int]:
        """Return the mean of the memory samples; None without any."""
        memory = self._memory.get(pid)
        if memory is None or memory.samples == 0:
            return None
        return memory.total_bytes // memory.samples


def resident_bytes(host: Host, pid: int) -> Optional[int]:
    """Return a process's resident memory; None if it has ended."""
    try:
        return int(host.read_text(f"/proc/{pid}/statm").split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return None


def shared_bytes(host: Host, pid: int) -> Optional[int]:
    """Return a process's proportional set size (PSS), which divides shared pages among users.

    None if the process has ended, or before Linux 4.14.
    """
    try:
        text = host.read_text(f"/proc/{pid}/smaps_rollup")
    except OSError:
        return None
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) * 1024 if match is not None else None


class Cost:
    """What the calling thread uses from now on: CPU time, context switches, cycles if available.

    Softirq time belongs to no thread; the snapshot has it per CPU.
    """

    def __init__(self) -> None:
        self._counters = {name: open_counter(HARDWARE, event) for name, event in EVENTS.items()}
        self._before = _usage()

    def end(self) -> dict[str, int]:
        """Return the use by name; values that this machine does not count are missing."""
        after = _usage()
        spent = {name: after[name] - self._before[name] for name in after}
        for name, counter in self._counters.items():
            count = close_counter(counter) if counter is not None else None
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
