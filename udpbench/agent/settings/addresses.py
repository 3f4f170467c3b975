"""Kinds for addresses on a link: ``address``, ``unclaimed``, ``neighbour``."""

from __future__ import annotations

import errno
import select
import socket
import struct
from collections.abc import Collection, Mapping
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
    ip_network,
)
from typing import Any, Callable, Optional, Union

from udpbench.agent.host.reading import OwnAddress
from udpbench.agent.host.system import Host, own_address
from udpbench.agent.settings import link_flap
from udpbench.agent.settings.kind import Command, Kind
from udpbench.agent.settings.routes import RT_TABLE_MAIN

# Without duplicate address detection an IPv6 address is usable at once, not a second later.
IFA_F_NODAD = 2  # include/uapi/linux/if_addr.h
IFA_F_SECONDARY = 1
"""IFA_F_SECONDARY: an IPv4 address that is not the first of its network."""
IP6_RT_PRIO_ADDRCONF = 256  # include/net/ip6_route.h
OF_KERNEL = (link_flap.RTPROT_KERNEL, IP6_RT_PRIO_ADDRCONF)
"""Protocol and metric of the route that the kernel makes with an IPv6 address."""


def _restore_addresses(host: Host, index: int, had: list[link_flap.Request]) -> None:
    """Recreate what the kernel removed with a primary IPv4 address: secondary ones, and routes.

    Another process added them during the run. A route that depended on our own address has no use
    any more and is not recreated.
    """
    have = link_flap.attached(host, index)
    for request in had:
        try:
            link_flap.restore_missing(host, [request], have)
        except OSError as error:
            if request[0] != "route" or error.errno not in (errno.ENETUNREACH, errno.EINVAL):
                raise


def _is_of(fields: dict[str, Any], address: Any) -> bool:
    """Return whether a request recreates an address, or what the kernel made with one."""
    by_kernel = "dst" in fields and fields.get("proto") == link_flap.RTPROT_KERNEL
    if address.version == 6 and fields.get("priority") != IP6_RT_PRIO_ADDRCONF:
        by_kernel = False  # of others, which only have the kernel's protocol
    return by_kernel or fields.get("local", fields.get("address")) == str(address)


def _split_address(host: Host, target: str) -> tuple[int, Union[IPv4Interface, IPv6Interface]]:
    interface, _, address = target.partition("/")
    return host.index(interface), ip_interface(address)


def _find(
    host: Host, index: int, requested: Union[IPv4Interface, IPv6Interface]
) -> Optional[OwnAddress]:
    """Return an address with its prefix length; None without one."""
    family = socket.AF_INET if requested.version == 4 else socket.AF_INET6
    owned = host.addresses(index, family)
    return next((each for each in owned if each.interface == requested), None)


def _on_link(host: Host, index: int, network: IPv6Network) -> set[tuple[int, int]]:
    """Return protocol and metric of each route to a network that has no gateway."""
    return {
        (message["proto"], message.get_attr("RTA_PRIORITY"))
        for message in host.rtnl("route", "dump", family=socket.AF_INET6, table=RT_TABLE_MAIN)
        if (index, None) in link_flap.hops(message)
        and ip_network(f"{message.get_attr('RTA_DST') or '::'}/{message['dst_len']}") == network
    }


def _is_shared(host: Host, index: int, requested: IPv6Interface) -> bool:
    """Return whether another IPv6 address has the same route of the kernel's."""
    for each in host.addresses(index, socket.AF_INET6):
        other, metric = each.interface, each.metric or IP6_RT_PRIO_ADDRCONF
        has_it = not each.flags & link_flap.IFA_F_NOPREFIXROUTE and metric == OF_KERNEL[1]
        if has_it and other != requested and other.network == requested.network:
            return True
    return False


def _flags_to_add(host: Host, index: int, requested: IPv6Interface) -> int:
    """Return flags with which the kernel makes a route to the network only if there is none.

    With an address it removes the first route to the network that has no gateway, whoever made it
    (net/ipv6/addrconf.c: cleanup_prefix_route), but for an address without a route of its own.
    """
    routes = _on_link(host, index, requested.network)
    if not routes or (routes == {OF_KERNEL} and _is_shared(host, index, requested)):
        return IFA_F_NODAD
    return IFA_F_NODAD | link_flap.IFA_F_NOPREFIXROUTE


def _goes_alone(host: Host, index: int, address: Any, flags: int) -> bool:
    """Return whether the kernel removes nothing else along with an address."""
    if address.version == 4:
        return bool(flags & IFA_F_SECONDARY)
    return bool(flags & link_flap.IFA_F_NOPREFIXROUTE) or _is_shared(host, index, address)


def _remove_prefix_route(host: Host, index: int, network: IPv6Network) -> None:
    """Remove the kernel's route of an address, which it may keep, or take another's for it."""
    if OF_KERNEL in _on_link(host, index, network):
        own = dict(zip(("proto", "priority"), OF_KERNEL), oif=index, table=RT_TABLE_MAIN)
        host.rtnl("route", "del", dst=str(network), **own)


class Address(Kind):
    """One IP address on an interface, ``send0/10.0.0.1/24``; true, or null."""

    diverts = True
    instead: Mapping[int, str] = {errno.EADDRINUSE: "choose an unused address"}

    def read(self, host: Host, target: str) -> Optional[bool]:
        """Return true if the interface has the address with this prefix length."""
        return True if _find(host, *_split_address(host, target)) is not None else None

    def check(self, host: Host, target: str, value: Optional[bool], now: Optional[bool]) -> None:
        """Refuse a first IPv4 address if the kernel removed more with it when it is the last.

        net/ipv4/fib_frontend.c: fib_disable_ip().
        """
        del value, now
        index, requested = _split_address(host, target)
        if requested.version == 6 or host.addresses(index, socket.AF_INET):
            return
        lost = link_flap.not_recreated(host, index, ("neigh", "route"), socket.AF_INET)
        if lost:
            what = "removed again as the last IPv4 address it would take along "
            step = "give the interface an IPv4 address first, or remove them"
            raise OSError(errno.EBUSY, f"{what}{link_flap.listed(lost)}; {step}")

    def write(self, host: Host, target: str, value: Optional[bool]) -> None:
        """Add or remove the address."""
        index, requested = _split_address(host, target)
        fields: dict[str, Any] = {
            "address": str(requested.ip),
            "prefixlen": requested.network.prefixlen,
        }
        if value:
            if requested.version == 6:
                fields["flags"] = _flags_to_add(host, index, requested)
            host.rtnl("addr", "add", index=index, **fields)
            return
        own = _find(host, index, requested)
        if own is None or _goes_alone(host, index, requested, own.flags):
            host.rtnl("addr", "del", index=index, **fields)
            return
        had = link_flap.attached(host, index)
        if requested.version == 6:
            _remove_prefix_route(host, index, requested.network)
        host.rtnl("addr", "del", index=index, **fields)
        _restore_addresses(
            host,
            index,
            [request for request in had if not _is_of(dict(request[1]), requested.ip)],
        )

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        interface, _, address = target.partition("/")
        return ["ip", "address", "add" if value else "del", address, "dev", interface]


# Packets that ask who uses an address on a link, and the parsing of answers; pure.
#
# Neither claims the address: an ARP probe comes from 0.0.0.0 (RFC 5227), a neighbour solicitation
# of duplicate address detection from :: (RFC 4862). Both are without link header; addresses are
# bytes.

BROADCAST = b"\xff" * 6
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_IPV4_OVER_ETHERNET = (1, 0x0800, 6, 4)


def arp_probe(mac: bytes, address: bytes) -> tuple[bytes, bytes]:
    """Return the destination MAC and an ARP request."""
    asked = _ARP.pack(*_IPV4_OVER_ETHERNET, 1, mac, bytes(4), bytes(6), address)
    return BROADCAST, asked


def arp_claim(packet: bytes) -> Optional[tuple[IPv4Address, str]]:
    """Return the (address, MAC) claimed by an ARP packet; None if it claims none."""
    if len(packet) < _ARP.size:
        return None
    *kind, _, mac, sender, _, _ = _ARP.unpack_from(packet)
    if tuple(kind) != _IPV4_OVER_ETHERNET or sender == bytes(4):
        return None
    return IPv4Address(sender), mac.hex(":")


_IPV6 = struct.Struct("!IHBB16s16s")
_ND = struct.Struct("!BBHI16s")
_VERSION_6 = 6 << 28
_ICMPV6 = 58
_HOP_LIMIT = 255  # RFC 4861, 7.1: anything less may have come through a router
_SOLICITATION, _ADVERTISEMENT = 135, 136
_TARGET_MAC = b"\2\1"  # option 2 of one unit of 8 bytes
_SOLICITED_NODE = IPv6Address("ff02::1:ff00:0").packed[:13]


def nd_probe(_mac: bytes, address: bytes) -> tuple[bytes, bytes]:
    """Return the destination MAC and a neighbour solicitation."""
    group = _SOLICITED_NODE + address[13:]
    asked = _ND.pack(_SOLICITATION, 0, 0, 0, address)
    head = _IPV6.pack(_VERSION_6, len(asked), _ICMPV6, _HOP_LIMIT, bytes(16), group)
    checksum = _checksum(head[8:] + struct.pack("!II", len(asked), _ICMPV6) + asked)
    asked = _ND.pack(_SOLICITATION, 0, checksum, 0, address)
    return b"\x33\x33" + group[12:], head + asked


def nd_claim(packet: bytes) -> Optional[tuple[IPv6Address, str]]:
    """Return the (address, MAC) claimed by a neighbour advertisement; None for other packets."""
    begin = _IPV6.size + _ND.size
    if len(packet) < begin:
        return None
    _, _, protocol, hops, _, _ = _IPV6.unpack_from(packet)
    kind, code, _, _, target = _ND.unpack_from(packet, _IPV6.size)
    if (protocol, hops, kind, code) != (_ICMPV6, _HOP_LIMIT, _ADVERTISEMENT, 0):
        return None
    option = packet[begin : begin + 8]
    if len(option) < 8 or option[:2] != _TARGET_MAC:
        return None  # RFC 4861, 4.4: an answer to a solicitation by multicast has it
    return IPv6Address(target), option[2:].hex(":")


def _checksum(data: bytes) -> int:
    """Return the Internet checksum of an even number of bytes (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


IpAddress = Union[IPv4Address, IPv6Address]
Claim = Callable[[bytes], Optional[tuple[IpAddress, str]]]
PROBES = 2
WAIT_S = 0.2
"""For answers to one round of probes; a switched link answers within a millisecond."""
ETH_P_ARP, ETH_P_IPV6 = 0x0806, 0x86DD


def _own(host: Host, interface: str) -> set[IpAddress]:
    index = host.index(interface)
    messages = host.rtnl("addr", "dump", index=index)
    return {ip_address(own_address(message)) for message in messages}


def _listen(
    host: Host, link: socket.socket, claim: Claim, asked: Collection[IpAddress]
) -> dict[str, str]:
    claims = {}
    end_ns = host.clock_ns() + int(WAIT_S * 10**9)
    while (left_ns := end_ns - host.clock_ns()) > 0:
        if select.select([link], [], [], left_ns / 10**9)[0]:
            claimed = claim(link.recv(128))
            if claimed is not None and claimed[0] in asked:
                claims[str(claimed[0])] = claimed[1]
    return claims


class Unclaimed(Kind):
    """Proof that no host on the link uses these addresses; the value is always {}.

    Target: ``receive0/10.0.0.1,fd00::1``; reads as {address: MAC that answered}. Changes nothing:
    writing is refused, so an address in use ends the run before it is assigned. The interface must
    be up. Queries by ARP for IPv4, by neighbour discovery for IPv6.
    """

    stays = False
    instead: Mapping[int, str] = {errno.EADDRINUSE: "choose unused addresses, or `existing`"}

    def read(self, host: Host, target: str) -> dict[str, str]:
        """Return {address: MAC} of the claimed addresses."""
        interface, _, listed = target.partition("/")
        asked = {ip_address(text) for text in listed.split(",")} - _own(host, interface)
        claims: dict[str, str] = {}
        for protocol, version, probe, claim in (
            (ETH_P_ARP, 4, arp_probe, arp_claim),
            (ETH_P_IPV6, 6, nd_probe, nd_claim),
        ):
            mine = sorted(address for address in asked if address.version == version)
            if not mine:
                continue
            with host.packet_socket(interface, protocol) as link:
                mac = link.getsockname()[4]
                for _ in range(PROBES):
                    for address in mine:
                        to, packet = probe(mac, address.packed)
                        link.sendto(packet, (interface, protocol, 0, 0, to))
                    claims.update(_listen(host, link, claim, mine))
        return claims

    def write(self, host: Host, target: str, value: dict[str, str]) -> None:
        """Refuse: an address in use must not be assigned."""
        self.check(host, target, value, self.read(host, target))

    def check(self, _host: Host, _target: str, _value: dict[str, str], now: dict[str, str]) -> None:
        """Refuse, listing address and MAC of each claim."""
        claims = ", ".join(f"{ip} by {mac}" for ip, mac in now.items())
        raise OSError(errno.EADDRINUSE, f"in use on the link: {claims or 'an address'}")


NUD_PERMANENT = 0x80  # include/uapi/linux/neighbour.h


class Neighbour(Kind):
    """A permanent neighbour entry, ``send0/10.0.0.1``; its MAC address, or null.

    Entries learnt by the kernel are ignored: the kernel learns them again.
    """

    diverts = True

    def read(self, host: Host, target: str) -> Optional[str]:
        """Return the MAC address of the permanent entry."""
        interface, _, address = target.partition("/")
        state, mac = host.neighbour(host.index(interface), address) or (0, None)
        return mac if state & NUD_PERMANENT else None

    def check(self, host: Host, target: str, value: Optional[str], now: Optional[str]) -> None:
        """Refuse to replace an entry that somebody set otherwise: not all of it could return."""
        del value, now
        interface, _, address = target.partition("/")
        index = host.index(interface)
        if host.neighbour(index, address) is None:
            return
        (entry,) = host.rtnl("neigh", "get", ifindex=index, dst=address)
        if not link_flap.is_set(entry):
            return
        others = (entry["flags"], entry.get_attr("NDA_PROTOCOL"), entry.get_attr("NDA_FLAGS_EXT"))
        if entry["state"] != NUD_PERMANENT or any(others):
            what = "the host has a neighbour of that address which is more than permanent"
            raise OSError(errno.EBUSY, f"{what}; remove it first, or choose another address")

    def write(self, host: Host, target: str, value: Optional[str]) -> None:
        """Set the entry, replacing a learnt one, or remove it."""
        interface, _, address = target.partition("/")
        entry = {"ifindex": host.index(interface), "dst": address}
        if value is None:
            host.rtnl("neigh", "del", **entry)
        else:
            host.rtnl("neigh", "replace", lladdr=value, state="permanent", **entry)

    def same(self, requested: Any, got: Any) -> bool:
        """Compare MAC addresses in either case."""
        return bool((requested and requested.lower()) == (got and got.lower()))

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        interface, _, address = target.partition("/")
        change = ["del", address] if value is None else ["replace", address, "lladdr", value]
        return ["ip", "neighbour", *change, "dev", interface]


KINDS: Mapping[str, Kind] = {
    "address": Address(),
    "unclaimed": Unclaimed(),
    "neighbour": Neighbour(),
}
