"""What a lab can resolve: the smallest change that its comparisons call, by the scatter of blocks.

Pure.
"""

from __future__ import annotations

import math
from statistics import stdev

from udpbench.analysis.comparison.comparisons import Comparison
from udpbench.model import FEWEST_BLOCKS

RESOLVED = {7: 1.86, 15: 0.85}
"""Blocks → true effect, in standard deviations of a block's, that the looks at 7, 11 and 15 blocks
call by then in 80 of 100 attempts, if the scatter is normal; ``test_resolution.py`` recomputes."""


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
        return {blocks: factor * stdev(values) for blocks, factor in RESOLVED.items()}
    deviation, least = stdev(map(math.log, values)), math.log1p(comparison.tolerance)
    return {blocks: math.expm1(factor * deviation + least) for blocks, factor in RESOLVED.items()}
