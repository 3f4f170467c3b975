"""How control waits: for named conditions, with deadlines, looking for an interrupt at every poll.

Owns the controller's clock and the flag that a signal sets. Signal handlers here only note and
tell; nothing is ever raised out of one, so no request is cut in its middle.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from udpbench.errors import DeadlineExceeded, Interrupted
from udpbench.model import SECOND_NS
from udpbench.units import format_duration

POLL_NS = 20 * 10**6
"""Between two looks at a condition: what an end of a phase may cost, and 50 requests a second."""


class Clock:
    """The controller's CLOCK_MONOTONIC, and the only sleep in control."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return time.monotonic_ns()

    def sleep_ns(self, duration_ns: int) -> None:
        """Let a time pass."""
        time.sleep(duration_ns / SECOND_NS)


class Interrupt:
    """Whether the user asked for the end, and what is being done about it."""

    def __init__(self) -> None:
        self.asked = False
        self.doing = "ending the trial, then restoring the hosts"

    def check(self) -> None:
        """Raise Interrupted if the end was asked for."""
        if self.asked:
            raise Interrupted("interrupted; finished trials are in the run folder")

    def note(self, _number: int = signal.SIGINT, _frame: FrameType | None = None) -> None:
        """Note a signal; the second one abandons nothing, it only hears what is still going on."""
        if self.asked:
            # write(2), not print: a handler may run in the middle of a buffered write.
            os.write(2, f"\nstill {self.doing}; please wait\n".encode())
        self.asked = True

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM over for a while."""
        before = {
            number: signal.signal(number, self.note) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Waiter:
    """Polls conditions on one clock, with one interrupt."""

    def __init__(self, clock: Clock, interrupt: Interrupt) -> None:
        self.clock = clock
        self.interrupt = interrupt

    def until(self, what: str, host: str, met: Callable[[], bool], limit_ns: int) -> None:
        """Poll until ``met``; DeadlineExceeded names the condition, Interrupted ends it early.

        A look may last: it waits for a connection that is lost. So the last one begins late.
        """
        deadline_ns = self.clock.now_ns() + limit_ns
        late = False
        while not met():
            if late:
                text = f"waited {format_duration(limit_ns)} in vain until {what}"
                raise DeadlineExceeded(text, host)
            self.pause()
            late = self.clock.now_ns() >= deadline_ns

    def pause(self) -> None:
        """Let one polling interval pass; raises Interrupted if the end was asked for."""
        self.interrupt.check()
        self.clock.sleep_ns(POLL_NS)
