"""How the points of a store changed over time: medians by day, and level changes.

Pure. A point's days are grouped by jumpavg, FD.io's change detection for series of trials, which
selects the number of levels with the shortest description of all trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from udpbench.analysis.medians import interval
from udpbench.metrics import unit_of
from udpbench.model import Estimate
from udpbench.store.dataset import SEARCHED

if TYPE_CHECKING:
    import pandas as pd

DELIVERED = "delivered_pps"
ONE_SEARCH = ["run", "experiment", "point", "repetition"]


@dataclass(frozen=True)
class DayMedian:
    """The valid trials of a point on one day, UTC."""

    day: str
    rate: Estimate


@dataclass(frozen=True)
class LevelChange:
    """The first day of a new level of a point; both levels are means."""

    day: str
    before: float
    after: float

    @property
    def ratio(self) -> float | None:
        """Return after / before; None without a number before."""
        return self.after / self.before if self.before else None


@dataclass(frozen=True)
class PointHistory:
    """One point on one pair of hosts, over the days on which it was measured."""

    pair: str
    experiment: str
    point: str
    metric: str
    days: tuple[DayMedian, ...]
    changes: tuple[LevelChange, ...]


def histories(trials: pd.DataFrame, metric: str | None = None) -> tuple[PointHistory, ...]:
    """Return the history of each point on each pair, in the order of their first trials.

    The default metric is the throughput for a search, else the delivered rate.
    """
    return tuple(
        _history((str(pair), str(experiment), str(point)), mine, metric)
        for (pair, experiment, point), mine in trials.groupby(
            ["pair", "experiment", "point"], sort=False
        )
    )


def _history(names: tuple[str, str, str], mine: pd.DataFrame, metric: str | None) -> PointHistory:
    name = metric if metric is not None else answering(mine)
    days = list(days_of(mine, name))
    medians = tuple(DayMedian(day, estimate_of(values, name)) for day, values in days)
    return PointHistory(*names, name, medians, tuple(level_changes(days)))


def answering(mine: pd.DataFrame) -> str:
    """Return the metric that answers a point."""
    return SEARCHED if mine.search_trial.notna().any() else DELIVERED


def values_of(mine: pd.DataFrame, metric: str) -> list[float]:
    """Return the known values of a metric in a point's valid trials; once per search."""
    if metric == SEARCHED:
        mine = mine.drop_duplicates(ONE_SEARCH)
    else:
        mine = mine[mine.valid.fillna(value=False)]
    return [float(value) for value in mine[metric].dropna()]


def days_of(mine: pd.DataFrame, metric: str) -> Iterator[tuple[str, list[float]]]:
    """Yield each day with known values of a metric, and the values."""
    for day, of_day in mine.groupby("day", sort=True):
        values = values_of(of_day, metric)
        if values:
            yield str(day), values


def estimate_of(values: Sequence[float], metric: str) -> Estimate:
    """Return the median of some trials, with its interval."""
    low, high = interval(sorted(values))
    return Estimate(median(values), low, high, len(values), unit_of(metric))


def level_changes(days: Sequence[tuple[str, Sequence[float]]]) -> Iterator[LevelChange]:
    """Yield each day on which a new level begins; trials of one day are never split."""
    if len(days) < 2 or not any(value > 0 for _, values in days for value in values):
        return
    from jumpavg import classify

    levels = classify([list(values) for _, values in days])
    first, before = 0, None
    for level in levels:
        if before is not None:
            yield LevelChange(days[first][0], before, level.stats.avg)
        first, before = first + len(level.run_list), level.stats.avg
