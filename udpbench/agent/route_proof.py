"""Proves that packets would leave by the intended interface; sends and changes nothing."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from udpbench.agent.host import genetlink
from udpbench.agent.host.system import Host
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
RTM_GETROUTE, RTM_F_FIB_MATCH = 26, 0x2000
_RTMSG = struct.Struct("=BBBBI")
"""struct rtmsg from its table on."""
_RTA_DST, _RTA_SRC, _RTA_IIF = 1, 2, 3
UNFOLLOWED = {
    9: "a route with several next hops",
    19: "a route that rewrites the destination",
    21: "a route that encapsulates (encap)",
    22: "a route that encapsulates (encap)",
}
"""RTA_MULTIPATH, RTA_NEWDST, RTA_ENCAP_TYPE and RTA_ENCAP: where these lead is not followed."""


def prove(
    host: Host,
    interface: str,
    workers: Iterable[WorkerSpec],
    routed: Optional[Sequence[str]] = None,
    rules: Sequence[str] = (),
) -> None:
    """Prove that every flow's route is unicast and leaves by ``interface``.

    ``routed`` are the networks that may be behind a gateway; None: any. The lookup uses the flow's
    own source address, so policy routing applies and an address that the host lacks is detected.
    ``rules`` of this host may lead packets elsewhere. Raises SafetyError that lists every problem.
    """
    pairs = {(flow.source, flow.destination) for spec in workers for flow in spec.flows}
    wrong = [
        f"{source} → {destination}: {reason}"
        for source, destination in sorted(pairs)
        for reason in _objections(host, interface, source, destination, routed)
    ]
    wrong += [f"{what} may lead packets elsewhere" for what in rules]
    if wrong:
        raise SafetyError(
            "nothing was sent, as packets might leave the lab: "
            + "; ".join(wrong)
            + f"; every route must be unicast and leave by {interface}: check `ip route get`"
        )


def _objections(
    host: Host, interface: str, source: str, destination: str, routed: Optional[Sequence[str]]
) -> list[str]:
    if ipaddress.ip_address(destination).is_multicast:
        return ["multicast address"]
    try:
        index = host.index(interface)
        route = host.rtnl("route", "get", dst=destination, src=source)[0]
        objections = unfollowed(source, destination)
    except OSError as error:
        return [f"no route ({error.strerror})"]
    route_type = ROUTE_TYPES.get(route["type"], f"type {route['type']}")
    if route_type != "unicast":
        objections.append(f"{route_type} address")
    leaves_by = route.get_attr("RTA_OIF")
    if leaves_by != index:
        objections.append(f"leaves by interface {leaves_by}, not by {interface} ({index})")
    if routed is not None and gateway_of(route) and not _within(destination, routed):
        objections.append(
            f"goes through gateway {gateway_of(route)}, which `existing` addresses do not permit; "
            "list the receiver's addresses, or the network in the sender's `routes`"
        )
    return objections


def unfollowed(source: str, destination: str, comes_by: int = 0) -> list[str]:
    """Return why the entry of the routing table for packets cannot be followed; OSError without.

    Only the entry itself (RTM_F_FIB_MATCH) shows every next hop. That of a nexthop object is shown
    as if it were the route's own, and its encapsulation, too (Linux 6.18, IPv4 and IPv6).
    """
    to, own = (ipaddress.ip_address(text) for text in (destination, source))
    asked = _RTMSG.pack(0, 0, 0, 0, RTM_F_FIB_MATCH)
    asked += genetlink.attribute(_RTA_DST, to.packed) + genetlink.attribute(_RTA_SRC, own.packed)
    if comes_by:
        asked += genetlink.number(_RTA_IIF, comes_by)
    family = socket.AF_INET if to.version == 4 else socket.AF_INET6
    entry = genetlink.get(RTM_GETROUTE, socket.NETLINK_ROUTE, asked, family)
    kinds = [kind for kind, _ in genetlink.attributes(entry[_RTMSG.size :])]
    return list(dict.fromkeys(UNFOLLOWED[kind] for kind in kinds if kind in UNFOLLOWED))


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
