"""What changed between a definition stored by a run and the same definition now, key by key.

Pure: compares what would be measured and judged, so a new comment or a moved file is no change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from udpbench.definition.problems import Place, at
from udpbench.definition.shipped import shown_as
from udpbench.differences import differences, flat
from udpbench.errors import Problem
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.lab import Lab

NEXT_STEP = "restore it, or start a new run"
FEW_POINTS = 3
"""Up to this many points are listed by name."""
NOT_COMPARED = ("experiment", "question", "point", "variant", "values", "repetition", "name")
"""Fields of a trial to skip: its names, and what is compared once per experiment."""


def experiment_changes(before: Experiment, after: Experiment) -> Iterator[Problem]:
    """Yield what changed in an experiment, each key once with the points that it concerns."""
    for where, change in differing(before, after):
        yield _problem(after.path, where, change)


def differing(before: Experiment, after: Experiment) -> Iterator[tuple[str, str]]:
    """Yield ``points: key`` and old → new value for each difference of two experiments."""
    for difference in differences(_experiment(before), _experiment(after)):
        yield difference.key, difference.change
    old, new = ({trial.point: trial for trial in version.points} for version in (before, after))
    for point in [name for name in old if name not in new]:
        yield point, "a point → none"
    for point in [name for name in new if name not in old]:
        yield point, "none → a point"
    points: dict[tuple[str, str], list[str]] = {}
    for point in [name for name in old if name in new]:
        for difference in differences(_trial(old[point]), _trial(new[point])):
            points.setdefault((difference.key, difference.change), []).append(point)
    for (key, change), names in points.items():
        yield ": ".join(part for part in (_points(names, len(old)), key) if part), change


def lab_changes(before: Lab, after: Lab) -> Iterator[Problem]:
    """Yield what changed in a lab."""
    for where, change in differing_labs(before, after):
        yield _problem(after.path, where, change)


def differing_labs(before: Lab, after: Lab) -> Iterator[tuple[str, str]]:
    """Yield the key and old → new value for each difference of two labs."""
    for difference in differences(_lab(before), _lab(after)):
        yield difference.key, difference.change


def meaning(experiment: Experiment, lab: Lab) -> list[dict[str, Any]]:
    """Return every value of an experiment in a lab that would change the measurement."""
    points = ({"point": trial.point, **_trial(trial)} for trial in experiment.points)
    return [_experiment(experiment), *points, _lab(lab)]


def _problem(path: str, where: str, change: str) -> Problem:
    return at(
        Place(shown_as(Path(path))), where, "changed since the run began", "", NEXT_STEP, change
    )


def _points(points: Sequence[str], total: int) -> str:
    """Return the names of the points, at most the first few; empty if it is all of them."""
    if len(points) == total:
        return ""
    more = len(points) - FEW_POINTS
    return ", ".join(points[:FEW_POINTS]) + (f" and {more} more points" if more > 0 else "")


def _experiment(experiment: Experiment) -> dict[str, Any]:
    return {
        "question": experiment.question,
        "source": experiment.source,
        "repetitions": experiment.repetitions,
        "expect": [expectation.text for expectation in experiment.expect],
        **dict(flat({"compare": experiment.compare})),
    }


def _trial(trial: Trial) -> dict[str, Any]:
    names = [item.name for item in dataclasses.fields(trial) if item.name not in NOT_COMPARED]
    return dict(flat({name: getattr(trial, name) for name in names}))


def _lab(lab: Lab) -> dict[str, Any]:
    hosts = {host.part: lab.at(host.part) for host in lab.hosts}
    return dict(flat({**hosts, "settings": lab.settings}))
