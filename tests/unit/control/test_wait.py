"""Waiting: named conditions, deadlines, and signals that only leave a note."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial

import pytest
from golden import Golden

from control.fake import FakeClock
from udpbench.control.wait import POLL_NS, Clock, Interrupt, Waiter
from udpbench.errors import DeadlineExceeded, HostError, Interrupted


def test_a_condition_that_comes_true_is_waited_for() -> None:
    """It is polled at the polling interval."""
    clock = FakeClock()
    begun_ns = clock.now_ns()
    answers = iter([False, False, True])
    Waiter(clock, Interrupt()).until("it is not so", "left", lambda: next(answers), 10**9)
    assert 2 * POLL_NS == clock.now_ns() - begun_ns


def test_a_condition_that_does_not_is_named(golden: Golden) -> None:
    """The message says what was awaited, where, and for how long."""
    with golden.raises(DeadlineExceeded):
        Waiter(FakeClock(), Interrupt()).until("it is not so", "left", lambda: False, 10**9)


def test_a_condition_is_looked_at_once_more_after_a_look_that_lasted() -> None:
    """One that waits for a lost connection may outlast the deadline."""
    clock = FakeClock()
    looks: list[int] = []

    def met() -> bool:
        looks.append(clock.now_ns())
        clock.sleep_ns(2 * 10**9)
        return len(looks) == 2

    Waiter(clock, Interrupt()).until("it is not so", "left", met, 10**9)
    assert 2 == len(looks)


def test_calls_are_made_at_the_same_time() -> None:
    """Each waits for the others; results have the order of the calls, and a single one no thread."""
    barrier = threading.Barrier(3, timeout=10)
    waiting = [partial(lambda n: (barrier.wait(), n)[1], n) for n in range(3)]
    assert [0, 1, 2] == Clock().together(waiting)
    assert [threading.get_ident()] == Clock().together([threading.get_ident])
    assert [] == Clock().together([])


def test_the_first_error_of_several_calls_is_raised_when_all_have_ended() -> None:
    """In the order of the calls, not of time."""
    ended = threading.Event()

    def late() -> None:
        ended.wait(10)
        raise HostError("late", "left")

    def soon() -> None:
        ended.set()
        raise HostError("soon", "right")

    with pytest.raises(HostError) as raised:
        Clock().together([late, soon])
    assert "left" == raised.value.host


def test_meanwhile_other_work_is_done() -> None:
    """Until the call returns; the error of either is raised, that of the work at once."""
    done, never = threading.Event(), threading.Event()
    assert Clock().meanwhile(lambda: done.wait(10), 10**6, done.set)

    def fail() -> None:
        raise HostError("changed", "left")

    with pytest.raises(HostError):
        Clock().meanwhile(lambda: never.wait(10), 10**6, fail)
    with pytest.raises(HostError):
        Clock().meanwhile(fail, 10**9, never.set)
    assert not never.is_set()
    never.set()


def test_an_interrupt_ends_a_wait() -> None:
    """The flag is looked at in every polling interval."""
    interrupt = Interrupt()
    interrupt.note()
    with pytest.raises(Interrupted):
        Waiter(FakeClock(), interrupt).until("it is not so", "left", lambda: False, 10**9)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_note_and_raises_nothing(number: int) -> None:
    """After the block the old handlers are back."""
    before = signal.getsignal(number)
    interrupt = Interrupt()
    with interrupt.caught():
        os.kill(os.getpid(), number)
        assert interrupt.requested
    assert before is signal.getsignal(number)


def test_a_second_signal_says_what_is_still_going_on(capfd: pytest.CaptureFixture[str]) -> None:
    """It abandons nothing; the first one says nothing."""
    interrupt = Interrupt()
    interrupt.doing = "restoring left"
    interrupt.note()
    assert "" == capfd.readouterr().err
    interrupt.note()
    assert "\nstill restoring left; please wait\n" == capfd.readouterr().err


def test_the_clock_is_the_machines() -> None:
    """It runs on while it sleeps."""
    clock = Clock()
    begun_ns = clock.now_ns()
    clock.sleep_ns(1000)
    assert clock.now_ns() - begun_ns >= 1000
