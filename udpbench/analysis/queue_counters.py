"""Packets of each RX queue of a card, by the names that its driver gives the counters.

Pure; ``checks.placement`` says if they arrived on other queues than intended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from udpbench.analysis.delta import Deltas
from udpbench.analysis.readings import Readings
from udpbench.drivers import driver_of
from udpbench.model import Facts, Traffic, WorkerSpec

CARRYING = 0.01
"""A queue with less than this share of the packets carries only foreign traffic."""
EVEN = 0.5
"""A flow sends at least this part of its even share."""
FRAGMENT_BYTES = 1280
"""Hardly any link has smaller fragments: it is the smallest MTU of IPv6."""


def queue_packets(facts: Facts, delta: Deltas) -> dict[int, int] | None:
    """Return RX queue → packets it took; None if they are not counted by queue."""
    prefix = re.escape(f"ethtool.{facts.interface}.")
    for pattern in driver_of(facts).queue_packets:
        packets = {
            int(match.group(1)): value
            for name, value in delta.values.items()
            if (match := re.fullmatch(prefix + pattern, name)) is not None
        }
        if packets:
            # A veth without NAPI has these counters and never moves them.
            return packets if any(packets.values()) else None
    return None


def sent_flows(workers: Iterable[WorkerSpec]) -> int:
    """Return the number of flows sent; one that several workers send counts once for each.

    So does each fragment, because a NIC that hashes ports finds them only in the first.
    """
    return sum(len(spec.flows) * _pieces(spec.traffic) for spec in workers if spec.role == "sender")


def _pieces(traffic: Traffic) -> int:
    return traffic.size_bytes // FRAGMENT_BYTES + 1 if traffic.fragment else 1


def carrying(packets: dict[int, int], flows: int) -> tuple[int, ...]:
    """Return the queues on which any of a number of flows landed in a path phase.

    It sends so few packets that two foreign ones, say ARP or LLDP, exceed ``CARRYING``. But the
    socket or the NIC puts all packets of a flow on one queue, so a queue has a whole flow or none.
    """
    total, fullest = sum(packets.values()), max(packets.values(), default=0)
    least = min(EVEN * total / max(flows, 1), fullest)
    return tuple(
        queue
        for queue in sorted(packets)
        if packets[queue] > CARRYING * total and packets[queue] >= least
    )


def by_receiver(phase: Readings) -> dict[str, dict[int, int]]:
    """Return receiver → its queues' packets, if they are counted by queue."""
    by_host = {}
    for host in phase.roles.receivers:
        facts = phase.record.facts.get(host)
        if facts is not None and host in phase.deltas:
            counted = queue_packets(facts, phase.deltas[host])
            if counted is not None:
                by_host[host] = counted
    return by_host
