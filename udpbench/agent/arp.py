"""Proves that interfaces of two hosts share a link: one sends an ARP request, the other hears it.

Sends one ARP request on demand, only on an interface that is up and carries neither SSH nor a
default route. It is an ARP probe, so no host learns an address from it (RFC 5227), for an address
that no host has (RFC 5737).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address

from udpbench.agent.host.facts import link
from udpbench.agent.host.system import Host
from udpbench.agent.settings.addresses import arp_probe
from udpbench.agent.settings.protected import protected
from udpbench.errors import AgentError, SafetyError
from udpbench.protocol import HeardArp

ETH_P_ARP = 0x0806
PROBED = IPv4Address("192.0.2.1").packed
FRAME_BYTES = 128
MOST_FRAMES = 1024
"""Read of an interface in one call. A socket holds about 280 (net.core.rmem_default of 208 KiB,
768 B each); where more can be read, they come as fast as they are read, and reading has no end."""


class ArpListener:
    """Listens for ARP probes on a set of interfaces."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._links: dict[str, socket.socket] = {}

    def hear(self, interfaces: Sequence[str]) -> tuple[HeardArp, ...]:
        """Return the probes heard since the last call; from now on listen on these interfaces."""
        for name in set(self._links) - set(interfaces):
            self._links.pop(name).close()
        heard: dict[HeardArp, None] = {}
        for name in interfaces:
            if name not in self._links:
                with _permitted():
                    self._links[name] = self._host.packet_socket(name, ETH_P_ARP)
            heard.update(dict.fromkeys(_read(name, self._links[name])))
        return tuple(heard)


def _read(interface: str, link: socket.socket) -> Iterator[HeardArp]:
    """Yield the probes queued in a socket; none if the interface has gone down."""
    with suppress(OSError):
        for _ in range(MOST_FRAMES):
            packet, sender = link.recvfrom(FRAME_BYTES, socket.MSG_DONTWAIT)
            mac = sender[4]
            if packet.startswith(arp_probe(mac, PROBED)[1]):
                yield HeardArp(interface, mac.hex(":"))


def send_arp(host: Host, interface: str) -> None:
    """Send one probe; SafetyError if that is unsafe, AgentError without CAP_NET_RAW."""
    if interface in protected(host):
        raise SafetyError(f"{interface} carries SSH or a default route; no ARP request was sent")
    if link(host, interface) != "up":
        raise SafetyError(f"{interface} has no link; no ARP request was sent")
    with _permitted(), host.packet_socket(interface, ETH_P_ARP) as sender:
        to, packet = arp_probe(sender.getsockname()[4], PROBED)
        sender.sendto(packet, (interface, ETH_P_ARP, 0, 0, to))


@contextmanager
def _permitted() -> Iterator[None]:
    """Raise AgentError if the agent may not open packet sockets."""
    try:
        yield
    except PermissionError as error:
        raise AgentError("ARP probes need CAP_NET_RAW; run the agent there as root") from error
