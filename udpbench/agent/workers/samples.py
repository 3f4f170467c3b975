"""Samples of running workers, thinned so that their number is bounded for any phase.

Derives nothing from counts except minimum, median and maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from udpbench.model import RAW_NS, SAMPLE_NS, Sample, sampling_ns

TICK_NS = SAMPLE_NS
"""Interval between readings of the workers."""

Milliseconds = Callable[[int, int, bool], tuple[int, Sequence[int]]]
"""(worker, since, ended) → as ``Memory.milliseconds``."""


@dataclass
class Series:
    """The samples of all workers in one phase."""

    duration_ns: int
    milliseconds: Optional[Milliseconds]
    """None in phases without packets per millisecond."""
    ticks: int = 0
    _since_ms: dict[int, int] = field(default_factory=dict)

    @property
    def stride(self) -> int:
        """Ticks between samples."""
        return sampling_ns(self.duration_ns) // TICK_NS

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


def spread(packets: Sequence[int]) -> tuple[int, int, int]:
    """Return minimum, median and maximum; the lower median for an even number."""
    ordered = sorted(packets)
    return ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]
