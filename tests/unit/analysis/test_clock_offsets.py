"""One axis for several hosts: offsets, drift, and how far they can be trusted."""

from __future__ import annotations

from dataclasses import replace

from analysis import build
from udpbench.analysis.clock_offsets import (
    bound_ns,
    controller_ns,
    since_start_ns,
)
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import ClockReading, Phase

HOUR_NS = 3600 * SECOND_NS


def phase(clocks: dict[str, tuple[ClockReading, ...]], starts: dict[str, int]) -> Phase:
    """Return a phase with these clocks and starts."""
    return replace(build.record().phases[0], clocks=clocks, start_ns=starts)


def test_an_offset_is_taken_off() -> None:
    """A clock that is an hour ahead shows an hour more."""
    assert 100 == controller_ns([ClockReading(50, HOUR_NS, 10)], HOUR_NS + 100)


def test_without_a_reading_clocks_count_as_one() -> None:
    """Records from before clocks were kept can still be drawn."""
    assert 7 == controller_ns([], 7)
    assert 3 == since_start_ns(phase({}, {"left": 4}), "left", 7)


def test_the_better_reading_holds_while_no_drift_is_proven() -> None:
    """Readings that differ by less than they may be wrong say the same."""
    clocks = [ClockReading(0, 1000, 900), ClockReading(10**6, 1400, 100)]
    assert [8600, 8600] == [controller_ns(order, 10_000) for order in (clocks, clocks[::-1])]


def test_a_proven_drift_goes_straight() -> None:
    """A clock that gains a thousandth is an offset of 0 at first, 500 us after half a second."""
    clocks = [ClockReading(0, 0, 10), ClockReading(SECOND_NS, 10**6, 10)]
    assert [0, SECOND_NS // 2, SECOND_NS, 2 * SECOND_NS] == [
        controller_ns(clocks, clock_ns)
        for clock_ns in (0, 500_500_000, 1_001_000_000, 2_002_000_000)
    ]


def test_large_clocks_keep_every_nanosecond() -> None:
    """A host that is up for years has a clock beyond what a float holds; parts are cut off."""
    up_ns = 5 * 365 * 24 * HOUR_NS
    clocks = [ClockReading(0, up_ns, 0), ClockReading(HOUR_NS, up_ns + 2, 0)]
    assert [0, HOUR_NS - 1] == [
        controller_ns(clocks, clock_ns) for clock_ns in (up_ns + 1, up_ns + HOUR_NS + 1)
    ]


def test_two_hosts_may_be_apart_by_what_both_may_be_wrong() -> None:
    """The two least known clocks of several decide; without any nothing is known."""
    clocks = {
        name: (ClockReading(0, 0, bound), ClockReading(1, 0, 1))
        for name, bound in (("a", 5), ("b", 70), ("c", 600))
    }
    assert (670, None) == (bound_ns(phase(clocks, {})), bound_ns(phase({}, {})))
