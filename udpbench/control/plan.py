"""What a run would change on each host, determined without changing a host.

A built-in lab's namespaces are discarded afterwards, so every setting is tried in them; on the
machine, as on any real host, the agent only reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from udpbench.control.agent_client import AgentClient
from udpbench.control.agents import MACHINE, Agents, Reach, real
from udpbench.control.lab_lock import Surroundings, Terms, take_lab
from udpbench.control.run import RunOptions, run_name
from udpbench.control.setting_findings import desired
from udpbench.definition import lab_rules
from udpbench.definition.binding.bind import Unavailable, bind, require_offers
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.host import Facts, Planned, Setting
from udpbench.model.lab import Lab


@dataclass(frozen=True)
class Rehearsed:
    """The settings that some trials share, host by host; without trials, what is not tried."""

    trials: tuple[str, ...]
    hosts: dict[str, tuple[Planned, ...]]
    skipped: dict[str, str] = field(default_factory=dict)
    """Point → why its trials would be skipped."""
    facts: Mapping[str, Facts] = field(default_factory=dict)
    """What the hosts are, or would be, with these settings."""


def rehearse(
    experiments: Sequence[Experiment], lab: Lab, reach: Reach | None = None
) -> tuple[Rehearsed, ...]:
    """Return for each distinct set of settings what it would change, be refused, and skip.

    Raises InputError for losses that this lab can't do, ConnectError or HelloRefused where a host
    does not answer.
    """
    lab_rules.refuse_together(experiments, lab)
    tried: dict[str, tuple[Rehearsed, list[Trial]]] = {}
    untried: dict[str, str] = {}
    around, terms = Surroundings(reach or real()), Terms("none")
    with take_lab([lab], run_name(), RunOptions.lease_ns, around, terms) as (_, agents):
        facts = {client.name: client.facts() for client in agents.hosts}
        for trial in (point for experiment in experiments for point in experiment.points):
            try:
                require_offers(trial, lab, facts, agents.capabilities)
                by_host = desired(trial, lab, agents, facts)
            except Unavailable as why:
                untried[_name(trial)] = str(why)
                continue
            # Values of settings may be lists and maps, which have no hash.
            key = repr(by_host)
            if key not in tried:
                tried[key] = _rehearse(by_host, lab, agents), []
            tried[key][1].append(trial)
    rest = (Rehearsed((), {}, untried),) if untried else ()
    return (*(_with_trials(known, trials, lab) for known, trials in tried.values()), *rest)


def _with_trials(known: Rehearsed, trials: Sequence[Trial], lab: Lab) -> Rehearsed:
    """Return the settings as those of some trials, with why any would be skipped."""
    skipped: dict[str, str] = {}
    for trial in trials:
        try:
            bind(trial, lab, known.facts)
        except Unavailable as why:
            skipped[_name(trial)] = str(why)
    return replace(known, trials=tuple(map(_name, trials)), skipped=skipped)


def _name(trial: Trial) -> str:
    return trial.name.rpartition("#")[0]


def _rehearse(by_host: dict[str, tuple[Setting, ...]], lab: Lab, agents: Agents) -> Rehearsed:
    planned = _try_settings(by_host, lab, agents)
    facts = {client.name: client.facts() for client in agents.hosts}
    if not lab.built_in:
        facts = {name: _as_planned(own, planned[name]) for name, own in facts.items()}
    return Rehearsed((), planned, facts=facts)


def _as_planned(facts: Facts, planned: Iterable[Planned]) -> Facts:
    """Return a host's facts as they would be with planned settings."""
    for change in planned:
        setting = change.setting
        interface, _, rest = setting.target.partition("/")
        if change.refusal is not None or interface != facts.interface:
            continue
        if setting.kind == "mtu":
            facts = replace(facts, mtu=setting.value)
        elif setting.kind == "channels":
            facts = replace(facts, rx_queues=setting.value)
        elif setting.kind == "address" and rest not in facts.addresses:
            facts = replace(facts, addresses=(*facts.addresses, rest))
    return facts


def _try_settings(
    by_host: dict[str, tuple[Setting, ...]], lab: Lab, agents: Agents
) -> dict[str, tuple[Planned, ...]]:
    """Ask every agent; those that make the pairs of a built-in lab first."""
    for client in agents.hanging:
        if lab.built_in:
            client.apply(())
    return {
        client.name: (
            _throw_away(client, by_host[client.name])
            if lab.built_in and client.name != MACHINE
            else client.plan(by_host[client.name])
        )
        for client in agents.setting_up
    }


def _throw_away(client: AgentClient, settings: tuple[Setting, ...]) -> tuple[Planned, ...]:
    """Apply in a namespace that is then discarded, to find every refusal."""
    changes = client.apply([replace(setting, optional=True) for setting in settings])
    return tuple(
        Planned(setting, change.before, change.refusal, change.before == change.after)
        for setting, change in zip(settings, changes, strict=True)
    )
