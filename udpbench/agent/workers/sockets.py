"""The workers' sockets, with every option set and read back.

Runs in the worker process, in the thread that uses the socket, after pinning.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Callable, Optional, Union

from udpbench.agent.host.socket_options import (
    AF_XDP,
    BPF_EQUAL,
    BPF_LOAD_CPU,
    BPF_MODULO,
    BPF_RETURN,
    BPF_RETURN_LOADED,
    IP_MTU_DISCOVER,
    IP_PKTINFO,
    IP_RECVERR,
    IPV6_MTU_DISCOVER,
    IPV6_RECVERR,
    NO_MEMBER,
    PMTUDISC_DONT,
    PMTUDISC_PROBE,
    SO_ATTACH_REUSEPORT_CBPF,
    SO_BUSY_POLL,
    SO_INCOMING_CPU,
    SO_RCVBUFFORCE,
    SO_SNDBUFFORCE,
    SO_TIMESTAMPNS,
    SO_ZEROCOPY,
    SOL_UDP,
    UDP_GRO,
    Instruction,
    attach_filter,
    bind_to_device,
    force_buffer,
    refuse_all,
)
from udpbench.agent.host.socket_owners import holders_in_words, port_inodes
from udpbench.agent.host.system import Host
from udpbench.model.experiment import Receive, Send, Traffic
from udpbench.model.work import FlowSpec
from udpbench.ways import wait_ns, wait_of

CONTROL_BYTES = sum(socket.CMSG_SPACE(size) for size in (4, 16, 20))
"""Control data of a message: UDP_GRO's int, a timespec, and the larger pktinfo struct."""
TIMEOUT = struct.pack("ll", 0, 50_000)
"""struct timeval: a loop blocked on its socket sees ``stop`` within 50 ms."""
RESET = struct.pack("ii", 1, 0)
"""struct linger: a stream ends at once, so its addresses are free for the next trial."""
ANSWERS_BUFFER_BYTES = 4 * 2**20
"""Receive buffer of a sender, for echoes and answers: the same as a receiver's."""
DISCARDED_MAX = 10**6
ACCEPT_S = 2.0
RELEASED_S = 2.0
"""A queue becomes free shortly after its last socket is closed (xp_release_deferred)."""
BACKLOG = 4096


def sending_socket(traffic: Traffic, send: Send, flow: FlowSpec, interface: str) -> socket.socket:
    """Return a socket connected to one flow's destination, bound to the interface.

    OSError if the kernel refuses the address, the buffer or an option.
    """
    sock = _new_socket(traffic)
    try:
        bind_to_device(sock, interface)
        # Workers that send the same 4-tuple need separate sockets.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEOUT)
        _set_path_options(sock, traffic)
        set_send_buffer(sock, send)
        if traffic.answers is not None:
            force_buffer(sock, SO_RCVBUFFORCE, socket.SO_RCVBUF, ANSWERS_BUFFER_BYTES)
        if send.zerocopy:
            sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        sock.bind((flow.source, flow.source_port))
        sock.connect((flow.destination, flow.destination_port))
        _take_mark_off(sock)
    except OSError as error:
        sock.close()
        source = endpoint(flow.source, flow.source_port)
        destination = endpoint(flow.destination, flow.destination_port)
        text = f"socket {source} → {destination}: {error.strerror}"
        raise OSError(error.errno, text) from error
    return sock


def _take_mark_off(sock: socket.socket) -> None:
    """Take off a mark that a BPF program of a cgroup has set: routes were proven without."""
    mark = sock.getsockopt(socket.SOL_SOCKET, socket.SO_MARK)
    try:
        if mark:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0)
    except PermissionError as error:
        text = f"a program of its cgroup gives it the mark {mark:#x}; run the agent as root"
        raise OSError(error.errno, text) from error


def _new_socket(traffic: Traffic) -> socket.socket:
    family = socket.AF_INET6 if traffic.family == 6 else socket.AF_INET
    tcp = traffic.protocol == "tcp"
    sock = socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
    if tcp:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _set_path_options(sock: socket.socket, traffic: Traffic) -> None:
    """Set errors, fragmentation and hop limit of packets."""
    level, discover, recverr = (
        (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_RECVERR)
        if traffic.family == 6
        else (socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_RECVERR)
    )
    # Off, so that a drop in the sender's qdisc or device is counted at its own stage.
    sock.setsockopt(level, recverr, 0)
    # PROBE sets DF and ignores the path MTU: ICMP cannot reduce it during a trial.
    sock.setsockopt(level, discover, PMTUDISC_DONT if traffic.fragment else PMTUDISC_PROBE)
    _set_hops(sock, traffic)


def _set_hops(sock: socket.socket, traffic: Traffic) -> None:
    """Set the TTL or hop limit; echoes use the same limit."""
    level, hops = (
        (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS)
        if traffic.family == 6
        else (socket.IPPROTO_IP, socket.IP_TTL)
    )
    sock.setsockopt(level, hops, traffic.hops)


def endpoint(address: str, port: int) -> str:
    """Return address and port as written."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def receiving_socket(
    traffic: Traffic, receive: Receive, port: int, interface: str
) -> socket.socket:
    """Return a socket bound to a port on all addresses; for streams, a listening socket.

    If it also sends, it is bound to the interface. OSError if the port is in use or the kernel
    refuses an option.
    """
    sock = _new_socket(traffic)
    # All lab addresses of the host at once.
    address = "::" if traffic.family == 6 else "0.0.0.0"  # noqa: S104
    tcp = traffic.protocol == "tcp"
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        if traffic.family == 6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if receive.sockets != "shared":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if receive.gro:
            sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        if receive.timestamps:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if traffic.echo is not None or tcp:
            bind_to_device(sock, interface)
        if traffic.echo is not None:
            _set_hops(sock, traffic)
            # An echo's source must be the address that was sent to: the sender accepts no other.
            level, pktinfo = (
                (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO)
                if traffic.family == 6
                else (socket.IPPROTO_IP, IP_PKTINFO)
            )
            sock.setsockopt(level, pktinfo, 1)
        if wait_of(receive).busy_polls:
            sock.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, -(-wait_ns(receive) // 1000))
        _set_buffer(sock, receive, SO_RCVBUFFORCE, socket.SO_RCVBUF)
        if tcp:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        if tcp:
            sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        text = f"socket {endpoint(address, port)}: {error.strerror}"
        if error.errno == errno.EADDRINUSE and not tcp:
            host = Host()
            text += f" by {holders_in_words(host, port_inodes(host, (port,))) or 'nobody now'}"
        raise OSError(error.errno, text) from error
    return sock


def accept_streams(
    listener: socket.socket, count: int, sources: Collection[tuple[str, int]]
) -> list[socket.socket]:
    """Return ``count`` streams of a possibly shared listener; OSError if one is late.

    ``sources`` are the senders' addresses and ports, 0 for any: who else connects is none of them.
    """
    end_s = time.monotonic() + ACCEPT_S
    streams: list[socket.socket] = []
    while len(streams) < count:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        listener.settimeout(left_s)
        stream, source = listener.accept()
        address, port = source[0].partition("%")[0], source[1]
        if (address, port) not in sources and (address, 0) not in sources:
            stream.close()
            continue
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        streams.append(stream)
    return streams


# --- which member of a reuseport group gets a packet ---------------------------------------------


def prefer_cpu(sock: socket.socket, cpu: Optional[int]) -> None:
    """Make a reuseport socket receive the packets of one CPU (SO_INCOMING_CPU, Linux 6.2).

    OSError if the worker is not pinned to a CPU.
    """
    if cpu is None:
        raise OSError(errno.EINVAL, "sockets: incoming-cpu needs a worker that is pinned to a CPU")
    sock.setsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU, cpu)


def steer_by_cpu(sock: socket.socket, cpus: list[Optional[int]]) -> None:
    """Make every member of a reuseport group receive the packets of its CPU.

    ``cpus`` is in bind order, which is the members' numbering. Packets on any other CPU are
    distributed by the kernel's hash; if no member has a CPU, by CPU number modulo members.
    """
    attach_filter(sock, SO_ATTACH_REUSEPORT_CBPF, cpu_program(cpus))


def cpu_program(cpus: list[Optional[int]]) -> list[Instruction]:
    """Return the classic BPF program that returns the member for a packet's CPU."""
    if None in cpus:
        return [BPF_LOAD_CPU, (BPF_MODULO, 0, 0, len(cpus)), (BPF_RETURN_LOADED, 0, 0, 0)]
    members = {cpu: member for member, cpu in reversed(list(enumerate(cpus)))}
    matches = [
        instruction
        for cpu, member in members.items()
        for instruction in ((BPF_EQUAL, 0, 1, cpu), (BPF_RETURN, 0, 0, member))
    ]
    return [BPF_LOAD_CPU, *matches, (BPF_RETURN, 0, 0, NO_MEMBER)]  # type: ignore[list-item]


# --- what is left unread -------------------------------------------------------------------------


@dataclass(frozen=True)
class Unread:
    """What was queued in sockets; datagrams merged by GRO are one message."""

    messages: int = 0
    packets: int = 0

    def __add__(self, other: Unread) -> Unread:
        """Return the sum."""
        return Unread(self.messages + other.messages, self.packets + other.packets)


def drain(sock: socket.socket) -> Unread:
    """Read everything queued in a socket and return how much it was."""
    messages, packets, room = 0, 0, [bytearray(1)]
    while True:
        try:
            length, controls, _, _ = sock.recvmsg_into(
                room, CONTROL_BYTES, socket.MSG_DONTWAIT | socket.MSG_TRUNC
            )
        except BlockingIOError:
            return Unread(messages, packets)
        messages += 1
        merged = [data for level, kind, data in controls if (level, kind) == (SOL_UDP, UDP_GRO)]
        packets += -(-length // struct.unpack("i", merged[0])[0]) if merged else 1


def discard(sock: socket.socket) -> None:
    """Discard everything queued in a socket, including pending errors."""
    for _ in range(DISCARDED_MAX):
        try:
            sock.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:  # a pending error is reported once
            continue


def drain_and_close(sock: socket.socket) -> Unread:
    """Close a socket, so that it leaves its reuseport group; return what was queued.

    Closing would discard the queue uncounted. So it is read first; then a filter drops further
    packets, which the kernel counts, and packets that arrived in between are read.
    """
    unread = drain(sock)
    refuse_all(sock)
    unread += drain(sock)
    sock.close()
    return unread


# --- buffers -------------------------------------------------------------------------------------


def buffer_bytes(sock: socket.socket, role: str) -> int:
    """Return the kernel's size of the socket's buffer: twice the requested size."""
    option = socket.SO_SNDBUF if role == "sender" else socket.SO_RCVBUF
    return sock.getsockopt(socket.SOL_SOCKET, option)


def set_send_buffer(sock: socket.socket, send: Send) -> None:
    """Set a sender's buffer to the requested size."""
    _set_buffer(sock, send, SO_SNDBUFFORCE, socket.SO_SNDBUF)


def _set_buffer(sock: socket.socket, work: Union[Send, Receive], forced: int, plain: int) -> None:
    """Set the buffer, by force if permitted; reading it back shows the granted size."""
    if work.buffer_bytes is None:
        return
    if work.force_buffer:
        force_buffer(sock, forced, plain, work.buffer_bytes)
    else:
        sock.setsockopt(socket.SOL_SOCKET, plain, work.buffer_bytes)


# --- queues of an interface ----------------------------------------------------------------------


def bound_to_queue(queue: str, bind: Callable[[socket.socket], int]) -> socket.socket:
    """Return an AF_XDP socket set up by ``bind``, which returns 0 or an errno.

    OSError with the queue's name if it is refused.
    """

    def attempt() -> Optional[socket.socket]:
        own = socket.socket(AF_XDP, socket.SOCK_RAW, 0)
        error = bind(own)
        if error == 0:
            return own
        own.close()
        if error != errno.EBUSY:
            raise OSError(error, f"{what}: {os.strerror(error)}")
        return None

    what = f"AF_XDP socket on {queue}"
    return Host().wait_for(f"{what}: {os.strerror(errno.EBUSY)}", attempt, RELEASED_S)
