"""Ethernet, IP and UDP headers as bytes; pure."""

from __future__ import annotations

import socket
import struct

from udpbench.model.limits import UDP_HEADER_BYTES

IPV4, IPV6 = 0x0800, 0x86DD
"""Ethertypes."""
UDP = 17
DONT_FRAGMENT = 0x4000


def headers(
    macs: tuple[str, str],
    addresses: tuple[str, str],
    ports: tuple[int, int],
    payload_bytes: int,
    hops: int,
) -> bytes:
    """Return the headers of a datagram without UDP checksum; each pair is source, destination.

    A datagram that is never fragmented needs no identification (RFC 6864).
    """
    length_bytes = UDP_HEADER_BYTES + payload_bytes
    packed = packed_addresses(*addresses)
    if ":" in addresses[0]:
        ethertype = IPV6
        ip = struct.pack("!IHBB", 6 << 28, length_bytes, UDP, hops) + packed
    else:
        ethertype = IPV4
        fields = (0x45, 0, 20 + length_bytes, 0, DONT_FRAGMENT, hops, UDP)
        start = struct.pack("!BBHHHBB", *fields)
        ip = start + struct.pack("!H", ones_complement(start + bytes(2) + packed)) + packed
    source_mac, destination_mac = (bytes.fromhex(mac.replace(":", "")) for mac in macs)
    ethernet = destination_mac + source_mac + struct.pack("!H", ethertype)
    return ethernet + ip + struct.pack("!HHHH", *ports, length_bytes, 0)


def packed_addresses(source: str, destination: str) -> bytes:
    """Return both addresses as in a header."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    return socket.inet_pton(family, source) + socket.inet_pton(family, destination)


def udp_checksum(addresses: bytes, ports: tuple[int, int], payload: bytes) -> int:
    """Return the checksum of a datagram (RFC 768, RFC 8200 8.1)."""
    length_bytes = UDP_HEADER_BYTES + len(payload)
    pseudo_header = addresses + struct.pack("!HH", UDP, length_bytes)
    datagram = struct.pack("!HHHH", *ports, length_bytes, 0) + payload
    return ones_complement(pseudo_header + datagram) or 0xFFFF


def ones_complement(data: bytes) -> int:
    """Return the Internet checksum of bytes (RFC 1071)."""
    padded = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
