"""What ``plan`` prints: the trials with their time, and per host now → wanted.

Prints what it is given and asks nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from udpbench.model import Experiment, Planned, Trial
from udpbench.units import format_duration

OVERHEAD_NS = 1_500_000_000
"""What a trial costs beyond its phases, at most, in the built-in lab (benchmarks/overhead.py)."""
CARDS_NS = 3 * 2_000_000_000
"""And more on real hosts, at most: what cards count is waited for after each of three phases."""


class Shared(Protocol):
    """The settings that some trials share, host by host."""

    @property
    def trials(self) -> tuple[str, ...]:
        """Names of the points."""

    @property
    def hosts(self) -> dict[str, tuple[Planned, ...]]:
        """Host → what would change there."""


def trial_ns(trial: Trial, built_in: bool = True) -> int:
    """Return how long one trial takes at most; one with a count usually ends earlier."""
    overhead_ns = OVERHEAD_NS if built_in else OVERHEAD_NS + CARDS_NS
    return trial.duration_ns + trial.warmup_ns + overhead_ns


def print_trials(
    console: Console, experiments: Sequence[Experiment], built_in: bool = True
) -> None:
    """Print every point with its repetitions and time, and the sum."""
    table = Table(box=None)
    for title in ("experiment", "point"):
        table.add_column(title, overflow="fold")
    for title in ("repetitions", "at most"):
        table.add_column(title, justify="right")
    total_ns = trials = 0
    for experiment in experiments:
        for trial in experiment.points:
            time_ns = trial_ns(trial, built_in) * experiment.repetitions
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
            for name, change in summed_up(planned):
                table.add_row(Text(host), Text(name), change)
        console.print(table)


def summed_up(planned: Sequence[Planned]) -> Iterator[tuple[str, Text]]:
    """Yield a name and a change per line; consecutive settings of one kind and change share one."""
    for (kind, change), group in groupby(planned, lambda one: (one.setting.kind, _change(one))):
        yield f"{kind} {together([one.setting.target for one in group])}", change


def together(targets: Sequence[str]) -> str:
    """Return targets as one text: ``receive0/192.168.254.1-20/24``, ``send0/tso, gso``."""
    if len(targets) == 1:
        return targets[0]
    # Text and numbers take turns, so a place that is odd holds a number.
    columns = list(zip_longest(*(re.split(r"(\d+)", target) for target in targets), fillvalue=""))
    differing = [place for place, column in enumerate(columns) if len(set(column)) > 1]
    if len(differing) == 1 and differing[0] % 2 and all(columns[differing[0]]):
        numbers = [int(part) for part in columns[differing[0]]]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            parts = [column[0] for column in columns]
            parts[differing[0]] = f"{numbers[0]}-{numbers[-1]}"
            return "".join(parts)
    device, slash, _ = targets[0].partition("/")
    head = device + slash if all(one.startswith(device + slash) for one in targets) else ""
    return head + ", ".join(target[len(head) :] for target in targets)


def _change(planned: Planned) -> Text:
    now, wanted = planned.now, planned.setting.value
    if planned.refusal is not None:
        return Text(f"cannot be set: {planned.refusal}", style="red")
    if planned.as_wanted:
        return Text(f"{_value(now)} (as wanted)", style="dim")
    if now is None and wanted is True:
        return Text("added")
    return Text(f"{_value(now)} → {_value(wanted)}")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_value(item)}" for key, item in value.items())
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)
