"""Points: which trials they have, and the numbers of each."""

from __future__ import annotations

from analysis import build
from analysis.test_medians import results
from udpbench.analysis.judge import judge
from udpbench.analysis.points import metric, points
from udpbench.model.record import TrialRecord


def test_repetitions_stand_in_order_whatever_order_they_ran_in() -> None:
    """The schedule is random within a block; the table is not."""
    judged = results(900, 800, 700)
    (point,) = points([judged[2], judged[0], judged[1]])
    assert [1, 2, 3] == [result.trial.repetition for result in point.results]


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
    judged = [judge(record_of(name)) for name in ("b", "a", "b")]
    assert [("b", 2), ("a", 1)] == [(point.name, len(point.results)) for point in points(judged)]
