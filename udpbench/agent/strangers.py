"""Who else sends to the traffic's ports, or has a socket there that may take its packets.

Sends nothing. A sender is heard by a packet socket, which gets a copy of each datagram before the
socket that it is for. What AF_XDP takes never comes by there: its workers have to be closed first.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Optional

from udpbench.agent.host.frames import IPV4, IPV6, UDP
from udpbench.agent.host.socket_options import (
    BPF_EQUAL,
    BPF_RETURN,
    SO_ATTACH_FILTER,
    Instruction,
    attach_filter,
)
from udpbench.agent.host.socket_owners import held_by_others
from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_diag import SocketList
from udpbench.errors import AgentError
from udpbench.model.limits import STRANGERS_MAX
from udpbench.model.record import UdpSocket
from udpbench.model.work import WorkerSpec
from udpbench.protocol import Stranger
from udpbench.ways import way_of

HEARD_BYTES = 128
"""Read of each packet: IP's header with options, and UDP's."""
HEARD_MAX = 1000
"""Packets looked at: a default buffer holds fewer, but a flood refills it meanwhile."""
FRAGMENT_OFFSET = 0x1FFF
# include/uapi/linux/bpf_common.h
_LOAD_BYTE, _LOAD_HALF, _LOAD_HALF_BEHIND, _LOAD_IPV4_BYTES = 0x30, 0x28, 0x48, 0xB1
_IF_MORE, _IF_LEAST, _IF_BITS = 0x25, 0x35, 0x45
_IPV6_BYTES = 40

Endpoint = tuple[bytes, int]
"""Packed address and port."""


def strange_sockets(
    host: Host, workers: Sequence[WorkerSpec], own: Collection[int], pids: Collection[int]
) -> dict[UdpSocket, str]:
    """Return others' sockets that may take the traffic's packets → who has each, and where.

    Given the inodes and the processes of the traffic's own. The kernel prefers a connected socket,
    then one at that very address, then one of the same IP version (net/ipv4/udp.c: compute_score);
    among equal ones, which SO_REUSEPORT allows, it shares out. Of a large number the first; none
    without udp_diag.
    """
    flows = [
        flow
        for spec in workers
        if spec.role == "receiver" and way_of(spec).takes != "frames"
        for flow in spec.flows
        if spec.traffic.protocol == "udp"
    ]
    targets = {(flow.destination, flow.destination_port) for flow in flows}
    peers = {(f.source, f.source_port, f.destination_port) for f in flows}
    with suppress(OSError):
        listed = SocketList({port for _, port in targets}).read().values() if targets else ()
        taking: dict[int, UdpSocket] = {}
        for target in sorted(targets):
            ranks = [(_rank(each, target, peers), each) for each in listed]
            best = max((rank for rank, each in ranks if each.inode in own), default=0)
            others = ((rank, each) for rank, each in ranks if each.inode not in own)
            taking.update((each.inode, each) for rank, each in others if rank >= max(best, 1))
        some = dict(sorted(taking.items())[:STRANGERS_MAX])
        holders = held_by_others(host, some, pids)
        return {some[i]: f"{who} at {_shown(some[i])}" for i, who in holders.items()}
    return {}


def _rank(each: UdpSocket, target: tuple[str, int], peers: Collection[tuple[str, int, int]]) -> int:
    """Return how far the kernel prefers a socket for packets to an address; 0: it gets none."""
    address, port = target
    family = 6 if ":" in address else 4
    mapped = f"::ffff:{address}" if family == 4 else address
    is_exact = each.address in (address, mapped)
    is_heard = each.port == port and (is_exact or each.address in ("0.0.0.0", "::"))  # noqa: S104
    if not is_heard or each.family < family:
        return 0
    connected = each.peer is not None
    source = (each.peer or "").replace("::ffff:", "")
    if connected and (source, each.peer_port, port) not in peers:
        return 0
    return 1 + (each.family == family) + 2 * is_exact + 4 * connected


def _shown(each: UdpSocket) -> str:
    return f"[{each.address}]:{each.port}" if each.family == 6 else f"{each.address}:{each.port}"


class StrangerListener:
    """Listens for datagrams to the traffic's ports that are not of its flows."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._link: Optional[socket.socket] = None
        self._workers: Sequence[WorkerSpec] = ()

    def hear(self, workers: Sequence[WorkerSpec]) -> tuple[Stranger, ...]:
        """Return who was heard since the last call, who sent most first; listen for these workers.

        AgentError without CAP_NET_RAW.
        """
        heard: tuple[Stranger, ...] = ()
        if self._link is not None:
            with self._link:
                heard = self._read(self._link)
            self._link = None
        if workers:
            self._listen(workers)
        return heard

    def _listen(self, workers: Sequence[WorkerSpec]) -> None:
        self._workers = workers
        family = workers[0].traffic.family
        try:
            # Of all interfaces: receivers are bound to none.
            self._link = self._host.packet_socket(None, IPV4 if family == 4 else IPV6)
        except PermissionError as error:
            text = "listening for strangers needs CAP_NET_RAW; run the agent there as root"
            raise AgentError(text) from error
        attach_filter(self._link, SO_ATTACH_FILTER, _to_ports(family, sorted(self._ports)))

    @property
    def _ports(self) -> set[int]:
        return {port for spec in self._workers for port in spec.bind_ports}

    def _read(self, link: socket.socket) -> tuple[Stranger, ...]:
        family = self._workers[0].traffic.family
        inet = socket.AF_INET if family == 4 else socket.AF_INET6
        # Receivers of a host all have the same flows.
        flows = self._workers[0].flows
        own = {(socket.inet_pton(inet, flow.source), flow.source_port) for flow in flows}
        ports = self._ports
        heard = Counter(
            source
            for packet in _packets(link)
            for source, port in _endpoints(family, packet)
            if port in ports and source not in own
        )
        return tuple(
            Stranger(socket.inet_ntop(inet, address), port, packets)
            for (address, port), packets in heard.most_common()
        )


def _packets(link: socket.socket) -> Iterator[bytes]:
    with suppress(OSError):  # none is left, or an interface went down
        for _ in range(HEARD_MAX):
            yield link.recv(HEARD_BYTES, socket.MSG_DONTWAIT)


def _to_ports(family: int, ports: Sequence[int]) -> list[Instruction]:
    """Return a filter that passes UDP to a port between the first and the last, from IP on."""
    protocol_at = 9 if family == 4 else 6
    code: list[tuple[int, Optional[bool], int]] = [
        (_LOAD_BYTE, None, protocol_at),
        (BPF_EQUAL, True, UDP),
    ]
    if family == 4:
        code += [(_LOAD_HALF, None, 6), (_IF_BITS, False, FRAGMENT_OFFSET)]
        code += [(_LOAD_IPV4_BYTES, None, 0), (_LOAD_HALF_BEHIND, None, 2)]
    else:
        code += [(_LOAD_HALF, None, _IPV6_BYTES + 2)]
    code += [(_IF_LEAST, True, ports[0]), (_IF_MORE, False, ports[-1])]
    code += [(BPF_RETURN, None, HEARD_BYTES)]
    end = len(code)
    jumps = ((op, must, value, end - at - 1) for at, (op, must, value) in enumerate(code))
    return [
        *(
            (op, rest if must is False else 0, rest if must else 0, k)
            for op, must, k, rest in jumps
        ),
        (BPF_RETURN, 0, 0, 0),
    ]


def _endpoints(family: int, packet: bytes) -> Iterator[tuple[Endpoint, int]]:
    """Yield the source and the destination port of a packet, if it is UDP and has them."""
    with suppress(struct.error, IndexError):
        if family == 4:
            (fragment,) = struct.unpack_from("!H", packet, 6)
            protocol, udp_at, source = packet[9], 4 * (packet[0] & 15), packet[12:16]
        else:
            fragment, protocol, udp_at, source = 0, packet[6], _IPV6_BYTES, packet[8:24]
        ports = struct.unpack_from("!HH", packet, udp_at)
        if protocol == UDP and fragment & FRAGMENT_OFFSET == 0:
            yield (source, ports[0]), ports[1]
