"""The tables of the legacy iptables, of whose changes the kernel notifies nobody.

Asks only for tables that are there: to name another one would make it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct

from udpbench.agent.host.files import read
from udpbench.agent.host.reading import ReadingHost as Host

TABLES = "/proc/thread-self/net/{}_tables_names"
GET_INFO, GET_ENTRIES = 64, 65
"""IPT_SO_* and IP6T_SO_* of linux/netfilter_ipv4/ip_tables.h and its twin."""
NAME_BYTES = 32
INFO = struct.Struct("=32s44xII")
"""struct ipt_getinfo: the table's name; its rules, and their size."""
HEAD_BYTES = 40
"""What struct ipt_get_entries has before the first rule: name, size and padding."""
COUNTERS_BYTES = 16
FAMILIES = (
    ("ip", socket.AF_INET, socket.IPPROTO_IP, 90, 96),
    ("ip6", socket.AF_INET6, socket.IPPROTO_IPV6, 142, 152),
)
"""Protocol, and where a rule (struct ipt_entry, struct ip6t_entry) has its size and counters."""
WHOLE_BYTES = 2**14
"""Some 70 rules, which take 0.4 ms; of a larger table their number and size are compared."""


def legacy_tables(host: Host) -> tuple[bytes, ...]:
    """Return what stands in this namespace's tables; empty without any, or without permission."""
    there: list[bytes] = []
    for family, domain, level, size_at, counters_at in FAMILIES:
        tables = (read(host, TABLES.format(family)) or "").split()
        if not tables:
            continue
        try:
            with socket.socket(domain, socket.SOCK_RAW, socket.IPPROTO_RAW) as asking:
                there += [_table(asking, level, name, size_at, counters_at) for name in tables]
        except OSError:  # without privileges, or a table has just changed: the next look sees it
            continue
    return tuple(there)


def _table(asking: socket.socket, level: int, name: str, size_at: int, counters_at: int) -> bytes:
    own = name.encode().ljust(NAME_BYTES, b"\0")
    info = _ask(asking, level, GET_INFO, own.ljust(INFO.size, b"\0"))
    _, _, size_bytes = INFO.unpack(info)
    if size_bytes > WHOLE_BYTES:
        return bytes(info)
    asked = (own + struct.pack("=I", size_bytes)).ljust(HEAD_BYTES + size_bytes, b"\0")
    rules = _ask(asking, level, GET_ENTRIES, asked)
    at = HEAD_BYTES
    while at + counters_at + COUNTERS_BYTES <= len(rules):
        rules[at + counters_at : at + counters_at + COUNTERS_BYTES] = bytes(COUNTERS_BYTES)
        at += max(*struct.unpack_from("=H", rules, at + size_at), counters_at)
    return bytes(rules)


def _ask(asking: socket.socket, level: int, option: int, asked: bytes) -> bytearray:
    """Return the answer to getsockopt(2), which here is told what is asked for."""
    buffer = ctypes.create_string_buffer(asked, len(asked))
    size = ctypes.c_uint32(len(asked))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(asking.fileno(), level, option, buffer, ctypes.byref(size)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return bytearray(buffer.raw)
