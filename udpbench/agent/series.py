"""Samples of workers in motion: how many there are, and what each tells of its milliseconds.

Owns the thinning: however long a phase is, a worker has a bounded number of samples. Reads counts
and derives nothing from them but least, median and most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from udpbench.model import SAMPLE_NS, SECOND_NS, Sample, sampling_ns

TICK_NS = SAMPLE_NS
"""Between two looks at the workers."""
RAW_NS = 60 * SECOND_NS
"""A phase up to so long keeps every millisecond; 60,000 numbers for each worker."""

Milliseconds = Callable[[int, int, bool], tuple[int, Sequence[int]]]
"""Of a worker, from one on, and whether its loop has ended; as ``loops.Memory.milliseconds``."""


@dataclass
class Series:
    """The samples of one phase of a crew."""

    duration_ns: int
    milliseconds: Optional[Milliseconds]
    """None where nobody wants to know."""
    ticks: int = 0
    _since_ms: dict[int, int] = field(default_factory=dict)

    @property
    def stride(self) -> int:
        """Ticks from one sample to the next."""
        return sampling_ns(self.duration_ns) // TICK_NS

    def due(self) -> bool:
        """Count a tick; say whether it is one for a sample."""
        self.ticks += 1
        return (self.ticks - 1) % self.stride == 0

    def sample(self, worker: int, so_far: Sample, ended: bool) -> Sample:
        """Return a sample with what its worker did in each millisecond since the one before."""
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
    """Return least, median and most; of an even number the lower one of the two in the middle."""
    ordered = sorted(packets)
    return ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]
