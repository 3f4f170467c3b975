"""The sockets that workers send and receive on, with every option set and read back.

Runs in the worker process, in the thread that will use the socket, after that thread was pinned.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Any, Optional

# Numbers of include/uapi/linux/in.h and asm-generic/socket.h that Python does not name.
IP_MTU_DISCOVER = 10
IP_RECVERR = 11
IP_PMTUDISC_DONT = 0
IP_PMTUDISC_PROBE = 3
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
TIMEOUT = struct.pack("ll", 0, 50_000)
"""struct timeval: a loop that waits for its socket sees ``stop`` after at most 50 ms."""


def sending_socket(options: dict[str, Any], flow: dict[str, Any]) -> socket.socket:
    """Return a socket connected along one flow; ``options`` and ``flow`` as in a crew's plan.

    OSError where the kernel refuses the address or the buffer.
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        # Workers that send the same 4-tuple need a socket each.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Off, so that a drop in the sender's own qdisc or device is counted at its own stage.
        made.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 0)
        # PROBE sets DF and leaves the path MTU to the interface: no ICMP can shrink it under way.
        discover = IP_PMTUDISC_DONT if options["fragment"] else IP_PMTUDISC_PROBE
        made.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, discover)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, options["ttl"])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEOUT)
        _set_buffer(made, options, SO_SNDBUFFORCE, socket.SO_SNDBUF)
        made.bind((flow["source"], flow["source_port"]))
        made.connect((flow["destination"], flow["destination_port"]))
    except OSError as error:
        made.close()
        source = f"{flow['source']}:{flow['source_port']}"
        destination = f"{flow['destination']}:{flow['destination_port']}"
        text = f"socket {source} → {destination}: {error.strerror}"
        raise OSError(error.errno, text) from error
    return made


def receiving_socket(options: dict[str, Any], port: int) -> socket.socket:
    """Return a socket bound to a port of every address; ``options`` as in a crew's plan.

    OSError where the port is taken or the kernel refuses the buffer.
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        _set_buffer(made, options, SO_RCVBUFFORCE, socket.SO_RCVBUF)
        made.bind(("0.0.0.0", port))  # noqa: S104 - every lab address of the host at once
    except OSError as error:
        made.close()
        text = f"socket 0.0.0.0:{port}: {error.strerror}"
        raise OSError(error.errno, text) from error
    return made


def buffer_bytes(of: socket.socket, role: str) -> int:
    """Return the size of the socket's buffer as the kernel has it: twice what was asked for."""
    option = socket.SO_SNDBUF if role == "sender" else socket.SO_RCVBUF
    return of.getsockopt(socket.SOL_SOCKET, option)


def inode(of: socket.socket) -> int:
    """Return the inode number by which /proc/net/udp lists the socket."""
    return os.fstat(of.fileno()).st_ino


def _set_buffer(of: socket.socket, options: dict[str, Any], force: int, plain: int) -> None:
    """Ask for the buffer; without the right to force it the read-back tells what was granted."""
    wanted: Optional[int] = options["buffer_bytes"]
    if wanted is None:
        return
    if options["force_buffer"]:
        try:
            of.setsockopt(socket.SOL_SOCKET, force, wanted)
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
        else:
            return
    of.setsockopt(socket.SOL_SOCKET, plain, wanted)
