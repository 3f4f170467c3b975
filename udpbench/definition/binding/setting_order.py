"""The desired settings of one host, in the order in which they must be applied.

The experiment's settings override the lab's; both override what a built-in lab needs. Pure: facts
about hosts come in as a LabContext.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Literal

from udpbench.definition import losses
from udpbench.definition.binding import card, chain
from udpbench.definition.binding.cpu_placement import Unavailable
from udpbench.definition.binding.host_block import HostBlock, LabContext
from udpbench.definition.endpoints import (
    addresses_of,
    parse_ports,
    parse_published,
    parse_published_port,
    parse_to,
)
from udpbench.definition.problems import Place, at, raise_all
from udpbench.differences import key_of
from udpbench.host_settings import Cpu, set_keys
from udpbench.model.experiment import Traffic, Trial
from udpbench.model.host import Facts, Setting
from udpbench.model.lab import Lab, Node
from udpbench.model.limits import Scope
from udpbench.setting_kinds import SETTING_KINDS

NAMESPACED_CORE = (
    "somaxconn",
    "rps_default_mask",
    "optmem_max",
    "tstamp_allow_data",
    "txrehash",
)
ENDS: tuple[Literal["sender"], Literal["receiver"]] = ("sender", "receiver")
MACHINE_WIDE_IPV4 = ("udp_mem", "tcp_mem", "fib_sync_mem", "tcp_max_orphans", "tcp_low_latency")
MACHINE_WIDE_NETFILTER = ("nf_conntrack_max", "nf_conntrack_buckets", "nf_conntrack_expect_max")
# Per namespace are those writable in /proc/sys/net of a child namespace, 6.18.


def _drop_reasons(block: HostBlock) -> Iterator[Setting]:
    """Count drop reasons of the trial's packets; a finding if the host cannot."""
    trial = block.explained
    if trial is None:
        return
    flows = trial.traffic.flows
    ports = {*parse_to(flows.to).ports, *(losses.ALL_PORTS[stage] for stage in trial.losses)}
    if flows.published is not None:
        ports.update(parse_published(flows.published).ports)
    if trial.traffic.echo or trial.traffic.answers:
        ports.update(parse_ports(flows.source_ports))
    yield Setting("explain", "drops", sorted(ports), path="explain", optional=True)


Part = Callable[[HostBlock], Iterator[Setting]]


RANKS = {kind: rank for rank, kind in enumerate(SETTING_KINDS)}


def host_settings_for(
    lab: Lab, trial: Trial | None, host: Node, context: LabContext
) -> tuple[Setting, ...]:
    """Return every setting of one host in the order of application, as ``bind.settings_for``.

    In a built-in lab machine-wide settings are left to ``machine_settings_for``. Raises Unavailable
    if the lab names CPUs that the host does not have, or real hosts are to be given a link.
    """
    block = HostBlock(lab, trial, host, context)
    if not lab.built_in and block.settings.link is not None:
        what = (
            f"settings.{host.part}.link: only a built-in lab creates its link; --lab is {lab.name}"
        )
        raise Unavailable(f"{what}; write needs: {{lab: true}}, or leave it out")
    settings = [*_in_order(PARTS, block), *losses.loss_settings(block), *_drop_reasons(block)]
    return tuple(
        setting for setting in settings if not (lab.built_in and setting.scope == "machine")
    )


def machine_settings_for(lab: Lab, trial: Trial | None, context: LabContext) -> tuple[Setting, ...]:
    """Return the machine-wide settings of a built-in lab; InputError if hosts disagree.

    Raises Unavailable if the lab names CPUs that the host does not have.
    """
    if not lab.built_in:
        return ()
    settings: dict[tuple[str, str], Setting] = {}
    problems = []
    blocks = [HostBlock(lab, trial, host, context) for host in lab.hosts]
    for setting in _in_order(MACHINE_PARTS, *blocks):
        if setting.scope != "machine":
            continue
        other = settings.setdefault((setting.kind, setting.target), setting)
        if other.value != setting.value:
            what = f"{other.path} is {other.value}, and both apply to this machine"
            place = Place(trial.experiment if trial is not None else lab.name)
            step = "set it once"
            problems.append(at(place, setting.path, what, "", step, str(setting.value)))
    raise_all(problems)
    return tuple(settings.values())


def _in_order(parts: Sequence[Part], *blocks: HostBlock) -> list[Setting]:
    """Return the settings of all blocks, sorted by kind."""
    settings = [setting for part in parts for block in blocks for setting in part(block)]
    return sorted(settings, key=lambda setting: RANKS[setting.kind])


def mac_of(lab: Lab, host: Node) -> str:
    """Return a host's locally administered MAC: ``ub`` in ASCII, then part and number."""
    names = [peer.name for peer in lab.at(host.part)]
    return mac(1 if host.sends else 2, names.index(host.name) + 1)


def mac(kind: int, number: int) -> str:
    """Return the MAC of the host, or of the joint's port, with a number from 1 on."""
    return f"02:75:62:{kind:02x}:{number // 256:02x}:{number % 256:02x}"


def _link(block: HostBlock) -> Iterator[Setting]:
    if block.built_in_receiver and block.lab.joint is None:
        sender = block.lab.senders[0]
        value = {
            "peer": sender.interface,
            "peer_pid": block.context.pids.get(sender.name),
            "peer_mac": mac_of(block.lab, sender),
            "mac": mac_of(block.lab, block.host),
            "queues": block.link_queues,
        }
        yield block.setting("link", "", value, "link")


def _pairs(block: HostBlock) -> Iterator[Setting]:
    """Make the pairs of a node in the middle, and what the receiver's needs at this end."""
    for own, other in chain.made_pairs(block.lab, block.host):
        far = HostBlock(block.lab, block.trial, other.host, block.context)
        value = {
            "peer": other.interface,
            "peer_pid": block.context.pids.get(other.host.name),
            "peer_mac": other.mac,
            "mac": own.mac,
            "queues": far.link_queues if other.host.receives else 1,
        }
        yield Setting("link", own.interface, value, path=block.path("link"))
        if far.receive == "napi" if other.host.receives else _polls(far):
            for name in card.TSO_FEATURES:
                yield Setting("feature", f"{own.interface}/{name}", False, path=far.path("link"))
        if other.host.receives and isinstance(far.link.rate_bps, int):
            limit = card.cable(far.link.rate_bps, block.settings)
            yield Setting("qdisc", own.interface, limit, path=far.path("link.rate"))
    if block.lab.built_in and block.host.tunnel and not block.host.bridge:
        yield Setting("wireguard", block.host.tunnel, _ends(block), path=block.path("link"))
    if block.lab.built_in and block.host.bridge:
        yield Setting("bridge", block.host.bridge, True, path=block.path("link"))
        if block.host.tunnel:
            ends = chain.tunnel(block.lab, block.host)
            yield Setting("vxlan", block.host.tunnel, ends, path=block.path("link"))
        for name, station in chain.ports(block.lab, block.host):
            value = {"bridge": block.host.bridge, "station": station}
            yield Setting("port", name, value, path=block.path("link"))


def _ends(block: HostBlock) -> dict[str, Any]:
    """Return the other end of a WireGuard tunnel, and what may be behind it: all, but for a loss.

    Answers of the other node to a sender are never lost.
    """
    lab, host = block.lab, block.host
    first, last = next((begin, end) for begin, _, end in lab.tunnels if host in (begin, end))
    begins = host == first
    other, stage = (last, "fwd_encap") if begins else (first, "fwd_decap")
    behind = HostBlock(
        lab, block.trial, (lab.receivers if begins else lab.senders)[0], block.context
    )
    allowed = ["0.0.0.0/0"]
    if stage in block.losses:
        own = (*_added(behind), *other.addresses, *other.out_addresses)
        listed = [text.partition("/")[0] for text in own]
        allowed = [f"{text}/32" for text in listed if text != losses.unlisted(lab, stage)]
    return {
        "peer": block.context.keys.get(other.name),
        "remote": chain.tunnel(lab, host)["remote"],
        "allowed": allowed,
    }


def _polls(block: HostBlock) -> bool:
    """Return whether the interface by which packets come in is to be polled (NAPI)."""
    features = block.settings.ethtool.features if block.settings.ethtool is not None else None
    return bool(features and features.get("rx-gro"))


def _forwarding(block: HostBlock) -> Iterator[Setting]:
    """Let a node of a built-in lab forward; of others nothing is changed that is not asked for."""
    if block.lab.built_in and block.host.out and not block.host.bridges:
        name = "net.ipv4.ip_forward" if block.family == 4 else "net.ipv6.conf.all.forwarding"
        yield Setting("sysctl", name, 1, path=block.path("link"))


def _coming_queues(block: HostBlock) -> Iterator[Setting]:
    """Set RPS for queues not yet created, if only root could set it afterwards."""
    lab_rps = block.built_in_receiver and block.receive == "rps" and block.without_root
    if lab_rps and block.lab.joint is None:
        cpus = list(block.cpus)
        yield block.beyond("rps_default", "queues", cpus, "link.receive")


def _quiet(block: HostBlock) -> Iterator[Setting]:
    """Keep IPv6's own packets off the link, where they would count as foreign.

    IPv6 is off before the link is up; if it carries the traffic it announces only its multicast
    groups, once and immediately. Optional, since a kernel may be built without IPv6.
    """
    if not block.lab.built_in:
        return
    host = block.host
    for interface in filter(None, (host.interface, host.out, host.bridge, host.tunnel)):
        has_ip = not host.bridges and interface in (host.entry, host.exit)
        yield from _silent(block, f"net/ipv6/conf/{interface}", has_ip)


def _silent(block: HostBlock, conf: str, has_ip: bool) -> Iterator[Setting]:
    silent = {f"{conf}/disable_ipv6": 1}
    if block.family == 6 and has_ip:
        silent = {
            f"{conf}/disable_ipv6": 0,
            f"{conf}/addr_gen_mode": 1,
            f"{conf}/router_solicitations": 0,
            f"{conf}/mldv2_unsolicited_report_interval": MLD_REPORT_MS,
        }
    for name, value in silent.items():
        optional = block.family == 4
        yield Setting("sysctl", name, value, path=block.path("link"), optional=optional)


def is_machine_wide(name: str) -> bool:
    """Return whether a sysctl belongs to the machine rather than a network namespace."""
    # As in sysctl(8), the first separator decides between dots and slashes.
    separator = "/" if "/" in name.partition(".")[0] else "."
    top, room, rest = (*name.split(separator, 2), "", "")[:3]
    if (top, room) == ("net", "core"):
        return rest not in NAMESPACED_CORE
    if (top, room) == ("net", "ipv4"):
        return rest in MACHINE_WIDE_IPV4
    if (top, room) == ("net", "netfilter"):
        return rest in MACHINE_WIDE_NETFILTER
    return top != "net"


def _sysctls(block: HostBlock) -> Iterator[Setting]:
    for name, value in (block.settings.sysctl or {}).items():
        scope: Scope = "machine" if is_machine_wide(name) else "namespace"
        yield block.beyond("sysctl", name, value, f"sysctl.{name}", scope)


def _power(block: HostBlock) -> Iterator[Setting]:
    """Set CPU power management; stop irqbalance, which would move interrupts ``irq`` pins."""
    if block.settings.irq is not None:
        yield block.beyond("irqbalance", "irqbalance", False, "irq")
    cpu = block.settings.cpu or Cpu()
    if cpu.governor is not None:
        yield block.beyond("governor", "cpus", cpu.governor, "cpu.governor")
    if cpu.turbo is not None:
        yield block.beyond("turbo", "cpus", cpu.turbo, "cpu.turbo")
    if cpu.latency_ns is not None:
        latency_us = cpu.latency_ns // 1000
        yield block.beyond("cpu_latency", "cpus", latency_us, "cpu.latency")


def _plain(block: HostBlock) -> Iterator[Setting]:
    """Yield the settings whose values come from one field, as their kind says."""
    fields = set_keys(block.settings)
    for kind in (kind for kind in SETTING_KINDS.values() if kind.field) if fields else ():
        field, each, _ = kind.field.partition(".*")
        value: Any = fields
        for name in field.split("."):
            value = value.get(name, {})
        path = ".".join(key_of(name) for name in field.split("."))
        if each:
            for name, item in value.items():
                yield block.setting(kind.name, name, item, f"{path}.{name}")
        elif value != {}:
            yield block.setting(kind.name, "", value, path)


def _up(block: HostBlock) -> Iterator[Setting]:
    host = block.host
    if block.lab.built_in:
        for interface in filter(None, (host.interface, host.out, host.bridge, host.tunnel)):
            yield Setting("up", interface, True, path=block.path("link"))
    elif not host.out:
        yield Setting("up", host.interface, True, path=f"{host.part}.interface")


def _added(block: HostBlock) -> tuple[str, ...]:
    more = [address for text in block.settings.addresses or () for address in addresses_of(text)]
    addresses = dict.fromkeys([*block.host.addresses, *more])
    # A built-in lab gets only the family of the traffic, so that nothing else is on the link.
    return tuple(
        address
        for address in addresses
        if not block.lab.built_in or (":" in address) == (block.family == 6)
    )


def _unclaimed(block: HostBlock) -> Iterator[Setting]:
    """Check on a real link that no host has the addresses to be added."""
    new = [address.partition("/")[0] for address in _added(block)]
    if new and not block.lab.built_in:
        yield block.setting("unclaimed", ",".join(new), {}, "addresses")


def _addresses(block: HostBlock) -> Iterator[Setting]:
    for address in _added(block):
        yield block.beyond("address", f"{block.host.entry}/{address}", True, "addresses")
    for address in block.host.out_addresses:
        if not block.lab.built_in or (":" in address) == (block.family == 6):
            target = f"{block.host.exit}/{address}"
            yield Setting("address", target, True, path=block.path("addresses"))


def _neighbours(block: HostBlock) -> Iterator[Setting]:
    """Make neighbours permanent in a built-in lab, to keep ARP out of queues and counters.

    Between real hosts, set only the user's: a switch forgets a host that never sends.
    """
    neighbours: dict[str, tuple[str, str]] = {}
    for own, peer in chain.own_ends(block.lab, block.host):
        for address in peer.of_family(block.family):
            if losses.is_silent(block, peer.host, address.partition("/")[0]):
                continue
            target = f"{own.interface}/{address.partition('/')[0]}"
            yield Setting("neighbour", target, peer.mac, path=block.path("link"))
    if block.lab.built_in and not block.lab.middle:
        lab = block.lab
        for other in (end for end in lab.ends if end.part != block.host.part):
            mac = mac_of(lab, other)
            for address in other.addresses:
                if (":" in address) != (block.family == 6):
                    continue
                neighbours[address.partition("/")[0]] = (mac, "link")
    for text in block.settings.neighbours or ():
        ip, _, given = text.partition(" ")
        neighbours[ip] = (given, "neighbours")
    for ip, (station, path) in neighbours.items():
        yield block.setting("neighbour", ip, station, path)


def _routes(block: HostBlock) -> Iterator[Setting]:
    for interface, network, gateway in chain.gateways(block.lab, block.host, block.family):
        yield Setting("route", f"{interface}/{network}", gateway, path=block.path("link"))
    for text in block.settings.routes or ():
        network, _, gateway = text.partition(" via ")
        yield block.setting("route", network, gateway, "routes")


def _qdisc(block: HostBlock) -> Iterator[Setting]:
    """Set the root qdisc: the configured one, or the one that limits the link's rate."""
    qdisc, rate_bps = block.settings.qdisc, block.link.rate_bps
    if isinstance(rate_bps, int) and block.host.sends:
        if qdisc is not None:
            what = f"the root qdisc of {block.host.interface} sets the rate of the link"
            step = "omit settings.receiver.link.rate or settings.sender.qdisc"
            raise Unavailable(f"settings.sender.qdisc: {what}; {step}")
        yield block.setting("qdisc", "", card.cable(rate_bps, block.settings), "link.rate")
    if qdisc is not None:
        yield block.setting("qdisc", "", set_keys(qdisc), "qdisc")


def _firewall(block: HostBlock) -> Iterator[Setting]:
    """Make rules for one port; each is inserted before existing ones, so the last one wins."""
    rules = block.settings.firewall
    if rules is None:
        return
    chains = []
    own = {"receiver": "input", "middle": "forward"}.get(block.host.part, "output")
    if rules.accept:
        chains.append(("accept", own))
    if rules.notrack:
        chains.append(("notrack", "output" if block.host.sends else "prerouting"))
    if rules.drop is not None and rules.drop != "none":
        chains.append(("drop", rules.drop))
    for verdict, hook in chains:
        target = f"ipv{block.family}/{hook}/{verdict}/udp/{rules.udp}"
        yield block.beyond("firewall", target, True, f"firewall.{verdict}")
    if rules.rules or rules.track:
        passed = {"rules": rules.rules or 0, "track": bool(rules.track)}
        yield block.beyond("passed_rules", f"{own}/{rules.udp}", passed, "firewall.rules")


def _published(block: HostBlock) -> Iterator[Setting]:
    """Lead ports of a node to the receiver's first address, as docker does those of a container."""
    receiver = block.lab.receivers[0]
    own = [
        text
        for text in _own_addresses(receiver, block.context.facts)
        if (":" in text) == (block.family == 6)
    ]
    if not own or not block.settings.publish:
        return
    address = str(ip_address(own[0]))
    end = f"[{address}]" if block.family == 6 else address
    ports = dict(map(parse_published_port, block.settings.publish))
    value = {str(port): f"{end}:{to}" for port, to in ports.items()}
    yield Setting("published", block.host.exit, value, path=block.path("publish"))


def _path_guard(block: HostBlock) -> Iterator[Setting]:
    """Let a node that leads elsewhere, too, forward the traffic by one way and to receivers alone.

    A node of a built-in lab leads nowhere else.
    """
    host, lab, facts = block.host, block.lab, block.context.facts
    if not host.out or host.tunnel or lab.built_in:
        return  # frames within a tunnel pass FORWARD by another interface
    known = {
        part: sorted({text for end in lab.at(part) for text in _own_addresses(end, facts)})
        for part in ENDS
    }
    traffic = block.trial.traffic if block.trial is not None else Traffic()
    ports = {"ports": traffic.flows.source_ports}
    value = {"out": host.out, "from": known["sender"], "to": known["receiver"], **ports}
    if value["from"] and value["to"]:
        yield Setting("path_guard", host.interface, value, path=f"middle.{host.name}.change")


def _own_addresses(end: Node, facts: Mapping[str, Facts]) -> Iterator[str]:
    written = facts[end.name].addresses if end.existing and end.name in facts else end.addresses
    yield from (text.partition("/")[0] for text in written)


def _tunnel_counts(block: HostBlock) -> Iterator[Setting]:
    """Count what an interface of WireGuard that is there takes and gives: the kernel does not.

    Optional, since its node may lack nft, or the interface have a queue of its own, which counts.
    """
    host = block.host
    if not host.tunnel or host.bridge or block.lab.built_in:
        return
    queue = {"pfifo": {"limit_packets": QUEUE_PACKETS}}
    for kind, value in (("qdisc", queue), ("tunnel_counts", True)):
        path = f"middle.{host.name}.change"
        yield Setting(kind, host.tunnel, value, path=path, optional=True)


PARTS: tuple[Part, ...] = (
    _coming_queues,
    _link,
    _pairs,
    _quiet,
    _forwarding,
    _sysctls,
    card.flow_table,
    _power,
    card.flow_control,
    card.features,
    _up,
    _unclaimed,
    _addresses,
    _neighbours,
    _routes,
    card.steering_rules,
    card.polling,
    card.interrupts,
    card.steering,
    _qdisc,
    _firewall,
    _published,
    _path_guard,
    _tunnel_counts,
    _plain,
)
"""Their order decides within one kind; the order of kinds is in ``setting_kinds``."""
MACHINE_PARTS: tuple[Part, ...] = (_sysctls, card.flow_table, _power, card.interrupts)
"""Parts with a setting that belongs to the machine."""

QUEUE_PACKETS = 1000
MLD_REPORT_MS = 20
"""A whole number of ticks at any CONFIG_HZ; otherwise it reads back as another value."""
