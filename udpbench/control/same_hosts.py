"""Whether hosts are what they were when a run began that goes on now.

A median over trials of two kernels or two CPUs is of neither, so such a host ends the run before
anything is changed on it. What settings move as well, as a governor, can only be compared between
trials of one point, once it is in force: there it is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Any

from udpbench.control.lab import Agents
from udpbench.errors import HostChanged
from udpbench.model import Facts, Finding, TrialRecord

IDENTITY = ("kernel", "cpu_model", "cpus", "numa_nodes", "siblings", "driver", "mac")
"""Facts that no setting of ours moves; None, as of an interface that is to come, says nothing."""
SINCE_BOOT = (
    "mitigations",
    "smt",
    "isolated_cpus",
    "nohz_full_cpus",
    "idle_driver",
    "clocksource",
    "virtual_machine",
    "driver_version",
    "firmware",
)
"""Of the environment, what no setting of ours moves."""
IN_FORCE = ("governor", "turbo", "irqbalance", "transparent_hugepages", "offloads", "link")
"""Of the environment, what settings or others may move."""
NUMBERS = ("mtu", "rx_queues", "tx_queues")
"""Of the facts, the same."""


def refuse_changed(agents: Agents, stored: Sequence[TrialRecord]) -> None:
    """Raise HostChanged with all in which hosts differ from what they were; asks nobody else."""
    if not stored:
        return
    found = []
    for remote in agents.hosts:
        before = next((one.facts[remote.name] for one in stored if remote.name in one.facts), None)
        if before is not None:
            differences = ", ".join(_differences(before, remote.facts()))
            found += [f"{remote.name}: {differences}"] if differences else []
    if found:
        text = "; ".join(found)
        step = "make it what it was, or begin a new run"
        raise HostChanged(f"not the host that this run began on: {text}; {step}")


def _differences(before: Facts, now: Facts) -> Iterator[str]:
    pairs = [(name, getattr(before, name), getattr(now, name)) for name in IDENTITY]
    pairs += [
        (name, before.environment.get(name), now.environment.get(name)) for name in SINCE_BOOT
    ]
    pairs += [
        (name, able, now.capabilities.get(name)) for name, able in before.capabilities.items()
    ]
    for name, was, is_now in pairs:
        if was is not None and is_now is not None and was != is_now:
            yield f"{name}: {shorten(_shown(was), 80)} → {shorten(_shown(is_now), 80)}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_shown(part)}" for key, part in value.items()) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def compared(record: TrialRecord, stored: Sequence[TrialRecord]) -> TrialRecord:
    """Return a record with a finding for each host whose surroundings its point did not have."""
    same = [
        one
        for one in stored
        if (one.trial.experiment, one.trial.point) == (record.trial.experiment, record.trial.point)
        and one.status == "done"
    ]
    if not same or record.status != "done":
        return record
    found = tuple(
        Finding(
            "warning",
            "environment is another one than before the run was resumed",
            host,
            f"{name}: {was[name]} → {now}",
            f"as in {same[-1].trial.name}",
            "make it the same, or begin a new run",
        )
        for host, facts in record.facts.items()
        if (was := _in_force(same[-1].facts.get(host)))
        for name, now in _in_force(facts).items()
        if was.get(name, now) != now
    )
    return replace(record, findings=(*record.findings, *found))


def _in_force(facts: Facts | None) -> dict[str, Any]:
    """Return by name what settings may move, as far as it is known: sysctls, too."""
    if facts is None:
        return {}
    found: dict[str, Any] = {name: facts.environment.get(name) for name in IN_FORCE}
    found |= {name: getattr(facts, name) for name in NUMBERS}
    found |= {f"rings {name}": count for name, count in facts.rings.items()}
    return {name: value for name, value in {**found, **facts.limits}.items() if value is not None}
