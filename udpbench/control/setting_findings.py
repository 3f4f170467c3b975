"""The settings of a trial on every agent, and the findings about applied settings.

Contacts no host and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from udpbench.control.agents import MACHINE, Agents
from udpbench.definition.binding.bind import (
    BRIDGE,
    LabContext,
    bridge_settings_for,
    machine_settings_for,
    settings_for,
)
from udpbench.model import Change, Facts, Finding, Lab, Setting, Trial
from udpbench.setting_kinds import requested_part, show_value, show_values


def desired(
    trial: Trial, lab: Lab, agents: Agents, facts: Mapping[str, Facts]
) -> dict[str, tuple[Setting, ...]]:
    """Return agent → the settings of the trial on it."""
    pids = {client.name: client.pid for client in agents.hosts if client.pid is not None}
    context = LabContext(pids=pids, facts=facts)
    by_host = {host.name: settings_for(lab, trial, host, context) for host in lab.hosts}
    if agents.bridge is not None:
        by_host[BRIDGE] = bridge_settings_for(lab, trial, context)
    if agents.machine is not None:
        by_host[MACHINE] = machine_settings_for(lab, trial, context)
    return by_host


def links(settings: dict[str, tuple[Setting, ...]]) -> list[Setting]:
    """Return the settings that affect both ends of a link.

    These are veth pairs, and a veth's XDP program, which freezes features of the other end.
    """
    kinds = ("link", "xdp")
    return [
        setting for name in sorted(settings) for setting in settings[name] if setting.kind in kinds
    ]


def refused(host: str, changes: tuple[Change, ...]) -> list[Finding]:
    """Return a finding for each optional setting that the host refused."""
    return [
        Finding(
            "warning",
            f"optional setting {change.setting.path or change.setting.kind} was refused",
            host,
            change.setting.target
            + (f" stays {_got(change, change.after)}" if change.after is not None else ""),
            change.refusal,
            "compare only with trials that also ran without it",
        )
        for change in changes
        if change.refusal is not None
    ]


def rounded(host: str, changes: tuple[Change, ...]) -> list[Finding]:
    """Return a finding for each setting whose value the host rounded."""
    return [
        Finding(
            "note",
            f"{change.setting.path or change.setting.kind} was rounded",
            host,
            f"{change.setting.target}: asked for "
            f"{show_value(change.setting.kind, change.setting.value)} "
            f"→ got {_got(change, change.after)}",
        )
        for change in changes
        if change.rounded
    ]


def _got(change: Change, value: Any) -> str:
    """Return a value in force for reading, of a mapping only what was requested."""
    return show_value(change.setting.kind, requested_part(change.setting.value, value))


def altered(host: str, changes: tuple[Change, ...]) -> list[Finding]:
    """Return a finding for each setting that another process has changed during the trial."""
    return [
        Finding(
            "invalid",
            "a setting was changed by another process during the trial",
            host,
            f"{change.setting.kind} {change.setting.target}: "
            + " → ".join(
                show_values(
                    change.setting.kind,
                    *(
                        requested_part(change.setting.value, value)
                        for value in (change.before, change.after)
                    ),
                )
            ),
            "settings stay as udpbench set them",
            "find out which service or administrator configures that host",
        )
        for change in changes
    ]


def rules_changed(before: Facts, now: Facts) -> list[Finding]:
    """Return a finding if a host's firewall has another number of rules than before a trial."""
    rules = before.firewall_rules, now.firewall_rules
    if None in rules or rules[0] == rules[1]:
        return []
    return [
        Finding(
            "struck",
            "the firewall was changed during the trial",
            now.host,
            "{} → {} rules".format(*rules),
            "rates are those of neither state; what was lost, and where, is counted",
            "find out who changes that host, then repeat",
        )
    ]
