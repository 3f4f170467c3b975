"""The rounds of a tune, replayed from results at any time: which trials come next.

Each round compares its first point with the others in its own blocks, numbered consecutively, with
the comparison's statistics and all points of a round as one family. Rounds: the base alone;
candidates by its diagnosis, the best of which is kept and diagnosed again; the recipe without each
of its steps; base and recipe remeasured, which alone proves the gain. Pure. Long, because a round
is planned, played and judged in the same few words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, NamedTuple

from udpbench.analysis.comparison.blocks import counts, value_of
from udpbench.analysis.comparison.comparisons import (
    SAME,
    SKIPPED,
    Comparison,
    compare_points,
    wants_block,
)
from udpbench.analysis.remedies import TuningStep
from udpbench.metrics import margin_of, words_of
from udpbench.model.experiment import LOOKS, Experiment, PointPair, Side, Trial, Tune, trial_ns
from udpbench.model.result import Bottleneck, Result
from udpbench.tuning.steps import point_name, sets_of, steps_against, with_step

Kind = Literal["look", "try", "minimise", "prove"]
Derive = Callable[[str, tuple[str, ...]], Trial | None]
"""Name of a point and its ``path=value`` pairs → its trial; None if it is impossible."""
BASE, BEFORE, AFTER = "base", "before", "after"
"""Points: the experiment's own; and base and recipe as remeasured at the end."""
LOOK_BLOCKS = 3
"""Trials of the base before it is diagnosed by majority."""
MOST_AT_ONCE = 5
"""Maximum candidates per round: each further one makes a single difference harder to prove."""
NOTHING = "nothing"


@dataclass(frozen=True)
class PlannedRound:
    """A round before its first trial."""

    kind: Kind
    points: tuple[Trial, ...]
    """The first point is the baseline of the others."""
    steps: Mapping[str, tuple[TuningStep, ...]] = field(default_factory=dict)
    """Point → its steps."""
    tried: Mapping[str, TuningStep] = field(default_factory=dict)
    """Point → the step by which it differs from the first."""


@dataclass(frozen=True)
class TuningRound:
    """A round with its results so far."""

    planned: PlannedRound
    results: tuple[Result, ...]
    comparisons: tuple[Comparison, ...]
    blocks: int
    block: tuple[Trial, ...]
    """The next trials; empty if the round is over."""
    each_ns: int = 0
    """How long one of its trials takes: as measured, here or before; else at most."""
    out_of_time: bool = False

    @property
    def took_ns(self) -> int:
        """Return the total duration of its trials."""
        return sum(result.took_ns or 0 for result in self.results)

    @property
    def begun(self) -> bool:
        """Return whether any of its trials ran or comes next: the time may leave it out."""
        return bool(self.results or self.block)

    @property
    def needed_blocks(self) -> int:
        """Return after how many blocks its comparisons are looked at next."""
        return next((look for look in LOOKS if look > self.blocks), LOOKS[-1])

    @property
    def needs_ns(self) -> int:
        """Return how long it takes up to there."""
        return self.needed_blocks * len(self.planned.points) * self.each_ns

    @property
    def best(self) -> Comparison | None:
        """Return the comparison of the point that helps most; None if none does.

        Of several that help as much that of which fewest trials lost packets.
        """

        def rank(each: Comparison) -> tuple[float, float]:
            valid = [result for result in self.of_point(each.b) if result.valid]
            return gain(each), -sum(bool(r.lost_packets) for r in valid) / max(len(valid), 1)

        return max(filter(helps, self.comparisons), key=rank, default=None)

    @property
    def undecided(self) -> tuple[str, ...]:
        """Return the names of tried steps of which it is unknown whether they help."""
        known = {each.b for each in self.comparisons if helps(each) or is_useless(each)}
        return tuple(step.name for name, step in self.planned.tried.items() if name not in known)

    @property
    def broken(self) -> bool:
        """Return whether no trial of the first point ran, so nothing can be compared."""
        return self.planned.points[0].point in refused(self.results)

    def of_point(self, name: str) -> tuple[Result, ...]:
        """Return the results of a point."""
        return tuple(result for result in self.results if result.trial.point == name)


@dataclass(frozen=True)
class TuningEnd:
    """The outcome after the last round."""

    why: str
    """Why no further step is tried: a key of ``ENDINGS``."""
    limits: tuple[Bottleneck, ...] = ()
    """What limits the last kept point."""
    steps: tuple[TuningStep, ...] = ()
    """The recipe; empty if nothing was kept."""
    proof: Comparison | None = None


ENDINGS = {
    "nothing limits": "nothing limits it",
    "nothing left": "no step is left to try",
    "nothing helps": "no tried step helps",
    "undecided": "whether a tried step helps is undecided",
    "time": "the time limit was reached",
    "broken": "a trial of the kept steps failed",
    "undiagnosed": "no trial could be diagnosed",
    "unmeasured": "trials of the base lack this metric",
}


@dataclass(frozen=True)
class Tuning:
    """State of a tune."""

    tune: Tune
    base: Trial
    rounds: tuple[TuningRound, ...]
    ending: TuningEnd | None
    """None: trials are missing."""

    @property
    def block(self) -> tuple[Trial, ...]:
        """Return the next trials; empty after the last."""
        return self.rounds[-1].block if self.ending is None else ()

    @property
    def points(self) -> tuple[Trial, ...]:
        """Return every point once, in order of appearance."""
        points = chain.from_iterable(each.planned.points for each in self.rounds if each.begun)
        return tuple({trial.point: trial for trial in points}.values())

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Return those of all rounds."""
        return tuple(chain.from_iterable(each.comparisons for each in self.rounds if each.begun))

    @property
    def proven(self) -> Comparison | None:
        """Return the comparison that proves the recipe; None without one."""
        proof = self.ending.proof if self.ending is not None else None
        return proof if proof is not None and helps(proof) else None

    @property
    def first_limits(self) -> tuple[Bottleneck, ...]:
        """Return what limits the base."""
        return limiting(self.rounds[0].results)

    @property
    def refuted(self) -> dict[str, tuple[Comparison, ...]]:
        """Return diagnosis without an effective remedy → the comparisons that show it."""
        by_base: dict[str, list[Comparison]] = {}
        for each in self.rounds:
            for comparison in each.comparisons if each.planned.kind == "try" else ():
                against = each.planned.tried[comparison.b].against
                by_base.setdefault(against, []).append(comparison)
        return {
            name: tuple(comparisons)
            for name, comparisons in by_base.items()
            if all(is_useless(comparison) for comparison in comparisons)
        }

    @property
    def undecided(self) -> tuple[Comparison, ...]:
        """Return the comparisons of tried steps that leave open whether these help."""
        return tuple(each for each in self.without_help if not is_useless(each))

    @property
    def whole_ns(self) -> int:
        """Return how long it takes with all trials of its last round."""
        *before, last = self.rounds
        trials = LOOKS[-1] * len(last.planned.points)
        return sum(each.took_ns for each in before) + trials * last.each_ns

    @property
    def without_help(self) -> tuple[Comparison, ...]:
        """Return the comparisons of tried steps that do not help."""
        rounds = (each for each in self.rounds if each.begun and not each.block)
        tries = (each for each in rounds if each.planned.kind == "try")
        return tuple(c for each in tries for c in each.comparisons if not helps(c))


def tuning_of(experiment: Experiment, results: Sequence[Result], derive: Derive) -> Tuning:
    """Return the state of an experiment's tune after some results, with searches folded.

    Equal results give equal rounds; ValueError if the experiment is not a tune.
    """
    if experiment.tune is None:
        raise ValueError(f"{experiment.name} is not a tune")
    course = _course(experiment, experiment.tune, derive)
    rounds: list[TuningRound] = []
    ending: TuningEnd | None = None
    base, first, left_ns = experiment.points[0], 1, experiment.tune.within_ns
    try:
        planned = next(course)
        while True:
            each_ns = _each_ns(planned, rounds)
            rounds.append(_played(planned, experiment, results, first, left_ns, each_ns))
            if rounds[-1].block:
                break
            first, left_ns = first + rounds[-1].blocks, left_ns - rounds[-1].took_ns
            planned = course.send(rounds[-1])
    except StopIteration as end:
        ending = end.value
    return Tuning(experiment.tune, base, tuple(rounds), ending)


# --- the course -----------------------------------------------------------------------------------


class _Best(NamedTuple):
    """The best point so far."""

    trial: Trial
    steps: tuple[TuningStep, ...]


_Way = Generator[PlannedRound, TuningRound, TuningEnd]


def _course(experiment: Experiment, tune: Tune, derive: Derive) -> _Way:
    """Yield each planned round, receive it with results; return the outcome."""
    base = experiment.points[0]
    look = yield PlannedRound("look", (base,))
    limits, kept = limiting(look.results), _Best(base, ())
    useless: list[TuningStep] = []
    why = _unusable(look, tune.metric, limits)
    while not why:
        planned = _candidates(limits, kept, tune, derive, useless)
        if limits[0].name == NOTHING or planned is None:
            why = "nothing limits" if limits[0].name == NOTHING else "nothing left"
            break
        tried = yield planned
        helped = {c.b for c in tried.comparisons if helps(c)}
        useless += [step for name, step in planned.tried.items() if name not in helped]
        if tried.best is not None:
            kept = _point(planned, tried.best.b)
            limits = limiting(tried.of_point(kept.trial.point)) or limits
        why = _why(tried, limits)
    if not kept.steps:
        return TuningEnd(why, limits)
    if why not in ("time", "broken"):
        kept = yield from _minimised(kept, derive)
    before = replace(base, point=BEFORE, variant=BEFORE)
    after = replace(kept.trial, point=AFTER, variant=AFTER)
    proof = yield PlannedRound("prove", (before, after), {AFTER: kept.steps})
    return TuningEnd(why, limits, kept.steps, next(iter(proof.comparisons), None))


def _unusable(look: TuningRound, metric: str, limits: Sequence[Bottleneck]) -> str:
    """Return why nothing can be compared with a base; empty if it can, or need not be."""
    if not limits:
        return "undiagnosed"
    side = Side(1.0, metric)
    usable = [r for r in look.results if counts(r, side) and value_of(r, side) is not None]
    enough = 3 * len(usable) >= 2 * len(look.results)
    return "" if enough or limits[0].name == NOTHING else "unmeasured"


def _why(tried: TuningRound, limits: Sequence[Bottleneck]) -> str:
    """Return why no step is tried after a round; empty if one may be."""
    if tried.broken or limits[0].name == NOTHING:
        return "broken" if tried.broken else "nothing limits"
    if tried.out_of_time:
        return "time"
    if tried.best is not None:
        return ""
    return "undecided" if tried.undecided else "nothing helps"


def _candidates(
    limits: Sequence[Bottleneck],
    kept: _Best,
    tune: Tune,
    derive: Derive,
    useless: Sequence[TuningStep],
) -> PlannedRound | None:
    """Return a round of steps on top of the kept ones; None if there is none to try."""
    points, steps, tried = [kept.trial], {kept.trial.point: kept.steps}, {}
    for step in steps_against(limits, tune, (*useless, *kept.steps)):
        both = with_step(kept.steps, step)
        name = point_name(both)
        trial = derive(name, sets_of(both)) if name not in steps else None
        if trial is not None and not any(_is_alike(trial, other) for other in points):
            points.append(trial)
            steps[name], tried[name] = both, step
        if len(tried) == MOST_AT_ONCE:
            break
    return PlannedRound("try", tuple(points), steps, tried) if tried else None


def _minimised(kept: _Best, derive: Derive) -> Generator[PlannedRound, TuningRound, _Best]:
    """Remove each step once, and the least useful one permanently; repeat while one is removed."""
    while len(kept.steps) > 1:
        points, steps, taken = [kept.trial], {kept.trial.point: kept.steps}, {}
        for step in kept.steps:
            others = tuple(each for each in kept.steps if each != step)
            name = point_name(others)
            trial = derive(name, sets_of(others))
            if trial is not None:
                points.append(trial)
                steps[name], taken[name] = others, step
        planned = PlannedRound("minimise", tuple(points), steps, taken)
        measured = yield planned
        spared = [c for c in measured.comparisons if is_useless_without(c)]
        if not spared:
            return kept
        kept = _point(planned, max(spared, key=gain).b)
        if measured.out_of_time:
            return kept
    return kept


def _point(planned: PlannedRound, name: str) -> _Best:
    (trial,) = (each for each in planned.points if each.point == name)
    return _Best(trial, planned.steps[name])


def _is_alike(trial: Trial, other: Trial) -> bool:
    """Return whether two points differ only in their names."""
    return replace(trial, point="", variant=None) == replace(other, point="", variant=None)


# --- a round -------------------------------------------------------------------------------------


def _played(
    planned: PlannedRound,
    experiment: Experiment,
    results: Sequence[Result],
    first: int,
    left_ns: int,
    each_ns: int,
) -> TuningRound:
    """Return a round with its results, which have repetitions from ``first`` on.

    ``each_ns`` is what a trial takes as far as is known before the round.
    """
    by_block: dict[int, list[Result]] = {}
    for result in results:
        by_block.setdefault(result.trial.repetition, []).append(result)
    own: list[Result] = []
    blocks = 0
    while True:
        points = _usable(planned, own)
        block = tuple(replace(point, repetition=first + blocks) for point in points)
        compared = _compared(experiment, points)
        each_ns = _mean_ns(own) or each_ns
        over = _is_over(planned, own, left_ns, each_ns)
        there = by_block.get(first + blocks, [])
        wants_more = not over and _wants(planned, compared, own, blocks)
        complete = {trial.point for trial in block} <= {result.trial.point for result in there}
        if not wants_more or not complete:
            own += there if wants_more else []
            comparisons = compare_points(compared, own)
            block = block if wants_more else ()
            return TuningRound(planned, tuple(own), comparisons, blocks, block, each_ns, over)
        own += there
        blocks += 1


def _usable(planned: PlannedRound, results: Sequence[Result]) -> tuple[Trial, ...]:
    """Return the points that no host refused; those of look and proof have run before."""
    if planned.kind in ("look", "prove"):
        return planned.points
    without = refused(results)
    return tuple(point for point in planned.points if point.point not in without)


def refused(results: Sequence[Result]) -> dict[str, Result]:
    """Return each point of which no trial ran → its result: a host may refuse what a step sets."""
    ran = {result.trial.point for result in results if result.status == "done"}
    return {result.trial.point: result for result in results if result.trial.point not in ran}


def _compared(experiment: Experiment, points: Sequence[Trial]) -> Experiment:
    """Return an experiment that compares the first point with each of the others."""
    metric = experiment.tune.metric if experiment.tune is not None else experiment.headline
    pairs = tuple(
        PointPair(points[0].point, other.point, metric, margin_of(metric), LOOKS)
        for other in points[1:]
    )
    return replace(
        experiment, points=tuple(points), compare=pairs, expect=(), tune=None, repetitions=1
    )


def _wants(
    planned: PlannedRound, compared: Experiment, results: Sequence[Result], blocks: int
) -> bool:
    """Return whether a round needs another block after so many."""
    if planned.kind == "look":
        return blocks < LOOK_BLOCKS
    names = [point.point for point in compared.points]
    if planned.points[0].point not in names or len(names) < 2:
        return False
    mine = [result for result in results if result.trial.point in names]
    return not _is_chosen(planned, compared, mine, blocks) and wants_block(compared, mine, blocks)


def _is_chosen(
    planned: PlannedRound, compared: Experiment, results: Sequence[Result], blocks: int
) -> bool:
    """Return whether the best candidate is known, whatever the others do; it is proven later."""
    if planned.kind != "try" or blocks not in LOOKS:
        return False
    comparisons = compare_points(compared, results)
    best = max(filter(helps, comparisons), key=gain, default=None)
    return best is not None and all(gain(each) <= gain(best) for each in comparisons)


def _mean_ns(results: Sequence[Result]) -> int | None:
    """Return how long a trial took on average; None if that is not known."""
    took_ns = [result.took_ns for result in results if result.took_ns]
    return sum(took_ns) // len(took_ns) if took_ns else None


def _each_ns(planned: PlannedRound, rounds: Sequence[TuningRound]) -> int:
    """Return how long a trial takes: as in the latest round that measured any, else at most."""
    known = (each_ns for each in reversed(rounds) if (each_ns := _mean_ns(each.results)))
    return next(known, trial_ns(planned.points[0]))


def _is_over(planned: PlannedRound, results: Sequence[Result], left_ns: int, each_ns: int) -> bool:
    """Return whether another block would exceed the time limit; the proof is always measured."""
    if planned.kind in ("look", "prove"):
        return False
    spent_ns = sum(result.took_ns or 0 for result in results)
    return spent_ns + len(planned.points) * each_ns > left_ns


# --- what a comparison says ----------------------------------------------------------------------


def helps(comparison: Comparison) -> bool:
    """Return whether a point is better than its baseline."""
    answered = comparison.answered and comparison.verdict not in (SAME, SKIPPED)
    return answered and not comparison.worse


def is_useless(comparison: Comparison) -> bool:
    """Return whether a point is known not to be better."""
    return comparison.verdict == SAME or comparison.worse


def is_useless_without(comparison: Comparison) -> bool:
    """Return whether a recipe is as good without the removed step."""
    return comparison.verdict == SAME or helps(comparison)


def gain(comparison: Comparison) -> float:
    """Return how much better a point is: the logarithm of a ratio, or a difference of shares."""
    ratio = math.log(comparison.ratio) if comparison.ratio else 0.0
    size = comparison.difference or 0.0 if comparison.share else ratio
    return -size if words_of(comparison.metric).worse == "more" else size


def limiting(results: Sequence[Result]) -> tuple[Bottleneck, ...]:
    """Return what limits a point: the diagnosis of most of its trials first, then others.

    With the sentence of the trial that lost most by it. "Nothing limits" counts for valid trials
    only: for others the ledger may not know where packets ended.
    """
    diagnosed = [
        result.diagnosis
        for result in results
        if result.diagnosis and (result.valid or result.diagnosis[0].name != NOTHING)
    ]
    if not diagnosed:
        return ()
    name, _ = Counter(each[0].name for each in diagnosed).most_common(1)[0]
    most = max(
        (each for each in diagnosed if each[0].name == name), key=lambda each: each[0].packets
    )
    known = {bottleneck.name for bottleneck in most}
    others = {each[0].name: each[0] for each in diagnosed if each[0].name not in known}
    others.pop(NOTHING, None)
    return (*most, *others.values())
