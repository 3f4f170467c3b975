"""The way that packets of the traffic take through this host, as its routes and rules are now.

Reads; sends and changes nothing. What cannot be followed is named, never taken for harmless.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from udpbench.agent.host import genetlink, programs
from udpbench.agent.host.facts import addresses
from udpbench.agent.host.files import lines_of, read
from udpbench.agent.host.system import Host, link_kind
from udpbench.agent.neighbours import KNOWN
from udpbench.agent.rewrites import FlowMarks, Rewrites, of_iptables, of_nft
from udpbench.agent.route_proof import ROUTE_TYPES, gateway_of
from udpbench.protocol import Hop, Passage

RTM_GETTFILTER = 46
TC_INGRESS, TC_EGRESS, TC_ROOT = 0xFFFFFFF1, 0xFFFFFFF3, 0xFFFFFFFF
"""TC_H_CLSACT is TC_H_INGRESS; its hooks are minor numbers FFF2 and FFF3 (linux/pkt_sched.h)."""
LEADING_AWAY = (b"mirred\0", b"bpf\0", b"nat\0", b"pedit\0", b"tunnel_key\0", b"ct\0", b"goto\0")
"""Kinds of filter and action that may send packets elsewhere, or rewrite them."""
RTM_F_FIB_MATCH = 0x2000
NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.EXDEV)
"""No route; one of the types unreachable, prohibit or blackhole; or the source is refused there."""
RULE_PARTS = {
    "FRA_FWMARK": "a mark",
    "FRA_IP_PROTO": "the protocol",
    "FRA_SPORT_RANGE": "the source port",
    "FRA_DPORT_RANGE": "the destination port",
    "FRA_UID_RANGE": "the user",
}
IPTABLES = {"ip": "iptables", "ip6": "ip6tables"}
LEGACY_TABLES = "/proc/thread-self/net/{}_tables_names"


def passage(
    host: Host,
    interface: str,
    out: str,
    pairs: Sequence[tuple[str, str]],
    ports: Sequence[int],
) -> Passage:
    """Return the next hop of each pair of source and destination, and all that may alter it.

    ``interface`` is where packets come in; empty: they are sent here. OSError if an interface is
    missing.
    """
    destinations = tuple(dict.fromkeys(to for _, to in pairs))
    known = dict(_neighbours(host, out))
    ours = FlowMarks(interface, destinations, tuple(ports))
    rewritten = _rewrites(host, ours) if interface else Rewrites()
    sides = (interface, out) if interface else (out,)
    return Passage(
        hops=tuple(_hop(host, interface, pair, known) for pair in pairs),
        addresses=addresses(host, interface) if interface else (),
        out_addresses=addresses(host, out),
        mac=read(host, f"/sys/class/net/{interface}/address") if interface else None,
        out_mac=read(host, f"/sys/class/net/{out}/address"),
        rewrites=rewritten.addresses,
        sources=_sources(host, out, rewritten.sources),
        unread=(*rewritten.unread, *_programs(host, sides), *_rules(host, destinations)),
        pair=_pair(host, interface) if interface else None,
        out_pair=_pair(host, out),
    )


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


def _hop(host: Host, interface: str, pair: tuple[str, str], known: dict[str, str]) -> Hop:
    source, destination = pair
    asked: dict[str, Any] = {"dst": destination, "src": source}
    if interface:
        asked["iif"] = host.index(interface)
    try:
        route = host.rtnl("route", "get", **asked)[0]
        whole = host.rtnl("route", "get", **asked, flags=RTM_F_FIB_MATCH)[0]
    except OSError as error:
        if error.errno not in NO_ROUTE:
            raise
        return Hop(source, destination, "none")
    kind = ROUTE_TYPES.get(route["type"], f"type {route['type']}")
    if whole.get_attr("RTA_MULTIPATH"):
        kind = "a route with several next hops"
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


def _neighbours(host: Host, out: str) -> Iterator[tuple[str, str]]:
    """Yield address and MAC of what is known on a link."""
    index = host.index(out)
    for message in host.rtnl("neigh", "dump", ifindex=index):
        mac, address = message.get_attr("NDA_LLADDR"), message.get_attr("NDA_DST")
        if message["ifindex"] == index and mac and message["state"] & KNOWN:
            yield address, mac


def _rewrites(host: Host, ours: FlowMarks) -> Rewrites:
    """Return where else rules may send packets; rules that cannot be read are named."""
    try:
        count = host.firewall_rules()
    except OSError:
        count = 0  # no nf_tables in this kernel
    parts: list[Rewrites] = []
    rules: list[dict[str, Any]] = []
    if count:
        try:
            items = programs.ruleset(host)
            parts.append(of_nft(items, ours))
            rules = [item["rule"] for item in items if "rule" in item]
        except (OSError, ValueError, KeyError, TypeError) as error:
            parts.append(Rewrites(unread=(f"the rules of nf_tables ({_why(error)}): install nft",)))
    for family, name in IPTABLES.items():
        tables = {
            "legacy": {*(read(host, LEGACY_TABLES.format(family)) or "").split()},
            "nft": {rule["table"] for rule in rules if rule["family"] == family and _is_xt(rule)},
        }
        parts += [_by_iptables(host, name, kind, own, ours) for kind, own in tables.items()]
    return Rewrites(
        tuple(dict.fromkeys(each for part in parts for each in part.addresses)),
        tuple(dict.fromkeys(each for part in parts for each in part.sources)),
        tuple(dict.fromkeys(each for part in parts for each in part.unread)),
    )


def _is_xt(rule: Mapping[str, Any]) -> bool:
    """Return whether iptables made a rule: of its target nft's JSON has the name alone."""
    return any("xt" in each for each in rule.get("expr", ()))


def _by_iptables(
    host: Host, name: str, kind: str, tables: Collection[str], ours: FlowMarks
) -> Rewrites:
    """Return the same of tables by either kind of iptables, which shows only its own."""
    if not tables:
        return Rewrites()
    program = asked = f"{name}-{kind}-save"
    if host.program(program) is None:
        asked = f"{name}-save"  # there may be a single kind, under this name alone
    try:
        text = programs.output(host, asked)
        shown = of_iptables(text, ours)
    except (OSError, ValueError) as error:
        text, shown, why = "", Rewrites(), _why(error)
    else:
        why = f"{asked} does not show them"
    hidden = [table for table in sorted(tables) if f"*{table}" not in lines_of(text)]
    unread = f"the rules of {name} in {', '.join(hidden)} ({why}): install {program}"
    return replace(shown, unread=(*shown.unread, unread)) if hidden else shown


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _programs(host: Host, sides: Sequence[str]) -> Iterator[str]:
    """Yield programs and filters that may send packets elsewhere before a route does."""
    for name in sides:
        index = host.index(name)
        if host.xdp_program(name) is not None:
            yield f"an XDP program on {name}"
        if host.tcx_programs(name):
            yield f"a tcx program on {name}"
        for parent in (TC_INGRESS, TC_INGRESS + 1, TC_EGRESS, TC_ROOT):
            asked = struct.pack("=iIII", index, 0, parent, 0)
            try:
                filters = genetlink.dump(RTM_GETTFILTER, socket.NETLINK_ROUTE, asked)
            except OSError:
                continue  # no such qdisc
            if any(word in message for message in filters for word in LEADING_AWAY):
                yield f"a tc filter on {name}"
                break


def _rules(host: Host, destinations: Sequence[str]) -> Iterator[str]:
    """Yield policy rules whose routes depend on what a look-up by addresses does not know."""
    families = {socket.AF_INET6 if ":" in to else socket.AF_INET for to in destinations}
    for family in sorted(families):
        for message in host.rtnl("rule", "dump", family=family):
            for attribute, what in RULE_PARTS.items():
                if message.get_attr(attribute) is not None:
                    yield f"a route by {what} (ip rule)"
