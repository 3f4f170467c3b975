"""Exit codes: a test per row of the table, and one for their order."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from analysis import build
from udpbench.analysis.comparison.comparisons import Comparison
from udpbench.analysis.judge import judge
from udpbench.analysis.verdicts import Answer, Verdict, evaluate, exit_code
from udpbench.errors import PRECEDENCE, code_of, worst_code
from udpbench.model.result import Result

GOOD = judge(build.record(1000))
INVALID = judge(build.record(1000, 999))
FAILED = judge(build.failed())
SKIPPED = judge(build.failed("skipped", "needs 8 CPUs"))
LACKING = judge(build.failed("unavailable", "no such CPU"))
OTHER = judge(build.failed("unavailable", "no such CPU", of=build.trial(experiment="other")))


def verdict(answer: Answer) -> Verdict:
    """Return a verdict with that answer."""
    return Verdict("a > b", answer, "")


@pytest.mark.parametrize(
    ("results", "answers", "errors", "code"),
    [
        ([GOOD], ["yes"], [], 0),
        ([GOOD], [], [], 0),
        ([SKIPPED], ["skipped"], [], 0),
        ([GOOD, SKIPPED], ["yes", "skipped"], [], 0),
        ([LACKING], ["skipped"], [], 5),
        ([LACKING, SKIPPED], [], [], 5),
        ([GOOD, LACKING], ["yes"], [], 0),
        ([GOOD, OTHER], ["yes"], [], 5),
        ([], [], [], 0),
        ([GOOD], ["yes", "no"], [], 1),
        ([GOOD], ["yes"], [2], 2),
        ([GOOD], ["yes"], [3], 3),
        ([FAILED], [], [], 3),
        ([GOOD], ["yes"], [4], 4),
        ([INVALID], ["yes"], [], 5),
        ([GOOD], ["yes", "cannot tell"], [], 5),
        ([GOOD], ["yes"], [130], 130),
        ([FAILED, INVALID], ["no", "cannot tell"], [130, 4], 4),
        ([INVALID], ["no"], [], 1),
    ],
)
def test_a_run_has_the_code_of_its_worst_news(
    results: list, answers: list[Answer], errors: list[int], code: int
) -> None:
    """0 yes, 1 no, 2 bad input, 3 failed, 4 not restored, 5 cannot tell, 130 interrupted."""
    assert code == exit_code(results, [verdict(answer) for answer in answers], errors)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["faster"], 0),
        (["same", "skipped"], 0),
        (["faster", "slower"], 1),
        (["same", "cannot tell"], 5),
        (["cannot compare"], 5),
        (["cannot tell", "slower"], 1),
    ],
)
def test_a_worse_point_is_a_no(words: list[str], code: int) -> None:
    """What cannot be told is 5, as for expectations; skipped points are compared nowhere."""
    comparisons = [
        Comparison("a", "b", "delivered_pps", 0.03, word, word == "slower") for word in words
    ]
    assert code == exit_code([GOOD], [], [], comparisons)


@pytest.mark.parametrize(
    ("words", "experiment", "code"),
    [
        (["faster"], "example", 0),
        (["faster", "cannot tell"], "example", 5),
        (["skipped"], "example", 5),
        (["faster"], "other", 5),
        ([], "example", 5),
    ],
)
def test_an_invalid_trial_whose_block_was_replaced_is_no_matter(
    words: list[str], experiment: str, code: int
) -> None:
    """If every comparison of its point, of its own experiment, is answered."""
    point = INVALID.trial.point
    comparisons = [
        Comparison("a", point, "delivered_pps", 0.03, word, experiment=experiment) for word in words
    ]
    assert code == exit_code([GOOD, INVALID], [], [], comparisons)


@pytest.mark.parametrize(
    ("op", "pps", "answer", "code"),
    [
        ("", 0, None, 5),
        (">=", 200e3, "yes", 0),
        (">=", 900e3, "no", 1),
        (">=", 450e3, "cannot tell", 5),
        ("<", 300e3, "no", 1),
    ],
)
def test_a_search_whose_bounds_are_open_answers_only_what_they_decide(
    op: str, pps: float, answer: Answer | None, code: int
) -> None:
    """Between 396 and 500 kpps: 5, unless an expectation of the rate is a yes or a no."""
    of = build.trial("one")
    spans = {"throughput_pps": (396e3, 500e3)}
    numbers = {"throughput_pps": 396e3}
    result = Result(of, "done", True, (), numbers=numbers, spans=spans, unfinished=True)
    expected = [build.expectation("throughput_pps[one]", op, str(pps))] if op else []
    verdicts = evaluate(build.experiment(*expected, points=(of,)), [result])
    assert [answer] == ([verdict.answer for verdict in verdicts] or [None])
    assert code == exit_code([result], verdicts)
    assert (
        5 == exit_code([result, replace(result, trial=build.trial("two"))], verdicts) or code == 1
    )


def test_an_expectation_of_something_else_decides_no_search() -> None:
    """That its packets are all accounted for says nothing of its rate."""
    result = Result(
        build.trial("one"), "done", True, (), numbers={"unaccounted": 0}, unfinished=True
    )
    of = build.expectation("unaccounted", "==", "0")
    verdicts = evaluate(build.experiment(of, points=(build.trial("one"),)), [result])
    assert ("yes", 5) == (verdicts[0].answer, exit_code([result], verdicts))


def test_codes_outrank_each_other_in_one_order() -> None:
    """4, 130, 3, 2, 1, 5; and anything outranks 0."""
    assert (4, 130, 3, 2, 1, 5) == PRECEDENCE
    for first, second in combinations(PRECEDENCE, 2):
        assert first == worst_code([second, 0, first])
    assert 0 == worst_code([])


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("InputError", 2),
        ("HostLacks", 5),
        ("RestoreError", 4),
        ("AgentLost", 3),
        ("StoreError", 3),
        ("", 3),
        ("NameOfAnotherVersion", 3),
    ],
)
def test_a_stored_error_has_the_code_of_its_class(kind: str, code: int) -> None:
    """What a run folder names and this version does not know is a run that failed."""
    assert code == code_of(kind)
