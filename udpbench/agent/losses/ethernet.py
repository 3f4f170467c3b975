"""Ethernet frames with one flaw each, as bytes; pure.

The kernel's sockets write only correct headers, so frames with invalid headers are built here.
"""

from __future__ import annotations

import struct
from typing import Literal

from udpbench.agent.host.frames import ETHERNET_BYTES, headers, packed_addresses, udp_checksum
from udpbench.model import LossSpec

HOPS = 1
IPV4_CHECKSUM_AT, IPV6_LENGTH_AT = ETHERNET_BYTES + 10, ETHERNET_BYTES + 4
Flaw = Literal["ip_header", "udp_checksum"]


def frame(spec: LossSpec, flaw: Flaw) -> bytes:
    """Return one frame to the spec's port that is correct except for one flaw.

    ``ip_header``: a wrong header checksum (IPv4), or a length beyond the end of the frame (IPv6).
    """
    payload, ports = bytes(spec.size_bytes), (spec.port, spec.port)
    macs, addresses = (spec.source_mac, spec.destination_mac), (spec.source, spec.destination)
    flawed = bytearray(headers(macs, addresses, ports, len(payload), HOPS))
    checksum = udp_checksum(packed_addresses(*addresses), ports, payload)
    if flaw == "udp_checksum":
        checksum = checksum ^ 0x5555 or 1  # never 0, which means not computed
    struct.pack_into("!H", flawed, len(flawed) - 2, checksum)
    if flaw == "ip_header":
        at = IPV4_CHECKSUM_AT if spec.family == 4 else IPV6_LENGTH_AT
        (right,) = struct.unpack_from("!H", flawed, at)
        struct.pack_into("!H", flawed, at, right ^ 0x5555 if spec.family == 4 else right + 100)
    return bytes(flawed) + payload
