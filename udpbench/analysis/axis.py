"""One time axis for the hosts of a phase: from each host's clock to the controller's.

Owns what offset counts at what moment. Rates are not taken on this axis: a rate is of one host's
own clock, which no error of an offset can stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from udpbench.analysis.rates import host_of
from udpbench.analysis.readings import Readings
from udpbench.model import ClockReading, Phase, Sample


def controller_ns(clocks: Sequence[ClockReading], clock_ns: int) -> int:
    """Return a time of a host's clock on the controller's.

    Between the first and the last reading the offset goes straight, if it moved by more than both
    readings may be wrong; else the better reading holds throughout. Without a reading the clocks
    count as one.
    """
    if not clocks:
        return clock_ns
    first, last = clocks[0], clocks[-1]
    moved_ns, elapsed_ns = last.offset_ns - first.offset_ns, last.at_ns - first.at_ns
    if elapsed_ns <= 0 or abs(moved_ns) <= first.bound_ns + last.bound_ns:
        return clock_ns - min(clocks, key=lambda reading: reading.bound_ns).offset_ns
    since_first_ns = clock_ns - (first.at_ns + first.offset_ns)
    return first.at_ns + since_first_ns * elapsed_ns // (elapsed_ns + moved_ns)


def since_start_ns(phase: Phase, host: str, clock_ns: int) -> int:
    """Return a time of a host's clock as nanoseconds since the common start of a phase."""
    clocks, start_ns = phase.clocks.get(host, ()), phase.start_ns.get(host, 0)
    if not clocks:
        return clock_ns - start_ns
    return controller_ns(clocks, clock_ns) - (start_ns - clocks[0].offset_ns)


def series_on_one_axis(readings: Readings) -> dict[str, tuple[Sample, ...]]:
    """Return worker → its samples, their clocks replaced by the time since the common start."""
    found: dict[str, list[Sample]] = {}
    for sample in readings.record.series:
        at_ns = since_start_ns(readings.phase, host_of(sample.worker), sample.clock_ns)
        found.setdefault(sample.worker, []).append(replace(sample, clock_ns=at_ns))
    return {worker: tuple(samples) for worker, samples in found.items()}


def bound_ns(phase: Phase) -> int | None:
    """Return by how much series of two hosts may be shifted at most; None where nobody asked."""
    bounds = sorted(
        max(reading.bound_ns for reading in clocks) for clocks in phase.clocks.values() if clocks
    )
    return sum(bounds[-2:]) if bounds else None
