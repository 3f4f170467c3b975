"""Socket options that Python's socket module lacks, and classic BPF filters.

OSError with the kernel's reason.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterable
from typing import Optional, Union

# include/uapi/linux/{in,in6,udp,filter}.h, asm-generic/socket.h, include/linux/socket.h
AF_XDP = 44
IP_PKTINFO = 8
IP_MTU_DISCOVER = 10
IP_RECVERR = 11
IPV6_MTU_DISCOVER = 23
IPV6_RECVERR = 25
PMTUDISC_DONT = 0
PMTUDISC_PROBE = 3
SO_ATTACH_FILTER = SO_GET_FILTER = 26
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35
SO_BUSY_POLL = 46
SO_INCOMING_CPU = 49
SO_ATTACH_REUSEPORT_CBPF = 51
SO_ATTACH_REUSEPORT_EBPF = 52
SO_ZEROCOPY = 60
SOL_UDP = 17
UDP_ENCAP = 100
UDP_SEGMENT = 103
UDP_GRO = 104
BPF_LOAD_CPU = (0x20, 0, 0, 0xFFFFF000 + 36)
"""BPF_LD|BPF_W|BPF_ABS at SKF_AD_OFF + SKF_AD_CPU: the CPU that runs UDP's receive."""
BPF_EQUAL, BPF_MODULO, BPF_RETURN, BPF_RETURN_LOADED = 0x15, 0x94, 0x06, 0x16
NO_MEMBER = 0xFFFFFFFF
"""Not a member's index: the kernel falls back to its hash (net/core/sock_reuseport.c)."""
TRAP_PRIORITY = 0x75620002
"""Socket priority dropped by the setting ``trap``: its htb class, ``ub`` in ASCII."""

Instruction = tuple[int, int, int, int]
"""A classic BPF instruction: code, jump if true, jump if false, value (struct sock_filter)."""


def bind_to_device(sock: socket.socket, interface: str) -> None:
    """Bind a socket to an interface, so that sends fail if routes change during a run.

    Only once per socket, which then also receives only from that interface. OSError if there is no
    such interface, and without root before Linux 5.7.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    except PermissionError as error:
        text = f"cannot bind to {interface}: {error.strerror}; it needs root, or Linux 5.7"
        raise OSError(error.errno, text) from error
    except OSError as error:
        raise OSError(error.errno, f"cannot bind to {interface}: {error.strerror}") from error


def force_buffer(sock: socket.socket, forced: int, plain: int, size_bytes: int) -> None:
    """Set a buffer beyond the sysctl's limit if permitted, else up to the limit."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, forced, size_bytes)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        sock.setsockopt(socket.SOL_SOCKET, plain, size_bytes)


def attach_filter(sock: socket.socket, option: int, instructions: Iterable[Instruction]) -> None:
    """Attach a classic BPF program to a socket or its reuseport group."""
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(program, len(program))
    value = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
    sock.setsockopt(socket.SOL_SOCKET, option, value)


def refuse_all(sock: socket.socket) -> None:
    """Drop every further datagram of a socket by a filter; the kernel counts the drops."""
    attach_filter(sock, SO_ATTACH_FILTER, [(BPF_RETURN, 0, 0, 0)])


def has_filter(sock: Union[int, socket.socket]) -> Optional[bool]:
    """Return whether a socket has a filter of its own, not of its reuseport group.

    None if the kernel does not say.
    """
    fd = sock if isinstance(sock, int) else sock.fileno()
    # Without room the kernel returns the number of instructions; Python's own call gives it room.
    length, kind, room = ctypes.c_uint(0), ctypes.c_int(), ctypes.c_uint(4)
    ask = ctypes.CDLL(None, use_errno=True).getsockopt
    if ask(fd, socket.SOL_SOCKET, SO_GET_FILTER, None, ctypes.byref(length)) == 0:
        return length.value > 0
    # EACCES: in eBPF, which it does not show (sk_get_filter); or no option may be read at all.
    if ctypes.get_errno() != errno.EACCES:
        return None
    seen = ask(fd, socket.SOL_SOCKET, socket.SO_TYPE, ctypes.byref(kind), ctypes.byref(room)) == 0
    return True if seen else None


def is_tunnel(fd: int) -> Optional[bool]:
    """Return whether the kernel may take a UDP socket's datagrams for itself; None: not known."""
    kind, room = ctypes.c_int(), ctypes.c_uint(4)
    ask = ctypes.CDLL(None, use_errno=True).getsockopt
    known = ask(fd, SOL_UDP, UDP_ENCAP, ctypes.byref(kind), ctypes.byref(room)) == 0
    return kind.value != 0 if known else None


def any_true(answers: Iterable[Optional[bool]]) -> Optional[bool]:
    """Return True if any is, else None if any is not known, or there is none, else False."""
    known = [*answers]
    return True if True in known else None if None in known or not known else False


def inode(sock: socket.socket) -> int:
    """Return the socket's inode number as listed in /proc/net/udp."""
    return os.fstat(sock.fileno()).st_ino
