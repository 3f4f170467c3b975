"""Checks of placement: workers on their CPUs, packets on their RX queues, flows on every socket."""

from __future__ import annotations

from collections.abc import Iterator

from udpbench.analysis.ledger.intended_load import sent_packets
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.queue_counters import CARRYING, EVEN, by_receiver, carrying, sent_flows
from udpbench.analysis.rates import host_of
from udpbench.analysis.readings import Readings
from udpbench.cpu_lists import format_cpu_list
from udpbench.model.host import Change
from udpbench.model.limits import QUEUES_EVEN_WITHIN, stages_after
from udpbench.model.record import Finding, WorkerStats
from udpbench.model.work import WorkerSpec
from udpbench.units import show_ratio

AFTER_QUEUE = stages_after("rx_ring")
"""Stages whose packets an RX queue has counted."""
STRAY_PACKETS = 3
"""Foreign packets allowed on a queue if they exceed ``CARRYING`` only because a trial is small."""
QUEUE_RELATIONS = {"same-cpu", "smt-sibling", "same-node", "other-node"}
"""CPU placements that follow from the RX queues."""


def worker_moved(readings: Readings) -> Iterator[Finding]:
    """Find a pinned worker that ran on a CPU other than its own."""
    for stats in readings.phase.stats:
        if stats.cpu is not None and any(cpu != stats.cpu for cpu in stats.cpus_seen):
            yield Finding(
                "invalid",
                "placement lost: the worker ran on another CPU",
                stats.worker,
                f"CPU {format_cpu_list(stats.cpus_seen)}",
                f"CPU {stats.cpu} only",
                "check what changes CPU affinities on that host",
            )


def queues_moved(measured: Readings) -> Iterator[Finding]:
    """Find packets on RX queues other than those on which the placement was built."""
    trial = measured.record.trial
    queues = trial.traffic.flows.queues
    path = measured.path
    if path is None or (
        queues == "any" and not {trial.send.cpus, trial.receive.cpus} & QUEUE_RELATIONS
    ):
        return
    flows = sent_flows(measured.record.workers)
    expected = {host: carrying(packets, flows) for host, packets in by_receiver(path).items()}
    for host, packets in by_receiver(measured).items():
        used = _queues_under_load(packets, flows)
        if host in expected and used != expected[host]:
            yield _queues_differ(host, _listed(used), _listed(expected[host]))
        elif queues != "any":
            yield from _uneven(measured, host, packets, used)


def _queues_under_load(packets: dict[int, int], flows: int) -> tuple[int, ...]:
    """Return the queues that carry traffic of a measured phase, even a part of a flow.

    A flow that moved during the phase must be noticed, so a queue needs less than a whole flow.
    """
    total = sum(packets.values())
    return tuple(queue for queue in sorted(packets) if _is_load(packets[queue], total, flows))


def _is_load(packets: int, total: int, flows: int) -> bool:
    few = packets <= STRAY_PACKETS and packets < EVEN * total / max(flows, 1)
    return packets > CARRYING * total and not few


def _uneven(
    measured: Readings, host: str, packets: dict[int, int], used: tuple[int, ...]
) -> Iterator[Finding]:
    """Find an uneven load on the queues, wherever the packets that none of them counted were lost.

    By the rule by which flows were selected. Senders may end in the middle of a round of flows.
    """
    queues = int(measured.record.trial.traffic.flows.queues)
    counted = sum(packets[queue] for queue in used)
    missed = counted * _lost_before_queue(measured) + _round_packets(measured) / queues
    missed += STRAY_PACKETS
    most = (1 + QUEUES_EVEN_WITHIN) * (counted + missed) / queues
    least = (1 - QUEUES_EVEN_WITHIN) * counted / queues - missed
    if len(used) != queues or not all(least <= packets[queue] <= most for queue in used):
        shares = ", ".join(f"{queue}: {packets[queue]}" for queue in used)
        even = f"{queues} queues, evenly within {show_ratio(QUEUES_EVEN_WITHIN)}"
        yield _queues_differ(host, f"packets by RX queue {shares}", even)


def _lost_before_queue(measured: Readings) -> float:
    """Return how many packets may have been lost before a queue counted them, per counted one."""
    ledger = make_ledger(measured)
    sent = sent_packets(measured)
    after = sum(entry.packets or 0 for entry in ledger.entries if entry.stage in AFTER_QUEUE)
    reached = min(ledger.received_packets + after, sent)
    return sent / reached - 1 if reached else 0.0


def _round_packets(measured: Readings) -> int:
    """Return the most packets that all senders together send in one round of their flows."""
    return sum(
        len(spec.flows) * _packets_per_flow(spec)
        for spec in measured.record.workers
        if spec.role == "sender"
    )


def _packets_per_flow(spec: WorkerSpec) -> int:
    """Return the packets of one flow in a sender's call; a count is divided beforehand."""
    if spec.send is None:
        return 0
    segments = spec.send.gso if isinstance(spec.send.gso, int) else 1
    return 1 if spec.count_packets is not None else spec.send.messages * segments


def _queues_differ(host: str, value: str, limit: str) -> Finding:
    return Finding(
        "invalid",
        "placement lost: packets arrived on other RX queues than in the path check",
        host,
        value,
        limit,
        "check what else changes queues, hashing or rules of that interface",
    )


def steering_ignored(measured: Readings) -> Iterator[Finding]:
    """Find a card that accepted a table or a rule, reads it back, and does not follow it."""
    ports = {flow.destination_port for spec in measured.record.workers for flow in spec.flows}
    flows = sent_flows(measured.record.workers)
    for host, packets in by_receiver(measured).items():
        total = sum(packets.values())
        for change in measured.record.changes.get(host, ()):
            allowed = _steered_queues(change, ports)
            if allowed is None or change.refusal is not None:
                continue
            astray = sum(count for queue, count in packets.items() if queue not in allowed)
            if _is_load(astray, total, flows):
                yield Finding(
                    "invalid",
                    f"the card ignores {change.setting.path or change.setting.kind}",
                    host,
                    f"{astray} of {total} packets arrived on other RX queues",
                    _listed(tuple(sorted(allowed))),
                    "see the driver's documentation, or choose queues by another setting",
                )


def _steered_queues(change: Change, ports: set[int]) -> set[int] | None:
    """Return the RX queues that a change leaves to the traffic; None if it does not steer it."""
    setting = change.setting
    if setting.kind == "indirection" and isinstance(change.after, dict):
        return set(change.after["table"])
    if setting.kind == "ntuple" and len(ports) == 1 and setting.target.endswith(f"/{min(ports)}"):
        return {setting.value}
    return None


def _meant_queues(readings: Readings, host: str, counts: dict[int, int]) -> set[int]:
    """Return the queues that a host's tables and rules leave to the traffic."""
    ports = {flow.destination_port for spec in readings.record.workers for flow in spec.flows}
    meant = set(counts)
    for change in readings.record.changes.get(host, ()):
        steered = _steered_queues(change, ports)
        if steered is not None and change.refusal is None:
            meant &= steered
    return meant


def _listed(queues: tuple[int, ...]) -> str:
    return f"RX queue {', '.join(map(str, queues))}" if queues else "no RX queue"


def idle_sockets(readings: Readings) -> Iterator[Finding]:
    """Find sockets of a group that received nothing while others did."""
    if readings.record.trial.receive.sockets == "shared":
        return
    by_host: dict[str, list[WorkerStats]] = {}
    for stats in readings.receiver.workers:
        by_host.setdefault(host_of(stats.worker), []).append(stats)
    for workers in by_host.values():
        idle = [stats.worker for stats in workers if not stats.counts.get("read_packets")]
        if idle and len(idle) < len(workers):
            yield Finding(
                "warning",
                "idle sockets: no flow was steered to them",
                ", ".join(idle),
                f"{len(idle)} of {len(workers)} workers read nothing",
                "every worker reads",
                "send from more ports, because a hash spreads few flows unevenly, or use sockets: "
                "reuseport-cpu",
            )


def idle_queues(readings: Readings) -> Iterator[Finding]:
    """Find RX queues that got no packet while others did, with enough flows for all.

    None where the trial asks for fewer queues than there are, or steers its packets past some.
    """
    queues = readings.record.trial.traffic.flows.queues
    flows = {flow.flow for spec in readings.record.workers for flow in spec.flows}
    for host, counts in by_receiver(readings).items():
        meant = _meant_queues(readings, host, counts)
        idle = [queue for queue in sorted(meant) if counts[queue] == 0]
        if queues != "any" and len(meant) - len(idle) >= queues:
            continue
        if not any(counts.values()) or len(flows) < len(meant) or not idle:
            continue
        yield Finding(
            "warning",
            "idle RX queues: no flow was hashed to them",
            host,
            f"queue {', '.join(map(str, idle))} of {readings.record.facts[host].interface}",
            f"each of {len(meant)} queues has some of the {len(flows)} flows",
            "set traffic.flows.queues, which finds flows for every queue; rx-flow-hash may ignore "
            "ports",
        )
