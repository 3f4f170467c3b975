"""Checks of time: clocks of several hosts, gaps in series, and delays that need one clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from udpbench.analysis import clock_offsets, delay
from udpbench.analysis.readings import Readings
from udpbench.model.limits import sampling_ns
from udpbench.model.record import Finding
from udpbench.model.served import SAMPLED_NS

CLOCK_LIMIT_NS = 10 * 10**6
"""How far two hosts' series may be shifted: a tenth of the 100 ms between two samples."""
GAP_LIMIT_NS = 500 * 10**6
"""Five samples of a short phase; within a gap a rate is a straight line, without a peak."""
DRIFT_PPM = 500
"""How fast a clock may drift by itself: the kernel slews by no more (adjtimex(2))."""


def clock_stepped(readings: Readings) -> Iterator[Finding]:
    """Find a host whose clock moved against the controller's by more than clocks drift."""
    for host, clocks in readings.phase.clocks.items():
        if len(clocks) < 2:
            continue
        first, last = clocks[0], clocks[-1]
        moved_ns = abs(last.offset_ns - first.offset_ns)
        drift_ns = (last.at_ns - first.at_ns) * DRIFT_PPM // 10**6
        allowed_ns = first.bound_ns + last.bound_ns + drift_ns
        if moved_ns > allowed_ns:
            yield Finding(
                "invalid",
                "clock stepped: starts, series and rates of this host are not comparable",
                host,
                f"by {moved_ns / 10**6:.1f} ms",
                f"at most {allowed_ns / 10**6:.1f} ms",
                "check whether the machine was suspended or migrated, then repeat",
            )


def clocks_apart(readings: Readings) -> Iterator[Finding]:
    """Find hosts whose clocks are not known well enough to put their series on one axis."""
    bound_ns = clock_offsets.bound_ns(readings.phase)
    if bound_ns is not None and bound_ns > CLOCK_LIMIT_NS:
        yield Finding(
            "warning",
            "clocks: starts and series of the hosts may be shifted against each other",
            "hosts",
            f"by up to {bound_ns / 10**6:.1f} ms",
            f"at most {CLOCK_LIMIT_NS // 10**6} ms, a tenth of the sampling interval",
            "run the controller closer to the hosts; counts and rates are not affected",
            "timing",
        )


def samples_missing(readings: Readings) -> Iterator[Finding]:
    """Find a series with gaps: its host had no time to sample its workers."""
    times_ns: dict[str, list[int]] = {}
    for sample in readings.record.series:
        times_ns.setdefault(sample.worker, []).append(sample.clock_ns)
    # A long phase is sampled less often, on purpose, and so is a client's test.
    every_ns = sampling_ns(readings.record.trial.duration_ns)
    if readings.record.served is not None:
        every_ns = max(every_ns, SAMPLED_NS)
    limit_ns = max(GAP_LIMIT_NS, every_ns * 5 // 2)
    for worker, clocks_ns in times_ns.items():
        gap_ns = max((after - before for before, after in pairwise(clocks_ns)), default=0)
        if gap_ns > limit_ns:
            yield Finding(
                "warning",
                "samples missing: the series has a gap",
                worker,
                f"{gap_ns / 10**6:.0f} ms",
                f"at most {limit_ns // 10**6} ms",
                "counts and mean rates hold; leave the agent a CPU that no worker uses",
                "timing",
            )


def delay_hidden(measured: Readings) -> Iterator[Finding]:
    """Find a one-way delay that the hosts' clocks are not precise enough to show."""
    histogram = delay.node_histogram(measured.receiver, "delay")
    if delay.size(histogram) == 0 or delay.one_way(measured, "delay") is not None:
        return
    median_ns = delay.percentile_ns(histogram, "50")
    limit = f"1/{delay.CLOCK_SHARE} of the median delay"
    if median_ns is not None:
        limit += f", which appears to be {median_ns / 1000:.1f} us"
    yield Finding(
        "note",
        "one-way delay is not shown: the offset between the hosts' clocks is too uncertain",
        "hosts",
        f"wrong by up to {delay.clock_bound_ns(measured.phase) / 1000:.1f} us",
        limit,
        "set traffic.echo to measure round trips, which need only one clock",
    )


def echoes_lost(measured: Readings) -> Iterator[Finding]:
    """Find echoes that did not come back in time: round trips leave them out."""
    echoed = measured.receiver.count("echoed_packets")
    returned = measured.sender.count("echo_packets")
    unechoed = measured.receiver.count("unechoed_packets")
    if echoed != returned or unechoed:
        yield Finding(
            "warning",
            "echoes were lost or late: they are left out of round trips, and may be the longest",
            "sender",
            f"{returned} of {echoed + unechoed} came back",
            "all of them",
            "echo fewer headers: raise traffic.echo",
        )
