"""Packets of each RX queue of a card, by the names that its driver gives the counters.

Also what a reader must know where they went by other queues than they were meant to. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from udpbench.analysis.readings import Readings, readings
from udpbench.model import Facts, Finding, Snapshot, Traffic, WorkerSpec

NAMES = (
    r"rx_queue_(\d+)_packets",  # igb, ixgbe, ice, virtio_net
    r"rx(\d+)_packets",  # mlx5
    r"rx-(\d+)\.(?:rx_)?packets",  # i40e, sfc
    r"queue_(\d+)_rx_cnt",  # ena
    r"\[(\d+)\]: rx_ucast_packets",  # bnxt
)
VETH_NAPI = r"rx_queue_(\d+)_xdp_packets"
"""Of veth alone: what its NAPI took in; other drivers count there what an XDP program saw."""
CARRYING = 0.01
"""A queue with less than this share of the packets carries only what others send."""
EVEN = 0.5
"""A flow, and each queue of ``flows.queues``, has at least this much of its even share."""
FRAGMENT_BYTES = 1280
"""Hardly any link has smaller ones: it is the least MTU of IPv6."""
STRAY_PACKETS = 3
"""So few may be what others send, where they are more than that share of a small trial."""


def queue_packets(facts: Facts, before: Snapshot, after: Snapshot) -> dict[int, int] | None:
    """Return RX queue → packets between two snapshots; None where they are not counted apart."""
    prefix = f"ethtool.{facts.interface}."
    counted = {
        name[len(prefix) :]: value - before.counters.get(name, 0)
        for name, value in after.counters.items()
        if name.startswith(prefix)
    }
    for pattern in (VETH_NAPI,) if facts.driver == "veth" else NAMES:
        found = {
            int(match.group(1)): packets
            for name, packets in counted.items()
            if (match := re.fullmatch(pattern, name)) is not None
        }
        if found:
            # A veth that hands its packets on without NAPI has these counters and never moves them.
            return found if any(found.values()) else None
    return None


def sent_flows(workers: Iterable[WorkerSpec]) -> int:
    """Return how many flows are sent; one that several workers send counts for each of them.

    So does each fragment, because a card that hashes ports finds them in the first one alone.
    """
    return sum(len(spec.flows) * _pieces(spec.traffic) for spec in workers if spec.role == "sender")


def _pieces(traffic: Traffic) -> int:
    return traffic.size_bytes // FRAGMENT_BYTES + 1 if traffic.fragment else 1


def carrying(packets: dict[int, int], flows: int) -> tuple[int, ...]:
    """Return the queues on which any of so many flows landed, in a path phase.

    It sends so few packets that two of others, say of ARP or LLDP, are more than ``CARRYING``. But
    the socket or the card gives all packets of a flow one queue, so a queue has those of a whole
    flow or none.
    """
    total, fullest = sum(packets.values()), max(packets.values(), default=0)
    least = min(EVEN * total / max(flows, 1), fullest)
    return tuple(
        queue
        for queue in sorted(packets)
        if packets[queue] > CARRYING * total and packets[queue] >= least
    )


def _under_load(packets: dict[int, int], flows: int) -> tuple[int, ...]:
    """Return the queues that carry the traffic of a measured phase, a part of a flow included.

    A flow that was moved under way is to be found, so the least is not that of a whole one.
    """
    total = sum(packets.values())
    return tuple(queue for queue in sorted(packets) if _is_ours(packets[queue], total, flows))


def _is_ours(packets: int, total: int, flows: int) -> bool:
    few = packets <= STRAY_PACKETS and packets < EVEN * total / max(flows, 1)
    return packets > CARRYING * total and not few


def by_receiver(phase: Readings) -> dict[str, dict[int, int]]:
    """Return receiver → its queues' packets, where they are counted apart."""
    found = {}
    for host in phase.roles.receivers:
        facts = phase.record.facts.get(host)
        if facts is not None and host in phase.deltas:
            counted = queue_packets(facts, phase.phase.before[host], phase.phase.after[host])
            if counted is not None:
                found[host] = counted
    return found


def queues_moved(measured: Readings) -> Iterator[Finding]:
    """Find packets that came by other RX queues than those on which the placement was built."""
    trial = measured.record.trial
    wanted = trial.traffic.flows.queues
    relations = {trial.send.cpus, trial.receive.cpus} & {
        "same-cpu",
        "smt-sibling",
        "same-node",
        "other-node",
    }
    path = readings(measured.record, "path")
    if path is None or (wanted == "any" and not relations):
        return
    flows = sent_flows(measured.record.workers)
    meant = {host: carrying(packets, flows) for host, packets in by_receiver(path).items()}
    for host, packets in by_receiver(measured).items():
        used = _under_load(packets, flows)
        if host in meant and used != meant[host]:
            yield _lost(host, f"RX queue {_listed(used)}", _listed(meant[host]))
        elif wanted != "any":
            yield from _uneven(host, packets, used, wanted)


def _uneven(
    host: str, packets: dict[int, int], used: tuple[int, ...], wanted: int
) -> Iterator[Finding]:
    total = sum(packets.values())
    least = min((packets[queue] for queue in used), default=0)
    if len(used) != wanted or least < EVEN * total / wanted:
        shares = ", ".join(f"{queue}: {packets[queue]}" for queue in used)
        yield _lost(host, f"packets by RX queue {shares}", f"{wanted} queues, evenly")


def _lost(host: str, value: str, limit: str) -> Finding:
    return Finding(
        "invalid",
        "placement lost: packets came by other RX queues than in the path phase",
        host,
        value,
        limit,
        "see whether something else changes queues, hashing or rules of that interface",
    )


def steering_ignored(measured: Readings) -> Iterator[Finding]:
    """Find a card that took a table or a rule, reads it back, and does not act on it."""
    port = _only_port(measured)
    flows = sent_flows(measured.record.workers)
    for host, packets in by_receiver(measured).items():
        total = sum(packets.values())
        for change in measured.record.changes.get(host, ()):
            setting, after = change.setting, change.after
            if change.refusal is not None:
                continue
            allowed: set[int] | None = None
            if setting.kind == "indirection" and isinstance(after, dict):
                allowed = set(after["table"])
            elif setting.kind == "ntuple" and setting.target.endswith(f"/{port}"):
                allowed = {setting.value}
            if allowed is None:
                continue
            astray = sum(count for queue, count in packets.items() if queue not in allowed)
            if _is_ours(astray, total, flows):
                yield Finding(
                    "invalid",
                    f"the card does not act on {setting.path or setting.kind}",
                    host,
                    f"{astray} of {total} packets came by other RX queues",
                    f"RX queue {_listed(tuple(sorted(allowed)))}",
                    "see the driver's documentation, or take another way to choose queues",
                )


def _only_port(measured: Readings) -> int | None:
    ports = {flow.destination_port for spec in measured.record.workers for flow in spec.flows}
    return ports.pop() if len(ports) == 1 else None


def _listed(queues: tuple[int, ...]) -> str:
    return ", ".join(str(queue) for queue in queues) or "none"
