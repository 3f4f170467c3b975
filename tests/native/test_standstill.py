"""A reader that is stopped for a while: told where datagrams waited for it, and only there."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loops import Receiving, datagram, receiving_socket, sending_socket
from waiting import wait_until

from udpbench._native import ffi, lib

STOP_NS = 300 * 10**6
"""Three times what a loop may stand still."""
WAIT_NS = 20 * 10**6
"""A call may have waited so long already (SO_RCVTIMEO)."""
WAITS: dict[str, dict[str, int]] = {
    "block": {"wait": lib.UB_WAIT_BLOCK},
    "recv": {"call": lib.UB_RECEIVE_RECV},
    "epoll": {"wait": lib.UB_WAIT_EPOLL},
    "spin": {"wait": lib.UB_WAIT_SPIN},
    "nap": {"wait": lib.UB_WAIT_NAP, "nap_ns": 100_000},
    "auto": {"wait": lib.UB_WAIT_AUTO, "nap_ns": 100_000},
    "a long nap": {"wait": lib.UB_WAIT_NAP, "nap_ns": 100 * 10**6},
}


class Apart:
    """A reader in a process of its own, which can be stopped as a whole."""

    def __init__(self, receiver: Receiving, **changes: int) -> None:
        self._shared = mmap.mmap(-1, 4096)
        memory = ffi.cast("char *", ffi.from_buffer(self._shared))
        self._control = ffi.cast("struct ub_control *", memory)
        self.stats = ffi.cast("struct ub_receive_stats *", memory + 1024)
        for name, value in changes.items():
            setattr(receiver.config, name, value)
        receiver.config.control = self._control
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(-lib.ub_receive(receiver.config, self.stats))

    @property
    def turns(self) -> int:
        """Calls and waits so far."""
        return int(self.stats.receive_calls + self.stats.wait_calls)

    def state(self) -> str:
        """Return what the kernel says of the process."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it stand still for as long as the block lasts, and for STOP_NS at least."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until("it is stopped", lambda: self.state() == "T")
        until_ns = time.monotonic_ns() + STOP_NS
        yield
        wait_until("the time is over", lambda: time.monotonic_ns() >= until_ns)
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Stop the loop and wait for the end of its process."""
        self._control.stop = 1
        assert os.waitpid(self.pid, 0) == (self.pid, 0)


@contextlib.contextmanager
def reading(**changes: int) -> Iterator[tuple[Apart, Any]]:
    """Give a reader apart, in its loop, and a socket that sends to it."""
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as giver:
        reader = Apart(Receiving(ffi, lib, sock), **changes)
        try:
            wait_until("it turns", lambda: reader.turns > 2)
            yield reader, giver
        finally:
            os.kill(reader.pid, signal.SIGCONT)
            reader.end()


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_a_stopped_reader_is_reported(wait: dict[str, int]) -> None:
    """Wherever it was, also in a blocking call: once, and for how long."""
    with reading(**wait) as (reader, giver):
        with reader.stopped():
            giver.send(datagram(0))
        wait_until("it is read", lambda: reader.stats.read_packets == 1)
        assert reader.stats.standstills >= 1
        assert reader.stats.standstill_ns >= STOP_NS - wait.get("nap_ns", 0) - WAIT_NS


def test_a_reader_stopped_in_its_work_is_reported() -> None:
    """A pause within the work is told like one in a call."""
    with reading(work_ns=30 * 10**6, batch=1) as (reader, giver):
        for n in range(10):
            giver.send(datagram(n))
        wait_until("it works", lambda: reader.stats.read_packets > 0)
        with reader.stopped():
            pass
        wait_until("the next one", lambda: reader.stats.read_packets == 10)
        assert reader.stats.standstill_ns >= STOP_NS - 10**6


@pytest.mark.parametrize("wait", [WAITS["epoll"], WAITS["spin"]], ids=["epoll", "spin"])
def test_any_of_its_sockets_may_hold_what_waits(wait: dict[str, int]) -> None:
    """A reader of two sockets is told whichever of them it comes back to."""
    with receiving_socket() as sock, receiving_socket() as other, contextlib.ExitStack() as ending:
        receiver = Receiving(ffi, lib, sock)
        receiver.config.socket_count = 2
        both = ffi.new("int32_t[]", [sock.fileno(), other.fileno()])
        receiver.config.sockets = both
        reader = Apart(receiver, **wait)
        ending.callback(reader.end)
        giver = ending.enter_context(sending_socket(other.getsockname()))
        for n in range(3):
            wait_until("it turns", lambda turns=reader.turns: reader.turns > turns)
            with reader.stopped():
                giver.send(datagram(n))
            wait_until("it is read", lambda read=n + 1: reader.stats.read_packets == read)
        assert reader.stats.standstills >= 3


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_a_reader_stopped_on_an_idle_link_is_not_reported(wait: dict[str, int]) -> None:
    """Nothing waited for it: what comes once it goes on again is read at once."""
    with reading(**wait) as (reader, giver):
        with reader.stopped():
            turns = reader.turns
        wait_until("it goes on", lambda: reader.turns > turns + 3)
        giver.send(datagram(0))
        wait_until("it is read", lambda: reader.stats.read_packets == 1)
        assert reader.stats.standstills == 0


PAUSES = {
    "work": {"work_ns": 150 * 10**6, "batch": 1},
    "nap": {"wait": lib.UB_WAIT_NAP, "nap_ns": 150 * 10**6},
    "fault": {"fault": lib.UB_FAULT_HANG, "fault_at_ns": 1},
}


@pytest.mark.parametrize("pause", PAUSES.values(), ids=PAUSES.keys())
def test_what_was_asked_for_is_no_standstill(pause: dict[str, int]) -> None:
    """Work and naps of 150 ms, and a reader that hangs on purpose, let packets wait."""
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as giver:
        receiver = Receiving(ffi, lib, sock)
        receiver.start(**pause)
        until_ns = time.monotonic_ns() + 2 * STOP_NS
        while time.monotonic_ns() < until_ns:
            giver.send(datagram(0))
            time.sleep(0.005)
        assert receiver.stop()["standstills"] == 0
