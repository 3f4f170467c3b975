"""The lease: a thread for each agent of a run that pings it, so that none restores by itself.

Owns the time of the pings. A slow or lost agent never delays another's: one that takes no ping
holds up its own thread alone.
"""

from __future__ import annotations

import threading
from typing import Protocol

from udpbench.model import SECOND_NS

END_NS = SECOND_NS // 10
"""For a thread to end; one whose ping is not taken is left to the limit of that write."""


class Renewable(Protocol):
    """A channel, as the lease needs it."""

    def ping(self) -> None:
        """Send a request without waiting for the reply."""


class Lease:
    """Pings every channel each third of the lease until it ends."""

    def __init__(self, lease_ns: int) -> None:
        self._interval_s = lease_ns / 3 / SECOND_NS
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def keep(self, channel: Renewable) -> None:
        """Ping a channel from now on."""

        def ping() -> None:
            while not self._ended.wait(self._interval_s):
                channel.ping()

        self._threads.append(threading.Thread(target=ping, name="lease", daemon=True))
        self._threads[-1].start()

    def close(self) -> None:
        """End the pings, waiting for no agent."""
        self._ended.set()
        for thread in self._threads:
            thread.join(END_NS / SECOND_NS)
