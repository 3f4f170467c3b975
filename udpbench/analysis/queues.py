"""Packets of each RX queue of a card, by the names that its driver gives the counters.

Also what a reader must know where they went by other queues than they were meant to. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from udpbench.analysis.readings import Readings, readings
from udpbench.model import Facts, Finding, Snapshot

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
"""Each queue of ``flows.queues`` must carry at least this much of its even share."""


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


def carrying(packets: dict[int, int]) -> tuple[int, ...]:
    """Return the queues that carry the traffic."""
    total = sum(packets.values())
    return tuple(queue for queue in sorted(packets) if packets[queue] > CARRYING * total)


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
    meant = by_receiver(path)
    for host, packets in by_receiver(measured).items():
        used = carrying(packets)
        if host in meant and used != carrying(meant[host]):
            yield _lost(host, f"RX queue {_listed(used)}", f"{_listed(carrying(meant[host]))}")
        elif wanted != "any":
            yield from _uneven(host, packets, wanted)


def _uneven(host: str, packets: dict[int, int], wanted: int) -> Iterator[Finding]:
    used, total = carrying(packets), sum(packets.values())
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
            if astray > CARRYING * total:
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
