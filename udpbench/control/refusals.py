"""Settings that real hosts refuse, found before the first trial.

Changes nothing. Not for built-in labs, whose interfaces do not exist before a trial makes them.
"""

from __future__ import annotations

from collections.abc import Iterable

from udpbench.control.agents import Agents
from udpbench.control.setting_findings import desired
from udpbench.definition.binding.bind import Unavailable, require_offers
from udpbench.errors import SettingRefused
from udpbench.model import Lab, Planned, Setting, Trial
from udpbench.setting_kinds import asked_for


def refuse_foreseen(trials: Iterable[Trial], lab: Lab, agents: Agents) -> None:
    """Raise SettingRefused with every required setting that a real host would refuse.

    Ignores trials that will be skipped. Asks for each set of settings once.
    """
    if lab.built_in:
        return
    facts = {client.name: client.facts() for client in agents.hosts}
    planned: list[tuple[str, tuple[Setting, ...]]] = []
    refusals: dict[str, None] = {}
    for trial in trials:
        try:
            require_offers(trial, lab, facts, agents.capabilities)
            settings = desired(trial, lab, agents, facts)
        except Unavailable:
            continue
        for client in agents.setting_up:
            request = (client.name, settings[client.name])
            if request not in planned:
                planned.append(request)
                refusals.update(dict.fromkeys(_refusals(client.name, client.plan(request[1]))))
    if refusals:
        raise SettingRefused("\n".join(refusals))


def _refusals(host: str, planned: Iterable[Planned]) -> list[str]:
    return [
        f"{host}: {item.setting.path}: {item.setting.kind} {item.setting.target}: "
        f"{asked_for(item.setting)}: {item.refusal}"
        for item in planned
        if item.refusal is not None and not item.setting.optional
    ]
