"""Packets lost on purpose: the ports that wait for them, and the calls that send them.

Sends to addresses that were proven for the trial's own workers, and counts what it sent and what
arrived all the same, as workers do. What makes a packet die is a setting, or a socket of here.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Optional

from udpbench.agent.frames import frame
from udpbench.agent.host import Host
from udpbench.agent.settings.trap import PRIORITY
from udpbench.agent.sockets import IP_RECVERR, SO_RCVBUFFORCE, SO_SNDBUFFORCE, inode
from udpbench.errors import AgentError
from udpbench.model import MAX_PAYLOAD_BYTES, FaultSpec, WorkerStats

SINKS = (
    "rx_backlog",
    "udp_checksum",
    "udp_filter",
    "udp_rcvbuf",
    "udp_memory",
    "udp_purged",
    "app_truncated",
)
"""Stages at which, or behind which, a socket must be open."""
RAW = {"rx_ip": "ip_header", "udp_checksum": "udp_checksum"}
"""Stage → what is wrong with its frames, which no UDP socket would send."""
SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
SO_ATTACH_FILTER, SO_PEEK_OFF = 26, 42
SIOCOUTQ = 0x5411
BUFFER_BYTES = 4 * 2**20
BURST = 32
"""Messages between two looks whether all have been taken up: fewer than a veth's ring holds."""
FILLING = 64
"""Datagrams that fill the smallest receive buffer the kernel allows (2304 B) for sure."""
BACKLOG_SEGMENTS = 64
"""Of one message at most; the first is taken into the backlog, all others find it full."""
TAKEN_UP_S = 5.0


class Faults:
    """The faults of one trial on one host."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._name = name
        self._sinks: dict[str, Sink] = {}
        self._specs: dict[str, FaultSpec] = {}

    def prepare(self, specs: Sequence[FaultSpec], role: str, interface: str) -> None:
        """Open what waits for the packets; a sender fills what must be full before."""
        self.close()
        self._specs = {spec.stage: spec for spec in specs}
        self._interface = interface
        if role == "receiver":
            for spec in specs:
                if spec.stage in SINKS:
                    self._sinks[spec.stage] = Sink(spec)
        elif "udp_rcvbuf" in self._specs:
            spec = self._specs["udp_rcvbuf"]
            Source(self._host, spec, interface).send([1] * FILLING)

    def send(self, stage: str) -> WorkerStats:
        """Send a stage's packets, and return once nothing of them is under way any more."""
        spec = self._specs[stage]
        source = Source(self._host, spec, self._interface)
        counts = source.send(messages(spec))
        return WorkerStats(f"{self._name}.fault_{stage}", "sender", None, counts)

    def take(self) -> tuple[WorkerStats, ...]:
        """Return what arrived all the same, and what was thrown away with a closed socket."""
        return tuple(
            WorkerStats(
                f"{self._name}.fault_{stage}",
                "receiver",
                None,
                sink.take(),
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
        self._sinks, self._specs = {}, {}


def messages(spec: FaultSpec) -> list[int]:
    """Return the packets of each message that is sent for a fault."""
    if spec.stage == "rx_backlog":
        each = min(BACKLOG_SEGMENTS, MAX_PAYLOAD_BYTES // max(spec.size_bytes, 1)) - 1
        sizes = [each] * (spec.packets // each)
        rest = spec.packets % each
        return [size + 1 for size in sizes + ([rest] if rest else [])]
    whole, rest = divmod(spec.packets, spec.segments)
    return [spec.segments] * whole + ([rest] if rest else [])


class Source:
    """What sends the packets of one fault."""

    def __init__(self, host: Host, spec: FaultSpec, interface: str) -> None:
        self._host = host
        self._spec = spec
        self._interface = interface

    def send(self, sizes: Sequence[int]) -> dict[str, int]:
        """Send messages of so many packets each; AgentError where they are not taken up."""
        counts = dict.fromkeys(("attempted_packets", "sent_packets", "sent_messages"), 0)
        counts.update(send_calls=0, eperm=0)
        with self._open() as opened:
            for number, size in enumerate(sizes, start=1):
                self._send_one(opened, size, counts)
                if number % BURST == 0 or number == len(sizes):
                    self._await_taken_up(opened)
        return counts

    def _send_one(self, opened: socket.socket, size: int, counts: dict[str, int]) -> None:
        counts["attempted_packets"] += size
        counts["send_calls"] += 1
        try:
            self._call(opened, size)
        except PermissionError:
            counts["eperm"] += size
        except OSError as error:
            what = f"faults.{self._spec.stage}: cannot be sent: {error.strerror}"
            raise AgentError(what) from error
        else:
            counts["sent_packets"] += size
            counts["sent_messages"] += 1

    def _call(self, opened: socket.socket, size: int) -> None:
        spec = self._spec
        if spec.stage in RAW:
            opened.send(frame(spec, RAW[spec.stage]))  # type: ignore[arg-type]
            return
        payload = bytes(spec.size_bytes * size)
        segment = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", spec.size_bytes))] if size > 1 else []
        # Not connected: an ICMP answer from a closed port would be the next call's error.
        opened.sendmsg([payload], segment, 0, (spec.destination, spec.port))

    def _open(self) -> socket.socket:
        spec = self._spec
        if spec.stage in RAW:
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            made.bind((self._interface, 0))
            return made
        made = udp_socket(spec)
        _set_buffer(made, SO_SNDBUFFORCE, socket.SO_SNDBUF, BUFFER_BYTES)
        if spec.family == 4:
            made.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 0)
            made.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
        if spec.stage == "tx_qdisc":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, PRIORITY)
        made.bind((spec.source, spec.port))
        return made

    def _await_taken_up(self, opened: socket.socket) -> None:
        """Wait until the kernel has let go of every packet: dropped it, or queued it for a reader.

        Until then it is charged to the socket that sent it.
        """

        def taken_up() -> bool:
            waiting = ctypes.c_int(0)
            fcntl.ioctl(opened, SIOCOUTQ, waiting)
            return waiting.value == 0

        what = f"that the packets of faults.{self._spec.stage} were taken up"
        self._host.wait_for(what, taken_up, TAKEN_UP_S)


class Sink:
    """The socket at which a fault's packets die, or that reads those which do not."""

    def __init__(self, spec: FaultSpec) -> None:
        self._spec = spec
        self.opened: Optional[socket.socket] = udp_socket(spec)
        made = self.opened
        made.setblocking(False)
        self.inode = inode(made)
        small = spec.stage == "udp_rcvbuf"
        _set_buffer(made, SO_RCVBUFFORCE, socket.SO_RCVBUF, 1 if small else BUFFER_BYTES)
        if spec.gro and spec.stage in ("udp_filter", "udp_rcvbuf", "udp_memory"):
            made.setsockopt(SOL_UDP, UDP_GRO, 1)
        if spec.stage == "udp_filter":
            _drop_everything(made)
        made.bind(("" if spec.family == 4 else "::", spec.port))

    def take(self) -> dict[str, int]:
        """Read what waits, or throw it away, and return what happened to it."""
        made, stage = self.opened, self._spec.stage
        if made is None or stage == "udp_rcvbuf":
            return {}  # what fills it was sent before anything was counted
        if stage == "udp_purged":
            purged = queued(made)
            self.close()
            return {"purged_packets": purged}
        lengths = list(_read(made, 1 if stage == "app_truncated" else self._spec.size_bytes))
        cut = sum(cut_off for cut_off in lengths)
        found = {"read_packets": len(lengths), "read_messages": len(lengths)}
        return {**found, "truncated_packets": cut, "received_packets": len(lengths) - cut}

    def close(self) -> None:
        """Close the socket; what waits in it is gone."""
        if self.opened is not None:
            self.opened.close()
            self.opened = None


def udp_socket(spec: FaultSpec) -> socket.socket:
    """Return a UDP socket of the spec's family."""
    family = socket.AF_INET if spec.family == 4 else socket.AF_INET6
    return socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)


def _set_buffer(of: socket.socket, force: int, plain: int, size_bytes: int) -> None:
    """Ask for a buffer of any size, or of what a user without the right to that may have."""
    try:
        of.setsockopt(socket.SOL_SOCKET, force, size_bytes)
    except PermissionError:
        of.setsockopt(socket.SOL_SOCKET, plain, size_bytes)


def queued(of: socket.socket) -> int:
    """Return how many datagrams wait in a socket, without reading any: by peeking at each.

    With SO_PEEK_OFF every look begins where the one before ended (net/core/datagram.c).
    """
    of.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
    return sum(1 for _ in _read(of, 2**16, socket.MSG_PEEK))


def _read(of: socket.socket, room_bytes: int, flags: int = 0) -> Iterator[bool]:
    """Read until nothing waits, and yield for each datagram whether it was cut off."""
    while True:
        try:
            _, _, told, _ = of.recvmsg(room_bytes, 0, flags)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                continue
            raise
        yield bool(told & socket.MSG_TRUNC)


def _drop_everything(of: socket.socket) -> None:
    """Attach a filter whose one instruction keeps nothing of any datagram (BPF_RET | BPF_K, 0)."""
    instruction = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0), 8)
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    of.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
