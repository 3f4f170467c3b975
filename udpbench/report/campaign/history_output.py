"""What ``udpbench history`` prints: each point's medians by day, and where its level changed.

Owns the wording, which the page of a campaign shares; every number comes from ``store.history``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from udpbench.metrics import unit_of, words_of
from udpbench.model.result import Estimate
from udpbench.report.summary import show_estimate, show_number
from udpbench.report.terminal import drawn
from udpbench.store.history import LevelChange, PointHistory
from udpbench.units import show_percent

SCHEMA = 1
"""Form of ``history --json``. History: 1 — the first form."""
POINT = ("pair", "experiment", "point", "metric")
COLUMNS = ("day", "median [interval]", "trials", "change")


def history_json(store: str, histories: Sequence[PointHistory]) -> dict[str, Any]:
    """Return histories as JSON data with stable keys."""
    return {
        "schema": SCHEMA,
        "store": store,
        "points": [
            {
                **{name: getattr(history, name) for name in POINT},
                "unit": unit_of(history.metric),
                "days": [
                    {
                        "day": each.day,
                        "median": each.rate.median,
                        "low": each.rate.low,
                        "high": each.rate.high,
                        "trials": each.rate.n,
                    }
                    for each in history.days
                ],
                "without": [asdict(each) for each in history.without],
                "changes": [{**asdict(each), "ratio": each.ratio} for each in history.changes],
            }
            for history in histories
        ],
    }


def print_histories(console: Console, histories: Sequence[PointHistory]) -> None:
    """Print a table for each point of each pair."""
    for history in histories:
        console.print(drawn(COLUMNS, day_rows(history), title(history), (2,)))


def title(history: PointHistory) -> str:
    """Return what a history is of: ``rack1 · drops::buffer=8KiB · delivered_pps``."""
    point = f"{history.experiment}::{history.point}" if history.point else history.experiment
    return f"{history.pair} · {point} · {history.metric}"


def day_rows(history: PointHistory) -> list[list[str]]:
    """Return a row for each day; what changed stands at the first day of the new level.

    Of a day without a number it is said why there is none.
    """
    changes = {change.day: change_text(change, history.metric) for change in history.changes}
    rows = [
        [each.day, shown(each.rate), str(each.rate.n), changes.get(each.day, "")]
        for each in history.days
    ]
    rows += [[each.day, "–", str(each.trials), each.why] for each in history.without]
    return sorted(rows)


def change_text(change: LevelChange, metric: str) -> str:
    """Return a change in words: ``12 % slower: 352.1 kpps → 309.9 kpps``."""
    unit = unit_of(metric)
    span = f"{show_number(change.before, unit)} → {show_number(change.after, unit)}"
    if change.ratio is None:
        return span
    words = words_of(metric)
    word = words.less if change.ratio < 1 else words.more
    return f"{show_percent(abs(change.ratio - 1), '.3g')} {word}: {span}"


def shown(rate: Estimate) -> str:
    """Return a median with its interval, in a scale that suits its unit."""
    if rate.unit == "pps":
        return show_estimate(rate)
    median = show_number(rate.median, rate.unit)
    if rate.low is None or rate.high is None:
        return median
    ends = [show_number(each, rate.unit) for each in (rate.low, rate.high)]
    unit = f" {median.rpartition(' ')[2]}"
    if all(each.endswith(unit) for each in ends):
        ends = [each.removesuffix(unit) for each in ends]
    return f"{median} [{' – '.join(ends)}]"
