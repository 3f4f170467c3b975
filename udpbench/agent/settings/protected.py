"""Which interfaces carry the controller's SSH connection, and which changes would divert it.

``protected_interfaces`` and ``would_divert`` are pure; the rest reads this host. Read-only.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any, Optional

from udpbench.agent.host.control_path import ssh_connection
from udpbench.agent.host.system import Host, link_kind
from udpbench.agent.settings.link_flap import RTN_UNICAST, hops


@dataclass(frozen=True)
class KernelLink:
    """One interface and its lower interface."""

    index: int
    name: str
    mac: Optional[str] = None
    kind: Optional[str] = None
    """vlan, bond, bridge ...; None for a physical device."""
    master: Optional[int] = None
    lower: Optional[int] = None
    """Index of the lower interface, if it is in the same namespace."""


@dataclass(frozen=True)
class KernelRoute:
    """The route to a network."""

    network: str
    interface: int
    gateway: Optional[str] = None
    """The next hop."""


def protected_interfaces(
    links: Iterable[KernelLink], routes: Iterable[KernelRoute], ssh_connection: Optional[str]
) -> frozenset[str]:
    """Return the names of the interfaces that must not be disturbed.

    These are the interfaces of the route to the SSH peer and of default routes, and their lower
    interfaces: ports of a bond or bridge, the device below a VLAN, one with the same MAC (netvsc
    and its VF). ``ssh_connection`` is sshd's SSH_CONNECTION; without an address none is protected.
    """
    peer, zone = _peer(ssh_connection)
    if peer is None:
        return frozenset()
    by_index = {link.index: link for link in links}
    indexes = {link.index for link in by_index.values() if zone and link.name == zone}
    indexes |= _ways(routes, peer)
    frontier = [index for index in indexes if index in by_index]
    indexes = set(frontier)
    while frontier:
        for index in _below(by_index, by_index[frontier.pop()]) - indexes:
            indexes.add(index)
            frontier.append(index)
    return frozenset(by_index[index].name for index in indexes)


def would_divert(peer: Any, requested: str, interface: int, ways: Iterable[KernelRoute]) -> bool:
    """Return whether a route to ``requested`` over ``interface`` would divert packets to the peer.

    ``requested`` is an address with prefix length, a network, or a neighbour's address; ``ways``
    are the current routes. A prefix at least as long as the current one wins, or may win; one that
    only confirms that the peer is on this link changes nothing. The peer's own address, and the
    neighbour entry of its next hop, always count as diverting.
    """
    own = ip_interface(requested)
    known = [(ip_network(route.network), route) for route in ways]
    holding = [(net.prefixlen, route) for net, route in known if peer in net]
    longest = max((length for length, _ in holding), default=-1)
    now = [route for length, route in holding if length == longest]
    if "/" not in requested:
        return str(own.ip) in (str(peer), *(route.gateway for route in now))
    if own.ip == peer:
        return own.ip != own.network.network_address or own.network.num_addresses == 1
    same_link = any(route.interface == interface and route.gateway is None for route in now)
    return peer in own.network and own.network.prefixlen >= longest and not same_link


def diverting(host: Host, target: str) -> bool:
    """Return whether a target such as ``eth3/10.1.0.0/16`` would divert the controller's packets.

    False if the controller is not connected by SSH to this namespace.
    """
    interface, _, requested = target.partition("/")
    peer, _ = _peer(ssh_connection(host))
    if peer is None:
        return False
    is_neighbour = "/" not in requested
    # A route to an IPv4 network may have a gateway of IPv6.
    if not is_neighbour and peer.version != ip_interface(requested).version:
        return False
    try:
        host.rtnl("route", "get", dst=str(peer))
    except OSError:
        return False
    family = socket.AF_INET if peer.version == 4 else socket.AF_INET6
    ways = [
        KernelRoute(f"{message.get_attr('RTA_DST') or _any(peer)}/{message['dst_len']}", *hop)
        for message in host.rtnl("route", "dump", family=family)
        if message["type"] == RTN_UNICAST
        for hop in _hops(host, message)
    ]
    return would_divert(peer, requested, host.index(interface), ways)


def _any(peer: Any) -> str:
    return "0.0.0.0" if peer.version == 4 else "::"  # noqa: S104 - the default route


def _hops(host: Host, message: Any) -> list[tuple[int, Optional[str]]]:
    """Return interface and gateway of each way of a route.

    Those of all nexthop objects if the kernel names only the object: it does with
    net.ipv4.nexthop_compat_mode 0.
    """
    return list(hops(message)) or [(index, gateway) for _, index, gateway in host.nexthops()]


def _peer(ssh_connection: Optional[str]) -> tuple[Any, str]:
    """Return the peer's address and, if link-local, its interface."""
    text, _, zone = (ssh_connection or "").partition(" ")[0].partition("%")
    try:
        return ip_address(text), zone
    except ValueError:  # sshd -i on a pipe sets UNKNOWN
        return None, ""


def _ways(routes: Iterable[KernelRoute], peer: Any) -> set[int]:
    """Return the interfaces of the longest prefix match for the peer, and of default routes."""
    known = [(ip_network(route.network), route.interface) for route in routes]
    holding = [(net.prefixlen, index) for net, index in known if peer in net]
    longest = max((length for length, _ in holding), default=None)
    default = {index for net, index in known if net.prefixlen == 0}
    return default | {index for length, index in holding if length == longest}


def _below(links: dict[int, KernelLink], upper: KernelLink) -> set[int]:
    """Return the lower interfaces of an interface."""
    indexes = {link.index for link in links.values() if link.master == upper.index}
    if upper.lower in links:
        indexes.add(links[upper.lower].index)
    if upper.kind is None and upper.mac is not None:
        twins = (link for link in links.values() if link.kind is None and link.mac == upper.mac)
        indexes |= {link.index for link in twins}
    return indexes


def protected(host: Host) -> frozenset[str]:
    """Return the protected interfaces of this agent's namespace."""
    connection = ssh_connection(host)
    peer, _ = _peer(connection)
    if peer is None:
        return frozenset()
    return protected_interfaces(_links(host), _routes(host, peer), connection)


def _links(host: Host) -> list[KernelLink]:
    return [_link(message) for message in host.rtnl("link", "dump")]


def _link(message: Any) -> KernelLink:
    elsewhere = message.get_attr("IFLA_LINK_NETNSID") is not None
    return KernelLink(
        index=message["index"],
        name=message.get_attr("IFLA_IFNAME"),
        mac=message.get_attr("IFLA_ADDRESS"),
        kind=link_kind(message),
        master=message.get_attr("IFLA_MASTER"),
        lower=None if elsewhere else message.get_attr("IFLA_LINK"),
    )


def _routes(host: Host, peer: Any) -> list[KernelRoute]:
    """Return every default route, and the kernel's route to the peer with policy routing.

    Of several ways to the peer the kernel names only that of one flow.
    """
    known = []
    for message in host.rtnl("route", "dump"):
        if message["type"] != RTN_UNICAST:
            continue
        ways = _hops(host, message)
        if message["dst_len"] == 0:
            known += [KernelRoute(f"{_any(peer)}/0", index) for index, _ in ways]
        elif len(ways) > 1 and peer in ip_network(
            f"{message.get_attr('RTA_DST')}/{message['dst_len']}"
        ):
            known += [KernelRoute(str(peer), index) for index, _ in ways]
    try:
        way = host.rtnl("route", "get", dst=str(peer))
    except OSError:  # a separate namespace, started from an SSH session's shell
        return known
    return known + [KernelRoute(str(peer), message.get_attr("RTA_OIF")) for message in way]
