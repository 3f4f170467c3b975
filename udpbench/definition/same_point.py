"""An A/A comparison: a point against itself, to learn how small a difference a lab can resolve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from udpbench.definition.problems import did_you_mean
from udpbench.errors import InputError, Problem
from udpbench.metrics import margin_of
from udpbench.model import Experiment, PointPair, Trial


def against_itself(experiments: Sequence[Experiment], point: str | None) -> list[Experiment]:
    """Return the experiments that have a point, each reduced to a comparison of it with its copy.

    ``all`` is the point of a single-point experiment; without a point nothing is changed. Raises
    InputError if none has it.
    """
    if point is None:
        return list(experiments)
    twins = [
        _twice(experiment, trial, point)
        for experiment in experiments
        for trial in experiment.points
        if (trial.point or "all") == point
    ]
    if not twins:
        names = [trial.point or "all" for each in experiments for trial in each.points]
        raise InputError(
            [Problem("no such point", "--same", point, next_step=did_you_mean(point, names))]
        )
    return twins


def _twice(experiment: Experiment, trial: Trial, name: str) -> Experiment:
    again = f"{name} again"
    metric = experiment.headline
    return replace(
        experiment,
        points=tuple(replace(trial, point=each) for each in (name, again)),
        compare=(PointPair(name, again, metric, margin_of(metric)),),
        expect=tuple(e for e in experiment.expect if {e.left.point, e.right.point} == {None}),
    )
