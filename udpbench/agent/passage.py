"""The way that packets of the traffic take through this host, as its routes and rules are now.

Reads; sends and changes nothing. What cannot be followed is named, never taken for harmless.
Long, because routes, rules, filters, policies and tunnels lead the same packets, each in turn.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Optional, Union

from udpbench.agent.counters.snapshot import bridge_ports
from udpbench.agent.host import (
    genetlink,
    ip_tunnels,
    programs,
    tracked,
    tun_devices,
    vxlan,
    wireguard_ends,
)
from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.facts import addresses
from udpbench.agent.host.files import beneath, lines_of, read
from udpbench.agent.host.system import Host, link_kind
from udpbench.agent.host.udp_diag import SocketList
from udpbench.agent.rewrites import (
    PROTOCOLS,
    FlowMarks,
    Look,
    Rewrites,
    of_iptables,
    of_nft,
    settled,
)
from udpbench.agent.route_proof import (
    NO_ROUTE,
    ROUTE_TYPES,
    by_interface,
    by_service,
    gateway_of,
    unfollowed,
)
from udpbench.agent.stations import neighbours, stations, vxlans
from udpbench.drivers import TUNNELS
from udpbench.protocol import Hop, Passage, Tunnel

RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER = 38, 42, 46
TC_COMING, TC_LEAVING = (0xFFFFFFF1, 0xFFFFFFF2), 0xFFFFFFF3
"""TC_H_CLSACT is TC_H_INGRESS; its hooks are minor numbers FFF2 and FFF3 (linux/pkt_sched.h)."""
NETLINK_XFRM, XFRM_MSG_GETPOLICY, XFRMA_TMPL = 6, 0x15, 5
_POLICY = struct.Struct("=16s16s8xHBBB3x8x104xBB6x")
"""struct xfrm_userpolicy_info (linux/xfrm.h): addresses, version, lengths, protocol, direction."""
_TEMPLATE = struct.Struct("=16s8xH2x16s4xB15x")
"""struct xfrm_user_tmpl: the other end, its IP version, this end, the mode."""
LEADING_AWAY = (
    *(b"mirred\0", b"bpf\0", b"nat\0", b"pedit\0", b"tunnel_key\0", b"ct\0", b"goto\0"),
    *(b"skbmod\0", b"vlan\0", b"mpls\0", b"ife\0", b"ctinfo\0", b"ipt\0", b"xt\0"),
)
"""Kinds of filter and action that may send packets elsewhere, or rewrite them."""
TCA_KIND = 1
"""linux/rtnetlink.h; TCA_ACT_KIND of linux/pkt_cls.h as well."""
RTM_GETRULE = 34
_RULE = struct.Struct("=BBBBBBBBI")
"""struct fib_rule_hdr (linux/fib_rules.h); its type of service is the fourth."""
BY_MARK = {0: "the type of service", 10: "a mark", 25: "the type of service"}
RULE_PARTS = {
    **BY_MARK,
    20: "the user",
    22: "the protocol",
    23: "the source port",
    24: "the destination port",
    26: "the flow label",
}
"""FRA_* of linux/fib_rules.h; 0 stands for the type of service in the header."""
TUNNEL_KINDS = (
    *TUNNELS,
    *("amt", "gtp", "ip6erspan", "ipvti", "l2tp", "l2tpeth", "ovpn", "ovpn-dco", "pfcp", "ppp"),
    *("sit", "tun", "vti", "vti6", "wireguard", "xfrm"),
)
FOLLOWED = ("vxlan", "macsec")
"""Those whose ends are told apart by MACs, or that leave a frame's MACs as they are."""
FRAME_MODULES = ("ebtable_nat", "ebtable_broute")
"""The legacy ebtables, whose filter lets frames pass as they are, or drops them."""
IPTABLES = {"ip": "iptables", "ip6": "ip6tables"}
LEGACY_TABLES = "/proc/thread-self/net/{}_tables_names"


def passage(
    host: Host,
    interface: str,
    out: str,
    pairs: Sequence[tuple[str, str]],
    ports: Sequence[int],
    protocol: str = "udp",
) -> Passage:
    """Return the next hop of each pair of source and destination, and all that may alter it.

    ``interface`` is where packets come in; empty: they are sent here. OSError if an interface is
    missing. A port's packets come in by its bridge; where both are its ports, they never get to IP.
    """
    destinations = tuple(dict.fromkeys(to for _, to in pairs))
    known = dict(neighbours(host, out))
    bridge = _bridge(host, interface, out) if interface else ()
    entry = bridge[0] if bridge else interface
    frames = len(bridge) > len((entry, interface))
    hops = () if frames else tuple(_hop(host, entry, out, pair, known) for pair in pairs)
    local = any(hop.kind == "local" for hop in hops)
    ours = FlowMarks(_seen_by(host, interface), destinations, tuple(ports), protocol, local)
    rewritten = _remembered(host, ours, _rewrites(host, ours))
    sides = dict.fromkeys(filter(None, (interface, entry, out, *beneath(host, interface, out))))
    by_frames = link_kind(host.link(out)) == "vxlan"
    inside = (*destinations, *rewritten.addresses)
    tunnel = vxlan.facts(host, out) if by_frames else None
    if not by_frames:
        tunnel = wireguard_ends.facts(host, out, inside, by_process=not interface)
    macs = {hop.mac for hop in hops if hop.mac is not None}
    outer = () if interface else tuple(hop for _, hop in _outer(host, out, tunnel, macs or {None}))
    return Passage(
        hops=hops,
        addresses=addresses(host, entry) if entry else (),
        out_addresses=addresses(host, out),
        mac=read(host, f"/sys/class/net/{entry}/address") if entry else None,
        out_mac=read(host, f"/sys/class/net/{out}/address"),
        rewrites=rewritten.addresses,
        sources=_sources(host, out, rewritten.sources),
        unread=(
            *_hidden(host),
            *rewritten.unread,
            *_programs(host, tuple(sides), coming=bool(interface)),
            *_rules(destinations, RULE_PARTS),
            *_services(host, entry, () if frames or not rewritten.services else pairs),
            *_policies(destinations, protocol),
            *(_other_ports(host, *bridge) if frames else ()),
            *(_frame_tables(host) if bridge else ()),
            *_leading_out(host, out, tunnel, inside, sent=not interface),
        ),
        pair=_pair(host, interface) if interface else None,
        out_pair=_pair(host, out),
        bridge=bridge,
        tunnel=tunnel,
        stations=(
            *stations(host, out, macs),
            *(
                at
                for hop in outer
                if hop.mac
                for at in stations(host, hop.interface or "", {hop.mac})
            ),
        ),
        outer=outer,
        ports=rewritten.ports,
        listens=_listens(ports) if local and rewritten.addresses else (),
    )


def _listens(ports: Sequence[int]) -> tuple[int, ...]:
    """Return at which ports there are sockets: all of them if the kernel does not tell."""
    try:
        listed = SocketList(ports).read().values()
    except OSError:  # no udp_diag
        return tuple(ports)
    return tuple(sorted({each.port for each in listed} & {*ports}))


def _hidden(host: Host) -> Iterator[str]:
    """Yield rules that only root may read: none are seen, and some may be there."""
    with suppress(OSError):  # no nf_tables in this kernel
        try:
            host.firewall_rules()
        except PermissionError:
            yield "the firewall, whose rules an agent without root cannot read,"


def _bridge(host: Host, interface: str, out: str) -> tuple[str, ...]:
    """Return the bridge above an interface, and those of both that are its ports."""
    above = [host.link_target(f"/sys/class/net/{name}/brport/bridge") for name in (interface, out)]
    if above[0] is None:
        return ()
    return (above[0], interface, out) if above[0] == above[1] else (above[0], interface)


def _outer(
    host: Host, out: str, tunnel: Optional[Tunnel], macs: Collection[Optional[str]]
) -> Iterator[tuple[Tunnel, Hop]]:
    """Yield each tunnel that packets to some MACs leave by, and the way to each other end of it."""
    ways = dict.fromkeys([] if tunnel is None else [(tunnel, tunnel.remote or "")])
    for each in vxlans(host, out):
        table = vxlan.table(host, each.name)
        ways.pop((each, each.remote or ""), None)
        ways.update(((each, end), None) for mac in macs for end in vxlan.ends(table, each, mac))
    described = (ip_tunnels.facts(host, name) for name in (out, *beneath(host, out)))
    ways.update(((each, each.remote or ""), None) for each in described if each is not None)
    for each, end in ways:
        try:
            ip_address(end)
            bound = vxlan.bound_to(host, each) or ip_tunnels.bound_to(host, each.name)
            route = host.rtnl("route", "get", dst=end, **({"oif": bound} if bound else {}))[0]
        except (OSError, ValueError) as error:  # no route; or no address
            if getattr(error, "errno", NO_ROUTE[0]) not in NO_ROUTE:
                raise
            continue
        way_out = host.name_of(route.get_attr("RTA_OIF")) or ""
        pair = each.local or route.get_attr("RTA_PREFSRC") or end, end
        hop = _hop(host, "", way_out, pair, dict(neighbours(host, way_out)))
        if hop.interface not in (None, way_out):
            hop = replace(hop, kind=f"a route by the interface, {way_out}")
        yield each, hop


def _leading_out(
    host: Host, out: str, tunnel: Optional[Tunnel], destinations: Collection[str], sent: bool
) -> Iterator[str]:
    """Yield a way out that puts packets into others, where its end is not followed.

    Of those that are ``sent`` here other kinds are, too, and what the way out stands on.
    """
    kind = link_kind(host.link(out))
    if tunnel is not None and kind == "vxlan":
        yield from vxlan.unfollowed(host, tunnel)
    elif tunnel is not None:
        yield from wireguard_ends.unfollowed(host, tunnel, destinations)
    elif kind in TUNNEL_KINDS and not sent:
        yield f"{out}, a tunnel ({kind}),"
    if sent:
        yield from _without_end(host, out, destinations)
        return
    for name in beneath(host, out):
        kind = link_kind(host.link(name)) or _device_type(host, name)
        if kind in TUNNEL_KINDS and kind != "macsec" and not _is_card(host, name):
            yield f"{name}, a tunnel ({kind}) below {out},"


def _without_end(host: Host, out: str, destinations: Collection[str]) -> Iterator[str]:
    """Yield each tunnel but VXLAN of which it is not known where its other end is, or stays."""
    for name in (out, *beneath(host, out)):
        kind = link_kind(host.link(name)) or _device_type(host, name)
        own = host.wireguard is not None and host.wireguard.name == name
        tunnel = ip_tunnels.facts(host, name)
        if tunnel is not None:
            yield from ip_tunnels.without_end(host, tunnel)
        elif kind == "wireguard" or own:
            yield from wireguard_ends.without_end(host, name, destinations)
        elif kind == "tun":
            yield from _of_process(host, name, destinations)
        elif kind in TUNNEL_KINDS and kind not in FOLLOWED:
            yield f"{name}, a tunnel ({kind}) whose other end is not asked for,"


def _of_process(host: Host, name: str, destinations: Collection[str]) -> Iterator[str]:
    """Yield the same of a process that has a tun or tap device, unless that is a machine's card."""
    if _is_card(host, name):
        return
    if tun_devices.wireguard_socket(host, name) is not None:
        yield from wireguard_ends.without_end(host, name, destinations)
        return
    pid = tun_devices.holder(host, name)
    whose = read(host, f"/proc/{pid}/comm") if pid is not None else None
    yield (
        f"{name}, a tunnel of a process ({whose or 'not known'}) that does not tell where its "
        "other end is (docs/limits.md, Tunnels),"
    )


def _is_card(host: Host, name: str) -> bool:
    """Return whether a device is a virtual machine's."""
    pid = tun_devices.holder(host, name) if link_kind(host.link(name)) == "tun" else None
    return pid is not None and tun_devices.runs_machine(host, pid)


def _device_type(host: Host, name: str) -> str:
    """Return what a device without a kind says that it is."""
    words = (read(host, f"/sys/class/net/{name}/uevent") or "").split()
    types = [word.partition("=")[2] for word in words if word.startswith("DEVTYPE=")]
    return types[0] if types else ""


def _other_ports(host: Host, bridge: str, *known: str) -> Iterator[str]:
    """Yield each further port, to which a bridge may flood frames."""
    for name in bridge_ports(host, bridge):
        if name not in known:
            yield f"{name}, another port of {bridge},"


def _frame_tables(host: Host) -> Iterator[str]:
    """Yield what may rewrite frames at a bridge and is not read."""
    for module in FRAME_MODULES:
        if host.exists(f"/sys/module/{module}"):
            yield f"the legacy ebtables (module {module})"


def led_away(
    host: Host,
    out: str,
    destinations: Sequence[str],
    ports: Sequence[int],
    protocol: str = "udp",
) -> tuple[str, ...]:
    """Return what may lead packets that are sent here elsewhere than their route, in words.

    A rule that goes by marks does so only if another may set one, as packets have none of their
    own: VPNs have such rules on many hosts. Those of a tunnel's outer packets always do, since what
    has marked the packets within may be a program of BPF, or a tc filter.
    """
    if not destinations:
        return ()
    ours = FlowMarks((), tuple(destinations), tuple(ports), protocol)
    rewritten = _remembered(host, ours, _rewrites(host, ours))
    return (
        *_led(host, out, ours, rewritten, by_mark=bool(rewritten.marks)),
        *_tunnels(host, out, destinations),
    )


def _led(
    host: Host, out: str, ours: FlowMarks, rewritten: Rewrites, *, by_mark: bool
) -> Iterator[str]:
    """Yield the same of packets on one way out, whatever puts them into others there."""
    parts = {kind: what for kind, what in RULE_PARTS.items() if by_mark or kind not in BY_MARK}
    yield from (f"a rule to {address} (DNAT)" for address in rewritten.addresses)
    yield from rewritten.unread
    yield from _programs(host, (out, *beneath(host, out)), coming=False)
    yield from _rules(ours.destinations, parts)
    yield from _services(host, "", [("", to) for to in ours.destinations if rewritten.services])
    yield from _policies(ours.destinations, ours.protocol)


def _tunnels(host: Host, out: str, destinations: Sequence[str]) -> Iterator[str]:
    """Yield why VXLANs do not lead to a single end, and what leads away a tunnel's outer packets.

    Those of a VXLAN have the marks of the packets within.
    """
    macs: set[Optional[str]] = set()
    known = dict(neighbours(host, out))
    yield from _without_end(host, out, destinations)
    for tunnel in vxlans(host, out):
        yield from (text.rstrip(",") for text in vxlan.without_end(host, tunnel))
        table = vxlan.table(host, tunnel.name)
        for to in destinations:
            ends: tuple[str, ...] = ()
            with suppress(OSError):  # no route
                mac = known.get(gateway_of(host.rtnl("route", "get", dst=to)[0]) or to)
                # One that is not known may be any that the table has.
                macs.update({mac} if mac is not None else {None, *table})
                ends = vxlan.ends(table, tunnel, mac)
            if len(ends) > 1 or any(_is_group(end) for end in ends):
                named = f"{tunnel.name}, a tunnel (vxlan) with several ends for {to}"
                yield f"{named}: {', '.join(ends)}"
    by_wireguard = wireguard_ends.facts(host, out, destinations, by_process=True)
    for tunnel, hop in _outer(host, out, by_wireguard, macs):
        yield from (
            f"{what}, of the outer packets of {tunnel.name} to {hop.destination},"
            for what in _led_outside(host, tunnel, hop)
        )


def _led_outside(host: Host, tunnel: Tunnel, hop: Hop) -> Iterator[str]:
    if hop.kind in ("none", "local"):
        return  # no packet leaves
    if hop.kind != "unicast" or hop.interface is None:
        yield hop.kind if hop.kind.startswith("a route") else f"a route of the type {hop.kind}"
        return
    for name in (hop.interface, *beneath(host, hop.interface)):
        if link_kind(host.link(name)) in TUNNEL_KINDS:
            yield f"{name}, a tunnel within a tunnel"
    for protocol in ip_tunnels.protocols(host, tunnel.name):
        ports = (tunnel.port,) if protocol == "udp" else ()
        outer = FlowMarks((), (hop.destination,), ports, protocol)
        rewritten = _remembered(host, outer, _rewrites(host, outer))
        yield from _led(host, hop.interface, outer, rewritten, by_mark=True)


def _is_group(end: str) -> bool:
    with suppress(ValueError):  # a nexthop object, which may be a group of them
        return ip_address(end).is_multicast
    return True


def _services(host: Host, interface: str, pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield routes by the type of service, which a rule gives to packets; IPv6 has none."""
    way_in = {"iif": host.index(interface)} if interface else {}
    for source, to in (pair for pair in pairs if ":" not in pair[1]):
        asked = {"dst": to, **({"src": source} if source else {}), **way_in}
        with suppress(OSError):  # no route
            if by_service(host, **asked):
                yield f"a route to {to} by the type of service"


def _seen_by(host: Host, interface: str) -> tuple[str, ...]:
    """Return the interfaces by which rules see packets come in: within a VRF by both."""
    if not interface:
        return ()
    above = host.link(interface).get_attr("IFLA_MASTER")
    return interface, *filter(None, [host.name_of(above) if above else None])


def _sources(host: Host, out: str, given: Sequence[str]) -> tuple[str, ...]:
    """Return the sources that rules may give to packets, in place of their own."""
    own = [text.partition("/")[0] for text in addresses(host, out)] if "" in given else []
    return tuple(dict.fromkeys([*filter(None, given), *own]))


def _pair(host: Host, interface: str) -> Optional[tuple[int, int]]:
    """Return the index of one end of a veth pair and that of the other, wherever that is."""
    message = host.link(interface)
    other = message.get_attr("IFLA_LINK")
    if link_kind(message) != "veth" or not other:
        return None
    return int(message["index"]), int(other)


def _hop(host: Host, interface: str, out: str, pair: tuple[str, str], known: dict[str, str]) -> Hop:
    source, destination = pair
    asked: dict[str, Any] = {"dst": destination, "src": source}
    if interface:
        asked["iif"] = host.index(interface)
    try:
        route = host.rtnl("route", "get", **asked)[0]
        reasons = unfollowed(source, destination, asked.get("iif", 0))
        if not interface and route.get_attr("RTA_OIF") == host.index(out):
            # Of a route by another interface no reason is needed; a tunnel's outer packets take it.
            reasons += by_interface(host, host.index(out), source, destination, route)
    except OSError as error:
        if error.errno not in NO_ROUTE:
            raise
        return Hop(source, destination, "none")
    kind = ROUTE_TYPES.get(route["type"], f"type {route['type']}")
    if reasons:
        kind = reasons[0]
    gateway = gateway_of(route)
    leaves = route.get_attr("RTA_OIF")
    return Hop(
        source,
        destination,
        kind,
        host.name_of(leaves) if leaves is not None else None,
        gateway,
        known.get(gateway or destination),
    )


def _rewrites(host: Host, ours: FlowMarks) -> Rewrites:
    """Return where else rules may send packets; rules that cannot be read are named."""
    try:
        count = host.firewall_rules()
    except OSError:
        count = 0  # no nf_tables in this kernel
    looks: list[Look] = []
    unread: list[str] = []
    rules: list[dict[str, Any]] = []
    if count:
        try:
            items = programs.ruleset(host)
            rules = [item["rule"] for item in items if "rule" in item]
            looks.append(partial(of_nft, items))
        except (OSError, ValueError, KeyError, TypeError) as error:
            step = "remove some" if getattr(error, "errno", None) == errno.EFBIG else "install nft"
            unread.append(f"the rules of nf_tables ({_why(error)}): {step}")
    for family, name in IPTABLES.items():
        tables = {
            "legacy": {*(read(host, LEGACY_TABLES.format(family)) or "").split()},
            "nft": {rule["table"] for rule in rules if rule["family"] == family and _is_xt(rule)},
        }
        for kind, own in tables.items():
            text, missing = _by_iptables(host, name, kind, own)
            looks.append(partial(of_iptables, text))
            unread += missing
    try:
        whole = settled(looks, ours)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        whole = Rewrites(unread=(f"the rules of the firewall, not as expected ({_why(error)})",))
    return replace(whole, unread=(*unread, *whole.unread))


def _remembered(host: Host, ours: FlowMarks, by_rules: Rewrites) -> Rewrites:
    """Return the same with what rules that are gone have made of connections that last."""
    protocol = PROTOCOLS[ours.protocol]
    addresses, unread = tracked.rewritten(host, ours.destinations, ours.ports, protocol)
    return replace(
        by_rules,
        addresses=tuple(dict.fromkeys([*by_rules.addresses, *addresses])),
        unread=(*by_rules.unread, *unread),
    )


def _is_xt(rule: Mapping[str, Any]) -> bool:
    """Return whether iptables made a rule: of its target nft's JSON has the name alone."""
    return any("xt" in each for each in rule.get("expr", ()))


def _by_iptables(
    host: Host, name: str, kind: str, tables: Collection[str]
) -> tuple[str, list[str]]:
    """Return tables by either kind of iptables, which shows only its own, and what is hidden."""
    if not tables:
        return "", []
    program = asked = f"{name}-{kind}-save"
    if host.program(program) is None:
        asked = f"{name}-save"  # there may be a single kind, under this name alone
    try:
        text, why = programs.output(host, asked), f"{asked} does not show them"
    except (OSError, ValueError) as error:
        text, why = "", _why(error)
    hidden = [table for table in sorted(tables) if f"*{table}" not in lines_of(text)]
    unread = f"the rules of {name} in {', '.join(hidden)} ({why}): install {program}"
    return text, [unread] if hidden else []


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _programs(host: Host, sides: Sequence[str], coming: bool = True) -> Iterator[str]:
    """Yield programs and filters that may send packets elsewhere than a route does.

    ``coming``: also those that see what comes in.
    """
    listed = genetlink.dump(RTM_GETQDISC, socket.NETLINK_ROUTE, bytes(16))
    queues = [struct.unpack_from("=iI", message) for message in listed]
    for name in sides:
        index = host.index(name)
        if coming and host.xdp_program(name) is not None:
            yield f"an XDP program on {name}"
        if bpf.tcx_programs(index, bpf.TCX_EGRESS) or (coming and host.tcx_programs(name)):
            yield f"a tcx program on {name}"
        parents = {handle for where, handle in queues if where == index and handle}
        classes = genetlink.dump(RTM_GETTCLASS, socket.NETLINK_ROUTE, struct.pack("=i12x", index))
        parents |= {struct.unpack_from("=4xI", message)[0] for message in classes}
        parents |= {TC_LEAVING, *(TC_COMING if coming else ())}
        if not coming:
            parents.discard(TC_COMING[0] & 0xFFFF0000)
        for parent in sorted(parents):
            asked = struct.pack("=iIII", index, 0, parent, 0)
            try:
                filters = genetlink.dump(RTM_GETTFILTER, socket.NETLINK_ROUTE, asked)
            except OSError:
                continue  # no such qdisc
            if any(_kind(word) in message for message in filters for word in LEADING_AWAY):
                yield f"a tc filter on {name}"
                break


def _kind(word: bytes) -> bytes:
    """Return the attribute that has it, whole: another kind may end so, as gact does in ct."""
    return struct.pack("=HH", 4 + len(word), TCA_KIND) + word


def _policies(destinations: Sequence[str], ours: str) -> Iterator[str]:
    """Yield what IPsec may send elsewhere: packets of a tunnel that ends at none of them."""
    try:
        policies = genetlink.dump_whole(XFRM_MSG_GETPOLICY, NETLINK_XFRM)
    except OSError:
        return  # without privileges, or without IPsec
    for policy in policies:
        to, _, family, length, _, protocol, way, is_block = _POLICY.unpack_from(policy)
        tunnels = {
            _address(end, version)
            for kind, its in genetlink.attributes(policy[_POLICY.size :])
            if kind == XFRMA_TMPL
            for end, version, _, mode in _TEMPLATE.iter_unpack(its)
            if mode
        }
        network = ip_network(f"{_address(to, family)}/{length}", strict=False)
        if way and not is_block and protocol in (0, PROTOCOLS[ours]):
            concerns = any(ip_address(each) in network for each in destinations)
            if concerns and not tunnels <= {*map(ip_address, destinations)}:
                yield f"an IPsec tunnel for {network}"


def _address(packed: bytes, family: int) -> Union[IPv4Address, IPv6Address]:
    return ip_address(packed[:4] if family == socket.AF_INET else packed)


def _rules(destinations: Sequence[str], parts: Mapping[int, str]) -> Iterator[str]:
    """Yield policy rules whose routes depend on what a look-up by addresses does not know."""
    families = {socket.AF_INET6 if ":" in to else socket.AF_INET for to in destinations}
    for family in sorted(families):
        for rule in genetlink.dump_whole(RTM_GETRULE, socket.NETLINK_ROUTE, family):
            kinds = [kind for kind, _ in genetlink.attributes(rule[_RULE.size :])]
            kinds += [0] if _RULE.unpack_from(rule)[3] else []
            yield from (f"a route by {parts[kind]} (ip rule)" for kind in kinds if kind in parts)
