"""The lease: one thread that pings every agent of a run, so that none restores by itself.

Owns the time of the pings. A slow or lost agent never delays another's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from udpbench.model import SECOND_NS


class Renewable(Protocol):
    """A channel, as the lease needs it."""

    def ping(self) -> None:
        """Send a request without waiting for the reply."""


@contextmanager
def keep_leases(channels: Sequence[Renewable], lease_ns: int) -> Iterator[None]:
    """Ping every channel each third of the lease until the block ends."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(lease_ns / 3 / SECOND_NS):
            for channel in channels:
                channel.ping()

    thread = threading.Thread(target=keep, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
