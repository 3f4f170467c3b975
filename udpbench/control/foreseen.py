"""Refusals that real hosts tell beforehand, so that no trial begins which could not be.

Reads and changes nothing: a built-in lab has no interface before its trials make it.
"""

from __future__ import annotations

from collections.abc import Iterable

from udpbench.control.configured import desired
from udpbench.control.lab import Agents
from udpbench.definition.bind import Unavailable
from udpbench.errors import SettingRefused
from udpbench.model import Lab, Planned, Setting, Trial


def refuse_foreseen(trials: Iterable[Trial], lab: Lab, agents: Agents) -> None:
    """Raise SettingRefused with every required setting that a host of its own would not take.

    A trial that will be skipped is not looked at. Each set of settings is asked for once.
    """
    if lab.built_in:
        return
    facts = {remote.name: remote.facts() for remote in agents.hosts}
    asked: list[tuple[str, tuple[Setting, ...]]] = []
    told: dict[str, None] = {}
    for trial in trials:
        try:
            wanted = desired(trial, lab, agents, facts)
        except Unavailable:
            continue
        for remote in agents.setting_up:
            one = (remote.name, wanted[remote.name])
            if one not in asked:
                asked.append(one)
                told.update(dict.fromkeys(_refusals(remote.name, remote.plan(one[1]))))
    if told:
        raise SettingRefused("\n".join(told))


def _refusals(host: str, planned: Iterable[Planned]) -> list[str]:
    return [
        f"{host}: {one.setting.path}: {one.setting.kind} {one.setting.target}: "
        f"asked for {one.setting.value!r}: {one.refusal}"
        for one in planned
        if one.refusal is not None and not one.setting.optional
    ]
