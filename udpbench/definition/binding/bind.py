"""The door of this room: resolves a symbolic trial into workers and settings on actual hosts.

Pure functions. Raises Unavailable for anything that a host cannot offer: the trial is skipped.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from udpbench.definition.binding.bridge import joint_settings_for
from udpbench.definition.binding.cpu_placement import Unavailable, UnmetNeeds, host_cpus
from udpbench.definition.binding.flow_selection import keep
from udpbench.definition.binding.host_block import LabContext
from udpbench.definition.binding.requirements import require_kernels, unmet_lab
from udpbench.definition.binding.setting_order import host_settings_for, machine_settings_for
from udpbench.definition.binding.worker_cpus import (
    Landed,
    WorkerCpus,
    depends_on_queues,
    place_workers,
)
from udpbench.definition.endpoints import parse_ports, parse_published, parse_to
from udpbench.model.experiment import HostNeeds, Needs, Receive, Send, Trial
from udpbench.model.host import GSO_SEGMENTS, Facts, Setting
from udpbench.model.lab import Lab, Node
from udpbench.model.limits import MAX_PAYLOAD_BYTES, NUMBER
from udpbench.model.record import Finding
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.ways import Way, way_to_receive, way_to_send

__all__ = [
    "Bound",
    "LabContext",
    "Landed",
    "Unavailable",
    "UnmetNeeds",
    "bind",
    "depends_on_queues",
    "keep",
    "machine_settings_for",
    "published_addresses",
    "require_kernels",
    "require_offers",
    "settings_for",
    "unmet_needs",
]

MAX_FLOWS = 65536
"""Flow numbers are u16 in the packet header, and all senders share them."""


STACKED = ("bond", "bonding", "bridge", "macvlan", "team", "vlan")
"""Devices that only pass frames to other devices."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


@dataclass(frozen=True)
class Bound:
    """The workers of a trial, senders first, and the findings of binding."""

    workers: tuple[WorkerSpec, ...]
    findings: tuple[Finding, ...]


def settings_for(
    lab: Lab, trial: Trial | None, node: Node, context: LabContext
) -> tuple[Setting, ...]:
    """Return every setting of one node in the order of application; trial None: the lab's own.

    Raises Unavailable for what this lab or a host cannot offer.
    """
    if not node.change:
        return ()
    if node == lab.joint and not lab.middle:
        return joint_settings_for(lab, trial, context)
    return host_settings_for(lab, trial, node, context)


def bind(trial: Trial, lab: Lab, facts: Mapping[str, Facts], landed: Landed | None = None) -> Bound:
    """Return every worker of a trial, fully resolved against ``facts``, which are by host name.

    ``landed`` is what the path phase found out about RX queues; without it all flows are kept, and
    workers placed relative to a queue are not pinned. Raises UnmetNeeds, and Unavailable for a
    symbol that cannot be resolved on these hosts.
    """
    reasons = unmet_needs(trial, lab, facts)
    if reasons:
        raise UnmetNeeds("; ".join(reasons))
    if trial.traffic.protocol == "udp" and not trial.traffic.fragment:
        _check_mtu(trial, lab, facts)
    if way_to_send(trial.send).takes == "frames":
        _check_sending_devices(trial, lab, facts)
    if way_to_receive(trial.receive).takes == "frames":
        _check_receiving_devices(trial, lab, facts)
    ttl = trial.traffic.ttl if trial.traffic.ttl is not None else lab.longest_ttl
    traffic = replace(trial.traffic, ttl=ttl)
    trial = replace(trial, send=_segmented(trial, lab, facts), traffic=traffic)
    flows, per_worker = _flows(trial, lab, facts, landed)
    cpus = place_workers(trial, lab, facts, landed)
    senders = _senders(trial, lab, cpus, per_worker)
    receivers = _receivers(trial, lab, facts, cpus, _arriving(trial, lab, facts, flows))
    crowded = (finding for host in lab.ends for finding in cpus[host.name].findings)
    return Bound((*senders, *receivers), (*crowded, *_shared_cpus(lab, senders, receivers)))


def require_offers(
    trial: Trial,
    lab: Lab,
    facts: Mapping[str, Facts],
    capabilities: Mapping[str, Mapping[str, bool]],
) -> None:
    """Raise UnmetNeeds, or Unavailable for what kernels lack, before any setting is applied.

    Queues and rings are left to ``bind``: settings may change them. So is the driver in a built-in
    lab, whose interfaces are made by settings.
    """
    needs = trial.needs
    ends = (needs.sender, needs.receiver)
    known = [replace(end, rx_queues=None, rings=None) for end in ends]
    hosts = [replace(end, driver=None) for end in known] if lab.built_in else known
    reasons = unmet_needs(replace(trial, needs=Needs(needs.lab, *hosts)), lab, facts)
    if reasons:
        raise UnmetNeeds("; ".join(reasons))
    require_kernels(trial, lab, capabilities)


def unmet_needs(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> list[str]:
    """Return a reason for each need of a trial that the lab or a host does not meet."""
    reasons = list(unmet_lab(trial, lab))
    for host in lab.hosts:
        needs = getattr(trial.needs, host.part, HostNeeds())
        reasons += [f"{host.name} {reason}" for reason in _unmet(needs, lab, host, facts)]
    return reasons


def _unmet(needs: HostNeeds, lab: Lab, host: Node, facts: Mapping[str, Facts]) -> Iterator[str]:
    own = facts[host.name]
    counted = (
        ("CPUs", needs.cpus, len(host_cpus(lab, host, facts))),
        ("RX queues", needs.rx_queues, own.rx_queues),
        ("NUMA nodes", needs.nodes, len(own.numa_nodes)),
    )
    for name, needed, present in counted:
        if needed is not None and (present is None or present < needed):
            known = "an unknown number" if present is None else present
            yield f"needs {needed} {name} and has {known}"
    if needs.rings is not None and needs.rings != bool(own.rings):
        yield f"needs an interface with{'' if needs.rings else 'out'} rings that can be set"
    if needs.smt is not None:
        smt = any(len(threads) > 1 for threads in own.siblings.values())
        if smt != needs.smt:
            yield f"needs cores {'with' if needs.smt else 'without'} SMT siblings"
    if needs.driver is not None and needs.driver != own.driver:
        yield f"needs the driver {needs.driver} and has {own.driver or 'an unknown one'}"
    if needs.kernel is not None and _version(own.kernel) < _version(needs.kernel):
        yield f"needs the kernel {needs.kernel} and has {own.kernel}"


def _version(text: str) -> tuple[int, ...]:
    """Return the numbers with which a kernel's release, or a need of one, begins."""
    numbers = re.match(rf"({NUMBER})\.({NUMBER})(?:\.({NUMBER}))?", text)
    return () if numbers is None else tuple(int(number or 0) for number in numbers.groups())


def _check_mtu(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> None:
    longest, needed = trial.traffic.datagrams.longest_bytes, trial.traffic.longest_packet_bytes
    for host in lab.hosts:
        mtu = facts[host.name].mtu
        if mtu is not None and needed > mtu:
            raise Unavailable(
                f"a datagram of {longest}B needs an MTU of {needed}; "
                f"{host.interface} of {host.name} has {mtu}; raise settings.{host.part}.mtu"
            )


def _frame_device(key: str, host: Node, own: Facts) -> str:
    """Return the name of a host's device for errors; refuse one that only passes frames on."""
    where = f"{key}: {host.interface} of {host.name}"
    if own.driver in STACKED:
        raise Unavailable(
            f"{where} is a {own.driver}, which has no queues of its own; name the device below it"
        )
    return where


def _check_sending_devices(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> None:
    """Raise Unavailable if a sender's device has too few queues for its frame workers."""
    for host in lab.senders:
        own = facts[host.name]
        where = _frame_device(way_to_send(trial.send).key, host, own)
        if own.tx_queues is not None and own.tx_queues < trial.send.workers:
            raise Unavailable(
                f"{where} has {own.tx_queues} TX queues, and each of {trial.send.workers} workers "
                f"needs one; lower send.workers, or raise settings.{_queues_key(lab, 'sender')}"
            )


def _check_receiving_devices(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> None:
    """Raise Unavailable if a receiver's frames could arrive on a queue without a worker.

    The XDP program would pass those frames to the stack, to a port that nobody has bound. Likewise
    if the driver is known to run no such program: behind it, in the generic hook, frames are
    packets of the stack already, and nothing counts those that are dropped there.
    """
    way = way_to_receive(trial.receive)
    for host in lab.receivers:
        own, workers = facts[host.name], trial.receive.workers
        where = _frame_device(way.key, host, own)
        if workers and own.rx_queues is not None and own.rx_queues != workers:
            raise Unavailable(
                f"{where} has {own.rx_queues} RX queues, and receive.workers is {workers}; each "
                f"queue needs one: set it to {own.rx_queues}, or "
                f"settings.{_queues_key(lab, 'receiver')} to {workers}"
            )
        features = own.xdp_features
        if workers and features is not None and not {*way.xdp_features} <= {*features}:
            raise Unavailable(f"{where} has no native XDP: {_without_xdp(way, own, features)}")


def _without_xdp(way: Way, own: Facts, features: tuple[str, ...]) -> str:
    """Return what a driver has instead of native XDP, and what helps."""
    step = "choose another receive.call, or an interface whose driver has them"
    if own.driver == "veth":  # drivers/net/veth.c, veth_set_xdp_features
        peer = f"a peer with no more TX queues than the {own.rx_queues} RX queues here"
        step = f"a veth has them with {peer}: lower settings.sender.ethtool.channels"
    has, needed = ", ".join(features) or "none", ", ".join(way.xdp_features)
    return f"xdp-features of {own.driver or 'its driver'}: {has}; needed: {needed}; {step}"


def _queues_key(lab: Lab, role: str) -> str:
    return "receiver.link.queues" if lab.built_in else f"{role}.ethtool.channels"


def _segmented(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> Send:
    """Return how to send, with ``gso: max`` resolved to what every sender's kernel accepts."""
    gso, size = trial.send.gso, trial.traffic.datagrams.longest_bytes
    if gso == "off":
        return trial.send
    limits = [facts[host.name].limits.get(GSO_SEGMENTS) for host in lab.senders]
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        raise Unavailable("send.gso: the kernel of a sender accepted no GSO message when probed")
    if gso == "max":
        return replace(trial.send, gso=min(*known, MAX_PAYLOAD_BYTES // size))
    if gso > min(known):
        raise Unavailable(
            f"send.gso: {gso} segments; the sender's kernel accepts at most {min(known)} "
            "per message (128 since Linux 6.9); lower it, or write max"
        )
    return trial.send


def _networks(trial: Trial, host: Node, facts: Mapping[str, Facts]) -> list[Interface]:
    """Return a host's addresses of the traffic's family: the lab's, or those the host has."""
    known = facts[host.name].addresses if host.existing else host.addresses
    networks = [_interface(address) for address in known]
    return [network for network in networks if network.version == trial.traffic.family]


# Thousands of points have the same addresses; to parse them took a third of binding.
@lru_cache(maxsize=4096)
def _interface(address: str) -> Interface:
    return ipaddress.ip_interface(address)


def _destinations(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> list[tuple[Address, int]]:
    """Return (address, port) of every destination, address by address."""
    to, destinations = parse_to(trial.traffic.flows.to), []
    for host in lab.receivers:
        addresses = [network.ip for network in _networks(trial, host, facts)]
        if to.members[-1] > len(addresses):
            raise Unavailable(
                f"traffic.flows.to asks for IPv{trial.traffic.family} address {to.members[-1]} of "
                f"{host.name}, which has {len(addresses)}"
            )
        destinations += [(addresses[i - 1], port) for i in to.members for port in to.ports]
    return destinations


def published_addresses(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> frozenset[str]:
    """Return the address of a node to which packets are sent for its rules to lead them on."""
    return frozenset(str(address) for address, _ in _published(trial, lab, facts))


def _published(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> list[tuple[Address, int]]:
    """Return the same with each port, in the order of the destinations to which rules lead."""
    text = trial.traffic.flows.published
    if text is None:
        return []
    published = parse_published(text)
    if published.node not in {node.name for node in lab.middle}:
        names = ", ".join(node.name for node in lab.middle) or "none"
        raise Unavailable(
            f"traffic.flows.published: {published.node} is no node in the middle of {lab.name}, "
            f"which has {names}"
        )
    if any(node.name == published.node and node.tunnel for node in lab.middle):
        what = f"traffic.flows.published: {published.node} begins or ends a tunnel"
        raise Unavailable(f"{what}; name a node that only routes")
    every = map(_interface, facts[published.node].addresses)
    own = [each.ip for each in every if each.version == trial.traffic.family]
    if published.member > len(own):
        raise Unavailable(
            f"traffic.flows.published asks for IPv{trial.traffic.family} address "
            f"{published.member} of {published.node}, which has {len(own)} where packets come in"
        )
    return [(own[published.member - 1], port) for port in published.ports]


def _source(trial: Trial, host: Node, facts: Mapping[str, Facts], to: Address) -> str:
    """Return the first address of a host in the destination's network, else its first."""
    networks = _networks(trial, host, facts)
    if not networks:
        family = f"IPv{trial.traffic.family}"
        raise Unavailable(f"{host.name} has no {family} address on {host.interface} to send from")
    return str(next((own for own in networks if to in own.network), networks[0]).ip)


def flow_count(trial: Trial) -> int:
    """Return how many 4-tuples the traffic of one sender and receiver has."""
    flows = trial.traffic.flows
    return len(parse_ports(flows.source_ports)) * parse_to(flows.to).count


def _flows(
    trial: Trial, lab: Lab, facts: Mapping[str, Facts], landed: Landed | None
) -> tuple[tuple[FlowSpec, ...], dict[tuple[str, int], tuple[FlowSpec, ...]]]:
    """Return all flows, and those of each sending worker by host and index.

    ``split`` deals flows out in turn; with ``each``, every worker sends all of them under new
    numbers, so that two senders of the same 4-tuple stay distinguishable.
    """
    count, each = trial.send.workers, trial.traffic.flows.spread == "each"
    # Checked before any is created: a stored run may ask for any number.
    total = flow_count(trial) * len(lab.senders) * (count if each else 1)
    if total > MAX_FLOWS:
        raise Unavailable(
            f"{total} flows over all hosts of {lab.name}; at most {MAX_FLOWS}, as flow "
            "numbers have 16 bits in the packet header; ask for fewer in traffic.flows"
        )
    destinations = _published(trial, lab, facts) or _destinations(trial, lab, facts)
    ports = parse_ports(trial.traffic.flows.source_ports)
    numbers = itertools.count()
    per_worker: dict[tuple[str, int], tuple[FlowSpec, ...]] = {}
    for host in lab.senders:
        tuples = [
            (_source(trial, host, facts, to), port, str(to), to_port)
            for to, to_port in destinations
            for port in ports
        ]
        for k in range(count):
            own = tuples if each else tuples[k::count]
            numbered = tuple(FlowSpec(next(numbers), *four) for four in own)
            per_worker[host.name, k] = tuple(flow for flow in numbered if _is_kept(flow, landed))
    return tuple(flow for own in per_worker.values() for flow in own), per_worker


def _arriving(
    trial: Trial, lab: Lab, facts: Mapping[str, Facts], flows: tuple[FlowSpec, ...]
) -> tuple[FlowSpec, ...]:
    """Return flows as they arrive: those sent to published ports have been given ``to``."""
    published = _published(trial, lab, facts)
    ends = dict(zip(published, _destinations(trial, lab, facts), strict=False))
    return tuple(
        replace(flow, destination=str(end[0]), destination_port=end[1])
        if (end := ends.get((ipaddress.ip_address(flow.destination), flow.destination_port)))
        else flow
        for flow in flows
    )


def _is_kept(flow: FlowSpec, landed: Landed | None) -> bool:
    return landed is None or landed.flows is None or flow.flow in landed.flows


def _share(total: int | None, k: int, workers: int) -> int | None:
    """Return worker k's share of a total; the shares add up to it exactly."""
    return None if total is None else total // workers + (1 if k < total % workers else 0)


def _senders(
    trial: Trial,
    lab: Lab,
    cpus: Mapping[str, WorkerCpus],
    per_worker: dict[tuple[str, int], tuple[FlowSpec, ...]],
) -> list[WorkerSpec]:
    traffic, workers = trial.traffic, trial.send.workers
    pps = traffic.intended_pps
    total = workers * len(lab.senders)
    specs: list[WorkerSpec] = []
    for n, host in enumerate(lab.senders):
        specs += [
            WorkerSpec(
                *("sender", host.name, k, cpu, per_worker[host.name, k], traffic),
                send=trial.send,
                rate_pps=_share(pps, n * workers + k, total),
                count_packets=_share(traffic.count_packets, n * workers + k, total),
            )
            for k, cpu in enumerate(cpus[host.name].cpus)
        ]
    return specs


def _receivers(
    trial: Trial,
    lab: Lab,
    facts: Mapping[str, Facts],
    cpus: Mapping[str, WorkerCpus],
    flows: tuple[FlowSpec, ...],
) -> list[WorkerSpec]:
    """Return n workers: worker k reads every n-th port from the k-th on, wrapping round.

    A user's program reads all ports, and so does an AF_XDP worker on its queue.
    """
    to, count = parse_to(trial.traffic.flows.to), trial.receive.workers
    specs: list[WorkerSpec] = []
    for host in lab.receivers:
        known = {str(network.ip) for network in _networks(trial, host, facts)}
        reaching = tuple(flow for flow in flows if to.reaches(flow.destination, known))
        spec = WorkerSpec("receiver", host.name, 0, None, reaching, trial.traffic)
        if way_to_receive(trial.receive).takes == "program":
            pinned = tuple(cpu for cpu in cpus[host.name].cpus if cpu is not None)
            cpu, own = pinned[0] if len(pinned) == 1 else None, _own_program(trial.receive, host)
            specs.append(replace(spec, cpu=cpu, receive=own, bind_ports=to.ports, cpus=pinned))
            continue
        spec = replace(spec, send=trial.send, receive=trial.receive)
        specs += [
            replace(spec, index=k, cpu=cpu, bind_ports=_read_ports(trial, to.ports, k, count))
            for k, cpu in enumerate(cpus[host.name].cpus)
        ]
    return specs


def _own_program(receive: Receive, host: Node) -> Receive:
    """Return a program as this host starts it: the user who called sudo there is equal to root."""
    as_login = receive.command is not None and receive.user is None
    return replace(receive, user="nobody") if as_login and host.connect.become else receive


def _read_ports(trial: Trial, ports: tuple[int, ...], k: int, count: int) -> tuple[int, ...]:
    if way_to_receive(trial.receive).takes == "frames":
        return ports
    return ports[k::count] if count < len(ports) else (ports[k % len(ports)],)


def _shared_by_peers(lab: Lab, specs: list[WorkerSpec]) -> Iterator[Finding]:
    """Yield a finding for each CPU on which several hosts of one role have workers."""
    hosts: dict[int, set[str]] = {}
    for spec in specs:
        for cpu in spec.own_cpus:
            hosts.setdefault(cpu, set()).add(spec.host)
    for cpu, names in sorted(hosts.items()):
        if len(names) > 1:
            yield Finding(
                "warning",
                f"{', '.join(sorted(names))} share a CPU",
                where=lab.name,
                value=f"CPU {cpu}",
                limit="one CPU per host",
                next_step="use a machine with more CPUs, or name other cpus in the lab",
            )


def _shared_cpus(
    lab: Lab, senders: list[WorkerSpec], receivers: list[WorkerSpec]
) -> Iterator[Finding]:
    """Yield a finding if hosts on one machine contend for a CPU."""
    if not lab.built_in:
        return
    for specs in (senders, receivers):
        yield from _shared_by_peers(lab, specs)
    sending = {cpu for spec in senders for cpu in spec.own_cpus}
    shared = sorted(sending & {cpu for spec in receivers for cpu in spec.own_cpus})
    if shared:
        yield Finding(
            "warning",
            "sender and receiver share a CPU",
            where=lab.name,
            value=f"CPU {', '.join(str(cpu) for cpu in shared)}",
            limit="one CPU per role",
            next_step="use a machine with at least 2 CPUs, or other cpus",
        )
