"""Values that are in range but contradict each other; found before any host is contacted.

Every rule is a generator of problems over one validated point or lab.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, Literal

from udpbench import units
from udpbench.definition import losses, search_rules, traffic_rules
from udpbench.definition.binding.bind import MAX_FLOWS, flow_count
from udpbench.definition.binding.host_block import routed_to
from udpbench.definition.binding.worker_cpus import depends_on_queues
from udpbench.definition.endpoints import (
    address_count,
    addresses_of,
    parse_published_port,
    parse_to,
)
from udpbench.definition.file_keys import LabFile
from udpbench.definition.lab_limits import beyond_lab
from udpbench.definition.problems import KeyPath, Place, Tree, at, raise_all
from udpbench.differences import key_of
from udpbench.errors import Problem
from udpbench.host_settings import Settings, set_keys
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.lab import BRIDGE, Lab, Node
from udpbench.model.limits import ADDRESSES_MAX, HEADER_BYTES, SECOND_NS, Part
from udpbench.ways import READS, WAITS, read_of, wait_of, way_to_receive

LAB_ADDRESSES_MAX = 2**14
POINTS_ADDRESSES_MAX = 2**20
"""Most addresses of hosts at all points of an experiment: each is a setting of each point."""
LISTED = 8
OWN_AGENTS = (BRIDGE.name, "machine")
"""Agents of a built-in lab besides those of its hosts (control/agents.py)."""


def point_contradictions(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield every contradiction within one point."""
    yield from _sizes(tree, trial)
    yield from _flows(tree, trial)
    yield from _load(tree, trial)
    yield from _receiver(tree, trial)
    yield from traffic_rules.way_contradictions(tree, trial)
    yield from search_rules.in_search(tree, trial)
    yield from _beside(tree, trial)
    yield from _one_root_queue(tree, trial)
    for role, block in trial.settings.items():
        yield from _settings(tree, block, ("settings", role), role)


def _sizes(tree: Tree, trial: Trial) -> Iterator[Problem]:
    read, of_program = read_of(trial.receive), way_to_receive(trial.receive).takes == "program"
    short = trial.traffic.payload is None and not trial.traffic.datagrams.have_headers
    if not of_program and short and read.sees_header:
        what, limit = "no room for the header", f"at least {HEADER_BYTES}B with read: {read.name}"
        step = f"set receive.read: {_either(row.name for row in READS if not row.sees_header)}"
        yield tree.problem(("traffic", "size"), what, limit, step)


def _either(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _flows(tree: Tree, trial: Trial) -> Iterator[Problem]:
    flows, workers = flow_count(trial), trial.send.workers
    where = ("traffic", "flows")
    if trial.traffic.flows.spread == "split" and flows < workers:
        what = f"{workers} workers cannot split {flows} {'flow' if flows == 1 else 'flows'}"
        step = "widen from or to, lower it, or set spread: each"
        yield tree.problem(("send", "workers"), what, "a flow for each worker", step)
    if trial.traffic.protocol == "tcp" and depends_on_queues(trial):
        step = "take any queue, and cpus of the lab"
        what = "TCP streams cannot be moved to other workers"
        yield tree.problem((*where, "queues"), what, "protocol: udp", step)
    numbered = flows * workers if trial.traffic.flows.spread == "each" else flows
    if numbered > MAX_FLOWS:
        step = "narrow from or to"
        yield tree.problem((*where, "to"), f"{numbered} flows are too many", f"{MAX_FLOWS}", step)
    ports = parse_to(trial.traffic.flows.to).ports
    receive = trial.receive
    one_each = way_to_receive(receive).takes == "sockets" and not wait_of(receive).takes_turns
    if one_each and 0 < receive.workers < len(ports):
        limit = f"at least {len(ports)}, one for each port of traffic.flows.to"
        waits = _either(row.name for row in WAITS if row.takes_turns)
        step = f"raise it, narrow the ports, or wait by {waits}"
        yield tree.problem(("receive", "workers"), "too few receiving workers", limit, step)


def _load(tree: Tree, trial: Trial) -> Iterator[Problem]:
    traffic, count, workers = trial.traffic, trial.traffic.count_packets, trial.send.workers
    if count is not None and count < workers:
        limit = f"at least {workers}, one for each worker"
        yield tree.problem(("traffic", "count"), "fewer packets than workers", limit, "raise it")
    try:
        pps = traffic.intended_pps
    except ValueError:
        step = "give a rate in pps, or a size"
        yield tree.problem(("traffic", "rate"), "a size of 0B has no bits to count", "", step)
        return
    if pps is None:
        return
    if pps < workers:
        limit = "at least one packet per second for each worker"
        yield tree.problem(
            ("traffic", "rate"), f"{units.plural(pps, 'packet')} per second", limit, "raise it"
        )
    elif count is not None and count * SECOND_NS > pps * trial.duration_ns:
        seconds = -(-count // pps)
        what = f"takes {seconds}s at {units.plural(pps, 'packet')} per second"
        limit = f"before the deadline, duration: {units.format_duration(trial.duration_ns)}"
        yield tree.problem(("traffic", "count"), what, limit, "raise duration, or lower count")


def _receiver(tree: Tree, trial: Trial) -> Iterator[Problem]:
    receive = trial.receive
    closed = receive.workers == 0 and way_to_receive(receive).takes != "program"
    if closed and trial.path_check == "arrive" and trial.search is None:
        step = "set path_check: explained"
        yield tree.problem(("receive", "workers"), "nothing can arrive at a closed port", "", step)


def _one_root_queue(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield a problem if the sender's root qdisc is set twice; in two files it skips the trial."""
    sender, receiver = trial.settings.get("sender"), trial.settings.get("receiver")
    link = receiver.link if receiver is not None else None
    rated = link is not None and isinstance(link.rate_bps, int)
    if rated and sender is not None and sender.qdisc is not None:
        what = "the sender's root queue sets the link's rate"
        step = "omit settings.receiver.link.rate or this"
        yield tree.problem(("settings", "sender", "qdisc"), what, "one root queue", step)


def _beside(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield options that need the datagram's header or a copy, without having it."""
    receive, traffic = trial.receive, trial.traffic
    read, tcp = read_of(receive), traffic.protocol == "tcp"
    blind = not read.sees_header or tcp
    seeing = _either(row.name for row in READS if row.sees_header)
    limit = f"a header that is read: read: {seeing}, protocol: udp"
    if traffic.echo is not None and blind:
        step = "change receive.read, or omit echo"
        yield tree.problem(("traffic", "echo"), "an echo needs the header to be read", limit, step)
    for key, returning in (("echo", traffic.echo), ("answers", traffic.answers)):
        if returning is not None and trial.send.zerocopy:
            # Completions wait in the error queue, which every poll reports, requested or not
            # (poll(2)).
            what = "completions of zerocopy would keep waking the thread that reads replies"
            step = f"omit {key} or send.zerocopy"
            yield tree.problem(("traffic", key), what, "", step)
    if receive.timestamps and blind:
        step = "change receive.read, or omit timestamps"
        where = ("receive", "timestamps")
        yield tree.problem(where, "delays need the header to be read", limit, step)
    if receive.log is not None and (not read.copies or tcp):
        copying = _either(row.name for row in READS if row.copies)
        limit = f"copied datagrams: read: {copying}, protocol: udp"
        step = "change receive.read, or omit log"
        yield tree.problem(("receive", "log"), "nothing to log", limit, step)


def _settings(tree: Tree, block: Settings, path: KeyPath, part: Part) -> Iterator[Problem]:
    """Yield every contradiction within one block of settings."""
    if part != "receiver" and block.link is not None:
        step = "write it under the receiver's settings"
        yield tree.problem((*path, "link"), "the receiver creates the link", "", step)
    if part != "middle" and block.nat is not None:
        what = "an end of the path translates no addresses"
        yield tree.problem((*path, "nat"), what, "settings.middle", "write it there, or omit it")
    if part != "middle" and block.publish is not None:
        what = "an end of the path publishes no ports of another host"
        yield tree.problem(
            (*path, "publish"), what, "settings.middle", "write it there, or omit it"
        )
    ports = [parse_published_port(text)[0] for text in block.publish or ()]
    if len({*ports}) < len(ports):
        what = "a port of the node leads to one port of the receiver"
        yield tree.problem((*path, "publish"), what, "each port once", "write each once")
    if block.qdisc is not None and len(set_keys(block.qdisc)) != 1:
        limit = "one of tbf, pfifo, bfifo"
        yield tree.problem((*path, "qdisc"), "a device has one root queue", limit)
    count = sum(map(address_count, block.addresses or ()))
    yield from _crowded(tree, (*path, "addresses"), count, ADDRESSES_MAX)
    for i, path_in_block in enumerate(block.optional or []):
        if not _is_set(block, path_in_block):
            step = "name a path that this block sets, such as ethtool.features.rx-gro"
            yield tree.problem((*path, "optional", i), "nothing is set there", "", step)


def _is_set(block: Any, path: str) -> bool:
    """Return whether a block of settings has a value at a dotted path of keys."""
    if isinstance(block, dict):
        return path in block
    key, _, below = path.partition(".")
    names = [item.name for item in fields(block)] if is_dataclass(block) else []
    value = next((getattr(block, name) for name in names if key_of(name) == key), None)
    return _is_set(value, below) if below else value is not None


def lab_contradictions(tree: Tree, lab: Lab) -> Iterator[Problem]:
    """Yield every contradiction within one lab."""
    seen_names: set[str] = set()
    seen_addresses: set[str] = set()
    for role, hosts in (("sender", lab.senders), ("receiver", lab.receivers)):
        if not hosts:
            yield tree.problem((role,), "a lab needs one host of each role", "", "add a host")
    for where, host in _places(lab):
        if host.name in OWN_AGENTS:
            step = "give the host another name"
            what = f"{host.name} is the name of one of udpbench's own agents"
            yield tree.problem((*where, "name"), what, "", step)
        if host.name in seen_names:
            step = "give each host its own name"
            yield tree.problem((*where, "name"), f"duplicate name {host.name}", "", step)
        seen_names.add(host.name)
        if not host.addresses and not host.existing:
            step = "add one, such as 192.168.254.1/24"
            yield tree.problem((*where, "addresses"), "a host needs an address", "", step)
        for address in (*host.addresses, *host.out_addresses):
            ip = address.partition("/")[0]
            if ip in seen_addresses:
                step = "give each address to one host"
                yield tree.problem((*where, "addresses"), f"duplicate address {ip}", "", step)
            seen_addresses.add(ip)
    yield from _connections(tree, lab)
    yield from _middle(tree, lab)
    if not lab.middle:
        yield from _unreachable(tree, lab)
    for part, block in lab.settings.items():
        yield from _settings(tree, block, ("settings", part), part)
    for where, host in _places(lab):
        yield from _settings(tree, host.settings, (*where, "settings"), host.part)


def _places(lab: Lab) -> Iterator[tuple[KeyPath, Node]]:
    """Yield each host with its place in the lab file."""
    for part in dict.fromkeys(host.part for host in lab.hosts):
        for i, host in enumerate(lab.at(part)):
            yield (part, i), host


def _connections(tree: Tree, lab: Lab) -> Iterator[Problem]:
    """Yield hosts that cannot be reached as written, or not together with the others."""
    local: list[str] = []
    for where, host in _places(lab):
        if host.connect.by == "namespace" and not lab.built_in:
            what = "a namespace can be joined only to other namespaces"
            step = "reach all hosts by namespace, or none"
            yield tree.problem((*where, "connect"), what, "", step)
        if host.connect.by == "namespace" and host.existing and not host.bridge:
            step = "write the addresses that it should get"
            what = "a namespace created for the run has none"
            yield tree.problem((*where, "addresses"), what, "", step)
        if host.connect.by == "local":
            local.append(host.name)
        if host.connect.by == "local" and len(local) > 1:
            what = f"{local[0]} is this host, too, and packets between them would pass through lo"
            step = "reach one of them by ssh"
            yield tree.problem((*where, "connect"), what, "one host", step)


def _middle(tree: Tree, lab: Lab) -> Iterator[Problem]:
    """Yield what nodes in the middle contradict: each other, their ends, or being read only."""
    block = lab.settings.get("middle")
    for i, node in enumerate(lab.middle):
        written: list[KeyPath] = [("settings", "middle")] if block is not None else []
        written += [("middle", i, "settings")] if node.settings != Settings() else []
        for where in written if not node.change else ():
            what = f"{node.name} is read only"
            yield tree.problem(where, what, "change: true", "write change: true, or leave it out")
        if not node.change and node.addresses:
            step = "leave them out, or write change: true"
            what = f"{node.name} is read only, and has its own"
            yield tree.problem(("middle", i, "addresses"), what, "", step)
        if node.bridge in (node.interface, node.out):
            step = "name the bridge that has them as its ports"
            what = f"{node.bridge} is one of the interfaces"
            yield tree.problem(("middle", i, "bridge"), what, "", step)
        if node.bridge and node.addresses and not lab.built_in:
            what = "a bridge that is there has its own addresses"
            step = "name the bridge as the interface in, and leave this out"
            yield tree.problem(("middle", i, "bridge"), what, "", step)
        if node.bridged == "out" and not (node.bridge and node.addresses and not node.tunnel):
            what = f"{node.name} routes to no bridge of its own"
            step = "write bridge and addresses beside it, or leave it out"
            yield tree.problem(("middle", i, "bridged"), what, "", step)
        yield from _tunnel_of(tree, i, node)
        if node.bridges and not node.tunnel and node.out_addresses:
            what, step = f"{node.name} forwards frames", "leave them out"
            yield tree.problem(("middle", i, "addresses"), what, "no addresses", step)
    unpaired = [i for i, node in enumerate(lab.middle) if node.tunnel]
    if len(unpaired) % 2:
        what = f"the tunnel that begins at {lab.middle[unpaired[-1]].name} ends at no node"
        step = "name the node where it ends, with its own tunnel"
        yield tree.problem(("middle", unpaired[-1], "tunnel"), what, "two nodes", step)
    for first, _, last in lab.tunnels:
        if bool(first.bridge) != bool(last.bridge):
            what = f"{first.name} and {last.name} are not ends of one tunnel: one has no bridge"
            where = ("middle", lab.middle.index(last), "tunnel")
            yield tree.problem(where, what, "", "give both a bridge (VXLAN), or none (WireGuard)")
    if not lab.middle or not lab.built_in:
        return
    for part, ends in (("sender", lab.senders), ("receiver", lab.receivers)):
        if len(ends) > 1:
            what = "namespaces with nodes in the middle are a chain"
            step = f"name one {part}, or reach namespaces that are there (connect: {{netns: …}})"
            yield tree.problem((part,), what, f"one {part}", step)
            return
    for before, after, where in lab.links:
        if not before or not after or not _share_network(before, after):
            what = f"{' and '.join(where)} have no network in common"
            step = "give both ends of each link an address of one network"
            yield tree.problem(("middle",), what, "one network for each link", step)


def _tunnel_of(tree: Tree, i: int, node: Node) -> Iterator[Problem]:
    """Yield that a node's tunnel has no name of its own."""
    if node.tunnel and node.tunnel in (node.bridge, node.interface, node.out):
        what = f"{node.tunnel} is one of its other interfaces"
        step = "name the VXLAN interface that is a further port of bridge, or that of WireGuard"
        yield tree.problem(("middle", i, "tunnel"), what, "", step)


def _share_network(before: Iterable[str], after: Iterable[str]) -> bool:
    """Return whether two ends of a link have addresses of one network, in each family they use."""
    sides = [{ipaddress.ip_interface(text).network for text in side} for side in (before, after)]
    families = [{network.version for network in side} for side in sides]
    common = {network.version for network in sides[0] & sides[1]}
    return families[0] == families[1] == common


def refuse_together(experiments: Iterable[Experiment], lab: Lab) -> None:
    """Raise InputError with everything in the trials that this lab can't do; contact no host.

    Trials that will be skipped for their ``needs`` are left out.
    """
    raise_all(_many_together(experiments, lab))
    problems: list[Problem] = []
    for experiment in experiments:
        for trial in experiment.points:
            if lab.built_in or not trial.needs.lab:
                for rule in (losses.impossible_losses, _routed_anywhere, _in_tunnel):
                    problems += rule(Place(experiment.path), trial, lab)
        problems += beyond_lab(experiment, lab)
    raise_all(problems)


def _many_together(experiments: Iterable[Experiment], lab: Lab) -> Iterator[Problem]:
    """Yield a problem if the hosts' addresses at all points are more than can be looked at."""
    blocks = [block for host in lab.hosts for block in (lab.settings.get(host.part), host.settings)]
    own = sum(len(host.addresses) for host in lab.hosts)
    own += sum(address_count(text) for block in blocks if block for text in block.addresses or ())
    for experiment in experiments:
        total = own * len(experiment.points) + sum(
            address_count(text)
            for trial in experiment.points
            for block in trial.settings.values()
            for text in block.addresses or ()
        )
        if total > POINTS_ADDRESSES_MAX:
            what = (
                f"{len(experiment.points)} points have {total} addresses on the hosts of {lab.name}"
            )
            limit = f"at most {POINTS_ADDRESSES_MAX}"
            yield at(Place(experiment.path), "sweep", what, limit, "sweep less, or list fewer")


def _routed_anywhere(place: Place, trial: Trial, lab: Lab) -> Iterator[Problem]:
    """Yield a problem if a host could report any address and packets would be routed to it."""
    ttl, named = trial.traffic.ttl, [host.name for host in lab.receivers if host.existing]
    if lab.middle:
        if ttl is not None and ttl > lab.longest_ttl:
            what = f"packets would come further than the receivers of lab {lab.name}"
            limit = f"at most {lab.longest_ttl}, 1 and the nodes in its middle"
            yield at(place, "traffic.ttl", what, limit, "leave it out", str(ttl))
    elif ttl is not None and ttl > 1 and named:
        what = f"{', '.join(named)} could report any address, and packets would be routed there"
        step = f"write the addresses in lab {lab.name} instead of existing"
        yield at(place, "traffic.ttl", what, "1 with addresses: existing", step, str(ttl))


def _in_tunnel(place: Place, trial: Trial, lab: Lab) -> Iterator[Problem]:
    """Yield a problem if a node would count inner and outer packets apart by their IP version."""
    if trial.traffic.family == 6 and any(node.tunnel for node in lab.middle):
        what = f"tunnels are counted over IPv4, as is what they carry, in lab {lab.name}"
        yield at(place, "traffic.family", what, "4", "leave it out", "6")


def _unreachable(tree: Tree, lab: Lab) -> Iterator[Problem]:
    firsts = set()
    for host in lab.senders:
        own = [ipaddress.ip_interface(address).network for address in host.addresses]
        firsts |= {next((each for each in own if each.version == v), None) for v in (4, 6)}
    routed = {text for host in lab.senders for text in routed_to(lab, host)}
    behind = _starts(map(ipaddress.ip_network, routed))
    for version in (4, 6):
        networks = [each for each in firsts if each is not None and each.version == version]
        for i, host in enumerate(lab.receivers):
            ips = [ipaddress.ip_interface(address).ip for address in host.addresses]
            outside = [
                ip
                for ip in ips
                if ip.version == version
                and any(ip not in network for network in networks)
                and not _is_within(ip, behind)
            ]
            if outside:
                limit = ", ".join(sorted(map(str, networks))[:LISTED])
                more = f" and {len(outside) - 1} more are" if len(outside) > 1 else " is"
                what = f"{outside[0]}{more} outside the sender's network"
                step = "use addresses of one network, or add theirs to settings.sender.routes"
                yield tree.problem(("receiver", i, "addresses"), what, limit, step)


def _starts(networks: Iterable[IPv4Network | IPv6Network]) -> dict[tuple[int, int], set[int]]:
    """Return (version, prefix length) → first addresses: there may be thousands of networks."""
    starts: dict[tuple[int, int], set[int]] = defaultdict(set)
    for network in networks:
        starts[network.version, network.prefixlen].add(int(network.network_address))
    return starts


def _is_within(
    ip: IPv4Address | IPv6Address, starts: Mapping[tuple[int, int], Collection[int]]
) -> bool:
    return any(
        int(ip) >> rest << rest in known
        for (version, length), known in starts.items()
        if version == ip.version
        for rest in [ip.max_prefixlen - length]
    )


def too_many_addresses(tree: Tree, file: LabFile) -> Iterator[Problem]:
    """Yield each host that has more addresses than it may, and a lab that does, unexpanded."""
    counts = {
        (part, i, "addresses"): sum(map(address_count, host.addresses))
        for part, hosts in file.ends.items()
        for i, host in enumerate(hosts)
        if host.addresses != "existing"
    }
    for where, count in counts.items():
        yield from _crowded(tree, where, count, ADDRESSES_MAX)
    if sum(counts.values()) > LAB_ADDRESSES_MAX:
        what = f"{sum(counts.values())} addresses are too many for a lab"
        yield tree.problem((), what, f"at most {LAB_ADDRESSES_MAX}", "list fewer")


def _crowded(tree: Tree, where: KeyPath, count: int, most: int) -> Iterator[Problem]:
    if count > most:
        what = f"{count} addresses are too many for a host"
        yield tree.problem(where, what, f"at most {most}", "list fewer")


def expanded_addresses(texts: Literal["existing"] | list[str]) -> tuple[str, ...]:
    """Return every address of a list, ranges expanded; none for ``existing``."""
    listed = [] if texts == "existing" else texts
    return tuple(address for text in listed for address in addresses_of(text))
