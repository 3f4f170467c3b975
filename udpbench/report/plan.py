"""Output of ``udpbench plan``: the trials with their time, and settings per host, now → requested.

Contacts no host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Protocol

from rich.console import Console
from rich.text import Text

from udpbench.analysis.comparison.blocks import claims_of
from udpbench.analysis.comparison.comparisons import EXTRA_BLOCKS
from udpbench.analysis.comparison.effect import blocks_needed, levels_of
from udpbench.metrics import words_of
from udpbench.model.experiment import Experiment, planned_text, trial_ns
from udpbench.model.host import Planned
from udpbench.report.terminal import drawn
from udpbench.setting_kinds import requested_part, show_value, show_values
from udpbench.units import show_range, show_seconds

TRIAL_COLUMNS = ("experiment", "point", "repetitions", "at most")
FEW_PAIRS = 4
"""Maximum comparisons that are listed."""
FEW_POINTS = 16
"""Maximum points that are listed of those which all have a setting."""


class Shared(Protocol):
    """The settings that some trials share, host by host."""

    @property
    def trials(self) -> tuple[str, ...]:
        """Names of the points."""

    @property
    def hosts(self) -> dict[str, tuple[Planned, ...]]:
        """Host → what would change there."""


def print_trials(
    console: Console, experiments: Sequence[Experiment], built_in: bool = True
) -> None:
    """Print every point with its repetitions and time, and the sum.

    At most are the blocks of the last look, and those in place of blocks with an invalid trial.
    """
    rows: list[tuple[str, ...]] = []
    total_ns = 0
    for experiment in experiments:
        for trial in experiment.points:
            fewest, most = experiment.trials_of(trial.point)
            most += EXTRA_BLOCKS if trial.point in experiment.compared else 0
            time_ns = trial_ns(trial, built_in) * most
            total_ns += time_ns
            times = show_range(fewest, most), show_seconds(time_ns)
            rows.append((experiment.name, trial.point or "–", *times))
    console.print(drawn(TRIAL_COLUMNS, rows, numbers=(2, 3)))
    planned = planned_text(experiments, EXTRA_BLOCKS)
    console.print(f"{planned}, at most {show_seconds(total_ns)}")
    for experiment in experiments:
        for line in filter(None, (*compared_pairs(experiment), too_few_blocks(experiment))):
            console.print(Text(line))


def compared_pairs(experiment: Experiment) -> Iterator[str]:
    """Yield what would be compared; the first pairs and the number of others if many."""
    for pair in experiment.compare[:FEW_PAIRS]:
        unit = "percentage points" if words_of(pair.metric).share else "%"
        margin = f"margin {pair.margin * 100:.3g} {unit}"
        yield f"{experiment.name}: compares {pair.b} against {pair.a}: {pair.metric}, {margin}"
    more = len(experiment.compare) - FEW_PAIRS
    if more > 0:
        yield f"{experiment.name}: and {more} more pair{'s' * (more > 1)}"


def too_few_blocks(experiment: Experiment) -> str:
    """Return where blocks or repetitions cannot decide one of several claims; empty if they can."""
    claims = {frozenset((claim.left, claim.right)) for claim in claims_of(experiment)}
    compared = sum(any(side.point in experiment.compared for side in claim) for claim in claims)
    short = [
        *_short(compared, experiment.looks, "blocks"),
        *_short(len(claims) - compared, (experiment.repetitions,), "repetitions"),
    ]
    return f"{experiment.name}: {'; '.join(short)}" if short else ""


def _short(claims: int, looks: Sequence[int], unit: str) -> Iterator[str]:
    """Yield the looks at which a single one of several claims cannot be decided."""
    levels = levels_of(looks)
    for look in looks if claims else ():
        fewest = blocks_needed(claims, levels[look].differs)
        if fewest > look:
            what = f"{look} {unit} cannot decide one of {claims} comparisons alone"
            yield f"{what} (at least {fewest})"


def print_rehearsal(console: Console, rehearsed: Sequence[Shared]) -> None:
    """Print per host what would change, now → requested, and what cannot be set.

    Of several sets of settings first what they have in common, then what each has besides.
    """
    if not rehearsed:
        return
    apart = _apart(rehearsed)
    names = [name for settings in rehearsed for name in settings.trials]
    whose = f"all {len(names)} points" if len(names) > FEW_POINTS else ", ".join(names)
    columns = ("host", "setting", "now → requested")
    rows = [
        (host, *line)
        for host, planned in rehearsed[0].hosts.items()
        for line in summed_up([each for each in planned if id(each) not in apart])
    ]
    console.print()
    console.print(Text(f"settings of {whose}", style="bold"))
    console.print(drawn(columns, rows))
    if len(rehearsed) > 1:
        console.print()
        console.print(Text("settings that differ", style="bold"))
        console.print(drawn(("points", *columns), _differing(rehearsed, apart)))


def _apart(rehearsed: Sequence[Shared]) -> set[int]:
    """Return the ids of settings that not all sets have, at the same host with the same change."""
    # Sets share most of their objects, and values may be lists and maps, which have no hash.
    keys = {
        id(each): f"{host} {each!r}"
        for host, each in {
            id(each): (host, each)
            for settings in rehearsed
            for host, planned in settings.hosts.items()
            for each in planned
        }.values()
    }
    sets = Counter(
        key
        for settings in rehearsed
        for key in {keys[id(each)] for planned in settings.hosts.values() for each in planned}
    )
    return {place for place, key in keys.items() if sets[key] < len(rehearsed)}


def _differing(rehearsed: Sequence[Shared], apart: set[int]) -> Iterator[tuple[str | Text, ...]]:
    """Yield the rows of each set of settings that not all have."""
    for settings in rehearsed:
        points = ", ".join(settings.trials)
        for host, planned in settings.hosts.items():
            for line in summed_up([each for each in planned if id(each) in apart]):
                yield (points, host, *line)
                points = ""
        if points:
            yield (points, "", "none of these", "")


def print_skips(console: Console, skipped: Mapping[str, str]) -> None:
    """Print why trials would be skipped, by point; nothing if none would be."""
    if not skipped:
        return
    console.print()
    console.print(Text("would be skipped", style="bold"))
    console.print(drawn(("point", "reason"), skipped.items()))


def summed_up(planned: Sequence[Planned]) -> Iterator[tuple[str, Text]]:
    """Yield (name, change) per line; consecutive settings of equal kind and change share a line."""
    for (kind, change), group in groupby(planned, lambda item: (item.setting.kind, _change(item))):
        yield f"{kind} {joined_targets([item.setting.target for item in group])}", change


def joined_targets(targets: Sequence[str]) -> str:
    """Return targets as one text: ``receive0/192.168.254.1-20/24``, ``send0/tso, gso``."""
    if len(targets) == 1:
        return targets[0]
    # Text and numbers alternate, so odd positions are numbers.
    columns = list(zip_longest(*(re.split(r"(\d+)", target) for target in targets), fillvalue=""))
    differing = [place for place, column in enumerate(columns) if len(set(column)) > 1]
    if len(differing) == 1 and differing[0] % 2 and all(columns[differing[0]]):
        numbers = [int(part) for part in columns[differing[0]]]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            parts = [column[0] for column in columns]
            parts[differing[0]] = f"{numbers[0]}-{numbers[-1]}"
            return "".join(parts)
    device, slash, _ = targets[0].partition("/")
    head = device + slash if all(target.startswith(device + slash) for target in targets) else ""
    return head + ", ".join(target[len(head) :] for target in targets)


def _change(planned: Planned) -> Text:
    kind, requested = planned.setting.kind, planned.setting.value
    now = requested_part(requested, planned.now)
    if planned.refusal is not None:
        return Text(f"cannot be set: {planned.refusal}", style="red")
    if planned.as_wanted:
        return Text(f"{show_value(kind, now)} (already set)", style="dim")
    if now is None and requested is True:
        return Text("added")
    return Text(" → ".join(show_values(kind, now, requested)))
