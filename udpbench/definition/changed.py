"""What differs between a definition as it was and as it is now, key by key, for a reader.

Pure: compares what would be measured and judged, so a comment or a file that moved is no change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from udpbench.definition.grammar import key_of
from udpbench.definition.problems import Place, at, shown
from udpbench.definition.shipped import shown_as
from udpbench.errors import Problem
from udpbench.model import Experiment, Lab, Trial
from udpbench.units import Rate, format_bytes, format_duration, format_rate

NEXT_STEP = "put it back as it was, or begin a new run"
FEW_POINTS = 3
"""So many points are named one by one."""
NOT_COMPARED = ("experiment", "question", "point", "variant", "values", "repetition", "name")
"""Of a trial: what names it, and what is compared once for the whole experiment."""
Flat = dict[str, Any]


def experiment_changes(was: Experiment, now: Experiment) -> Iterator[Problem]:
    """Yield what changed in an experiment, each key once with the points that it concerns."""
    for key in ("question", "source", "repetitions", "expect"):
        before, after = (_shown(key, _whole(one, key)) for one in (was, now))
        if before != after:
            yield _problem(now.path, "", key, before, after)
    old, new = ({trial.point: trial for trial in one.points} for one in (was, now))
    for point in [name for name in old if name not in new]:
        yield _problem(now.path, point, "", "a point", "none")
    for point in [name for name in new if name not in old]:
        yield _problem(now.path, point, "", "none", "a point")
    found: dict[tuple[str, str, str], list[str]] = {}
    for point in [name for name in old if name in new]:
        for change in _changes(_trial(old[point]), _trial(new[point])):
            found.setdefault(change, []).append(point)
    for (key, before, after), points in found.items():
        yield _problem(now.path, _points(points, len(old)), key, before, after)


def lab_changes(was: Lab, now: Lab) -> Iterator[Problem]:
    """Yield what changed in a lab."""
    for key, before, after in _changes(_lab(was), _lab(now)):
        yield _problem(now.path, "", key, before, after)


def _problem(path: str, point: str, key: str, before: str, after: str) -> Problem:
    where = ": ".join(part for part in (point, key) if part)
    what = "changed since the run began"
    return at(Place(shown_as(Path(path))), where, what, "", NEXT_STEP, f"{before} → {after}")


def _whole(experiment: Experiment, key: str) -> Any:
    value = getattr(experiment, key)
    return [one.text for one in value] if key == "expect" else value


def _points(points: Sequence[str], of: int) -> str:
    """Return the points of a change by name while they are few; nothing where it is all of them."""
    if len(points) == of:
        return ""
    more = len(points) - FEW_POINTS
    return ", ".join(points[:FEW_POINTS]) + (f" and {more} more points" if more > 0 else "")


def _trial(trial: Trial) -> Flat:
    plain = {item.name: getattr(trial, item.name) for item in dataclasses.fields(trial)}
    return dict(_flat({k: v for k, v in plain.items() if k not in NOT_COMPARED}, ""))


def _lab(lab: Lab) -> Flat:
    keys = {"sender": lab.senders, "receiver": lab.receivers, "settings": lab.settings}
    return dict(_flat(keys, ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each scalar by its dotted path, in words of the files."""
    if dataclasses.is_dataclass(value) and not isinstance(value, (Rate, type)):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value, start=1):
            yield from _flat(part, f"{path}[{number}]")
    else:
        yield path, value


def _changes(was: Flat, now: Flat) -> Iterator[tuple[str, str, str]]:
    """Yield key, before and after of everything that differs."""
    for path in dict.fromkeys([*was, *now]):
        before, after = (_shown(path, one[path]) if path in one else "none" for one in (was, now))
        if before != after:
            yield ".".join(key_of(part) for part in path.split(".")), before, after


def _shown(path: str, value: Any) -> str:
    """Return a value as a file would have it, in a line."""
    if value is None:
        return "none"
    if isinstance(value, Rate):
        return format_rate(value)
    if isinstance(value, list):
        return shown("; ".join(map(str, value))) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        if path.endswith("_ns"):
            return format_duration(value)
        if path.endswith("_bytes"):
            return format_bytes(value)
    return shown(value)
