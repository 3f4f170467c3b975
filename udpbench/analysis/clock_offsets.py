"""One time axis for the hosts of a phase: from each host's clock to the controller's.

Owns which offset holds at which moment. Rates do not use this axis: a rate is by one host's own
clock, which no error of an offset can distort.
"""

from __future__ import annotations

from collections.abc import Sequence

from udpbench.model.record import ClockReading, Phase


def controller_ns(clocks: Sequence[ClockReading], clock_ns: int) -> int:
    """Return a time of a host's clock on the controller's.

    The offset is interpolated between the first and the last reading if it moved by more than their
    error bounds; otherwise the better reading holds throughout. Without a reading the clocks count
    as one.
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


def bound_ns(phase: Phase) -> int | None:
    """Return the most by which series of two hosts may be shifted; None if no clock was read."""
    bounds = sorted(
        max(reading.bound_ns for reading in clocks) for clocks in phase.clocks.values() if clocks
    )
    return sum(bounds[-2:]) if bounds else None
