"""A point of an experiment from its trials: the numbers of each, and their medians with intervals.

An invalid trial is counted in its point, and not among the valid ones; there are no means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb, exp, isqrt, lgamma, log
from statistics import median

from udpbench.analysis.ledger.ledger import lost_by_place, worst_place
from udpbench.analysis.ledger.stages import BEFORE_SENT
from udpbench.metrics import is_metric, is_timed, unit_of
from udpbench.model.result import Estimate, Result
from udpbench.units import show_ratio

CONFIDENCE = 0.95
SMALLEST_N_FOR_CONFIDENCE = 6
"""Below it not even smallest to largest covers the median with 95 % (1 − 2 × 0.5⁶ = 0.97)."""
SMALLEST_N_FOR_RANGE = 3
LARGEST_N_IN_INTEGERS = 1000
"""Their time grows with the cube: 4,000 values took 0.3 s, 100,000 would take an hour."""


@dataclass(frozen=True)
class Point:
    """All trials of one point, in the order of their repetitions."""

    experiment: str
    name: str
    results: tuple[Result, ...]

    @property
    def done(self) -> tuple[Result, ...]:
        """Return the trials that ran to their end, valid or not."""
        return tuple(result for result in self.results if result.status == "done")

    @property
    def valid(self) -> tuple[Result, ...]:
        """Return the trials whose numbers may be shown."""
        return tuple(result for result in self.results if result.valid)

    @property
    def skipped(self) -> bool:
        """Return whether the point could not be tried here at all."""
        return all(result.status == "skipped" for result in self.results)


def named_trial(point: Point, result: Result) -> str:
    """Return a trial of a point for reading: ``one #2``."""
    return f"{point.name or 'all'} #{result.trial.repetition}"


def trials_with(point: Point, name: str) -> tuple[Result, ...]:
    """Return the valid trials in which no finding strikes out a metric."""
    return tuple(result for result in point.valid if not (result.struck and is_timed(name)))


def points(results: Sequence[Result]) -> tuple[Point, ...]:
    """Return the points in the order in which they first appear, repetitions in order."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.trial.experiment, result.trial.point), []).append(result)
    return tuple(
        Point(experiment, name, tuple(sorted(group, key=lambda r: r.trial.repetition)))
        for (experiment, name), group in groups.items()
    )


def but_lossy(results: Sequence[Result]) -> str:
    """Return that some valid trials lost packets, behind what is said of others; else nothing."""
    valid = [result for result in results if result.valid]
    lossy = [result for result in valid if result.lost_packets]
    if not lossy:
        return ""
    worst = max(lossy, key=lambda result: result.loss_ratio or 0.0)
    ended = lost_by_place(worst.ledger) if worst.ledger is not None else {}
    place = worst_place({place: n for place, n in ended.items() if place not in BEFORE_SENT})
    share = f"{show_ratio(worst.loss_ratio or 0.0)}{f', most of it at {place}' if place else ''}"
    return f" But {len(lossy)} of {len(valid)} trials lost packets, up to {share}."


def metric(result: Result, name: str) -> float | None:
    """Return a numeric key of a result, or the packets of a ledger stage.

    None if it is unknown, or only known to lie between two numbers.
    """
    span = bounds(result, name)
    return span[0] if span is not None and span[0] == span[1] else None


def bounds(result: Result, name: str) -> tuple[float, float] | None:
    """Return the least and the most that a metric can be: the same where it is known exactly."""
    if name in result.spans:
        return result.spans[name]
    if is_metric(name):
        value = result.numbers.get(name)
        return (value, value) if value is not None else None
    named = result.ledger.named(name) if result.ledger is not None else ()
    spans = [
        (entry.packets or 0, (entry.packets or 0) if entry.at_most is None else entry.at_most)
        for entry in named
        if (entry.packets, entry.at_most) != (None, None)
    ]
    if not spans or len(spans) < len(named):
        return None  # of several nodes one cannot tell
    return sum(least for least, _ in spans), sum(most for _, most in spans)


def is_count(name: str) -> bool:
    """Return whether a metric counts packets, so that it must hold in every trial."""
    return unit_of(name) == "packets"


def estimate(point: Point, name: str) -> Estimate | None:
    """Return the median of a metric over the valid trials; None if none of them knows it."""
    known = (
        result.numbers.get(name) if name in result.spans else metric(result, name)
        for result in point.valid
    )
    values = sorted(value for value in known if value is not None)
    if not values:
        return None
    low, high = interval(values)
    return Estimate(median(values), low, high, len(values), unit_of(name))


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the interval of the median of sorted values.

    From six values, the 95 % interval between two order statistics (Conover, Practical
    Nonparametric Statistics, 3.2), which assumes no distribution; from three, smallest to largest,
    which covers less (75 % at three); below that, none.
    """
    if len(values) < SMALLEST_N_FOR_RANGE:
        return None, None
    if len(values) < SMALLEST_N_FOR_CONFIDENCE:
        return values[0], values[-1]
    rank = _rank(len(values))
    return values[rank - 1], values[-rank]


def _rank(n: int) -> int:
    """Return the quantile of Binomial(n, ½): scipy.stats takes a second to import."""
    if n <= LARGEST_N_IN_INTEGERS:
        below = accumulate(comb(n, k) for k in range(n))
        return next(k for k, ways in enumerate(below) if ways / 2**n >= (1 - CONFIDENCE) / 2)
    first = n // 2 - 4 * isqrt(n)  # 8 σ below the middle, under which are 1e-15
    chance = exp(lgamma(n + 1) - lgamma(first + 1) - lgamma(n - first + 1) - n * log(2))
    total = chance
    rank = first
    while total < (1 - CONFIDENCE) / 2:
        chance *= (n - rank) / (rank + 1)
        total, rank = total + chance, rank + 1
    return rank
