"""A point of an experiment from its trials, and the numbers of each; medians are in ``medians``.

An invalid trial is counted in its point, and not among the valid ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from udpbench.metrics import TIMED, is_metric, unit_of
from udpbench.model import Result
from udpbench.units import show_ratio


@dataclass(frozen=True)
class Point:
    """All trials of one point, in the order of their repetitions."""

    experiment: str
    name: str
    results: tuple[Result, ...]

    @property
    def done(self) -> tuple[Result, ...]:
        """Return the trials that ran to their end, valid or not."""
        return tuple(result for result in self.results if result.status == "done")

    @property
    def valid(self) -> tuple[Result, ...]:
        """Return the trials whose numbers may be shown."""
        return tuple(result for result in self.results if result.valid)

    @property
    def skipped(self) -> bool:
        """Return whether the point could not be tried here at all."""
        return all(result.status == "skipped" for result in self.results)


def trials_with(point: Point, name: str) -> tuple[Result, ...]:
    """Return the valid trials in which no finding strikes out a metric."""
    return tuple(result for result in point.valid if not (result.struck and name in TIMED))


def points(results: Sequence[Result]) -> tuple[Point, ...]:
    """Return the points in the order in which they first appear, repetitions in order."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.trial.experiment, result.trial.point), []).append(result)
    return tuple(
        Point(experiment, name, tuple(sorted(group, key=lambda r: r.trial.repetition)))
        for (experiment, name), group in groups.items()
    )


def but_lossy(results: Sequence[Result]) -> str:
    """Return that some valid trials lost packets, behind what is said of others; else nothing."""
    valid = [result for result in results if result.valid]
    lossy = [result.loss_ratio or 0.0 for result in valid if result.lost_packets]
    if not lossy:
        return ""
    return f" But {len(lossy)} of {len(valid)} trials lost packets, up to {show_ratio(max(lossy))}."


def metric(result: Result, name: str) -> float | None:
    """Return a numeric key of a result, or the packets of a ledger stage.

    None if it is unknown, or only known to lie between two numbers.
    """
    span = bounds(result, name)
    return span[0] if span is not None and span[0] == span[1] else None


def bounds(result: Result, name: str) -> tuple[float, float] | None:
    """Return the least and the most that a metric can be: the same where it is known exactly."""
    if name in result.spans:
        return result.spans[name]
    if is_metric(name):
        value = result.numbers.get(name)
        return (value, value) if value is not None else None
    for entry in result.ledger.entries if result.ledger is not None else ():
        if entry.stage == name and (entry.packets, entry.at_most) != (None, None):
            least = entry.packets or 0
            return least, least if entry.at_most is None else entry.at_most
    return None


def is_count(name: str) -> bool:
    """Return whether a metric counts packets, so that it must hold in every trial."""
    return unit_of(name) == "packets"
