"""Whether rates and CPU clocks of a warm-up are steady. Pure: ``phase`` asks and stops senders.

Counts come with the agent's own time, because requests take longer under load.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from udpbench.model.limits import SECOND_NS, Role
from udpbench.model.record import PACKETS_FIELD, Sample

LEAST_NS = SECOND_NS // 5
"""What a warm-up takes at least: a clock that follows the load is set every 10 ms, and idle states
are left within as long."""
WITHIN = 0.05
"""How much rates and clocks of the last readings may differ, as a share of the largest."""
PACKETS = 20
"""Fewer packets between two readings are not counted as another rate."""
READINGS = 3
"""Compared with each other: 0.2 s of rates."""
CPU_KHZ = "cpu_khz"
"""The clock of a worker's CPU among the counts of a sample; missing if the kernel knows none."""


class Pulse(NamedTuple):
    """What one worker has counted at one time, by its host's clock."""

    clock_ns: int
    packets: int
    khz: int | None


class Steadiness:
    """The latest readings of every worker."""

    def __init__(self, start_ns: dict[str, int]) -> None:
        """``start_ns``: host → the time by its clock from which on readings count."""
        self._start_ns = start_ns
        self._readings: dict[str, list[Pulse]] = {}

    def add(self, host: str, role: Role, samples: Iterable[Sample]) -> None:
        """Take the samples of a host's workers."""
        for sample in samples:
            if sample.clock_ns >= self._start_ns[host]:
                packets = sample.counts.get(PACKETS_FIELD[role], 0)
                pulse = Pulse(sample.clock_ns, packets, sample.counts.get(CPU_KHZ))
                self._readings.setdefault(sample.worker, []).append(pulse)

    @property
    def knows_clocks(self) -> bool:
        """Whether the clock of any worker's CPU is known."""
        return any(each[-1].khz is not None for each in self._readings.values())

    def is_steady(self, workers: Iterable[str]) -> bool:
        """Return whether all these workers' rates, and the clocks that are known, are steady."""
        return all(self._is_steady(self._readings.get(worker, [])) for worker in workers)

    def _is_steady(self, readings: list[Pulse]) -> bool:
        latest = readings[-READINGS:]
        if len(latest) < READINGS:
            return False
        pairs = list(pairwise(latest))
        moved = [after.packets - before.packets for before, after in pairs]
        rates = [
            packets / max(after.clock_ns - before.clock_ns, 1)
            for packets, (before, after) in zip(moved, pairs, strict=True)
        ]
        clocks = [reading.khz for reading in latest if reading.khz is not None]
        few = max(moved) - min(moved) <= PACKETS
        return (few or _alike(rates)) and _alike(clocks)


def _alike(numbers: list[float] | list[int]) -> bool:
    return not numbers or max(numbers) - min(numbers) <= WITHIN * max(numbers)
