"""The CPU of every worker of a trial, once it is known on which RX queues its packets land.

Pure; before that, a worker placed in relation to a queue is not pinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from udpbench.definition.leaves import CPU_RELATIONS
from udpbench.definition.placement import Unavailable, crowded, worker_cpus
from udpbench.definition.relations import queue_cpu, related
from udpbench.model import Facts, Finding, Host, Lab, Trial


@dataclass(frozen=True)
class Landed:
    """What the path phase found of RX queues."""

    queues: Mapping[str, tuple[int, ...]]
    """Receiver → its RX queues that carry the traffic, in order."""
    flows: frozenset[int] | None = None
    """Numbers of the flows to keep; None: all."""


@dataclass(frozen=True)
class Place:
    """Where the workers of one host run, None where unpinned, and what a reader must know."""

    cpus: tuple[int | None, ...]
    findings: tuple[Finding, ...] = ()


def depends_on_queues(trial: Trial) -> bool:
    """Say whether flows or CPUs follow from the RX queues that the traffic takes."""
    relations = {trial.send.cpus, trial.receive.cpus} & {*CPU_RELATIONS}
    return bool(relations) or trial.traffic.flows.queues != "any"


def places(
    trial: Trial, lab: Lab, facts: Mapping[str, Facts], landed: Landed | None
) -> dict[str, Place]:
    """Return host → the place of its workers; Unavailable where a symbol means nothing there.

    A relation never picks a CPU that the other role uses on that machine, so the role that names
    its CPUs comes first; where both are relations, the receivers do.
    """
    related_senders = trial.send.cpus in CPU_RELATIONS
    order = (lab.receivers, lab.senders) if related_senders else (lab.senders, lab.receivers)
    found: dict[str, Place] = {}
    for hosts, others in (order, order[::-1]):
        for host in hosts:
            machine = facts[host.name].boot_id
            taken = {
                cpu
                for other in others
                if other.name in found and facts[other.name].boot_id == machine
                for cpu in found[other.name].cpus
                if cpu is not None
            }
            found[host.name] = _place(trial, lab, host, facts, _Seen(landed, taken))
    return found


@dataclass(frozen=True)
class _Seen:
    landed: Landed | None
    taken: set[int]


def _place(trial: Trial, lab: Lab, host: Host, facts: Mapping[str, Facts], seen: _Seen) -> Place:
    block = trial.send if host.role == "sender" else trial.receive
    if block.cpus not in CPU_RELATIONS or block.workers == 0:
        return Place(*worker_cpus(block.cpus, block.workers, lab, host, facts))
    if seen.landed is None:
        return Place((None,) * block.workers)
    receiver = host if host.role == "receiver" else _neighbour(lab, host, facts)
    queues = seen.landed.queues.get(receiver.name, ())
    if not queues:
        raise Unavailable(f"cpus: {block.cpus}: no RX queue of {receiver.name} carries traffic")
    cpus = [queue_cpu(facts[receiver.name], queue) for queue in queues]
    chosen = related(block.cpus, cpus, block.workers, facts[host.name], seen.taken)
    return Place(chosen, crowded(host, block.workers, len(set(chosen))))


def _neighbour(lab: Lab, sender: Host, facts: Mapping[str, Facts]) -> Host:
    """Return the receiver whose RX queues are of the sender's machine."""
    for receiver in lab.receivers:
        if facts[receiver.name].boot_id == facts[sender.name].boot_id:
            return receiver
    raise Unavailable(
        f"send.cpus: {sender.name} is another machine than the RX queues; a relation is for the "
        "host that has them; name CPUs, or lab"
    )
