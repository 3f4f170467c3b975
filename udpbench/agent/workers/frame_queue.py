"""AF_XDP sockets, each bound to one queue of an interface."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Callable

from udpbench.agent.host.socket_options import AF_XDP

RELEASED_S = 2.0
"""A queue becomes free shortly after its last socket is closed (xp_release_deferred)."""
POLL_S = 0.01


def bound_to_queue(queue: str, bind: Callable[[socket.socket], int]) -> socket.socket:
    """Return a socket set up by ``bind``, which returns 0 or an errno.

    OSError with the queue's name if it is refused.
    """
    deadline = time.monotonic() + RELEASED_S
    while True:
        own = socket.socket(AF_XDP, socket.SOCK_RAW, 0)
        error = bind(own)
        if error == 0:
            return own
        own.close()
        if error != errno.EBUSY or time.monotonic() >= deadline:
            raise OSError(error, f"AF_XDP socket on {queue}: {os.strerror(error)}")
        time.sleep(POLL_S)
