"""What a host may take to let a controller in and to answer: time and bytes.

A host that sends one byte now and then ends no wait for the next byte. So each of a login, a
deployment and a reconnection has one deadline and a most of bytes, after which its sockets are shut
down; an answer has the same most, whatever carries it. Knows nothing of SSH.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from udpbench.errors import ConnectError
from udpbench.model.limits import SECOND_NS
from udpbench.units import format_bytes, format_duration


@dataclass(frozen=True)
class SshLimits:
    """Limits for reaching another host."""

    connect_ns: int = 15 * SECOND_NS
    """For each of TCP connection, banner, key exchange, login, and channel. With a round trip of
    200 ms all of them take 2 s."""
    start_ns: int = 30 * SECOND_NS
    """For a login shell to start our command; some read a slow network file system first."""
    whole_ns: int = 60 * SECOND_NS
    """For the whole of a login, of a deployment, of a reconnection, and of writing a request."""
    whole_bytes: int = 64 * 2**20
    """That a host may send in the whole of each, and for one answer."""

    @property
    def connect_s(self) -> float:
        """``connect_ns`` in seconds, for paramiko."""
        return self.connect_ns / SECOND_NS

    def within(self, limit_ns: int) -> SshLimits:
        """Return them, none longer than a limit."""
        return replace(
            self,
            connect_ns=min(limit_ns, self.connect_ns),
            start_ns=min(limit_ns, self.start_ns),
            whole_ns=min(limit_ns, self.whole_ns),
        )


LIMITS = SshLimits()
PRINTS = "find out what prints that there, or what runs there instead of sshd"


class WholeLimit:
    """The limits of one thing at a time, in which a host has a part."""

    def __init__(self, host: str, limits: SshLimits) -> None:
        self.doing = ""
        """What is being done, for the error."""
        self._host = host
        self._limits = limits
        self._sockets: list[socket.socket] = []
        self._bytes: int | None = None
        """Received in what is being done; None: nothing is limited."""
        self._end_ns = 0
        self._timer = threading.Timer(0, self._end_late)
        self.why = ""
        """Why the host was given up."""

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """Limit the time and bytes of a block; ConnectError replaces what it raises after that."""
        self.doing, self._bytes = doing, 0
        self._end_ns = time.monotonic_ns() + self._limits.whole_ns
        self._start_timer()
        try:
            yield
        except Exception as error:
            if time.monotonic_ns() >= self._end_ns:  # the timer may be late
                self._end_late()
            if self.why:
                raise ConnectError(self.why, self._host) from error
            raise
        finally:
            self._timer.cancel()
            self._bytes = None
        if self.why:
            raise ConnectError(self.why, self._host)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock for what the controller alone does."""
        self._timer.cancel()
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self._end_ns += time.monotonic_ns() - start_ns
            self._start_timer()

    @property
    def left_s(self) -> float:
        """The seconds left; never 0, with which a socket would not wait at all."""
        return max(self._end_ns - time.monotonic_ns(), 10**6) / SECOND_NS

    def count(self, carrier: socket.socket) -> CountedSocket:
        """Return a socket whose received bytes count, and which is shut down at the limit."""
        self._sockets.append(carrier)
        return CountedSocket(carrier, self)

    def received(self, size_bytes: int) -> None:
        """Count bytes."""
        if self._bytes is None:
            return
        self._bytes += size_bytes
        if self._bytes > self._limits.whole_bytes:
            self.end(f"sent more than {format_bytes(self._limits.whole_bytes)}")

    def count_answer(self) -> None:
        """Count the bytes up to the next answer from here on."""
        self.doing, self._bytes = "its answers", 0

    def _start_timer(self) -> None:
        self._timer = threading.Timer(self.left_s, self._end_late)
        self._timer.daemon = True
        self._timer.start()

    def _end_late(self) -> None:
        limit = format_duration(self._limits.whole_ns)
        step = "find out what slows it down, or what runs there instead of sshd; then try again"
        self.end(f"did not come to an end within {limit}", step)

    def end(self, what: str, step: str = PRINTS) -> None:
        """Give the host up: nothing more of it is read."""
        self.why = self.why or f"{self.doing}: the host {what}; {step}"
        for carrier in self._sockets:
            with suppress(OSError):
                carrier.shutdown(socket.SHUT_RDWR)


class CountedSocket:
    """A socket that carries a connection, and counts what is received."""

    def __init__(self, carrier: socket.socket, limit: WholeLimit) -> None:
        self._carrier = carrier
        self._limit = limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._carrier, name)

    def recv(self, size_bytes: int) -> bytes:
        """Return received bytes."""
        data = self._carrier.recv(size_bytes)
        self._limit.received(len(data))
        return data
