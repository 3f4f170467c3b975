"""The effect between two points: estimate, interval, decision.

Owns the statistics of a comparison. Pure: one number a block in, an Effect out. The number is
ln(b / a), or b − a for shares of packets. Over the blocks the Hodges–Lehmann estimate, with the
interval of the exact Wilcoxon signed-rank test (Hollander, Wolfe, Chicken, Nonparametric
Statistical Methods, 3.1 to 3.3), zeros after Pratt (JASA 54, 1959). Blocks are paired because what
drifts on a machine falls on both alike; of the distribution of their differences the test assumes
only that it is symmetric. Of two runs, which have no blocks in common, the same with the
Mann–Whitney test (4.1 to 4.3), whose chances are those of the normal distribution for many trials.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist, stdev
from typing import Literal, NamedTuple

Answer = Literal["less", "more", "same", "cannot tell"]


class Look(NamedTuple):
    """The two-sided levels at which a family of comparisons is decided after so many blocks."""

    differs: float
    same: float
    """Twice the level of each of the two one-sided tests of equivalence."""


LOOKS = {7: Look(0.0157, 0.0313), 11: Look(0.02, 0.04), 15: Look(0.031, 0.062)}
"""Blocks → levels. Of equal points 4.9 % are called different at any of the three looks, of points
that differ by the margin 4.3 % the same; ``tests/unit/analysis/test_effect.py`` recomputes both."""
SINGLE_LOOK = Look(0.05, 0.1)


STUDENT = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t at 97.5 % for 2 degrees of freedom and more; beyond the last it falls little."""
FEWEST_RUNS = 3
"""With fewer runs of one side nothing is known of the scatter between them."""


EXACT_STEPS = 2**20
"""Limit of Mann–Whitney's ways to count, few² × many: 0.3 s, with 100 trials on each side;
600 took 167 s. Beyond it the normal distribution differs by 0.003 at most."""
LISTED_SHIFTS = 2**14
"""Beyond them shifts are counted, not listed."""
HALVINGS = 64
"""Leave 2⁻⁶⁴ of what lies between the ends, in which a single shift or equal ones remain."""


class Margin(NamedTuple):
    """Effects that nobody cares about lie between these two, on the scale of the blocks."""

    low: float
    high: float


@dataclass(frozen=True)
class Effect:
    """What the blocks say of b against a, on their scale."""

    answer: Answer
    estimate: float
    low: float | None
    """None if so few blocks bound nothing at this level."""
    high: float | None
    blocks: int
    blocks_more: int | None
    """How many more blocks would decide; None once decided, and where no number would."""


def decide(
    family: Sequence[Sequence[float]],
    margins: Sequence[Margin | None],
    look: Look,
    tolerances: Sequence[float] = (),
) -> tuple[Effect, ...]:
    """Return the effect of each comparison of a family that is decided at once.

    ``family`` has for each comparison a number per block, at least one; ``margins`` is as long, and
    so are ``tolerances``: how far the numbers may be off all alike, which no block shows. The
    share of false differences among those called, and of false equalities, stays within the level
    (Benjamini and Hochberg, JRSS B 57, 1995), and each interval is of the level that its answer has
    (Benjamini and Yekutieli, JASA 100, 2005), so that answer and interval never disagree.
    """
    pairs = zip(family, tolerances or [0.0] * len(family), strict=True)
    return _decided([_of_blocks(*pair) for pair in pairs], margins, look)


def decide_unpaired(
    family: Sequence[tuple[Sequence[float], Sequence[float]]],
    margins: Sequence[Margin | None],
    tolerances: Sequence[float] = (),
) -> tuple[Effect, ...]:
    """Return the same of comparisons whose trials of a and b share no blocks.

    ``family`` has for each the numbers of a and of b, at least one of each, on the scale of their
    difference. What changes between the two sides besides is in no interval.
    """
    pairs = zip(family, tolerances or [0.0] * len(family), strict=True)
    return _decided([_of_sides(a, b, each) for (a, b), each in pairs], margins, SINGLE_LOOK)


def widened(effect: Effect, margin: Margin | None, sides: Sequence[Sequence[float]]) -> Effect:
    """Return an effect whose interval has the scatter between runs, too, if a side shows it.

    ``sides`` has the medians of the runs of each side, one at least. Three or more of one side show
    the scatter; a side with fewer is taken to scatter as the other does. An answer that the wider
    interval does not bear out cannot be told.
    """
    known = [medians for medians in sides if len(medians) >= FEWEST_RUNS]
    if effect.low is None or effect.high is None or not known:
        return effect
    freedom = sum(len(medians) - 1 for medians in known)
    variance = sum((len(medians) - 1) * stdev(medians) ** 2 for medians in known) / freedom
    student = STUDENT[min(freedom + 1 - FEWEST_RUNS, len(STUDENT) - 1)]
    scatter = student * math.sqrt(variance * sum(1 / len(medians) for medians in sides))
    low = effect.estimate - math.hypot(effect.estimate - effect.low, scatter)
    high = effect.estimate + math.hypot(effect.high - effect.estimate, scatter)
    inside = margin is not None and margin.low < low and high < margin.high
    borne_out = {"less": high < 0, "more": low > 0, "same": inside}.get(effect.answer, True)
    wider = replace(effect, low=low, high=high)
    return wider if borne_out else replace(wider, answer="cannot tell", blocks_more=None)


def levels_of(looks: Sequence[int]) -> dict[int, Look]:
    """Return the levels at each of the looks of a comparison; a single one has its own."""
    return {look: LOOKS[look] if len(looks) > 1 else SINGLE_LOOK for look in looks}


def blocks_needed(comparisons: int, differs: float) -> int:
    """Return the fewest blocks with which a lone difference among so many can be called."""
    level = differs / comparisons
    return next(n for n in range(1, 1000) if 2 / 2**n <= level)


class _Listed:
    """All shifts, in order."""

    def __init__(self, shifts: Sequence[float]) -> None:
        self._shifts = array("d", sorted(shifts))

    def __len__(self) -> int:
        return len(self._shifts)

    def __getitem__(self, rank: int) -> float:
        return self._shifts[rank]

    def up_to(self, most: float) -> int:
        """Return how many shifts are at most so large."""
        return bisect_right(self._shifts, most)

    def from_on(self, least: float) -> int:
        """Return how many shifts are at least so large."""
        return len(self) - bisect_left(self._shifts, least)


class _Counted:
    """The same of two sides whose shifts are too many to list: each look takes a + b steps."""

    def __init__(self, a: Sequence[float], b: Sequence[float]) -> None:
        self._a, self._b = sorted(a), sorted(b)

    def __len__(self) -> int:
        return len(self._a) * len(self._b)

    def __getitem__(self, rank: int) -> float:
        low, high = self._b[0] - self._a[-1], self._b[-1] - self._a[0]
        if self.up_to(low) > rank:
            return low
        for _ in range(HALVINGS):
            middle = low + (high - low) / 2
            low, high = (low, middle) if self.up_to(middle) > rank else (middle, high)
        places = self._places(low)
        return min(self._b[y] - x for x, y in zip(self._a, places, strict=True) if y < len(self._b))

    def _places(self, most: float) -> list[int]:
        """Return for each x, in order, how many y are at most so much larger."""
        places, y = [], 0
        for x in self._a:
            while y < len(self._b) and self._b[y] - x <= most:
                y += 1
            places.append(y)
        return places

    def up_to(self, most: float) -> int:
        return sum(self._places(most))

    def from_on(self, least: float) -> int:
        return len(self) - self.up_to(math.nextafter(least, -math.inf))


class _Exact:
    """P(statistic ≤ w) of equal points for each w; the statistic counts shifts on a side of 0."""

    def __init__(self, at_most: Sequence[float]) -> None:
        self._at_most = at_most

    def at_most(self, few: int) -> float:
        return self._at_most[few]

    def rank(self, level: float) -> int | None:
        """Return how many shifts lie outside the interval at either end; None if none may."""
        return _rank(self._at_most, level)


class _Normal:
    """The same of many trials by the normal distribution, with a correction for continuity.

    Not for ties: they count on both sides, as in the exact test.
    """

    def __init__(self, few: int, many: int) -> None:
        variance = few * many * (few + many + 1) / 12
        self._bell = NormalDist(few * many / 2 - 0.5, math.sqrt(variance))

    def at_most(self, few: int) -> float:
        return self._bell.cdf(few)

    def rank(self, level: float) -> int | None:
        rank = math.ceil(self._bell.inv_cdf(level / 2))
        while rank >= 0 and self.at_most(rank) > level / 2:
            rank -= 1
        return rank if rank >= 0 else None


class _Sample(NamedTuple):
    """What a test knows of one comparison."""

    shifts: _Listed | _Counted
    """The estimate is their median, the interval lies between two of them."""
    chances: _Exact | _Normal
    p: float
    """Two-sided, of no effect."""
    sizes: tuple[int, ...]
    """How many blocks, or how many trials on each side."""
    tolerance: float = 0.0
    """All numbers together may be off by so much in either direction."""

    @property
    def blocks(self) -> int:
        return min(self.sizes)

    @property
    def median(self) -> float:
        middle = len(self.shifts) // 2
        if len(self.shifts) % 2:
            return self.shifts[middle]
        return (self.shifts[middle - 1] + self.shifts[middle]) / 2


def _of_blocks(effects: Sequence[float], tolerance: float) -> _Sample:
    shifts = _Listed([(x + y) / 2 for i, x in enumerate(effects) for y in effects[i:]])
    chances = _Exact(_signed_ranks(len(effects)))
    p = max(_differs(effects), _outside(shifts, chances, tolerance))
    return _Sample(shifts, chances, p, (len(effects),), tolerance)


def _of_sides(a: Sequence[float], b: Sequence[float], tolerance: float) -> _Sample:
    few, many = sorted((len(a), len(b)))
    listed = few * many <= LISTED_SHIFTS
    shifts = _Listed([y - x for x in a for y in b]) if listed else _Counted(a, b)
    is_exact = few * few * many <= EXACT_STEPS
    chances = _Exact(_mann_whitney(few, many)) if is_exact else _Normal(few, many)
    p = _outside(shifts, chances, tolerance)
    return _Sample(shifts, chances, p, (len(a), len(b)), tolerance)


def _outside(shifts: _Listed | _Counted, chances: _Exact | _Normal, tolerance: float) -> float:
    """Return the least two-sided level whose interval excludes 0.

    A shift within the tolerance counts on both sides, which errs towards no difference.
    """
    few = min(shifts.up_to(tolerance), shifts.from_on(-tolerance))
    return min(1.0, 2 * chances.at_most(few))


def _decided(
    family: Sequence[_Sample], margins: Sequence[Margin | None], look: Look
) -> tuple[Effect, ...]:
    both = list(zip(family, margins, strict=True))
    differs = _adjusted([sample.p for sample in family], look.differs)
    same = _adjusted([_same(*each) for each in both if each[1] is not None], look.same)
    return tuple(_effect(sample, margin, differs, same) for sample, margin in both)


def _effect(sample: _Sample, margin: Margin | None, differs: float, same: float) -> Effect:
    estimate = sample.median
    low, high = _interval(sample, differs)
    if margin is not None and _same(sample, margin) <= same:
        low, high = _interval(sample, same)
        return Effect("same", estimate, low, high, sample.blocks, None)
    if low is not None and high is not None and sample.p <= differs:
        answer: Answer = "more" if estimate > 0 else "less"
        return Effect(answer, estimate, low, high, sample.blocks, None)
    if low is None or high is None:
        more: int | None = _missing(sample.sizes, differs)
    else:
        more = _blocks_more(sample, estimate, high - low, margin)
    return Effect("cannot tell", estimate, low, high, sample.blocks, more)


def _missing(sizes: Sequence[int], level: float) -> int:
    """Return how many more blocks, or trials of each side, can reach a level at all."""
    if len(sizes) == 1:
        return max(blocks_needed(1, level) - sizes[0], 1)
    a, b = sizes
    return next(m for m in range(1, 1000) if 2 / math.comb(a + b + 2 * m, a + m) <= level)


def _blocks_more(
    sample: _Sample, estimate: float, width: float, margin: Margin | None
) -> int | None:
    """Return how many more blocks make the interval narrow enough: its width falls as 1/√blocks.

    The tolerance in it stays.
    """
    targets = [abs(estimate)]
    if margin is not None:
        targets.append(min(margin.high - estimate, estimate - margin.low))
    target, width = max(targets) - sample.tolerance, width - 2 * sample.tolerance
    if target <= 0 or width <= 0:
        return None
    return max(math.ceil(sample.blocks * (width / 2 / target) ** 2) - sample.blocks, 1)


def _adjusted(p_values: Sequence[float], level: float) -> float:
    """Return the level of each test at which a family keeps its false discovery rate."""
    count = max(len(p_values), 1)
    passed = (k for k, p in enumerate(sorted(p_values), 1) if p <= level * k / count)
    return level * max(passed, default=1) / count


@lru_cache(maxsize=64)
def _signed_ranks(blocks: int) -> tuple[float, ...]:
    """Return P(W ≤ w) for each w of the signed-rank statistic of so many blocks without ties."""
    ways = _ways(tuple(range(1, blocks + 1)))
    return tuple(total / 2**blocks for total in accumulate(ways))


@lru_cache(maxsize=64)
def _mann_whitney(few: int, many: int) -> tuple[float, ...]:
    """Return P(U ≤ u) for each u of the Mann–Whitney statistic of two samples without ties.

    Its ways are the Gaussian binomial coefficients: ∏ (1 − qᵐᵃⁿʸ⁺ⁱ) / (1 − qⁱ) over i to ``few``.
    """
    ways = [1] + [0] * (few * many)
    for i in range(1, few + 1):
        for total in range(len(ways) - 1, many + i - 1, -1):
            ways[total] -= ways[total - many - i]
        for total in range(i, len(ways)):
            ways[total] += ways[total - i]
    return tuple(total / math.comb(few + many, few) for total in accumulate(ways))


@lru_cache(maxsize=64)
def _ways(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return in how many ways of choosing signs the positive ranks sum to each total."""
    # Digits of one number: of 200 blocks a list of them took a second.
    digit = len(ranks) // 8 + 1
    product = 1
    for rank in ranks:
        product += product << 8 * digit * rank
    plain = product.to_bytes(digit * (sum(ranks) + 1), "little")
    return tuple(
        int.from_bytes(plain[place : place + digit], "little")
        for place in range(0, len(plain), digit)
    )


def _interval(sample: _Sample, level: float) -> tuple[float | None, float | None]:
    """Return the interval of the shift; None if so few blocks bound nothing at this level.

    It reaches 0 where zeros or ties keep the test from telling.
    """
    rank = sample.chances.rank(level)
    if rank is None:
        return None, None
    low = sample.shifts[rank] - sample.tolerance
    high = sample.shifts[len(sample.shifts) - 1 - rank] + sample.tolerance
    if sample.p > level:
        low, high = min(low, 0.0), max(high, 0.0)
    return low, high


def _rank(at_most: Sequence[float], level: float) -> int | None:
    rank = bisect_right(at_most, level / 2) - 1
    return rank if rank >= 0 else None


def _differs(effects: Sequence[float]) -> float:
    """Return the exact two-sided p-value of no effect."""
    sizes = sorted({abs(effect) for effect in effects})
    first = 1
    doubled = {}  # a mid-rank may be a half
    for size in sizes:
        ties = sum(abs(effect) == size for effect in effects)
        doubled[size] = 2 * first + ties - 1
        first += ties
    ranks = tuple(sorted(doubled[abs(effect)] for effect in effects if effect != 0))
    positive = sum(doubled[effect] for effect in effects if effect > 0)
    ways = _ways(ranks)
    low, high = sum(ways[: positive + 1]), sum(ways[positive:])
    return min(1.0, 2 * min(low, high) / 2.0 ** len(ranks))


def _same(sample: _Sample, margin: Margin | None) -> float:
    """Return the smallest level whose interval lies within the margin; 1 without a margin."""
    if margin is None:
        return 1.0
    below = sample.shifts.up_to(margin.low + sample.tolerance)
    above = sample.shifts.from_on(margin.high - sample.tolerance)
    return min(1.0, 2 * sample.chances.at_most(max(below, above)))
