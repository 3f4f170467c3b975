"""Expectations: whether what the experiment claims is true of what was measured.

Counts must hold in every trial that ran to its end, valid or not; all else holds over medians of
valid trials. What cannot be known is said to be so, and is never a yes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from udpbench.analysis.points import Point, bounds, estimate, is_count, points
from udpbench.model import Expectation, Experiment, Result, Side

Answer = Literal["yes", "no", "cannot tell", "skipped"]
Value = tuple[float, float] | None
"""The least and the most that a number can be; None where it is unknown."""
OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Verdict:
    """One expectation and the answer to it."""

    expected: str
    answer: Answer
    measured: str
    """The numbers that were compared, point by point."""


@dataclass(frozen=True)
class _Comparison:
    """One expectation at one point: the pairs of values that must all hold."""

    point: str
    pairs: tuple[tuple[Value, Value], ...]
    skipped: bool


def evaluate(experiment: Experiment, results: Sequence[Result]) -> tuple[Verdict, ...]:
    """Return a verdict for each expectation of an experiment over the results of its trials."""
    mine = _points_of(experiment, results)
    return tuple(
        _verdict(one, mine, list(mine) if _is_open(one) else [""]) for one in experiment.expect
    )


def evaluate_at(
    experiment: Experiment, results: Sequence[Result], point: str
) -> tuple[Verdict, ...]:
    """Return a verdict for each expectation that is judged at a point, and at that point alone."""
    mine = _points_of(experiment, results)
    return tuple(_verdict(one, mine, [point]) for one in expected_at(experiment, point))


def expected_at(experiment: Experiment, point: str) -> tuple[Expectation, ...]:
    """Return the expectations that are judged at a point.

    Those that name no point, or only one of the two, are judged at each; one that names its points
    is judged at that of them which the experiment declares last.
    """
    declared = [trial.point for trial in experiment.points]
    return tuple(
        one
        for one in experiment.expect
        if _is_open(one) or max(_named(one), key=declared.index) == point
    )


def compared_with(experiment: Experiment, point: str) -> tuple[str, ...]:
    """Return every point whose trials it takes to judge one: itself, and those it is held to."""
    needed = {point, *(name for one in expected_at(experiment, point) for name in _named(one))}
    return tuple(trial.point for trial in experiment.points if trial.point in needed)


def _is_open(expectation: Expectation) -> bool:
    """Return whether an expectation speaks of every point."""
    sides = (expectation.left, expectation.right)
    return any(side.metric is not None and side.point is None for side in sides)


def _named(expectation: Expectation) -> list[str]:
    sides = (expectation.left, expectation.right)
    return [side.point for side in sides if side.point is not None]


def _points_of(experiment: Experiment, results: Sequence[Result]) -> dict[str, Point]:
    mine = {p.name: p for p in points(results) if p.experiment == experiment.name}
    for trial in experiment.points:
        mine.setdefault(trial.point, Point(experiment.name, trial.point, ()))
    return mine


def _verdict(expectation: Expectation, mine: dict[str, Point], names: Sequence[str]) -> Verdict:
    compared = [_compare(expectation, name, mine) for name in names]
    answers = [_answer(expectation, comparison) for comparison in compared]
    told = [
        _tell(comparison, expectation.op, len(compared) > 1)
        for comparison in compared
        if not comparison.skipped
    ]
    return Verdict(expectation.text, _worst(answers), "; ".join(told) or "skipped")


def _worst(answers: Sequence[Answer]) -> Answer:
    for answer in ("no", "cannot tell", "yes"):
        if answer in answers:
            return answer
    return "skipped"


def _compare(expectation: Expectation, name: str, mine: dict[str, Point]) -> _Comparison:
    left, right = expectation.left, expectation.right
    a, b = (_point(side, name, mine) for side in (left, right))
    used = [point for point in (a, b) if point is not None]
    skipped = any(point.results and point.skipped for point in used)
    metrics = [side.metric for side in (left, right) if side.metric is not None]
    if not metrics or not all(is_count(one) for one in metrics):
        return _Comparison(name, ((_median(left, a), _median(right, b)),), skipped)
    if a is not None and b is not None and a is not b:
        pairs = tuple(product(_counts(left, a), _counts(right, b)))
    else:
        done = used[0].done if used else ()
        pairs = tuple((_count(left, trial), _count(right, trial)) for trial in done)
    return _Comparison(name, pairs, skipped)


def _point(side: Side, name: str, mine: dict[str, Point]) -> Point | None:
    """Return the point a side speaks of; None for a bare number."""
    return mine[name if side.point is None else side.point] if side.metric is not None else None


def _count(side: Side, result: Result) -> Value:
    if side.metric is None:
        return side.factor, side.factor
    found = bounds(result, side.metric)
    return (side.factor * found[0], side.factor * found[1]) if found is not None else None


def _counts(side: Side, point: Point) -> list[Value]:
    return [_count(side, result) for result in point.done]


def _median(side: Side, point: Point | None) -> Value:
    """Return the median over the valid trials; None where one of them does not know the number.

    Of a few trials alone, a median would be of those that fared well enough to have a number.
    """
    if side.metric is None or point is None:
        return side.factor, side.factor
    found = estimate(point, side.metric)
    if found is None or found.n < len(point.valid):
        return None
    return side.factor * found.median, side.factor * found.median


def _answer(expectation: Expectation, comparison: _Comparison) -> Answer:
    if comparison.skipped:
        return "skipped"
    holds = [_holds(expectation.op, a, b) for a, b in comparison.pairs]
    if False in holds:
        return "no"
    return "yes" if holds and all(holds) else "cannot tell"


def _holds(op: str, a: Value, b: Value) -> bool | None:
    """Return whether a relation holds whatever the numbers are within their bounds, or for none."""
    if a is None or b is None:
        return None
    ends = {OPERATORS[op](x, y) for x, y in product(a, b)}
    exact = a[0] == a[1] and b[0] == b[1]
    apart = a[1] < b[0] or b[1] < a[0]
    if op in ("==", "!=") and not (exact or apart):
        return None
    return ends.pop() if len(ends) == 1 else None


def _tell(comparison: _Comparison, op: str, named: bool) -> str:
    """Return the pair furthest from holding, as text: ``3.000 < 5.000``."""
    head = f"{comparison.point or 'all'}: " if named else ""
    known = [(a, b) for a, b in comparison.pairs if a is not None and b is not None]
    if not known:
        return f"{head}nothing to compare"
    words = {False: "is not", None: "may or may not be", True: "is"}
    told = [(_holds(op, a, b), a, b) for a, b in known]
    holds, a, b = min(told, key=lambda one: list(words).index(one[0]))
    return f"{head}{_number(a)} {words[holds]} {op} {_number(b)}"


def _number(value: tuple[float, float]) -> str:
    low, high = (_one_number(one) for one in value)
    return low if low == high else f"{low} to {high}"


def _one_number(value: float) -> str:
    if float(value).is_integer():
        return f"{int(value):,}".replace(",", " ")
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}".replace(",", " ")
