"""Percentiles of histograms, and when a delay may be shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import build
from udpbench._native import lib
from udpbench.analysis import delay
from udpbench.analysis.checks import clock_checks
from udpbench.analysis.judge import judge
from udpbench.analysis.readings import readings_of
from udpbench.model.record import ClockReading, Histogram, Phase, TrialRecord
from udpbench.model.result import Result

TIMES = st.lists(st.integers(0, 2**40 - 2**33), min_size=1, max_size=300)


def of(times_ns: list[int], below_zero: int = 0) -> Histogram:
    """Return the histogram that a loop would have made of these times."""
    buckets = sorted(int(lib.ub_histogram_bucket(time_ns)) for time_ns in times_ns)
    counts = tuple((bucket, buckets.count(bucket)) for bucket in sorted(set(buckets)))
    return Histogram(counts, below_zero)


@given(st.integers(0, 2**40 - 2**33 - 1))
def test_a_buckets_highest_time_is_the_loops_own(time_ns: int) -> None:
    """The edge that Python knows is the last time of the bucket in C, and within 1/128."""
    bucket = lib.ub_histogram_bucket(time_ns)
    highest = delay.highest_ns(bucket)
    assert highest is not None
    assert bucket == lib.ub_histogram_bucket(highest)
    assert bucket + 1 == lib.ub_histogram_bucket(highest + 1)
    assert time_ns <= highest <= time_ns + time_ns // 128


def test_the_constants_are_those_of_the_loops() -> None:
    """Both sides speak of the same buckets."""
    assert (lib.UB_HISTOGRAM_STEPS, lib.UB_HISTOGRAM_BUCKETS) == (delay.STEPS, delay.LAST + 1)
    assert None is delay.highest_ns(delay.LAST)


@given(TIMES, TIMES)
def test_histograms_add_up(some: list[int], others: list[int]) -> None:
    """The sum of two histograms is the histogram of both."""
    merged = delay.merge([of(some, 1), of(others, 2)])
    assert of(some + others, 3) == merged
    assert len(some) + len(others) + 3 == delay.size(merged)


@given(st.lists(st.integers(0, 2**40 - 2**33 - 1), min_size=20, max_size=300))
def test_the_median(times_ns: list[int]) -> None:
    """It is the time in the middle, rounded up by at most 1/128."""
    exact = sorted(times_ns)[(len(times_ns) - 1) // 2]
    median_ns = delay.percentile_ns(of(times_ns), "50")
    assert median_ns is not None
    assert exact <= median_ns <= exact + exact // 128


@pytest.mark.parametrize(
    ("percent", "least"),
    [("50", 20), ("90", 100), ("99", 1000), ("99.9", 10_000), ("99.999", 10**6)],
)
def test_a_percentile_is_shown_only_as_far_as_the_sample_carries(percent: str, least: int) -> None:
    """Ten times must be beyond it; with one time less it is unknown."""
    assert 5 == delay.percentile_ns(Histogram(((5, least),)), percent)
    assert None is delay.percentile_ns(Histogram(((5, least - 1),)), percent)


def test_times_below_zero_come_first() -> None:
    """They count, and a percentile among them is unknown."""
    histogram = Histogram(((7, 40),), 60)
    assert None is delay.percentile_ns(histogram, "50")
    assert 7 == delay.percentile_ns(histogram, "90")
    assert (None, 7) == (delay.min_ns(histogram), delay.max_ns(histogram))


def test_nothing_is_not_0() -> None:
    """Without a time there is neither a least nor a most, and beyond the range there is no edge."""
    assert (None, None) == (delay.min_ns(Histogram()), delay.max_ns(Histogram()))
    assert None is delay.max_ns(Histogram(((5, 1), (delay.LAST, 1))))


# --- of a trial ----------------------------------------------------------------------------------


def measured(
    receiver: dict[str, Histogram], sender: dict[str, Histogram] | None = None, bound_ns: int = 0
) -> TrialRecord:
    """Return a record with histograms, of hosts whose clocks are known to ``bound_ns`` each."""
    workers = (
        build.worker("sender", build.sender_counts(1000), histograms=sender or {}),
        build.worker("receiver", build.receiver_counts(1000), histograms=receiver),
    )
    record = build.record(workers=workers)
    return replace(record, phases=tuple(apart(phase, bound_ns) for phase in record.phases))


def apart(phase: Phase, bound_ns: int, drift_ns: int = 0) -> Phase:
    """Return a phase of hosts whose clocks are known to a bound, one of which drifts."""
    clocks = {
        "left": (ClockReading(0, 5, bound_ns), ClockReading(9, 5 + drift_ns, bound_ns)),
        "right": (ClockReading(0, 7, bound_ns), ClockReading(9, 7, bound_ns)),
    }
    return replace(phase, clocks=clocks)


def test_delays_of_a_trial() -> None:
    """Delay, its variation above the least, and at rest what the path check had."""
    load = measured({"delay": Histogram(((10, 990), (100, 1000), (127, 10)))})
    rest = build.record(
        phase="path",
        workers=(
            build.worker("sender", build.sender_counts(100)),
            build.worker("receiver", {}, histograms={"delay": Histogram(((3, 100),))}),
        ),
    )
    result = judge(replace(load, phases=(*rest.phases, *load.phases)))
    assert (10, 100, 100, 100) == (
        result.delay_min_ns,
        result.delay_p50_ns,
        result.delay_p90_ns,
        result.delay_p99_ns,
    )
    assert (None, 127, 90) == (
        result.delay_p999_ns,
        result.delay_max_ns,
        result.delay_variation_p99_ns,
    )
    assert (3, 3) == (result.rest_delay_p50_ns, result.rest_delay_p90_ns)


def test_parts_of_a_delay_and_round_trips() -> None:
    """Stack and application split the delay; round trips and pacing are the sender's own."""
    some = Histogram(((50, 1000),))
    names = {"stack": some, "application": Histogram(((60, 1000),))}
    result = judge(measured(names, {"round_trip": Histogram(((70, 1000),)), "pacing": some}))
    assert (50, 60, 70, 70, 50, 50) == (
        result.stack_delay_p99_ns,
        result.application_delay_p50_ns,
        result.round_trip_p99_ns,
        result.round_trip_min_ns,
        result.pacing_p99_ns,
        result.pacing_max_ns,
    )


def one_way(result: Result) -> tuple[int | None, ...]:
    """Return numbers that need two clocks."""
    return (result.delay_p50_ns, result.delay_max_ns, result.stack_delay_p50_ns)


@pytest.mark.parametrize(("bound_ns", "shown"), [(0, True), (50, True), (51, False)])
def test_clocks_must_be_known_to_a_tenth_of_the_delay(bound_ns: int, shown: bool) -> None:
    """Two hosts that are known to 50 ns each allow a delay of 1000 ns, and to 51 ns none."""
    thousand = of([1000] * 100)
    record = measured({"delay": thousand, "stack": thousand, "application": thousand}, {}, bound_ns)
    result = judge(record)
    assert shown == (one_way(result) == (1003, 1003, 1003))
    assert shown == (one_way(result) != (None, None, None))
    # What one clock tells is shown in any case.
    assert 1003 == result.application_delay_p50_ns


def test_a_drift_counts_like_a_bound() -> None:
    """An offset that moved by 200 ns forbids a delay of 1000 ns, however well it was known."""
    record = measured({"delay": of([1000] * 100)})
    phase = apart(record.phases[0], 0, drift_ns=-200)
    assert 200 == delay.clock_bound_ns(phase)
    assert None is judge(replace(record, phases=(phase,))).delay_p50_ns


def test_too_few_delays_carry_no_proof() -> None:
    """Where not even the median is known, clocks that are apart show nothing."""
    assert None is judge(measured({"delay": of([1000] * 19)}, {}, 1)).delay_max_ns
    readings = readings_of(measured({"delay": of([1000] * 19)}, {}, 1))
    assert readings is not None
    (finding,) = clock_checks.delay_hidden(readings)
    assert "1/10 of the median delay" == finding.limit


def test_a_reader_without_headers_has_no_delay_and_no_finding() -> None:
    """Nothing was measured, so nothing is hidden."""
    readings = readings_of(measured({}, {}, 10**6))
    assert readings is not None
    assert [] == list(clock_checks.delay_hidden(readings))
