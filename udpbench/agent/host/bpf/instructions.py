"""A BPF assembler: instructions, labels, and the programs that drop a port.

Owns the encoding (Documentation/bpf/standardization/instruction-set.rst); no toolchain. Pure.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Union

from udpbench.model.limits import ETHERNET_BYTES

INSTRUCTION_BYTES = 8
LOAD_BYTE, LOAD_HALF, LOAD_WORD, LOAD_LONG, LOAD_MAP = 0x71, 0x69, 0x61, 0x79, 0x18
STORE_WORD, STORE_LONG, STORE_LONG_VALUE, ADD_TO_MEMORY = 0x63, 0x7B, 0x7A, 0xDB
SET, COPY, ADD, ADD_REGISTER, TIMES = 0xB7, 0xBF, 0x07, 0x0F, 0x27
AND, SHIFT_LEFT, SHIFT_RIGHT = 0x57, 0x67, 0x77
ALWAYS, IF_EQUAL, IF_NOT, IF_WORD_NOT, IF_WORD_NEGATIVE = 0x05, 0x15, 0x55, 0x56, 0xC6
IF_ANY_BIT, IF_GREATER, IF_NOT_REGISTER = 0x45, 0x2D, 0x5D
"""Jumps. A word is 32 bits; the last two compare registers."""
CALL, EXIT = 0x85, 0x95
LOOK_UP, READ_KERNEL = 1, 113  # enum bpf_func_id
FRAME = 10
UDP = 17
IPV4, IPV6 = 0x0800, 0x86DD
IPV4_WITHOUT_OPTIONS = 0x45


@dataclass(frozen=True)
class Jump:
    """A forward jump to a label if a register compares so with a value or another register."""

    to: str
    code: int = ALWAYS
    register: int = 0
    value: int = 0
    other: int = 0


Code = Union[bytes, str, Jump]
"""Instructions, a label, or a jump to a label."""


def op(code: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """Return one instruction; ``to`` and ``source`` are registers."""
    return struct.pack("=BBhi", code, source << 4 | to, offset, value)


def assemble(parts: Iterable[Code]) -> bytes:
    """Return a program with its jumps resolved."""
    code = list(parts)
    labels, at = {}, 0
    for part in code:
        if isinstance(part, str):
            labels[part] = at
        else:
            at += len(part) // INSTRUCTION_BYTES if isinstance(part, bytes) else 1
    program = b""
    for part in code:
        if isinstance(part, Jump):
            offset = labels[part.to] - len(program) // INSTRUCTION_BYTES - 1
            part = op(part.code, part.register, part.other, offset, part.value)
        program += part if isinstance(part, bytes) else b""
    return program


def signed(word: int) -> int:
    """Return 32 bits as a signed operand."""
    return word - 2**32 if word >= 2**31 else word


def network(value: int) -> int:
    """Return a 16-bit value in network byte order as loaded by this machine."""
    return socket.htons(value)


def passes(verdict: int) -> bytes:
    """Return a program with a constant verdict."""
    return op(SET, 0, value=verdict) + op(EXIT)


def drops_port(port: int, data_at: tuple[int, int], verdicts: tuple[int, int]) -> bytes:
    """Return a program that drops UDP to a port (IPv4 and IPv6) and passes everything else.

    ``data_at`` are the offsets of data and data_end in the context, ``verdicts`` drop and pass.
    """
    drop, others = verdicts
    code: list[Code] = [op(LOAD_WORD, 2, 1, data_at[0]), op(LOAD_WORD, 3, 1, data_at[1])]
    version_4 = [(LOAD_BYTE, 14, IPV4_WITHOUT_OPTIONS), (LOAD_BYTE, 23, UDP)]
    version_6 = [(LOAD_BYTE, 20, UDP)]
    for ethertype, header_bytes, checks in ((IPV4, 20, version_4), (IPV6, 40, version_6)):
        udp_at, other = ETHERNET_BYTES + header_bytes, f"not {ethertype}"
        ports = (LOAD_HALF, udp_at + 2, network(port))
        code += [op(COPY, 4, 2), op(ADD, 4, value=udp_at + 8), Jump(other, IF_GREATER, 4, other=3)]
        for load, at, value in ((LOAD_HALF, 12, network(ethertype)), *checks, ports):
            code += [op(load, 5, 2, at), Jump(other, IF_NOT, 5, value)]
        code += [passes(drop), other]
    return assemble([*code, passes(others)])


def read_kernel(to: int, size_bytes: int, offset: int = 0) -> bytes:
    """Return code that copies a field at register 3 to the stack; zeros if unreadable."""
    return (
        op(ADD, 3, value=offset)
        + op(COPY, 1, FRAME)
        + op(ADD, 1, value=to)
        + op(SET, 2, value=size_bytes)
        + op(CALL, value=READ_KERNEL)
    )


def look_up(table: int, key_at: int) -> bytes:
    """Return code that loads the address of a map's value into register 0, 0 if missing."""
    key = op(COPY, 2, FRAME) + op(ADD, 2, value=key_at)
    return op(LOAD_MAP, 1, 1, value=table) + op(0) + key + op(CALL, value=LOOK_UP)
