"""CPUs relative to the CPU of an RX queue: the same, its SMT sibling, same node, other node.

Pure; which CPUs and queues exist comes from the hosts' facts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from udpbench.cpu_lists import format_cpu_list
from udpbench.definition.binding.cpu_placement import Unavailable
from udpbench.model import Facts

PIN = "pin it: settings.receiver.irq, napi.cpus or rps with one CPU each"


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
