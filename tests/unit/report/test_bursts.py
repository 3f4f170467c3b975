"""Packets of each millisecond: which second is shown, and where it is drawn."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest
from analysis.build import experiment, failed, paced, record, trial
from matplotlib.axes import Axes

from udpbench.judged_run import Chapter, judged
from udpbench.model.experiment import Experiment
from udpbench.model.limits import DAY_NS, SECOND_NS
from udpbench.model.record import Sample, TrialRecord
from udpbench.report.figures.bursts import (
    TURN_MS,
    Turn,
    busiest,
    draw_turns,
    quarters,
    radius,
    rings,
    turns,
)


def chapter(*records: TrialRecord, of: Experiment) -> Chapter:
    """Return the one chapter of an experiment with these trials."""
    (only,) = judged([of], records)
    return only


def sent(per_ms: Sequence[int], first_ms: int = 0, worker: str = "left.sender0") -> Sample:
    """Return a sample with what a worker sent in each millisecond."""
    return Sample(worker, 0, {}, first_ms=first_ms, packets_per_ms=tuple(per_ms))


def test_a_turn_is_what_senders_sent_in_each_millisecond() -> None:
    """Samples follow each other; what a receiver read is no part of it."""
    series = (sent([4, 5]), sent([6], first_ms=2), sent([90], worker="right.receiver0"))
    of = experiment(points=[paced()])
    (turn,) = turns(chapter(record(of=paced(), series=series), of=of))
    assert Turn("all", 1, 0, (4, 5, 6)) == turn
    assert (4, 5, 6) == turn.spread


def test_silence_within_a_load_is_a_millisecond_of_nothing() -> None:
    """And silence after it is not shown."""
    of = experiment(points=[paced()])
    series = (sent([4], first_ms=1), sent([7, 0, 0], first_ms=3))
    (turn,) = turns(chapter(record(of=paced(), series=series), of=of))
    assert (0, 4, 0, 7) == turn.packets


def test_where_nothing_is_paced_there_is_no_turn() -> None:
    """A flood has no evenness to show; neither has a trial that failed or kept no milliseconds."""
    series = (sent([4]),)
    assert () == turns(chapter(record(series=series), of=experiment()))
    of = experiment(points=[paced()])
    assert () == turns(chapter(failed(of=paced()), of=of))
    assert () == turns(chapter(record(of=paced()), of=of))


def test_paced_and_unpaced_are_side_by_side() -> None:
    """As soon as one of the points is paced all are shown."""
    points = [paced(point="even"), trial("burst")]
    records = [record(of=point, series=(sent([n]),)) for n, point in enumerate(points, start=1)]
    drawn = turns(chapter(*records, of=experiment(points=points)))
    assert [("even", (1,)), ("burst", (2,))] == [(turn.point, turn.packets) for turn in drawn]


@pytest.mark.parametrize(
    ("packets", "from_ms", "length"),
    [
        ([5] * 300, 0, 300),
        ([5] * 1000 + [9] + [5] * 999, 1000, 1000),
        ([9] + [5] * 1000 + [99] * 100, 0, 1000),
        ([5] * 2500, 0, 1000),
        ([0] * 2000 + [5] * 1000 + [9], 2000, 1000),
    ],
)
def test_of_several_seconds_the_one_with_the_busiest_millisecond_is_shown(
    packets: list[int], from_ms: int, length: int
) -> None:
    """Whole seconds alone, of equals the first; of a shorter load all there is."""
    at, turn = busiest(dict(enumerate(packets)))
    assert (from_ms, packets[from_ms : from_ms + length]) == (at, list(turn))


def test_a_lone_millisecond_of_a_day_takes_no_day() -> None:
    """A record may claim it, with an own time of the controller of a day."""
    second = [9, *[0] * 998, 1]
    series = (sent([4]), sent(second, first_ms=5_000_000))
    late = record(of=paced(), series=series, overhead_ns={"measured": DAY_NS})
    of = chapter(late, of=experiment(points=[paced()]))
    tracemalloc.start()
    (turn,) = turns(of)
    taken_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (5_000_000, second) == (turn.from_ms, list(turn.packets))
    assert taken_bytes < 2**22


def test_of_a_long_load_the_ranges_are_a_turn() -> None:
    """Its milliseconds are not kept one by one; what several senders sent together is not known."""
    point = paced(duration_ns=120 * SECOND_NS)
    ranges = [replace(sent([]), range_per_ms=extremes) for extremes in ((0, 4, 9), (2, 5, 5))]
    of = experiment(points=[point])
    long = record(of=point, series=tuple(ranges))
    (turn,) = turns(chapter(long, of=of))
    assert Turn("all", 1, 0, (4, 5), ((0, 9), (2, 5)), 120_000) == turn
    assert (0, 4.5, 9) == turn.spread
    figure = draw_turns([turn])
    assert ("all #1, the whole load", "0 – 4.5 – 9 per ms") == labels(figure.axes[0])
    second = replace(long.workers[0], index=1)
    assert () == turns(chapter(replace(long, workers=(*long.workers, second)), of=of))


@pytest.mark.parametrize(
    ("around_ms", "shown"),
    [
        (1000, ["0", "250 ms", "500 ms", "750 ms"]),
        (90_000, ["0", "22.5 s", "45 s", "67.5 s"]),
        (7_200_000, ["0", "0.5 h", "1 h", "1.5 h"]),
    ],
)
def test_quarters_of_a_turn_are_times(around_ms: int, shown: list[str]) -> None:
    """In a unit that suits it."""
    assert shown == quarters(around_ms)


@pytest.mark.parametrize(
    ("most", "log", "marked"),
    [
        (1, False, [1]),
        (43, False, [10, 20, 30, 40]),
        (200, False, [50, 100, 150, 200]),
        (1000, True, [1, 10, 100, 1000]),
        (5, True, [1]),
    ],
)
def test_rings_are_round_numbers(most: int, log: bool, marked: list[int]) -> None:
    """Few enough to be read, and none beyond the largest."""
    assert marked == rings(most, log)


def labels(axes: Axes) -> tuple[str, str]:
    """Return what stands above a turn and below it."""
    return axes.get_title(), axes.get_xlabel()


def test_all_turns_share_the_radial_axis() -> None:
    """Straight while they are alike, by the logarithm where one is many times the other."""
    even, burst = Turn("even", 1, 0, (40,) * TURN_MS), Turn("burst", 1, 1000, (0, 2000))
    alike = draw_turns([even, replace(even, packets=(80, 20))])
    assert [84.0, 84.0] == [axes.get_ylim()[1] for axes in alike.axes]
    apart = draw_turns([even, burst])
    largest = 1.05 * radius(2000, True)
    assert [largest, largest] == [axes.get_ylim()[1] for axes in apart.axes]
    assert ("even #1, from the start", "40 – 40 – 40 per ms") == labels(apart.axes[0])
    assert ("burst #1, from 1 s", "0 – 1000 – 2000 per ms") == labels(apart.axes[1])
