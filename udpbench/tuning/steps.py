"""The steps that may be tried against a bottleneck: remedies with their placeholders filled in.

Owns which steps the user allows, and which exclude each other. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from udpbench.analysis.remedies import REMEDY_STEPS, TuningStep, filled_step
from udpbench.model.experiment import Tune
from udpbench.model.limits import stage_of
from udpbench.model.result import Bottleneck


def steps_against(
    limits: Sequence[Bottleneck], tune: Tune, left_out: Sequence[TuningStep]
) -> Iterator[TuningStep]:
    """Yield the allowed steps against bottlenecks, in order, without duplicates.

    A step with an unknown placeholder is omitted: no larger or free resource is known.
    """
    known = {step.sets for step in left_out}
    for bottleneck in limits:
        for remedy in REMEDY_STEPS.get(stage_of(bottleneck.name), ()):
            step = filled_step(replace(remedy, against=bottleneck.name), bottleneck.words)
            if step is not None and step.sets not in known and is_allowed(step, tune):
                known.add(step.sets)
                yield step


def is_allowed(step: TuningStep, tune: Tune) -> bool:
    """Return whether the user allows a step, by its scope and by every key that it sets."""
    in_scope = not tune.only or step.scope in tune.only
    return in_scope and not any(is_part(key, path) for key in tune.never for path in step.paths)


def is_part(key: str, path: str) -> bool:
    """Return whether a key, such as ``irq`` or ``receive.buffer``, is part of a dotted path."""
    return f".{key}." in f".{path}."


def with_step(steps: Sequence[TuningStep], step: TuningStep) -> tuple[TuningStep, ...]:
    """Return steps plus a further one, which replaces those that set the same keys."""
    paths = step.paths
    others = (each for each in steps if not any(_overlap(a, b) for a in each.paths for b in paths))
    return (*others, step)


def point_name(steps: Sequence[TuningStep]) -> str:
    """Return the name of the point with some steps: ``buffer=4MiB+gro``."""
    return "+".join(step.name for step in steps)


def sets_of(steps: Sequence[TuningStep]) -> tuple[str, ...]:
    """Return all ``path=value`` pairs of some steps."""
    return tuple(each for step in steps for each in step.sets)


def _overlap(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")
