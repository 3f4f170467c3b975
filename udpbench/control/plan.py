"""What a run would change on each host, determined without changing a host.

A built-in lab's namespaces are discarded afterwards, so every setting is tried in them; on the
machine, as on any real host, the agent only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import zip_longest

from udpbench.control.agent_client import AgentClient
from udpbench.control.agents import MACHINE, Agents, Reach, real
from udpbench.control.lab_lock import Surroundings, Terms, take_lab
from udpbench.control.run import RunOptions, run_name
from udpbench.control.setting_findings import desired, links
from udpbench.definition.binding.bind import Unavailable, bind, require_offers
from udpbench.definition.binding.outline import bindable, filled, outline
from udpbench.errors import InputError
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.host import Change, Facts, Planned, Setting
from udpbench.model.lab import Lab
from udpbench.setting_kinds import has_trait

STEADY_SYSCTLS = (
    *(f"net.core.{name}" for name in ("rmem_", "wmem_", "optmem_", "netdev_", "busy_")),
    "net.ipv4.udp_",
)
"""What parameters begin with that are ``steady``, as kinds of setting are."""
MOST_KNOWN = 64
"""Outlines whose settings are kept; a sweep goes through them in turn."""


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

    Raises ConnectError or HelloRefused where a host does not answer.
    """
    tried: dict[tuple[tuple[str, ...], ...], tuple[_Set, list[Trial]]] = {}
    untried: dict[str, str] = {}
    around, terms = Surroundings(reach or real()), Terms("none")
    with take_lab([lab], run_name(), RunOptions.lease_ns, around, terms) as (_, agents):
        rehearsal = _Rehearsal(lab, agents)
        facts = rehearsal.facts(())
        layouts = _Layouts(lab, agents, facts)
        for trial in (point for experiment in experiments for point in experiment.points):
            try:
                require_offers(trial, lab, facts, agents.capabilities)
                by_host = rehearsal.shared(layouts.of(trial))
            except Unavailable as why:
                untried[_name(trial)] = str(why)
                continue
            key = tuple(host.texts for host in by_host.values())
            if key not in tried:
                tried[key] = rehearsal.begin(by_host), []
            tried[key][1].append(trial)
        rehearsal.complete()
    rest = (Rehearsed((), {}, untried),) if untried else ()
    bindings = _Bindings(lab)
    sets = (_with_trials(begun.rehearsed, trials, bindings) for begun, trials in tried.values())
    return (*sets, *rest)


def _with_trials(known: Rehearsed, trials: Sequence[Trial], bindings: _Bindings) -> Rehearsed:
    """Return the settings as those of some trials, with why any would be skipped."""
    names = tuple(map(_name, trials))
    whys = [bindings.refusal(trial, known.facts) for trial in trials]
    skipped = {name: why for name, why in zip(names, whys, strict=True) if why is not None}
    return replace(known, trials=names, skipped=skipped)


def _name(trial: Trial) -> str:
    return trial.name.rpartition("#")[0]


class _Layouts:
    """The settings of one trial after the other, laid out once for all with the same outline."""

    def __init__(self, lab: Lab, agents: Agents, facts: Mapping[str, Facts]) -> None:
        self._desired = partial(desired, lab=lab, agents=agents, facts=facts)
        self._known: dict[str, dict[str, tuple[Setting, ...]]] = {}

    def of(self, trial: Trial) -> dict[str, tuple[Setting, ...]]:
        """Return agent → the settings of a trial on it; raises Unavailable, InputError."""
        seen = outline(trial)
        key = repr(seen)
        if key not in self._known:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            try:
                self._known[key] = self._desired(seen)
            except InputError:  # hosts disagree about a value, for which a blank stands
                return self._desired(trial)
        return {name: filled(own, trial) for name, own in self._known[key].items()}


class _Bindings:
    """Why trials cannot be bound, determined once for all that binding sees alike."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._facts: Mapping[str, Facts] = {}
        self._known: dict[tuple[object, ...], str | None] = {}

    def refusal(self, trial: Trial, facts: Mapping[str, Facts]) -> str | None:
        """Return why a trial would be skipped on hosts with these facts; None if it would not."""
        if facts != self._facts:
            self._known.clear()
            self._facts = facts
        seen = bindable(trial)
        key = seen.traffic, seen.send, seen.receive, seen.needs, *seen.settings
        if key not in self._known:
            try:
                bind(seen, self._lab, facts)
            except Unavailable as why:
                self._known[key] = str(why)
            else:
                self._known[key] = None
        return self._known[key]


class _Rehearsal:
    """One set of settings after the other, and what they have in common: of thousands most is."""

    def __init__(self, lab: Lab, agents: Agents) -> None:
        self._lab = lab
        self._agents = agents
        self._facts: dict[tuple[str, ...], Mapping[str, Facts]] = {}
        self._asked: dict[str, _OfHost] = {}
        self._open: list[_Answer] = []
        self._begun: _Set | None = None
        self._last: dict[str, tuple[Planned, ...]] = {}
        self._shared: dict[str, _OfHost] = {}

    def shared(self, by_host: dict[str, tuple[Setting, ...]]) -> dict[str, _OfHost]:
        """Return settings, of those that are as in the set before the very same objects."""
        self._shared = {
            name: _of_host(settings, self._shared.get(name)) for name, settings in by_host.items()
        }
        return self._shared

    def facts(self, hosts: Iterable[_OfHost]) -> Mapping[str, Facts]:
        """Return the facts of all hosts with settings, asked once while none can alter them."""
        key = _altering(hosts)
        if key not in self._facts:
            self._facts[key] = {client.name: client.facts() for client in self._agents.hosts}
        return self._facts[key]

    def begin(self, by_host: dict[str, _OfHost]) -> _Set:
        """Ask what settings would change; while the last agent looks, the next are laid out.

        The makers of pairs first; no agent is asked before another has answered.
        """
        built_in, asked = self._lab.built_in, dict(self._asked)
        if built_in and _links(by_host) != _links(asked):
            self.complete()
            for client in self._agents.hanging:
                client.apply(())
                asked.pop(client.name, None)
        begun = _Set(by_host)
        for client in self._agents.setting_up:
            host, before = by_host[client.name], asked.get(client.name)
            if before is None or not _answered_alike(host, before):
                begun.answers[client.name] = self._ask(client, host)
        self._asked = by_host
        self.complete()
        self._begun = begun
        if built_in and _altering(by_host.values()) not in self._facts:
            self.complete()
        return begun

    def complete(self) -> None:
        """Wait for what was begun last: what it would change, and what the hosts would be."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        self._last = {
            client.name: begun.planned(client.name, self._last.get(client.name, ()))
            for client in self._agents.setting_up
        }
        # On real hosts nothing is in force, so that facts are always those of now.
        facts = self.facts(begun.by_host.values() if self._lab.built_in else ())
        if not self._lab.built_in:
            facts = {name: _as_planned(own, self._last[name]) for name, own in facts.items()}
        begun.rehearsed = Rehearsed((), self._last, facts=facts)
        begun.answers, begun.by_host = {}, {}  # of thousands they would take hundreds of MiB

    def _ask(self, client: AgentClient, host: _OfHost) -> _Answer:
        for each in self._open:
            if each.client is not client:
                each.get()
        if not self._lab.built_in or client.name == MACHINE:
            answer = _Answer(client, client.begin("plan", {"settings": host.settings}))
        else:
            # Applied in a namespace that is then discarded, to find every refusal.
            asked = [each.if_possible for each in host.own]
            finish = client.begin("apply", {"settings": asked})
            answer = _Answer(client, lambda: _changed(host.settings, finish()))
        self._open = [*(each for each in self._open if each.client is client), answer][-2:]
        return answer


class _Answer:
    """What an agent answers, once somebody waits for it."""

    def __init__(self, client: AgentClient, finish: Callable[[], tuple[Planned, ...]]) -> None:
        self.client = client
        self.get = cache(finish)


class _Set:
    """A set of settings that agents were asked for, of those that answer otherwise than before."""

    def __init__(self, by_host: dict[str, _OfHost]) -> None:
        self.by_host = by_host
        self.answers: dict[str, _Answer] = {}
        self.rehearsed: Rehearsed
        """Once it is complete."""

    def planned(self, name: str, last: tuple[Planned, ...]) -> tuple[Planned, ...]:
        """Return what a host's settings would change; ``last`` is of the set before."""
        if name in self.answers:
            return _sharing(self.answers[name].get(), last)
        return tuple(
            _with_setting(planned, setting)
            for planned, setting in zip(last, self.by_host[name].settings, strict=True)
        )


def _with_setting(planned: Planned, setting: Setting) -> Planned:
    if planned.setting is setting or planned.setting == setting:
        return planned
    return replace(planned, setting=setting)


def _changed(settings: Sequence[Setting], changes: Sequence[Change]) -> tuple[Planned, ...]:
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


class _OfHost:
    """The settings of a host, in one set or in several."""

    def __init__(self, laid_out: tuple[Setting, ...], own: Sequence[_Wanted]) -> None:
        self.laid_out = laid_out
        self.own = own
        self.settings = tuple(each.setting for each in own)
        self.texts = tuple(each.text for each in own)
        """Values may be lists and maps, which have no hash."""
        self.altering = tuple(each.text for each in own if each.alters_facts)


def _of_host(settings: tuple[Setting, ...], before: _OfHost | None) -> _OfHost:
    """Return the settings of a host, having in common with the set before what is the same."""
    if before is None:
        return _OfHost(settings, [*map(_Wanted, settings)])
    if settings is before.laid_out:
        return before
    return _OfHost(
        settings,
        [
            old if old is not None and _is_same(old.setting, setting) else _Wanted(setting)
            for setting, old in zip_longest(settings, before.own[: len(settings)])
        ],
    )


def _altering(hosts: Iterable[_OfHost]) -> tuple[str, ...]:
    return tuple(text for host in hosts for text in host.altering)


def _links(hosts: Mapping[str, _OfHost]) -> list[Setting]:
    return links({name: host.settings for name, host in hosts.items()})


def _is_same(setting: Setting, other: Setting) -> bool:
    """Return whether settings are equal, and their values of equal types: 1 is no true."""
    if setting is other:
        return True
    value = setting.value
    plain = type(value) is type(other.value) and isinstance(value, (int, str))
    return setting == other and (plain or repr(value) == repr(other.value))


def _answered_alike(host: _OfHost, asked: _OfHost) -> bool:
    """Return whether settings need not be tried, as those were that differ in ports alone."""
    same_number = len(host.settings) == len(asked.settings)
    return host is asked or (same_number and all(map(_is_alike, host.settings, asked.settings)))


def _is_alike(setting: Setting, asked: Setting) -> bool:
    """Return whether a setting has the answer of another.

    Whether drop reasons can be counted does not depend on the ports; to try it takes half a second.
    """
    if setting.kind == asked.kind == "explain":
        return replace(setting, value=asked.value) == asked
    return setting is asked or setting == asked


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
