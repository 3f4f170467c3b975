"""The settings of a trial on every agent, what hosts refuse of them, and the findings about them.

Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from udpbench.control.agents import MACHINE, Agents
from udpbench.definition.binding.bind import (
    LabContext,
    Unavailable,
    machine_settings_for,
    require_offers,
    settings_for,
)
from udpbench.errors import SettingRefused
from udpbench.model.experiment import Trial
from udpbench.model.host import FIREWALL_CHANGED, Change, Facts, Planned, Setting
from udpbench.model.lab import Lab
from udpbench.model.record import Finding
from udpbench.setting_kinds import asked_for, requested_part, show_value, show_values

FEW_TARGETS = 3
"""Targets that a finding names; beyond it they are counted."""


def desired(
    trial: Trial, lab: Lab, agents: Agents, facts: Mapping[str, Facts]
) -> dict[str, tuple[Setting, ...]]:
    """Return agent → the settings of the trial on it."""
    pids = {client.name: client.pid for client in agents.hosts if client.pid is not None}
    routed = lab.middle if lab.built_in else ()
    ends = {node.name for node in routed if node.tunnel and not node.bridge}
    keys = {client.name: client.tunnel_key() for client in agents.middle if client.name in ends}
    context = LabContext(pids=pids, facts=facts, keys=keys)
    by_host = {node.name: settings_for(lab, trial, node, context) for node in lab.nodes}
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
    """Return a finding for the optional settings that the host refused alike."""
    return [
        Finding(
            "warning",
            f"optional setting {change.setting.path or change.setting.kind} was refused",
            host,
            targets + text,
            next_step="compare only with trials that also ran without it",
        )
        for change, targets, text in _alike(
            [change for change in changes if change.refusal is not None],
            lambda change: (
                (f" stays {_got(change, change.after)}" if change.after is not None else "")
                + f"; {change.refusal}"
            ),
        )
    ]


def rounded(host: str, changes: tuple[Change, ...]) -> list[Finding]:
    """Return a finding for the settings whose values the host rounded alike."""
    return [
        Finding(
            "note",
            f"{change.setting.path or change.setting.kind} was rounded",
            host,
            f"{targets}: {text}",
        )
        for change, targets, text in _alike(
            [change for change in changes if change.rounded],
            lambda change: (
                f"asked for {show_value(change.setting.kind, change.setting.value)} "
                f"→ got {_got(change, change.after)}"
            ),
        )
    ]


def _got(change: Change, value: Any) -> str:
    """Return a value in force for reading, of a mapping only what was requested."""
    return show_value(change.setting.kind, requested_part(change.setting.value, value))


def altered(host: str, changes: tuple[Change, ...]) -> list[Finding]:
    """Return a finding for the settings that another process has changed alike during the trial."""
    return [
        Finding(
            "invalid",
            "a setting was changed by another process during the trial",
            host,
            f"{change.setting.kind} {targets}: {text}",
            "as udpbench set it",
            "find out which service or administrator configures that host",
        )
        for change, targets, text in _alike(changes, _moved)
    ]


def _moved(change: Change) -> str:
    """Return a setting's value before and after, of a mapping only what was requested."""
    kind, requested = change.setting.kind, change.setting.value
    values = (requested_part(requested, value) for value in (change.before, change.after))
    return " → ".join(show_values(kind, *values))


def _alike(
    changes: Iterable[Change], text_of: Callable[[Change], str]
) -> Iterator[tuple[Change, str, str]]:
    """Yield the first of the changes with the same key and text, all their targets, and the text.

    A host with 20 neighbours that are removed has one finding, not 20.
    """
    groups: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        key = (change.setting.kind, change.setting.path, text_of(change))
        groups.setdefault(key, []).append(change)
    for (_, _, text), same in groups.items():
        targets = [change.setting.target for change in same]
        more = f" and {len(targets) - FEW_TARGETS} more" if len(targets) > FEW_TARGETS else ""
        yield same[0], ", ".join(targets[:FEW_TARGETS]) + more, text


def rules_changed(before: Facts, now: Facts) -> list[Finding]:
    """Return a finding if a host's firewall has another number of rules than before a trial."""
    rules = before.firewall_rules, now.firewall_rules
    if None in rules or rules[0] == rules[1]:
        return []
    return [
        Finding(
            "struck",
            FIREWALL_CHANGED,
            now.host,
            "{} → {} rules".format(*rules),
            "unchanged",
            "rates are those of neither state; what was lost, and where, is counted: find out who "
            "changes that host, then repeat",
        )
    ]


def refuse_foreseen(trials: Iterable[Trial], lab: Lab, agents: Agents) -> None:
    """Raise SettingRefused with every required setting that a real host would refuse.

    Ignores trials that will be skipped. Asks for each set of settings once.
    """
    if lab.built_in:
        return
    facts = {client.name: client.facts() for client in agents.hosts}
    planned: set[tuple[str, str]] = set()
    refusals: dict[str, None] = {}
    for trial in trials:
        try:
            require_offers(trial, lab, facts, agents.capabilities)
            settings = desired(trial, lab, agents, facts)
        except Unavailable:
            continue
        for client in agents.setting_up:
            own = settings[client.name]
            request = (client.name, repr(own))  # values may be lists and maps, which have no hash
            if request not in planned:
                planned.add(request)
                refusals.update(dict.fromkeys(_refusals(client.name, client.plan(own))))
    if refusals:
        raise SettingRefused("\n".join(refusals))


def _refusals(host: str, planned: Iterable[Planned]) -> list[str]:
    return [
        f"{host}: {item.setting.path}: {item.setting.kind} {item.setting.target}: "
        f"{asked_for(item.setting)}: {item.refusal}"
        for item in planned
        if item.refusal is not None and not item.setting.optional
    ]
