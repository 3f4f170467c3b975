"""How control waits: for named conditions, with deadlines, checking for Ctrl-C at every poll.

Owns the controller's clock and the flag that a signal sets. Its signal handlers never raise, so no
request is cut short.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from udpbench.errors import DeadlineExceeded, Interrupted
from udpbench.model.limits import SECOND_NS
from udpbench.units import format_duration

T = TypeVar("T")

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

    def together(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make calls at the same time, and return their results once all have ended.

        Raises the error of the first that failed. Ctrl-C waits for none of them.
        """
        if len(calls) < 2:
            return [call() for call in calls]
        results: list[Future[T]] = [Future() for _ in calls]
        for pair in zip(calls, results, strict=True):
            threading.Thread(target=_make, args=pair, daemon=True).start()
        wait(results)
        return [result.result() for result in results]

    def meanwhile(self, call: Callable[[], T], every_ns: int, work: Callable[[], object]) -> T:
        """Return what a call returns; until then do other work at intervals.

        An error of that is raised at once, and the call left to itself.
        """
        result: Future[T] = Future()
        threading.Thread(target=_make, args=(call, result), daemon=True).start()
        while not wait([result], every_ns / SECOND_NS).done:
            work()
        return result.result()


def _make(call: Callable[[], T], result: Future[T]) -> None:
    try:
        result.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
        result.set_exception(error)


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
