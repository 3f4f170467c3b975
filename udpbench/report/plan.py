"""What ``plan`` prints: the trials with their time, and per host now → wanted.

Prints what it is given and asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from udpbench.model import Experiment, Planned, Trial
from udpbench.units import format_duration

OVERHEAD_NS = 1_500_000_000
"""What a trial costs beyond its phases, at most, in the built-in lab (benchmarks/overhead.py)."""


class Shared(Protocol):
    """The settings that some trials share, host by host."""

    @property
    def trials(self) -> tuple[str, ...]:
        """Names of the points."""

    @property
    def hosts(self) -> dict[str, tuple[Planned, ...]]:
        """Host → what would change there."""


def trial_ns(trial: Trial) -> int:
    """Return how long one trial takes at most; one with a count usually ends earlier."""
    return trial.duration_ns + trial.warmup_ns + OVERHEAD_NS


def print_trials(console: Console, experiments: Sequence[Experiment]) -> None:
    """Print every point with its repetitions and time, and the sum."""
    table = Table(box=None)
    for title in ("experiment", "point"):
        table.add_column(title, overflow="fold")
    for title in ("repetitions", "at most"):
        table.add_column(title, justify="right")
    total_ns = trials = 0
    for experiment in experiments:
        for trial in experiment.points:
            time_ns = trial_ns(trial) * experiment.repetitions
            total_ns, trials = total_ns + time_ns, trials + experiment.repetitions
            cells = (experiment.name, trial.point or "–", str(experiment.repetitions))
            table.add_row(*map(Text, (*cells, _seconds(time_ns))))
    console.print(table)
    console.print(f"{trials} trials, at most {_seconds(total_ns)}")


def _seconds(time_ns: int) -> str:
    return format_duration(-(-time_ns // 10**9) * 10**9)


def print_rehearsal(console: Console, rehearsed: Sequence[Shared]) -> None:
    """Print per host what would change, now → wanted, and what cannot be set there."""
    for one in rehearsed:
        console.print()
        console.print(Text(f"settings of {', '.join(one.trials)}", style="bold"))
        table = Table(box=None)
        for title in ("host", "setting", "now → wanted"):
            table.add_column(title, overflow="fold")
        for host, planned in one.hosts.items():
            for item in planned:
                table.add_row(Text(host), Text(_name(item)), _change(item))
        console.print(table)


def _name(planned: Planned) -> str:
    return f"{planned.setting.kind} {planned.setting.target}"


def _change(planned: Planned) -> Text:
    if planned.refusal is not None:
        return Text(f"cannot be set: {planned.refusal}", style="red")
    if planned.now == planned.setting.value:
        return Text(f"{_value(planned.now)} (as wanted)", style="dim")
    return Text(f"{_value(planned.now)} → {_value(planned.setting.value)}")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_value(item)}" for key, item in value.items())
    return "none" if value is None else str(value)
