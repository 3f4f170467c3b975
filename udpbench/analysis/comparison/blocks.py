"""What is compared block by block: the claims of an experiment, their blocks and their effects.

Owns what a block is worth, and which claims are decided together. The statistic is ``effect``'s.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from udpbench.analysis.comparison.effect import SINGLE_LOOK, Effect, Look, Margin, decide, levels_of
from udpbench.analysis.points import metric as number_of
from udpbench.metrics import is_timed, words_of
from udpbench.model.experiment import FEWEST_BLOCKS, MOST_BLOCKS, Experiment, PointPair, Side
from udpbench.model.result import Result

BLOCK_PAIRS_MAX = 2**23
"""Most pairs of blocks, whose averages are tested: half as many, which take 8 B each, and 1 µs."""

OF_READS = ("delivered_pps", "delivered_mib_s")
"""Metrics that are known no better than to what comes at once."""
KEPT_UP = 0.01
"""How much longer than the load, as a share of it, a receiver may take that kept up with it."""
LEFT_OUT = "are left out: a trial is invalid, failed or struck out"


class Claim(NamedTuple):
    """Two numbers that are compared in each block: ``left`` against ``right``."""

    left: Side
    right: Side
    margin: float | None = None

    @property
    def shares(self) -> bool:
        """Return whether shares of packets are compared, by their difference: 0 has no ratio."""
        return any(words_of(side.metric or "").share for side in (self.left, self.right))

    @property
    def scaled_margin(self) -> Margin | None:
        """Return the margin on the scale of the blocks; None without one."""
        if self.margin is None:
            return None
        size = self.margin if self.shares else math.log1p(self.margin)
        return Margin(-size, size)

    def effect(self, left: float, right: float) -> float:
        """Return what a block is worth: ln(left / right), or the difference of shares."""
        return left - right if self.shares else math.log(left / right)

    def natural(self, effect: float) -> float:
        """Return an effect as the ratio that it is the logarithm of; of shares the difference."""
        return effect if self.shares else math.exp(effect)


class Blocks(NamedTuple):
    """The blocks of one claim."""

    effects: dict[int, float]
    """Repetition → what it is worth; of those that count."""
    lost: int = 0
    """How many are left out: a trial is invalid, failed or struck out."""
    lack: str = ""
    """Why no effect can be had: a number is missing, or 0 where a ratio is compared."""
    skipped: bool = False
    zeros: bool = False
    """Nothing was lost on either side in any block."""
    tolerance: float = 0.0
    """By how much the effects may be off all alike."""


class Judged(NamedTuple):
    """A claim with its blocks and their effect; None where there is no test."""

    blocks: Blocks
    effect: Effect | None
    why: str = ""
    """Why there is no test."""


def claim_of(pair: PointPair) -> Claim:
    """Return what a comparison of two points compares: b against a."""
    left, right = (Side(1.0, pair.metric, point) for point in (pair.b, pair.a))
    return Claim(left, right, pair.margin)


def claims_of(experiment: Experiment) -> tuple[Claim, ...]:
    """Return all that is compared by blocks: the pairs of points, then the expectations."""
    claims = [claim_of(pair) for pair in experiment.compare]
    for expectation in experiment.expect:
        for trial in experiment.points:
            sides = expectation.by_blocks(trial.point)
            claims += [Claim(*sides)] if sides is not None else []
    return tuple(dict.fromkeys(claims))


def judge_claims(experiment: Experiment, results: Sequence[Result]) -> dict[Claim, Judged]:
    """Return the effect of each claim of an experiment.

    Those that have come to the same look are one family, since each adds a chance of an error.
    """
    mine = [result for result in results if result.trial.experiment == experiment.name]
    by_point: dict[str | None, dict[int, Result]] = {}
    for result in mine:
        by_point.setdefault(result.trial.point, {})[result.trial.repetition] = result
    answers: dict[Claim, Judged] = {}
    due: dict[Look, dict[Claim, Blocks]] = {}
    pairs = 0
    for claim in claims_of(experiment):
        blocks = _blocks(claim, by_point)
        number = len(blocks.effects)
        pairs += number * number
        if number > MOST_BLOCKS or pairs > BLOCK_PAIRS_MAX:
            limit = (
                f"at most {MOST_BLOCKS}, and {BLOCK_PAIRS_MAX} pairs of them for all comparisons"
            )
            answers[claim] = Judged(blocks, None, f"{number} blocks are too many: {limit}")
            continue
        compared = experiment.compared & {claim.left.point, claim.right.point}
        untested = _untested(claim, blocks, experiment.looks if compared else ())
        if isinstance(untested, Judged):
            answers[claim] = untested
        else:
            due.setdefault(untested, {})[claim] = blocks
    for look, family in due.items():
        numbers = [list(blocks.effects.values()) for blocks in family.values()]
        tolerances = [blocks.tolerance for blocks in family.values()]
        effects = decide(numbers, [claim.scaled_margin for claim in family], look, tolerances)
        answers |= {
            claim: Judged(blocks, effect)
            for (claim, blocks), effect in zip(family.items(), effects, strict=True)
        }
    return answers


def value_of(result: Result, side: Side) -> float | None:
    """Return the number of a side, packets lost as a share of those sent; None if unknown.

    A trial that received all that a rate offered, and in time, delivered that rate.
    """
    name = side.metric or ""
    value = number_of(result, name)
    whole = _delivered_whole(result) if name in OF_READS else None
    if value is not None and whole is not None and result.delivered_pps:
        # Rounded, so that equal rates are equal whatever was measured.
        value = whole * round(value / result.delivered_pps, 12)
    if value is not None and words_of(name).share and name != "loss_ratio":
        value = value / result.sent_packets if result.sent_packets else None
    return side.factor * value if value is not None else None


def tolerance_of(sides: Iterable[tuple[Result, Side]]) -> float:
    """Return how far the numbers of some trials may be off, on the scale of ratios."""
    shares = (
        result.lump_share or 0.0
        for result, side in sides
        if side.metric in OF_READS and _delivered_whole(result) is None
    )
    return math.log1p(max(shares, default=0.0))


def _delivered_whole(result: Result) -> int | None:
    """Return the rate of a trial that received all that was offered.

    None for an unlimited rate, whatever was lost, and where the receiver took longer.
    """
    if result.lost_packets != 0 or result.lag is None:
        return None
    if result.lag > KEPT_UP + (result.lump_share or 0.0):
        return None
    return result.trial.traffic.intended_pps


def counts(result: Result, side: Side) -> bool:
    """Return whether a trial's number may be compared: it is valid, and no finding strikes it."""
    return result.valid and not (result.struck and is_timed(side.metric or ""))


def lacking(claim: Claim, values: Sequence[tuple[Result, Side, float | None]]) -> str:
    """Return why values cannot be compared; empty if they can."""
    for result, side, value in values:
        where = f"{result.trial.point or 'all'} #{result.trial.repetition}"
        if value is None:
            return f"{side.metric} is missing at {where}"
        if value <= 0 and not claim.shares:
            return f"{side.metric} is {value:g} at {where}"
    return ""


def _blocks(claim: Claim, by_point: Mapping[str | None, Mapping[int, Result]]) -> Blocks:
    left, right = (by_point.get(side.point, {}) for side in (claim.left, claim.right))
    effects: dict[int, float] = {}
    if len(left.keys() & right.keys()) > 2 * MOST_BLOCKS:
        return Blocks({}, lack=f"more than {2 * MOST_BLOCKS} blocks, lost ones among them")
    lost, zeros, skipped, tolerance = 0, True, False, 0.0
    for repetition in sorted(left.keys() & right.keys()):
        both = ((left[repetition], claim.left), (right[repetition], claim.right))
        if any(result.status == "skipped" for result, _ in both):
            skipped = True
            continue
        if not all(counts(result, side) for result, side in both):
            lost += 1
            continue
        values = [(result, side, value_of(result, side)) for result, side in both]
        lack = lacking(claim, values)
        if lack:
            return Blocks({}, lost, lack)
        a, b = (value for _, _, value in values if value is not None)
        zeros = zeros and a == b == 0
        effects[repetition] = claim.effect(a, b)
        tolerance = max(tolerance, tolerance_of(both))
    skipped, zeros = skipped and not effects, zeros and bool(effects)
    return Blocks(effects, lost, "", skipped, zeros, tolerance)


def _untested(claim: Claim, blocks: Blocks, looks: Sequence[int]) -> Judged | Look:
    """Return the answer that needs no test, else the levels at which it is tested."""
    number = len(blocks.effects)
    if blocks.lack or blocks.skipped:
        return Judged(blocks, None, blocks.lack)
    if blocks.lost * 3 > number + blocks.lost:
        share = f"{blocks.lost} of {number + blocks.lost} blocks"
        return Judged(blocks, None, f"{share} {LEFT_OUT}")
    if number == 0:
        return Judged(blocks, None, "no block was measured")
    if blocks.zeros and claim.margin is not None and number >= FEWEST_BLOCKS:
        return Judged(blocks, Effect("same", 0.0, 0.0, 0.0, number, None))
    if looks and number < looks[0]:
        (effect,) = decide([list(blocks.effects.values())], [None], SINGLE_LOOK)
        more = looks[0] - number
        return Judged(blocks, Effect("cannot tell", effect.estimate, None, None, number, more))
    passed = [look for look in looks if look <= number]
    return levels_of(looks)[passed[-1]] if passed else SINGLE_LOOK
