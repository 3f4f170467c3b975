"""The median of a metric over a point's valid trials, and its interval.

Owns the statistics over repetitions. An invalid trial is left out; there are no means.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import comb, exp, isqrt, lgamma, log
from statistics import median

from udpbench.analysis.points import Point, metric
from udpbench.metrics import unit_of
from udpbench.model import Estimate

CONFIDENCE = 0.95
SMALLEST_N_FOR_CONFIDENCE = 6
"""Below it not even smallest to largest covers the median with 95 % (1 − 2 × 0.5⁶ = 0.97)."""
SMALLEST_N_FOR_RANGE = 3
LARGEST_N_IN_INTEGERS = 1000
"""Their time grows with the cube: 4,000 values took 0.3 s, 100,000 would take an hour."""


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
