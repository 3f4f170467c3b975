"""What one phase of a record says in plain numbers: sums over workers and over hosts by role.

Owns which host plays which role and which counter is read for what; it never judges a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from udpbench.analysis.delta import Deltas, deltas
from udpbench.model import Phase, PhaseName, Role, TrialRecord, WorkerStats


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

    def workers(self, role: Role) -> tuple[WorkerStats, ...]:
        """Return the final statistics of every worker of a role."""
        return tuple(stats for stats in self.phase.stats if stats.role == role)

    def count(self, role: Role, field: str) -> int:
        """Return the sum of one C field over a role's workers; 0 where there are no workers."""
        return sum(stats.counts.get(field, 0) for stats in self.workers(role))

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

        A host that sees its whole machine has them itself; in the built-in lab they are in the
        snapshot of the machine's own agent, which plays no role.
        """
        hosts = self.roles.senders if role == "sender" else self.roles.receivers
        own = [self.deltas[h] for h in hosts if h in self.deltas and _has_machine(self.deltas[h])]
        roles = {*self.roles.senders, *self.roles.receivers}
        others = [d for h, d in self.deltas.items() if h not in roles and _has_machine(d)]
        return tuple(own or others)

    def machine_counter(self, role: Role, pattern: str) -> int | None:
        """Return one machine counter's difference summed over a role's machines."""
        found = [delta.total(pattern) for delta in self.machine(role)]
        known = [value for value in found if value is not None]
        return sum(known) if known else None

    def named(self, host: str, pattern: str) -> str:
        """Return a pattern with the host's own interface put in."""
        facts = self.record.facts.get(host)
        return pattern.replace("{interface}", facts.interface if facts is not None else "*")

    def display(self, role: Role, pattern: str) -> str:
        """Return a pattern as a reader may look it up: with the interface, or with a star."""
        hosts = self.roles.senders if role == "sender" else self.roles.receivers
        names = {self.named(host, pattern) for host in hosts}
        return names.pop() if len(names) == 1 else pattern.replace("{interface}", "*")


def _has_machine(delta: Deltas) -> bool:
    return any(name.startswith(("softnet.", "cpu.")) for name in delta.values)


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
