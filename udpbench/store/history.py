"""How the points of a store changed over time: medians by day, and level changes.

Pure. A point's days are grouped by jumpavg, FD.io's change detection for series of trials, which
selects the number of levels with the shortest description of all trials.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from udpbench.analysis.points import interval
from udpbench.errors import InputError, Problem
from udpbench.metrics import unit_of
from udpbench.model.limits import LEDGER_STAGES
from udpbench.model.result import Estimate
from udpbench.store.dataset import SEARCHED

if TYPE_CHECKING:
    import pandas as pd

DELIVERED = "delivered_pps"
MOST_POINTS = 4096
"""Points, each on each pair, of which there are histories at once."""
MOST_STEPS = 2**22
"""Limit of jumpavg, which takes the square of a point's days: 30 points over a year, in 40 s."""


class StoredTrial(NamedTuple):
    """What a history needs of a trial; None is unknown."""

    pair: str
    experiment: str
    point: str
    day: str
    run: str
    repetition: int
    search_trial: int | None
    valid: bool | None
    struck: bool | None
    reason: str | None
    numbers: tuple[float | None, ...]
    """Throughput of the search, delivered rate, and the chosen metric."""


@dataclass(frozen=True)
class DayMedian:
    """The valid trials of a point on one day, UTC."""

    day: str
    rate: Estimate


@dataclass(frozen=True)
class DayWithout:
    """The trials of a point on a day of which none has a number."""

    day: str
    trials: int
    why: str
    """What most of them are: ``struck out: other programs used CPUs of the load``."""


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
    without: tuple[DayWithout, ...] = ()
    """Days on which it was tried, and is not known."""


def histories(trials: pd.DataFrame, metric: str | None = None) -> tuple[PointHistory, ...]:
    """Return the history of each point on each pair, in the order of their first trials.

    The default metric is the throughput for a search, else the delivered rate.
    """
    points = by_point(trials, ("pair", "experiment", "point"), metric)
    steps = sum(len({trial.day for trial in mine}) ** 2 for mine in points.values())
    if steps > MOST_STEPS:
        raise _too_many(f"{len(points)} points over so many days", "points or days", "")
    return tuple(_history(names, mine, metric) for names, mine in points.items())


def by_point(
    trials: pd.DataFrame, names: tuple[str, ...], metric: str | None
) -> dict[tuple[str, ...], list[StoredTrial]]:
    """Return the trials of each point, in the order of their first; InputError if too many."""
    columns = [*StoredTrial._fields[:-1], SEARCHED, DELIVERED, metric or DELIVERED]
    known = (
        trials["ledger"].map(lambda ledger, stage=name: (ledger or {}).get(stage))
        if name in LEDGER_STAGES
        else trials[name]
        for name in columns
    )
    lists = (column.astype(object).where(column.notna(), None) for column in known)
    names_of = attrgetter(*names)
    points: dict[tuple[str, ...], list[StoredTrial]] = defaultdict(list)
    for row in zip(*lists, strict=True):
        trial = StoredTrial._make((*row[:-3], row[-3:]))
        if None not in (key := names_of(trial)):
            points[key].append(trial)
    refuse_many(len(points), MOST_POINTS)
    return points


def refuse_many(points: int, most: int) -> None:
    """Raise InputError if a store has more points than are shown at once."""
    if points > most:
        raise _too_many(f"{points} points", "points", f"at most {most}")


def _too_many(value: str, what: str, limit: str) -> InputError:
    step = "select: --point of udpbench history; point, campaign or pair of udpbench.read_runs()"
    return InputError([Problem(f"too many {what} at once", "store", value, limit, step)])


def _history(
    names: tuple[str, ...], mine: Sequence[StoredTrial], metric: str | None
) -> PointHistory:
    name = metric if metric is not None else answering(mine)
    days = list(days_of(mine, name))
    medians = tuple(DayMedian(day, estimate_of(values, name)) for day, values in days)
    pair, experiment, point = names
    known = {each.day for each in medians}
    without = tuple(_without(mine, known))
    return PointHistory(pair, experiment, point, name, medians, tuple(level_changes(days)), without)


def _without(mine: Sequence[StoredTrial], known: Collection[str]) -> Iterator[DayWithout]:
    """Yield each day without a number, and why most of its trials have none."""
    days: dict[str, list[str]] = defaultdict(list)
    for trial in mine:
        if trial.day not in known:
            word = "struck out" if trial.valid and trial.struck else ""
            word = word or ("no number" if trial.valid else "invalid")
            cause = (trial.reason or "").partition("; ")[0]  # the rest is what to do about it
            days[trial.day].append(": ".join(filter(None, [word, cause])))
    for day, whys in sorted(days.items()):
        (why, _) = Counter(whys).most_common(1)[0]
        yield DayWithout(day, len(whys), why)


def answering(mine: Sequence[StoredTrial]) -> str:
    """Return the metric that answers a point."""
    return SEARCHED if any(trial.search_trial is not None for trial in mine) else DELIVERED


def values_of(mine: Sequence[StoredTrial], metric: str) -> list[float]:
    """Return the known values of a metric in a point's valid trials; once per search."""
    if metric == SEARCHED:
        searches = {
            (trial.run, trial.experiment, trial.point, trial.repetition): trial.numbers[0]
            for trial in reversed(mine)  # the first of each counts
        }
        known = [*reversed(searches.values())]
    else:
        place = 1 if metric == DELIVERED else 2
        known = [trial.numbers[place] for trial in mine if trial.valid]
    return [float(value) for value in known if value is not None]


def days_of(mine: Sequence[StoredTrial], metric: str) -> Iterator[tuple[str, list[float]]]:
    """Yield each day with known values of a metric, and the values."""
    days: dict[str, list[StoredTrial]] = defaultdict(list)
    for trial in mine:
        days[trial.day].append(trial)
    for day, of_day in sorted(days.items()):
        values = values_of(of_day, metric)
        if values:
            yield day, values


def estimate_of(values: Sequence[float], metric: str) -> Estimate:
    """Return the median of some trials, with its interval."""
    low, high = interval(sorted(values))
    return Estimate(median(values), low, high, len(values), unit_of(metric))


def level_changes(days: Sequence[tuple[str, Sequence[float]]]) -> Iterator[LevelChange]:
    """Yield each day on which a new level begins; trials of one day are never split."""
    if len(days) < 2 or not any(value > 0 for _, values in days for value in values):
        return
    try:
        from jumpavg import classify
    except ModuleNotFoundError:
        return  # run folders are read without the extra; the verb says what is missing

    levels = classify([list(values) for _, values in days])
    first, before = 0, None
    for level in levels:
        if before is not None:
            yield LevelChange(days[first][0], before, level.stats.avg)
        first, before = first + len(level.run_list), level.stats.avg
