"""Packets lost on purpose: the sockets that receive them, and the calls that send them.

Sends only to addresses proven for the trial's own workers, and counts like a worker what it sent
and what arrived after all. A setting, or a socket opened here, causes the loss.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Literal, Optional

from udpbench.agent.host.frames import headers, packed_addresses, udp_checksum
from udpbench.agent.host.socket_options import (
    IP_RECVERR,
    SO_RCVBUFFORCE,
    SO_SNDBUFFORCE,
    SOL_UDP,
    TRAP_PRIORITY,
    UDP_GRO,
    UDP_SEGMENT,
    bind_to_device,
    force_buffer,
    inode,
    refuse_all,
)
from udpbench.agent.host.system import Host
from udpbench.agent.losses.udp_memory import HeldMemory
from udpbench.errors import AgentError, in_words
from udpbench.model.limits import ETHERNET_BYTES, MAX_PAYLOAD_BYTES
from udpbench.model.record import WorkerStats
from udpbench.model.work import LossSpec

SINKS = (
    "rx_backlog",
    "udp_checksum",
    "udp_filter",
    "udp_rcvbuf",
    "udp_memory",
    "udp_purged",
    "app_truncated",
)
"""Stages that need an open socket, or come after one on the path."""
RAW = {
    "fwd_bridge": "station",
    "fwd_decap": "",
    "rx_ip": "ip_header",
    "udp_checksum": "udp_checksum",
}
"""Stage → the flaw of its frames, which a UDP socket cannot send; none but their address."""
SO_PEEK_OFF = 42
WHOLE = {4: (socket.IPPROTO_IP, 10, 3), 6: (socket.IPPROTO_IPV6, 23, 3)}
"""IP version → its MTU_DISCOVER as PMTUDISC_PROBE: no fragments, whatever a router has answered."""
SIOCOUTQ = 0x5411
BUFFER_BYTES = 4 * 2**20
BURST = 32
"""Messages between two waits for the kernel: fewer than a veth's ring holds."""
FILLING = 64
"""Datagrams sufficient to fill the smallest receive buffer the kernel allows (2304 B)."""
BACKLOG_SEGMENTS = 32
"""Maximum per message; the first goes to the backlog, which is full for all others.

Before Linux 5.16 64 packets are refused, since their headers count, too (docs/kernel.md).
"""
TAKEN_UP_S = 5.0
GONE = (errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENODEV, errno.ENXIO)
"""Errors of a send once the interface is down, has lost its routes, or is gone."""
HOPS = 1
IPV4_CHECKSUM_AT, IPV6_LENGTH_AT = ETHERNET_BYTES + 10, ETHERNET_BYTES + 4
NOBODY = "02:75:62:ff:ff:ff"
"""A MAC that no host of a built-in lab has."""
Flaw = Literal["", "ip_header", "station", "udp_checksum"]


class LossInjector:
    """The losses of one trial on one host."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._name = name
        self._sinks: dict[str, Sink] = {}
        self._specs: dict[str, LossSpec] = {}
        self._held = HeldMemory(host)

    def prepare(self, specs: Sequence[LossSpec], role: str, interface: str) -> None:
        """Open the sockets that receive the packets; a sender fills those that must be full."""
        self.close()
        self._specs = {spec.stage: spec for spec in specs}
        self._interface = interface
        if role == "receiver":
            for spec in specs:
                if spec.stage in SINKS:
                    self._sinks[spec.stage] = Sink(spec)
            if "udp_memory" in self._specs:
                self._held.hold()
        elif "udp_rcvbuf" in self._specs:
            spec = self._specs["udp_rcvbuf"]
            Source(self._host, spec, interface).send([1] * FILLING)

    def send(self, stage: str) -> WorkerStats:
        """Send a stage's packets and return once none is in transit."""
        spec = self._specs[stage]
        source = Source(self._host, spec, self._interface)
        counts = source.send(messages(spec))
        return WorkerStats(f"{self._name}.loss_{stage}", "sender", None, counts)

    def collect(self) -> tuple[WorkerStats, ...]:
        """Return what arrived after all, and what was discarded with a closed socket."""
        return tuple(
            WorkerStats(
                f"{self._name}.loss_{stage}",
                "receiver",
                None,
                sink.collect(),
                socket_inodes=(sink.inode,),
            )
            for stage, sink in self._sinks.items()
        )

    def inodes(self) -> tuple[int, ...]:
        """Return the inode numbers of the open sockets."""
        return tuple(sink.inode for sink in self._sinks.values())

    def close(self) -> None:
        """Close every socket."""
        for sink in self._sinks.values():
            sink.close()
        self._held.close()
        self._sinks, self._specs = {}, {}


def messages(spec: LossSpec) -> list[int]:
    """Return the number of packets in each message that is sent for a loss."""
    if spec.stage == "rx_backlog":
        each = min(BACKLOG_SEGMENTS, MAX_PAYLOAD_BYTES // max(spec.size_bytes, 1)) - 1
        sizes = [each] * (spec.packets // each)
        rest = spec.packets % each
        return [size + 1 for size in sizes + ([rest] if rest else [])]
    whole, rest = divmod(spec.packets, spec.segments)
    return [spec.segments] * whole + ([rest] if rest else [])


class Source:
    """Sends the packets of one loss."""

    def __init__(self, host: Host, spec: LossSpec, interface: str) -> None:
        self._host = host
        self._spec = spec
        self._interface = interface

    def send(self, sizes: Sequence[int]) -> dict[str, int]:
        """Send one message per size, in packets; AgentError if the kernel refuses one."""
        counts = dict.fromkeys(("attempted_packets", "sent_packets", "sent_messages"), 0)
        counts.update(send_calls=0, eperm=0)
        try:
            sock = self._open()
        except OSError as error:
            what = f"losses.{self._spec.stage}: no socket on {self._interface}: {error.strerror}"
            raise AgentError(
                f"{what}; check that the interface exists and has its address"
            ) from error
        with sock:
            for number, size in enumerate(sizes, start=1):
                self._send_message(sock, size, counts)
                if number % BURST == 0 or number == len(sizes):
                    self._await_taken_up(sock)
        return counts

    def _send_message(self, sock: socket.socket, size: int, counts: dict[str, int]) -> None:
        counts["attempted_packets"] += size
        counts["send_calls"] += 1
        try:
            self._call(sock, size)
        except PermissionError:
            counts["eperm"] += size
        except OSError as error:
            if error.errno not in GONE:
                what = f"losses.{self._spec.stage}: cannot be sent: {in_words(error)}"
                raise AgentError(what) from error
            counts["other_errors"] = counts.get("other_errors", 0) + size
            counts["last_errno"] = error.errno
        else:
            counts["sent_packets"] += size
            counts["sent_messages"] += 1

    def _call(self, sock: socket.socket, size: int) -> None:
        spec = self._spec
        if _is_raw(spec):
            sock.send(flawed_frame(spec, RAW[spec.stage]))  # type: ignore[arg-type]
            return
        payload = bytes(spec.size_bytes * size)
        segment = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", spec.size_bytes))] if size > 1 else []
        # Not connected: an ICMP error from a closed port would fail the next call.
        sock.sendmsg([payload], segment, 0, (spec.destination, spec.port))

    def _open(self) -> socket.socket:
        spec = self._spec
        if _is_raw(spec):
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            sock.bind((self._interface, 0))
            return sock
        sock = udp_socket(spec)
        bind_to_device(sock, self._interface)
        force_buffer(sock, SO_SNDBUFFORCE, socket.SO_SNDBUF, BUFFER_BYTES)
        if spec.family == 4:
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 0)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, spec.hops)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, spec.hops)
        if spec.whole:
            sock.setsockopt(*WHOLE[spec.family])
        if spec.stage == "tx_qdisc":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, TRAP_PRIORITY)
        sock.bind((spec.source, spec.port))
        return sock

    def _await_taken_up(self, sock: socket.socket) -> None:
        """Wait until the kernel has dropped every packet or queued it for a reader.

        Until then it is charged to the sending socket.
        """

        def taken_up() -> bool:
            waiting = ctypes.c_int(0)
            fcntl.ioctl(sock, SIOCOUTQ, waiting)
            return waiting.value == 0

        what = f"packets of losses.{self._spec.stage} are still in transit"
        self._host.wait_for(what, taken_up, TAKEN_UP_S)


class Sink:
    """The socket that drops a loss's packets, or reads those that arrive after all."""

    def __init__(self, spec: LossSpec) -> None:
        self._spec = spec
        self.sock: Optional[socket.socket] = udp_socket(spec)
        sock = self.sock
        sock.setblocking(False)
        self.inode = inode(sock)
        small = spec.stage == "udp_rcvbuf"
        force_buffer(sock, SO_RCVBUFFORCE, socket.SO_RCVBUF, 1 if small else BUFFER_BYTES)
        if spec.gro and spec.stage in ("udp_filter", "udp_rcvbuf", "udp_memory"):
            sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        if spec.stage == "udp_filter":
            refuse_all(sock)
        sock.bind(("" if spec.family == 4 else "::", spec.port))

    def collect(self) -> dict[str, int]:
        """Read or discard the queued packets, and return what happened to them."""
        sock, stage = self.sock, self._spec.stage
        if sock is None or stage == "udp_rcvbuf":
            return {}  # filled before counting began
        if stage == "udp_purged":  # closed only after its drops were read
            return {"purged_packets": queued(sock)}
        truncated = list(_read(sock, 1 if stage == "app_truncated" else self._spec.size_bytes))
        cut = sum(truncated)
        read = {"read_packets": len(truncated), "read_messages": len(truncated)}
        return {**read, "truncated_packets": cut, "received_packets": len(truncated) - cut}

    def close(self) -> None:
        """Close the socket and discard its queue."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def _is_raw(spec: LossSpec) -> bool:
    """Return whether its frames are made here; of others only their addresses differ."""
    return spec.stage in RAW and (spec.stage != "fwd_decap" or bool(spec.destination_mac))


def udp_socket(spec: LossSpec) -> socket.socket:
    """Return a UDP socket of the spec's family."""
    family = socket.AF_INET if spec.family == 4 else socket.AF_INET6
    return socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)


def queued(sock: socket.socket) -> int:
    """Return how many datagrams are queued in a socket, by peeking at each.

    With SO_PEEK_OFF every peek starts where the previous one ended (net/core/datagram.c).
    """
    sock.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
    return sum(1 for _ in _read(sock, 2**16, socket.MSG_PEEK))


def _read(sock: socket.socket, room_bytes: int, flags: int = 0) -> Iterator[bool]:
    """Read until the queue is empty; yield for each datagram whether it was truncated."""
    while True:
        try:
            _, _, flags_read, _ = sock.recvmsg(room_bytes, 0, flags)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                continue
            raise
        yield bool(flags_read & socket.MSG_TRUNC)


def flawed_frame(spec: LossSpec, flaw: Flaw) -> bytes:
    """Return one frame to the spec's port that is correct except for one flaw.

    ``ip_header``: a wrong header checksum (IPv4), or a length beyond the end of the frame (IPv6).
    ``station``: it is to a MAC that nobody has.
    """
    payload, ports = bytes(spec.size_bytes), (spec.port, spec.port)
    to = NOBODY if flaw == "station" else spec.destination_mac
    macs, addresses = (spec.source_mac, to), (spec.source, spec.destination)
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
