"""CPUs as seen from the CPU of an RX queue: the same, its sibling, its node, another node.

Pure; what CPUs and queues there are comes from the hosts' facts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from udpbench.definition.placement import Unavailable
from udpbench.model import Facts

PIN = "pin it: settings.receiver.irq, napi.cpus or rps with one CPU each"


def queue_cpu(facts: Facts, queue: int) -> int:
    """Return the one CPU that serves an RX queue; Unavailable where it is not known or not one."""
    cpus = facts.queue_cpus.get(str(queue), ())
    where = f"RX queue {queue} of {facts.interface} on {facts.host}"
    if not cpus:
        raise Unavailable(
            f"no CPU is known to serve {where}: it has no interrupt, no NAPI thread and no RPS "
            "of its own; in a built-in lab write link: {receive: napi}"
        )
    if len(cpus) > 1:
        listed = ", ".join(str(cpu) for cpu in cpus)
        raise Unavailable(f"{where} may be served by any of the CPUs {listed}; {PIN}")
    return cpus[0]


def related(
    relation: str, queue_cpus: Sequence[int], workers: int, facts: Facts, taken: Collection[int]
) -> tuple[int, ...]:
    """Return a CPU for each worker: worker k as seen from the k-th queue, wrapping round.

    ``taken`` are those that the other role uses. But for ``same-cpu`` no two workers share one, and
    none is a queue's. Raises Unavailable with what is missing.
    """
    chosen: list[int] = []
    for k in range(workers):
        seen_from = queue_cpus[k % len(queue_cpus)]
        there = [cpu for cpu in seen_by(relation, seen_from, facts) if cpu in facts.cpus]
        barred = set(taken)
        if relation != "same-cpu":
            barred |= {*queue_cpus, *chosen}
        free = [cpu for cpu in there if cpu not in barred]
        if not free:
            why = f"those there, {_listed(there)}, are in use" if there else "there is none"
            raise Unavailable(
                f"cpus: {relation}: worker {k} of {facts.host} finds no CPU, seen from CPU "
                f"{seen_from} of its RX queue: {why}"
            )
        chosen.append(free[0])
    return tuple(chosen)


def seen_by(relation: str, cpu: int, facts: Facts) -> tuple[int, ...]:
    """Return the CPUs that stand in a relation to a CPU; of its node those of other cores."""
    core = facts.siblings.get(str(cpu), (cpu,))
    node = next((cpus for cpus in facts.numa_nodes.values() if cpu in cpus), ())
    if relation == "same-cpu":
        return (cpu,)
    if relation == "smt-sibling":
        return tuple(one for one in core if one != cpu)
    if relation == "same-node":
        return tuple(one for one in node if one not in core)
    return tuple(one for cpus in facts.numa_nodes.values() if cpu not in cpus for one in cpus)


def _listed(cpus: Sequence[int]) -> str:
    return ", ".join(str(cpu) for cpu in cpus)
