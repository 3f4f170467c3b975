"""Expectations: yes, no, cannot tell, or skipped."""

from __future__ import annotations

from typing import Any

import pytest

from analysis import build
from udpbench.analysis.expect import Verdict, evaluate
from udpbench.analysis.judge import judge
from udpbench.model import Result, Side

POINTS = (build.trial("one"), build.trial("two"))


def result(point: str, received: int, repetition: int = 1, **changes: Any) -> Result:
    """Return a trial of 1000 packets that lost the others at the socket, and is valid."""
    lost = 1000 - received
    moves = {"right": {"snmp.Udp.RcvbufErrors": lost, "socket.77.drops": lost}}
    of = build.trial(point, repetition)
    return judge(build.lossy(1000, moves, lost, of=of, **changes))


def invalid(point: str, received: int, repetition: int = 1) -> Result:
    """Return a trial whose ledger does not close."""
    return judge(build.record(1000, received, of=build.trial(point, repetition)))


def skipped(point: str) -> Result:
    """Return a trial that this host cannot run."""
    return judge(build.failed("skipped", "needs 8 CPUs", of=build.trial(point)))


def failed(point: str) -> Result:
    """Return a trial that ran and failed."""
    return judge(build.failed(of=build.trial(point)))


TWO = [result("one", 500), result("one", 600, 2), result("two", 900), result("two", 700, 2)]

MERGED = [judge(build.merged("one"))]
"""Lost 120 to 150 packets at a port that nobody had."""
AT_ONCE = [result("one", 500), result("one", 0, 2)]
"""Both are valid, and one of them has no delivered rate."""
CABLED = [
    judge(build.record(of=build.trial(point), built_in_lab=False)) for point in ("one", "two")
]
"""Hosts of their own, between which nobody counts."""


@pytest.mark.parametrize(
    ("results", "text", "answer", "measured"),
    [
        (TWO, "delivered_pps[two] > delivered_pps[one]", "yes", "800 is > 550"),
        (TWO, "delivered_pps[one] >= delivered_pps[two]", "no", "550 is not >= 800"),
        (TWO, "unaccounted == 0", "yes", "one: 0 is == 0; two: 0 is == 0"),
        (TWO, "udp_rcvbuf > 0", "yes", "one: 500 is > 0; two: 100 is > 0"),
        # A count must hold in every trial, not just in the median one.
        (TWO, "lost_packets[two] < 300", "no", "300 is not < 300"),
        (TWO, "lost_packets[two] < lost_packets[one]", "yes", "100 is < 500"),
        (TWO, "received_packets < sent_packets", "yes", "one: 500 is < 1 000; two: 900 is < 1 000"),
        (TWO, "delivered_pps[one] != 550", "no", "550 is not != 550"),
        (TWO, "loss_ratio[one] <= 0.45", "yes", "0.45 is <= 0.45"),
        # Counts hold or fail in invalid trials, too.
        ([invalid("one", 999), result("two", 1)], "unaccounted == 0", "no", ("one: 1 is not == 0; "
         "two: 0 is == 0")),
        # Medians know valid trials alone.
        ([invalid("one", 999), result("two", 1)], "delivered_pps[one] > 0", "cannot tell",
         "nothing to compare"),
        ([result("one", 1000), failed("two")], "delivered_pps > 0", "cannot tell",
         "one: 1 000 is > 0; two: nothing to compare"),
        ([result("one", 1000), failed("two")], "unaccounted == 0", "cannot tell",
         "one: 0 is == 0; two: nothing to compare"),
        # A point that this host cannot try is left out; all of them, and so is the expectation.
        ([result("one", 1000), skipped("two")], "delivered_pps > 0", "yes", "one: 1 000 is > 0"),
        ([result("one", 1000), skipped("two")], "delivered_pps[two] > delivered_pps[one]",
         "skipped", "skipped"),
        ([skipped("one"), skipped("two")], "unaccounted == 0", "skipped", "skipped"),
        # What lies between two numbers is a yes or a no where all numbers between them agree.
        (MERGED, "udp_no_port[one] < 151", "yes", "120 to 150 is < 151"),
        (MERGED, "udp_no_port[one] > 150", "no", "120 to 150 is not > 150"),
        (MERGED, "udp_no_port[one] <= 149", "cannot tell", "120 to 150 may or may not be <= 149"),
        (MERGED, "udp_no_port[one] == 130", "cannot tell", "120 to 150 may or may not be == 130"),
        (MERGED, "udp_no_port[one] != 130", "cannot tell", "120 to 150 may or may not be != 130"),
        (MERGED, "udp_no_port[one] == 160", "no", "120 to 150 is not == 160"),
        (MERGED, "udp_no_port[one] != 160", "yes", "120 to 150 is != 160"),
        (MERGED, "udp_no_port[one] > 0.5", "yes", "120 to 150 is > 0.5"),
        (MERGED, "udp_no_port[one] > loss_ratio[one]", "cannot tell", "nothing to compare"),
        # A median of those trials alone that have such a number would be of the better ones.
        (AT_ONCE, "delivered_pps[one] > 400", "cannot tell", "nothing to compare"),
        (AT_ONCE, "received_packets[one] < 600", "yes", "500 is < 600"),
        # A stage that cannot be observed, and a run that was killed before a point.
        (CABLED, "link == 0", "cannot tell", "one: nothing to compare; two: nothing to compare"),
        (TWO[:2], "unaccounted == 0", "cannot tell", "one: 0 is == 0; two: nothing to compare"),
        ([], "unaccounted == 0", "cannot tell", "one: nothing to compare; two: nothing to compare"),
    ],
)  # fmt: skip
def test_an_expectation_is_answered(
    results: list[Result], text: str, answer: str, measured: str
) -> None:
    """The verdict holds what was expected, the answer and the numbers behind it."""
    left, op, right = text.split(" ")
    experiment = build.experiment(build.expectation(left, op, right), points=POINTS)
    assert (Verdict(text, answer, measured),) == evaluate(experiment, results)  # type: ignore[arg-type]


def test_a_factor_multiplies_its_metric() -> None:
    """``2 * delivered_pps[one]`` is 1100 here."""
    expectation = build.Expectation(
        "delivered_pps[two] < 2 * delivered_pps[one]",
        Side(1.0, "delivered_pps", "two"),
        "<",
        Side(2.0, "delivered_pps", "one"),
    )
    (verdict,) = evaluate(build.experiment(expectation, points=POINTS), TWO)
    assert ("yes", "800 is < 1 100") == (verdict.answer, verdict.measured)


def test_two_numbers_are_compared_as_they_are() -> None:
    """A pointless expectation has an answer all the same."""
    (verdict,) = evaluate(build.experiment(build.expectation("1", "<", "2"), points=POINTS), TWO)
    assert "yes" == verdict.answer


def test_results_of_another_experiment_are_not_asked() -> None:
    """Points are looked up by experiment."""
    other = build.experiment(build.expectation("unaccounted", "==", "0"), name="other")
    (verdict,) = evaluate(other, TWO)
    assert "cannot tell" == verdict.answer


def test_an_experiment_of_one_point_names_none() -> None:
    """Its measured text is the number alone."""
    experiment = build.experiment(build.expectation("unaccounted", "==", "0"))
    (verdict,) = evaluate(experiment, [judge(build.record())])
    assert Verdict("unaccounted == 0", "yes", "0 is == 0") == verdict
