"""How control waits: for named conditions, with deadlines, checking for Ctrl-C at every poll.

Owns the controller's clock and the flag that a signal sets. Its signal handlers never raise, so no
request is cut short.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from udpbench.errors import DeadlineExceeded, Interrupted
from udpbench.model.limits import SECOND_NS
from udpbench.units import format_duration

POLL_NS = 20 * 10**6
"""Between two checks of a condition: 50 requests a second."""
DUE_POLL_NS = 5 * 10**6
"""The same where it may be met at any moment: the delay at the end of a phase."""


class Clock:
    """The controller's CLOCK_MONOTONIC, and the only sleep in control."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return time.monotonic_ns()

    def sleep_ns(self, duration_ns: int) -> None:
        """Sleep."""
        time.sleep(duration_ns / SECOND_NS)


class Interrupt:
    """Whether the user asked to end the run, and what is still being done."""

    def __init__(self) -> None:
        self.requested = False
        self.doing = "ending the trial, then restoring the hosts"

    def check(self) -> None:
        """Raise Interrupted if the end was requested."""
        if self.requested:
            raise Interrupted("interrupted; finished trials are in the run folder")

    def note(self, _number: int = signal.SIGINT, _frame: FrameType | None = None) -> None:
        """Note a signal; a second one only prints what is still being done."""
        if self.requested:
            # write(2), not print: a handler may run in the middle of a buffered write.
            os.write(2, f"\nstill {self.doing}; please wait\n".encode())
        self.requested = True

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM within the block."""
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

    def until(
        self,
        what: str,
        host: str,
        met: Callable[[], bool],
        limit_ns: int,
        due_ns: int | None = None,
    ) -> None:
        """Poll until ``met``; raises DeadlineExceeded with ``what`` is still the case, Interrupted.

        Checks more often from ``due_ns`` on, and once more after the deadline, because a check
        lasts long if it has to reconnect.
        """
        deadline_ns = self.clock.now_ns() + limit_ns
        late = False
        while not met():
            if late:
                text = f"timed out after {format_duration(limit_ns)}: {what}"
                raise DeadlineExceeded(text, host)
            self.pause(due_ns)
            late = self.clock.now_ns() >= deadline_ns

    def pause(self, due_ns: int | None = None) -> None:
        """Sleep for one polling interval; raises Interrupted if the end was requested."""
        self.interrupt.check()
        left_ns = POLL_NS if due_ns is None else due_ns - self.clock.now_ns()
        self.clock.sleep_ns(min(max(left_ns, DUE_POLL_NS), POLL_NS))
