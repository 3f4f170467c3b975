"""The median of a metric over a point's valid trials, and its interval.

Owns the statistics over repetitions. An invalid trial is never averaged; there are no means.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import comb
from statistics import median

from udpbench.analysis.points import Point, metric
from udpbench.metrics import unit_of
from udpbench.model import Estimate

CONFIDENCE = 0.95
SMALLEST_N_FOR_CONFIDENCE = 6
"""Below it not even smallest to largest covers the median with 95 % (1 − 2 × 0.5⁶ = 0.97)."""
SMALLEST_N_FOR_RANGE = 3


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
    # The quantile of Binomial(n, ½), in integers: scipy.stats takes a second to import.
    n = len(values)
    below = accumulate(comb(n, k) for k in range(n))
    rank = next(k for k, ways in enumerate(below) if ways / 2**n >= (1 - CONFIDENCE) / 2)
    return values[rank - 1], values[-rank]
