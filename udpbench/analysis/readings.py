"""What one phase of a record says in plain numbers: sums over workers and over hosts by role.

Owns which host plays which role and whose counter is read; it never judges a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from udpbench.analysis.delta import Deltas, deltas
from udpbench.model import (
    GENERIC_XDP,
    NOTHING_ATTACHED,
    Facts,
    Phase,
    PhaseName,
    Receive,
    Role,
    SelfTest,
    Traffic,
    TrialRecord,
    WorkerSpec,
    WorkerStats,
)

FAMILIES: Mapping[Literal[4, 6], Mapping[str, str]] = {
    4: {"{ip}": "snmp.Ip.", "{ipx}": "netstat.IpExt.", "{udp}": "snmp.Udp."},
    6: {"{ip}": "snmp6.Ip6", "{ipx}": "snmp6.Ip6", "{udp}": "snmp6.Udp6"},
}
"""Placeholder in a pattern → prefix of the IP version's counters."""


@dataclass(frozen=True)
class Roles:
    """The hosts of a trial by what they do in it."""

    senders: tuple[str, ...]
    receivers: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CounterView:
    """What ledger stages read: hosts' counters, already subtracted, and what they depend on.

    Equal only to itself, so that what is derived from it can be kept.
    """

    roles: Roles
    deltas: dict[str, Deltas]
    facts: Mapping[str, Facts]
    traffic: Traffic
    receive: Receive
    built_in_lab: bool = False
    selftests: Mapping[str, SelfTest] = field(default_factory=dict)
    specs: tuple[WorkerSpec, ...] = ()
    stats: tuple[WorkerStats, ...] = ()
    """Final ones of every worker."""
    loss_workers: tuple[WorkerStats, ...] = ()
    """Final ones of workers that lost packets on purpose."""
    within: CounterView | None = None
    """The whole phase, with workers' counts, if this covers a part of it and has none."""

    @property
    def whole(self) -> CounterView:
        """Return the view of the whole phase, which says what an skb holds."""
        return self.within or self

    @cached_property
    def way_back(self) -> CounterView:
        """The same counters as answers see them: receivers send, one in each skb, senders receive.

        Without workers' counts, which are not of answers, and without a bridge, which does not tell
        the two ways apart.
        """
        return CounterView(
            roles=Roles(self.roles.receivers, self.roles.senders),
            deltas={host: d for host, d in self.deltas.items() if d is not self.bridge},
            facts=self.facts,
            traffic=self.traffic,
            receive=Receive(),
            built_in_lab=self.built_in_lab,
            selftests=self.selftests,
        )

    def hosts(self, role: Role) -> tuple[str, ...]:
        """Return the hosts that play a role."""
        return self.roles.senders if role == "sender" else self.roles.receivers

    def workers(self, role: Role) -> tuple[WorkerStats, ...]:
        """Return the final statistics of every worker of a role."""
        return tuple(stats for stats in self.stats if stats.role == role)

    def pinned(self, stats: WorkerStats) -> frozenset[int]:
        """Return the CPUs that a worker is pinned to; empty: none in particular."""
        if stats.cpu is not None:
            return frozenset({stats.cpu})
        return self._cpus_of.get(stats.worker, frozenset())

    @cached_property
    def _cpus_of(self) -> dict[str, frozenset[int]]:
        """Worker → the CPUs that its specification names."""
        return {spec.name: frozenset(spec.cpus) for spec in reversed(self.specs)}

    @cached_property
    def cpus_of_hosts(self) -> dict[str, frozenset[int]]:
        """Host → the CPUs that its agent may use, once: a set for each process took its square."""
        return {host: frozenset(facts.cpus) for host, facts in self.facts.items()}

    def count(self, role: Role, field: str) -> int:
        """Return the sum of one C field over a role's workers, those of losses on purpose included.

        0 without any worker.
        """
        counted = (*self.stats, *self.loss_workers)
        return sum(stats.counts.get(field, 0) for stats in counted if stats.role == role)

    def worked(self, role: Role, field: str) -> int:
        """Return the sum of one C field over a role's workers alone: for rates and cost."""
        return sum(stats.counts.get(field, 0) for stats in self.workers(role))

    def lost_on_purpose(self, stage: str) -> tuple[int, int]:
        """Return the messages, and the packets in them, that were sent to end at a stage."""
        for stats in self.loss_workers:
            if stats.role == "sender" and stats.worker.endswith(f".loss_{stage}"):
                return stats.counts.get("sent_messages", 0), stats.counts.get("sent_packets", 0)
        return 0, 0

    def is_unmoved(self, role: Role, stage: str) -> bool:
        """Return whether it is proven of a host's kernel that no counter of a stage moves there."""
        family = self.traffic.family
        return any(
            host in self.selftests and self.selftests[host].is_unmoved(stage, family, facts.driver)
            for host, facts in self.facts.items()
            if host in self.hosts(role)
        )

    def counter(self, role: Role, pattern: str) -> int | None:
        """Return one counter's difference summed over a role's hosts; None if none has it.

        ``{interface}`` in the pattern stands for each host's own interface.
        """
        return known_sum(self.of_host(host, pattern) for host in self.hosts(role))

    def of_host(self, host: str, pattern: str) -> int | None:
        """Return one counter's difference at a host; None if it does not have it."""
        return self.deltas[host].total(self.named(host, pattern)) if host in self.deltas else None

    def total(self, role: Role, *patterns: str) -> int | None:
        """Return the sum of counters that see different packets; None if no host has any."""
        return known_sum(self.counter(role, pattern) for pattern in patterns)

    def by_name(self, role: Role, pattern: str) -> dict[str, int]:
        """Return the counters of a role's hosts that match a pattern and moved, by name.

        With several hosts the names are prefixed with the host's.
        """
        hosts = self.hosts(role)
        return {
            f"{host} {name}" if len(hosts) > 1 else name: value
            for host in hosts
            if host in self.deltas
            for name, value in self.deltas[host].matching(self.named(host, pattern)).items()
            if value != 0
        }

    def without(self, role: Role, hook: str) -> bool:
        """Return whether a role's interfaces are known to have no program on a hook."""
        facts_of = self.facts
        known = [facts_of[host] for host in self.hosts(role) if host in facts_of]
        return {facts.environment.get(hook) for facts in known} == {NOTHING_ATTACHED}

    def has_generic_xdp(self, role: Role) -> bool:
        """Return whether an XDP program of a role's interfaces runs in the stack."""
        known = (self.facts[host] for host in self.hosts(role) if host in self.facts)
        return any(GENERIC_XDP in (facts.environment.get("xdp") or "") for facts in known)

    @property
    def all_veth(self) -> bool:
        """True if every host's interface is an end of a veth pair."""
        return {facts.driver for facts in self.facts.values()} == {"veth"}

    @property
    def bridge(self) -> Deltas | None:
        """Return the counters of a built-in lab's bridge; None without a bridge.

        It is the one snapshot with interfaces that belongs to no host.
        """
        hosts = {*self.facts, *self.roles.senders, *self.roles.receivers}
        others = (delta for host, delta in self.deltas.items() if host not in hosts)
        return next((delta for delta in others if delta.has("link")), None)

    def machine(self, role: Role) -> tuple[Deltas, ...]:
        """Return the machine counters that belong to a role's hosts.

        Each machine's once, however many of the hosts are namespaces of it.
        """
        return tuple(self.deltas[name] for name in self.machines(role) if name in self.deltas)

    def machines(self, role: Role) -> tuple[str, ...]:
        """Return the machines that a role's hosts are on, as ``machine_of`` names them."""
        return tuple(dict.fromkeys(self.machine_of(host) for host in self.hosts(role)))

    def machine_of(self, host: str) -> str:
        """Return the snapshot that has the counters of a host's machine; its own if none has.

        A host that sees its whole machine has them itself; of several on one machine the first
        speaks for all. In the built-in lab they are in the snapshot of the machine's own agent,
        which plays no role.
        """
        if host not in self._machines:
            self._machines[host] = self._machine_of(host)
        return self._machines[host]

    @cached_property
    def _machines(self) -> dict[str, str]:
        """What ``machine_of`` returned, which is asked for each queue and each process."""
        return {}

    def _machine_of(self, host: str) -> str:
        roles, facts = {*self.roles.senders, *self.roles.receivers}, self.facts
        seeing = [name for name in sorted(self.deltas) if _has_machine(self.deltas[name])]
        if host in seeing:
            boots = {name: facts[name].boot_id for name in seeing if name in facts}
            return next((name for name in boots if boots[name] == boots.get(host)), host)
        return next((name for name in seeing if name not in roles), host)

    def machine_counter(self, role: Role, pattern: str) -> int | None:
        """Return one machine counter's difference summed over a role's machines."""
        return known_sum(delta.total(pattern) for delta in self.machine(role))

    def machine_by_name(self, role: Role, pattern: str) -> dict[str, int]:
        """Return the counters of a role's machines that match a pattern and moved, by name."""
        totals: dict[str, int] = {}
        for delta in self.machine(role):
            for name, value in delta.matching(pattern).items():
                if value != 0:
                    totals[name] = totals.get(name, 0) + value
        return totals

    def named(self, host: str, pattern: str) -> str:
        """Return a pattern with the host's interface and the family's protocols put in."""
        facts = self.facts.get(host)
        interface = facts.interface if facts is not None else "*"
        return _named(pattern, self.traffic.family, interface)

    def in_family(self, pattern: str) -> str:
        """Return a pattern with the names of the trial's IP version put in."""
        return _named(pattern, self.traffic.family, "{interface}")

    def display(self, role: Role, pattern: str) -> str:
        """Return a pattern as a reader may look it up: with the interface, or with a star."""
        names = {self.named(host, pattern) for host in self.hosts(role)}
        general = self.in_family(pattern).replace("{interface}", "*")
        return names.pop() if len(names) == 1 else general


@dataclass(frozen=True, eq=False, kw_only=True)
class Readings(CounterView):
    """One phase of one record."""

    record: TrialRecord
    phase: Phase

    @cached_property
    def path(self) -> Readings | None:
        """The readings of the path phase; None where there was none."""
        return readings_of(self.record, "path")


@lru_cache(maxsize=4096)
def _named(pattern: str, family: Literal[4, 6], interface: str) -> str:
    for placeholder, prefix in FAMILIES[family].items():
        pattern = pattern.replace(placeholder, prefix)
    return pattern.replace("{interface}", interface)


def known_sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _has_machine(delta: Deltas) -> bool:
    return delta.has("softnet") or delta.has("cpu")


def roles(record: TrialRecord) -> Roles:
    """Return which hosts sent and which were sent to.

    With ``receive.workers: 0`` no worker names the receiver: it is the host with the address of a
    flow's destination.
    """
    senders = {spec.host for spec in record.workers if spec.role == "sender"}
    receivers = {spec.host for spec in record.workers if spec.role == "receiver"}
    targets = {flow.destination for spec in record.workers for flow in spec.flows}
    for host, facts in record.facts.items():
        if targets & {address.partition("/")[0] for address in facts.addresses}:
            receivers.add(host)
    return Roles(tuple(sorted(senders)), tuple(sorted(receivers - senders)))


def phase_readings(
    record: TrialRecord, phase: Phase, hosts: Iterable[str], within: CounterView | None = None
) -> Readings:
    """Return the readings of some hosts in a phase, or in a part of one."""
    return Readings(
        roles=roles(record),
        deltas={host: deltas(phase.before[host], phase.after[host]) for host in hosts},
        facts=record.facts,
        traffic=record.trial.traffic,
        receive=record.trial.receive,
        built_in_lab=record.built_in_lab,
        selftests=record.selftests,
        specs=record.workers,
        stats=phase.stats,
        loss_workers=phase.losses,
        within=within,
        record=record,
        phase=phase,
    )


def readings_of(record: TrialRecord, name: PhaseName = "measured") -> Readings | None:
    """Return the readings of one phase; None if the record has no such phase."""
    for phase in record.phases:
        if phase.name == name:
            return phase_readings(record, phase, sorted({*phase.before} & {*phase.after}))
    return None
