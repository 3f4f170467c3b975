"""Packets that ask a link who uses an address, and what the answers claim; pure.

Neither claims the address for who asks: an ARP probe comes from 0.0.0.0 (RFC 5227), a neighbour
solicitation of duplicate address detection from :: (RFC 4862). Both are without their link header,
and take the address as its bytes.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address
from typing import Optional

BROADCAST = b"\xff" * 6

_ARP = struct.Struct("!HHBBH6s4s6s4s")
_IPV4_OVER_ETHERNET = (1, 0x0800, 6, 4)


def arp_probe(mac: bytes, address: bytes) -> tuple[bytes, bytes]:
    """Return the MAC to send to, and an ARP request."""
    asked = _ARP.pack(*_IPV4_OVER_ETHERNET, 1, mac, bytes(4), bytes(6), address)
    return BROADCAST, asked


def arp_claim(packet: bytes) -> Optional[tuple[IPv4Address, str]]:
    """Return the address and MAC that an ARP packet claims; None where it claims none."""
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
    """Return the MAC to send to, and a neighbour solicitation."""
    group = _SOLICITED_NODE + address[13:]
    asked = _ND.pack(_SOLICITATION, 0, 0, 0, address)
    head = _IPV6.pack(_VERSION_6, len(asked), _ICMPV6, _HOP_LIMIT, bytes(16), group)
    checksum = _checksum(head[8:] + struct.pack("!II", len(asked), _ICMPV6) + asked)
    asked = _ND.pack(_SOLICITATION, 0, checksum, 0, address)
    return b"\x33\x33" + group[12:], head + asked


def nd_claim(packet: bytes) -> Optional[tuple[IPv6Address, str]]:
    """Return the address and MAC that a neighbour advertisement claims; None for all else."""
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
