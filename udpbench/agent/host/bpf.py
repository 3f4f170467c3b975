"""bpf(2): load a small program, and ask what is attached; no toolchain, no library.

Owns the layout of ``union bpf_attr`` (include/uapi/linux/bpf.h). Attaches nothing. OSError with the
kernel's own reason if it refuses.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Callable, Optional, Union

from udpbench.agent.host import native

ATTR_BYTES = 144
INSTRUCTION_BYTES = 8
NAME_BYTES = 16
LOG_BYTES = 2**16
INFO_BYTES = 128
INFO_NAME_AT = 64
"""Where struct bpf_prog_info has the name, Linux 4.15."""
MAP_CREATE, MAP_LOOKUP, MAP_DELETE, PROG_LOAD = 0, 1, 3, 5
PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, PROG_QUERY, RAW_TRACEPOINT_OPEN = 13, 15, 16, 17
MAP_LOOKUP_BATCH, LINK_CREATE = 24, 28  # Linux 5.6, 5.7
SCHED_CLS, XDP, CGROUP_SKB, RAW_TRACEPOINT = 3, 6, 8, 17  # enum bpf_prog_type
HASH, PERCPU_ARRAY = 1, 6  # enum bpf_map_type
NO_PREALLOC = 1  # BPF_F_NO_PREALLOC
CGROUP_INGRESS = 0  # enum bpf_attach_type: BPF_CGROUP_INET_INGRESS
TCX_INGRESS = 46  # enum bpf_attach_type, Linux 6.6


def _bpf(command: int, attr: bytes) -> tuple[int, bytes]:
    """Return the result and the attributes as the kernel left them."""
    attributes = bytearray(attr.ljust(ATTR_BYTES, b"\0"))
    return native.bpf(command, attributes), bytes(attributes)


def tcx_programs(index: int) -> Optional[int]:
    """Return how many programs are attached before the IP layer of an interface, without a qdisc.

    0 on kernels before 6.6, which have no such place; None if the agent may not ask.
    """
    try:
        _, answer = _bpf(PROG_QUERY, struct.pack("=IIIIQI", index, TCX_INGRESS, 0, 0, 0, 0))
    except OSError as error:
        return 0 if error.errno in (errno.EINVAL, errno.ENOENT) else None
    return int(struct.unpack_from("=I", answer, 24)[0])


def load(kind: int, program: bytes, name: str) -> int:
    """Load a program and return its descriptor; ``name`` of at most 15 characters."""
    code = ctypes.create_string_buffer(program, len(program))
    license_text = ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(LOG_BYTES)
    pointers = (ctypes.addressof(code), ctypes.addressof(license_text))
    attr = struct.pack("=IIQQ", kind, len(program) // INSTRUCTION_BYTES, *pointers)
    attr += struct.pack("=IIQII", 1, LOG_BYTES, ctypes.addressof(log), 0, 0)
    try:
        return _bpf(PROG_LOAD, attr + name.encode().ljust(NAME_BYTES, b"\0"))[0]
    except OSError as error:
        lines = log.value.decode(errors="replace").strip().splitlines()
        text = f"{error.strerror}{f': {lines[-1]}' if lines else ''}"
        raise OSError(error.errno, f"the program was not loaded: {text}") from error


def program_name(number: int) -> str:
    """Return the name of the loaded program with an id; OSError ENOENT if there is none."""
    descriptor, _ = _bpf(PROG_GET_FD_BY_ID, struct.pack("=III", number, 0, 0))
    try:
        info = ctypes.create_string_buffer(INFO_BYTES)
        attr = struct.pack("=IIQ", descriptor, INFO_BYTES, ctypes.addressof(info))
        _bpf(OBJ_GET_INFO_BY_FD, attr)
        return info.raw[INFO_NAME_AT : INFO_NAME_AT + NAME_BYTES].rstrip(b"\0").decode()
    finally:
        os.close(descriptor)


# --- programs ------------------------------------------------------------------------------------


def _instruction(code: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, source << 4 | to, offset, value)


_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD = 0x71, 0x69, 0x61
_SET, _COPY, _ADD = 0xB7, 0xBF, 0x07
_IF_NOT, _IF_GREATER, _EXIT = 0x55, 0x2D, 0x95
ETHERNET_BYTES = 14
UDP = 17
IPV4_WITHOUT_OPTIONS = 0x45


def passes(verdict: int) -> bytes:
    """Return a program that returns a verdict on everything."""
    return _instruction(_SET, 0, value=verdict) + _instruction(_EXIT)


def drops_port(port: int, data_at: tuple[int, int], verdicts: tuple[int, int]) -> bytes:
    """Return a program that drops UDP to a port, of either IP version, and lets all else pass.

    ``data_at`` are the offsets of data and data_end in its context, ``verdicts`` drop and pass.
    """
    drop, others = verdicts
    parts = [
        _instruction(_SET, 0, value=others),
        _instruction(_LOAD_WORD, 2, 1, data_at[0]),
        _instruction(_LOAD_WORD, 3, 1, data_at[1]),
    ]
    dropping = [_instruction(_SET, 0, value=drop), _instruction(_EXIT)]
    version_4 = [(_LOAD_BYTE, 14, IPV4_WITHOUT_OPTIONS), (_LOAD_BYTE, 23, UDP)]
    version_6 = [(_LOAD_BYTE, 20, UDP)]
    for ethertype, header_bytes, checks in ((0x0800, 20, version_4), (0x86DD, 40, version_6)):
        udp_at = ETHERNET_BYTES + header_bytes
        matches = [
            (_LOAD_HALF, 12, _network(ethertype)),
            *checks,
            (_LOAD_HALF, udp_at + 2, _network(port)),
        ]
        body = 3 + 2 * len(matches) + len(dropping)
        parts += [_instruction(_COPY, 4, 2), _instruction(_ADD, 4, value=udp_at + 8)]
        parts.append(_instruction(_IF_GREATER, 4, 3, body - 3))
        for index, (code, at, value) in enumerate(matches):
            to_end = body - 3 - 2 * (index + 1)
            parts.append(_instruction(code, 5, 2, at))
            parts.append(_instruction(_IF_NOT, 5, 0, to_end, value))
        parts += dropping
    return b"".join([*parts, _instruction(_EXIT)])


def _network(value: int) -> int:
    """Return a 16-bit value as this machine reads it from a packet."""
    return socket.htons(value)


# --- counting at a tracepoint --------------------------------------------------------------------


def create_array(kind: int, entries: int) -> int:
    """Return the descriptor of a map of 64-bit values with 32-bit keys."""
    return _bpf(MAP_CREATE, struct.pack("=IIIII", kind, 4, 8, entries, 0))[0]


def read_per_cpu(array: int, key: int, cpus: int) -> int:
    """Return the sum over all possible CPUs of a per-CPU array's entry."""
    key_bytes = ctypes.create_string_buffer(struct.pack("=I", key), 4)
    values = ctypes.create_string_buffer(8 * cpus)
    pointers = (ctypes.addressof(key_bytes), ctypes.addressof(values))
    _bpf(MAP_LOOKUP, struct.pack("=I4xQQQ", array, *pointers, 0))
    return sum(struct.unpack(f"={cpus}Q", values.raw))


def open_raw_tracepoint(name: str, program: int) -> int:
    """Return a descriptor that keeps a program at a tracepoint while it is open."""
    text = ctypes.create_string_buffer(name.encode())
    return _bpf(RAW_TRACEPOINT_OPEN, struct.pack("=QI", ctypes.addressof(text), program))[0]


_LOAD_LONG, _STORE_LONG_VALUE, _STORE_WORD = 0x79, 0x7A, 0x63
_CALL, _JUMP, _IF_EQUAL, _IF_WORD_NOT, _ADD_TO_MEMORY, _LOAD_MAP = (
    0x85,
    0x05,
    0x15,
    0x56,
    0xDB,
    0x18,
)
_FRAME, _CONTEXT, _POINTER = 10, 6, 3
PROBE_READ_KERNEL, MAP_LOOKUP_ELEMENT = 113, 1


def load_context(index: int) -> bytes:
    """Return the code that takes the next read's pointer from a tracepoint's argument."""
    return _instruction(_LOAD_LONG, _POINTER, _CONTEXT, 8 * index)


def load_stack(at: int) -> bytes:
    """Return the code that takes the next read's pointer from the stack."""
    return _instruction(_LOAD_LONG, _POINTER, _FRAME, at)


def read_kernel(to: int, size_bytes: int, pointer: bytes, offset: int) -> list[bytes]:
    """Return the code that copies a field behind a pointer to the stack; zeros if unreadable."""
    return [
        pointer,
        _instruction(_ADD, _POINTER, value=offset),
        _instruction(_COPY, 1, _FRAME),
        _instruction(_ADD, 1, value=to),
        _instruction(_SET, 2, value=size_bytes),
        _instruction(_CALL, value=PROBE_READ_KERNEL),
    ]


def either(pointer: bytes, there: list[bytes], not_there: list[bytes]) -> list[bytes]:
    """Return the code that branches on whether a pointer is set."""
    return [
        pointer,
        _instruction(_IF_EQUAL, _POINTER, offset=len(there) + 1, value=0),
        *there,
        _instruction(_JUMP, offset=len(not_there)),
        *not_there,
    ]


def counting(find: list[bytes], at: int, value: int, array: int, key: int) -> list[bytes]:
    """Return a program that counts its third argument if ``find`` leaves ``value`` at ``at``.

    ``find`` may use the 24 bytes of the stack, which are zero before it.
    """
    count = [
        _instruction(_LOAD_LONG, _POINTER, _CONTEXT, 8 * 2),
        _instruction(_STORE_WORD, _FRAME, _POINTER, key),
        _instruction(_LOAD_MAP, 1, 1, value=array),
        _instruction(0),
        _instruction(_COPY, 2, _FRAME),
        _instruction(_ADD, 2, value=key),
        _instruction(_CALL, value=MAP_LOOKUP_ELEMENT),
        _instruction(_IF_EQUAL, 0, offset=2, value=0),
        _instruction(_SET, 1, value=1),
        _instruction(_ADD_TO_MEMORY, 0, 1),
    ]
    return [
        _instruction(_COPY, _CONTEXT, 1),
        *(_instruction(_STORE_LONG_VALUE, _FRAME, offset=place) for place in (-8, -16, -24)),
        *find,
        _instruction(_LOAD_WORD, _POINTER, _FRAME, at),
        # Of 32 bits: a 64-bit comparison would extend the number's sign.
        _instruction(_IF_WORD_NOT, _POINTER, offset=len(count), value=_signed(value)),
        *count,
        _instruction(_SET, 0, value=0),
        _instruction(_EXIT),
    ]


# --- counting by a key ---------------------------------------------------------------------------


KEY = struct.Struct("=QQ")
_KEY_AT, _ZERO_AT = -KEY.size, -KEY.size - 8
SCRATCH_AT = _ZERO_AT - 8
"""Of a counting program's stack: its key, a zero, and a place for what it reads."""
_STORE_LONG = 0x7B
_IF_WORD_NEGATIVE, _IF_ANY_BIT, _IF_NOT_REGISTER = 0xC6, 0x45, 0x5D
_AMOUNT = 7
_SKB_GSO_SEGS_AT, _SKB_SK_AT = 164, 168  # struct __sk_buff
_SOCK_PROTOCOL_AT = 12  # struct bpf_sock
MAP_UPDATE_ELEMENT, GET_SOCKET_COOKIE, SK_FULLSOCK, GET_NETNS_COOKIE = 2, 46, 95, 122
_NOEXIST = 1  # BPF_NOEXIST
Code = Union[bytes, Callable[[int], bytes]]
"""Instructions, or one that jumps to the end of the program, which is so many further on."""


def create_counts(entries: int) -> int:
    """Return the descriptor of a map of 64-bit counts by ``KEY``; it has the memory it uses."""
    return _bpf(MAP_CREATE, struct.pack("=IIIII", HASH, KEY.size, 8, entries, NO_PREALLOC))[0]


def read_counts(counts: int, entries: int) -> dict[tuple[int, int], int]:
    """Return every count of such a map by its key, in one call."""
    keys, values = bytearray(KEY.size * entries), bytearray(8 * entries)
    batch = ctypes.create_string_buffer(8)
    pinned = [(ctypes.c_char * len(buffer)).from_buffer(buffer) for buffer in (keys, values)]
    pointers = (0, ctypes.addressof(batch), *map(ctypes.addressof, pinned))
    attributes = bytearray(struct.pack("=QQQQIIQQ", *pointers, entries, counts, 0, 0))
    try:
        native.bpf(MAP_LOOKUP_BATCH, attributes)
    except OSError as error:
        if error.errno != errno.ENOENT:  # the end of the map
            raise
    (number,) = struct.unpack_from("=I", attributes, 32)
    each = KEY.iter_unpack(bytes(keys[: KEY.size * number]))
    return dict(zip(each, struct.unpack_from(f"={number}Q", values)))


def forget_count(counts: int, key: tuple[int, int]) -> None:
    """Remove a count; there may be none."""
    key_bytes = ctypes.create_string_buffer(KEY.pack(*key), KEY.size)
    with suppress(FileNotFoundError):
        _bpf(MAP_DELETE, struct.pack("=I4xQ", counts, ctypes.addressof(key_bytes)))


def link_cgroup(program: int, cgroup: int) -> int:
    """Return a descriptor that keeps a program at what a cgroup's sockets receive, while open."""
    return _bpf(LINK_CREATE, struct.pack("=IIII", program, cgroup, CGROUP_INGRESS, 0))[0]


def assemble(parts: list[Code], verdict: int) -> bytes:
    """Return a program of these parts, whose jumps lead to its end, where it returns a verdict."""
    code = _instruction(_SET, 0, value=verdict) + _instruction(_EXIT)
    for place in range(len(parts) - 1, -1, -1):
        part = parts[place]
        rest = (len(code) - 2 * INSTRUCTION_BYTES) // INSTRUCTION_BYTES
        code = (part(rest) if callable(part) else part) + code
    return code


def _end_if(code: int, register: int, value: int = 0, source: int = 0) -> Code:
    return lambda rest: _instruction(code, register, source, rest, value)


def counts_of_socket(counts: int) -> list[Code]:
    """Return the code that adds the amount to the count of the key."""
    find = [
        _instruction(_LOAD_MAP, 1, 1, value=counts) + _instruction(0),
        _instruction(_COPY, 2, _FRAME),
        _instruction(_ADD, 2, value=_KEY_AT),
        _instruction(_CALL, value=MAP_LOOKUP_ELEMENT),
    ]
    begin = [
        _instruction(_STORE_LONG_VALUE, _FRAME, offset=_ZERO_AT),
        _instruction(_LOAD_MAP, 1, 1, value=counts) + _instruction(0),
        _instruction(_COPY, 2, _FRAME),
        _instruction(_ADD, 2, value=_KEY_AT),
        _instruction(_COPY, 3, _FRAME),
        _instruction(_ADD, 3, value=_ZERO_AT),
        _instruction(_SET, 4, value=_NOEXIST),
        _instruction(_CALL, value=MAP_UPDATE_ELEMENT),
        *find,
    ]
    there = len(b"".join(begin)) // INSTRUCTION_BYTES
    return [
        *find,
        _instruction(_IF_NOT, 0, offset=there),
        *begin,
        _end_if(_IF_EQUAL, 0),
        _instruction(_ADD_TO_MEMORY, 0, _AMOUNT),
    ]


def arrivals(counts: int, what: int, netns_cookie: int) -> bytes:
    """Return a program for a cgroup that counts packets that reach UDP sockets of a namespace.

    Its key is the socket's cookie and ``what``; of a merged skb each packet counts. It lets every
    packet pass.
    """
    high, low = divmod(netns_cookie, 2**32)
    parts: list[Code] = [
        _instruction(_COPY, _CONTEXT, 1),
        _instruction(_LOAD_LONG, 1, _CONTEXT, _SKB_SK_AT),
        _end_if(_IF_EQUAL, 1),
        _instruction(_CALL, value=SK_FULLSOCK),
        _end_if(_IF_EQUAL, 0),
        _instruction(_LOAD_WORD, 1, 0, _SOCK_PROTOCOL_AT),
        _end_if(_IF_NOT, 1, UDP),
        _instruction(_COPY, 1, _CONTEXT),
        _instruction(_CALL, value=GET_NETNS_COOKIE),
        _instruction(_LOAD_MAP, 1, value=_signed(low)) + _instruction(0, value=_signed(high)),
        _end_if(_IF_NOT_REGISTER, 0, source=1),
        _instruction(_COPY, 1, _CONTEXT),
        _instruction(_CALL, value=GET_SOCKET_COOKIE),
        _instruction(_STORE_LONG, _FRAME, 0, _KEY_AT),
        _instruction(_STORE_LONG_VALUE, _FRAME, offset=_KEY_AT + 8, value=what),
        _instruction(_LOAD_WORD, _AMOUNT, _CONTEXT, _SKB_GSO_SEGS_AT),
        _instruction(_IF_NOT, _AMOUNT, offset=1),
        _instruction(_SET, _AMOUNT, value=1),
        *counts_of_socket(counts),
    ]
    return assemble(parts, verdict=1)


@dataclass(frozen=True)
class SockFields:
    """Offsets of what a tracepoint's socket is known by: in ``struct sock`` and ``struct net``."""

    net: int
    inode: int
    protocol: int
    cookie: int


def of_udp_socket(argument: int, fields: SockFields, netns: int) -> list[Code]:
    """Return the code that goes on if a tracepoint's argument is a UDP socket of a namespace.

    Leaves its cookie in the key. A socket has none before it is asked for the first time.
    """
    sock = load_context(argument)
    return [
        _instruction(_COPY, _CONTEXT, 1),
        sock,
        _end_if(_IF_EQUAL, _POINTER),
        *read_kernel(SCRATCH_AT, 8, sock, fields.net),
        *read_kernel(SCRATCH_AT, 4, load_stack(SCRATCH_AT), fields.inode),
        _instruction(_LOAD_WORD, 1, _FRAME, SCRATCH_AT),
        _end_if(_IF_WORD_NOT, 1, _signed(netns)),
        *read_kernel(SCRATCH_AT, 2, sock, fields.protocol),
        _instruction(_LOAD_HALF, 1, _FRAME, SCRATCH_AT),
        _end_if(_IF_NOT, 1, UDP),
        *read_kernel(_KEY_AT, 8, sock, fields.cookie),
        _instruction(_LOAD_LONG, 1, _FRAME, _KEY_AT),
        _end_if(_IF_EQUAL, 1),
        _instruction(_SET, _AMOUNT, value=1),
    ]


def reads(counts: int, what: int, fields: SockFields, netns: int) -> bytes:
    """Return a program for ``sock_recv_length(sk, ret, flags)`` that counts datagrams read."""
    parts: list[Code] = [
        *of_udp_socket(0, fields, netns),
        _instruction(_LOAD_LONG, 1, _CONTEXT, 8 * 1),
        _end_if(_IF_WORD_NEGATIVE, 1),
        _instruction(_LOAD_LONG, 1, _CONTEXT, 8 * 2),
        _end_if(_IF_ANY_BIT, 1, socket.MSG_PEEK | socket.MSG_ERRQUEUE),
        _instruction(_STORE_LONG_VALUE, _FRAME, offset=_KEY_AT + 8, value=what),
        *counts_of_socket(counts),
    ]
    return assemble(parts, verdict=0)


def drops(counts: int, fields: SockFields, netns: int) -> bytes:
    """Return a program for ``kfree_skb`` that counts skbs by receiving socket and reason."""
    parts: list[Code] = [
        *of_udp_socket(3, fields, netns),
        _instruction(_LOAD_LONG, 1, _CONTEXT, 8 * 2),
        _instruction(_STORE_LONG, _FRAME, 1, _KEY_AT + 8),
        *counts_of_socket(counts),
    ]
    return assemble(parts, verdict=0)


def _signed(word: int) -> int:
    """Return 32 bits as an instruction's operand holds them."""
    return word - 2**32 if word >= 2**31 else word
