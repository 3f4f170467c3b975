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
from typing import Optional

from udpbench.agent.host import native

ATTR_BYTES = 144
INSTRUCTION_BYTES = 8
NAME_BYTES = 16
LOG_BYTES = 2**16
INFO_BYTES = 128
INFO_NAME_AT = 64
"""Where struct bpf_prog_info has the name, Linux 4.15."""
MAP_CREATE, MAP_LOOKUP, PROG_LOAD = 0, 1, 5
PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, PROG_QUERY, RAW_TRACEPOINT_OPEN = 13, 15, 16, 17
SCHED_CLS, XDP, RAW_TRACEPOINT = 3, 6, 17  # enum bpf_prog_type
PERCPU_ARRAY = 6  # enum bpf_map_type
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
    signed = value - 2**32 if value >= 2**31 else value
    return [
        _instruction(_COPY, _CONTEXT, 1),
        *(_instruction(_STORE_LONG_VALUE, _FRAME, offset=place) for place in (-8, -16, -24)),
        *find,
        _instruction(_LOAD_WORD, _POINTER, _FRAME, at),
        # Of 32 bits: a 64-bit comparison would extend the number's sign.
        _instruction(_IF_WORD_NOT, _POINTER, offset=len(count), value=signed),
        *count,
        _instruction(_SET, 0, value=0),
        _instruction(_EXIT),
    ]
