"""How even a load is: packets per millisecond around one turn, paced next to unpaced.

Uses the senders' raw counts per millisecond; nothing is averaged or smoothed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10, pi
from statistics import fmean, median
from typing import TYPE_CHECKING

from udpbench.analysis.rates import length_ns
from udpbench.analysis.readings import readings_of
from udpbench.judged_run import Chapter
from udpbench.model.record import TrialRecord
from udpbench.report.figure_data import shown_over_time
from udpbench.report.figures.style import BLUE, GRID, SKY, WIDTH_INCHES, short_name
from udpbench.report.summary import name_of, timed

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.projections.polar import PolarAxes

TURN_MS = 1000
SIDE_BY_SIDE = 2
LOG_FROM = 8
"""Ratio of busiest millisecond to the slowest turn's mean from which on the axis is logarithmic."""
RINGS = (1, 2, 5)
"""Rings of the radial axis are at these values times a power of ten."""


@dataclass(frozen=True)
class Turn:
    """What one trial sent in each millisecond of one second."""

    point: str
    repetition: int
    from_ms: int
    """After the common start."""
    packets: tuple[int, ...]
    """Packets per millisecond from there on; fewer than TURN_MS if the load was shorter."""
    within: tuple[tuple[int, int], ...] = ()
    """For a load without single milliseconds: minimum and maximum of each interval. Then the turn
    is the whole load, and ``packets`` are the medians."""
    around_ms: int = TURN_MS

    @property
    def spread(self) -> tuple[int, float, int]:
        """Return minimum, median and maximum per millisecond."""
        least, most = zip(*self.within, strict=True) if self.within else (self.packets,) * 2
        return min(least), median(self.packets), max(most)


def turns(chapter: Chapter) -> tuple[Turn, ...]:
    """Return a turn for each point shown over time, if any point is paced."""
    if all(trial.traffic.rate is None for trial in chapter.experiment.points):
        return ()
    records = {record.trial.name: record for record in chapter.records}
    shown: list[Turn | None] = []
    for point in shown_over_time(chapter):
        result = timed(point)
        if result is not None:
            record = records[result.trial.name]
            shown += [_turn(name_of(point), record) or _long_turn(name_of(point), record)]
    return tuple(turn for turn in shown if turn is not None)


def _turn(point: str, record: TrialRecord) -> Turn | None:
    packets = sent_per_ms(record)
    return Turn(point, record.trial.repetition, *busiest(packets)) if packets else None


def _long_turn(point: str, record: TrialRecord) -> Turn | None:
    """Return a whole load of which only ranges are stored; None for several senders.

    Ranges of several senders do not give the range of their sum.
    """
    senders = {worker.name for worker in record.workers if worker.role == "sender"}
    kept = [sample.range_per_ms for sample in record.series if sample.worker in senders]
    ranges = [stretch for stretch in kept if stretch is not None]
    if len(senders) != 1 or not ranges:
        return None
    medians = tuple(middle for _, middle, _ in ranges)
    within = tuple((least, most) for least, _, most in ranges)
    around_ms = record.trial.duration_ns // 10**6
    return Turn(point, record.trial.repetition, 0, medians, within, around_ms)


def sent_per_ms(record: TrialRecord) -> dict[int, int]:
    """Return millisecond since the start → what all senders sent in it, of those that sent.

    A record may have few of them, far from the start.
    """
    measured = readings_of(record)
    if measured is None:
        return {}
    senders = {stats.worker for stats in measured.sender.workers}
    sums: Counter[int] = Counter()
    length_ms = length_ns(record) // 10**6
    for sample in record.series:
        if sample.worker in senders and sample.first_ms is not None:
            for place, packets in enumerate(sample.packets_per_ms, start=sample.first_ms):
                if place > length_ms:
                    break
                sums[place] += packets
    return {place: packets for place, packets in sums.items() if packets}


def busiest(packets: Mapping[int, int]) -> tuple[int, tuple[int, ...]]:
    """Return the start of the whole second with the busiest millisecond, and its packets.

    The first of equals; a load shorter than a second is returned whole.
    """
    end = max(packets) + 1
    last_start = max(end - TURN_MS, 0) // TURN_MS * TURN_MS
    busy = [place for place in packets if place < last_start + TURN_MS]
    at = min(busy, key=lambda place: (-packets[place], place), default=0) // TURN_MS * TURN_MS
    return at, tuple(packets.get(place, 0) for place in range(at, min(at + TURN_MS, end)))


# --- the figure ----------------------------------------------------------------------------------


def draw_turns(turns: Sequence[Turn]) -> Figure:
    """Draw turns side by side: clockwise a second, outwards the packets of a millisecond."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = -(-len(turns) // SIDE_BY_SIDE)
    layout = ConstrainedLayoutEngine(h_pad=0.1)
    figure = Figure(figsize=(WIDTH_INCHES, 2.95 * rows + 0.2), layout=layout)
    most = max(turn.spread[2] for turn in turns)
    log = most >= LOG_FROM * max(min(fmean(turn.packets) for turn in turns), 1.0)
    for place, turn in enumerate(turns, start=1):
        axes = figure.add_subplot(rows, SIDE_BY_SIDE, place, projection="polar")
        _draw_turn(axes, turn, most, log)  # type: ignore[arg-type]
    scale = "packets sent per millisecond, outwards" + (", logarithmic" if log else "")
    figure.supxlabel(f"{scale}; n = 1 trial each", fontsize=9)
    return figure


def _draw_turn(axes: PolarAxes, turn: Turn, most: int, log: bool) -> None:
    steps = len(turn.packets) if turn.within else TURN_MS
    angles = [2 * pi * place / steps for place in range(len(turn.packets))]
    out = [radius(packets, log) for packets in turn.packets]
    band = turn.within or tuple((0, packets) for packets in turn.packets)
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    low, high = ([radius(ends[end], log) for ends in band] for end in (0, 1))
    if turn.within or len(angles) < TURN_MS:
        edge = 0.5 if turn.within else 0  # so that a lone peak of hours is seen
        axes.fill_between(angles, low, high, color=SKY, alpha=0.45, lw=edge)
        axes.plot(angles, out, color=BLUE, lw=0.5)
    else:  # its edge and its area are one path, which may have a thousand corners
        axes.fill(angles, out, facecolor=(SKY, 0.45), edgecolor=BLUE, lw=0.5)
    marked = rings(most, log)
    axes.set_rlim(0, 1.05 * radius(most, log))
    axes.set_rgrids(
        [radius(packets, log) for packets in marked],
        [str(packets) for packets in marked],
        angle=315,
    )
    axes.set_thetagrids([0, 90, 180, 270], quarters(turn.around_ms))
    axes.tick_params(labelsize=7.5, pad=1)
    _, east, _, west = axes.get_xticklabels()
    east.set_horizontalalignment("left")
    west.set_horizontalalignment("right")
    axes.grid(color=GRID)
    axes.spines["polar"].set_color(GRID)
    least, middle, largest = turn.spread
    shown = f"from {turn.from_ms / TURN_MS:g} s" if turn.from_ms else "from the start"
    shown = "the whole load" if turn.within else shown
    axes.set_title(f"{short_name(turn.point, 40)} #{turn.repetition}, {shown}", fontsize=9)
    axes.set_xlabel(f"{least} – {middle:g} – {largest} per ms", fontsize=9)


def quarters(around_ms: int) -> list[str]:
    """Return the time at each quarter of a turn."""
    scale, unit = next(
        (scale, unit)
        for scale, unit in ((3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
        if around_ms >= 2 * scale or scale == 1
    )
    return ["0", *(f"{around_ms * quarter / 4 / scale:.4g} {unit}" for quarter in (1, 2, 3))]


def radius(packets: int, log: bool) -> float:
    """Return how far out so many packets are drawn; none is the middle."""
    return log10(1 + packets) if log else float(packets)


def rings(most: int, log: bool) -> list[int]:
    """Return two to four round numbers up to the largest, decades where the axis is logarithmic."""
    if log:
        return [10**power for power in range(5) if 10**power <= most][-4:]
    steps = [times * 10**power for power in range(20) for times in RINGS]
    step = next(step for step in steps if most / step < 5)
    return list(range(step, most + 1, step))
