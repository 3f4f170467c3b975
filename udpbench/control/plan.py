"""What a run would change on each host, determined without changing a host.

A built-in lab's namespaces are discarded afterwards, so every setting is tried in them; on the
machine, as on any real host, the agent only reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from udpbench.control.agent_client import AgentClient
from udpbench.control.agents import MACHINE, Agents, Reach, real
from udpbench.control.lab_lock import Surroundings, Terms, take_lab
from udpbench.control.run import RunOptions, run_name
from udpbench.control.setting_findings import desired, links
from udpbench.definition import lab_rules
from udpbench.definition.binding.bind import Unavailable, bind, require_offers
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.host import Facts, Planned, Setting
from udpbench.model.lab import Lab
from udpbench.setting_kinds import has_trait

STEADY_SYSCTLS = (
    *(f"net.core.{name}" for name in ("rmem_", "wmem_", "optmem_", "netdev_", "busy_")),
    "net.ipv4.udp_",
)
"""What parameters begin with that are ``steady``, as kinds of setting are."""


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
    tried: dict[tuple[str, ...], tuple[Rehearsed, list[Trial]]] = {}
    untried: dict[str, str] = {}
    around, terms = Surroundings(reach or real()), Terms("none")
    with take_lab([lab], run_name(), RunOptions.lease_ns, around, terms) as (_, agents):
        rehearsal = _Rehearsal(lab, agents)
        facts = rehearsal.facts(())
        for trial in (point for experiment in experiments for point in experiment.points):
            try:
                require_offers(trial, lab, facts, agents.capabilities)
                by_host = rehearsal.shared(desired(trial, lab, agents, facts))
            except Unavailable as why:
                untried[_name(trial)] = str(why)
                continue
            key = rehearsal.texts
            if key not in tried:
                tried[key] = rehearsal.tried(by_host), []
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


class _Rehearsal:
    """One set of settings after the other, and what they have in common: of thousands most is."""

    def __init__(self, lab: Lab, agents: Agents) -> None:
        self._lab = lab
        self._agents = agents
        self._facts: dict[tuple[str, ...], Mapping[str, Facts]] = {}
        self._asked: dict[str, tuple[Setting, ...]] = {}
        self._last: dict[str, tuple[Planned, ...]] = {}
        self._wanted: dict[str, list[_Wanted]] = {}

    def shared(self, by_host: dict[str, tuple[Setting, ...]]) -> dict[str, tuple[Setting, ...]]:
        """Return settings, of those that are as in the set before the very same objects."""
        for name, settings in by_host.items():
            before = self._wanted.get(name, [])[: len(settings)]
            self._wanted[name] = [
                old if old is not None and _is_same(old.setting, setting) else _Wanted(setting)
                for setting, old in zip_longest(settings, before)
            ]
        return {name: tuple(each.setting for each in self._wanted[name]) for name in by_host}

    @property
    def texts(self) -> tuple[str, ...]:
        """The shared settings as text: values may be lists and maps, which have no hash."""
        return tuple(
            t for name, own in self._wanted.items() for t in (name, *(w.text for w in own))
        )

    def facts(self, settings: Iterable[_Wanted]) -> Mapping[str, Facts]:
        """Return the facts of all hosts with settings, asked once while none can alter them."""
        key = tuple(each.text for each in settings if each.alters_facts)
        if key not in self._facts:
            self._facts[key] = {client.name: client.facts() for client in self._agents.hosts}
        return self._facts[key]

    def tried(self, by_host: dict[str, tuple[Setting, ...]]) -> Rehearsed:
        """Return what settings would change, and what the hosts would be."""
        planned = self._try(by_host)
        self._last = {
            name: _sharing(own, self._last.get(name, ())) for name, own in planned.items()
        }
        self._asked = by_host
        built_in = self._lab.built_in
        # On real hosts nothing is in force, so that facts are always those of now.
        facts = self.facts(each for own in self._wanted.values() for each in own if built_in)
        if not built_in:
            facts = {name: _as_planned(own, self._last[name]) for name, own in facts.items()}
        return Rehearsed((), self._last, facts=facts)

    def _try(self, by_host: dict[str, tuple[Setting, ...]]) -> dict[str, tuple[Planned, ...]]:
        """Ask every agent that was last asked for other settings; the makers of pairs first."""
        lab, agents = self._lab, self._agents
        if lab.built_in and links(by_host) != links(self._asked):
            for client in agents.hanging:
                client.apply(())
                self._asked.pop(client.name, None)
        return {
            client.name: self._ask(client, by_host[client.name]) for client in agents.setting_up
        }

    def _ask(self, client: AgentClient, settings: tuple[Setting, ...]) -> tuple[Planned, ...]:
        asked = self._asked.get(client.name)
        if (
            asked is not None
            and len(settings) == len(asked)
            and all(map(_answered_alike, settings, asked))
        ):
            return tuple(
                replace(planned, setting=setting)
                for planned, setting in zip(self._last[client.name], settings, strict=True)
            )
        real = not self._lab.built_in or client.name == MACHINE
        return client.plan(settings) if real else self._throw_away(client, settings)

    def _throw_away(
        self, client: AgentClient, settings: tuple[Setting, ...]
    ) -> tuple[Planned, ...]:
        """Apply in a namespace that is then discarded, to find every refusal."""
        changes = client.apply([each.if_possible for each in self._wanted[client.name]])
        return tuple(
            Planned(setting, change.before, change.refusal, change.before == change.after)
            for setting, change in zip(settings, changes, strict=True)
        )


class _Wanted:
    """A setting, as text, and as one that may be refused; each made once for many sets."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.text = repr(setting)
        self.if_possible = replace(setting, optional=True)
        self.alters_facts = _alters_facts(setting)


def _is_same(setting: Setting, other: Setting) -> bool:
    """Return whether settings are equal, and their values of equal types: 1 is no true."""
    value = setting.value
    plain = type(value) is type(other.value) and isinstance(value, (int, str))
    return setting == other and (plain or repr(value) == repr(other.value))


def _answered_alike(setting: Setting, asked: Setting) -> bool:
    """Return whether a setting needs not be tried, as one was that differs in its ports alone.

    Whether drop reasons can be counted does not depend on the ports; to try it takes half a second.
    """
    if setting.kind == asked.kind == "explain":
        return replace(setting, value=asked.value) == asked
    return setting == asked


def _alters_facts(setting: Setting) -> bool:
    """Return whether a setting may alter a fact that binding reads."""
    steady = has_trait(setting.kind, "steady")
    return not steady and not setting.target.replace("/", ".").startswith(STEADY_SYSCTLS)


def _sharing(planned: Sequence[Planned], last: Sequence[Planned]) -> tuple[Planned, ...]:
    """Return settings, of those that are as they were in the last set the very same objects.

    Otherwise thousands of sets take gigabytes.
    """
    pairs = zip_longest(planned, last[: len(planned)])
    return tuple(old if old == new else new for new, old in pairs)


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
