"""Counts the kernel's drop reasons in one network namespace by a BPF program.

The program is attached to the tracepoint ``kfree_skb`` while this process holds it. Datagrams to
given ports are counted separately. It counts skbs, not packets, and sees neither drops before an
skb exists nor drops of a card.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.bpf.btf import Types
from udpbench.agent.host.bpf.instructions import (
    ADD,
    ADD_REGISTER,
    ADD_TO_MEMORY,
    AND,
    COPY,
    FRAME,
    IF_EQUAL,
    IF_GREATER,
    IF_NOT,
    IF_WORD_NOT,
    IPV4,
    IPV6,
    LOAD_BYTE,
    LOAD_HALF,
    LOAD_LONG,
    LOAD_WORD,
    SET,
    SHIFT_LEFT,
    SHIFT_RIGHT,
    STORE_LONG_VALUE,
    STORE_WORD,
    TIMES,
    UDP,
    Code,
    Jump,
    assemble,
    look_up,
    network,
    op,
    passes,
    read_kernel,
    signed,
)
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.cpu_lists import parse_cpu_list
from udpbench.model.limits import ETHERNET_BYTES

TYPES = "/sys/kernel/btf/vmlinux"
REASONS_MAX = 1024
"""Higher numbers belong to subsystems: Wi-Fi and Open vSwitch (include/net/dropreason.h)."""
PREFIX = "SKB_DROP_REASON_"
SOCKET_PARAMETERS = 5
"""Arguments of the tracepoint since Linux 6.11; the last is the receiving socket."""
GROUPS = ("reason", "reason_portless", "reason_others")
"""Datagrams to the ports; possible ones, whose ports cannot be read; everything else."""
OURS, PORTLESS, OTHERS = range(len(GROUPS))
VLAN, VLAN_OF_PROVIDER, TCP, ICMP_6 = 0x8100, 0x88A8, 6, 58
NO_OFFSET = 0xFFFF
"""Offset of a header that was never set (skb_mac_header_was_set)."""
KEY, VALUE, HEAD, HEADER = -4, -16, -24, -40
TAIL, NETNS, AT, PROTOCOL, STACK = -44, -48, -50, -52, -56
"""Offsets on the program's stack."""
CONTEXT, OFFSET, PLACE, GROUP = 6, 7, 8, 9
"""Callee-saved registers."""


class DropReasons:
    """Drop reasons of one namespace from now on, separately for datagrams to given ports."""

    def __init__(self, host: Host, ports: Collection[int]) -> None:
        types = Types(host.path(TYPES).read_bytes())
        self.ports = sorted(ports)
        self._names = {
            number: name[len(PREFIX) :]
            for number, name in types.values("skb_drop_reason").items()
            if name.startswith(PREFIX) and 0 <= number < REASONS_MAX
        }
        self._cpus = len(parse_cpu_list(host.read_text("/sys/devices/system/cpu/possible")))
        self._entries = (max(self._names) + 1) * len(GROUPS)
        self._open: list[int] = []
        try:
            self._array = self._kept(bpf.create_map(bpf.PERCPU_ARRAY, self._entries))
            table = self._kept(bpf.create_map(bpf.HASH, len(ports)))
            bpf.fill(table, (network(port) for port in self.ports))
            code = program(types, self._array, table, host.netns())
            loaded = self._kept(bpf.load(bpf.RAW_TRACEPOINT, code, "udpb_why"))
            self._kept(bpf.open_raw_tracepoint("kfree_skb", loaded))
        except BaseException:
            self.close()
            raise

    def _kept(self, descriptor: int) -> int:
        self._open.append(descriptor)
        return descriptor

    def counts(self) -> dict[str, int]:
        """Return ``reason.NO_SOCKET`` and the like: skbs dropped since this object was created."""
        counted = bpf.read_per_cpu(self._array, self._entries, self._cpus)
        return {
            f"{group}.{name}": counted[number * len(GROUPS) + index]
            for index, group in enumerate(GROUPS)
            for number, name in self._names.items()
        }

    def close(self) -> None:
        """Detach the program."""
        while self._open:
            os.close(self._open.pop())


def program(types: Types, counts: int, ports: int, netns: int) -> bytes:
    """Return a program that counts drops in the namespace by reason and group."""
    zeroes = (op(STORE_LONG_VALUE, FRAME, offset=at) for at in range(-8, STACK - 1, -8))
    return assemble(
        [
            op(COPY, CONTEXT, 1),
            *zeroes,
            *_namespace(types),
            op(LOAD_WORD, 3, FRAME, NETNS),
            Jump("end", IF_WORD_NOT, 3, signed(netns)),
            op(SET, GROUP, value=PORTLESS),
            *_find_header(types),
            *_find_ports(ports),
            "count",
            _argument(2),
            op(TIMES, 3, value=len(GROUPS)),
            op(ADD_REGISTER, 3, GROUP),
            op(STORE_WORD, FRAME, 3, KEY),
            look_up(counts, KEY),
            Jump("end", IF_EQUAL, 0, 0),
            op(SET, 1, value=1),
            op(ADD_TO_MEMORY, 0, 1),
            "end",
            passes(0),
        ]
    )


def _argument(index: int) -> bytes:
    return op(LOAD_LONG, 3, CONTEXT, 8 * index)


def _namespace(types: Types) -> list[Code]:
    """Return code that reads a drop's namespace.

    It is taken from the receiving socket if there is one, else from the device, else from the
    sending socket: the device field is reused once a datagram is queued (sk_buff.dev_scratch), and
    empty before routing.
    """
    of_socket = read_kernel(VALUE, 8, types.offset("sock", "__sk_common.skc_net.net"))
    value = op(LOAD_LONG, 3, FRAME, VALUE)
    code: list[Code] = []
    if types.parameters("btf_trace_kfree_skb") >= SOCKET_PARAMETERS:
        code += [_argument(3), Jump("no receiver", IF_EQUAL, 3, 0), of_socket, Jump("known")]
    return [
        *code,
        "no receiver",
        _argument(0),
        read_kernel(VALUE, 8, types.offset("sk_buff", "dev")),
        value,
        Jump("no device", IF_EQUAL, 3, 0),
        read_kernel(VALUE, 8, types.offset("net_device", "nd_net.net")),
        Jump("known"),
        "no device",
        _argument(0),
        read_kernel(VALUE, 8, types.offset("sk_buff", "sk")),
        value,
        of_socket,
        "known",
        value,
        read_kernel(NETNS, 4, types.offset("net", "ns.inum")),
    ]


def _find_header(types: Types) -> list[Code]:
    """Return code that finds an skb's IP header and reads its start.

    Its offset is set once the IP layer has built or seen it; a packet that a driver has just
    received has only the offset of its Ethernet header.
    """
    fields = {"protocol": (PROTOCOL, 2), "head": (HEAD, 8), "tail": (TAIL, 4)}
    code: list[Code] = []
    for field, (at, size_bytes) in {**fields, "network_header": (AT, 2)}.items():
        code += [_argument(0), read_kernel(at, size_bytes, types.offset("sk_buff", field))]
    return [
        *code,
        op(LOAD_HALF, OFFSET, FRAME, AT),
        Jump("at header", IF_NOT, OFFSET, 0),
        _argument(0),
        read_kernel(AT, 2, types.offset("sk_buff", "mac_header")),
        op(LOAD_HALF, OFFSET, FRAME, AT),
        Jump("count", IF_EQUAL, OFFSET, NO_OFFSET),
        op(ADD, OFFSET, value=ETHERNET_BYTES),
        "at header",
        op(LOAD_LONG, PLACE, FRAME, HEAD),
        op(ADD_REGISTER, PLACE, OFFSET),
        op(COPY, 3, PLACE),
        read_kernel(HEADER, 12),
    ]


def _find_ports(ports: int) -> list[Code]:
    """Return code that selects the group by the IP header and the UDP port."""

    def header(at: int, load: int = LOAD_BYTE) -> bytes:
        return op(load, 1, FRAME, HEADER + at)

    version = header(0) + op(COPY, 2, 1) + op(SHIFT_RIGHT, 1, value=4)
    return [
        op(LOAD_HALF, 1, FRAME, PROTOCOL),
        Jump("IPv4", IF_EQUAL, 1, network(IPV4)),
        Jump("IPv6", IF_EQUAL, 1, network(IPV6)),
        *(Jump("count", IF_EQUAL, 1, network(kind)) for kind in (0, VLAN, VLAN_OF_PROVIDER)),
        Jump("others"),
        "IPv4",
        version,
        Jump("count", IF_NOT, 1, 4),
        header(9),
        Jump("others", IF_NOT, 1, UDP),
        header(6, LOAD_HALF),
        op(AND, 1, value=network(0x1FFF)),
        Jump("count", IF_NOT, 1, 0),  # a fragment after the first
        op(AND, 2, value=15),
        op(SHIFT_LEFT, 2, value=2),
        Jump("UDP"),
        "IPv6",
        version,
        Jump("count", IF_NOT, 1, 6),
        op(SET, 2, value=40),
        header(6),
        Jump("UDP", IF_EQUAL, 1, UDP),
        *(Jump("others", IF_EQUAL, 1, kind) for kind in (TCP, ICMP_6)),
        Jump("count"),
        "UDP",
        op(ADD_REGISTER, OFFSET, 2),
        op(ADD_REGISTER, PLACE, 2),
        op(ADD, OFFSET, value=8),
        op(LOAD_WORD, 1, FRAME, TAIL),
        Jump("count", IF_GREATER, OFFSET, other=1),
        op(COPY, 3, PLACE),
        read_kernel(AT, 2, 2),
        op(LOAD_HALF, 1, FRAME, AT),
        op(STORE_WORD, FRAME, 1, KEY),
        look_up(ports, KEY),
        op(SET, GROUP, value=OURS),
        Jump("count", IF_NOT, 0, 0),
        "others",
        op(SET, GROUP, value=OTHERS),
    ]
