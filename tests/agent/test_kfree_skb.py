"""Whose a dropped packet was: the program that counts reasons, on skbs made up by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest
from bpf_machine import Machine

from udpbench.agent.host.bpf.kfree_skb import GROUPS, program

NETNS, ANOTHER = 0xF0000001, 0xF0000002
REASON, PORT = 5, 4321
CONTEXT, SKB, DEVICE, SOCKET, NET, PACKET = (0x1000 * number for number in range(1, 7))
COUNTS, PORTS = 0, 1
HEADROOM = 64


class Types:
    """Where a kernel has its fields, and how many arguments the tracepoint has."""

    offsets: Mapping[str, int] = {
        "sk": 8,
        "dev": 16,
        "protocol": 24,
        "network_header": 26,
        "mac_header": 28,
        "tail": 32,
        "head": 40,
        "__sk_common.skc_net.net": 8,
        "nd_net.net": 8,
        "ns.inum": 4,
    }

    def __init__(self, arguments: int = 5) -> None:
        self.arguments = arguments

    def offset(self, _structure: str, path: str) -> int:
        """Return where a field is."""
        return self.offsets[path]

    def parameters(self, _name: str) -> int:
        """Return the arguments."""
        return self.arguments


def ipv4(protocol: int = 17, fragment: int = 0, options: int = 0) -> bytes:
    """Return an IPv4 header."""
    first = 0x40 | (5 + options)
    head = struct.pack("!BBHHHBBH8s", first, 0, 0, 0, fragment, 64, protocol, 0, b"")
    return head + bytes(4 * options)


def ipv6(following: int = 17) -> bytes:
    """Return an IPv6 header."""
    return struct.pack("!IHBB32s", 0x60000000, 8, following, 64, b"")


def udp(port: int = PORT) -> bytes:
    """Return a UDP header."""
    return struct.pack("!HHHH", 65400, port, 8, 0)


def group(
    headers: bytes,
    protocol: int = 0x0800,
    *,
    network: int | None = HEADROOM,
    mac: int = 0xFFFF,
    holder: str = "receiver",
    netns: int = NETNS,
    types: Types | None = None,
) -> str | None:
    """Return the group in which a drop is counted; None if it is not."""
    memory = bytes(HEADROOM) + headers
    numbers = (protocol, network or 0, mac)
    holds = {name: SOCKET if name == holder else 0 for name in ("receiver", "sender")}
    device = DEVICE if holder == "device" else 0
    skb = struct.pack("=8xQQ", holds["sender"], device)
    skb += struct.pack("=H", 0) if not protocol else struct.pack("!H", protocol)
    skb += struct.pack("=HHxxIxxxxQ", *numbers[1:], len(memory), PACKET)
    context = struct.pack("=QQQQ", SKB, 0, REASON, holds["receiver"])
    machine = Machine(
        {
            CONTEXT: context,
            SKB: skb,
            DEVICE: struct.pack("=8xQ", NET),
            SOCKET: struct.pack("=8xQ", NET),
            NET: struct.pack("=4xI", netns),
            PACKET: memory,
        },
        [dict.fromkeys(range(99), 0), {int.from_bytes(struct.pack("!H", PORT), "little"): 0}],
    )
    if struct.pack("=H", 1) == b"\0\1":
        machine.maps[PORTS] = {PORT: 0}
    chosen = types if types is not None else Types()
    assert 0 == machine.run(program(chosen, COUNTS, PORTS, NETNS), CONTEXT)  # type: ignore[arg-type]
    moved = {key: count for key, count in machine.maps[COUNTS].items() if count}
    if not moved:
        return None
    ((key, count),) = moved.items()
    assert (REASON, 1) == (key // len(GROUPS), count)
    return GROUPS[key % len(GROUPS)].rpartition("_")[2]


OURS, PORTLESS, OTHERS = "reason", "portless", "others"


@pytest.mark.parametrize(
    ("headers", "protocol", "expected"),
    [
        (ipv4() + udp(), 0x0800, OURS),
        (ipv4(options=2) + udp(), 0x0800, OURS),
        (ipv4(fragment=0x2000) + udp(), 0x0800, OURS),
        (ipv6() + udp(), 0x86DD, OURS),
        (ipv4() + udp(4322), 0x0800, OTHERS),
        (ipv6() + udp(4322), 0x86DD, OTHERS),
        (ipv4(protocol=6) + udp(), 0x0800, OTHERS),
        (ipv6(following=58) + udp(), 0x86DD, OTHERS),
        (bytes(28), 0x0806, OTHERS),
        (ipv4(fragment=1) + udp(), 0x0800, PORTLESS),
        (ipv6(following=44) + udp(), 0x86DD, PORTLESS),
        (ipv4() + udp()[:7], 0x0800, PORTLESS),
        (ipv6(), 0x86DD, PORTLESS),
        (ipv6() + udp(), 0x0800, PORTLESS),
        (ipv4() + udp(), 0x86DD, PORTLESS),
        (ipv4() + udp(), 0x8100, PORTLESS),
        (ipv4() + udp(), 0, PORTLESS),
        (b"", 0x0800, PORTLESS),
    ],
)
def test_a_drop_is_ours_by_its_port(headers: bytes, protocol: int, expected: str) -> None:
    """Others' are other ports and protocols; of fragments and short packets nobody knows."""
    assert expected == group(headers, protocol)


def test_what_a_driver_has_just_received_has_only_an_ethernet_header() -> None:
    """Without either the packet is nobody's."""
    frame = bytes(14) + ipv4() + udp()
    assert OURS == group(frame, network=None, mac=HEADROOM)
    assert PORTLESS == group(frame, network=None)


@pytest.mark.parametrize("holder", ["receiver", "device", "sender"])
def test_only_this_namespaces_drops_are_counted(holder: str) -> None:
    """It is that of the receiving socket, of the device, or of the sending socket."""
    assert OURS == group(ipv4() + udp(), holder=holder)
    assert None is group(ipv4() + udp(), holder=holder, netns=ANOTHER)
    assert None is group(ipv4() + udp(), holder="nobody")


def test_before_linux_6_11_the_tracepoint_has_no_socket() -> None:
    """Then the device decides."""
    assert None is group(ipv4() + udp(), types=Types(3))
    assert OURS == group(ipv4() + udp(), types=Types(3), holder="device")
