"""Ways of waiting, several sockets, and workers that stop serving on purpose."""

from __future__ import annotations

import contextlib
import errno
import itertools
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from loops import SECOND_NS, Receiving, datagram, receiving_socket, sending_socket
from waiting import wait_until

from udpbench._native import ffi, lib

MANY = {
    "epoll": {"wait": lib.UB_WAIT_EPOLL},
    "spin": {"wait": lib.UB_WAIT_SPIN},
    "nap": {"wait": lib.UB_WAIT_NAP, "nap_ns": 100_000},
    "auto": {"wait": lib.UB_WAIT_AUTO, "nap_ns": 100_000},
}
ALL = {"block": {"wait": lib.UB_WAIT_BLOCK}} | MANY


@contextlib.contextmanager
def several(count: int) -> Iterator[tuple[list[socket.socket], Receiving]]:
    """Give sockets and one worker that is to serve them all."""
    with contextlib.ExitStack() as opened:
        socks = [opened.enter_context(receiving_socket()) for _ in range(count)]
        receiver = Receiving(ffi, lib, socks[0], flow_count=count)
        descriptors = ffi.new("int32_t[]", [sock.fileno() for sock in socks])
        receiver.config.sockets, receiver.config.socket_count = descriptors, count
        # The worker's thread goes on reading the array until it is stopped.
        receiver.keep = descriptors
        yield socks, receiver


def deliver(sock: socket.socket, datagrams: list[bytes]) -> None:
    """Send datagrams to a socket."""
    with sending_socket(sock.getsockname()) as sender:
        for each in datagrams:
            sender.send(each)


@pytest.mark.parametrize("wait", MANY.values(), ids=MANY.keys())
@pytest.mark.parametrize("call", [lib.UB_RECEIVE_RECV, lib.UB_RECEIVE_RECVMMSG])
def test_one_worker_serves_several_sockets(wait: dict[str, int], call: int) -> None:
    """Datagrams of every socket are read, also of one that fills up while another does not."""
    with several(5) as (socks, receiver):
        for flow, sock in enumerate(socks):
            deliver(sock, [datagram(n, flow) for n in range(100 if flow == 3 else 10)])
        receiver.start(**wait, call=call, batch=4)
        wait_until("140 read", lambda: receiver.read() == 140)
        deliver(socks[4], [datagram(10, flow=4)])
        wait_until("one more", lambda: receiver.read() == 141)
        stats = receiver.stop()
    assert stats["received_packets"] == 141
    assert [(10, 10)] * 3 + [(100, 100), (11, 11)] == [receiver.totals(flow) for flow in range(5)]


@pytest.mark.parametrize("wait", ALL.values(), ids=ALL.keys())
@pytest.mark.parametrize("call", [lib.UB_RECEIVE_RECV, lib.UB_RECEIVE_RECVMMSG])
def test_stop_is_seen_in_silence(wait: dict[str, int], call: int) -> None:
    """Every wait comes back to look at stop, within a second."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        receiver.start(**wait, call=call)
        stats = receiver.stats[0]
        wait_until("a wait", lambda: stats.wait_calls + stats.empty_calls >= 2)
        began = time.monotonic()
        ended = receiver.stop()
    assert time.monotonic() - began < 1
    assert ended["receive_calls"] == ended["empty_calls"]
    assert ended["errors"] == 0


def test_spinning_never_waits() -> None:
    """A spinning worker makes one call after the other, and no waiting call."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        receiver.start(wait=lib.UB_WAIT_SPIN)
        wait_until("1000 calls", lambda: receiver.stats[0].empty_calls >= 1000)
        assert receiver.stop()["wait_calls"] == 0


def test_epoll_calls_only_what_is_ready() -> None:
    """One of three sockets is ready: one call reads it, and no call comes back empty."""
    with several(3) as (socks, receiver):
        deliver(socks[1], [datagram(n) for n in range(3)])
        receiver.start(wait=lib.UB_WAIT_EPOLL)
        wait_until("3 read", lambda: receiver.read() == 3)
        wait_until("a wait in silence", lambda: receiver.stats[0].wait_calls >= 2)
        stats = receiver.stop()
    assert (stats["receive_calls"], stats["empty_calls"]) == (1, 0)


def test_a_full_batch_is_followed_by_no_nap() -> None:
    """Naps come after batches that were not full: two full ones, an empty one, then a nap."""
    with receiving_socket() as sock:
        deliver(sock, [datagram(n) for n in range(8)])
        receiver = Receiving(ffi, lib, sock)
        receiver.start(wait=lib.UB_WAIT_NAP, nap_ns=100 * SECOND_NS, batch=4)
        wait_until("a nap", lambda: receiver.stats[0].wait_calls == 1)
        stats = receiver.stop()
    assert (stats["read_packets"], stats["receive_calls"], stats["empty_calls"]) == (8, 3, 1)


def test_one_full_socket_keeps_all_awake() -> None:
    """Over several sockets the nap comes after a round in which none was full."""
    with several(3) as (socks, receiver):
        deliver(socks[1], [datagram(n) for n in range(8)])
        receiver.start(wait=lib.UB_WAIT_NAP, nap_ns=100 * SECOND_NS, batch=4)
        wait_until("a nap", lambda: receiver.stats[0].wait_calls == 1)
        stats = receiver.stop()
    assert (stats["read_packets"], stats["receive_calls"], stats["empty_calls"]) == (8, 9, 7)


def test_a_nap_lasts_as_long_as_asked() -> None:
    """Ten naps of 3 ms take 30 ms or longer."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        began = time.monotonic()
        receiver.start(wait=lib.UB_WAIT_NAP, nap_ns=3_000_000)
        wait_until("the eleventh nap", lambda: receiver.stats[0].wait_calls >= 11)
        assert time.monotonic() - began >= 0.03
        receiver.stop()


# --- moments at which nothing is left --------------------------------------------------------------

BATCHES = [(wait, lib.UB_RECEIVE_RECVMMSG) for wait in ALL]
SINGLY = [(wait, lib.UB_RECEIVE_RECV) for wait in ("spin", "nap")]


@pytest.mark.parametrize(("wait", "call"), [*BATCHES, *SINGLY])
def test_the_first_and_the_last_but_one_moment_without_datagrams_are_known(
    wait: str, call: int
) -> None:
    """Six, one and one: the first moment is after six, the last before more after seven."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        stats = receiver.stats[0]
        deliver(sock, [datagram(n) for n in range(6)])
        receiver.start(**ALL[wait], call=call, batch=4)
        for due in (6, 7, 8):
            wait_until("all read", lambda due=due: receiver.read() == due)
            seen = stats.empty_calls
            if (wait, call) in SINGLY:
                wait_until("an empty call", lambda seen=seen: stats.empty_calls > seen + 1)
            if due < 8:
                deliver(sock, [datagram(due)])
        ended = receiver.stop()
    parts = ("packets", "bytes")
    assert [6, 6 * 32] == [ended[f"drained_first_{part}"] for part in parts]
    assert [7, 7 * 32] == [ended[f"drained_last_{part}"] for part in parts]
    assert ended["first_ns"] < ended["drained_first_ns"] < ended["drained_last_ns"]
    assert ended["drained_last_ns"] <= ended["last_ns"]


def test_several_sockets_are_left_empty_at_the_end_of_a_round_alone() -> None:
    """The last of three sockets has a full batch: a moment without any comes only after it."""
    with several(3) as (socks, receiver):
        deliver(socks[0], [datagram(n) for n in range(2)])
        deliver(socks[2], [datagram(n, flow=2) for n in range(4)])
        receiver.start(**ALL["nap"], batch=4)
        wait_until("6 read", lambda: receiver.stats[0].drained_first_ns != 0)
        stats = receiver.stop()
    assert (6, 0) == (stats["drained_first_packets"], stats["drained_last_ns"])


def test_a_reader_that_is_always_behind_knows_no_such_moment() -> None:
    """Each call is full, and stop comes before an empty one: there is none."""
    with receiving_socket() as sock:
        deliver(sock, [datagram(n) for n in range(40)])
        receiver = Receiving(ffi, lib, sock)
        receiver.start(wait=lib.UB_WAIT_BLOCK, batch=4, work_ns=SECOND_NS // 2)
        wait_until("a call", lambda: receiver.read() >= 4)
        stats = receiver.stop()
    assert (0, 0) == (stats["drained_first_ns"], stats["drained_last_ns"])


# --- auto ----------------------------------------------------------------------------------------

CALL = "waits in the call"
NAP = "naps"
SCRIPTS: dict[str, tuple[list[int], dict[str, int], list[tuple[str, int]]]] = {
    # What calls bring, the last one again and again; how calls are made, and how many in a row.
    "singly": ([1], {}, [(CALL, 512), (NAP, 1), (CALL, 512), (NAP, 1), (CALL, 512)]),
    "silence between": ([1] * 9 + [-errno.EAGAIN] * 9 + [1], {}, [(CALL, 521), (NAP, 1)]),
    "silence": ([-errno.EAGAIN], {}, [(CALL, 1200)]),
    "several at once": ([1, 3, 4, 2], {}, [(CALL, 3), (NAP, 600)]),
    "too few at once": ([3], {}, [(CALL, 512), (NAP, 600)]),
    "fewer after a nap": ([4, 2, 1, 1], {}, [(CALL, 1), (NAP, 2), (CALL, 512)]),
    "none after a nap": ([4, -errno.EAGAIN, 1], {}, [(CALL, 1), (NAP, 1), (CALL, 512)]),
    "full batches": (
        [8, 8, 8, 1, -errno.EAGAIN, 1],
        {"batch": 8},
        [(CALL, 1), (NAP, 4), (CALL, 512)],
    ),
    "one a call": ([1], {"batch": 1}, [(CALL, 512), (NAP, 600)]),
}
SCRIPTED_WAY = 902
"""As in fake_kernel.c."""


def runs(flags: list[int]) -> list[tuple[str, int]]:
    """Return how calls were made, and how many in a row."""
    ways = (CALL if flag == 0 else NAP for flag in flags)
    return [(way, len(list(several))) for way, several in itertools.groupby(ways)]


@pytest.mark.parametrize(("script", "more", "expected"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_auto_goes_by_what_calls_bring(
    scripted: tuple[Any, Any],
    script: list[int],
    more: dict[str, int],
    expected: list[tuple[str, int]],
) -> None:
    """It waits for each datagram, naps once in 512 calls or after four at once, and as it pays."""
    fake_ffi, fake_lib = scripted
    steps = fake_ffi.new("struct fake_step[]", [(takes, 0) for takes in script])
    fake_lib.fake_script(steps, len(script), 1)
    calls = sum(count for _, count in expected)
    log = fake_ffi.new("struct fake_call[4096]")
    with receiving_socket() as sock:
        receiver = Receiving(fake_ffi, fake_lib, sock)
        receiver.start(call=SCRIPTED_WAY, wait=lib.UB_WAIT_AUTO, nap_ns=1, **more)
        wait_until("the calls", lambda: receiver.stats[0].receive_calls >= calls)
        receiver.stop()
    assert fake_lib.fake_calls(log) >= calls
    assert runs([log[index].flags for index in range(calls)]) == expected


LONG_NS, SHARE = 40 * 10**6, 50
EVENLY = [(4, 12)] * 8
"""Messages, and the milliseconds that a call for them takes: fewer than the share in a long nap."""
PACES = {
    "evenly": (EVENLY, 0, True),
    "singly": ([(1, 8)], 0, True),
    "too seldom to pay": ([(1, 15)], 0, False),
    "more than the share": ([*EVENLY, (120, 12), (4, 12)], 0, False),
    "that is forgotten": ([*EVENLY, (120, 12), (4, 12)], 0, True),
    "overslept": ([*EVENLY, (85, 12)], 20, False),
    "a crowd from the beginning": ([(4, 1)], 0, False),
    "that lasts": ([(4, 1)], 0, True),
    "after a silence": ([*EVENLY, (4, 3 * LONG_NS // 10**6)], 0, False),
}


@pytest.mark.parametrize(("script", "overslept_ms", "long"), PACES.values(), ids=PACES.keys())
def test_auto_naps_for_as_long_as_a_share_of_the_buffer_takes_to_come(
    scripted: tuple[Any, Any], script: list[tuple[int, int]], overslept_ms: int, long: bool
) -> None:
    """At the highest rate lately, as if no time was overslept; never right behind a silence."""
    fake_ffi, fake_lib = scripted
    fake_lib.fake_script(fake_ffi.new("struct fake_step[]", script), len(script), 1)
    fake_lib.fake_oversleep(overslept_ms)
    log = fake_ffi.new("struct fake_call[4096]")
    more = {"nap_ns": 1, "nap_most_ns": LONG_NS, "nap_messages": SHARE, "batch": 128}

    def naps() -> list[bool]:
        """Return of each nap behind the script whether it is a long one."""
        begun = [log[at].at_ns for at in range(len(script) - 1, fake_lib.fake_calls(log))]
        took_ns = LONG_NS + (script[-1][1] + overslept_ms) * 10**6
        return [late - early >= took_ns for early, late in itertools.pairwise(begun)]

    with receiving_socket() as sock:
        receiver = Receiving(fake_ffi, fake_lib, sock)
        receiver.start(call=SCRIPTED_WAY, wait=lib.UB_WAIT_AUTO, **more)
        wait_until("naps", lambda: any(naps()) if long else len(naps()) >= 5)
        receiver.stop()
    fake_lib.fake_oversleep(0)
    assert len(naps()) < 500
    assert long or not all(naps()[:5])


@pytest.mark.parametrize(("datagrams", "ended"), [(3, (1, 0)), (4, (4, 3))], ids=["few", "several"])
def test_auto_waits_for_several_sockets_by_epoll(datagrams: int, ended: tuple[int, int]) -> None:
    """Only what is ready is called, but for the round after a nap, which finds nothing."""
    with several(3) as (socks, receiver):
        deliver(socks[1], [datagram(n) for n in range(datagrams)])
        receiver.start(wait=lib.UB_WAIT_AUTO, nap_ns=1)
        wait_until("all", lambda: receiver.read() == datagrams)
        wait_until("waits in silence", lambda: receiver.stats[0].wait_calls >= 4)
        stats = receiver.stop()
    assert (stats["receive_calls"], stats["empty_calls"]) == ended


@pytest.mark.parametrize("wait", [lib.UB_WAIT_EPOLL, lib.UB_WAIT_AUTO], ids=["epoll", "auto"])
def test_epoll_reports_what_it_cannot_watch(wait: int) -> None:
    """A socket that is listed twice is refused with the kernel's error."""
    with several(2) as (socks, receiver):
        receiver.config.sockets[1] = socks[0].fileno()
        receiver.config.wait, receiver.config.nap_ns = wait, 1
        assert lib.ub_receive(receiver.config, receiver.stats[0]) == -errno.EEXIST


def test_epoll_reports_when_it_cannot_be_made() -> None:
    """Without a file descriptor left there is no epoll instance, and the loop says so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        receiver.config.wait = lib.UB_WAIT_EPOLL
        resource.setrlimit(resource.RLIMIT_NOFILE, (sock.fileno(), hard))
        try:
            result = lib.ub_receive(receiver.config, receiver.stats[0])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert result == -errno.EMFILE


@pytest.mark.parametrize("wait", MANY.values(), ids=MANY.keys())
def test_an_error_of_one_socket_leaves_the_others_alone(wait: dict[str, int]) -> None:
    """A pending ICMP error is counted once, and all sockets are served on."""
    with several(2) as (socks, receiver):
        with receiving_socket() as gone:
            refused_at = gone.getsockname()
        socks[0].connect(refused_at)
        socks[0].send(b"nobody is there")
        receiver.start(**wait)
        wait_until("the error", lambda: receiver.stats[0].errors == 1)
        deliver(socks[1], [datagram(0)])
        wait_until("the datagram", lambda: receiver.read() == 1)
        stats = receiver.stop()
    assert (stats["errors"], stats["last_errno"]) == (1, errno.ECONNREFUSED)


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", ALL.values(), ids=ALL.keys())
def test_a_worker_that_hangs_reads_no_more(wait: dict[str, int]) -> None:
    """From its time on it reads nothing, keeps its socket, and leaves at stop."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        at_ns = time.monotonic_ns() + SECOND_NS // 5
        receiver.start(**wait, fault=lib.UB_FAULT_HANG, fault_at_ns=at_ns)
        deliver(sock, [datagram(0)])
        wait_until("one read", lambda: receiver.read() == 1)
        calls = settled(receiver, at_ns)
        deliver(sock, [datagram(1)])
        assert receiver.threads[0].is_alive()
        stats = receiver.stop()
        assert sock.recv(64) == datagram(1)
    assert (stats["read_packets"], stats["receive_calls"]) == (1, calls)


def settled(receiver: Receiving, at_ns: int) -> int:
    """Return the calls that a worker had made when it hung."""
    # A call that began before the time may last as long as the socket's timeout.
    wait_until("the time", lambda: time.monotonic_ns() > at_ns + SECOND_NS // 2)
    return int(receiver.stats[0].receive_calls)


@pytest.mark.parametrize("wait", ALL.values(), ids=ALL.keys())
def test_a_worker_that_exits_leaves_its_loop(wait: dict[str, int]) -> None:
    """The loop returns by itself, without an error, and what it counted stays."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        at_ns = time.monotonic_ns() + SECOND_NS // 2
        receiver.start(**wait, fault=lib.UB_FAULT_EXIT, fault_at_ns=at_ns)
        deliver(sock, [datagram(0)])
        receiver.threads[0].join(20)
        assert not receiver.threads[0].is_alive()
        assert time.monotonic_ns() >= at_ns
        assert receiver.stop()["read_packets"] == 1


def test_a_fault_that_never_comes_changes_nothing() -> None:
    """A hang after the end of time leaves the loop as it is."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        later: dict[str, Any] = {"fault": lib.UB_FAULT_HANG, "fault_at_ns": 2**64 - 1}
        stats = receiver.receive([datagram(n) for n in range(10)], **later)
    assert stats["received_packets"] == 10
