"""Cumulative distributions of delays, round trips and pacing errors.

A curve ends where the sample is too small for a percentile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING

from udpbench.analysis.delay import CARRY, highest_ns, node_histogram, one_way, size
from udpbench.analysis.readings import Readings, readings_of
from udpbench.judged_run import Chapter
from udpbench.model.record import Histogram
from udpbench.report.figure_data import shown_over_time
from udpbench.report.figures.style import GRID, LINES, WIDTH_INCHES, short_name
from udpbench.report.summary import name_of, timed
from udpbench.units import show_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEANINGS = {
    "delay": "one-way delay: from when a packet was due until it was read",
    "round_trip": "round trip: from when a packet was due until its echo was read",
    "pacing": "pacing error: from when a message was due until its call began",
}
NINES = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999)
SCALES_NS = tuple(
    (number * scale, f"{number} {unit}")
    for scale, unit in ((1, "ns"), (10**3, "µs"), (10**6, "ms"), (10**9, "s"))
    for number in (1, 10, 100)
)
FINEST = 0.01
"""Steps per decade, or per nine; finer steps are not visible."""


@dataclass(frozen=True)
class Curve:
    """One trial: the share of its times that exceed each time."""

    point: str
    repetition: int
    times: int
    beyond: tuple[tuple[int, float], ...]
    """(ns, share of the times above it), as far as CARRY times are above."""


@dataclass(frozen=True)
class Times:
    """One kind of time, with a curve per point."""

    kind: str
    curves: tuple[Curve, ...]


def times(chapter: Chapter) -> tuple[Times, ...]:
    """Return every kind of time of the points' representative trials."""
    records = {record.trial.name: record for record in chapter.records}
    curves: dict[str, list[Curve]] = {kind: [] for kind in MEANINGS}
    for point in shown_over_time(chapter):
        result = timed(point)
        measured = readings_of(records[result.trial.name]) if result is not None else None
        if result is None or measured is None:
            continue
        for kind, histogram in _histograms(measured):
            beyond = tuple(shares_beyond(histogram))
            if beyond:
                curve = Curve(name_of(point), result.trial.repetition, size(histogram), beyond)
                curves[kind].append(curve)
    return tuple(Times(kind, tuple(shown)) for kind, shown in curves.items() if shown)


def _histograms(measured: Readings) -> Iterator[tuple[str, Histogram]]:
    yield "delay", one_way(measured, "delay") or Histogram()
    yield "round_trip", node_histogram(measured.sender, "round_trip")
    yield "pacing", node_histogram(measured.sender, "pacing")


def shares_beyond(histogram: Histogram) -> Iterator[tuple[int, float]]:
    """Yield each bucket's upper edge in ns and the share of times above it, while CARRY are."""
    total = size(histogram)
    left = total - histogram.below_zero
    for bucket, count in histogram.counts:
        before, left = left, left - count
        edge_ns = highest_ns(bucket)
        if edge_ns is None:
            return
        if left < CARRY:
            if before > CARRY:
                # Its edge is that of every percentile up to the tenth time from the top.
                yield edge_ns, CARRY / total
            return
        yield edge_ns, left / total


# --- the figure ----------------------------------------------------------------------------------


def draw_times(times: Times) -> Figure:
    """Draw the cumulative share of one kind of time, a line per point, over a log axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, 2.9), layout="constrained")
    axes = figure.add_subplot()
    for (colour, dashes, _), curve in zip(LINES, times.curves, strict=False):
        x, y = corners(curve)
        n = show_count(curve.times)
        label = f"{short_name(curve.point)} #{curve.repetition} (n = {n})"
        axes.plot(x, y, color=colour, linestyle=dashes, lw=1.3, label=label)
    every = [edge for curve in times.curves for edge in corners(curve)[0]]
    low, high = min(every), max(every)
    low, high = (low - 0.3, high + 0.3) if high - low < 1 else (low - 0.02, high + 0.1)
    marks = [(log10(ns), text) for ns, text in SCALES_NS if low <= log10(ns) <= high]
    axes.set_xlim(low, high)
    axes.set_xticks([place for place, _ in marks], [text for _, text in marks])
    top = max(nines(share) for curve in times.curves for _, share in curve.beyond)
    shown = [percent for percent in NINES if nines(1 - percent / 100) <= max(top, 1) + 0.05]
    axes.set_yticks(
        [nines(1 - percent / 100) for percent in shown], [f"{percent:g} %" for percent in shown]
    )
    axes.set_ylim(0, max(top, 1) + 0.1)
    axes.set_ylabel("not later")
    axes.set_xlabel(MEANINGS[times.kind])
    axes.grid(color=GRID)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def nines(beyond: float) -> float:
    """Return the position of a share on an axis with equal space for each nine."""
    return -log10(beyond)


def corners(curve: Curve) -> tuple[list[float], list[float]]:
    """Return a curve's line on both logarithmic axes, stepping up at each time."""
    x: list[float] = []
    y: list[float] = []
    before = 1.0
    for ns, share in curve.beyond:
        place = log10(max(ns, 1))
        last = share == curve.beyond[-1][1]
        if not x or last or place - x[-1] > FINEST or nines(share) - y[-1] > FINEST:
            x += [place, place]
            y += [nines(before), nines(share)]
            before = share
    return x, y
