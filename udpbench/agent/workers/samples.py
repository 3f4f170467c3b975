"""Samples of running workers, thinned so that their number is bounded for any phase.

Derives nothing from counts except minimum, median and maximum, and drops since the phase began.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_sockets import SocketQueue, open_sockets
from udpbench.model.limits import RAW_NS, SAMPLE_NS, sampling_ns
from udpbench.model.record import Sample
from udpbench.protocol import Prepared

TICK_NS = SAMPLE_NS
"""Interval between readings of the workers."""

PAUSE = 19
"""Pause between readings of the sockets, as a multiple of the CPU time of one: at most 5 %."""
CHEAP_NS = 5 * 10**6
"""A start must not be late: with dearer readings, of 256 sockets, it takes the latest one."""
DROPS = 2**32
"""The kernel's count of a socket's drops wraps there."""

Milliseconds = Callable[[int, int, bool], tuple[int, Sequence[int]]]
"""(worker, since, ended) → as ``Memory.milliseconds``."""


@dataclass
class Series:
    """The samples of all workers in one phase."""

    duration_ns: int
    milliseconds: Optional[Milliseconds]
    """None in phases without packets per millisecond."""
    tick_ns: int = TICK_NS
    ticks: int = 0
    _since_ms: dict[int, int] = field(default_factory=dict)

    @property
    def stride(self) -> int:
        """Ticks between samples."""
        return -(-sampling_ns(self.duration_ns) // self.tick_ns)

    def due(self) -> bool:
        """Count a tick; return whether it takes a sample."""
        self.ticks += 1
        return (self.ticks - 1) % self.stride == 0

    def sample(self, worker: int, so_far: Sample, ended: bool) -> Sample:
        """Return a sample with the worker's packets per millisecond since the previous sample."""
        if self.milliseconds is None:
            return so_far
        first_ms, packets = self.milliseconds(worker, self._since_ms.get(worker, 0), ended)
        self._since_ms[worker] = first_ms + len(packets)
        values: dict[str, Any] = {**so_far.__dict__, "first_ms": first_ms}
        if self.duration_ns <= RAW_NS:
            values["packets_per_ms"] = tuple(packets)
        elif packets:
            values["range_per_ms"] = spread(packets)
        return Sample(**values)


class Queues:
    """What waits in receivers' sockets, and what was dropped there since a phase began.

    A socket that several workers share is the first one's.
    """

    def __init__(self, host: Host, receivers: Iterable[Prepared]) -> None:
        self._host = host
        self._own: dict[str, list[int]] = {}
        self._inodes: set[int] = set()
        for receiver in receivers:
            self._own[receiver.worker] = sorted({*receiver.socket_inodes} - self._inodes)
            self._inodes.update(receiver.socket_inodes)
        self._due_ns = self._took_ns = 0
        self._begin = self._latest = self._read()

    def _read(self) -> dict[int, SocketQueue]:
        begun_ns = time.thread_time_ns()
        sockets = open_sockets(self._host, self._inodes) if self._inodes else {}
        self._took_ns = time.thread_time_ns() - begun_ns
        self._due_ns = time.monotonic_ns() + PAUSE * self._took_ns
        return sockets

    def begin(self) -> None:
        """Begin a phase."""
        self._begin = self._read() if self._took_ns <= CHEAP_NS else self._latest

    def dropped(self, now: Mapping[int, SocketQueue]) -> int:
        """Return what sockets have dropped since the phase began, of those known since then."""
        known = now.keys() & self._begin.keys()
        return sum((now[inode].drops - self._begin[inode].drops) % DROPS for inode in known)

    def read(self) -> dict[str, dict[str, int]]:
        """Return worker → its counts; without those that are closed, or read too lately."""
        if time.monotonic_ns() < self._due_ns:
            return {}
        now = self._latest = self._read()
        counts = {}
        for worker, own in self._own.items():
            known = [inode for inode in own if inode in now and inode in self._begin]
            if known:
                drops = [now[inode].drops - self._begin[inode].drops for inode in known]
                counts[worker] = {
                    "queued_bytes": sum(now[inode].queued_bytes for inode in known),
                    "dropped_packets": sum(number % DROPS for number in drops),
                }
        return counts


def spread(packets: Sequence[int]) -> tuple[int, int, int]:
    """Return minimum, median and maximum; the lower median for an even number."""
    ordered = sorted(packets)
    return ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]
