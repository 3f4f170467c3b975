"""Comparisons of two points as verdicts: faster, slower, the same, or why nobody can tell.

Owns the words and numbers that a reader gets, and what a lab can resolve; what is compared is in
``blocks``. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from udpbench.analysis.comparison.blocks import (
    Claim,
    Judged,
    claim_of,
    counts,
    judge_claims,
    lacking,
    tolerance_of,
    value_of,
)
from udpbench.analysis.comparison.effect import FEWEST_RUNS, Effect, decide_unpaired, widened
from udpbench.metrics import margin_of, words_of
from udpbench.model.experiment import FEWEST_BLOCKS, Experiment, PointPair, Side, trial_ns
from udpbench.model.limits import DAY_NS, SECOND_NS
from udpbench.model.result import Result
from udpbench.units import format_duration, show_percent

EXTRA_BLOCKS = 5
"""Run at most so many blocks in place of those that are left out."""
FAR_BLOCKS = 100
TOO_NOISY = "too noisy to tell in reasonable time; longer trials or a quieter machine would help"
"""In place of a number of blocks that nobody will run."""
SIDES = ("the base", "what is compared with it")
Runs = Sequence[Sequence[Result]]
"""The trials of one side, run by run."""
SAME, CANNOT_TELL, CANNOT_COMPARE, SKIPPED = "same", "cannot tell", "cannot compare", "skipped"
LOPSIDED = 3
"""How many times farther one end of an interval lies than the other where both are shown."""
OF_LOSS = ("loss_ratio", "udp_rcvbuf")
"""What may tell two points apart whose rates do not."""
RESOLVED = {7: 1.86, 15: 0.85}
"""Blocks → true effect, in standard deviations of a block's, that the looks at 7, 11 and 15 blocks
call by then in 80 of 100 attempts, if the scatter is normal; ``test_resolution.py`` recomputes."""


@dataclass(frozen=True)
class Comparison:
    """What the trials say of point ``b`` against point ``a``, the base."""

    a: str
    b: str
    metric: str
    margin: float
    verdict: str
    """Its word: less or more as the metric calls them, same, cannot tell, cannot compare, skipped.
    """
    worse: bool = False
    """b differs from a in the metric's worse direction."""
    ratio: float | None = None
    """b / a (Hodges–Lehmann); None for shares, and where it is unknown."""
    difference: float | None = None
    """b − a of shares of the packets sent; None for ratios, and where it is unknown."""
    low: float | None = None
    """Interval of ratio or difference, at the level of the verdict; None: not bounded."""
    high: float | None = None
    blocks: int = 0
    """Those that count; without blocks the trials of the side that has fewer."""
    blocks_more: int | None = None
    """About so many more would decide; None once decided, and where that is unknown."""
    more_ns: int | None = None
    """How long these take, by the plan of a built-in lab."""
    lost: int = 0
    """Blocks, without blocks trials of both sides, left out: invalid, failed, struck out.
    """
    why: str = ""
    """Why nothing can be told or compared, if not because of the interval."""
    effects: tuple[tuple[int, float], ...] = ()
    """Repetition and ratio or difference of each block that counts, in the order of the run."""
    experiment: str = ""
    """Where a and b are points of one experiment, its name."""
    paired: bool = True
    """By blocks; else what changed between the two sides is in no interval."""
    between_runs: bool = False
    """The interval has the scatter between runs of one side, of which there are three or more."""
    tolerance: float = 0.0
    """At each end of the interval: the share of a trial that comes at once, in every block."""

    @property
    def share(self) -> bool:
        """Return whether shares of packets are compared, by their difference."""
        return words_of(self.metric).share

    @property
    def answered(self) -> bool:
        """Return whether there is an answer."""
        return self.verdict not in (CANNOT_TELL, CANNOT_COMPARE)

    @property
    def text(self) -> str:
        """Return the verdict in words: ``faster by 4.2 % [1.1 – 7.0]``.

        ``same within 3 % [−0.8 – 1.1]`` has the ends with their signs.
        """
        value = self.difference if self.share else self.ratio
        if self.verdict == SAME:
            return f"same within {self.margin * 100:.3g}{self._unit}{self._around()}"
        if self.verdict == SKIPPED:
            return SKIPPED
        if not self.answered:
            parts = filter(None, [self.width, self.lack])
            return ": ".join([self.verdict, *filter(None, ["; ".join(parts)])])
        ends = sorted(self._size(end) for end in (self.low, self.high))
        size, *ends_text = (_shown(each, ends[1]) for each in (self._size(value), *ends))
        return f"{self.verdict} by {size}{self._unit} [{' – '.join(ends_text)}]"

    @property
    def width(self) -> str:
        """Return the interval of what cannot be told, in words; empty without one."""
        return self._width() if not self.why else ""

    @property
    def lack(self) -> str:
        """Return what is missing for an answer, in words; empty if that is unknown."""
        kind = "block" if self.paired else "trial"
        return self.why or more_text(self.blocks_more, self.more_ns, kind) or self._lumps_text()

    @property
    def beyond_margin(self) -> bool | None:
        """Return whether b is worse than a by more than the margin; None if that is unknown.

        Of a metric that has no worse direction, whether they differ by more.
        """
        if self.low is None or self.high is None:
            return None
        least = -self.margin if self.share else 1 / (1 + self.margin)
        most = self.margin if self.share else 1 + self.margin
        worse = words_of(self.metric).worse
        less, more = worse != "more", worse != "less"
        if (less and self.high < least) or (more and self.low > most):
            return True
        inside = (not less or self.low >= least) and (not more or self.high <= most)
        return False if inside else None

    @property
    def _unit(self) -> str:
        return " percentage points" if self.share else " %"

    def _size(self, value: float | None) -> float:
        """Return how far b is from a, in percent or percentage points."""
        neutral = 0.0 if self.share else 1.0
        return abs((neutral if value is None else value) - neutral) * 100

    def _around(self) -> str:
        """Return the interval of what is the same, which has both directions."""
        if self.low is None or self.high is None:
            return ""
        neutral = 0.0 if self.share else 1.0
        ends = [(end - neutral) * 100 for end in (self.low, self.high)]
        low, high = (_shown(end, max(map(abs, ends))) for end in ends)
        return f" [{low} – {high}]"

    def _lumps_text(self) -> str:
        share = show_percent(self.tolerance, ".2g")
        return f"{share} of a trial come at once: take longer trials" if self.tolerance else ""

    def _width(self) -> str:
        if self.low is None or self.high is None:
            return ""
        neutral = 0.0 if self.share else 1.0
        ends = [abs(end - neutral) for end in (self.low, self.high)]
        if LOPSIDED * min(ends) < max(ends):  # it leans to one direction, which is an answer, too
            return f"{self._around().strip()}{self._unit}"
        half = (self.high - self.low) / 2 if self.share else math.sqrt(self.high / self.low) - 1
        return f"±{_shown(half * 100, half * 100)}{self._unit}"


def compare_points(experiment: Experiment, results: Sequence[Result]) -> tuple[Comparison, ...]:
    """Return a comparison for each pair that the experiment compares, in its order."""
    answers = judge_claims(experiment, results)
    time_ns = block_ns(experiment, results)
    return tuple(
        replace(_comparison(pair, answers[claim_of(pair)], time_ns), experiment=experiment.name)
        for pair in experiment.compare
    )


def loss_comparisons(
    experiment: Experiment, results: Sequence[Result], comparisons: Sequence[Comparison]
) -> tuple[Comparison, ...]:
    """Return for each pair that its own metric does not tell apart the first that loss does.

    Rates are alike where a pace sets them, and struck out where others had the CPUs; counts are
    known all the same.
    """
    undecided = [
        pair
        for pair, each in zip(experiment.compare, comparisons, strict=True)
        if not experiment.searched and (not each.answered or each.verdict == SAME)
    ]
    known: dict[tuple[str, str], Comparison] = {}
    for metric in OF_LOSS:
        pairs = tuple(
            replace(pair, metric=metric, margin=margin_of(metric))
            for pair in undecided
            if pair.metric != metric and (pair.a, pair.b) not in known
        )
        tried = replace(experiment, compare=pairs, expect=())
        for each in compare_points(tried, results) if pairs else ():
            if is_difference(each):
                known[each.a, each.b] = each
    return tuple(known.values())


def is_difference(comparison: Comparison) -> bool:
    """Return whether two points are known to differ."""
    return comparison.answered and comparison.verdict not in (SAME, SKIPPED)


def without_replaced(results: Sequence[Result], comparisons: Sequence[Comparison]) -> list[Result]:
    """Return results without the invalid trials of points whose every comparison is answered.

    Other blocks were run in place of theirs.
    """
    all_answered: dict[tuple[str, str], bool] = {}
    for comparison in comparisons:
        for point in ((comparison.experiment, comparison.a), (comparison.experiment, comparison.b)):
            answered = comparison.answered and comparison.verdict != SKIPPED
            all_answered[point] = all_answered.get(point, True) and answered
    return [
        result
        for result in results
        if result.status != "done"
        or result.valid
        or not all_answered.get((result.trial.experiment, result.trial.point), False)
    ]


def block_ns(experiment: Experiment, results: Sequence[Result] = ()) -> int:
    """Return how long a further block takes: as its trials took, else by a built-in lab's plan."""
    compared = experiment.compared or {trial.point for trial in experiment.points}
    took: dict[str, list[int]] = {}
    for result in results:
        took.setdefault(result.trial.point, []).extend([result.took_ns] if result.took_ns else [])
    known = {point: sum(each) // len(each) for point, each in took.items() if each}
    points = [trial for trial in experiment.points if trial.point in compared]
    return sum(known.get(trial.point) or trial_ns(trial) for trial in points)


def compare_blocks(
    a: Sequence[Result], b: Sequence[Result], metric: str, margin: float
) -> Comparison:
    """Return the comparison of two points of one run, however it chose the number of its blocks."""
    first, second = a[0].trial, b[0].trial
    pair = PointPair(first.point, second.point, metric, margin, (FEWEST_BLOCKS,))
    plain = Experiment(
        first.experiment, "", "", "", None, (first, second), FEWEST_BLOCKS, (), (pair,)
    )
    return compare_points(plain, [*a, *b])[0]


def wants_block(experiment: Experiment, results: Sequence[Result], blocks: int) -> bool:
    """Return whether the comparisons of an experiment want another block after so many.

    Where the result of a trial is missing a look cannot be taken; none is wanted after it.
    """
    looks = experiment.looks
    if not looks or blocks < looks[0]:
        return bool(looks)
    compared = [result for result in results if result.trial.point in experiment.compared]
    known = len(compared) == blocks * len(experiment.compared)
    comparisons = compare_points(experiment, compared)
    most = looks[-1] + EXTRA_BLOCKS
    able = [
        each
        for each in comparisons
        if each.verdict not in (CANNOT_COMPARE, SKIPPED) and each.lost * 3 <= most
    ]
    extra = min(max((each.lost for each in able), default=0), EXTRA_BLOCKS)
    due = [look + extra for look in looks if blocks <= look + extra]
    if not able or not due or blocks < due[0]:
        return bool(able and due)
    return known and len(due) > 1 and any(not each.answered for each in able)


def compare_unpaired(a: Runs, b: Runs, metric: str, margin: float) -> Comparison:
    """Return the comparison of trials that share no blocks; each side has one at least."""
    return compare_all_unpaired([(a, b)], metric, margin)[0]


def compare_all_unpaired(
    points: Sequence[tuple[Runs, Runs]], metric: str, margin: float
) -> tuple[Comparison, ...]:
    """Return the same of several points, decided together as one family.

    The trials of the runs of a side are taken together. From three runs of one side on, the scatter
    between them is in the interval.
    """
    pairs = [_pair(both, metric, margin) for both in points]
    values = [_sides(pair, both) for pair, both in zip(pairs, points, strict=True)]
    due = [n for n, each in enumerate(values) if not each.verdict]
    family = [(values[n].a, values[n].b) for n in due]
    margins = [claim_of(pairs[n]).scaled_margin for n in due]
    decided = decide_unpaired(family, margins, [values[n].tolerance for n in due])
    effects = {
        n: widened(effect, limits, values[n].medians)
        for n, effect, limits in zip(due, decided, margins, strict=True)
    }
    return tuple(_unpaired(pair, values[n], effects.get(n)) for n, pair in enumerate(pairs))


def _pair(both: tuple[Runs, Runs], metric: str, margin: float) -> PointPair:
    a, b = (next(chain.from_iterable(runs)).trial.point for runs in both)
    return PointPair(a, b, metric, margin)


def more_text(blocks: int | None, time_ns: int | None, what: str = "block") -> str:
    """Return for example ``about 9 more blocks (2min)``; empty if the number is unknown.

    Beyond FAR_BLOCKS, or a day, what helps instead.
    """
    if blocks is None:
        return ""
    if blocks > FAR_BLOCKS or (time_ns or 0) > DAY_NS:
        return TOO_NOISY
    time = "" if time_ns is None else f" ({_time(time_ns)})"
    side = " of each side" if what == "trial" else ""
    return f"about {blocks} more {what}{'' if blocks == 1 else 's'}{side}{time}"


def _time(time_ns: int) -> str:
    """Return a time rounded up to a unit of which there are at least two."""
    units = (3600 * SECOND_NS, 60 * SECOND_NS, SECOND_NS)
    unit_ns = next((unit for unit in units if time_ns >= 2 * unit), SECOND_NS)
    return format_duration(-(-time_ns // unit_ns) * unit_ns)


def _comparison(pair: PointPair, answer: Judged, time_ns: int) -> Comparison:
    blocks, effect, why = answer
    plain = Comparison(
        pair.a,
        pair.b,
        pair.metric,
        pair.margin,
        SKIPPED if blocks.skipped else CANNOT_COMPARE if blocks.lack else CANNOT_TELL,
        blocks=len(blocks.effects),
        lost=blocks.lost,
        why=why,
        effects=tuple((n, claim_of(pair).natural(value)) for n, value in blocks.effects.items()),
        tolerance=math.expm1(blocks.tolerance),
    )
    if effect is None:
        return plain
    more_ns = None if effect.blocks_more is None else effect.blocks_more * time_ns
    return replace(_with_effect(plain, effect), more_ns=more_ns)


def _with_effect(plain: Comparison, effect: Effect) -> Comparison:
    words = words_of(plain.metric)
    estimate, low, high = (
        None if value is None else value if words.share else math.exp(value)
        for value in (effect.estimate, effect.low, effect.high)
    )
    return replace(
        plain,
        verdict={"less": words.less, "more": words.more}.get(effect.answer, effect.answer),
        worse=effect.answer == words.worse,
        ratio=None if words.share else estimate,
        difference=estimate if words.share else None,
        low=low,
        high=high,
        blocks=effect.blocks,
        blocks_more=effect.blocks_more,
    )


class _Sides(NamedTuple):
    """The numbers of two sides on the scale of an effect, or the verdict without a test."""

    a: list[float]
    b: list[float]
    lost: int = 0
    verdict: str = ""
    why: str = ""
    medians: tuple[list[float], ...] = ()
    """Medians of each run of a side that has numbers."""
    tolerance: float = 0.0


def _unpaired(pair: PointPair, sides: _Sides, effect: Effect | None) -> Comparison:
    """Return the comparison of two sides; without an effect they have a verdict."""
    plain = Comparison(
        pair.a,
        pair.b,
        pair.metric,
        pair.margin,
        sides.verdict,
        blocks=min(len(sides.a), len(sides.b)),
        lost=sides.lost,
        why=sides.why,
        paired=False,
        between_runs=any(len(medians) >= FEWEST_RUNS for medians in sides.medians),
        tolerance=math.expm1(sides.tolerance),
    )
    return plain if effect is None else _with_effect(plain, effect)


def _sides(pair: PointPair, sides: tuple[Runs, Runs]) -> _Sides:
    """Return what two sides say; trials that were skipped count on neither."""
    tried = [
        [[result for result in run if result.status != "skipped"] for run in runs] for runs in sides
    ]
    ran = [any(runs) for runs in tried]
    if not any(ran):
        return _Sides([], [], 0, SKIPPED)
    if not all(ran):
        return _Sides([], [], 0, CANNOT_TELL, f"skipped in {SIDES[ran[0]]}")
    claim = claim_of(pair)
    known: list[list[list[float]]] = []
    lost: list[tuple[int, int]] = []
    tolerances = [0.0]
    for side, runs in zip((claim.right, claim.left), tried, strict=True):
        counted = [[r for r in run if counts(r, side)] for run in runs]
        numbers = [[(r, side, value_of(r, side)) for r in run] for run in counted]
        number = sum(map(len, runs))
        lost.append((number - sum(map(len, counted)), number))
        lack = next(filter(None, (lacking(claim, run) for run in numbers)), "")
        if lack:
            return _Sides([], [], sum(few for few, _ in lost), CANNOT_COMPARE, lack)
        tolerances.append(tolerance_of((r, side) for run in counted for r in run))
        known.append([_scaled(claim, run) for run in numbers if run])
    medians = tuple([statistics.median(run) for run in runs] for runs in known)
    a, b = (list(chain.from_iterable(runs)) for runs in known)
    plain = _Sides(a, b, sum(few for few, _ in lost), medians=medians, tolerance=max(tolerances))
    for name, (few, number) in zip(SIDES, lost, strict=True):
        if few * 3 > number:
            why = f"{few} of {number} trials of {name} are left out: invalid, failed or struck out"
            return plain._replace(verdict=CANNOT_TELL, why=why)
    return plain


def _scaled(claim: Claim, values: Sequence[tuple[Result, Side, float | None]]) -> list[float]:
    """Return numbers of which none is missing on the scale of an effect."""
    known = [value for _, _, value in values if value is not None]
    return known if claim.shares else [math.log(value) for value in known]


def _shown(size: float, largest: float) -> str:
    """Return a size with the decimals that fit the largest of its row."""
    return f"{size:z.{2 if largest < 1 else 1 if largest < 100 else 0}f}".replace("-", "−")


def resolution(comparison: Comparison) -> dict[int, float] | None:
    """Return blocks → smallest change that is called in 80 of 100 attempts; None from few blocks.

    A ratio less 1, or a difference of shares.
    """
    values = [value for _, value in comparison.effects]
    if len(values) < FEWEST_BLOCKS or not comparison.paired:
        return None
    if len(set(values)) == 1 and not comparison.tolerance:
        return None  # nothing scattered: of all that was offered, or of what nobody lost
    if comparison.share:
        return {blocks: factor * statistics.stdev(values) for blocks, factor in RESOLVED.items()}
    deviation, least = statistics.stdev(map(math.log, values)), math.log1p(comparison.tolerance)
    return {blocks: math.expm1(factor * deviation + least) for blocks, factor in RESOLVED.items()}
