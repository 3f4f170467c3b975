"""The XDP program that redirects datagrams to given ports and addresses to AF_XDP sockets.

Everything else passes to the host: other protocols and ports, fragments, packets with IP options
or extension headers, and all packets of a queue without a socket. Pure.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence

from udpbench.agent.host.bpf.instructions import (
    ADD,
    CALL,
    COPY,
    EXIT,
    IF_ANY_BIT,
    IF_EQUAL,
    IF_GREATER,
    IF_NOT,
    IF_WORD_NOT,
    IPV4,
    IPV4_WITHOUT_OPTIONS,
    IPV6,
    LOAD_BYTE,
    LOAD_HALF,
    LOAD_MAP,
    LOAD_WORD,
    SET,
    UDP,
    Code,
    Jump,
    assemble,
    network,
    op,
    passes,
    signed,
)
from udpbench.model.limits import ETHERNET_BYTES, FRAME_HEADERS_BYTES, UDP_HEADER_BYTES

CONTEXT, DATA, DATA_END, SCRATCH = 1, 2, 3, 5
"""Registers; the program makes its only call just before it exits."""
DATA_AT, DATA_END_AT, QUEUE_AT = 0, 4, 16  # struct xdp_md
XDP_PASS = 2  # enum xdp_action
REDIRECT_MAP = 51  # enum bpf_func_id
MORE_FRAGMENTS_OR_OFFSET = 0x3FFF
DESTINATION_AT = {4: ETHERNET_BYTES + 16, 6: ETHERNET_BYTES + 24}
FRAGMENT_AT = ETHERNET_BYTES + 6


def takes(sockets: int, family: int, ports: Iterable[int], addresses: Iterable[str]) -> bytes:
    """Return the program; ``sockets`` is the map of sockets by queue number."""
    ip, protocol_at = (IPV4, 23) if family == 4 else (IPV6, 20)
    payload_at = FRAME_HEADERS_BYTES[family]
    code: list[Code] = [
        op(LOAD_WORD, DATA, CONTEXT, DATA_AT),
        op(LOAD_WORD, DATA_END, CONTEXT, DATA_END_AT),
        op(COPY, 4, DATA),
        op(ADD, 4, value=payload_at),
        Jump("pass", IF_GREATER, 4, other=DATA_END),
        *_is(LOAD_HALF, 12, network(ip)),
        *_is(LOAD_BYTE, protocol_at, UDP),
    ]
    if family == 4:
        code += _is(LOAD_BYTE, ETHERNET_BYTES, IPV4_WITHOUT_OPTIONS)
        code += [
            op(LOAD_HALF, SCRATCH, DATA, FRAGMENT_AT),
            Jump("pass", IF_ANY_BIT, SCRATCH, network(MORE_FRAGMENTS_OR_OFFSET)),
        ]
    code.append(op(LOAD_HALF, SCRATCH, DATA, payload_at - UDP_HEADER_BYTES + 2))
    code += [Jump("port", IF_EQUAL, SCRATCH, network(port)) for port in sorted(set(ports))]
    code += [Jump("pass"), "port"]
    for number, address in enumerate(sorted(set(addresses))):
        code += _is_to(f"not {number}", DESTINATION_AT[family], _words(family, address))
    return assemble(
        [
            *code,
            "pass",
            passes(XDP_PASS),
            "take",
            op(LOAD_WORD, 2, CONTEXT, QUEUE_AT),
            op(LOAD_MAP, 1, 1, value=sockets) + op(0),
            op(SET, 3, value=XDP_PASS),
            op(CALL, value=REDIRECT_MAP),
            op(EXIT),
        ]
    )


def _is(load: int, at: int, value: int) -> list[Code]:
    """Return code that continues if a field of the frame has a value."""
    return [op(load, SCRATCH, DATA, at), Jump("pass", IF_NOT, SCRATCH, value)]


def _is_to(other: str, at: int, words: Sequence[int]) -> list[Code]:
    """Return code that redirects the frame if it is to an address."""
    code: list[Code] = []
    for number, word in enumerate(words):
        code.append(op(LOAD_WORD, SCRATCH, DATA, at + 4 * number))
        code.append(Jump(other, IF_WORD_NOT, SCRATCH, signed(word)))
    return [*code, Jump("take"), other]


def _words(family: int, address: str) -> tuple[int, ...]:
    """Return an address as words loaded by this machine."""
    packed = socket.inet_pton(socket.AF_INET if family == 4 else socket.AF_INET6, address)
    return struct.unpack(f"={len(packed) // 4}I", packed)
