"""The sockets that workers send and receive on, with every option set and read back.

Runs in the worker process, in the thread that will use the socket, after that thread was pinned.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any, Optional

# Numbers of include/uapi/linux/{in,in6,udp,filter}.h and asm-generic/socket.h that Python lacks.
IP_PKTINFO = 8
IP_MTU_DISCOVER = 10
IP_RECVERR = 11
IPV6_MTU_DISCOVER = 23
IPV6_RECVERR = 25
PMTUDISC_DONT = 0
PMTUDISC_PROBE = 3
SO_ATTACH_FILTER = 26
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35
SO_BUSY_POLL = 46
SO_INCOMING_CPU = 49
SO_ATTACH_REUSEPORT_CBPF = 51
SO_ZEROCOPY = 60
SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
BPF_LOAD_CPU = (0x20, 0, 0, 0xFFFFF000 + 36)
"""BPF_LD|BPF_W|BPF_ABS at SKF_AD_OFF + SKF_AD_CPU: the CPU that runs UDP's receive."""
BPF_EQUAL, BPF_MODULO, BPF_RETURN, BPF_RETURN_IT = 0x15, 0x94, 0x06, 0x16
NO_MEMBER = 0xFFFFFFFF
"""No index of a member: the kernel falls back on its hash (net/core/sock_reuseport.c)."""
CONTROL_BYTES = sum(socket.CMSG_SPACE(size) for size in (4, 16, 20))
"""What comes with a message: UDP_GRO's int, a timespec, and the larger of both pktinfo structs."""
TIMEOUT = struct.pack("ll", 0, 50_000)
"""struct timeval: a loop that waits for its socket sees ``stop`` after at most 50 ms."""
RESET = struct.pack("ii", 1, 0)
"""struct linger: a stream ends at once, so that its addresses are free for the next trial."""
ACCEPT_S = 2.0
BACKLOG = 4096


def sending_socket(options: dict[str, Any], flow: dict[str, Any]) -> socket.socket:
    """Return a socket connected along one flow; ``options`` and ``flow`` as in a crew's plan.

    OSError where the kernel refuses the address, the buffer or an option.
    """
    made = _new(options)
    try:
        # Workers that send the same 4-tuple need a socket each.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEOUT)
        _set_way(made, options)
        _set_buffer(made, options, SO_SNDBUFFORCE, socket.SO_SNDBUF)
        if options["zerocopy"]:
            made.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        made.bind((flow["source"], flow["source_port"]))
        made.connect((flow["destination"], flow["destination_port"]))
    except OSError as error:
        made.close()
        source = _shown(flow["source"], flow["source_port"])
        destination = _shown(flow["destination"], flow["destination_port"])
        text = f"socket {source} → {destination}: {error.strerror}"
        raise OSError(error.errno, text) from error
    return made


def _new(options: dict[str, Any]) -> socket.socket:
    family = socket.AF_INET6 if options["family"] == 6 else socket.AF_INET
    tcp = options["protocol"] == "tcp"
    made = socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
    if tcp:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _set_way(made: socket.socket, options: dict[str, Any]) -> None:
    """Set how packets go: errors, fragments and hops."""
    level, discover, recverr = (
        (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_RECVERR)
        if options["family"] == 6
        else (socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_RECVERR)
    )
    # Off, so that a drop in the sender's own qdisc or device is counted at its own stage.
    made.setsockopt(level, recverr, 0)
    # PROBE sets DF and leaves the path MTU to the interface: no ICMP can shrink it under way.
    made.setsockopt(level, discover, PMTUDISC_DONT if options["fragment"] else PMTUDISC_PROBE)
    _set_hops(made, options)


def _set_hops(made: socket.socket, options: dict[str, Any]) -> None:
    """Set how far packets may go; echoes go no further than what they answer."""
    level, hops = (
        (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS)
        if options["family"] == 6
        else (socket.IPPROTO_IP, socket.IP_TTL)
    )
    made.setsockopt(level, hops, options["ttl"])


def _shown(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def receiving_socket(options: dict[str, Any], port: int) -> socket.socket:
    """Return a socket bound to a port of every address; ``options`` as in a crew's plan.

    A stream's listens. OSError where the port is taken or the kernel refuses an option.
    """
    made = _new(options)
    # Every lab address of the host at once.
    address = "::" if options["family"] == 6 else "0.0.0.0"  # noqa: S104
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        if options["family"] == 6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if options["sockets"] != "shared":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if options["gro"]:
            made.setsockopt(SOL_UDP, UDP_GRO, 1)
        if options["timestamps"]:
            made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if options["echo_every"]:
            _set_hops(made, options)
            # An echo leaves from the address that was sent to: the sender hears no other.
            level, told = (
                (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO)
                if options["family"] == 6
                else (socket.IPPROTO_IP, IP_PKTINFO)
            )
            made.setsockopt(level, told, 1)
        if options["wait"] == "busy-poll":
            made.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, -(-options["wait_ns"] // 1000))
        _set_buffer(made, options, SO_RCVBUFFORCE, socket.SO_RCVBUF)
        if options["protocol"] == "tcp":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        if options["protocol"] == "tcp":
            made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"socket {_shown(address, port)}: {error.strerror}") from error
    return made


def accepted(listener: socket.socket, count: int) -> list[socket.socket]:
    """Return so many streams of a listener, which others may share; OSError where one is late."""
    listener.settimeout(ACCEPT_S)
    found = []
    for _ in range(count):
        stream, _ = listener.accept()
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        found.append(stream)
    return found


# --- who of a group gets a packet ----------------------------------------------------------------


def prefer_cpu(of: socket.socket, cpu: Optional[int]) -> None:
    """Have a member of a reuseport group take what is received on a CPU (Linux 6.2).

    OSError where the worker has no CPU of its own.
    """
    if cpu is None:
        raise OSError(errno.EINVAL, "sockets: incoming-cpu needs a worker that is pinned to a CPU")
    of.setsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU, cpu)


def steer_by_cpu(of: socket.socket, cpus: list[Optional[int]]) -> None:
    """Give every member of a reuseport group what is received on its CPU.

    ``cpus`` is in the order in which the members were bound, which is their number. Packets of a
    CPU that is no member's go by the kernel's hash; where no member has a CPU, by its number modulo
    the members.
    """
    filter_bytes = b"".join(struct.pack("=HBBI", *one) for one in cpu_program(cpus))
    _attach(of, SO_ATTACH_REUSEPORT_CBPF, filter_bytes)


def cpu_program(cpus: list[Optional[int]]) -> list[tuple[int, int, int, int]]:
    """Return the classic BPF program that names the member for a packet's CPU."""
    if None in cpus:
        return [BPF_LOAD_CPU, (BPF_MODULO, 0, 0, len(cpus)), (BPF_RETURN_IT, 0, 0, 0)]
    first = {cpu: number for number, cpu in reversed(list(enumerate(cpus)))}
    asked = [
        one
        for cpu, number in first.items()
        for one in ((BPF_EQUAL, 0, 1, cpu), (BPF_RETURN, 0, 0, number))
    ]
    return [BPF_LOAD_CPU, *asked, (BPF_RETURN, 0, 0, NO_MEMBER)]  # type: ignore[list-item]


def _attach(of: socket.socket, option: int, filter_bytes: bytes) -> None:
    instructions = ctypes.create_string_buffer(filter_bytes)
    count = len(filter_bytes) // 8
    of.setsockopt(
        socket.SOL_SOCKET, option, struct.pack("HP", count, ctypes.addressof(instructions))
    )


# --- what is left --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unread:
    """What waited in sockets: merged datagrams are one message."""

    messages: int = 0
    packets: int = 0

    def __add__(self, other: Unread) -> Unread:
        """Return both together."""
        return Unread(self.messages + other.messages, self.packets + other.packets)


def unread(of: socket.socket) -> Unread:
    """Read what waits in a socket, and return how much it was."""
    messages, packets, room = 0, 0, [bytearray(1)]
    while True:
        try:
            length, controls, _, _ = of.recvmsg_into(
                room, CONTROL_BYTES, socket.MSG_DONTWAIT | socket.MSG_TRUNC
            )
        except BlockingIOError:
            return Unread(messages, packets)
        messages += 1
        merged = [data for level, kind, data in controls if (level, kind) == (SOL_UDP, UDP_GRO)]
        packets += -(-length // struct.unpack("i", merged[0])[0]) if merged else 1


def closed(of: socket.socket) -> Unread:
    """Close a socket, so that it leaves its reuseport group; return what it held.

    Closing throws them away and counts them nowhere. So they are read first; then a filter refuses
    what still comes, which the kernel does count, and what came before it is read as well.
    """
    held = unread(of)
    _attach(of, SO_ATTACH_FILTER, struct.pack("=HBBI", BPF_RETURN, 0, 0, 0))
    held += unread(of)
    of.close()
    return held


# --- buffers and numbers -------------------------------------------------------------------------


def buffer_bytes(of: socket.socket, role: str) -> int:
    """Return the size of the socket's buffer as the kernel has it: twice what was asked for."""
    option = socket.SO_SNDBUF if role == "sender" else socket.SO_RCVBUF
    return of.getsockopt(socket.SOL_SOCKET, option)


def inode(of: socket.socket) -> int:
    """Return the inode number by which /proc/net/udp lists the socket."""
    return os.fstat(of.fileno()).st_ino


def _set_buffer(of: socket.socket, options: dict[str, Any], force: int, plain: int) -> None:
    """Ask for the buffer; without the right to force it the read-back tells what was granted."""
    wanted: Optional[int] = options["buffer_bytes"]
    if wanted is None:
        return
    if options["force_buffer"]:
        try:
            of.setsockopt(socket.SOL_SOCKET, force, wanted)
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
        else:
            return
    of.setsockopt(socket.SOL_SOCKET, plain, wanted)
