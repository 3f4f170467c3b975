"""Cumulative shares of delays and pacing errors: as far as a sample carries them."""

from __future__ import annotations

from math import log10

import pytest
from analysis.build import experiment, failed, receiver_counts, record, sender_counts, worker

from udpbench.judged_run import Chapter, judged
from udpbench.model.record import Histogram, TrialRecord
from udpbench.report.figures.delay_curves import (
    Curve,
    Times,
    corners,
    draw_times,
    nines,
    shares_beyond,
    times,
)


def chapter(*records: TrialRecord) -> Chapter:
    """Return the one chapter of an experiment with these trials."""
    (only,) = judged([experiment()], records)
    return only


def timed(**histograms: Histogram) -> TrialRecord:
    """Return a good trial whose workers kept these histograms."""
    sender = {name: histogram for name, histogram in histograms.items() if name != "delay"}
    receiver = {name: histogram for name, histogram in histograms.items() if name == "delay"}
    return record(
        workers=[
            worker("sender", sender_counts(1000), histograms=sender),
            worker("receiver", receiver_counts(1000), histograms=receiver),
        ]
    )


def test_a_curve_ends_where_the_sample_carries_no_more() -> None:
    """50 of 100 times exceed 5 ns and 10 exceed 7 ns; fewer are an accident."""
    histogram = Histogram(((5, 50), (7, 40), (9, 10)))
    assert [(5, 0.5), (7, 0.1)] == list(shares_beyond(histogram))


def test_a_curve_goes_up_to_the_last_percentile_that_is_known() -> None:
    """190 of 200 times, read in two batches, are no later than the second: p50 and p90 are drawn."""
    assert [(5, 0.7), (9, 0.05)] == list(shares_beyond(Histogram(((5, 60), (9, 140)))))


def test_times_below_zero_are_counted_and_have_no_place() -> None:
    """They are earlier than every time that is drawn."""
    assert [(5, 0.25), (6, 0.1)] == list(
        shares_beyond(Histogram(((5, 25), (6, 25)), below_zero=50))
    )


def test_a_time_beyond_the_range_has_no_edge() -> None:
    """The last bucket has none, so the curve ends before it."""
    assert [(5, 0.5)] == list(shares_beyond(Histogram(((5, 50), (4351, 50)))))


def test_each_kind_of_time_has_its_curves() -> None:
    """One for each point, of its representative trial; what nobody measured is not there."""
    histogram = Histogram(((5, 50), (7, 50)))
    curves = times(chapter(timed(delay=histogram, pacing=histogram)))
    curve = Curve("all", 1, 100, ((5, 0.5), (7, 0.1)))
    assert (Times("delay", (curve,)), Times("pacing", (curve,))) == curves


def test_too_few_times_have_no_curve() -> None:
    """Nor has a trial that failed."""
    assert () == times(chapter(timed(delay=Histogram(((5, 9),)))))
    assert () == times(chapter(failed()))


def test_a_curve_steps_up_at_each_time() -> None:
    """Both axes are logarithmic; 0 ns stands at 1 ns."""
    x, y = corners(Curve("all", 1, 100, ((0, 0.1), (100, 0.01))))
    assert [0.0, 0.0, 2.0, 2.0] == x
    assert pytest.approx([0.0, 1.0, 1.0, 2.0]) == y
    assert pytest.approx(3.0) == nines(0.001)


def test_axes_name_times_and_shares() -> None:
    """Only what is reached: no percentile beyond the sample, no time beyond the curves."""
    figure = draw_times(Times("delay", (Curve("all", 1, 1000, ((900, 0.5), (20_000, 0.01))),)))
    (axes,) = figure.axes
    assert ["0 %", "50 %", "90 %", "99 %"] == [label.get_text() for label in axes.get_yticklabels()]
    assert ["1 µs", "10 µs"] == [label.get_text() for label in axes.get_xticklabels()]
    low, high = axes.get_xlim()
    assert low < log10(900) < log10(20_000) < high
    assert ["all #1 (n = 1 000)"] == [text.get_text() for text in figure.legends[0].get_texts()]
