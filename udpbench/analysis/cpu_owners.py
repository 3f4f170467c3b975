"""Whose CPU time is: an end's, a node's in the middle, or that of several which share a CPU.

Owns what may be said of a CPU that several hosts of one machine share, and by how many packets the
time of each is divided. It never guesses: of several nodes of which nothing tells which forwarded a
packet, none is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from udpbench.analysis.ledger.intended_load import arrived, sent_packets
from udpbench.analysis.rates import Cpu, host_of, node_cpus
from udpbench.analysis.readings import Readings
from udpbench.cpu_stages import BRIDGED, FORWARDING
from udpbench.model.limits import stage_of
from udpbench.model.result import Ledger

SENDER, NODES, LINK, RECEIVER = "sender", "nodes", "link", "receiver"
"""Who has time besides each node in the middle: several of them together, as a chain of functions
does not tell whose namespace it is in; and who forwards and is none of them."""
QUEUES = ("fwd_ring", "fwd_backlog")
"""Where packets end for which a node does nothing."""
KNOWN_WITHIN = 0.01
"""Part of what came to a node at most, up to which the ledger may leave open how much that was."""


@dataclass(frozen=True)
class Owners:
    """Who has the time of each CPU: an end, or a node in the middle."""

    ends: Mapping[Cpu, str]
    """A CPU → the end that has it for itself, but for what is forwarded there."""
    nodes: Mapping[Cpu, str]
    """A CPU → the node in the middle that has it for itself."""
    alone: Mapping[str, str]
    """Machine → the node in the middle that is its only host."""
    forwarding: Mapping[str, str]
    """Machine → the nodes in the middle on it, of which a chain does not tell which it was."""
    bridging: frozenset[str]
    """Machines with a node in the middle that has a bridge."""

    def of(self, machine: str, cpu: int, stage: str) -> str:
        """Return who has the time at a stage."""
        node = self.alone.get(machine) or self.nodes.get((machine, cpu))
        if node is not None:
            return node
        forwarded = stage.startswith(FORWARDING)
        others_bridge = stage == BRIDGED and machine not in self.bridging
        if forwarded and machine in self.forwarding and not others_bridge:
            return self.forwarding[machine]
        own = self.ends.get((machine, cpu))
        if own is not None:
            return own
        return LINK if forwarded else SENDER if stage.startswith("tx_") else RECEIVER


@lru_cache(maxsize=4)  # each machine asks for it, and each stack
def owners_of(readings: Readings) -> Owners:
    """Return who has the CPUs of a phase, by the hosts of each machine and where they work."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for host in (*readings.sender.hosts, *readings.exits, *readings.receiver.hosts):
        hosts[readings.machine_of(host)].append(host)
    middle = {
        machine: [host for host in own if host in readings.exits] for machine, own in hosts.items()
    }
    together = {
        machine: NODES if own[1:] else called(own[0]) for machine, own in middle.items() if own
    }
    alone = {
        machine: called(own[0]) for machine, own in middle.items() if hosts[machine] == own[:1]
    }
    bridging = {readings.machine_of(node) for node, bridge in readings.bridges.items() if bridge}
    return Owners(
        *(_ends(readings), dict(_cpus_of_nodes(readings, hosts)), alone, together),
        frozenset(bridging),
    )


def cpus_of_node(readings: Readings, node: str) -> Iterator[Cpu]:
    """Yield the CPUs that a node in the middle has for itself: its queues', or all of a machine."""
    owners, machine = owners_of(readings), readings.machine_of(node)
    if machine in owners.alone and machine in readings.deltas:
        yield from ((machine, cpu) for cpu in readings.deltas[machine].numbered("cpu"))
    else:
        yield from sorted(cpu for cpu, name in owners.nodes.items() if name == called(node))


def called(node: str) -> str:
    """Return a node's name, told apart from who else has time."""
    return f"node {node}" if node in (SENDER, NODES, LINK, RECEIVER) else node


def _ends(readings: Readings) -> dict[Cpu, str]:
    """Return machine and CPU → the end that has it for itself."""
    sending, receiving = (node_cpus(end) for end in readings.ends)
    if sending is None or receiving is None:
        return {}
    return {
        **dict.fromkeys(sending - receiving, SENDER),
        **dict.fromkeys(receiving - sending, RECEIVER),
    }


def _cpus_of_nodes(readings: Readings, hosts: Mapping[str, list[str]]) -> Iterator[tuple[Cpu, str]]:
    """Yield each CPU to which a node in the middle alone hands what comes in, and the node.

    What the next host of the same machine takes in there, as without RPS of its own, is not that
    node's: then the CPU is nobody's alone.
    """
    workers = {
        (readings.machine_of(host_of(stats.worker)), cpu)
        for stats in readings.phase.stats
        for cpu in readings.pinned(stats)
    }
    unpinned = {
        readings.machine_of(host_of(stats.worker))
        for stats in readings.phase.stats
        if not readings.pinned(stats)
    }
    queues = {host: _queue_cpus(readings, host) for own in hosts.values() for host in own}
    names = list(readings.exits)
    for number, node in enumerate(names, 1):
        machine = readings.machine_of(node)
        behind = names[number : number + 1] or readings.receiver.hosts
        inline = [h for h in behind if readings.machine_of(h) == machine and not queues[h]]
        if machine in unpinned or inline:
            continue
        others = workers.union(*(cpus for host, cpus in queues.items() if host != node))
        yield from ((cpu, called(node)) for cpu in queues[node] - others)


def _queue_cpus(readings: Readings, host: str) -> frozenset[Cpu]:
    facts, machine = readings.facts.get(host), readings.machine_of(host)
    queues = facts.queue_cpus.values() if facts is not None else ()
    return frozenset((machine, cpu) for queue in queues for cpu in queue)


def packets_of(readings: Readings, ledger: Ledger | None) -> dict[str, int | None]:
    """Return who has time → the packets that it is divided by, in the packets' order.

    Of an end what it sent or received, of a node what it took in, of several the first of them;
    None where that is not known.
    """
    received = arrived(readings, workers_alone=True).packets
    forwarding = owners_of(readings).forwarding
    came: dict[str, int | None] = {}
    for node in readings.exits:
        name, packets = called(node), taken_by(ledger, node)
        came.setdefault(forwarding.get(readings.machine_of(node), name), packets)
        came[name] = packets
    return {SENDER: sent_packets(readings), **came, LINK: None, RECEIVER: received}


def taken_by(ledger: Ledger | None, node: str) -> int | None:
    """Return how many packets a node took in: those that ended neither before it nor in its queue.

    None if the ledger does not know it within a percent, as stages before and behind share a loss.
    """
    if ledger is None:
        return None
    places = [place for place, entry in enumerate(ledger.entries) if entry.node == node]
    if not places:
        return None
    ended = [entry.packets or 0 for entry in ledger.entries]
    in_queue = sum(
        ended[place] for place in places if stage_of(ledger.entries[place].stage) in QUEUES
    )
    most = ledger.intended_packets - sum(ended[: places[0]]) - in_queue
    least = ledger.received_packets + sum(ended[places[0] :]) - in_queue
    return most if most - least <= KNOWN_WITHIN * most else None
