"""The proof that interfaces of two hosts share a link: a request sent by one is heard at the other.

Sends one ARP request when asked to, only by an interface that is up and carries neither SSH nor a
default route. It is a probe, so that no host learns an address from it (RFC 5227), for an address
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


class ArpListener:
    """Hears the probes that arrive at some interfaces."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._links: dict[str, socket.socket] = {}

    def hear(self, interfaces: Sequence[str]) -> tuple[HeardArp, ...]:
        """Return the probes heard since the last call; begin at new interfaces, end at others."""
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
    """Yield the probes that a socket holds; none of an interface that has gone down."""
    with suppress(OSError):
        while True:
            packet, sender = link.recvfrom(FRAME_BYTES, socket.MSG_DONTWAIT)
            mac = sender[4]
            if packet.startswith(arp_probe(mac, PROBED)[1]):
                yield HeardArp(interface, mac.hex(":"))


def send_arp(host: Host, interface: str) -> None:
    """Send one probe; raises SafetyError where none may be sent, AgentError without the right."""
    if interface in protected(host):
        raise SafetyError(f"{interface} carries SSH or a default route; no ARP request was sent")
    if link(host, interface) != "up":
        raise SafetyError(f"{interface} has no link; no ARP request was sent")
    with _permitted(), host.packet_socket(interface, ETH_P_ARP) as sender:
        to, packet = arp_probe(sender.getsockname()[4], PROBED)
        sender.sendto(packet, (interface, ETH_P_ARP, 0, 0, to))


@contextmanager
def _permitted() -> Iterator[None]:
    """Raise AgentError where the agent may not use raw frames."""
    try:
        yield
    except PermissionError as error:
        raise AgentError("raw frames need CAP_NET_RAW; become root there") from error
