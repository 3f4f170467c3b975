"""Parsers of CPU lists, ports, destinations, addresses, routes and neighbours.

Each raises ValueError with ``what; next step``, and does not know where its text was written.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Interface, IPv6Interface
from typing import Literal

from udpbench.definition.elsewhere import elsewhere
from udpbench.model.limits import ADDRESSES_MAX

MAX_CPU = 4095
_DIGITS = r"[0-9]{1,6}"
_CPUS = re.compile(rf"{_DIGITS}(-{_DIGITS})?(,{_DIGITS}(-{_DIGITS})?)*\Z")
_TO = re.compile(
    rf"receiver\.addresses\[({_DIGITS})(?:-({_DIGITS}))?\]:({_DIGITS}(?:-{_DIGITS})?)\Z"
)
_PUBLISHED = re.compile(
    rf"([A-Za-z0-9._-]+)\.addresses\[({_DIGITS})\]:({_DIGITS}(?:-{_DIGITS})?)\Z"
)
ON_LINK = "link"
_MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}\Z")
_ADDRESS_RANGE = re.compile(
    r"(\d{1,3}\.\d{1,3}\.\d{1,3})\.(\d{1,3})-(\d{1,3})/(\d{1,2})\Z", re.ASCII
)
_ADDRESS_RANGE_6 = re.compile(r"([0-9a-fA-F:]+:)([0-9a-fA-F]{1,4})-([0-9a-fA-F]{1,4})/(\d{1,3})\Z")


@dataclass(frozen=True)
class Destinations:
    """Where packets go: to an address, each flow to another of several, or all to a whole group."""

    kind: Literal["one", "each", "all"]
    members: tuple[int, ...]
    """Which of each receiver's addresses, counted from 1."""
    ports: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many pairs of address and port each receiver has."""
        return len(self.members) * len(self.ports)

    def reaches(self, address: str, own: Container[str]) -> bool:
        """Return whether a receiver with its own addresses gets what is sent to an address."""
        return self.kind == "all" or address in own


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the CPUs of ``0-3,8`` in the order written; ValueError says why not."""
    if _CPUS.match(text) is None:
        raise ValueError("not a list of CPUs; write for example 2 or 0-3,8")
    cpus: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high or high > MAX_CPU:
            raise ValueError(f"not a range of CPUs; lower number first, at most {MAX_CPU}")
        cpus.extend(range(low, high + 1))
    if len(set(cpus)) < len(cpus):
        raise ValueError("CPU listed twice; name each once")
    return tuple(cpus)


def parse_ports(text: str) -> tuple[int, ...]:
    """Return the ports of ``4321`` or ``4321-4324``; ValueError says why not."""
    match = re.match(rf"({_DIGITS})(?:-({_DIGITS}))?\Z", text)
    if match is None:
        raise ValueError("not a port or range of ports; write for example 4321 or 4321-4324")
    low, high = int(match.group(1)), int(match.group(2) or match.group(1))
    if not 1 <= low <= high <= 65535:
        raise ValueError("not a range of ports; 1 to 65535, lower number first")
    return tuple(range(low, high + 1))


def parse_to(text: str) -> Destinations:
    """Return what ``receiver.addresses[1-4]:4321-4324`` stands for; ValueError says why not."""
    match = _TO.match(text)
    if match is None:
        raise ValueError(f"not a destination; {_instead_of(text)}")
    low, high = int(match.group(1)), int(match.group(2) or match.group(1))
    if not 1 <= low <= high <= 65536:
        raise ValueError("not a range of addresses; counted from 1, lower number first")
    ports = parse_ports(match.group(3))
    return Destinations("one" if low == high else "each", tuple(range(low, high + 1)), ports)


@dataclass(frozen=True)
class PublishedPorts:
    """Ports of an address that a node in the middle has, which its rules lead on."""

    node: str
    member: int
    """Which of its addresses where packets come in, counted from 1."""
    ports: tuple[int, ...]


def parse_published(text: str) -> PublishedPorts:
    """Return what ``router1.addresses[1]:8080`` stands for; ValueError says why not."""
    match = _PUBLISHED.match(text)
    if match is None or int(match.group(2)) < 1:
        what = "not an address and port of a node in the middle"
        raise ValueError(f"{what}; write for example router1.addresses[1]:8080")
    return PublishedPorts(match.group(1), int(match.group(2)), parse_ports(match.group(3)))


def parse_published_port(text: str) -> tuple[int, int]:
    """Return the ports of ``8080:4321``: the host's and the receiver's; ValueError if not so."""
    match = re.match(rf"({_DIGITS}):({_DIGITS})\Z", text)
    ports = [int(port) for port in match.groups()] if match is not None else [0]
    if not all(1 <= port <= 65535 for port in ports):
        raise ValueError(
            "not a port of the node and one of the receiver; write for example 8080:4321"
        )
    return ports[0], ports[1]


def _instead_of(text: str) -> str:
    """Return what to write instead of what is no destination: of an address with its port."""
    host, _, ports = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return "write for example receiver.addresses[1-4]:4321"
    if address.is_multicast:
        return elsewhere("multicast")
    return f"packets go only to the lab's receivers; write receiver.addresses[1]:{ports}"


def addresses_of(text: str) -> tuple[str, ...]:
    """Return each address of ``192.168.254.1-20/24``, prefix kept; ValueError says why not.

    A range of IPv6 addresses is hexadecimal: ``fd00::1-14/64`` has twenty.
    """
    first, count = _range_of(text)
    if count == 1:
        return (str(first),)
    return tuple(f"{first.ip + place}/{first.network.prefixlen}" for place in range(count))


@lru_cache(maxsize=1024)
def address_count(text: str) -> int:
    """Return how many addresses a text has, each of which may be a host's; ValueError if not."""
    return _range_of(text)[1]


def _range_of(text: str) -> tuple[IPv4Interface | IPv6Interface, int]:
    """Return the first address of a text, and how many follow each other from it on."""
    match = _ADDRESS_RANGE.match(text)
    match_6 = _ADDRESS_RANGE_6.match(text)
    if match is not None:
        low, high = int(match.group(2)), int(match.group(3))
        if not 0 <= low <= high <= 255:
            raise ValueError("not a range of addresses; lower number first, at most 255")
        ends = [f"{match.group(1)}.{i}/{match.group(4)}" for i in (low, high)]
    elif match_6 is not None:
        low, high = int(match_6.group(2), 16), int(match_6.group(3), 16)
        if not low <= high:
            raise ValueError("not a range of addresses; lower number first, in hexadecimal")
        ends = [f"{match_6.group(1)}{i:x}/{match_6.group(4)}" for i in (low, high)]
    else:
        low = high = 0
        ends = [text]
    first, *others = map(_interface_address, ends)
    # Of a range across networks two in the middle are the last and the first of theirs.
    edged = first.version == 4 and first.network.num_addresses > 2
    if edged and any(last.network != first.network for last in others):
        raise _edge()
    if high - low >= ADDRESSES_MAX:
        what = f"{high - low + 1} addresses are too many for a host"
        raise ValueError(f"{what}; at most {ADDRESSES_MAX}")
    return first, high - low + 1


def parse_route(text: str) -> str:
    """Return ``10.1.0.0/16 via 10.0.0.1`` as the kernel writes it; ValueError says why not."""
    network, via, gateway = text.partition(" via ")
    example = "write for example 10.1.0.0/16 via 10.0.0.1, or via link"
    if not via:
        raise ValueError(f"not a route; {example}")
    try:
        to = ipaddress.ip_network(network)
        gateway_address = None if gateway == ON_LINK else ipaddress.ip_address(gateway)
    except ValueError as error:
        raise ValueError(f"{error}; {example}") from None
    if gateway_address is not None and to.version != gateway_address.version:
        raise ValueError(f"network and gateway are of different families; {example}")
    return f"{to} via {gateway_address or ON_LINK}"


def parse_neighbour(text: str) -> str:
    """Return ``10.0.0.2 02:00:00:00:00:02`` as the kernel writes it; ValueError says why not."""
    example = "write for example 10.0.0.2 02:00:00:00:00:02"
    ip, _, mac = text.partition(" ")
    if _MAC.match(mac.lower()) is None:
        raise ValueError(f"not an address and a MAC; {example}")
    try:
        return f"{ipaddress.ip_address(ip)} {mac.lower()}"
    except ValueError:
        raise ValueError(f"{ip} is not an address; {example}") from None


def _edge() -> ValueError:
    return ValueError("the network or broadcast address; use one in between")


def _interface_address(text: str) -> IPv4Interface | IPv6Interface:
    example = "write for example 192.168.254.1/24 or 192.168.254.1-20/24"
    if "/" not in text:
        raise ValueError(f"the prefix length is missing; {example}")
    try:
        address = ipaddress.ip_interface(text)
    except ValueError:
        raise ValueError(f"not an address with a prefix; {example}") from None
    ip, network = address.ip, address.network
    if ip.is_multicast or ip.is_loopback or ip.is_unspecified or str(ip) == "255.255.255.255":
        raise ValueError("not the address of a host; use a unicast address")
    edges = (network.network_address, network.broadcast_address)
    if network.num_addresses > 2 and ip.version == 4 and ip in edges:
        raise _edge()
    return address
