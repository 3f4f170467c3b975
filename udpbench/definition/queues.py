"""Which flows to keep so that they fill RX queues evenly, once it is known where each one lands.

Pure; nothing here knows a counter or a host's CPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from udpbench.definition.placement import Unavailable
from udpbench.model import WorkerSpec

MAX_FLOWS = 64
"""Each is looked at by itself, which takes 0.1 s (benchmarks/overhead.py)."""

Landing = Mapping[int, int]
"""Flow number → the RX queue on which its packets arrive."""


def keep(landing: Landing, senders: Iterable[WorkerSpec], queues: int) -> frozenset[int]:
    """Return the flows to keep, so that ``queues`` RX queues have the same load.

    Every worker keeps equally many flows on each queue; where a worker has none on one of them,
    equally many workers keep one queue each. Raises Unavailable where neither can be.
    """
    workers = {spec.name: [f.flow for f in spec.flows if f.flow in landing] for spec in senders}
    found = _on_every_queue(landing, workers, queues) or _a_queue_each(landing, workers, queues)
    if not found:
        used = Counter(landing.values())
        there = ", ".join(f"{count} on queue {queue}" for queue, count in sorted(used.items()))
        raise Unavailable(
            f"traffic.flows.queues: {len(landing)} flows of {len(workers)} workers do not fill "
            f"{queues} RX queues evenly: {there or 'none arrived'}; widen traffic.flows.from or to"
        )
    return frozenset(found)


def _on_every_queue(
    landing: Landing, workers: Mapping[str, list[int]], queues: int
) -> list[int] | None:
    """Return as many flows of each worker on each of the queues that have most in common."""
    counts = [Counter(landing[flow] for flow in flows) for flows in workers.values()]
    common = {queue: min(one[queue] for one in counts) for queue in set(landing.values())}
    best = sorted(common, key=lambda queue: (-common[queue], queue))[:queues]
    each = min((common[queue] for queue in best), default=0)
    if len(best) < queues or each == 0:
        return None
    return [
        flow
        for flows in workers.values()
        for queue in best
        for flow in [one for one in flows if landing[one] == queue][:each]
    ]


def _a_queue_each(
    landing: Landing, workers: Mapping[str, list[int]], queues: int
) -> list[int] | None:
    """Return the flows of each worker on a queue of its own, the workers dealt out evenly."""
    used = Counter(landing.values())
    best = sorted(used, key=lambda queue: (-used[queue], queue))[:queues]
    if len(best) < queues or len(workers) % queues:
        return None
    places = [queue for queue in best for _ in range(len(workers) // queues)]
    holders: dict[int, str] = {}
    for name in workers:
        if not _seat(name, landing, workers, places, holders, set()):
            return None
    return [
        flow
        for place, name in sorted(holders.items())
        for flow in workers[name]
        if landing[flow] == places[place]
    ]


def _seat(
    name: str,
    landing: Landing,
    workers: Mapping[str, list[int]],
    places: list[int],
    holders: dict[int, str],
    tried: set[int],
) -> bool:
    """Give a worker a place, moving others if need be (an augmenting path of a matching)."""
    own = {landing[flow] for flow in workers[name]}
    for place, queue in enumerate(places):
        if queue not in own or place in tried:
            continue
        tried.add(place)
        if place not in holders or _seat(holders[place], landing, workers, places, holders, tried):
            holders[place] = name
            return True
    return False
