"""The BPF programs that count what UDP sockets of one namespace receive, read and drop.

The key of their map is a socket's cookie and what is counted. Pure.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from dataclasses import dataclass

from udpbench.agent.host.bpf.bpf import KEY
from udpbench.agent.host.bpf.instructions import (
    ADD,
    ADD_TO_MEMORY,
    CALL,
    COPY,
    FRAME,
    IF_ANY_BIT,
    IF_EQUAL,
    IF_NOT,
    IF_NOT_REGISTER,
    IF_WORD_NEGATIVE,
    IF_WORD_NOT,
    LOAD_BYTE,
    LOAD_HALF,
    LOAD_LONG,
    LOAD_MAP,
    LOAD_WORD,
    SET,
    STORE_LONG,
    STORE_LONG_VALUE,
    UDP,
    Code,
    Jump,
    assemble,
    look_up,
    op,
    passes,
    read_kernel,
    signed,
)

KEY_AT = -KEY.size
ZERO_AT, SCRATCH_AT = KEY_AT - 8, KEY_AT - 16
"""Stack offsets: the key, a zero, and a buffer for reads."""
CONTEXT, AMOUNT = 6, 7
"""Callee-saved registers."""
SKB_GSO_SEGS_AT, SKB_SK_AT = 164, 168  # struct __sk_buff
SOCK_PROTOCOL_AT, SOCK_PORT_AT = 12, 44  # struct bpf_sock
UPDATE, GET_SOCKET_COOKIE, SK_FULLSOCK, GET_NETNS_COOKIE = 2, 46, 95, 122  # enum bpf_func_id
NOEXIST = 1  # BPF_NOEXIST
RCV_SHUTDOWN = 1  # include/net/sock.h


@dataclass(frozen=True)
class SockFields:
    """Offsets of the fields that identify a socket, in ``struct sock`` and ``struct net``."""

    net: int
    inode: int
    protocol: int
    cookie: int
    port: int
    shutdown: int


def arrivals(counts: int, what: int, netns_cookie: int, ports: Collection[int] = ()) -> bytes:
    """Return a cgroup program that counts packets arriving at UDP sockets of a namespace.

    The key is the socket's cookie and ``what``; each packet of a merged skb counts. All packets
    pass. With ``ports`` it counts sockets bound to these alone.
    """
    high, low = divmod(netns_cookie, 2**32)
    return assemble(
        [
            op(COPY, CONTEXT, 1),
            op(LOAD_LONG, 1, CONTEXT, SKB_SK_AT),
            Jump("end", IF_EQUAL, 1),
            op(CALL, value=SK_FULLSOCK),
            Jump("end", IF_EQUAL, 0),
            op(LOAD_WORD, 1, 0, SOCK_PROTOCOL_AT),
            Jump("end", IF_NOT, 1, UDP),
            op(LOAD_WORD, 1, 0, SOCK_PORT_AT),
            *_at_ports(ports),
            op(COPY, 1, CONTEXT),
            op(CALL, value=GET_NETNS_COOKIE),
            op(LOAD_MAP, 1, value=signed(low)) + op(0, value=signed(high)),
            Jump("end", IF_NOT_REGISTER, 0, other=1),
            op(COPY, 1, CONTEXT),
            op(CALL, value=GET_SOCKET_COOKIE),
            op(STORE_LONG, FRAME, 0, KEY_AT),
            op(STORE_LONG_VALUE, FRAME, offset=KEY_AT + 8, value=what),
            op(LOAD_WORD, AMOUNT, CONTEXT, SKB_GSO_SEGS_AT),
            Jump("merged", IF_NOT, AMOUNT),
            op(SET, AMOUNT, value=1),
            "merged",
            *_count(counts),
            "end",
            passes(1),
        ]
    )


def reads(
    counts: int, what: int, fields: SockFields, netns: int, ports: Collection[int] = ()
) -> bytes:
    """Return a program for ``sock_recv_length(sk, ret, flags)`` that counts datagrams read.

    But empty ones of a socket that is shut down: of it a call returns 0 without a datagram, too.
    """
    return assemble(
        [
            *_of_udp_socket(0, fields, netns, ports),
            op(LOAD_LONG, 1, CONTEXT, 8 * 1),
            Jump("end", IF_WORD_NEGATIVE, 1),
            op(LOAD_LONG, 1, CONTEXT, 8 * 2),
            Jump("end", IF_ANY_BIT, 1, socket.MSG_PEEK | socket.MSG_ERRQUEUE),
            op(LOAD_LONG, 1, CONTEXT, 8 * 1),
            Jump("read", IF_NOT, 1),
            op(LOAD_LONG, 3, CONTEXT) + read_kernel(SCRATCH_AT, 1, fields.shutdown),
            op(LOAD_BYTE, 1, FRAME, SCRATCH_AT),
            Jump("end", IF_ANY_BIT, 1, RCV_SHUTDOWN),
            "read",
            op(STORE_LONG_VALUE, FRAME, offset=KEY_AT + 8, value=what),
            *_count(counts),
            "end",
            passes(0),
        ]
    )


def drops(counts: int, fields: SockFields, netns: int, ports: Collection[int] = ()) -> bytes:
    """Return a program for ``kfree_skb`` that counts skbs by receiving socket and reason."""
    return assemble(
        [
            *_of_udp_socket(3, fields, netns, ports),
            op(LOAD_LONG, 1, CONTEXT, 8 * 2),
            op(STORE_LONG, FRAME, 1, KEY_AT + 8),
            *_count(counts),
            "end",
            passes(0),
        ]
    )


def _at_ports(ports: Collection[int]) -> list[Code]:
    """Return code that continues if register 1 is one of these ports, or if there are none."""
    if not ports:
        return []
    return [*(Jump("at port", IF_EQUAL, 1, port) for port in ports), Jump("end"), "at port"]


def _of_udp_socket(
    argument: int, fields: SockFields, netns: int, ports: Collection[int]
) -> list[Code]:
    """Return code that continues if a tracepoint's argument is a UDP socket of a namespace.

    Stores its cookie in the key. A socket has no cookie until it is queried for the first time.
    """
    sock = op(LOAD_LONG, 3, CONTEXT, 8 * argument)
    return [
        op(COPY, CONTEXT, 1),
        sock,
        Jump("end", IF_EQUAL, 3),
        sock + read_kernel(SCRATCH_AT, 8, fields.net),
        op(LOAD_LONG, 3, FRAME, SCRATCH_AT) + read_kernel(SCRATCH_AT, 4, fields.inode),
        op(LOAD_WORD, 1, FRAME, SCRATCH_AT),
        Jump("end", IF_WORD_NOT, 1, signed(netns)),
        sock + read_kernel(SCRATCH_AT, 2, fields.protocol),
        op(LOAD_HALF, 1, FRAME, SCRATCH_AT),
        Jump("end", IF_NOT, 1, UDP),
        sock + read_kernel(SCRATCH_AT, 2, fields.port),
        op(LOAD_HALF, 1, FRAME, SCRATCH_AT),
        *_at_ports(ports),
        sock + read_kernel(KEY_AT, 8, fields.cookie),
        op(LOAD_LONG, 1, FRAME, KEY_AT),
        Jump("end", IF_EQUAL, 1),
        op(SET, AMOUNT, value=1),
    ]


def _count(counts: int) -> list[Code]:
    """Return code that adds the amount to the key's count."""
    return [
        look_up(counts, KEY_AT),
        Jump("there", IF_NOT, 0),
        op(STORE_LONG_VALUE, FRAME, offset=ZERO_AT),
        op(LOAD_MAP, 1, 1, value=counts) + op(0),
        op(COPY, 2, FRAME),
        op(ADD, 2, value=KEY_AT),
        op(COPY, 3, FRAME),
        op(ADD, 3, value=ZERO_AT),
        op(SET, 4, value=NOEXIST),
        op(CALL, value=UPDATE),
        look_up(counts, KEY_AT),
        Jump("end", IF_EQUAL, 0),
        "there",
        op(ADD_TO_MEMORY, 0, AMOUNT),
    ]
