"""Points: medians and intervals over valid trials."""

from __future__ import annotations

import pytest

from analysis import build
from udpbench.analysis.judge import judge
from udpbench.analysis.points import estimate, interval, metric, points
from udpbench.model import Estimate, Result, TrialRecord


def results(*received: int, sent: int = 1000) -> list[Result]:
    """Return one result per repetition; what is not received is lost at the socket."""
    made = []
    for repetition, got in enumerate(received, 1):
        moves = {"right": {"snmp.Udp.RcvbufErrors": sent - got, "socket.77.drops": sent - got}}
        of = build.trial(repetition=repetition)
        made.append(judge(build.lossy(sent, moves, sent - got, of=of)))
    return made


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, (None, None)),
        (2, (None, None)),
        (3, (1, 3)),
        (5, (1, 5)),
        (6, (1, 6)),
        (7, (1, 7)),
        (8, (1, 8)),
        (9, (2, 8)),
        (20, (6, 15)),
    ],
)
def test_the_interval_is_between_order_statistics(
    n: int, expected: tuple[float | None, float | None]
) -> None:
    """The published ranks of the 95 % interval of a median; none below three values."""
    assert expected == interval(list(range(1, n + 1)))


def test_a_point_has_the_median_of_its_trials() -> None:
    """With three trials the interval is smallest to largest."""
    (point,) = points(results(900, 700, 800))
    assert Estimate(800.0, 700.0, 900.0, 3, "pps") == estimate(point, "delivered_pps")
    assert Estimate(200, 100, 300, 3, "packets") == estimate(point, "udp_rcvbuf")


def test_an_invalid_trial_is_counted_and_not_averaged() -> None:
    """It stays in the point and out of the median."""
    made = [*results(900, 800), judge(build.record(1000, 10, of=build.trial(repetition=3)))]
    (point,) = points(made)
    assert (3, 3, 2) == (len(point.results), len(point.done), len(point.valid))
    found = estimate(point, "received_packets")
    assert found is not None
    assert (850, 2) == (found.median, found.n)


def test_repetitions_stand_in_order_whatever_order_they_ran_in() -> None:
    """The schedule is random within a block; the table is not."""
    made = results(900, 800, 700)
    (point,) = points([made[2], made[0], made[1]])
    assert [1, 2, 3] == [result.trial.repetition for result in point.results]


def test_a_point_without_a_valid_trial_has_no_estimate() -> None:
    """None, not 0."""
    (point,) = points([judge(build.failed())])
    assert estimate(point, "delivered_pps") is None
    assert not point.skipped


def test_an_unknown_metric_and_a_missing_one_are_none() -> None:
    """What nobody counts has nothing to report."""
    result = judge(build.record())
    assert metric(result, "no_such_stage") is None
    assert metric(result, "skbs_per_packet") is None
    assert metric(judge(build.failed()), "udp_rcvbuf") is None


def record_of(point: str) -> TrialRecord:
    """Return a record of a named point."""
    return build.record(of=build.trial(point))


def test_points_stand_in_the_order_in_which_they_appear() -> None:
    """By experiment and name."""
    made = [judge(record_of(name)) for name in ("b", "a", "b")]
    assert [("b", 2), ("a", 1)] == [(point.name, len(point.results)) for point in points(made)]
