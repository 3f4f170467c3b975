"""What one phase of a record says in plain numbers: sums over workers and over hosts by role.

Owns which host plays which role and which counter is read for what; it never judges a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from udpbench.analysis.delta import Deltas, deltas
from udpbench.model import Phase, PhaseName, Role, TrialRecord, WorkerStats

FAMILIES = {
    4: {"{ip}": "snmp.Ip.", "{ipx}": "netstat.IpExt.", "{udp}": "snmp.Udp."},
    6: {"{ip}": "snmp6.Ip6", "{ipx}": "snmp6.Ip6", "{udp}": "snmp6.Udp6"},
}
"""What stands in a pattern for either IP version's counters; some that IPv6 has not are its own."""


NOTHING_ATTACHED = "none"
"""How facts say so of ``xdp`` and ``tcx`` in their environment."""


@dataclass(frozen=True)
class Roles:
    """The hosts of a trial by what they do in it."""

    senders: tuple[str, ...]
    receivers: tuple[str, ...]


@dataclass(frozen=True)
class Readings:
    """One phase of one record, with its counters already subtracted."""

    record: TrialRecord
    phase: Phase
    roles: Roles
    deltas: dict[str, Deltas]
    within: Readings | None = None
    """Those of a longer time, with workers' counts, where these are a part of it and have none."""

    @property
    def whole(self) -> Readings:
        """Return the readings that tell what a skb holds: a kind of skb is of the whole phase."""
        return self.within or self

    def workers(self, role: Role) -> tuple[WorkerStats, ...]:
        """Return the final statistics of every worker of a role."""
        return tuple(stats for stats in self.phase.stats if stats.role == role)

    def count(self, role: Role, field: str) -> int:
        """Return the sum of one C field over a role's workers and what loses packets on purpose.

        0 where there are none of them.
        """
        counted = (*self.phase.stats, *self.phase.faults)
        return sum(stats.counts.get(field, 0) for stats in counted if stats.role == role)

    def worked(self, role: Role, field: str) -> int:
        """Return the sum of one C field over a role's workers alone: for rates and cost."""
        return sum(stats.counts.get(field, 0) for stats in self.workers(role))

    def fault(self, stage: str) -> tuple[int, int]:
        """Return the messages, and the packets in them, that were sent to end at a stage."""
        for stats in self.phase.faults:
            if stats.role == "sender" and stats.worker.endswith(f".fault_{stage}"):
                return stats.counts.get("sent_messages", 0), stats.counts.get("sent_packets", 0)
        return 0, 0

    def counter(self, role: Role, pattern: str) -> int | None:
        """Return one counter's difference summed over a role's hosts; None where none has it.

        ``{interface}`` in the pattern stands for each host's own interface.
        """
        hosts = self.roles.senders if role == "sender" else self.roles.receivers
        found = [
            self.deltas[host].total(self.named(host, pattern))
            for host in hosts
            if host in self.deltas
        ]
        known = [value for value in found if value is not None]
        return sum(known) if known else None

    def total(self, role: Role, *patterns: str) -> int | None:
        """Return the sum of counters that see different packets; None where a host has none."""
        found = [self.counter(role, pattern) for pattern in patterns]
        known = [value for value in found if value is not None]
        return sum(known) if known else None

    def by_name(self, role: Role, pattern: str) -> dict[str, int]:
        """Return the counters of a role's hosts that match a pattern and moved, by name.

        With several hosts the host's name stands before it.
        """
        hosts = self.roles.senders if role == "sender" else self.roles.receivers
        return {
            f"{host} {name}" if len(hosts) > 1 else name: value
            for host in hosts
            if host in self.deltas
            for name, value in self.deltas[host].matching(self.named(host, pattern)).items()
            if value != 0
        }

    def driver(self, host: str) -> str | None:
        """Return the driver of a host's interface; None where it is not known."""
        facts = self.record.facts.get(host)
        return facts.driver if facts is not None else None

    def without(self, role: Role, hook: str) -> bool:
        """Tell whether it is known that nothing is attached to a hook of a role's interfaces."""
        hosts = self.roles.senders if role == "sender" else self.roles.receivers
        known = [self.record.facts[host] for host in hosts if host in self.record.facts]
        return {facts.environment.get(hook) for facts in known} == {NOTHING_ATTACHED}

    @property
    def all_veth(self) -> bool:
        """True where every host's interface is an end of a veth pair."""
        return {facts.driver for facts in self.record.facts.values()} == {"veth"}

    @property
    def bridge(self) -> Deltas | None:
        """Return the counters of a built-in lab's bridge; None where hosts are joined otherwise.

        It is the one snapshot with interfaces that is of no host.
        """
        hosts = {*self.record.facts, *self.roles.senders, *self.roles.receivers}
        found = [
            delta
            for host, delta in self.deltas.items()
            if host not in hosts and any(name.startswith("link.") for name in delta.values)
        ]
        return found[0] if found else None

    def machine(self, role: Role) -> tuple[Deltas, ...]:
        """Return the machine counters that belong to a role's hosts.

        Each machine's once, however many of the hosts are namespaces of it.
        """
        return tuple(self.deltas[name] for name in self.machines(role) if name in self.deltas)

    def machines(self, role: Role) -> tuple[str, ...]:
        """Return the machines that a role's hosts are on, as ``machine_of`` names them."""
        hosts = self.roles.senders if role == "sender" else self.roles.receivers
        return tuple(dict.fromkeys(self.machine_of(host) for host in hosts))

    def machine_of(self, host: str) -> str:
        """Return in whose snapshot the counters of a host's machine are; its own if in nobody's.

        A host that sees its whole machine has them itself; of several on one machine the first is
        taken for all. In the built-in lab they are in the snapshot of the machine's own agent,
        which plays no role.
        """
        roles, facts = {*self.roles.senders, *self.roles.receivers}, self.record.facts
        seeing = [name for name in sorted(self.deltas) if _has_machine(self.deltas[name])]
        if host in seeing:
            boots = {name: facts[name].boot_id for name in seeing if name in facts}
            return next((name for name in boots if boots[name] == boots.get(host)), host)
        return next((name for name in seeing if name not in roles), host)

    def machine_counter(self, role: Role, pattern: str) -> int | None:
        """Return one machine counter's difference summed over a role's machines."""
        found = [delta.total(pattern) for delta in self.machine(role)]
        known = [value for value in found if value is not None]
        return sum(known) if known else None

    def machine_by_name(self, role: Role, pattern: str) -> dict[str, int]:
        """Return the counters of a role's machines that match a pattern and moved, by name."""
        found: dict[str, int] = {}
        for delta in self.machine(role):
            for name, value in delta.matching(pattern).items():
                if value != 0:
                    found[name] = found.get(name, 0) + value
        return found

    def named(self, host: str, pattern: str) -> str:
        """Return a pattern with the host's interface and the family's protocols put in."""
        facts = self.record.facts.get(host)
        interface = facts.interface if facts is not None else "*"
        return self.in_family(pattern).replace("{interface}", interface)

    def in_family(self, pattern: str) -> str:
        """Return a pattern with the names of the trial's IP version put in."""
        for placeholder, prefix in FAMILIES[self.record.trial.traffic.family].items():
            pattern = pattern.replace(placeholder, prefix)
        return pattern

    def display(self, role: Role, pattern: str) -> str:
        """Return a pattern as a reader may look it up: with the interface, or with a star."""
        hosts = self.roles.senders if role == "sender" else self.roles.receivers
        names = {self.named(host, pattern) for host in hosts}
        general = self.in_family(pattern).replace("{interface}", "*")
        return names.pop() if len(names) == 1 else general


def _has_machine(delta: Deltas) -> bool:
    return delta.has("softnet") or delta.has("cpu")


def roles(record: TrialRecord) -> Roles:
    """Return which hosts sent and which were sent to.

    With ``receive.workers: 0`` no worker names the receiver: it is the host that has an address
    which a flow goes to.
    """
    senders = {spec.host for spec in record.workers if spec.role == "sender"}
    receivers = {spec.host for spec in record.workers if spec.role == "receiver"}
    targets = {flow.destination for spec in record.workers for flow in spec.flows}
    for host, facts in record.facts.items():
        if targets & {address.partition("/")[0] for address in facts.addresses}:
            receivers.add(host)
    return Roles(tuple(sorted(senders)), tuple(sorted(receivers - senders)))


def readings(record: TrialRecord, name: PhaseName = "measured") -> Readings | None:
    """Return the readings of one phase; None where the record has no such phase."""
    for phase in record.phases:
        if phase.name == name:
            hosts = sorted(set(phase.before) & set(phase.after))
            taken = {host: deltas(phase.before[host], phase.after[host]) for host in hosts}
            return Readings(record, phase, roles(record), taken)
    return None
