"""The stream sockets with abstract names of this network namespace from sock_diag, with users.

Any user can bind as many abstract names as it may open files, so the answer is read piece by piece:
a caller may stop after any socket and go on later. Read-only.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from udpbench.agent.host.genetlink import HEADER, NLMSG_ERROR, attributes, unsigned
from udpbench.agent.host.udp_diag import dump

ASKED = struct.Struct("=BBHIIIII")
"""struct unix_diag_req (include/uapi/linux/unix_diag.h)"""
MESSAGE_BYTES = 16
"""Length of struct unix_diag_msg."""
UDIAG_SHOW_NAME, UDIAG_SHOW_UID = 0x01, 0x40  # the latter since Linux 5.3
UNIX_DIAG_NAME, UNIX_DIAG_UID = 0, 7
CLOSE, LISTEN = 7, 10
"""TCP_CLOSE and TCP_LISTEN, also of Unix sockets. Those that are connected may be named by the peer
of whoever opened them, as both ends of a socket pair."""


def unix_names(prefix: bytes) -> Iterator[list[tuple[bytes, int, bool]]]:
    """Yield the rest of each name that begins with a prefix, who opened it, and if it listens.

    In pieces as they are read, of some hundred sockets. OSError ENOENT if the kernel has no
    unix_diag (CONFIG_UNIX_DIAG).
    """
    show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID
    asked = ASKED.pack(socket.AF_UNIX, 0, 0, 1 << CLOSE | 1 << LISTEN, 0, show, 0, 0)
    for datagram in dump(asked):
        yield list(_named(datagram, b"\0" + prefix))


def _named(datagram: bytes, start: bytes) -> Iterator[tuple[bytes, int, bool]]:
    at = 0
    while at + HEADER.size <= len(datagram):
        size_bytes, kind = HEADER.unpack_from(datagram, at)[:2]
        message = datagram[at + HEADER.size : at + size_bytes]
        if kind == NLMSG_ERROR:
            code = -struct.unpack_from("=i", message)[0]
            raise OSError(code, "this kernel does not list Unix sockets (unix_diag)")
        if start in message and message[1] == socket.SOCK_STREAM:
            known = dict(attributes(message[MESSAGE_BYTES:]))
            name = known.get(UNIX_DIAG_NAME, b"")
            if name.startswith(start) and UNIX_DIAG_UID in known:
                yield name[len(start) :], unsigned(known[UNIX_DIAG_UID]), message[2] == LISTEN
        at += max(-(-size_bytes // 4) * 4, HEADER.size)
