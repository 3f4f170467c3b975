"""Every UDP socket of this network namespace from sock_diag, like ``ss -uam``.

Uses its own netlink socket: a thousand sockets take 3 ms, with pyroute2 100 ms. Read-only. OSError
if the kernel has no udp_diag (CONFIG_INET_UDP_DIAG).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Optional

from udpbench.agent.host.genetlink import (
    ATTRIBUTE,
    DUMP,
    HEADER,
    NLMSG_DONE,
    NLMSG_ERROR,
    REQUEST,
    attribute,
)
from udpbench.model.record import UdpSocket

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
ASKED = struct.Struct("=BBBxI48x")
"""struct inet_diag_req_v2, without an address."""
ONE = struct.Struct("=BBBxI2s2s16s16s4xII")
"""The same for one socket."""
MESSAGE = struct.Struct("=BBxx2s2s16s16s4xII4xI4xII")
"""struct inet_diag_msg (include/uapi/linux/inet_diag.h)"""
SKMEMINFO = 7
"""INET_DIAG_SKMEMINFO; SK_MEMINFO_RCVBUF and SK_MEMINFO_DROPS are its second and ninth number."""
MEMORY = struct.Struct("=4xI24xI")
BYTECODE, JUMP, PORT_IS = 1, 1, 11
"""INET_DIAG_REQ_BYTECODE, INET_DIAG_BC_JMP and INET_DIAG_BC_S_EQ (Linux 4.16)."""
STEP = struct.Struct("=BBH")
"""struct inet_diag_bc_op: what, and how far to go on if it holds or not; or a port."""
MOST_PORTS = 256
"""Compared by the kernel with each socket; with more, it returns every socket."""
FAMILIES = (socket.AF_INET, socket.AF_INET6)
ANSWER_BYTES = 2**17
END_BYTES = HEADER.size + 4
Messages = dict[bytes, UdpSocket]
"""Sockets by the message from which each was parsed."""


class SocketList:
    """The sockets across readings, at these ports or all; an unchanged one is the same object.

    Comparing a datagram of the answer takes 2 µs, parsing one of its 150 sockets 10 µs. Of 38,000
    sockets the kernel picks those at a port in 10 ms; to list all takes 0.4 s.
    """

    def __init__(self, ports: Collection[int] = (), families: Collection[int] = FAMILIES) -> None:
        self._filter = _at_ports(sorted(ports))
        self._families = families
        self._known: dict[bytes, Messages] = {}
        self._sockets: dict[int, UdpSocket] = {}

    def read(self) -> dict[int, UdpSocket]:
        """Return every bound socket by cookie; the same object if none has changed."""
        known = self._known
        datagrams = [each for family in self._families for each in _answer(family, self._filter)]
        if known.keys() == set(datagrams):
            return self._sockets
        messages = {key: each for part in known.values() for key, each in part.items()}
        self._known = {each: known.get(each) or parse_sockets(each, messages) for each in datagrams}
        parts = self._known.values()
        self._sockets = {each.cookie: each for part in parts for each in part.values()}
        return self._sockets


def as_it_is_now(each: UdpSocket) -> Optional[UdpSocket]:
    """Return a socket that the kernel finds by its addresses; None if there it finds another.

    Or none: it is closed, or one of a group. Takes as long however many others there are.
    """
    family = socket.AF_INET if each.family == 4 else socket.AF_INET6
    # Source and destination are those of a packet to it (net/ipv4/udp_diag.c: udp_dump_one).
    asked = ONE.pack(
        *(family, socket.IPPROTO_UDP, 1 << (SKMEMINFO - 1), 0xFFFFFFFF),
        *(port.to_bytes(2, "big") for port in (each.peer_port, each.port)),
        *(_packed(family, text) for text in (each.peer, each.address)),
        *(each.cookie & 0xFFFFFFFF, each.cookie >> 32),
    )
    try:
        (now,) = parse_sockets(next(_answers(asked, REQUEST)), {}).values()
    except (OSError, ValueError):
        return None
    return now


def _packed(family: int, text: Optional[str]) -> bytes:
    return socket.inet_pton(family, text).ljust(16, b"\0") if text is not None else bytes(16)


def held_by(each: UdpSocket, processes: tuple[str, ...]) -> UdpSocket:
    """Return a socket with its processes; dataclasses.replace takes three times as long."""
    if each.processes == processes:
        return each
    held: UdpSocket = object.__new__(UdpSocket)
    vars(held).update(vars(each), processes=processes)
    return held


def _at_ports(ports: Sequence[int]) -> bytes:
    """Return the attribute that selects sockets at these ports; nothing for none or too many.

    The end of the code accepts a socket, a step beyond it refuses (inet_diag_bc_run).
    """
    code, end_bytes = b"", 3 * STEP.size * len(ports)
    for port in ports:
        left_bytes = end_bytes - len(code)
        other = left_bytes + STEP.size if port == ports[-1] else 3 * STEP.size
        code += STEP.pack(PORT_IS, 2 * STEP.size, other) + STEP.pack(0, 0, port)
        code += STEP.pack(JUMP, STEP.size, left_bytes - 2 * STEP.size)
    return attribute(BYTECODE, code) if 0 < len(ports) <= MOST_PORTS else b""


def _answer(family: int, filtering: bytes) -> Iterator[bytes]:
    """Yield the datagrams of the answer."""
    yield from dump(
        ASKED.pack(family, socket.IPPROTO_UDP, 1 << (SKMEMINFO - 1), 0xFFFFFFFF) + filtering
    )


def dump(asked: bytes) -> Iterator[bytes]:
    """Yield the datagrams of sock_diag's answer to a request for all sockets of a kind."""
    yield from _answers(asked, REQUEST | DUMP)


def _answers(asked: bytes, flags: int) -> Iterator[bytes]:
    header = HEADER.pack(HEADER.size + len(asked), SOCK_DIAG_BY_FAMILY, flags, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.connect((0, 0))  # to the kernel: whoever has our network namespace may write, too
        link.send(header + asked)
        ended = False
        while not ended:
            datagram = link.recv(ANSWER_BYTES)
            ended = ends(datagram)
            yield datagram


def ends(datagram: bytes) -> bool:
    """Return whether the answer ends in this datagram, with an error or NLMSG_DONE."""
    last = HEADER.unpack_from(datagram, max(len(datagram) - END_BYTES, 0))
    return HEADER.unpack_from(datagram)[1] == NLMSG_ERROR or last[:2] == (END_BYTES, NLMSG_DONE)


def parse_sockets(datagram: bytes, known: Messages) -> Messages:
    """Return the sockets in a datagram of the answer; known messages keep their objects."""
    messages: Messages = {}
    at = 0
    while at + HEADER.size <= len(datagram):
        size_bytes, kind = HEADER.unpack_from(datagram, at)[:2]
        message = datagram[at + HEADER.size : at + size_bytes]
        if kind in (NLMSG_ERROR, NLMSG_DONE) or size_bytes < HEADER.size:
            _refuse(message)
            break
        messages[message] = known.get(message) or _socket(message)
        at += -(-size_bytes // 4) * 4
    return messages


def _refuse(payload: bytes) -> None:
    code = -struct.unpack_from("=i", payload)[0] if payload else 0
    if code in (errno.ENOENT, errno.EINVAL):
        text = "this kernel does not list UDP sockets (udp_diag, CONFIG_INET_UDP_DIAG)"
        raise OSError(code, f"{text}; as root: modprobe udp_diag")
    if code:
        raise OSError(code, os.strerror(code), "sock_diag")


def _socket(data: bytes) -> UdpSocket:
    values = MESSAGE.unpack_from(data)
    family, _, port, peer_port, source, peer, low, high, queued, uid, inode = values
    buffer_bytes = drops = None
    at = MESSAGE.size
    while at + ATTRIBUTE.size <= len(data):
        size_bytes, kind = ATTRIBUTE.unpack_from(data, at)
        if kind == SKMEMINFO:
            buffer_bytes, drops = MEMORY.unpack_from(data, at + ATTRIBUTE.size)
        at += -(-size_bytes // 4) * 4 or 4
    return UdpSocket(
        cookie=low | high << 32,
        inode=inode,
        family=4 if family == socket.AF_INET else 6,
        address=_address(family, source),
        port=int.from_bytes(port, "big"),
        peer=_address(family, peer) if any(peer_port) else None,
        peer_port=int.from_bytes(peer_port, "big"),
        uid=uid,
        queued_bytes=queued,
        buffer_bytes=buffer_bytes,
        drops=drops,
    )


@lru_cache(maxsize=4096)
def _address(family: int, raw: bytes) -> str:
    return socket.inet_ntop(family, raw[:4] if family == socket.AF_INET else raw)
