"""Expectations: whether what the experiment claims is true, and the exit code of a run.

Counts must hold in every trial that ran to its end, valid or not. Two points are compared block by
block; everything else is judged over medians of valid trials. What cannot be known is "cannot
tell", never "yes". Long, because every kind of expectation is answered with the same few words.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, chain, islice, product
from operator import attrgetter
from statistics import median
from typing import Literal, NamedTuple

from udpbench.analysis.comparison.blocks import Claim, Judged, judge_claims
from udpbench.analysis.comparison.comparisons import (
    Comparison,
    block_ns,
    more_text,
    without_replaced,
)
from udpbench.analysis.points import (
    Point,
    bounds,
    is_count,
    named_trial,
    points,
    trials_with,
)
from udpbench.errors import CANNOT_TELL, FAILED, NO, worst_code
from udpbench.metrics import METRICS, SEARCHED, goal_of, is_metric, plain_name
from udpbench.model.experiment import Expectation, Experiment, Side
from udpbench.model.result import Result
from udpbench.units import show_count, show_percent, show_ratio

Answer = Literal["yes", "no", "cannot tell", "skipped"]
Value = tuple[float, float] | None
"""The least and the most that a number can be; None if it is unknown."""
OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


COUNTED_BY = {
    "delivered_pps": "received_packets",
    "delivered_mib_s": "received_packets",
    "answered_pps": "answered_packets",
    "logged_pps": "logged_packets",
}
"""Rate → its count: of 0 packets there is no time to divide by, and still no more than a rate of 0.
"""
FEW_POINTS = 3
"""Maximum points that are named which have the same text; of more the others are counted."""
_WORDS = {False: "is not", None: "may or may not be", True: "is"}


@dataclass(frozen=True)
class Verdict:
    """One expectation and the answer to it."""

    expected: str
    answer: Answer
    measured: str
    """The numbers that were compared, point by point."""
    settled: frozenset[tuple[str, str]] = frozenset()
    """Experiment and point of each search whose rate, as far as it is known, is a yes or a no."""
    missed: frozenset[str] = frozenset()
    """Those of several trials by which it does not hold, with the numbers shown: ``all #2``."""


@dataclass(frozen=True)
class _Comparison:
    """One expectation at one point: the pairs of values that must all hold."""

    point: str
    pairs: tuple[tuple[Value, Value], ...]
    skipped: bool
    trials: tuple[tuple[str, str], ...] = ()
    """For counts of two points, the trials of each pair: those that decide, among all pairs."""
    each: tuple[str, ...] = ()
    """For counts of one point, each of several trials."""
    known: int = 0
    """For counts of two points, pairs of a known count of one with one of the other."""
    lack: str = "nothing to compare"
    """What to say if no pair is known."""
    effect: str = ""
    """The ratio or difference of two points by blocks, with its interval and what is missing."""
    scale: tuple[str, str] | None = None
    """What an effect is, and what it is of equal points; None without an effect."""
    values: tuple[Value, Value] | None = None
    """The medians of two points that are shown; the pair is the effect and 0."""


class _Counted(NamedTuple):
    """The least and the most that a count can be, and its trial."""

    low: float
    high: float
    trial: str


@dataclass(frozen=True)
class _Counts:
    """A count in each trial of a point that ran to its end, valid or not."""

    spans: tuple[Value, ...]
    trials: tuple[str, ...]

    @cached_property
    def known(self) -> list[_Counted]:
        both = zip(self.spans, self.trials, strict=True)
        return [_Counted(*span, trial) for span, trial in both if span is not None]

    @cached_property
    def deciding(self) -> list[_Counted]:
        """Those beyond which no other lies, the least exact and the first."""
        if not self.known:
            return []
        ends = [attrgetter("low"), attrgetter("high")]
        extremes = [choose(self.known, key=end) for choose in (min, max) for end in ends]
        return [*extremes, max(self.known, key=lambda each: each.high - each.low), self.known[0]]


@dataclass(frozen=True)
class _Measured:
    """What the results of an experiment say."""

    points: dict[str, Point]
    claims: dict[Claim, Judged]
    """Each two numbers that are compared block by block."""
    block_ns: int
    _counts: dict[tuple[str, str], _Counts] = field(default_factory=dict)

    def counts(self, point: Point, metric: str) -> _Counts:
        """Return the counts of a point, which a thousand expectations may ask for."""
        known = self._counts.get((point.name, metric))
        if known is None:
            spans = tuple(_bounds(result, metric) for result in point.done)
            known = _Counts(spans, tuple(_names(point)))
            self._counts[point.name, metric] = known
        return known


def evaluate(experiment: Experiment, results: Sequence[Result]) -> tuple[Verdict, ...]:
    """Return a verdict for each expectation of an experiment over the results of its trials."""
    measured = _measured(experiment, results)
    return tuple(
        _verdict(expectation, measured, list(measured.points) if _is_open(expectation) else [""])
        for expectation in experiment.expect
    )


def evaluate_at(
    experiment: Experiment, results: Sequence[Result], point: str
) -> tuple[Verdict, ...]:
    """Return a verdict for each expectation that is judged at a point, and at that point alone."""
    measured = _measured(experiment, results)
    expectations = expected_at(experiment, point)
    return tuple(_verdict(expectation, measured, [point]) for expectation in expectations)


def expected_at(experiment: Experiment, point: str) -> tuple[Expectation, ...]:
    """Return the expectations that are judged at a point.

    Those that name no point, or only one of the two, are judged at each point; one that names its
    points is judged at the one that the experiment declares last.
    """
    declared = [trial.point for trial in experiment.points]
    return tuple(
        expectation
        for expectation in experiment.expect
        if _is_open(expectation) or max(_named(expectation), key=declared.index) == point
    )


def compared_with(experiment: Experiment, point: str) -> tuple[str, ...]:
    """Return every point that is needed to judge one: itself, and those it is compared with."""
    expectations = expected_at(experiment, point)
    needed = {point, *(name for expectation in expectations for name in _named(expectation))}
    needed |= {pair.a for pair in experiment.compare if pair.b == point}
    return tuple(trial.point for trial in experiment.points if trial.point in needed)


def _is_open(expectation: Expectation) -> bool:
    """Return whether an expectation applies to every point."""
    sides = (expectation.left, expectation.right)
    return any(side.metric is not None and side.point is None for side in sides)


def _named(expectation: Expectation) -> list[str]:
    sides = (expectation.left, expectation.right)
    return [side.point for side in sides if side.point is not None]


def _measured(experiment: Experiment, results: Sequence[Result]) -> _Measured:
    by_name = {p.name: p for p in points(results) if p.experiment == experiment.name}
    for trial in experiment.points:
        by_name.setdefault(trial.point, Point(experiment.name, trial.point, ()))
    return _Measured(by_name, judge_claims(experiment, results), block_ns(experiment, results))


def _verdict(expectation: Expectation, measured: _Measured, names: Sequence[str]) -> Verdict:
    compared = [_compare(expectation, name, measured) for name in names]
    answers = [_answer(expectation, comparison) for comparison in compared]
    texts: dict[str, list[str]] = {}
    for comparison in compared:
        if not comparison.skipped:
            text = _text(comparison, expectation.op, _digits_of(expectation))
            texts.setdefault(text, []).append(comparison.point or "all")
    settled = (
        measured.points[name if side.point is None else side.point]
        for name, answer in zip(names, answers, strict=True)
        for side in (expectation.left, expectation.right)
        if answer in ("yes", "no") and goal_of(side.metric or "")[0] in SEARCHED
    )
    missed = (
        _missed(comparison, expectation.op)
        for comparison, answer in zip(compared, answers, strict=True)
        if answer == "no"
    )
    return Verdict(
        expectation.text,
        _worst(answers),
        "; ".join(_of_points(texts) if len(compared) > 1 else texts) or "skipped",
        frozenset((point.experiment, point.name) for point in settled),
        frozenset(chain.from_iterable(missed)),
    )


def _of_points(texts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield each text once, behind the points that it is said of."""
    for text, names in texts.items():
        several = f"{', '.join(names[:FEW_POINTS])} and {len(names) - FEW_POINTS} more"
        yield f"{', '.join(names) if len(names) <= FEW_POINTS else several}: {text}"


def _worst(answers: Sequence[Answer]) -> Answer:
    for answer in ("no", "cannot tell", "yes"):
        if answer in answers:
            return answer
    return "skipped"


def _compare(expectation: Expectation, name: str, measured: _Measured) -> _Comparison:
    left, right = expectation.left, expectation.right
    a, b = (_point(side, name, measured.points) for side in (left, right))
    used = [point for point in (a, b) if point is not None]
    skipped = any(point.results and point.skipped for point in used)
    metrics = [side.metric for side in (left, right) if side.metric is not None]
    if not metrics or not all(is_count(metric) for metric in metrics):
        pair = (_median(left, a), _median(right, b))
        struck = [why for point in used for result in point.valid for why in result.struck]
        lack = f"not counted (struck out): {struck[0].clause}" if struck else _Comparison.lack
        lack = "no valid trial" if any(p.results and not p.valid for p in used) else lack
        single = _Comparison(name, (pair,), skipped, lack=lack)
        sides = expectation.by_blocks(name)
        if sides is None or _is_nothing(left, a) or _is_nothing(right, b):
            return single
        return _by_blocks(single, Claim(*sides), measured)
    if a is not None and b is not None and a is not b:
        counts = (measured.counts(a, left.metric or ""), measured.counts(b, right.metric or ""))
        return _each_with_each(expectation, counts, _Comparison(name, (), skipped))
    point = used[0]
    spans = (
        [_scaled(side, span) for span in measured.counts(point, side.metric).spans]
        if side.metric is not None
        else [(side.factor, side.factor)] * len(point.done)
        for side in (left, right)
    )
    each = tuple(_names(point)) if len(point.done) > 1 else ()
    return _Comparison(name, tuple(zip(*spans, strict=True)), skipped, each=each)


def _by_blocks(single: _Comparison, claim: Claim, measured: _Measured) -> _Comparison:
    """Return a comparison of two medians as one of their blocks, whose interval decides."""
    blocks, effect, why = measured.claims[claim]
    span: Value = None
    scale = None
    if effect is None:
        text = why
    else:
        bounded = effect.low is not None and effect.high is not None
        span = (effect.low or 0.0, effect.high or 0.0) if bounded else None
        ends = [] if span is None else [_digits(claim.natural(end)) for end in span]
        text = (
            _digits(claim.natural(effect.estimate))
            + f" [{' – '.join(ends)}]" * bool(ends)
            + f" of {effect.blocks} block{'s' * (effect.blocks != 1)}"
        )
        scale = ("difference", "0") if claim.shares else ("ratio", "1")
        missing = effect.blocks_more
        if missing is not None:
            text += f"; {more_text(missing, missing * measured.block_ns)}"
    lack = single.lack if not blocks.effects else _Comparison.lack
    pairs = ((span, (0.0, 0.0)),)
    return replace(single, pairs=pairs, values=single.pairs[0], effect=text, scale=scale, lack=lack)


def _names(point: Point) -> list[str]:
    """Return the trials of a point that ran to their end, as ``one #2``."""
    return [named_trial(point, result) for result in point.done]


def _point(side: Side, name: str, by_name: dict[str, Point]) -> Point | None:
    """Return the point of a side; None for a bare number."""
    return by_name[name if side.point is None else side.point] if side.metric is not None else None


def _scaled(side: Side, span: Value) -> Value:
    if span is None:
        return None
    low, high = sorted(side.factor * end for end in span)
    return low, high


def _each_with_each(
    expectation: Expectation, counts: tuple[_Counts, _Counts], plain: _Comparison
) -> _Comparison:
    """Return the comparison of each count of a point with each of the other."""
    left, right = (
        [
            _Counted(min(a, b), max(a, b), trial)
            for low, high, trial in (each.known if expectation.op == "!=" else each.deciding)
            for a, b in [(side.factor * low, side.factor * high)]
        ]
        for side, each in zip((expectation.left, expectation.right), counts, strict=True)
    )
    decisive = _decisive(expectation.op, left, right) if left and right else []
    pairs: list[tuple[Value, Value]] = [((a.low, a.high), (b.low, b.high)) for a, b in decisive]
    trials = [(a.trial, b.trial) for a, b in decisive]
    spans = [each.spans for each in counts]
    if all(spans) and any(None in each for each in spans):
        pairs.append((None, None))
        trials.append(("", ""))
    known = len(counts[0].known) * len(counts[1].known)
    return replace(plain, pairs=tuple(pairs), trials=tuple(trials), known=known)


def _decisive(
    op: str, left: Sequence[_Counted], right: Sequence[_Counted]
) -> list[tuple[_Counted, _Counted]]:
    """Return few of all pairs: one at which a relation fails, or may fail, if it does at any."""
    low, high = attrgetter("low"), attrgetter("high")
    pairs = []
    if op in ("<", "<=", "=="):
        pairs += [
            (max(left, key=low), min(right, key=high)),
            (max(left, key=high), min(right, key=low)),
        ]
    if op in (">", ">=", "=="):
        pairs += [
            (min(left, key=high), max(right, key=low)),
            (min(left, key=low), max(right, key=high)),
        ]
    if op == "==":
        least_exact = [max(side, key=lambda each: each.high - each.low) for side in (left, right)]
        pairs += [(least_exact[0], right[0]), (left[0], least_exact[1])]
    return (
        pairs
        if pairs
        else [*_equal(left, right), *_overlapping(left, right)] or [(left[0], right[0])]
    )


def _equal(
    left: Sequence[_Counted], right: Sequence[_Counted]
) -> Iterator[tuple[_Counted, _Counted]]:
    """Yield a pair of equal counts that are exact, if there is one."""
    exact = {each.low: each for each in right if each.low == each.high}
    pairs = (
        (each, exact[each.low]) for each in left if each.low == each.high and each.low in exact
    )
    yield from islice(pairs, 1)


def _overlapping(
    left: Sequence[_Counted], right: Sequence[_Counted]
) -> Iterator[tuple[_Counted, _Counted]]:
    """Yield a pair of counts that may be equal, if there is one."""
    ranked = sorted(right, key=attrgetter("low"))
    lows = [each.low for each in ranked]
    reach: list[_Counted] = list(accumulate(ranked, lambda a, b: max(a, b, key=attrgetter("high"))))
    for each in left:
        below = bisect_right(lows, each.high)
        if below and reach[below - 1].high >= each.low:
            yield each, reach[below - 1]
            return


def _median(side: Side, point: Point | None) -> Value:
    """Return the median over the valid trials; None if one of them does not know the number.

    A median over some trials would be of those that went well enough to have a number. Trials whose
    rates are struck out do not count here: they have none, however they went.
    """
    if side.metric is None or point is None:
        return side.factor, side.factor
    trials = trials_with(point, side.metric)
    spans = [(_bounds(result, side.metric), bool(result.spans)) for result in trials]
    ends = [span for span, searched in spans if span and (searched or span[0] == span[1])]
    if not ends or len(ends) < len(spans):
        return None
    low, high = (side.factor * median(pair) for pair in zip(*ends, strict=True))
    return low, high


def _bounds(result: Result, name: str) -> Value:
    span = bounds(result, name)
    nothing = span is None and result.numbers.get(COUNTED_BY.get(name, "")) == 0
    return (0.0, 0.0) if nothing else span


def _is_nothing(side: Side, point: Point | None) -> bool:
    """Return whether nothing came in any trial that counts, so that no block has a ratio."""
    if side.metric not in COUNTED_BY or point is None:
        return False
    trials = trials_with(point, side.metric)
    return bool(trials) and all(_bounds(trial, side.metric) == (0.0, 0.0) for trial in trials)


def _answer(expectation: Expectation, comparison: _Comparison) -> Answer:
    if comparison.skipped:
        return "skipped"
    holds = [_holds(expectation.op, a, b) for a, b in comparison.pairs]
    if False in holds:
        return "no"
    return "yes" if holds and all(holds) else "cannot tell"


def _holds(op: str, a: Value, b: Value) -> bool | None:
    """Return whether a relation holds for all numbers within bounds, or for none; else None."""
    if a is None or b is None:
        return None
    ends = {OPERATORS[op](x, y) for x, y in product(a, b)}
    exact = a[0] == a[1] and b[0] == b[1]
    apart = a[1] < b[0] or b[1] < a[0]
    if op in ("==", "!=") and not (exact or apart):
        return None
    return ends.pop() if len(ends) == 1 else None


def _digits_of(expectation: Expectation) -> Callable[[float], str]:
    """Return how its numbers are shown: shares of packets in percent, as in tables."""
    sides = (expectation.left, expectation.right)
    names = [plain_name(side.metric) for side in sides if side.metric is not None]
    shares = bool(names) and all(
        is_metric(name) and METRICS[name].unit == "ratio" for name in names
    )
    return show_ratio if shares else _digits


def _furthest(comparison: _Comparison, op: str) -> int | None:
    """Return the place of the pair that is furthest from holding; None if none is known.

    Of two points few pairs are left, in their order; of one it is the trial that is farthest off.
    """
    ranked = [
        (list(_WORDS).index(holds), -_apart(a, b) if comparison.each and not holds else 0, place)
        for place, (a, b) in enumerate(comparison.pairs)
        if a is not None and b is not None
        for holds in [_holds(op, a, b)]
    ]
    return min(ranked)[-1] if ranked else None


def _missed(comparison: _Comparison, op: str) -> tuple[str, ...]:
    """Return of several trials those whose numbers are shown."""
    place = _furthest(comparison, op)
    if place is None or not (comparison.trials or comparison.each):
        return ()
    return comparison.trials[place] if comparison.trials else (comparison.each[place],)


def _text(comparison: _Comparison, op: str, digits: Callable[[float], str] | None = None) -> str:
    """Return the pair that is furthest from holding as text: ``3.000 is < 5.000``."""
    if comparison.values is not None:
        return _text_of_blocks(comparison, op, *comparison.values)
    place = _furthest(comparison, op)
    left, right = comparison.pairs[place] if place is not None else (None, None)
    if place is None or left is None or right is None:
        return comparison.lack
    holds, (a, b) = _holds(op, left, right), _both(left, right, digits)
    if not comparison.trials:
        number = comparison.each[place].rpartition("#")[2] if comparison.each and not holds else ""
        where = f", in #{number} of {len(comparison.each)} trials" if number else ""
        return f"{a} {_WORDS[holds]} {op} {b}{where}"
    (of_a, of_b), count = comparison.trials[place], comparison.known
    how = f"; of {count} pairs, each trial with each" if count > 1 else ""
    return f"{a} [{of_a}] {_WORDS[holds]} {op} {b} [{of_b}]{how}"


def _apart(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Return how far apart two spans are; 0 where they overlap."""
    return max(b[0] - a[1], a[0] - b[1], 0.0)


def _text_of_blocks(comparison: _Comparison, op: str, a: Value, b: Value) -> str:
    """Return two medians, and what is judged: ``800 and 550; ratio is > 1: 1.4 of 7 blocks``."""
    if a is None or b is None:
        return comparison.lack
    medians = f"{_number(a)} and {_number(b)}"
    if comparison.scale is None:
        return f"{medians}; {comparison.effect}"
    kind, equal = comparison.scale
    relation = f"{kind} {_WORDS[_holds(op, *comparison.pairs[0])]} {op} {equal}"
    return f"{medians}; {relation}: {comparison.effect}"


def _number(value: tuple[float, float], digits: Callable[[float], str] | None = None) -> str:
    low, high = ((digits or _digits)(end) for end in value)
    return low if low == high else f"{low} to {high}"


def _both(
    a: tuple[float, float], b: tuple[float, float], digits: Callable[[float], str] | None
) -> tuple[str, str]:
    """Return both as text, with more digits where they differ by less than is usually shown."""
    texts = _number(a, digits), _number(b, digits)
    if a == b or texts[0] != texts[1]:
        return texts
    more = partial(show_percent, form=".6g") if digits is show_ratio else "{:.10g}".format
    return _number(a, more), _number(b, more)


def _digits(value: float) -> str:
    if value == float("inf"):
        return "more"
    whole = float(value).is_integer() or abs(value) >= 1000
    return show_count(value) if whole else f"{value:.4g}"


def nothing_measured(results: Sequence[Result]) -> bool:
    """Return whether all trials of an experiment were skipped, not only for unmet needs."""
    skipped = all(result.status == "skipped" for result in results)
    return skipped and any(result.unavailable for result in results)


def exit_code(
    results: Sequence[Result],
    verdicts: Sequence[Verdict],
    errors: Iterable[int] = (),
    comparisons: Sequence[Comparison] = (),
) -> int:
    """Return the exit code of a run; ``errors`` are the codes of what ended or broke it.

    Skips alone are 0, unless nothing of an experiment was measured. An invalid trial is no matter
    where every comparison of its point is answered, nor are open bounds of a search that answer an
    expectation of its rate. What was found of a watched host was lost, and so is
    what a client's test lacks.
    """
    codes = set(errors)
    if any(result.status == "failed" for result in results):
        codes.add(FAILED)
    worse = any(comparison.worse for comparison in comparisons)
    lossy = any(
        (result.trial.watched and result.findings) or (result.trial.served and result.lost_packets)
        for result in results
    )
    if worse or lossy or any(verdict.answer == "no" for verdict in verdicts):
        codes.add(NO)
    experiments = {result.trial.experiment for result in results}
    empty = any(
        nothing_measured([r for r in results if r.trial.experiment == experiment])
        for experiment in experiments
    )
    counted = without_replaced(results, comparisons)
    invalid = any(result.status == "done" and not result.valid for result in counted)
    unknown = any(verdict.answer == "cannot tell" for verdict in verdicts)
    settled = frozenset[tuple[str, str]]().union(*(verdict.settled for verdict in verdicts))
    unknown = unknown or any(
        result.unfinished and (result.trial.experiment, result.trial.point) not in settled
        for result in results
    )
    if empty or invalid or unknown or not all(each.answered for each in comparisons):
        codes.add(CANNOT_TELL)
    return worst_code(codes)
