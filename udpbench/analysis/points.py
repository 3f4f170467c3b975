"""A point of an experiment from its trials: medians with intervals over the valid ones.

Owns the statistics over repetitions. An invalid trial is counted and never averaged; a lone mean
is never made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from udpbench.model import Estimate, Result

CONFIDENCE = 0.95
SMALLEST_N_FOR_CONFIDENCE = 6
"""Below it not even smallest to largest covers the median with 95 % (1 − 2 × 0.5⁶ = 0.97)."""
SMALLEST_N_FOR_RANGE = 3

COUNT_METRICS = (
    "intended_packets",
    "sent_packets",
    "received_packets",
    "lost_packets",
    "ledger_received_packets",
    "unaccounted",
)
TIME_METRICS = tuple(
    item.name
    for item in dataclasses.fields(Result)
    if item.name.endswith("_ns") and item.type == "Optional[int]"
)
"""Delays, round trips and pacing errors."""
UNITS = {
    **dict.fromkeys(COUNT_METRICS, "packets"),
    "offered_pps": "pps",
    "delivered_pps": "pps",
    "delivered_mib_s": "MiB/s",
    "delivered_pps_spread": "ratio",
    "loss_ratio": "ratio",
    "send_calls_per_packet": "calls",
    "skbs_per_packet": "skbs",
    "send_cpu_ns_per_packet": "ns",
    "receive_cpu_ns_per_packet": "ns",
    **dict.fromkeys(TIME_METRICS, "ns"),
    "send_cpu_load": "CPUs",
    "receive_cpu_load": "CPUs",
    "send_memory_bytes": "B",
    "receive_memory_bytes": "B",
    "logged_packets": "packets",
    "logged_pps": "pps",
    "log_files": "files",
    "log_bytes": "B",
}
"""Every numeric key of a result → its unit; ledger stages are in packets, too."""


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


def points(results: Sequence[Result]) -> tuple[Point, ...]:
    """Return the points in the order in which they first appear, repetitions in order."""
    found: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        found.setdefault((result.trial.experiment, result.trial.point), []).append(result)
    return tuple(
        Point(experiment, name, tuple(sorted(group, key=lambda r: r.trial.repetition)))
        for (experiment, name), group in found.items()
    )


def metric(result: Result, name: str) -> float | None:
    """Return a numeric key of a result, or the packets of a ledger stage.

    None where it is unknown, or known to lie between two numbers only.
    """
    found = bounds(result, name)
    return found[0] if found is not None and found[0] == found[1] else None


def bounds(result: Result, name: str) -> tuple[float, float] | None:
    """Return the least and the most that a metric can be: the same where it is known exactly."""
    if name in UNITS:
        value: float | None = getattr(result, name)
        return (value, value) if value is not None else None
    for entry in result.ledger.entries if result.ledger is not None else ():
        if entry.stage == name and entry.packets is not None:
            return entry.packets, entry.packets if entry.at_most is None else entry.at_most
    return None


def is_count(name: str) -> bool:
    """Tell whether a metric counts packets, so that it must hold in every trial."""
    return UNITS.get(name, "packets") == "packets"


def estimate(point: Point, name: str) -> Estimate | None:
    """Return the median of a metric over the valid trials; None where none of them knows it."""
    found = [metric(result, name) for result in point.valid]
    values = sorted(value for value in found if value is not None)
    if not values:
        return None
    low, high = interval(values)
    return Estimate(median(values), low, high, len(values), UNITS.get(name, "packets"))


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the interval of the median of sorted values.

    From six values on the 95 % interval between two order statistics (Conover, Practical
    Nonparametric Statistics, 3.2), which assumes no distribution; from three on smallest to
    largest, which covers less (75 % at three); below that none.
    """
    if len(values) < SMALLEST_N_FOR_RANGE:
        return None, None
    if len(values) < SMALLEST_N_FOR_CONFIDENCE:
        return values[0], values[-1]
    # Imported here: the controller judges trials without waiting half a second for scipy.
    from scipy.stats import binom

    rank = int(binom.ppf((1 - CONFIDENCE) / 2, len(values), 0.5))
    return values[rank - 1], values[-rank]
