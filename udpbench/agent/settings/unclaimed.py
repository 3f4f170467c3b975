"""Kind ``unclaimed``: that nobody on the link uses these IPv4 addresses; always {}.

Target: ``receive0/10.0.0.1,10.0.0.2``; read as {address: MAC of who answered}. Nothing is ever
changed: writing is refused, so an address in use on the link ends the run before it is taken. The
interface must be up. Asked as RFC 5227 asks (an ARP probe, whose sender address is 0.0.0.0).
"""

from __future__ import annotations

import errno
import select
import socket
import struct
from collections.abc import Collection
from ipaddress import IPv4Address

from udpbench.agent.host import Host

ETH_P_ARP = 0x0806
PROBES = 2
WAIT_S = 0.2
"""For answers to one round of probes; a switched link answers within a millisecond."""
BROADCAST = b"\xff" * 6
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_IPV4_OVER_ETHERNET = (1, 0x0800, 6, 4)


def read(host: Host, target: str) -> dict[str, str]:
    """Return who claims which address."""
    interface, _, listed = target.partition("/")
    asked = {IPv4Address(text) for text in listed.split(",")}
    own = _own(host, interface)
    claims: dict[str, str] = {}
    with host.packet_socket(interface, ETH_P_ARP) as link:
        mac = link.getsockname()[4]
        for _ in range(PROBES):
            for address in sorted(asked - own):
                link.sendto(probe(mac, address), (interface, ETH_P_ARP, 0, 0, BROADCAST))
            claims.update(_listen(host, link, asked - own))
    return claims


def _own(host: Host, interface: str) -> set[IPv4Address]:
    messages = host.rtnl("addr", "dump", index=host.index(interface), family=socket.AF_INET)
    return {IPv4Address(message.get_attr("IFA_LOCAL")) for message in messages}


def _listen(host: Host, link: socket.socket, asked: Collection[IPv4Address]) -> dict[str, str]:
    claims = {}
    end_ns = host.clock_ns() + int(WAIT_S * 10**9)
    while (left_ns := end_ns - host.clock_ns()) > 0:
        if select.select([link], [], [], left_ns / 10**9)[0]:
            claim = claimed(link.recv(128))
            if claim is not None and claim[0] in asked:
                claims[str(claim[0])] = claim[1]
    return claims


def probe(mac: bytes, address: IPv4Address) -> bytes:
    """Return an ARP request that asks for an address without claiming one."""
    return _ARP.pack(*_IPV4_OVER_ETHERNET, 1, mac, bytes(4), bytes(6), address.packed)


def claimed(frame: bytes) -> tuple[IPv4Address, str] | None:
    """Return the address and MAC that an ARP packet claims; None where it claims none."""
    if len(frame) < _ARP.size:
        return None
    *kind, _, mac, sender, _, _ = _ARP.unpack_from(frame)
    if tuple(kind) != _IPV4_OVER_ETHERNET or sender == bytes(4):
        return None
    return IPv4Address(sender), mac.hex(":")


def write(host: Host, target: str, value: dict[str, str]) -> None:
    """Refuse: an address that somebody uses is not ours to take."""
    check(host, target, value, read(host, target))


def check(_host: Host, _target: str, _value: dict[str, str], now: dict[str, str]) -> None:
    """Refuse, naming who claims what."""
    claims = ", ".join(f"{ip} by {mac}" for ip, mac in now.items())
    raise OSError(errno.EADDRINUSE, f"in use on the link: {claims or 'an address'}")
