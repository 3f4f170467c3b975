"""Whether hosts are still what they were when a resumed run began.

A median over trials of two kernels or two CPUs describes neither, so such a host ends the run
before anything is changed on it. What settings move as well, such as a governor, can only be
compared between trials of one point, once it is in force; there it is a finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from udpbench.control.agents import Agents
from udpbench.cpu_lists import format_cpu_list
from udpbench.differences import differences
from udpbench.errors import HostChanged
from udpbench.model.host import Facts
from udpbench.model.record import Finding, TrialRecord

IDENTITY = ("kernel", "cpu_model", "cpus", "numa_nodes", "siblings", "driver", "mac")
"""Facts that no setting changes; None, as for an interface not yet created, is not compared."""
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
"""The same for the environment."""
IN_FORCE = ("governor", "turbo", "irqbalance", "transparent_hugepages", "offloads", "link")
"""Parts of the environment that settings or other processes may change."""
NUMBERS = ("mtu", "rx_queues", "tx_queues")
"""The same for the facts."""


def refuse_changed(agents: Agents, stored: Sequence[TrialRecord]) -> None:
    """Raise HostChanged that lists every difference from the hosts of earlier sessions."""
    if not stored:
        return
    changed = []
    for client in agents.hosts:
        facts = (record.facts.get(client.name) for record in stored)
        before = next((known for known in facts if known is not None), None)
        if before is not None:
            changes = ", ".join(_changes(_identity(before), _identity(client.facts())))
            changed += [f"{client.name}: {changes}"] if changes else []
    if changed:
        text = "; ".join(changed)
        step = "undo the change, or start a new run"
        raise HostChanged(f"the host has changed since this run began: {text}; {step}")


def _identity(facts: Facts) -> dict[str, Any]:
    """Return name → facts that no setting changes."""
    values: dict[str, Any] = {name: _with_cpu_lists(getattr(facts, name)) for name in IDENTITY}
    values |= {name: facts.environment.get(name) for name in SINCE_BOOT}
    return {**values, **facts.capabilities}


def _with_cpu_lists(value: Any) -> Any:
    """Return a fact with CPUs as the kernel lists them, ``0-3``; of siblings each group once."""
    if isinstance(value, Mapping):
        return "; ".join(dict.fromkeys(map(format_cpu_list, value.values()))) or "none"
    return format_cpu_list(value) if isinstance(value, (list, tuple)) else value


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return each change between values that are known."""
    changes = differences(before, after)
    return [str(d) for d in changes if d.before is not None and d.after is not None]


def compared(record: TrialRecord, stored: Sequence[TrialRecord]) -> TrialRecord:
    """Return a record with a finding for each way in which its hosts differ from the point's."""
    same_point = [
        other
        for other in stored
        if (other.trial.experiment, other.trial.point)
        == (record.trial.experiment, record.trial.point)
        and other.status == "done"
    ]
    if not same_point or record.status != "done":
        return record
    earlier = same_point[-1]
    findings = tuple(
        Finding(
            "warning",
            "the environment differs from before the run was resumed",
            host,
            change,
            f"as in {earlier.trial.name}",
            "restore it, or start a new run",
        )
        for host, facts in record.facts.items()
        if host in earlier.facts
        for change in _changes(_in_force(earlier.facts[host]), _in_force(facts))
    )
    return replace(record, findings=(*record.findings, *findings))


def _in_force(facts: Facts) -> dict[str, Any]:
    """Return name → facts that settings may change, including sysctls."""
    values: dict[str, Any] = {name: facts.environment.get(name) for name in IN_FORCE}
    values |= {name: getattr(facts, name) for name in NUMBERS}
    values |= {f"rings {name}": count for name, count in facts.rings.items()}
    return {**values, **facts.limits}
