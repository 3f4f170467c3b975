"""What a thread's loop costs: its own time and switches, and events where the machine has them."""

from __future__ import annotations

import os
import threading
import time

import pytest

from udpbench.agent.host.cpu_clocks import close_counter, open_counter
from udpbench.agent.workers import usage
from udpbench.agent.workers.usage import Cost

SOFTWARE, TASK_CLOCK = 1, 1
HARDWARE, NO_SUCH_EVENT = 0, 99
BUSY_NS = 60 * 10**6


def burn(time_ns: int) -> None:
    """Use up CPU time of this thread; by its own clock, so that others do not count."""
    until = time.thread_time_ns() + time_ns
    while time.thread_time_ns() < until:
        pass


def test_a_thread_is_charged_for_its_own_time_alone() -> None:
    """Another thread's work is not in it; the kernel may count it in ticks of 4 ms."""
    other = threading.Thread(target=burn, args=(BUSY_NS,))
    own = Cost()
    other.start()
    other.join()
    idle = own.end()
    own = Cost()
    burn(BUSY_NS)
    busy = own.end()

    assert idle["user_ns"] + idle["system_ns"] < BUSY_NS // 2
    assert busy["user_ns"] + busy["system_ns"] > BUSY_NS // 2
    assert busy["voluntary_switches"] >= 0
    assert idle["voluntary_switches"] >= 1


def test_a_thread_knows_how_long_it_ran_and_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """In all that passed; where the kernel does not count how long it waited, that is missing."""
    own = Cost()
    burn(BUSY_NS)
    spent = own.end()
    assert BUSY_NS <= spent["running_ns"] <= spent["elapsed_ns"]
    assert 0 <= spent["runnable_ns"] <= spent["elapsed_ns"]
    for text in ("0 0 0", None):
        monkeypatch.setattr(usage, "read", lambda *_, text=text: text)
        assert "runnable_ns" not in Cost().end()


def test_events_are_counted_where_they_are_offered() -> None:
    """The task clock is an event that needs no hardware; it is the thread's time."""
    counter = open_counter(SOFTWARE, TASK_CLOCK)
    if counter is None:
        pytest.skip("this kernel offers no perf events here (perf_event_paranoid, or no syscall)")
    burn(BUSY_NS)
    count = close_counter(counter)
    assert count is not None
    assert BUSY_NS // 2 < count < 100 * BUSY_NS


def test_an_event_that_is_not_offered_is_absent() -> None:
    """No hardware has it, and so it is None, not 0."""
    assert None is open_counter(HARDWARE, NO_SUCH_EVENT)


def test_an_event_that_took_turns_is_absent() -> None:
    """A count that would have to be scaled up is none."""
    for times, expected in (((5, 9, 9), 5), ((5, 9, 8), None), ((0, 0, 0), None)):
        reading, writing = os.pipe()
        os.write(writing, b"".join(value.to_bytes(8, "little") for value in times))
        os.close(writing)
        assert expected == close_counter(reading)
