"""Values that are each in range and together make no sense, found before any host is asked.

Every rule is a generator over one validated point or lab; it never changes anything.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from udpbench import units
from udpbench.definition import ways
from udpbench.definition.grammar import key_of
from udpbench.definition.places import depends_on_queues
from udpbench.definition.problems import Tree
from udpbench.definition.ranges import addresses_of, parse_ports, parse_to
from udpbench.errors import Problem
from udpbench.model import HEADER_BYTES, SECOND_NS, Lab, Trial

MAX_FLOWS = 65536
"""Flow numbers are u16 in the packet header."""

OWN_AGENTS = ("bridge", "machine")
"""Agents that a built-in lab has beside those of its hosts (control/lab.py)."""


def flow_count(trial: Trial) -> int:
    """Return how many 4-tuples the traffic of one sender and receiver has."""
    indexes, ports = parse_to(trial.traffic.flows.to)
    return len(parse_ports(trial.traffic.flows.source_ports)) * len(indexes) * len(ports)


def in_point(tree: Tree, trial: Trial, model: BaseModel) -> Iterator[Problem]:
    """Yield every contradiction within one point."""
    yield from _calls(tree, trial, model)
    yield from _sizes(tree, trial)
    yield from _flows(tree, trial)
    yield from _load(tree, trial)
    yield from _receiver(tree, trial)
    yield from ways.in_ways(tree, trial, model)
    yield from _beside(tree, trial)
    settings = getattr(model, "settings")  # noqa: B009 - a derived model
    yield from _one_root_queue(tree, settings)
    for role in ("sender", "receiver"):
        block = getattr(settings, role)
        if isinstance(block, BaseModel):
            yield from in_settings(tree, block, ("settings", role), role)


def _calls(tree: Tree, trial: Trial, model: Any) -> Iterator[Problem]:
    for key, single, block in (("send", "send", trial.send), ("receive", "recv", trial.receive)):
        chosen = getattr(model, key)
        batch_set = isinstance(chosen, BaseModel) and "batch" in chosen.model_fields_set
        if block.call == single and batch_set:
            what = f"call {single} moves one message a call"
            yield tree.problem((key, "batch"), what, "", f"remove it, or call {single}mmsg")


def _sizes(tree: Tree, trial: Trial) -> Iterator[Problem]:
    size, read = trial.traffic.size_bytes, trial.receive.read
    where = ("traffic", "size")
    if size < HEADER_BYTES and read in ("header", "verify"):
        limit = f"at least {HEADER_BYTES}B with read: {read}"
        yield tree.problem(where, "no room for the header", limit, "set receive.read: copy or none")


def _flows(tree: Tree, trial: Trial) -> Iterator[Problem]:
    flows, workers = flow_count(trial), trial.send.workers
    where = ("traffic", "flows")
    if trial.traffic.flows.spread == "split" and flows < workers:
        what = f"{workers} workers cannot split {flows} {'flow' if flows == 1 else 'flows'}"
        step = "widen from or to, lower it, or set spread: each"
        yield tree.problem(("send", "workers"), what, "a flow for each worker", step)
    if trial.traffic.protocol == "tcp" and depends_on_queues(trial):
        step = "take any queue, and cpus of the lab"
        what = "a TCP stream does not survive that its worker is prepared anew"
        yield tree.problem((*where, "queues"), what, "queues and relations are for udp", step)
    numbered = flows * workers if trial.traffic.flows.spread == "each" else flows
    if numbered > MAX_FLOWS:
        step = "narrow from or to"
        yield tree.problem((*where, "to"), f"{numbered} flows are too many", f"{MAX_FLOWS}", step)
    ports = parse_to(trial.traffic.flows.to)[1]
    if 0 < trial.receive.workers < len(ports) and not ways.takes_turns(trial.receive):
        limit = f"at least {len(ports)}, one for each port of traffic.flows.to"
        step = "raise it, narrow the ports, or wait by epoll, spin or nap"
        yield tree.problem(("receive", "workers"), "too few receiving workers", limit, step)


def _load(tree: Tree, trial: Trial) -> Iterator[Problem]:
    rate, count, workers = trial.traffic.rate, trial.traffic.count_packets, trial.send.workers
    if count is not None and count < workers:
        limit = f"at least {workers}, one for each worker"
        yield tree.problem(("traffic", "count"), "fewer packets than workers", limit, "raise it")
    if rate is None:
        return
    if rate.bits_per_s is not None and trial.traffic.size_bytes == 0:
        step = "give a rate in pps, or a size"
        yield tree.problem(("traffic", "rate"), "a size of 0B has no bits to count", "", step)
        return
    pps = rate.pps(trial.traffic.size_bytes)
    if pps < workers:
        limit = "at least one packet a second for each worker"
        yield tree.problem(("traffic", "rate"), f"{pps} packets a second", limit, "raise it")
    elif count is not None and count * SECOND_NS > pps * trial.duration_ns:
        seconds = -(-count // pps)
        what = f"takes {seconds}s at {pps} packets a second"
        limit = f"the deadline is duration: {units.format_duration(trial.duration_ns)}"
        yield tree.problem(("traffic", "count"), what, limit, "raise duration, or lower count")


def _receiver(tree: Tree, trial: Trial) -> Iterator[Problem]:
    receive = trial.receive
    if receive.workers == 0 and trial.path_check == "arrive":
        step = "set path_check: explained"
        yield tree.problem(("receive", "workers"), "nothing can arrive at a closed port", "", step)


def _one_root_queue(tree: Tree, settings: Any) -> Iterator[Problem]:
    """Yield where the sender's queue is asked for twice; two files that do so skip the trial."""
    link = settings.receiver.link
    rate_bps = link.rate_bps if isinstance(link, BaseModel) else None  # type: ignore[attr-defined]
    if rate_bps is not None and isinstance(settings.sender.qdisc, BaseModel):
        what = "the sender's root queue is what gives the link its rate"
        step = "leave out settings.receiver.link.rate or this"
        yield tree.problem(("settings", "sender", "qdisc"), what, "one root queue", step)


def _beside(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield what is to be noted beside the counts and cannot be read, or not for free."""
    receive, traffic = trial.receive, trial.traffic
    blind = receive.read in ("none", "copy") or traffic.protocol == "tcp"
    limit = "a datagram's header is read: read: header or verify, protocol: udp"
    if traffic.echo is not None and blind:
        step = "change receive.read, or leave echo out"
        yield tree.problem(("traffic", "echo"), "no header, no echo", limit, step)
    if traffic.echo is not None and trial.send.zerocopy:
        # Completions wait in the error queue, which every poll tells of, asked or not (poll(2)).
        what = "completions of zerocopy would keep the listener for echoes awake"
        step = "leave echo or send.zerocopy out"
        yield tree.problem(("traffic", "echo"), what, "", step)
    if receive.timestamps and blind:
        step = "change receive.read, or leave timestamps out"
        where = ("receive", "timestamps")
        yield tree.problem(where, "no header, no delay to split", limit, step)
    if receive.log is not None and (receive.read == "none" or traffic.protocol == "tcp"):
        limit = "datagrams are copied: read: header, verify or copy, protocol: udp"
        step = "change receive.read, or leave log out"
        yield tree.problem(("receive", "log"), "nothing that could be logged", limit, step)


def in_settings(tree: Tree, block: Any, path: tuple[Any, ...], role: str) -> Iterator[Problem]:
    """Yield every contradiction within one block of settings."""
    if role == "sender" and "link" in block.model_fields_set:
        step = "write it under the receiver's settings"
        yield tree.problem((*path, "link"), "the receiver makes the link", "", step)
    if isinstance(block.qdisc, BaseModel) and len(block.qdisc.model_fields_set) != 1:
        limit = "one of tbf, pfifo, bfifo"
        yield tree.problem((*path, "qdisc"), "a device has one root queue", limit)
    for i, wanted in enumerate(block.optional or []):
        if not _is_set(block, wanted):
            step = "name a path that is set beside it, such as ethtool.features.rx-gro"
            yield tree.problem((*path, "optional", i), "nothing is set there", "", step)


def _is_set(block: Any, wanted: str) -> bool:
    found: Any = block
    rest = wanted
    while rest:
        if isinstance(found, dict):
            return rest in found
        key, _, rest = rest.partition(".")
        if not isinstance(found, BaseModel):
            return False
        names = [name for name in found.model_fields_set if key_of(name) == key]
        if not names:
            return False
        found = getattr(found, names[0])
    return True


def in_lab(tree: Tree, lab: Lab) -> Iterator[Problem]:
    """Yield every contradiction within one lab."""
    seen_names: set[str] = set()
    seen_addresses: set[str] = set()
    for role, hosts in (("sender", lab.senders), ("receiver", lab.receivers)):
        for i, host in enumerate(hosts):
            if host.name in OWN_AGENTS:
                step = "give the host another name"
                what = f"{host.name} is the name of an agent of udpbench's own"
                yield tree.problem((role, i, "name"), what, "", step)
        if not hosts:
            yield tree.problem((role,), "a lab needs one host of each role", "", "add a host")
        for i, host in enumerate(hosts):
            if host.name in seen_names:
                step = "give each host a name of its own"
                yield tree.problem((role, i, "name"), f"{host.name} stands twice", "", step)
            seen_names.add(host.name)
            if not host.addresses and not host.existing:
                step = "add one, such as 192.168.254.1/24"
                yield tree.problem((role, i, "addresses"), "a host needs an address", "", step)
            for address in host.addresses:
                ip = address.partition("/")[0]
                if ip in seen_addresses:
                    step = "give each address to one host"
                    yield tree.problem((role, i, "addresses"), f"{ip} stands twice", "", step)
                seen_addresses.add(ip)
    yield from _ways(tree, lab)
    yield from _unreachable(tree, lab)


def _ways(tree: Tree, lab: Lab) -> Iterator[Problem]:
    """Yield what cannot be reached beside what else is there."""
    here: list[str] = []
    for role, hosts in (("sender", lab.senders), ("receiver", lab.receivers)):
        for i, host in enumerate(hosts):
            where = (role, i, "connect")
            if host.connect.by == "namespace" and not lab.built_in:
                what = "a namespace is joined to namespaces alone, and other hosts are not"
                yield tree.problem(where, what, "", "reach all hosts by namespace, or none")
            if host.connect.by == "namespace" and host.existing:
                step = "write the addresses it is to have"
                what = "a namespace that is made for the run has none"
                yield tree.problem((role, i, "addresses"), what, "", step)
            if host.connect.by == "local":
                here.append(host.name)
            if host.connect.by == "local" and len(here) > 1:
                what = f"{here[0]} is this host, too, and packets between them would take lo"
                yield tree.problem(where, what, "one host", "reach one of them by ssh")


def _unreachable(tree: Tree, lab: Lab) -> Iterator[Problem]:
    known = [
        [ipaddress.ip_interface(address).network for address in host.addresses]
        for host in lab.senders
    ]
    firsts = [
        next((one for one in own if one.version == version), None)
        for own in known
        for version in (4, 6)
    ]
    for i, host in enumerate(lab.receivers):
        for address in host.addresses:
            ip = ipaddress.ip_interface(address).ip
            networks = {one for one in firsts if one is not None and one.version == ip.version}
            if not all(ip in network for network in networks):
                limit = ", ".join(sorted(str(network) for network in networks))
                what = f"{ip} is outside the sender's network"
                step = "take addresses of one network"
                yield tree.problem(("receiver", i, "addresses"), what, limit, step)


def spelled_out(texts: list[str]) -> tuple[str, ...]:
    """Return every address of a list, ranges spelled out."""
    return tuple(address for text in texts for address in addresses_of(text))
