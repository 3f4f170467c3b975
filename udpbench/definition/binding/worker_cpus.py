"""The CPU of every worker of a trial, once the RX queues of its packets are known.

Pure; until then a worker is not pinned that is placed relative to the CPU of a queue: the same, its
SMT sibling, same node, other node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from udpbench.cpu_lists import format_cpu_list
from udpbench.definition.binding.cpu_placement import (
    Unavailable,
    crowded,
    listed_cpus,
    worker_cpus,
)
from udpbench.definition.values import CPU_RELATIONS
from udpbench.model.experiment import Trial
from udpbench.model.host import Facts
from udpbench.model.lab import Lab, Node
from udpbench.model.record import Finding

PIN = "pin it: settings.receiver.irq, napi.cpus or rps with one CPU each"


@dataclass(frozen=True)
class Landed:
    """The RX queues that the path phase found."""

    queues: Mapping[str, tuple[int, ...]]
    """Receiver → its RX queues that carry the traffic, in order."""
    flows: frozenset[int] | None = None
    """Numbers of the flows to keep; None: all."""


@dataclass(frozen=True)
class WorkerCpus:
    """The CPU of each worker of one host, None if unpinned, and findings about sharing.

    For a program, all CPUs on which it may run.
    """

    cpus: tuple[int | None, ...]
    findings: tuple[Finding, ...] = ()


def depends_on_queues(trial: Trial) -> bool:
    """Return whether flows or CPUs depend on the RX queues that the traffic takes."""
    relations = {trial.send.cpus, trial.receive.cpus} & {*CPU_RELATIONS}
    return bool(relations) or trial.traffic.flows.queues != "any"


def place_workers(
    trial: Trial, lab: Lab, facts: Mapping[str, Facts], landed: Landed | None
) -> dict[str, WorkerCpus]:
    """Return host → CPUs of its workers; Unavailable if a symbol cannot be resolved there.

    A relation never picks a CPU that the other role uses on the same machine, so the role that
    names its CPUs is placed first; if both use relations, the receivers are.
    """
    related_senders = trial.send.cpus in CPU_RELATIONS
    order = (lab.receivers, lab.senders) if related_senders else (lab.senders, lab.receivers)
    placed: dict[str, WorkerCpus] = {}
    for hosts, others in (order, order[::-1]):
        for host in hosts:
            machine = facts[host.name].boot_id
            taken = {
                cpu
                for other in others
                if other.name in placed and facts[other.name].boot_id == machine
                for cpu in placed[other.name].cpus
                if cpu is not None
            }
            placed[host.name] = _place(trial, lab, host, facts, _Known(landed, taken))
    return placed


@dataclass(frozen=True)
class _Known:
    landed: Landed | None
    taken: set[int]


def _place(
    trial: Trial, lab: Lab, host: Node, facts: Mapping[str, Facts], known: _Known
) -> WorkerCpus:
    block = trial.send if host.sends else trial.receive
    if host.receives and trial.receive.attach is not None:
        return WorkerCpus((None,))
    if host.receives and trial.receive.command and block.cpus not in CPU_RELATIONS:
        pinned = () if block.cpus == "any" else listed_cpus(block.cpus, lab, host, facts)
        return WorkerCpus(pinned or (None,))
    if block.cpus not in CPU_RELATIONS or block.workers == 0:
        return WorkerCpus(*worker_cpus(block.cpus, block.workers, lab, host, facts))
    if known.landed is None:
        return WorkerCpus((None,) * block.workers)
    receiver = host if host.receives else _receiver_beside(lab, host, facts)
    queues = known.landed.queues.get(receiver.name, ())
    if not queues:
        raise Unavailable(f"cpus: {block.cpus}: no RX queue of {receiver.name} carries traffic")
    cpus = [queue_cpu(facts[receiver.name], queue) for queue in queues]
    chosen = related(block.cpus, cpus, block.workers, facts[host.name], known.taken)
    return WorkerCpus(chosen, crowded(host, block.workers, len(set(chosen))))


def _receiver_beside(lab: Lab, sender: Node, facts: Mapping[str, Facts]) -> Node:
    """Return the receiver on the sender's machine."""
    for receiver in lab.receivers:
        if facts[receiver.name].boot_id == facts[sender.name].boot_id:
            return receiver
    raise Unavailable(
        f"send.cpus: {sender.name} has no receiver on its machine, and so no RX queue to be placed "
        f"relative to; name CPUs, or write lab"
    )


def queue_cpu(facts: Facts, queue: int) -> int:
    """Return the one CPU that serves an RX queue; Unavailable if unknown, or several."""
    cpus = facts.queue_cpus.get(str(queue), ())
    where = f"RX queue {queue} of {facts.interface} on {facts.host}"
    if not cpus:
        raise Unavailable(
            f"no CPU is known to serve {where}: it has no interrupt, NAPI thread or RPS; "
            "in a built-in lab write link: {receive: napi}"
        )
    if len(cpus) > 1:
        listed = format_cpu_list(cpus)
        raise Unavailable(f"{where} may be served by any of the CPUs {listed}; {PIN}")
    return cpus[0]


def related(
    relation: str, queue_cpus: Sequence[int], workers: int, facts: Facts, taken: Collection[int]
) -> tuple[int, ...]:
    """Return a CPU for each worker: worker k relative to the k-th queue, wrapping round.

    ``taken`` are the CPUs of the other role. Except with ``same-cpu``, no two workers share a CPU
    and none uses a queue's. Raises Unavailable if no CPU is left.
    """
    chosen: list[int] = []
    for k in range(workers):
        base = queue_cpus[k % len(queue_cpus)]
        candidates = [c for c in cpus_by_relation(relation, base, facts) if c in facts.cpus]
        barred = set(taken)
        if relation != "same-cpu":
            barred |= {*queue_cpus, *chosen}
        free = [cpu for cpu in candidates if cpu not in barred]
        if not free:
            why = f"CPUs in use: {_listed(candidates)}" if candidates else "none exists"
            raise Unavailable(
                f"cpus: {relation}: no CPU for worker {k} of {facts.host} relative to CPU {base} "
                f"of its RX queue: {why}"
            )
        chosen.append(free[0])
    return tuple(chosen)


def cpus_by_relation(relation: str, cpu: int, facts: Facts) -> tuple[int, ...]:
    """Return the CPUs in a relation to a CPU; ``same-node`` leaves out its own core."""
    core = facts.siblings.get(str(cpu), (cpu,))
    node = next((cpus for cpus in facts.numa_nodes.values() if cpu in cpus), ())
    if relation == "same-cpu":
        return (cpu,)
    if relation == "smt-sibling":
        return tuple(sibling for sibling in core if sibling != cpu)
    if relation == "same-node":
        return tuple(other for other in node if other not in core)
    nodes = facts.numa_nodes.values()
    return tuple(other for cpus in nodes if cpu not in cpus for other in cpus)


def _listed(cpus: Sequence[int]) -> str:
    return ", ".join(str(cpu) for cpu in cpus)
