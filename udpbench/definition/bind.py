"""The door from symbols to facts: a trial on hosts as they are becomes workers and settings.

Pure functions. What a host cannot offer raises Unavailable: the trial is skipped, with the reason.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from udpbench.definition.bridged import BRIDGE, BRIDGE_INTERFACE, bridge_settings_for
from udpbench.definition.host_block import LabContext
from udpbench.definition.placement import Unavailable, host_cpus
from udpbench.definition.places import Landed, Place, depends_on_queues, places
from udpbench.definition.queues import keep
from udpbench.definition.ranges import parse_ports, parse_to
from udpbench.definition.wanted import machine_settings_for, settings_for
from udpbench.model import (
    GSO_SEGMENTS,
    MAX_PAYLOAD_BYTES,
    Facts,
    Finding,
    FlowSpec,
    Host,
    HostNeeds,
    Lab,
    Send,
    Trial,
    WorkerSpec,
)

__all__ = [
    "BRIDGE",
    "BRIDGE_INTERFACE",
    "Bound",
    "LabContext",
    "Landed",
    "Unavailable",
    "bind",
    "bridge_settings_for",
    "depends_on_queues",
    "keep",
    "machine_settings_for",
    "settings_for",
    "unmet_needs",
]

HEADERS_BYTES = {4: 28, 6: 48}
"""IP version → bytes of its header and UDP's."""
MAX_FLOWS = 65536
"""Flow numbers are u16 in the packet header, and all senders share them."""


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


@dataclass(frozen=True)
class Bound:
    """The workers of a trial, senders first, and what binding found worth knowing."""

    workers: tuple[WorkerSpec, ...]
    findings: tuple[Finding, ...]


def bind(trial: Trial, lab: Lab, facts: Mapping[str, Facts], landed: Landed | None = None) -> Bound:
    """Return every worker of a trial, fully resolved against the facts of each host by name.

    Without ``landed``, what the path phase finds of RX queues, all flows are kept and a worker
    placed in relation to a queue is not pinned. Raises Unavailable where needs are not met or a
    symbol means nothing on these hosts.
    """
    reasons = unmet_needs(trial, lab, facts)
    if reasons:
        raise Unavailable("; ".join(reasons))
    if trial.traffic.protocol == "udp" and not trial.traffic.fragment:
        _check_mtu(trial, lab, facts)
    trial = replace(trial, send=_segmented(trial, lab, facts))
    flows, per_worker = _flows(trial, lab, facts, landed)
    place = places(trial, lab, facts, landed)
    senders = _senders(trial, lab, place, per_worker)
    receivers = _receivers(trial, lab, facts, place, flows)
    found = (finding for host in lab.hosts for finding in place[host.name].findings)
    return Bound((*senders, *receivers), (*found, *_shared_cpus(lab, senders, receivers)))


def unmet_needs(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> list[str]:
    """Return a reason for each need of a trial that the lab or a host does not meet."""
    reasons = []
    if trial.needs.lab is not None and trial.needs.lab != lab.built_in:
        kind = "a built-in lab" if trial.needs.lab else "hosts of their own, not a built-in lab"
        reasons.append(f"needs {kind}; --lab is {lab.name}")
    for host in lab.hosts:
        needs = trial.needs.sender if host.role == "sender" else trial.needs.receiver
        reasons += [f"{host.name} {reason}" for reason in _unmet(needs, lab, host, facts)]
    return reasons


def _unmet(needs: HostNeeds, lab: Lab, host: Host, facts: Mapping[str, Facts]) -> Iterator[str]:
    of_host = facts[host.name]
    counted = (
        ("CPUs", needs.cpus, len(host_cpus(lab, host, facts))),
        ("RX queues", needs.rx_queues, of_host.rx_queues),
        ("NUMA nodes", needs.nodes, len(of_host.numa_nodes)),
    )
    for what, wanted, there in counted:
        if wanted is not None and (there is None or there < wanted):
            known = "an unknown number" if there is None else there
            yield f"needs {wanted} {what} and has {known}"
    if needs.rings is not None and needs.rings != bool(of_host.rings):
        yield f"needs an interface with{'' if needs.rings else 'out'} rings that can be set"
    if needs.smt is not None:
        smt = any(len(threads) > 1 for threads in of_host.siblings.values())
        if smt != needs.smt:
            yield f"needs cores {'with' if needs.smt else 'without'} SMT siblings"


def _check_mtu(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> None:
    needed = trial.traffic.size_bytes + HEADERS_BYTES[trial.traffic.family]
    for host in lab.hosts:
        mtu = facts[host.name].mtu
        if mtu is not None and needed > mtu:
            raise Unavailable(
                f"a datagram of {trial.traffic.size_bytes}B needs an MTU of {needed}; "
                f"{host.interface} of {host.name} has {mtu}; raise settings.{host.role}.mtu"
            )


def _segmented(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> Send:
    """Return how to send, with ``gso: max`` as the number that every sender's kernel takes."""
    gso, size = trial.send.gso, trial.traffic.size_bytes
    if gso == "off":
        return trial.send
    limits = [facts[host.name].limits.get(GSO_SEGMENTS) for host in lab.senders]
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        raise Unavailable("send.gso: the kernel of a sender took no GSO message when asked")
    if gso == "max":
        return replace(trial.send, gso=min(*known, MAX_PAYLOAD_BYTES // size))
    if gso > min(known):
        raise Unavailable(
            f"send.gso: {gso} segments; the sender's kernel takes at most {min(known)} in a "
            "message, Linux since 6.9 128; lower it, or write max"
        )
    return trial.send


def _networks(trial: Trial, host: Host, facts: Mapping[str, Facts]) -> list[Interface]:
    """Return a host's addresses of the traffic's family: the lab's, or those found there."""
    known = facts[host.name].addresses if host.existing else host.addresses
    found = [ipaddress.ip_interface(address) for address in known]
    return [one for one in found if one.version == trial.traffic.family]


def _destinations(trial: Trial, lab: Lab, facts: Mapping[str, Facts]) -> list[tuple[Address, int]]:
    """Return (address, port) of every destination, address by address."""
    indexes, ports = parse_to(trial.traffic.flows.to)
    found = []
    for host in lab.receivers:
        addresses = [one.ip for one in _networks(trial, host, facts)]
        if indexes[-1] > len(addresses):
            raise Unavailable(
                f"traffic.flows.to asks for IPv{trial.traffic.family} address {indexes[-1]} of "
                f"{host.name}, which has {len(addresses)}"
            )
        found += [(addresses[i - 1], port) for i in indexes for port in ports]
    return found


def _source(trial: Trial, host: Host, facts: Mapping[str, Facts], to: Address) -> str:
    """Return the first address of a host in the destination's network, else its first."""
    addresses = _networks(trial, host, facts)
    if not addresses:
        family = f"IPv{trial.traffic.family}"
        raise Unavailable(f"{host.name} has no {family} address on {host.interface} to send from")
    return str(next((one for one in addresses if to in one.network), addresses[0]).ip)


def _flows(
    trial: Trial, lab: Lab, facts: Mapping[str, Facts], landed: Landed | None
) -> tuple[tuple[FlowSpec, ...], dict[tuple[str, int], tuple[FlowSpec, ...]]]:
    """Return all flows, and those of each sending worker by host and index.

    ``split`` deals flows out in turn; with ``each`` every worker has all of them under numbers of
    its own, so that two senders of one 4-tuple are told apart.
    """
    destinations = _destinations(trial, lab, facts)
    ports = parse_ports(trial.traffic.flows.source_ports)
    count = trial.send.workers
    numbers = itertools.count()
    per_worker: dict[tuple[str, int], tuple[FlowSpec, ...]] = {}
    for host in lab.senders:
        tuples = [
            (_source(trial, host, facts, to), port, str(to), to_port)
            for to, to_port in destinations
            for port in ports
        ]
        for k in range(count):
            mine = tuples[k::count] if trial.traffic.flows.spread == "split" else tuples
            numbered = tuple(FlowSpec(next(numbers), *four) for four in mine)
            per_worker[host.name, k] = tuple(flow for flow in numbered if _is_kept(flow, landed))
    flows = tuple(flow for mine in per_worker.values() for flow in mine)
    if len(flows) > MAX_FLOWS:
        raise Unavailable(
            f"{len(flows)} flows over all hosts of {lab.name}; at most {MAX_FLOWS}, the numbers "
            "that a packet's header holds; ask for fewer in traffic.flows"
        )
    return flows, per_worker


def _is_kept(flow: FlowSpec, landed: Landed | None) -> bool:
    return landed is None or landed.flows is None or flow.flow in landed.flows


def _share(total: int | None, k: int, workers: int) -> int | None:
    """Return worker k's part of a total, so that the parts add up to it exactly."""
    return None if total is None else total // workers + (1 if k < total % workers else 0)


def _senders(
    trial: Trial,
    lab: Lab,
    place: Mapping[str, Place],
    per_worker: dict[tuple[str, int], tuple[FlowSpec, ...]],
) -> list[WorkerSpec]:
    traffic, workers = trial.traffic, trial.send.workers
    pps = traffic.rate.pps(traffic.size_bytes) if traffic.rate is not None else None
    total = workers * len(lab.senders)
    specs: list[WorkerSpec] = []
    for n, host in enumerate(lab.senders):
        specs += [
            WorkerSpec(
                role="sender",
                host=host.name,
                index=k,
                cpu=cpu,
                flows=per_worker[host.name, k],
                traffic=traffic,
                send=trial.send,
                rate_pps=_share(pps, n * workers + k, total),
                count_packets=_share(traffic.count_packets, n * workers + k, total),
            )
            for k, cpu in enumerate(place[host.name].cpus)
        ]
    return specs


def _receivers(
    trial: Trial,
    lab: Lab,
    facts: Mapping[str, Facts],
    place: Mapping[str, Place],
    flows: tuple[FlowSpec, ...],
) -> list[WorkerSpec]:
    """Worker k has the k-th port, wrapping round; where ports are more, every n-th from it on."""
    ports, count = parse_to(trial.traffic.flows.to)[1], trial.receive.workers
    specs: list[WorkerSpec] = []
    for host in lab.receivers:
        own = {str(one.ip) for one in _networks(trial, host, facts)}
        specs += [
            WorkerSpec(
                role="receiver",
                host=host.name,
                index=k,
                cpu=cpu,
                flows=tuple(flow for flow in flows if flow.destination in own),
                traffic=trial.traffic,
                send=trial.send,
                receive=trial.receive,
                bind_ports=ports[k::count] if count < len(ports) else (ports[k % len(ports)],),
            )
            for k, cpu in enumerate(place[host.name].cpus)
        ]
    return specs


def _shared_by_peers(lab: Lab, specs: list[WorkerSpec]) -> Iterator[Finding]:
    """Yield a finding for each CPU that several hosts of one role have workers on."""
    hosts: dict[int, set[str]] = {}
    for spec in specs:
        if spec.cpu is not None:
            hosts.setdefault(spec.cpu, set()).add(spec.host)
    for cpu, names in sorted(hosts.items()):
        if len(names) > 1:
            yield Finding(
                "warning",
                f"{', '.join(sorted(names))} share a CPU",
                where=lab.name,
                value=f"CPU {cpu}",
                limit="a CPU for each host",
                next_step="take a machine with more CPUs, or name other cpus in the lab",
            )


def _shared_cpus(
    lab: Lab, senders: list[WorkerSpec], receivers: list[WorkerSpec]
) -> Iterator[Finding]:
    """Yield a finding where hosts of one machine contend for a CPU."""
    if not lab.built_in:
        return
    for specs in (senders, receivers):
        yield from _shared_by_peers(lab, specs)
    sending = {spec.cpu for spec in senders if spec.cpu is not None}
    shared = sorted(sending & {spec.cpu for spec in receivers if spec.cpu is not None})
    if shared:
        yield Finding(
            "warning",
            "sender and receiver share a CPU",
            where=lab.name,
            value=f"CPU {', '.join(str(cpu) for cpu in shared)}",
            limit="a CPU for each role",
            next_step="take a machine with 2 or more CPUs, or other cpus",
        )
