"""A control connection of an iperf3 client, and the generator that says what is awaited of it.

Never blocks, and reads no more than is awaited: a client can fill nothing.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Callable, Optional

from udpbench.agent.iperf3 import talk

SLICE_NS = 20 * 10**6
"""Between two looks at what no descriptor tells: a condition, a message that was not taken."""
BREAK_OFF = talk.state(talk.CLIENT_TERMINATE), talk.state(talk.IPERF_DONE)
"""What a client says that cannot go on, such as with a ``-w`` that it does not get."""


class Gone(Exception):
    """A client has left, is late, or the server ends; the text says which."""


@dataclass(frozen=True)
class Await:
    """What a control connection waits for: bytes, or a condition, until a time."""

    until_ns: int
    size_bytes: int = 0
    met: Callable[[], bool] = lambda: False
    late: str = ""
    """Why it is given up then; empty: it goes on, with nothing."""
    deaf: bool = False
    """It goes on even if the client has left."""
    polled: bool = True
    """Nothing else has the condition looked at when it is met."""


Talk = Generator[Await, bytes, None]


class Caller:
    """A control connection, and what is awaited of it."""

    def __init__(
        self, sock: socket.socket, address: str, talk_with: Callable[[Caller], Talk]
    ) -> None:
        self.sock = sock
        self.address = address
        self.since_ns = time.monotonic_ns()
        self.holds = False
        """It has a test of its own."""
        self.talk = talk_with(self)
        self.ended = False
        """It sends no more."""
        self._came = bytearray()
        self._leaves = bytearray()
        self.waits = next(self.talk)

    @property
    def reads(self) -> bool:
        """Whether more is read of it: no more than is awaited."""
        return not self.ended and len(self._came) < max(self.waits.size_bytes, 1)

    def read(self) -> None:
        """Read what has come."""
        most_bytes = max(self.waits.size_bytes, 1) - len(self._came)
        try:
            data = self.sock.recv(most_bytes, socket.MSG_DONTWAIT) if most_bytes > 0 else b""
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self.ended = self.ended or (most_bytes > 0 and not data)
        self._came += data

    def take(self, size_bytes: int) -> Optional[bytes]:
        """Return so many bytes; None until they have come."""
        if len(self._came) < size_bytes:
            return None
        data = bytes(self._came[:size_bytes])
        del self._came[:size_bytes]
        return data

    def say(self, data: bytes) -> None:
        """Send, as far as the kernel takes it."""
        self._leaves += data
        self.flush()

    def flush(self) -> None:
        """Send what the kernel did not take before."""
        while self._leaves:
            try:
                sent = self.sock.send(self._leaves, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._leaves.clear()
                self.ended = True
                return
            del self._leaves[:sent]

    def state(self, number: int) -> None:
        """Send a state."""
        self.say(talk.state(number))

    def due_ns(self, now_ns: int) -> int:
        """Return when to look again, if no descriptor says so before."""
        polls = self._leaves or (self.waits.polled and not self.waits.size_bytes)
        return min(self.waits.until_ns, now_ns + SLICE_NS) if polls else self.waits.until_ns

    def step(self, now_ns: int) -> bool:
        """Go on as far as possible; return whether the connection goes on."""
        self.flush()
        try:
            while True:
                wait = self.waits
                data = self.take(wait.size_bytes) if wait.size_bytes else None
                if data is not None or wait.met():
                    self.waits = self.talk.send(data or b"")
                elif self.ended and not wait.deaf:
                    self.waits = self.talk.throw(Gone("it closed its connection"))
                elif not wait.size_bytes and not wait.deaf and self._came[:1] in BREAK_OFF:
                    self.waits = self.talk.throw(Gone("it broke off its test"))
                elif now_ns >= wait.until_ns:
                    late = Gone(f"timed out: {wait.late}")
                    self.waits = self.talk.throw(late) if wait.late else self.talk.send(b"")
                else:
                    return True
        except StopIteration:
            return False
