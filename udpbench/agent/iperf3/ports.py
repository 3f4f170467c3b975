"""The sockets at a server's port: where clients connect and greet, and one for each stream."""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Optional

from udpbench.agent.host.socket_options import IP_PKTINFO, SO_TIMESTAMPNS
from udpbench.agent.host.socket_owners import holders_in_words, port_inodes
from udpbench.agent.host.system import Host
from udpbench.agent.iperf3.talk import HELLOS, ClientParameters
from udpbench.agent.workers.sockets import TIMEOUT, endpoint

BACKLOG = 128
DISCARDED_MAX = 4096
"""Datagrams that came before a client was let send, read at a time."""
WIDE_BYTES, ALL_BYTES = 2**20, 2**23
"""SO_RCVBUF of a stream, and of all together, of a client that asks for none; the kernel takes
twice as much."""
HELLOS_MAX = 512
"""Datagrams to the port that are read at a time; the kernel holds some hundreds."""


def listening_sockets(host: Host, address: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Return where clients connect, and where they greet; OSError says which is refused."""
    listener = _listening(host, address, port, socket.SOCK_STREAM)
    try:
        hellos = _listening(host, address, port, socket.SOCK_DGRAM)
    except OSError:
        listener.close()
        raise
    return listener, hellos


def _listening(host: Host, address: str, port: int, kind: socket.SocketKind) -> socket.socket:
    six = ":" in address
    sock = None
    try:
        sock = socket.socket(socket.AF_INET6 if six else socket.AF_INET, kind)
        if six:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_DGRAM:
            level, option = (
                (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO)
                if six
                else (socket.IPPROTO_IP, IP_PKTINFO)
            )
            sock.setsockopt(level, option, 1)
            sock.bind((address, port))
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of ended connections
            sock.bind((address, port))
            sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise OSError(error.errno, _why_not(host, address, port, kind, error)) from error
    return sock


def _why_not(host: Host, address: str, port: int, kind: socket.SocketKind, error: OSError) -> str:
    protocol = "TCP" if kind == socket.SOCK_STREAM else "UDP"
    text = f"{protocol} {endpoint(address, port)}: {error.strerror}"
    if kind == socket.SOCK_DGRAM and error.errno == errno.EADDRINUSE:
        text += f" by {holders_in_words(host, port_inodes(host, (port,))) or 'nobody now'}"
    return text


@dataclass(frozen=True)
class Greeting:
    """A client's greeting by UDP: of a stream, before its first packet."""

    source: tuple[Any, ...]
    """As connect(2) takes it."""
    destination: str
    """The address of this host that it was sent to."""
    interface: str
    reply: bytes

    @property
    def key(self) -> tuple[str, int]:
        """Address and port of the client."""
        return self.source[0], self.source[1]


def stream_socket(hello: Greeting, port: int, buffer_bytes: Optional[int]) -> socket.socket:
    """Return a socket at the address that a client greeted, connected to the client's port.

    What came to it before it was connected may be anybody's: ``discard_before`` reads that.
    """
    family = socket.AF_INET6 if ":" in hello.destination else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        share_port(sock, True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.bind((hello.destination, port, *hello.source[2:]))
        sock.connect(hello.source)
    except OSError:
        sock.close()
        raise
    return sock


def buffer_of(parameters: ClientParameters) -> Optional[int]:
    """Return the buffer that a stream's socket asks for; None: the host's default is as large.

    What naps let wait then has room beside that, which iperf3's own server has.
    """
    if parameters.buffer_bytes is not None:
        return parameters.buffer_bytes
    asked_bytes = min(WIDE_BYTES, ALL_BYTES // parameters.streams)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        default_bytes = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, asked_bytes)
        widened = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > default_bytes
    return asked_bytes if widened else None


def share_port(sock: socket.socket, shares: bool) -> None:
    """Let sockets of the same user have the port of a socket; else nobody can bind beside it.

    By SO_REUSEADDR any user could, and would be sent what comes.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shares)


def discard_before(sock: socket.socket) -> None:
    """Read what came before a client may send, and answer the greetings among it once more."""
    for _ in range(DISCARDED_MAX):
        try:
            data = sock.recv(64, socket.MSG_DONTWAIT)
        except OSError:
            return
        if data in HELLOS:
            with suppress(OSError):
                sock.send(HELLOS[data], socket.MSG_DONTWAIT)


def read_hello(sock: socket.socket) -> Optional[Greeting]:
    """Return a datagram to the port, without a reply if it is no greeting; None: there is none."""
    try:
        data, controls, _, source = sock.recvmsg(64, 256, socket.MSG_DONTWAIT)
    except OSError:
        return None
    number, destination = 0, ""
    for level, kind, value in controls:
        if (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
            number, raw = struct.unpack("i", value[:4])[0], value[8:12]
            destination = socket.inet_ntop(socket.AF_INET, raw)
        elif (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            destination = socket.inet_ntop(socket.AF_INET6, value[:16])
            number = struct.unpack("i", value[16:20])[0]
    try:
        interface = socket.if_indextoname(number)
    except OSError:
        interface = ""
    source = (plain_address(source[0]), *source[1:])
    return Greeting(source, destination, interface, HELLOS.get(data, b"") if destination else b"")


def discard(sock: socket.socket) -> None:
    """Read what strangers sent to the port."""
    for _ in range(HELLOS_MAX):
        if read_hello(sock) is None:
            return


def plain_address(address: str) -> str:
    """Return an address without the name of its interface, as two sockets may write it."""
    return str(ipaddress.ip_address(address.partition("%")[0]))
