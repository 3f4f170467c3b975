"""A paramiko channel as the files that a channel to an agent reads and writes.

Turns what paramiko raises at the end of a connection into what a pipe has; decides nothing.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paramiko


class Replies(io.RawIOBase):
    """What comes over a channel; paramiko's own files raise in their finaliser (5.1)."""

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self._receive = receive

    def readable(self) -> bool:
        """Say so."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for some bytes; 0 at the end."""
        data = self._receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def _as_broken_pipe() -> Iterator[None]:
    """Raise what paramiko has for a connection that ends under a write (5.1) as what a pipe has."""
    try:
        yield
    except (EOFError, paramiko.SSHException) as error:
        raise BrokenPipeError(errno.EPIPE, str(error) or "it hung up") from error


class Requests(io.RawIOBase):
    """What goes over a channel; its end is the end of the agent's stdin."""

    def __init__(self, agent: paramiko.Channel) -> None:
        self._agent = agent

    def writable(self) -> bool:
        """Say so."""
        return True

    def write(self, data: Any) -> int:
        """Send all of it; OSError where the channel is closed, or the connection ends meanwhile."""
        with _as_broken_pipe():
            self._agent.sendall(data)
        return len(data)

    def close(self) -> None:
        """End the agent's stdin; OSError where the connection ends meanwhile."""
        try:
            if not self.closed:
                with _as_broken_pipe():
                    self._agent.shutdown_write()
        finally:
            super().close()
