"""Which trial comes next: a generator that yields trials and is sent each one's Result.

Owns order alone. The fixed sweep ignores what it is sent; a search will not.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace

from udpbench.model import Experiment, Result, Trial, TrialRecord

Schedule = Generator[Trial, Result, None]


def fixed_sweep(experiments: Sequence[Experiment], seed: int) -> Schedule:
    """Yield every point of every experiment as often as it is repeated.

    A repetition is a block, and the points' order within each block is random, so that a drift of
    the machine falls on all points alike. The same seed gives the same order.
    """
    for experiment in experiments:
        for repetition in range(1, experiment.repetitions + 1):
            block = [replace(point, repetition=repetition) for point in experiment.points]
            # The order of an experiment does not depend on what is run beside it.
            random.Random(f"{seed}/{experiment.name}/{repetition}").shuffle(block)  # noqa: S311
            # Not `yield from`: it would hand the Result on to a list, which cannot be sent one.
            for trial in block:  # noqa: UP028
                yield trial


def lasting(records: Iterable[TrialRecord]) -> dict[str, TrialRecord]:
    """Return trial → its record, of those that need not be run again: all but the failed."""
    return {one.trial.name: one for one in records if one.status != "failed"}


def remaining(
    experiments: Sequence[Experiment], seed: int, records: Iterable[TrialRecord]
) -> list[Trial]:
    """Return the trials of the fixed sweep that have no lasting record, in its order."""
    known = lasting(records)
    return [trial for trial in fixed_sweep(experiments, seed) if trial.name not in known]


def trial_count(experiments: Sequence[Experiment]) -> int:
    """Return how many trials the fixed sweep yields."""
    return sum(len(one.points) * one.repetitions for one in experiments)
