"""Exit codes: a test per row of the table, and one for their order."""

from __future__ import annotations

from itertools import combinations

import pytest

from analysis import build
from udpbench.analysis.exits import PRECEDENCE, exit_code, worst
from udpbench.analysis.expect import Answer, Verdict
from udpbench.analysis.judge import judge

GOOD = judge(build.record(1000))
INVALID = judge(build.record(1000, 999))
FAILED = judge(build.failed())
SKIPPED = judge(build.failed("skipped", "needs 8 CPUs"))


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


def test_codes_outrank_each_other_in_one_order() -> None:
    """4, 130, 3, 2, 1, 5; and anything outranks 0."""
    assert (4, 130, 3, 2, 1, 5) == PRECEDENCE
    for first, second in combinations(PRECEDENCE, 2):
        assert first == worst([second, 0, first])
    assert 0 == worst([])
