"""Proves that packets would leave by the intended interface; sends and changes nothing."""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Optional

from udpbench.agent.host import genetlink
from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_diag import SocketList
from udpbench.errors import SafetyError
from udpbench.model.work import WorkerSpec

ROUTE_TYPES = {
    1: "unicast",
    2: "local",
    3: "broadcast",
    4: "anycast",
    5: "multicast",
    6: "blackhole",
    7: "unreachable",
    8: "prohibit",
}
"""RTN_* of include/uapi/linux/rtnetlink.h."""
NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.EXDEV)
"""No route; one of the types unreachable, prohibit or blackhole; or the source is refused there."""
RTM_GETROUTE, RTM_GETNEXTHOP, RTM_F_FIB_MATCH = 26, 106, 0x2000
_RTMSG = struct.Struct("=BBBBI")
"""struct rtmsg from its table on."""
_RTA_DST, _RTA_SRC, _RTA_IIF, _RTA_OIF, _RTA_NH_ID, _NHA_ID = 1, 2, 3, 4, 30, 1
SEVERAL, ENCAPSULATES = "a route with several next hops", "a route that encapsulates (encap)"
UNFOLLOWED = {
    9: SEVERAL,
    19: "a route that rewrites the destination",
    21: ENCAPSULATES,
    22: ENCAPSULATES,
}
"""RTA_MULTIPATH, RTA_NEWDST, RTA_ENCAP_TYPE and RTA_ENCAP: where these lead is not followed."""
SERVICES_STEP = 4
"""Between two types of service, whose last two bits are no part of a look-up."""
UNFOLLOWED_HOP = {2: SEVERAL, 7: ENCAPSULATES, 8: ENCAPSULATES}
"""The same of a nexthop object: NHA_GROUP, NHA_ENCAP_TYPE and NHA_ENCAP (linux/nexthop.h)."""


def prove(
    host: Host,
    interface: str,
    workers: Iterable[WorkerSpec],
    routed: Optional[Sequence[str]] = None,
    rules: Sequence[str] = (),
    back: bool = False,
) -> None:
    """Prove that every flow's route is unicast and leaves by ``interface``.

    ``routed`` are the networks that may be behind a gateway; None: any. The lookup uses the flow's
    own source address, so policy routing applies and an address that the host lacks is detected.
    ``rules`` of this host may lead packets elsewhere. Of replies, which go ``back``, one without a
    route may be: it is never sent. Raises SafetyError that lists every problem.
    """
    pairs = {(flow.source, flow.destination) for spec in workers for flow in spec.flows}
    wrong = [
        f"{source} → {destination}: {reason}"
        for source, destination in sorted(pairs)
        for reason in _objections(host, interface, source, destination, routed, back)
    ]
    wrong += [f"{what} may lead packets elsewhere" for what in rules]
    if wrong:
        raise SafetyError(
            f"nothing was sent, as {'replies' if back else 'packets'} might leave the lab: "
            + "; ".join(wrong)
            + f"; every route must be unicast and leave by {interface}: check `ip route get`"
        )


def _objections(
    host: Host,
    interface: str,
    source: str,
    destination: str,
    routed: Optional[Sequence[str]],
    back: bool,
) -> list[str]:
    if ipaddress.ip_address(destination).is_multicast:
        return ["multicast address"]
    try:
        index = host.index(interface)
        route = host.rtnl("route", "get", dst=destination, src=source)[0]
        objections = unfollowed(source, destination)
        objections += by_interface(host, index, source, destination, route)
    except OSError as error:
        never_sent = back and error.errno in NO_ROUTE
        return [] if never_sent else [f"no route ({error.strerror})"]
    route_type = ROUTE_TYPES.get(route["type"], f"type {route['type']}")
    if route_type != "unicast":
        objections.append(f"{route_type} address")
    leaves_by = route.get_attr("RTA_OIF")
    if leaves_by != index:
        objections.append(f"leaves by interface {leaves_by}, not by {interface} ({index})")
    if routed is not None and gateway_of(route) and not _within(destination, routed):
        to, own = ("sender", "receiver") if back else ("receiver", "sender")
        objections.append(
            f"goes through gateway {gateway_of(route)}, which `existing` addresses do not permit; "
            f"list the {to}'s addresses, or the network in the {own}'s `routes`"
        )
    return objections


def by_interface(host: Host, index: int, source: str, destination: str, route: Any) -> list[str]:
    """Return why a socket that is bound to an interface may use another route; OSError without.

    Senders' are bound to it, and policy rules may ask for that (ip rule, ``oif``).
    """
    bound = host.rtnl("route", "get", dst=destination, src=source, oif=index)[0]
    if (bound["type"], gateway_of(bound)) != (route["type"], gateway_of(route)):
        return [f"a route by the interface (ip rule), to {gateway_of(bound) or destination}"]
    return unfollowed(source, destination, leaves_by=index)


def by_service(host: Host, **asked: Any) -> bool:
    """Return whether a type of service decides which way packets take; OSError without a route."""
    ways = {
        (route["type"], route.get_attr("RTA_OIF"), gateway_of(route))
        for service in range(0, 256, SERVICES_STEP)
        for route in host.rtnl("route", "get", tos=service, **asked)[:1]
    }
    return len(ways) > 1


def unfollowed(source: str, destination: str, comes_by: int = 0, leaves_by: int = 0) -> list[str]:
    """Return why the entry of the routing table for packets cannot be followed; OSError without.

    Only the entry itself (RTM_F_FIB_MATCH) shows every next hop. That of a nexthop object is shown
    as if it were the route's own, and its encapsulation, too (Linux 6.18, IPv4 and IPv6); but not
    if net.ipv4.nexthop_compat_mode is 0.
    """
    to, own = (ipaddress.ip_address(text) for text in (destination, source))
    asked = _RTMSG.pack(0, 0, 0, 0, RTM_F_FIB_MATCH)
    asked += genetlink.attribute(_RTA_DST, to.packed) + genetlink.attribute(_RTA_SRC, own.packed)
    for kind, index in ((_RTA_IIF, comes_by), (_RTA_OIF, leaves_by)):
        asked += genetlink.number(kind, index) if index else b""
    family = socket.AF_INET if to.version == 4 else socket.AF_INET6
    entry = genetlink.get(RTM_GETROUTE, socket.NETLINK_ROUTE, asked, family)
    known = dict(genetlink.attributes(entry[_RTMSG.size :]))
    reasons = [UNFOLLOWED[kind] for kind in known if kind in UNFOLLOWED]
    if _RTA_NH_ID in known:
        asked = bytes(4) + genetlink.attribute(_NHA_ID, known[_RTA_NH_ID])
        hop = genetlink.get(RTM_GETNEXTHOP, socket.NETLINK_ROUTE, asked, 0)
        kinds = [kind for kind, _ in genetlink.attributes(hop[4:])]
        reasons += [UNFOLLOWED_HOP[kind] for kind in kinds if kind in UNFOLLOWED_HOP]
    return list(dict.fromkeys(reasons))


def prove_connected(workers: Iterable[WorkerSpec], inodes: Collection[int]) -> None:
    """Prove that senders' UDP sockets are connected to their flows' destinations; else SafetyError.

    A BPF program of a cgroup may exchange these in connect(2), and in what getpeername(2) answers.
    """
    flows = [flow for spec in workers for flow in spec.flows]
    ends = {(ipaddress.ip_address(f.destination), f.destination_port) for f in flows}
    try:
        listed = SocketList({flow.source_port for flow in flows}).read().values() if flows else ()
    except OSError:  # without udp_diag
        return
    peers = {
        (ipaddress.ip_address(each.peer), each.peer_port)
        for each in listed
        if each.inode in inodes and each.peer is not None
    }
    for address, port in sorted(peers - ends, key=str)[:1]:
        raise SafetyError(
            "nothing was sent, as packets might leave the lab: a sender's socket was connected to "
            f"{address}, port {port}, by a program of its cgroup: see `bpftool cgroup tree`"
        )


def next_hop(host: Host, source: str, destination: str) -> str:
    """Return the next hop's address; the destination if on link. OSError if there is no route."""
    route = host.rtnl("route", "get", dst=destination, src=source)[0]
    return gateway_of(route) or destination


def gateway_of(route: Any) -> Optional[str]:
    """Return the gateway's address; an IPv4 route may have an IPv6 gateway (RTA_VIA)."""
    via = route.get_attr("RTA_VIA")
    return route.get_attr("RTA_GATEWAY") or (via["addr"] if via else None)


def _within(destination: str, networks: Sequence[str]) -> bool:
    address = ipaddress.ip_address(destination)
    return any(address in ipaddress.ip_network(network) for network in networks)
