"""Frames with one flaw each: right in all but that."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace

import pytest

from udpbench.agent.host.frames import ones_complement
from udpbench.agent.losses.inject import flawed_frame
from udpbench.model.work import LossSpec

V4 = LossSpec(
    "rx_ip",
    1,
    1,
    33,
    4,
    "10.0.0.30",
    "10.0.0.1",
    64109,
    "02:00:00:00:00:01",
    "02:00:00:00:00:02",
    False,
)
V6 = replace(V4, family=6, source="fd00::30", destination="fd00::1")


def ip_header(packet: bytes, spec: LossSpec) -> bytes:
    """Return the IP header of a frame."""
    return packet[14 : 14 + (20 if spec.family == 4 else 40)]


def udp_sum(packet: bytes, spec: LossSpec) -> int:
    """Return what the receiver computes over pseudo header and datagram: 0 where it is right."""
    header = ip_header(packet, spec)
    datagram = packet[14 + len(header) :]
    addresses = header[12:20] if spec.family == 4 else header[8:40]
    return ones_complement(addresses + struct.pack("!HH", 17, len(datagram)) + datagram)


@pytest.mark.parametrize("spec", [V4, V6])
def test_a_wrong_udp_checksum_is_the_only_flaw(spec: LossSpec) -> None:
    """Addresses, lengths and the IP header are right."""
    packet = flawed_frame(spec, "udp_checksum")
    assert bytes.fromhex("020000000002020000000001") == packet[:12]
    assert 0 != udp_sum(packet, spec)
    header = ip_header(packet, spec)
    if spec.family == 4:
        assert (0, len(packet) - 14) == (
            ones_complement(header),
            struct.unpack("!H", header[2:4])[0],
        )
    else:
        assert len(packet) - 54 == struct.unpack("!H", header[4:6])[0]
    ports = struct.unpack("!HHH", packet[14 + len(header) :][:6])
    assert (spec.port, spec.port, 8 + spec.size_bytes) == ports


def test_an_ipv4_header_is_refused_for_its_checksum_alone() -> None:
    """The datagram within is right."""
    packet = flawed_frame(V4, "ip_header")
    assert 0 != ones_complement(ip_header(packet, V4))
    assert 0 == udp_sum(packet, V4)


def test_an_ipv6_header_is_refused_for_its_length_alone() -> None:
    """IPv6 has no header checksum; it says there were more than there is."""
    packet = flawed_frame(V6, "ip_header")
    assert len(packet) - 54 < struct.unpack("!H", ip_header(packet, V6)[4:6])[0]
    assert 0 == udp_sum(packet, V6)
    assert socket.inet_pton(socket.AF_INET6, "fd00::30") == ip_header(packet, V6)[8:24]


def test_the_internet_checksum_is_that_of_its_rfc() -> None:
    """The example of RFC 1071, section 3."""
    assert 0xFFFF - 0xDDF2 == ones_complement(bytes.fromhex("0001f203f4f5f6f7"))
