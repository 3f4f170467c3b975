"""Medians of a point's valid trials, and their intervals."""

from __future__ import annotations

import pytest
from scipy.stats import binom

from analysis import build
from udpbench.analysis import points as module
from udpbench.analysis.judge import judge
from udpbench.analysis.points import estimate, interval, points
from udpbench.model.result import Estimate, Result


def results(*received: int, sent: int = 1000) -> list[Result]:
    """Return one result per repetition; what is not received is lost at the socket."""
    judged = []
    for repetition, count in enumerate(received, 1):
        moves = {"right": {"snmp.Udp.RcvbufErrors": sent - count, "socket.77.drops": sent - count}}
        of = build.trial(repetition=repetition)
        judged.append(judge(build.lossy(sent, moves, sent - count, of=of)))
    return judged


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


def test_the_ranks_are_scipys() -> None:
    """The quantile of the binomial distribution, also for more values than a float has powers."""
    numbers = [*range(6, 200), 999, 2000]
    ranks = [int(interval(list(range(1, n + 1)))[0] or 0) for n in numbers]
    assert [int(binom.ppf(0.025, n, 0.5)) for n in numbers] == ranks


def test_many_trials_have_the_same_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In floating point as in integers, where a million trials would take weeks."""
    numbers = [*range(60, 400), 999, 1000, 2000]
    monkeypatch.setattr(module, "LARGEST_N_IN_INTEGERS", 2000)
    exact = [interval(list(range(n))) for n in numbers]
    monkeypatch.setattr(module, "LARGEST_N_IN_INTEGERS", 59)
    assert exact == [interval(list(range(n))) for n in numbers]
    assert (523283, 525292) == interval(range(2**20))


def test_a_point_has_the_median_of_its_trials() -> None:
    """With three trials the interval is smallest to largest."""
    (point,) = points(results(900, 700, 800))
    assert Estimate(800.0, 700.0, 900.0, 3, "pps") == estimate(point, "delivered_pps")
    assert Estimate(200, 100, 300, 3, "packets") == estimate(point, "udp_rcvbuf")


def test_an_invalid_trial_is_counted_and_not_averaged() -> None:
    """It stays in the point and out of the median."""
    judged = [*results(900, 800), judge(build.record(1000, 10, of=build.trial(repetition=3)))]
    (point,) = points(judged)
    assert (3, 3, 2) == (len(point.results), len(point.done), len(point.valid))
    received = estimate(point, "received_packets")
    assert received is not None
    assert (850, 2) == (received.median, received.n)


def test_a_point_without_a_valid_trial_has_no_estimate() -> None:
    """None, not 0."""
    (point,) = points([judge(build.failed())])
    assert estimate(point, "delivered_pps") is None
    assert not point.skipped
