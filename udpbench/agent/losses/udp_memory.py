"""Memory that UDP holds while a loss is to exceed its limit.

A CPU reserves 256 pages of a protocol's memory for itself (net.core.mem_pcpu_rsv). The newest
kernel checks net.ipv4.udp_mem against what is beyond these reserves alone: with nothing there, even
a limit of 0 drops nothing until a socket holds 1 MiB (docs/kernel.md, UDP memory).
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
import threading
from contextlib import suppress
from typing import Optional

from udpbench.agent.host.files import lines_of
from udpbench.agent.host.namespace import CLONE_NEWNET
from udpbench.agent.host.socket_options import SO_RCVBUFFORCE, force_buffer
from udpbench.agent.host.system import Host

SOCKSTAT = "/proc/net/sockstat"
DATAGRAM_BYTES = 60_000
MOST_DATAGRAMS = 64
"""Each takes 64 KiB and more: at least 4 MiB, if the thread is moved between CPUs."""
BUFFER_BYTES = 16 * 2**20
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # include/uapi/linux/{sockios,if}.h


class HeldMemory:
    """Datagrams in the queue of a socket that nobody reads, in a network namespace of its own."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._socket: Optional[socket.socket] = None

    def hold(self) -> None:
        """Queue datagrams until UDP holds more memory beyond the CPUs' reserves, or 64 of them.

        Where no namespace can be made it holds nothing.
        """
        # A thread: unshare(2) moves its caller alone, and the process keeps its namespace.
        thread = threading.Thread(target=self._fill)
        thread.start()
        thread.join()

    def _fill(self) -> None:
        with suppress(OSError):
            if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
                return
            queue = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket = queue
            fcntl.ioctl(queue, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
            force_buffer(queue, SO_RCVBUFFORCE, socket.SO_RCVBUF, BUFFER_BYTES)
            queue.bind(("127.0.0.1", 0))
            before = held_pages(self._host)
            for _ in range(MOST_DATAGRAMS):
                if held_pages(self._host) > before:
                    return
                queue.sendto(bytes(DATAGRAM_BYTES), queue.getsockname())

    def close(self) -> None:
        """Give the memory back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def held_pages(host: Host) -> int:
    """Return the pages that all UDP sockets of the machine hold beyond the CPUs' reserves."""
    lines = lines_of(host.read_text(SOCKSTAT))
    words = next(line for line in lines if line.startswith("UDP:")).split()
    return int(words[words.index("mem") + 1])
