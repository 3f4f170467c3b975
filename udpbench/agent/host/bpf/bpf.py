"""bpf(2): loads small programs and maps, and queries what is attached; without a library.

Owns the layout of ``union bpf_attr`` (include/uapi/linux/bpf.h). OSError with the kernel's reason.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Optional

from udpbench.agent.host import native
from udpbench.agent.host.bpf.instructions import INSTRUCTION_BYTES

ATTR_BYTES = 144
NAME_BYTES = 16
LOG_BYTES = 2**16
LOAD_TRIES = 5
"""The verifier returns EAGAIN if a signal is pending (do_check, kernel/bpf/verifier.c)."""
INFO_BYTES = 128
INFO_NAME_AT = 64
"""Offset of the name in struct bpf_prog_info (Linux 4.15)."""
MAP_CREATE, MAP_UPDATE, MAP_DELETE, PROG_LOAD, OBJ_GET = 0, 2, 3, 5, 7
PROG_GET_FD_BY_ID, MAP_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD = 13, 14, 15
PROG_QUERY, RAW_TRACEPOINT_OPEN = 16, 17
MAP_LOOKUP_BATCH, LINK_CREATE = 24, 28  # Linux 5.6, 5.7
SCHED_CLS, XDP, CGROUP_SKB, RAW_TRACEPOINT = 3, 6, 8, 17  # enum bpf_prog_type
SK_REUSEPORT = 21
HASH, PERCPU_ARRAY, XSKMAP = 1, 6, 17  # enum bpf_map_type
REUSEPORT_SOCKARRAY = 20
NO_PREALLOC = 1  # BPF_F_NO_PREALLOC
NEW_ONLY = 1  # BPF_NOEXIST
MAPS_AT = 52
"""Offset in struct bpf_prog_info of the number of maps, followed by the pointer for their ids."""
MAPS_MAX = 64  # MAX_USED_MAPS, include/linux/bpf_verifier.h
CGROUP_INGRESS = 0  # enum bpf_attach_type: BPF_CGROUP_INET_INGRESS
ATTACH_XDP, TCX_INGRESS, TCX_EGRESS = (
    37,
    46,
    47,
)  # enum bpf_attach_type: BPF_XDP, and those of Linux 6.6
CGROUP_SENDING = (1, 2, 8, 9, 10, 11, 12, 13, 14, 15)
"""enum bpf_attach_type from BPF_CGROUP_INET_EGRESS to UDP6_SENDMSG: what a sender passes."""
QUERY_EFFECTIVE = 1
"""BPF_F_QUERY_EFFECTIVE: also the programs of the cgroups around it."""
ATTACHED_MAX, REVISION_AT = 64, 56
"""Programs at a hook (BPF_MPROG_MAX, BPF_CGROUP_MAX_PROGS), and where their revision stands."""
XDP_FLAGS_DRV_MODE = 4
"""Driver mode: nothing counts drops of generic XDP (docs/kernel.md, Generic XDP)."""


def _bpf(command: int, attr: bytes) -> tuple[int, bytes]:
    """Return the result and the attributes as modified by the kernel."""
    attributes = bytearray(attr.ljust(ATTR_BYTES, b"\0"))
    return native.bpf(command, attributes), bytes(attributes)


def tcx_programs(index: int, hook: int = TCX_INGRESS) -> Optional[int]:
    """Return how many tcx programs an interface has at a hook.

    0 before Linux 6.6, which has no tcx; None without permission.
    """
    known = attached(index, hook)
    return None if known is None else known[0]


def attached(target: int, hook: int, flags: int = 0) -> Optional[tuple[int, ...]]:
    """Return the number of programs at a hook, a count of their changes, and their ids.

    ``target``: an interface's index, or a cgroup's descriptor. All 0 if the kernel knows no such
    hook; None without permission. The count is 0 where the kernel has none, and begins anew with
    the first program.
    """
    ids = (ctypes.c_uint32 * ATTACHED_MAX)()
    attributes = bytearray(ATTR_BYTES)
    room = (ctypes.addressof(ids), ATTACHED_MAX)
    struct.pack_into("=IIIIQI", attributes, 0, target, hook, flags, 0, *room)
    try:
        native.bpf(PROG_QUERY, attributes)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return 0, 0
        if error.errno != errno.ENOSPC:
            return None
    (count,) = struct.unpack_from("=I", attributes, 24)
    return count, *struct.unpack_from("=Q", attributes, REVISION_AT), *ids[:count]


class NotLoaded(OSError):
    """The kernel refused a program; ``log`` is the verifier's text, which no user should get."""

    def __init__(self, error: OSError, log: str) -> None:
        super().__init__(error.errno, f"the BPF program was not loaded: {error.strerror}")
        self.log = log


def load(kind: int, program: bytes, name: str) -> int:
    """Load a program and return its descriptor; ``name`` of at most 15 characters."""
    code = ctypes.create_string_buffer(program, len(program))
    license_text = ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(LOG_BYTES)
    pointers = (ctypes.addressof(code), ctypes.addressof(license_text))
    attr = struct.pack("=IIQQ", kind, len(program) // INSTRUCTION_BYTES, *pointers)
    attr += struct.pack("=IIQII", 1, LOG_BYTES, ctypes.addressof(log), 0, 0)
    try:
        return _verified(attr + name.encode().ljust(NAME_BYTES, b"\0"))
    except OSError as error:
        raise NotLoaded(error, log.value.decode(errors="replace")) from error


def _verified(attr: bytes) -> int:
    for _ in range(LOAD_TRIES - 1):
        with suppress(BlockingIOError):
            return _bpf(PROG_LOAD, attr)[0]
    return _bpf(PROG_LOAD, attr)[0]


def program_name(number: int) -> str:
    """Return the name of the loaded program with an id; OSError ENOENT if there is none."""
    descriptor, _ = _bpf(PROG_GET_FD_BY_ID, struct.pack("=III", number, 0, 0))
    try:
        info = _info(descriptor)
        return info[INFO_NAME_AT : INFO_NAME_AT + NAME_BYTES].rstrip(b"\0").decode()
    finally:
        os.close(descriptor)


def _info(descriptor: int, asked: bytes = b"") -> bytes:
    """Return the kernel's info about a program or map; ``asked`` has pointers for further data."""
    info = ctypes.create_string_buffer(asked, INFO_BYTES)
    _bpf(OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", descriptor, INFO_BYTES, ctypes.addressof(info)))
    return info.raw


# --- pinned objects ------------------------------------------------------------------------------


def open_pinned(path: str) -> int:
    """Return the descriptor of a program or a map in a BPF file system."""
    text = ctypes.create_string_buffer(os.fsencode(path))
    return _bpf(OBJ_GET, struct.pack("=Q", ctypes.addressof(text)))[0]


def program_maps(program: int) -> tuple[int, tuple[int, ...]]:
    """Return a program's type and the ids of its maps."""
    ids = (ctypes.c_uint32 * MAPS_MAX)()
    asked = struct.pack(f"={MAPS_AT}xIQ", MAPS_MAX, ctypes.addressof(ids))
    info = _info(program, asked)
    (count,) = struct.unpack_from("=I", info, MAPS_AT)
    return struct.unpack_from("=I", info)[0], tuple(ids[:count])


def open_map(number: int) -> int:
    """Return the descriptor of the map with an id."""
    return _bpf(MAP_GET_FD_BY_ID, struct.pack("=III", number, 0, 0))[0]


def map_shape(table: int) -> tuple[int, int, int]:
    """Return a map's type, value size in bytes and maximum entries."""
    kind, _, _, value_bytes, entries = struct.unpack_from("=5I", _info(table))
    return kind, value_bytes, entries


# --- maps and tracepoints ------------------------------------------------------------------------


def create_map(kind: int, entries: int) -> int:
    """Return the descriptor of a map of 64-bit values with 32-bit keys."""
    return _bpf(MAP_CREATE, struct.pack("=IIIII", kind, 4, 8, entries, 0))[0]


def fill(table: int, keys: Iterable[int]) -> None:
    """Insert keys into a map."""
    value = ctypes.create_string_buffer(8)
    for key in keys:
        key_bytes = ctypes.create_string_buffer(struct.pack("=I", key), 4)
        pointers = (ctypes.addressof(key_bytes), ctypes.addressof(value))
        _bpf(MAP_UPDATE, struct.pack("=I4xQQQ", table, *pointers, 0))


def read_per_cpu(array: int, entries: int, cpus: int) -> list[int]:
    """Return each entry of a per-CPU array as the sum over all possible CPUs, Linux 5.13."""
    _, values = _read_all(array, 4, 8 * cpus, entries)
    return [sum(counted) for counted in struct.iter_unpack(f"={cpus}Q", values)]


def _read_all(table: int, key_bytes: int, value_bytes: int, entries: int) -> tuple[bytes, bytes]:
    """Return the keys and values of a map of at most ``entries``, in one call."""
    keys, values = bytearray(key_bytes * entries), bytearray(value_bytes * entries)
    batch = ctypes.create_string_buffer(8)
    pinned = [(ctypes.c_char * len(buffer)).from_buffer(buffer) for buffer in (keys, values)]
    pointers = (0, ctypes.addressof(batch), *map(ctypes.addressof, pinned))
    attributes = bytearray(struct.pack("=QQQQIIQQ", *pointers, entries, table, 0, 0))
    try:
        native.bpf(MAP_LOOKUP_BATCH, attributes)
    except OSError as error:
        if error.errno != errno.ENOENT:  # the end of the map
            raise
    (number,) = struct.unpack_from("=I", attributes, 32)
    return bytes(keys[: key_bytes * number]), bytes(values[: value_bytes * number])


KEY = struct.Struct("=QQ")
"""A key of two numbers."""


def create_counts(entries: int) -> int:
    """Return the descriptor of a map of 64-bit counts by ``KEY``, which is not preallocated."""
    return _bpf(MAP_CREATE, struct.pack("=IIIII", HASH, KEY.size, 8, entries, NO_PREALLOC))[0]


def read_counts(counts: int, entries: int) -> dict[tuple[int, int], int]:
    """Return every count of such a map by key, in one call."""
    keys, values = _read_all(counts, KEY.size, 8, entries)
    return dict(zip(KEY.iter_unpack(keys), struct.unpack(f"={len(values) // 8}Q", values)))


def forget_count(counts: int, key: tuple[int, int]) -> None:
    """Remove a count if it exists."""
    key_bytes = ctypes.create_string_buffer(KEY.pack(*key), KEY.size)
    with suppress(FileNotFoundError):
        _bpf(MAP_DELETE, struct.pack("=I4xQ", counts, ctypes.addressof(key_bytes)))


def insert_socket(sockets: int, place: int, own: int, value_bytes: int) -> None:
    """Insert a bound socket into an array of sockets; closing the socket removes it.

    FileExistsError if the place is taken.
    """
    key = ctypes.create_string_buffer(struct.pack("=I", place), 4)
    value = ctypes.create_string_buffer(own.to_bytes(value_bytes, sys.byteorder), value_bytes)
    pointers = (ctypes.addressof(key), ctypes.addressof(value))
    _bpf(MAP_UPDATE, struct.pack("=I4xQQQ", sockets, *pointers, NEW_ONLY))


def create_sockets(entries: int) -> int:
    """Return the descriptor of a map of AF_XDP sockets by queue number."""
    return _bpf(MAP_CREATE, struct.pack("=IIIII", XSKMAP, 4, 4, entries, 0))[0]


def put_socket(sockets: int, queue: int, own: int) -> None:
    """Insert a bound AF_XDP socket into such a map; closing the socket removes it."""
    key, value = (ctypes.create_string_buffer(struct.pack("=I", each), 4) for each in (queue, own))
    pointers = (ctypes.addressof(key), ctypes.addressof(value))
    _bpf(MAP_UPDATE, struct.pack("=I4xQQQ", sockets, *pointers, 0))


def link_xdp(program: int, interface: int) -> int:
    """Attach a program to an interface's driver; return the descriptor that holds the link."""
    attr = struct.pack("=IIII", program, interface, ATTACH_XDP, XDP_FLAGS_DRV_MODE)
    return _bpf(LINK_CREATE, attr)[0]


def link_cgroup(program: int, cgroup: int) -> int:
    """Attach a program to a cgroup's ingress; return the descriptor that holds the link."""
    return _bpf(LINK_CREATE, struct.pack("=IIII", program, cgroup, CGROUP_INGRESS, 0))[0]


def open_raw_tracepoint(name: str, program: int) -> int:
    """Attach a program to a tracepoint; return the descriptor that holds it."""
    text = ctypes.create_string_buffer(name.encode())
    return _bpf(RAW_TRACEPOINT_OPEN, struct.pack("=QI", ctypes.addressof(text), program))[0]
