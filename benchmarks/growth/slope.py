"""The slope of a cost on a log–log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence


def doubled(first: int, last: int) -> tuple[int, ...]:
    """Return a number, its double, and so on, up to the last."""
    return tuple(first << n for n in range((last // first).bit_length()))


def slope(numbers: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of the straight line through the logarithms, by least squares."""
    pairs = [(math.log(n), math.log(cost)) for n, cost in zip(numbers, costs, strict=True)]
    mean_x, mean_y = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    across = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return across / sum((x - mean_x) ** 2 for x, _ in pairs)
