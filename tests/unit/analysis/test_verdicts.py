"""Expectations: yes, no, cannot tell, or skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import build
from udpbench.analysis import verdicts
from udpbench.analysis.comparison.blocks import judge_claims
from udpbench.analysis.comparison.comparisons import compare_points
from udpbench.analysis.judge import judge
from udpbench.analysis.verdicts import Verdict, evaluate
from udpbench.model.experiment import Expectation, PointPair, Side
from udpbench.model.record import Finding
from udpbench.model.result import Result

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
AT_ONCE = [result("one", 500), result("one", 1, 2)]
"""Both are valid, and one of them has no delivered rate."""
HALF = [result("one", 500), result("one", 0, 2)]
NONE = [result("one", 0), result("one", 0, 2), result("two", 900), result("two", 900, 2)]
"""Nothing arrived in one trial, or in any of one point."""
SHARED = (Finding("struck", "shared", "CPU 0"),)
STRUCK = [result("one", 500, findings=SHARED), result("one", 600, 2, findings=SHARED)]
ONE_STRUCK = [result("one", 500), result("one", 600, 2, findings=SHARED)]
"""Rates of all, or of one of them, are left out; counts and loss hold in each."""
CLOSED = {"right": {"snmp.Udp.NoPorts": 7}}
CABLED = [
    judge(build.lossy(1000, CLOSED, lost, of=build.trial(point), built_in_lab=False))
    for point, lost in (("one", 0), ("two", 7))
]
"""Hosts of their own, between which nobody counts; seven packets ended there or at no port."""


@pytest.mark.parametrize(
    ("results", "text", "answer", "measured"),
    [
        (TWO, "unaccounted == 0", "yes", "one, two: 0 is == 0"),
        (TWO, "udp_rcvbuf > 0", "yes", "one: 500 is > 0; two: 100 is > 0"),
        (STRUCK, "delivered_pps[one] > 1", "cannot tell", "not counted (struck out): shared"),
        (STRUCK, "loss_ratio[one] < 0.46", "yes", "45.00 % is < 46.00 %"),
        # What differs is not rounded into agreement.
        (STRUCK, "loss_ratio[one] < 0.45001", "yes", "45 % is < 45.001 %"),
        (ONE_STRUCK, "delivered_pps[one] < 500.0001", "yes", "500 is < 500.0001"),
        (STRUCK, "received_packets[one] >= 500", "yes", "500 is >= 500"),
        (ONE_STRUCK, "delivered_pps[one] > 1", "yes", "500 is > 1"),
        (ONE_STRUCK, "loss_ratio[one] < 0.46", "yes", "45.00 % is < 46.00 %"),
        # A count must hold in every trial, not just in the median one.
        (TWO, "lost_packets[two] < 300", "no", "300 is not < 300, in #2 of 2 trials"),
        (TWO, "lost_packets[two] == 0", "no", "300 is not == 0, in #2 of 2 trials"),
        # Of two points each trial is compared with each, and a pair is told that can be found.
        (TWO, "lost_packets[two] < lost_packets[one]", "yes",
         "300 [two #2] is < 400 [one #2]; of 4 pairs, each trial with each"),
        ([*TWO[:3], result("two", 550, 2)], "lost_packets[two] < lost_packets[one]", "no",
         "450 [two #2] is not < 400 [one #2]; of 4 pairs, each trial with each"),
        (TWO[:3], "lost_packets[two] > lost_packets[one]", "no",
         "100 [two #1] is not > 500 [one #1]; of 2 pairs, each trial with each"),
        (TWO[1:3], "lost_packets[two] > lost_packets[one]", "no",
         "100 [two #1] is not > 400 [one #2]"),
        (TWO, "received_packets < sent_packets", "yes", "one: 500 is < 1 000; two: 900 is < 1 000"),
        (TWO, "delivered_pps[one] != 550", "no", "550 is not != 550"),
        (TWO, "loss_ratio[one] <= 0.45", "yes", "45.00 % is <= 45.00 %"),
        # Counts hold or fail in invalid trials, too.
        ([invalid("one", 999), result("two", 1)], "unaccounted == 0", "no", ("one: 1 is not == 0; "
         "two: 0 is == 0")),
        # Medians know valid trials alone.
        ([invalid("one", 999), result("two", 1)], "delivered_pps[one] > 0", "cannot tell",
         "no valid trial"),
        ([result("one", 1000), failed("two")], "delivered_pps > 0", "cannot tell",
         "one: 1 000 is > 0; two: no valid trial"),
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
        # Where nothing arrived the rate is 0, in one trial or in all.
        (HALF, "delivered_pps[one] > 400", "no", "250 is not > 400"),
        (NONE, "delivered_pps[one] == 0", "yes", "0 is == 0"),
        (NONE, "delivered_mib_s[one] > 0.1", "no", "0 is not > 0.1"),
        (NONE, "delivered_pps[two] > delivered_pps[one]", "yes", "900 is > 0"),
        (NONE, "delivered_pps[one] >= delivered_pps[two]", "no", "0 is not >= 900"),
        (HALF, "received_packets[one] < 600", "yes", "500 is < 600"),
        # A stage that cannot be observed, and a run that was killed before a point.
        (CABLED, "link == 0", "cannot tell", "one: 0 is == 0; two: 0 to 7 may or may not be == 0"),
        (CABLED, "link[one] == 0", "yes", "0 is == 0"),
        (TWO[:2], "unaccounted == 0", "cannot tell", "one: 0 is == 0; two: nothing to compare"),
        ([], "unaccounted == 0", "cannot tell", "one, two: nothing to compare"),
    ],
)  # fmt: skip
def test_an_expectation_is_answered(
    results: list[Result], text: str, answer: str, measured: str
) -> None:
    """The verdict holds what was expected, the answer and the numbers behind it."""
    left, op, right = text.split(" ")
    experiment = build.experiment(build.expectation(left, op, right), points=POINTS)
    (verdict,) = evaluate(experiment, results)
    assert Verdict(text, answer, measured) == replace(verdict, missed=frozenset())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        ("lost_packets[two] == 0", {"two #2"}),
        ("lost_packets < 200", {"one #1", "two #2"}),
        ("lost_packets[two] > lost_packets[one]", {"two #1", "one #1"}),
        ("lost_packets[two] < 1000", set()),
        ("loss_ratio[two] < 0.0001", set()),
    ],
)
def test_trials_by_which_counts_do_not_hold_are_named(text: str, missed: set[str]) -> None:
    """Those whose numbers are shown; a median is of no single trial."""
    expected = build.expectation(*text.split(" "))
    (verdict,) = evaluate(build.experiment(expected, points=POINTS), TWO)
    assert missed == verdict.missed


def blocks(first: Sequence[int], second: Sequence[int]) -> list[Result]:
    """Return a trial of each point in each block, by what was received."""
    return [
        result(point, received, n)
        for point, values in (("one", first), ("two", second))
        for n, received in enumerate(values, 1)
    ]


SEVEN = range(500, 507)
APART = blocks(SEVEN, [received + 100 for received in SEVEN])
NOISE = blocks(SEVEN, [600, 400, 650, 380, 505, 620, 390])
SAME = blocks(SEVEN, SEVEN)
"""What is equal may differ by what comes at once, a packet of each."""
ALIKE = [
    judge(build.record(pps, of=build.paced(1000, point=point, repetition=n)))
    for point, pps in (("one", 1000), ("two", 996))
    for n in range(1, 8)
]
"""All that a rate offers arrived, though rates by their stamps differ."""
ONE_INVALID = [*APART, invalid("one", 999, 8), result("two", 400, 8)]
THIRD_INVALID = [*APART[:4], *APART[7:], *(invalid("one", 999, n) for n in (5, 6, 7))]


@pytest.mark.parametrize(
    ("results", "op", "factor", "answer"),
    [
        (APART, ">", 1.0, "yes"),
        (APART, "<=", 1.0, "no"),
        (APART, ">", 1.1, "yes"),
        (APART, ">", 1.3, "no"),
        (NOISE, ">", 1.0, "cannot tell"),
        (NOISE, "<", 2.0, "yes"),
        (SAME, ">=", 1.0, "cannot tell"),
        (SAME, ">=", 0.99, "yes"),
        (ALIKE, ">=", 1.0, "yes"),
        (ALIKE, ">", 1.0, "no"),
        (APART[:5] + APART[7:12], ">", 1.0, "cannot tell"),
        (APART[:6] + APART[7:13], ">", 1.0, "yes"),
        (ONE_INVALID, ">", 1.0, "yes"),
        (THIRD_INVALID, ">", 1.0, "cannot tell"),
        ([], ">", 1.0, "cannot tell"),
        ([*APART, result("one", 0, 8), result("two", 5, 8)], ">", 1.0, "cannot tell"),
    ],
)
def test_two_points_are_compared_by_their_blocks(
    results: list[Result], op: Any, factor: float, answer: str, golden: Any
) -> None:
    """Yes or no only if the interval says so; the medians are shown beside it."""
    left, right = Side(1.0, "delivered_pps", "two"), Side(factor, "delivered_pps", "one")
    expectation = build.Expectation("x", left, op, right)
    (verdict,) = evaluate(build.experiment(expectation, points=POINTS), results)
    assert answer == verdict.answer
    golden.check(verdict.measured)


def test_losses_of_two_points_are_compared_by_their_difference(golden: Any) -> None:
    """10 points more of it, though one of them may be 0."""
    results = blocks([1000] * 7, [900] * 6 + [890])
    of = build.expectation("loss_ratio[one]", "<", "loss_ratio[two]")
    (verdict,) = evaluate(build.experiment(of, points=POINTS), results)
    assert "yes" == verdict.answer
    golden.check(verdict.measured)


COUNTS = st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 4), st.integers(0, 2))), max_size=5)


@given(COUNTS, COUNTS, st.sampled_from([1.0, 0.5, -1.0]))
@pytest.mark.parametrize("op", verdicts.OPERATORS)
def test_few_pairs_decide_as_all_of_them(
    op: Any, left: list[tuple[int, int] | None], right: list[tuple[int, int] | None], factor: float
) -> None:
    """Counts, exact or within bounds, or unknown: each with each, 600 of each side took minutes."""
    spans = [
        tuple(None if each is None else (float(each[0]), float(sum(each))) for each in side)
        for side in (left, right)
    ]
    a, b = (verdicts._Counts(side, ("",) * len(side)) for side in spans)
    expected = Expectation("x", Side(factor, "link", "one"), op, Side(1.0, "link", "two"))
    plain = verdicts._Comparison("", (), skipped=False)
    few = verdicts._each_with_each(expected, (a, b), plain)
    scaled = [verdicts._scaled(expected.left, span) for span in spans[0]]
    every = replace(plain, pairs=tuple(product(scaled, spans[1])))
    assert verdicts._answer(expected, every) == verdicts._answer(expected, few)
    assert len(few.pairs) <= 7
    texts = [verdicts._text(each, op) for each in (every, few)]
    for word in (" is not ", " may or may not be ", "nothing"):
        assert (word in texts[0]) == (word in texts[1])


def test_what_is_said_of_many_points_is_said_once() -> None:
    """As of fifteen whose rates are struck out for one reason; the first points are named."""
    names = [f"p{number}" for number in range(15)]
    struck = [result(name, 500, findings=SHARED) for name in names[:14]]
    of = build.experiment(
        build.expectation("delivered_pps", ">", "1"), points=[build.trial(name) for name in names]
    )
    (verdict,) = evaluate(of, [*struck, result("p14", 500)])
    assert (
        "p0, p1, p2 and 11 more: not counted (struck out): shared; p14: 500 is > 1"
        == verdict.measured
    )


def test_expectations_and_comparisons_are_one_family() -> None:
    """What an expectation of two points says, their comparison says, in the same interval."""
    pair = PointPair("one", "two", "delivered_pps", 0.03)
    of = build.expectation("delivered_pps[two]", ">", "delivered_pps[one]")
    experiment = build.experiment(of, points=POINTS, compare=(pair,))
    (verdict,) = evaluate(experiment, APART)
    (comparison,) = compare_points(experiment, APART)
    assert ("yes", "faster") == (verdict.answer, comparison.verdict)
    assert 2 == len(judge_claims(experiment, APART))
    (early,) = evaluate(experiment, APART[:6] + APART[7:13])
    assert "cannot tell" == early.answer


def test_an_expectation_at_every_point_is_compared_with_each_other() -> None:
    """A point is not compared with itself by blocks."""
    of = build.expectation("delivered_pps", ">=", "delivered_pps[one]")
    (verdict,) = evaluate(build.experiment(of, points=POINTS), APART)
    assert "yes" == verdict.answer
    assert 1 == len(judge_claims(build.experiment(of, points=POINTS), APART))


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
