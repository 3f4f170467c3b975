"""Delays, pacing errors and round trips of a trial: percentiles of its workers' histograms.

Owns when a percentile is trusted, and whether two hosts' clocks allow a one-way delay. A percentile
that the sample does not support is None; nothing is ever extrapolated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from fractions import Fraction
from functools import cache

from udpbench.analysis import clock_offsets
from udpbench.analysis.readings import End, Readings
from udpbench.model.record import Histogram, Phase

STEPS = 128
"""Buckets per doubling, and as many of one nanosecond each below it: native/udpbench.h."""
LAST = 4351
"""The bucket of all times beyond 18 minutes: it has no upper edge."""
CARRY = 10
"""Times that must lie beyond a percentile: p99.999 needs a million times."""
CLOCK_SHARE = 10
"""The clocks' error bound may be at most this part of the median delay."""


def highest_ns(bucket: int) -> int | None:
    """Return the largest time of a bucket, at most 1/128 above its smallest; None for the last."""
    if bucket < STEPS:
        return bucket
    if bucket >= LAST:
        return None
    doubling, step = divmod(bucket, STEPS)
    return ((STEPS + step + 1) << (doubling - 1)) - 1


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms."""
    every = list(histograms)
    if len(every) == 1:
        return every[0]
    counts: dict[int, int] = {}
    below_zero = 0
    for histogram in every:
        below_zero += histogram.below_zero
        for bucket, count in histogram.counts:
            counts[bucket] = counts.get(bucket, 0) + count
    return Histogram(tuple(sorted(counts.items())), below_zero)


def size(histogram: Histogram) -> int:
    """Return the number of times in a histogram."""
    return histogram.totals[-1] if histogram.totals else histogram.below_zero


def percentile_ns(histogram: Histogram, percent: str) -> int | None:
    """Return a percentile, rounded up to the edge of its bucket.

    None if fewer than CARRY times lie beyond it, or if it is below zero or beyond the range.
    """
    share, total = _share(percent), size(histogram)
    if total * (1 - share) < CARRY:
        return None
    return _at_rank(histogram, -(-share.numerator * total // share.denominator))


@cache
def _share(percent: str) -> Fraction:
    return Fraction(percent) / 100


def max_ns(histogram: Histogram) -> int | None:
    """Return the longest time, rounded up to its bucket's edge; None without any."""
    total = size(histogram)
    return _at_rank(histogram, total) if total else None


def min_ns(histogram: Histogram) -> int | None:
    """Return the shortest time, rounded up to its bucket's edge; None without any."""
    return _at_rank(histogram, 1) if size(histogram) else None


def _at_rank(histogram: Histogram, rank: int) -> int | None:
    place = bisect_left(histogram.totals, rank)
    if rank <= histogram.below_zero or place == len(histogram.totals):
        return None
    return highest_ns(histogram.counts[place][0])


# --- of a trial ----------------------------------------------------------------------------------


def node_histogram(node: End, name: str) -> Histogram:
    """Return the sum of one histogram over workers."""
    histograms = (stats.histograms.get(name) for stats in node.workers)
    return merge(histogram for histogram in histograms if histogram is not None)


def clock_bound_ns(phase: Phase) -> int:
    """Return the error bound of a one-way delay: that of both clocks, plus their drift.

    Times count from the common start, which each host was given by the first reading.
    """
    moved = sorted(
        abs(clocks[-1].offset_ns - clocks[0].offset_ns)
        for clocks in phase.clocks.values()
        if clocks
    )
    return (clock_offsets.bound_ns(phase) or 0) + sum(moved[-2:])


def one_way(readings: Readings, name: str) -> Histogram | None:
    """Return a histogram of times from one host to another; None if clocks do not allow it."""
    histogram = node_histogram(readings.receiver, name)
    bound_ns = clock_bound_ns(readings.phase)
    if bound_ns == 0:
        return histogram
    median_ns = percentile_ns(histogram, "50")
    return histogram if median_ns is not None and bound_ns * CLOCK_SHARE <= median_ns else None


def numbers(measured: Readings) -> dict[str, float | None]:
    """Return the metrics that are read from histograms."""
    path = measured.path
    delay = one_way(measured, "delay") or Histogram()
    rest = (one_way(path, "delay") if path is not None else None) or Histogram()
    stack = one_way(measured, "stack") or Histogram()
    application = node_histogram(measured.receiver, "application")
    trips = node_histogram(measured.sender, "round_trip")
    rest_trips = node_histogram(path.sender, "round_trip") if path is not None else Histogram()
    pacing = node_histogram(measured.sender, "pacing")
    shortest, p99 = min_ns(delay), percentile_ns(delay, "99")
    return {
        "delay_min_ns": shortest,
        **_percentiles("delay", delay, "50", "90", "99", "99.9", "99.99"),
        "delay_max_ns": max_ns(delay),
        "delay_variation_p99_ns": p99 - shortest
        if p99 is not None and shortest is not None
        else None,
        **_percentiles("rest_delay", rest, "50", "90"),
        **_percentiles("stack_delay", stack, "50", "99"),
        **_percentiles("application_delay", application, "50", "99"),
        "round_trip_min_ns": min_ns(trips),
        **_percentiles("round_trip", trips, "50", "90", "99", "99.9"),
        "round_trip_max_ns": max_ns(trips),
        **_percentiles("rest_round_trip", rest_trips, "50", "90"),
        **_percentiles("pacing", pacing, "50", "99", "99.9"),
        "pacing_max_ns": max_ns(pacing),
    }


def _percentiles(name: str, histogram: Histogram, *percents: str) -> dict[str, int | None]:
    """Return metric → percentile: ``99.9`` of ``delay`` is ``delay_p999_ns``."""
    return {
        f"{name}_p{percent.replace('.', '')}_ns": percentile_ns(histogram, percent)
        for percent in percents
    }
