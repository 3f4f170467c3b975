"""What a lab can resolve, from the scatter of its blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from udpbench.analysis.comparison.comparisons import RESOLVED, Comparison, resolution
from udpbench.analysis.comparison.effect import LOOKS, _rank, _signed_ranks

EFFECTS = (0.99, 1.01, 1.02, 0.98, 1.0, 1.03, 0.97)


def comparison(*values: float, metric: str = "delivered_pps", paired: bool = True) -> Comparison:
    """Return a comparison with these blocks."""
    effects = tuple(enumerate(values, start=1))
    return Comparison("a", "b", metric, 0.03, "same", effects=effects, paired=paired)


def called(effect: float, blocks: int) -> float:
    """Return how often the looks up to so many blocks call a normal effect, in its deviations."""
    draws = np.random.default_rng(7).normal(effect, 1, (20_000, blocks))
    decided = np.zeros(len(draws), dtype=bool)
    for count, look in LOOKS.items():
        own = draws[:, :count]
        ranks = np.argsort(np.argsort(np.abs(own), axis=1), axis=1) + 1
        statistic = (ranks * (own > 0)).sum(axis=1)
        outside = _rank(_signed_ranks(count), look.differs)
        assert outside is not None
        if count <= blocks:
            decided |= np.minimum(statistic, count * (count + 1) // 2 - statistic) <= outside
    return float(decided.mean())


@pytest.mark.parametrize("blocks", RESOLVED)
def test_what_is_resolved_is_called_in_four_of_five_attempts(blocks: int) -> None:
    """By the very looks that an experiment takes."""
    assert pytest.approx(0.8, abs=0.01) == called(RESOLVED[blocks], blocks)


def test_more_blocks_resolve_a_smaller_change() -> None:
    """As a ratio less 1, from the deviation of the blocks' logarithms."""
    few, many = (resolution(comparison(*EFFECTS)) or {}).values()
    deviation = float(np.std(np.log(EFFECTS), ddof=1))
    assert pytest.approx(math.expm1(1.86 * deviation)) == few
    assert 0 < many < few


def test_shares_are_resolved_by_their_difference() -> None:
    """Which may be 0 in a block, or negative."""
    blocks = (0.0, 0.01, -0.01, 0.02, 0.0, 0.01, 0.0)
    resolvable = resolution(comparison(*blocks, metric="loss_ratio"))
    deviation = float(np.std(blocks, ddof=1))
    assert resolvable == {n: pytest.approx(factor * deviation) for n, factor in RESOLVED.items()}


def test_few_blocks_and_two_runs_say_nothing() -> None:
    """There is no scatter of blocks."""
    assert (None, None) == (
        resolution(comparison(*EFFECTS[:5])),
        resolution(comparison(*EFFECTS, paired=False)),
    )
