"""Comparisons: what counts as a block, the verdict and its words, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis import build
from udpbench.analysis.comparison import blocks
from udpbench.analysis.comparison.comparisons import (
    TOO_NOISY,
    Comparison,
    block_ns,
    compare_all_unpaired,
    compare_points,
    compare_unpaired,
    more_text,
    wants_block,
)
from udpbench.metrics import METRICS, margin_of, words_of
from udpbench.model.experiment import LOOKS, Experiment, PointPair
from udpbench.model.limits import DAY_NS, LEDGER_STAGES, SECOND_NS
from udpbench.model.record import Finding
from udpbench.model.result import Ledger, LedgerEntry, Result

SHARED = (Finding("struck", "shared", "CPU 0"),)
SEVEN = (1.05, 1.06, 1.07, 1.04, 1.08, 1.03, 1.06)
EQUAL = (1.001, 0.998, 1.003, 0.999, 1.002, 1.0, 1.001)
WIDE = (1.1, 0.8, 1.3, 0.9, 1.2, 0.7, 1.15)


def result(point: str, repetition: int, value: float | None, **changes: Any) -> Result:
    """Return a trial with a delivered rate, or with other numbers."""
    numbers = changes.pop("numbers", {"delivered_pps": value})
    plain = Result(build.trial(point, repetition), "done", True, (), numbers=numbers)
    return replace(plain, **changes)


def paired(ratios: Sequence[float], a: str = "a", b: str = "b") -> list[Result]:
    """Return a block for each ratio, under a drift that falls on both points."""
    bases = [1000.0 * (1 + n / 10) for n in range(len(ratios))]
    trials = zip(bases, ratios, strict=True)
    return [
        each
        for n, (base, ratio) in enumerate(trials, 1)
        for each in (result(a, n, base), result(b, n, base * ratio))
    ]


def comparing(
    *pairs: tuple[str, str], metric: str = "delivered_pps", blocks: tuple[int, ...] = LOOKS
) -> Experiment:
    """Return an experiment that compares pairs of points at the metric's own margin."""
    names = dict.fromkeys(name for pair in pairs for name in pair)
    compared = [PointPair(a, b, metric, margin_of(metric), blocks) for a, b in pairs]
    plain = build.experiment(points=tuple(build.trial(name) for name in names))
    return replace(plain, compare=tuple(compared))


AB = comparing(("a", "b"))


def compared(results: Sequence[Result], experiment: Experiment = AB) -> Comparison:
    """Return the first comparison of an experiment."""
    return compare_points(experiment, results)[0]


@pytest.mark.parametrize(
    ("ratios", "verdict", "worse"),
    [
        (SEVEN, "faster", False),
        ([1 / ratio for ratio in SEVEN], "slower", True),
        (EQUAL, "same", False),
        (WIDE, "cannot tell", False),
        (SEVEN[:6], "cannot tell", False),
    ],
)
def test_a_comparison_has_a_verdict(ratios: Sequence[float], verdict: str, worse: bool) -> None:
    """The words are those of a rate, and less of it is worse; before a look nobody can tell."""
    comparison = compared(paired(ratios))
    assert (verdict, worse, len(ratios)) == (
        comparison.verdict,
        comparison.worse,
        comparison.blocks,
    )


def test_the_numbers_of_a_comparison_are_ratios() -> None:
    """Estimate, interval and blocks are b / a, in the order of the run."""
    comparison = compared(paired(SEVEN))
    assert comparison.ratio == pytest.approx(1.055, abs=0.002)
    assert (comparison.low, comparison.high) == pytest.approx((1.03, 1.08))
    assert SEVEN == pytest.approx([ratio for _, ratio in comparison.effects])
    assert list(range(1, 8)) == [repetition for repetition, _ in comparison.effects]


def test_verdicts_in_words(golden: Any) -> None:
    """Sizes never have a sign; what cannot be told has its width, and what would be needed."""
    lossy = comparing(("a", "b"), metric="loss_ratio")
    delays = comparing(("a", "b"), metric="delay_p99_ns")
    texts = [
        compared(paired(SEVEN)).text,
        compared(paired([1 / ratio for ratio in SEVEN])).text,
        compared(paired([20.0 * ratio for ratio in SEVEN])).text,
        compared(paired([1 + ratio / 1000 for ratio in SEVEN])).text,
        compared(paired(WIDE)).text,
        compared(paired(SEVEN[:5])).text,
        compared(paired([1.0] * 7), lossy).text,
        compared(shares((0.02, 0.03, 0.025, 0.04, 0.02, 0.03, 0.021)), lossy).text,
        compared(shares([0.0] * 7), lossy).text,
        compared([replace(r, numbers={"delay_p99_ns": r.delivered_pps}) for r in paired(SEVEN)],
                 delays).text,
        compared([result("a", 1, 1.0), result("b", 1, 0.0)]).text,
        compared([]).text,
        compared([result(p, 1, 1.0, status="skipped") for p in "ab"]).text,
        compare_unpaired([side("a", WIDE)], [side("b", WIDE[::-1])], "delivered_pps", 0.03).text,
    ]  # fmt: skip
    golden.check(texts)


def test_an_interval_that_leans_to_one_direction_is_shown_with_both_ends() -> None:
    """Never worse in any block: half its width would hide that."""
    known = Comparison("a", "b", "loss_ratio", 0.001, "cannot tell", low=-0.064, high=0.0)
    assert "cannot tell: [−6.4 – 0.0] percentage points" == known.text
    assert "cannot tell: ±5.2 percentage points" == replace(known, high=0.04).text


def test_more_blocks_than_anybody_runs_are_no_advice() -> None:
    """Beyond a hundred, or a day, it says what else would help."""
    assert "about 100 more blocks (24h)" == more_text(100, DAY_NS)
    assert "about 1 more trial of each side" == more_text(1, None, "trial")
    assert [TOO_NOISY] * 3 == [more_text(101, 1), more_text(2, DAY_NS + 1), more_text(101, None)]
    assert "" == more_text(None, None)


def shares(losses: Sequence[float]) -> list[Result]:
    """Return blocks in which a loses nothing and b these shares."""
    return [
        each
        for n, loss in enumerate(losses, 1)
        for each in (
            result("a", n, None, numbers={"loss_ratio": 0.0}),
            result("b", n, None, numbers={"loss_ratio": loss}),
        )
    ]


def side(point: str, values: Sequence[float]) -> list[Result]:
    """Return the trials of one point."""
    return [result(point, n, value) for n, value in enumerate(values, 1)]


def test_how_long_more_blocks_take_is_what_their_trials_took() -> None:
    """Not what they may take at most: a burst has ended long before."""
    planned_ns = block_ns(comparing(("a", "b")))
    took = [result("a", n, 1.0, took_ns=n * SECOND_NS) for n in (1, 3)]
    known_ns = block_ns(comparing(("a", "b")), [*took, result("b", 1, 1.0)])
    assert 2 * SECOND_NS + planned_ns // 2 == known_ns


def test_an_invalid_trial_counts_nowhere() -> None:
    """Its block is lost, and so is that of a failed trial, or of one whose rates are struck out."""
    spoilt = paired([*SEVEN, 5.0, 5.0, 5.0])
    spoilt[15] = replace(spoilt[15], valid=False)
    spoilt[17] = replace(spoilt[17], status="failed", valid=False)
    spoilt[19] = replace(spoilt[19], findings=SHARED)
    comparison = compared(spoilt)
    assert (7, 3, "faster") == (comparison.blocks, comparison.lost, comparison.verdict)


def test_more_than_a_third_invalid_tells_nothing() -> None:
    """Four of eleven blocks are more than a third."""
    spoilt = [
        replace(each, valid=each.trial.repetition > 4) for each in paired([1.0] * 4 + [*SEVEN])
    ]
    comparison = compared(spoilt)
    assert ("cannot tell", 7, 4) == (comparison.verdict, comparison.blocks, comparison.lost)
    assert comparison.why


def test_more_blocks_than_can_be_tested_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header may declare, and a folder hold, thousands of repetitions."""
    many = compared(paired(SEVEN * 29))
    assert ("cannot tell", 203) == (many.verdict, many.blocks)
    assert many.why.startswith("203 blocks are too many: at most 200, ")
    assert "cannot compare" == compared(paired(SEVEN * 58)).verdict
    monkeypatch.setattr(blocks, "BLOCK_PAIRS_MAX", 49)
    two = comparing(("a", "b"), ("b", "a"))
    assert ["faster", "cannot tell"] == [
        each.verdict for each in compare_points(two, paired(SEVEN))
    ]


@pytest.mark.parametrize("value", [0.0, None])
def test_zero_and_missing_have_no_ratio(value: float | None) -> None:
    """One such block is enough: the others would be those that went well."""
    results = [*paired(SEVEN), result("a", 8, 1000.0), result("b", 8, value)]
    comparison = compared(results)
    assert ("cannot compare", None) == (comparison.verdict, comparison.ratio)


def test_a_block_needs_both_of_its_trials() -> None:
    """A trial that is not there yet is no invalid block."""
    comparison = compared([*paired(SEVEN), result("a", 8, 1000.0)])
    assert (7, 0) == (comparison.blocks, comparison.lost)


def test_losses_are_compared_by_their_difference() -> None:
    """Without any loss both are the same; more of it is worse."""
    lossy = comparing(("a", "b"), metric="loss_ratio")
    more = compared(shares([0.02, 0.03, 0.025, 0.04, 0.02, 0.03, 0.021]), lossy)
    assert ("more", True, None) == (more.verdict, more.worse, more.ratio)
    assert more.difference == pytest.approx(0.025, abs=0.005)
    none = compared(shares([0.0] * 7), lossy)
    assert ("same", 0.0, 0.0) == (none.verdict, none.low, none.high)


def test_a_stage_is_a_share_of_what_was_sent() -> None:
    """20 of 1000 packets are 2 %; what is only known to lie between two numbers is missing."""
    experiment = comparing(("a", "b"), metric="udp_rcvbuf")

    def at_stage(point: str, n: int, packets: int, at_most: int | None = None) -> Result:
        entry = LedgerEntry("udp_rcvbuf", packets, "", at_most)
        numbers = {"sent_packets": 1000.0}
        return result(point, n, None, numbers=numbers, ledger=Ledger(1000, 0, (entry,), 0))

    blocks = [each for n in range(1, 8) for each in (at_stage("a", n, 0), at_stage("b", n, 20 + n))]
    comparison = compared(blocks, experiment)
    assert ("more", 0.024) == (comparison.verdict, comparison.difference)
    unknown = compared([at_stage("a", 1, 0), at_stage("b", 1, 20, 30)], experiment)
    assert "cannot compare" == unknown.verdict


def test_several_comparisons_share_one_chance_of_a_false_alarm() -> None:
    """Seven blocks on one side decide alone, and not beside seven pairs that show nothing."""
    pairs = [("a", "b"), *((f"c{n}", f"d{n}") for n in range(7))]
    results = paired(SEVEN) + [each for a, b in pairs[1:] for each in paired(WIDE, a, b)]
    alone, *_ = compare_points(AB, results)
    first, *others = compare_points(comparing(*pairs), results)
    assert ("faster", "cannot tell") == (alone.verdict, first.verdict)
    assert {"cannot tell"} == {other.verdict for other in others}
    assert first.blocks_more is not None


@pytest.mark.parametrize(
    ("ratios", "lost", "expected"),
    [
        (SEVEN[:6], 0, True),
        (SEVEN, 0, False),
        (WIDE, 0, True),
        (WIDE + WIDE[:4], 0, True),
        (WIDE + WIDE, 0, True),
        ((*WIDE, *WIDE, 0.9), 0, False),
        ((*WIDE, *WIDE), 1, True),
        ((*WIDE, *WIDE, 0.9), 1, False),
        (WIDE[:6], 2, True),
        (SEVEN, 2, False),
        ((*WIDE, *WIDE), 6, False),
        (WIDE, 6, True),
        (WIDE, 7, False),
    ],
)
def test_the_run_stops_at_the_look_that_decides(
    ratios: Sequence[float], lost: int, expected: bool
) -> None:
    """At 7, 11 and 15 blocks, and as many more as count nowhere, but 5."""
    results = [
        replace(each, valid=each.trial.repetition > lost)
        for each in paired([1.0] * lost + [*ratios])
    ]
    assert expected == wants_block(AB, results, lost + len(ratios))


def test_where_a_result_is_missing_no_look_is_taken() -> None:
    """Nobody knows yet whether an eighth block is wanted."""
    assert not wants_block(AB, paired(WIDE)[:-1], 7)
    assert wants_block(AB, paired(WIDE)[:-1], 6)


def test_what_cannot_be_compared_wants_no_block_after_the_first_look() -> None:
    """More blocks would not make a number where there is none, nor run what is skipped."""
    skipped = [replace(each, status="skipped", valid=False) for each in paired(WIDE)]
    assert not wants_block(AB, skipped, 7)
    zero = [replace(each, numbers={"delivered_pps": 0.0}) for each in paired(WIDE)]
    assert not wants_block(AB, zero, 7)


def test_one_number_of_blocks_is_one_look() -> None:
    """Six blocks decide at 5 %, and then nothing more is run."""
    six = comparing(("a", "b"), blocks=(6,))
    assert wants_block(six, paired(SEVEN[:5]), 5)
    assert not wants_block(six, paired(WIDE[:6]), 6)
    assert "faster" == compared(paired(SEVEN[:6]), six).verdict


def test_runs_that_share_no_blocks() -> None:
    """Each trial of one side is compared with each of the other."""
    a, b = side("a", [100.0, 101, 102, 103]), side("b", [110.0, 111, 112, 113])
    comparison = compare_unpaired([a], [b], "delivered_pps", 0.03)
    assert ("faster", False, 4) == (comparison.verdict, comparison.paired, comparison.blocks)
    assert comparison.ratio == pytest.approx(1.0985, abs=0.001)
    assert ("slower", True) == (
        (back := compare_unpaired([b], [a], "delivered_pps", 0.03)).verdict,
        back.worse,
    )
    same = compare_unpaired([a, a], [a, a], "delivered_pps", 0.03)
    assert "same" == same.verdict


@pytest.mark.parametrize(
    ("b", "verdict"),
    [([110.0, 0.0], "cannot compare"), ([110.0], "cannot tell"), ([], "cannot tell")],
)
def test_runs_that_say_nothing(b: list[float], verdict: str) -> None:
    """Zero has no ratio, one trial bounds nothing, and an invalid one is none."""
    trials = side("b", b) or [result("b", 1, 1.0, valid=False)]
    comparison = compare_unpaired([side("a", [100.0, 101])], [trials], "delivered_pps", 0.03)
    assert verdict == comparison.verdict


@pytest.mark.parametrize(
    ("bad", "verdict"), [((0, 0), "faster"), ((0, 2), "faster"), ((3, 0), "cannot tell")]
)
def test_more_than_a_third_of_a_run_invalid_tells_nothing(
    bad: tuple[int, int], verdict: str
) -> None:
    """Trials of either side; skipped trials are not counted."""
    sides = [
        [replace(each, valid=each.trial.repetition > lost) for each in side(point, values)]
        for point, values, lost in (("a", range(100, 107), bad[0]), ("b", range(110, 117), bad[1]))
    ]
    skipped = [result("a", n, None, status="skipped", valid=False) for n in range(8, 20)]
    comparison = compare_unpaired([sides[0], skipped], [sides[1]], "delivered_pps", 0.03)
    assert (verdict, sum(bad)) == (comparison.verdict, comparison.lost)
    assert ("of the base" in comparison.why) == (verdict == "cannot tell")


@pytest.mark.parametrize(
    ("skipped", "verdict", "where"),
    [
        ("ab", "skipped", ""),
        ("a", "cannot tell", "in the base"),
        ("b", "cannot tell", "in what is compared"),
    ],
)
def test_skipped_trials_of_runs(skipped: str, verdict: str, where: str) -> None:
    """Both sides: skipped; a single side: cannot be told, and says which."""
    sides = [
        [replace(r, status="skipped", valid=False) if point in skipped else r for r in trials]
        for point in "ab"
        if (trials := side(point, [100.0, 101, 102, 103]))
    ]
    comparison = compare_unpaired([sides[0]], [sides[1]], "delivered_pps", 0.03)
    assert (verdict, verdict == "skipped") == (comparison.verdict, comparison.answered)
    assert where in comparison.why


def test_several_points_of_two_runs_are_one_family() -> None:
    """What is called alone is not called beside nine that show nothing."""
    clear = ([side("a", [100.0, 101, 102, 103])], [side("b", [110.0, 111, 112, 113])])
    noise = ([side("c", [100.0, 90, 110, 105])], [side("d", [101.0, 89, 109, 106])])
    family = compare_all_unpaired([clear] + [noise] * 9, "delivered_pps", 0.001)
    assert {"cannot tell"} == {each.verdict for each in family}
    assert "faster" == compare_all_unpaired([clear], "delivered_pps", 0.001)[0].verdict


@pytest.mark.parametrize(
    ("a", "b", "verdict", "between_runs"),
    [
        ((1.0,), (1.1,), "faster", False),
        ((1.0, 1.0), (1.1, 1.1), "faster", False),
        ((1.0, 1.001, 0.999), (1.1,), "faster", True),
        ((1.0, 1.1, 0.9), (1.2,), "cannot tell", True),
        ((1.0,), (1.2, 1.1, 1.3), "cannot tell", True),
        ((1.0, 1.1, 0.9), (1.5, 1.6, 1.7), "faster", True),
    ],
)
def test_from_three_runs_on_the_scatter_between_them_counts(
    a: Sequence[float], b: Sequence[float], verdict: str, between_runs: bool
) -> None:
    """Trials of either side; those of each alone would say faster."""
    rates = [1000.0 + n for n in range(7)]
    sides = [
        [side(point, [factor * pps for pps in rates]) for factor in factors]
        for point, factors in (("a", a), ("b", b))
    ]
    comparison = compare_unpaired(sides[0], sides[1], "delivered_pps", 0.03)
    assert (verdict, between_runs) == (comparison.verdict, comparison.between_runs)


def test_every_number_has_words() -> None:
    """A stage loses packets, so more of it is worse."""
    for name in (*METRICS, *LEDGER_STAGES):
        words = words_of(name)
        assert words.less != words.more
        assert margin_of(name) == (0.001 if words.share else 0.03)
    assert ("more", True) == (words_of("udp_rcvbuf").worse, words_of("udp_rcvbuf").share)


def test_equal_points_are_seldom_called_different() -> None:
    """In sets with drift, outliers, ties and invalid trials, stopped as a run stops."""
    random = np.random.default_rng(3)
    calls, sets = 0, 100
    for _ in range(sets):
        drift = np.exp(random.normal(0, 0.1, 20))
        trials = np.exp(random.normal(0, 0.05, (20, 2))) * drift[:, None]
        trials *= np.where(random.random((20, 2)) < 0.1, 0.7, 1)
        lost = random.random((20, 2)) < 0.03
        calls += called(np.round(trials * 1000, -1), lost).verdict in ("faster", "slower")
    assert calls / sets <= 0.1


def called(numbers: Any, lost: Any) -> Comparison:
    """Return what a run of these trials says when it stops."""
    results: list[Result] = []
    for n, (values, spoilt) in enumerate(zip(numbers, lost, strict=True)):
        if not wants_block(AB, results, n):
            break
        trials = zip("ab", values, spoilt, strict=True)
        results += [result(p, n + 1, float(v), valid=not bad) for p, v, bad in trials]
    return compared(results)


def test_a_true_difference_is_called() -> None:
    """10 % at a scatter of 5 % is called in nine of ten runs, with the right sign."""
    random = np.random.default_rng(4)
    calls = []
    for _ in range(50):
        trials = np.exp(random.normal(0, 0.05, (20, 2))) * np.array([1.0, 1.1])
        calls.append(called(trials * 1000, np.zeros((20, 2), dtype=bool)).verdict)
    assert calls.count("faster") >= 45
    assert "slower" not in calls


def test_nothing_is_compared_without_pairs() -> None:
    """Such an experiment wants no block."""
    assert () == compare_points(build.experiment(), [])
    assert not wants_block(build.experiment(), [], 0)
    assert math.isclose(0.03, margin_of("delivered_pps"))


@pytest.mark.parametrize(
    ("metric", "low", "high", "beyond"),
    [
        ("delivered_pps", 0.90, 0.96, True),
        ("delivered_pps", 0.96, 0.98, None),
        ("delivered_pps", 0.98, 1.5, False),
        ("delivered_pps", None, None, None),
        ("delay_p50_ns", 1.04, 1.1, True),
        ("delay_p50_ns", 0.5, 1.01, False),
        ("loss_ratio", 0.04, 0.05, True),
        ("loss_ratio", 0.02, 0.05, None),
        ("loss_ratio", -0.5, 0.01, False),
        ("log_bytes", 0.5, 0.9, True),
        ("log_bytes", 0.98, 1.02, False),
    ],
)
def test_worse_by_more_than_the_margin(
    metric: str, low: float | None, high: float | None, beyond: bool | None
) -> None:
    """In the direction that is worse; either, if none is."""
    comparison = Comparison("a", "b", metric, 0.03, "", low=low, high=high)
    assert beyond is comparison.beyond_margin
