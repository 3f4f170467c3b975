"""Kind ``unclaimed``: that nobody on the link uses these addresses; always {}.

Target: ``receive0/10.0.0.1,fd00::1``; read as {address: MAC of who answered}. Nothing is ever
changed: writing is refused, so an address in use on the link ends the run before it is taken. The
interface must be up. IPv4 is asked by ARP, IPv6 by neighbour discovery.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Callable, Optional, Union

from udpbench.agent.host import Host
from udpbench.agent.settings.address_probes import arp_claim, arp_probe, nd_claim, nd_probe

Address = Union[IPv4Address, IPv6Address]
Claim = Callable[[bytes], Optional[tuple[Address, str]]]
PROBES = 2
WAIT_S = 0.2
"""For answers to one round of probes; a switched link answers within a millisecond."""
ETH_P_ARP, ETH_P_IPV6 = 0x0806, 0x86DD


def read(host: Host, target: str) -> dict[str, str]:
    """Return who claims which address."""
    interface, _, listed = target.partition("/")
    asked = {ip_address(text) for text in listed.split(",")} - _own(host, interface)
    claims: dict[str, str] = {}
    for protocol, version, probe, claim in (
        (ETH_P_ARP, 4, arp_probe, arp_claim),
        (ETH_P_IPV6, 6, nd_probe, nd_claim),
    ):
        mine = sorted(one for one in asked if one.version == version)
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


def _own(host: Host, interface: str) -> set[Address]:
    index = host.index(interface)
    messages = host.rtnl("addr", "dump", index=index)
    return {ip_address(m.get_attr("IFA_LOCAL") or m.get_attr("IFA_ADDRESS")) for m in messages}


def _listen(
    host: Host, link: socket.socket, claim: Claim, asked: Collection[Address]
) -> dict[str, str]:
    claims = {}
    end_ns = host.clock_ns() + int(WAIT_S * 10**9)
    while (left_ns := end_ns - host.clock_ns()) > 0:
        if select.select([link], [], [], left_ns / 10**9)[0]:
            claimed = claim(link.recv(128))
            if claimed is not None and claimed[0] in asked:
                claims[str(claimed[0])] = claimed[1]
    return claims


def write(host: Host, target: str, value: dict[str, str]) -> None:
    """Refuse: an address that somebody uses is not ours to take."""
    check(host, target, value, read(host, target))


def check(_host: Host, _target: str, _value: dict[str, str], now: dict[str, str]) -> None:
    """Refuse, naming who claims what."""
    claims = ", ".join(f"{ip} by {mac}" for ip, mac in now.items())
    raise OSError(errno.EADDRINUSE, f"in use on the link: {claims or 'an address'}")
