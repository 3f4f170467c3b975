"""Delays, pacing errors and round trips of a trial: percentiles of its workers' histograms.

Owns how far a percentile may be trusted, and whether two hosts' clocks allow a one-way delay. A
percentile that the sample does not carry is None; nothing is ever extrapolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from udpbench.analysis import axis
from udpbench.analysis.readings import Readings, readings
from udpbench.model import Finding, Histogram, Phase, Role

STEPS = 128
"""Buckets per doubling, and as many of one nanosecond each below it: native/udpbench.h."""
STEP_BITS = 7
LAST = 4351
"""The bucket that holds whatever is beyond 18 minutes: it has no upper edge."""
CARRY = 10
"""Times beyond a percentile that make it more than an accident: p99.999 needs a million times."""
CLOCK_SHARE = 10
"""The clocks' bound may be this part of the median delay; beyond it a delay says nothing."""


def highest_ns(bucket: int) -> int | None:
    """Return the largest time of a bucket, at most 1/128 above its least; None of the last."""
    if bucket < STEPS:
        return bucket
    if bucket >= LAST:
        return None
    doubling, step = divmod(bucket, STEPS)
    return ((STEPS + step + 1) << (doubling - 1)) - 1


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms."""
    counts: dict[int, int] = {}
    below_zero = 0
    for one in histograms:
        below_zero += one.below_zero
        for bucket, count in one.counts:
            counts[bucket] = counts.get(bucket, 0) + count
    return Histogram(tuple(sorted(counts.items())), below_zero)


def size(histogram: Histogram) -> int:
    """Return how many times are in a histogram."""
    return histogram.below_zero + sum(count for _, count in histogram.counts)


def percentile_ns(histogram: Histogram, percent: str) -> int | None:
    """Return the time that so many percent of all do not exceed, rounded up to its bucket's edge.

    None where fewer than CARRY times are beyond it, or where it is below zero or beyond the range.
    """
    share, total = Fraction(percent) / 100, size(histogram)
    if total * (1 - share) < CARRY:
        return None
    return _at_rank(histogram, -(-share.numerator * total // share.denominator))


def most_ns(histogram: Histogram) -> int | None:
    """Return the largest time of all, rounded up to its bucket's edge; None without any."""
    total = size(histogram)
    return _at_rank(histogram, total) if total else None


def least_ns(histogram: Histogram) -> int | None:
    """Return the least time of all, rounded up to its bucket's edge; None without any."""
    return _at_rank(histogram, 1) if size(histogram) else None


def _at_rank(histogram: Histogram, rank: int) -> int | None:
    seen = histogram.below_zero
    if rank <= seen:
        return None
    for bucket, count in histogram.counts:
        seen += count
        if rank <= seen:
            return highest_ns(bucket)
    return None


# --- of a trial ----------------------------------------------------------------------------------


def of_role(found: Readings, role: Role, name: str) -> Histogram:
    """Return the sum of one histogram over a role's workers."""
    every = (stats.histograms.get(name) for stats in found.workers(role))
    return merge(one for one in every if one is not None)


def clock_bound_ns(phase: Phase) -> int:
    """Return by how much a one-way delay may be wrong: what is not known of both clocks, and drift.

    Times count from the common start, which was told to each host by the first reading.
    """
    every = [clocks for clocks in phase.clocks.values() if clocks]
    moved = sorted(abs(clocks[-1].offset_ns - clocks[0].offset_ns) for clocks in every)
    return (axis.bound_ns(phase) or 0) + sum(moved[-2:])


def one_way(found: Readings, name: str) -> Histogram | None:
    """Return a histogram of times from one host to another; None where clocks forbid it."""
    histogram = of_role(found, "receiver", name)
    bound_ns = clock_bound_ns(found.phase)
    if bound_ns == 0:
        return histogram
    median_ns = percentile_ns(histogram, "50")
    return histogram if median_ns is not None and bound_ns * CLOCK_SHARE <= median_ns else None


def numbers(measured: Readings) -> dict[str, Any]:
    """Return the fields of a Result that are times, by name."""
    path = readings(measured.record, "path")
    pacing = of_role(measured, "sender", "pacing")
    return {
        **_delays(measured, path),
        **_split(measured),
        **_round_trips(measured, path),
        "pacing_p50_ns": percentile_ns(pacing, "50"),
        "pacing_p99_ns": percentile_ns(pacing, "99"),
        "pacing_p999_ns": percentile_ns(pacing, "99.9"),
        "pacing_max_ns": most_ns(pacing),
    }


def _delays(measured: Readings, path: Readings | None) -> dict[str, int | None]:
    delay = one_way(measured, "delay") or Histogram()
    rest = (one_way(path, "delay") if path is not None else None) or Histogram()
    least, p99 = least_ns(delay), percentile_ns(delay, "99")
    return {
        "delay_min_ns": least,
        "delay_p50_ns": percentile_ns(delay, "50"),
        "delay_p90_ns": percentile_ns(delay, "90"),
        "delay_p99_ns": p99,
        "delay_p999_ns": percentile_ns(delay, "99.9"),
        "delay_p9999_ns": percentile_ns(delay, "99.99"),
        "delay_max_ns": most_ns(delay),
        "delay_variation_p99_ns": p99 - least if p99 is not None and least is not None else None,
        "rest_delay_p50_ns": percentile_ns(rest, "50"),
        "rest_delay_p90_ns": percentile_ns(rest, "90"),
    }


def _split(measured: Readings) -> dict[str, int | None]:
    stack = one_way(measured, "stack") or Histogram()
    application = of_role(measured, "receiver", "application")
    return {
        "stack_delay_p50_ns": percentile_ns(stack, "50"),
        "stack_delay_p99_ns": percentile_ns(stack, "99"),
        "application_delay_p50_ns": percentile_ns(application, "50"),
        "application_delay_p99_ns": percentile_ns(application, "99"),
    }


def _round_trips(measured: Readings, path: Readings | None) -> dict[str, int | None]:
    trips = of_role(measured, "sender", "round_trip")
    rest = of_role(path, "sender", "round_trip") if path is not None else Histogram()
    return {
        "round_trip_min_ns": least_ns(trips),
        "round_trip_p50_ns": percentile_ns(trips, "50"),
        "round_trip_p90_ns": percentile_ns(trips, "90"),
        "round_trip_p99_ns": percentile_ns(trips, "99"),
        "round_trip_p999_ns": percentile_ns(trips, "99.9"),
        "round_trip_max_ns": most_ns(trips),
        "rest_round_trip_p50_ns": percentile_ns(rest, "50"),
        "rest_round_trip_p90_ns": percentile_ns(rest, "90"),
    }


# --- checks --------------------------------------------------------------------------------------


def delay_hidden(measured: Readings) -> Iterator[Finding]:
    """Find a one-way delay that the hosts' clocks do not allow to show."""
    histogram = of_role(measured, "receiver", "delay")
    if size(histogram) == 0 or one_way(measured, "delay") is not None:
        return
    median_ns = percentile_ns(histogram, "50")
    limit = f"a {CLOCK_SHARE}th of the median delay"
    if median_ns is not None:
        limit += f", which seems to be {median_ns / 1000:.1f} us"
    yield Finding(
        "note",
        "one-way delay is not shown: the hosts' clocks are not known well enough",
        "hosts",
        f"wrong by up to {clock_bound_ns(measured.phase) / 1000:.1f} us",
        limit,
        "set traffic.echo for round trips, which need one clock",
    )


def echoes_lost(measured: Readings) -> Iterator[Finding]:
    """Find echoes that did not come back in time: round trips are then of those that did."""
    echoed = measured.count("receiver", "echoed_packets")
    heard = measured.count("sender", "echo_packets")
    unechoed = measured.count("receiver", "unechoed_packets")
    if echoed != heard or unechoed:
        yield Finding(
            "warning",
            "echoes were lost, or too late: round trips leave out those, which may be the longest",
            "sender",
            f"{heard} of {echoed + unechoed} came back",
            "all of them",
            "echo fewer headers: raise traffic.echo",
        )
