"""Ethernet frames with one flaw each, as bytes; pure, nothing is sent here.

The kernel's own sockets write correct headers, so what is refused for
its header is made here.
"""

from __future__ import annotations

import socket
import struct
from typing import Literal

from udpbench.model import LossSpec

ETHERTYPES = {4: 0x0800, 6: 0x86DD}
UDP = 17
HOPS = 1
UDP_HEADER_BYTES = 8
Flaw = Literal["ip_header", "udp_checksum"]


def frame(spec: LossSpec, flaw: Flaw) -> bytes:
    """Return one frame to the spec's port that is correct but for one flaw.

    ``ip_header``: over IPv4 a wrong header checksum, over IPv6 a length beyond the frame's end.
    """
    payload = bytes(spec.size_bytes)
    addresses = _addresses(spec)
    checksum = udp_checksum(addresses, spec.port, payload)
    if flaw == "udp_checksum":
        checksum = checksum ^ 0x5555 or 1  # never 0, which is: not computed
    length_bytes = UDP_HEADER_BYTES + len(payload)
    datagram = struct.pack("!HHHH", spec.port, spec.port, length_bytes, checksum) + payload
    header = _ipv4 if spec.family == 4 else _ipv6
    ethernet = _mac(spec.destination_mac) + _mac(spec.source_mac)
    ethernet += struct.pack("!H", ETHERTYPES[spec.family])
    return ethernet + header(addresses, len(datagram), flaw == "ip_header") + datagram


def _addresses(spec: LossSpec) -> bytes:
    kind = socket.AF_INET if spec.family == 4 else socket.AF_INET6
    return socket.inet_pton(kind, spec.source) + socket.inet_pton(kind, spec.destination)


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _ipv4(addresses: bytes, length_bytes: int, wrong: bool) -> bytes:
    start = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length_bytes, 0, 0x4000, HOPS, UDP, 0)
    checksum = ones_complement(start + addresses)
    if wrong:
        checksum ^= 0x5555
    return start[:-2] + struct.pack("!H", checksum) + addresses


def _ipv6(addresses: bytes, length_bytes: int, wrong: bool) -> bytes:
    beyond_bytes = 100 if wrong else 0
    return struct.pack("!IHBB", 6 << 28, length_bytes + beyond_bytes, UDP, HOPS) + addresses


def udp_checksum(addresses: bytes, port: int, payload: bytes) -> int:
    """Return the checksum of a datagram from a port to the same port (RFC 768, RFC 8200 8.1)."""
    length_bytes = UDP_HEADER_BYTES + len(payload)
    pseudo_header = addresses + struct.pack("!HH", UDP, length_bytes)
    datagram = struct.pack("!HHHH", port, port, length_bytes, 0) + payload
    return ones_complement(pseudo_header + datagram) or 0xFFFF


def ones_complement(data: bytes) -> int:
    """Return the Internet checksum of bytes (RFC 1071)."""
    padded = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
