"""Which stages of the CPUs' time became cheaper, or dearer, between two points or two runs.

By differences in nanoseconds, since a stage that is gone has no ratio, and by Student's t: of a few
blocks ranks could not tell one stage of twenty. The intervals of all stages of a pair hold together
with 95 % (Bonferroni). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, median, variance

from udpbench.cpu_stages import STAGES
from udpbench.metrics import STAGED, at_stage
from udpbench.model.experiment import FEWEST_BLOCKS
from udpbench.model.result import Result

LEVEL = 0.05
"""The level of all stages of a pair together."""


@dataclass(frozen=True)
class StageChange:
    """By how much a stage differs in b from a, the base, in ns per packet."""

    a: str
    b: str
    stage: str
    a_ns: float
    b_ns: float
    """Medians of both."""
    change_ns: float
    low_ns: float
    high_ns: float

    @property
    def cheaper(self) -> bool:
        """Return whether it costs less in b."""
        return self.change_ns < 0


def stage_changes(
    a: Sequence[Result], b: Sequence[Result], paired: bool
) -> tuple[StageChange, ...]:
    """Return the stages that differ for certain, the largest change first.

    ``paired``: trials of the same repetition are a block. Trials without CPU time, invalid or
    struck out, are left out; of fewer than six blocks, or trials, nothing is told.
    """
    first, second = (
        {each.trial.repetition if paired else number: each for number, each in enumerate(side)}
        for side in (_sampled(a), _sampled(b))
    )
    if paired:
        both = sorted(first.keys() & second.keys())
        first, second = ({n: side[n] for n in both} for side in (first, second))
    if min(len(first), len(second)) < FEWEST_BLOCKS:
        return ()
    costs = {
        stage: ([_ns(r, stage) for r in first.values()], [_ns(r, stage) for r in second.values()])
        for stage in STAGES
    }
    known = {stage: sides for stage, sides in costs.items() if any(map(any, sides))}
    level = LEVEL / max(len(known), 1)
    names = [next(iter(side.values())).trial.point for side in (first, second)]
    changes = [
        StageChange(
            names[0], names[1], stage, median(x), median(y), *_interval(x, y, paired, level)
        )
        for stage, (x, y) in known.items()
    ]
    certain = (each for each in changes if each.low_ns > 0 or each.high_ns < 0)
    return tuple(sorted(certain, key=lambda change: -abs(change.change_ns)))


def changes_between(
    results: Sequence[Result], pairs: Iterable[tuple[str, str]]
) -> tuple[StageChange, ...]:
    """Return the stages that differ for certain between points of one run, pair by pair."""
    points: dict[str, list[Result]] = {}
    for result in results:
        points.setdefault(result.trial.point, []).append(result)
    sides = ((points.get(a, []), points.get(b, [])) for a, b in dict.fromkeys(pairs))
    return tuple(change for a, b in sides for change in stage_changes(a, b, paired=True))


def _interval(
    a: list[float], b: list[float], paired: bool, level: float
) -> tuple[float, float, float]:
    """Return the mean difference and the ends of its interval."""
    if paired:
        differences = [y - x for x, y in zip(a, b, strict=True)]
        square, freedom = variance(differences) / len(differences), len(differences) - 1
    else:
        square = variance(a) / len(a) + variance(b) / len(b)
        freedom = min(len(a), len(b)) - 1
    middle, half = fmean(b) - fmean(a), student(level, freedom) * sqrt(square)
    return middle, middle - half, middle + half


def student(level: float, freedom: int) -> float:
    """Return Student's t of a two-sided level, within 1 % from 5 degrees of freedom on.

    By its expansion around the normal quantile (Abramowitz and Stegun, 26.7.5).
    """
    z = NormalDist().inv_cdf(1 - level / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(sum(term / freedom**place for place, term in enumerate(terms)))


def _sampled(results: Sequence[Result]) -> list[Result]:
    return [r for r in results if r.valid and not r.struck and r.numbers.get(STAGED) is not None]


def _ns(result: Result, stage: str) -> float:
    """Return what a stage costs; 0 if no sample was there, as all others are known."""
    return result.numbers.get(at_stage(stage)) or 0.0
