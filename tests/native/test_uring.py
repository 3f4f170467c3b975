"""Sending and receiving by io_uring: exact, whatever the kernel refuses, ends or has no room for."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import (
    HAS_URING,
    RECEIVE_ERRORS,
    SECOND_NS,
    SEND_ERRORS,
    SEND_RETRIED,
    TIMEOUT,
    Receiving,
    Sending,
    closed_port,
    datagram,
    drops,
    receiving_socket,
    sending_socket,
    slow_sockets,
)
from waiting import wait_for_loopback, wait_until

from udpbench._native import ffi, lib
from udpbench.model.experiment import Receive
from udpbench.ways import way_to_receive

pytestmark = pytest.mark.skipif(not HAS_URING, reason="this kernel gives this user no io_uring")

SEND, RECEIVE = {"call": lib.UB_SEND_URING}, {"call": lib.UB_RECEIVE_URING}
WAITS: dict[str, dict[str, int]] = {
    "block": {},
    "spin": {"wait": lib.UB_WAIT_SPIN},
    "nap": {"wait": lib.UB_WAIT_NAP, "nap_ns": 100_000},
    "auto": {"wait": lib.UB_WAIT_AUTO, "nap_ns": 100_000},
}
RETRIED = {**SEND_RETRIED, errno.EINTR: "io_uring/net.c, io_send: instead of ERESTARTSYS"}
USED_UP = {
    **SEND_ERRORS,
    errno.EBADF: "io_uring/io_uring.c, io_assign_file: closed",
    errno.ECANCELED: "io_uring/timeout.c, io_req_tw_fail_links: another of the chain failed",
    errno.ENOMEM: "io_uring/net.c, io_sendmsg_prep: no memory for the message",
    errno.ENOTSOCK: "io_uring/net.c, io_send: no socket",
}
ENDS = {
    **RECEIVE_ERRORS,
    errno.EBADF: "io_uring/io_uring.c, io_assign_file: closed",
    errno.EBADFD: "io_uring/io_uring.c, io_wq_submit_work: cannot be polled",
    errno.ECANCELED: "io_uring/poll.c, io_poll_check_events: cancelled",
    errno.EINTR: "io_uring/net.c, io_recv: instead of ERESTARTSYS",
    errno.EINVAL: "io_uring/net.c, io_recvmsg_prep: flags of a later kernel",
    errno.ENOMEM: "io_uring/poll.c, __io_arm_poll_handler: no memory to wait",
    errno.ENOTSOCK: "io_uring/net.c, io_recv: no socket",
}
SILENT = {errno.EAGAIN, errno.EINTR}
"""Nothing came, or a signal did."""


@pytest.fixture
def rings(scripted: tuple[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Give the loops over a kernel of our own, and leave the real rings to those after."""
    yield scripted
    scripted[1].fake_uring_real(0)


# --- sending, over a kernel that does as it is told ----------------------------------------------


def chained(
    rings: tuple[Any, Any], *chains: tuple[int, int, int], **changes: Any
) -> tuple[dict[str, int], list[int]]:
    """Send over chains that end so; the counts, and the numbers that went out, in order."""
    fake_ffi, fake_lib = rings
    script = fake_ffi.new("struct fake_chain[]", [list(chain) for chain in chains] or [[0, 0, 0]])
    fake_lib.fake_uring_chains(script, len(chains))
    with sending_socket(("127.0.0.1", 9)) as sock:
        sender = Sending(fake_ffi, fake_lib, [sock])
        stats = sender.run(**{"count": 24, "batch": 8, **SEND, **changes})
        assert sender.next[0] == stats["sent_packets"]
    log = fake_ffi.new("uint64_t[4096]")
    return stats, list(log[0 : fake_lib.fake_uring_taken(log)])


def conserved(stats: dict[str, int], numbers: list[int]) -> None:
    """See that each attempt was sent or has its error, and each number went out once, in order."""
    used_up = ("eperm", "econnrefused", "emsgsize", "other_errors")
    attempts = stats["sent_packets"] + sum(stats[name] for name in used_up)
    assert stats["attempted_packets"] == attempts
    assert list(range(stats["sent_packets"])) == numbers


@pytest.mark.drawn(27)
@pytest.mark.parametrize("place", [0, 3, 7])
@pytest.mark.parametrize("number", {**RETRIED, **USED_UP})
def test_every_errno_of_the_kernel_is_conserved(
    rings: tuple[Any, Any], number: int, place: int
) -> None:
    """Wherever in a chain one fails, and fails again when it is offered first."""
    stats, numbers = chained(rings, (0, place, number), (0, 0, number), (0, 0, number))
    conserved(stats, numbers)
    lost = 24 - stats["sent_packets"]
    assert (lost > 0) == (number in USED_UP)
    assert (24, lost) == (stats["attempted_packets"], 24 - len(numbers))
    named = {errno.EPERM, errno.ECONNREFUSED, errno.EMSGSIZE, *RETRIED}
    assert stats["last_errno"] == (0 if number in named else number)


@given(
    chains=st.lists(
        st.tuples(
            st.integers(-1, 9),
            st.integers(0, 8),
            st.sampled_from([0, *RETRIED, *USED_UP]),
        ),
        max_size=40,
    )
)
def test_any_order_of_errors_is_conserved(
    scripted: tuple[Any, Any], chains: list[tuple[int, int, int]]
) -> None:
    """Chains that fail anywhere, or that the kernel takes in part; -1 refuses the call."""
    refusals = [(-errno.ENOMEM if accepts < 0 else accepts, *rest) for accepts, *rest in chains]
    try:
        conserved(*chained(scripted, *refusals, count=100))
    finally:
        scripted[1].fake_uring_real(0)


def test_what_the_kernel_has_no_memory_for_is_offered_again(rings: tuple[Any, Any]) -> None:
    """A call that takes the first 5 of a chain, one of which fails, then calls that take none."""
    short = -errno.EAGAIN
    stats, numbers = chained(rings, (5, 3, errno.EPERM), (short, 0, 0), (-errno.EINTR, 0, 0))
    conserved(stats, numbers)
    assert 24 == stats["sent_packets"]


def test_an_error_for_ever_ends_with_the_time(rings: tuple[Any, Any]) -> None:
    """A socket that is said to have room and takes nothing holds no call."""
    fake_ffi, fake_lib = rings
    script = fake_ffi.new("struct fake_chain[]", [[0, 0, errno.EAGAIN]] * 10**6)
    fake_lib.fake_uring_chains(script, len(script))
    with sending_socket(("127.0.0.1", 9)) as sock:
        sender = Sending(fake_ffi, fake_lib, [sock], duration_ns=SECOND_NS // 20)
        stats = sender.run(**SEND)
    assert (0, True) == (stats["sent_packets"], stats["eagain"] > 0)
    assert stats["last_ns"] < sender.config.end_ns + SECOND_NS


# --- receiving, over a kernel that does as it is told --------------------------------------------


def receive(rings: tuple[Any, Any], events: list[int], **changes: Any) -> dict[str, int]:
    """Receive what comes so, until all of it has come; the counts."""
    fake_ffi, fake_lib = rings
    script = fake_ffi.new("int32_t[]", events)
    fake_lib.fake_uring_events(script, len(events))
    with receiving_socket() as sock:
        receiver = Receiving(fake_ffi, fake_lib, sock)
        receiver.start(**{"batch": 4, **RECEIVE, **changes})
        datagrams = sum(event if event > 0 else event == 0 for event in events)
        errors = sum(event < 0 and -event not in SILENT for event in events)
        stats = receiver.stats[0]
        wait_until("all has come", lambda: (receiver.read(), stats.errors) == (datagrams, errors))
        return receiver.stop()


@pytest.mark.drawn(25)
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
@pytest.mark.parametrize("number", ENDS)
def test_every_errno_that_ends_a_request_is_counted(
    rings: tuple[Any, Any], number: int, wait: dict[str, int]
) -> None:
    """With what came before it, also in the same call, and all that comes after."""
    stats = receive(rings, [3, -number, 2, -number, -number, 9], **wait)
    assert (14, 0) == (stats["received_packets"], stats["late_packets"])
    assert (stats["errors"], stats["last_errno"]) == ((0, 0) if number in SILENT else (3, number))


@given(st.lists(st.integers(0, 20) | st.sampled_from([-number for number in ENDS]), max_size=30))
def test_any_order_of_arrivals_is_conserved(scripted: tuple[Any, Any], events: list[int]) -> None:
    """Each datagram once, whether buffers were there for it, and those without payload."""
    try:
        stats = receive(scripted, events)
    finally:
        scripted[1].fake_uring_real(0)
    empty = events.count(0)
    assert (stats["received_packets"], stats["foreign_packets"]) == (
        sum(event for event in events if event > 0),
        empty,
    )


# --- over the kernel -----------------------------------------------------------------------------


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
@pytest.mark.parametrize("batch", [1, 4, 512])
def test_used_up_buffers_lose_nothing(batch: int, wait: dict[str, int]) -> None:
    """1003 datagrams that wait at once, with buffers for few: each once, in order."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        stats = receiver.receive([datagram(n) for n in range(1003)], batch=batch, **RECEIVE, **wait)
    assert (1003, 0, 0) == tuple(
        stats[f"{name}_packets"] for name in ("received", "late", "foreign")
    )
    assert 0 == stats["errors"]
    assert stats["receive_calls"] - stats["empty_calls"] >= 1003 // (batch + 1)


def test_what_overflows_is_the_kernels_count() -> None:
    """Received and dropped are sent: a ring takes nothing out of the socket that is not read."""
    with receiving_socket(buffer_bytes=1) as sock:
        with sending_socket(sock.getsockname()) as giver:
            for n in range(1003):
                giver.send(datagram(n))
        wait_for_loopback()
        lost = drops(sock)
        receiver = Receiving(ffi, lib, sock)
        receiver.start(**RECEIVE, batch=2)
        wait_until("the rest read", lambda: receiver.read() == 1003 - lost)
        assert receiver.stop()["received_packets"] == 1003 - lost
    assert 0 < lost < 1003


@pytest.mark.parametrize("read", [lib.UB_READ_HEADER, lib.UB_READ_NONE, lib.UB_READ_COPY])
def test_datagrams_without_payload_are_received(read: int) -> None:
    """Each ends the request, which is made again; none is lost, nor what is behind it."""
    payloads = [datagram(n) if n % 3 else b"" for n in range(300)]
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        stats = receiver.receive(payloads, read=read, batch=7, **RECEIVE)
    foreign = "foreign" if read == lib.UB_READ_HEADER else "foreign_size"
    assert (200, 100) == (stats["received_packets"], stats[f"{foreign}_packets"])


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_a_full_ring_of_completions_loses_nothing(
    rings: tuple[Any, Any], wait: dict[str, int]
) -> None:
    """A ring for 2 completions, and buffers for 64 datagrams: the kernel keeps the others."""
    rings[1].fake_uring_real(2)
    with receiving_socket() as sock:
        receiver = Receiving(*rings, sock)
        stats = receiver.receive([datagram(n) for n in range(1003)], batch=64, **RECEIVE, **wait)
    assert (1003, 0, 0) == (stats["received_packets"], stats["late_packets"], stats["errors"])


def test_one_ring_hears_several_sockets() -> None:
    """Also one that fills up while another does not, and those without payload of each."""
    with contextlib.ExitStack() as opened:
        socks = [opened.enter_context(receiving_socket()) for _ in range(5)]
        receiver = Receiving(ffi, lib, socks[0], flow_count=5)
        descriptors = ffi.new("int32_t[]", [sock.fileno() for sock in socks])
        for flow, sock in enumerate(socks):
            giver = opened.enter_context(sending_socket(sock.getsockname()))
            giver.send(b"")
            for n in range(400 if flow == 3 else 10):
                giver.send(datagram(n, flow))
        spin = {"wait": lib.UB_WAIT_SPIN}
        receiver.start(sockets=descriptors, socket_count=5, batch=4, **RECEIVE, **spin)
        wait_until("445 read", lambda: receiver.read() == 445)
        stats = receiver.stop()
    assert (440, 5) == (stats["received_packets"], stats["foreign_packets"])
    assert [10, 10, 10, 400, 10] == [receiver.totals(flow)[0] for flow in range(5)]


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_what_was_not_read_stays_in_the_socket(wait: dict[str, int]) -> None:
    """Stopped under load: read, dropped, and still in the socket are what was sent."""
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as giver:
        receiver = Receiving(ffi, lib, sock)
        receiver.start(batch=16, work_ns=20_000, **RECEIVE, **wait)
        sender = Sending(ffi, lib, [giver])
        thread = threading.Thread(target=sender.run, kwargs={"count": 1003, "rate_pps": 100_000})
        thread.start()
        wait_until("some read", lambda: receiver.read() > 50)
        read = receiver.stop()["read_packets"]
        thread.join(20)
        wait_for_loopback()
        left = 0
        with contextlib.suppress(BlockingIOError):
            while sock.recv(64, socket.MSG_DONTWAIT):
                left += 1
        assert 1003 == read + left + drops(sock)
    assert left > 0


def test_a_loop_that_has_ended_holds_no_port() -> None:
    """Once its socket is closed the port is free, and no datagram goes to a ring that is left."""
    port = 0
    for _ in range(20):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
            sock.bind(("127.0.0.1", port))
            port = sock.getsockname()[1]
            stats = Receiving(ffi, lib, sock).receive([datagram(0)], **RECEIVE)
            assert 1 == stats["received_packets"]


def test_an_error_is_counted_and_the_loop_goes_on() -> None:
    """A pending ICMP error ends the request, which is made again."""
    refused_at = closed_port()
    with receiving_socket() as sock:
        sock.connect(refused_at)
        sock.send(b"nobody is there")
        receiver = Receiving(ffi, lib, sock)
        receiver.start(**RECEIVE)
        wait_until("the error", lambda: receiver.stats[0].errors == 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as giver:
            giver.bind(refused_at)
            giver.sendto(datagram(0), sock.getsockname())
            wait_until("the datagram", lambda: receiver.read() == 1)
        assert errno.ECONNREFUSED == receiver.stop()["last_errno"]


def test_a_closed_port_refuses_for_real() -> None:
    """The kernel reports it by the next message, which is not sent; none is counted twice."""
    with sending_socket(closed_port()) as sock:
        stats = Sending(ffi, lib, [sock]).run(count=50, batch=1, **SEND)
    assert stats["econnrefused"] > 0
    assert stats["sent_packets"] + stats["econnrefused"] == stats["attempted_packets"] == 50


def test_a_socket_that_drains_slowly_keeps_order_and_end(tmp_path: Path) -> None:
    """Where the buffer is full nothing overtakes, and the end is kept."""
    with slow_sockets(tmp_path / "here") as (reading, writing):
        receiver = Receiving(ffi, lib, reading)
        receiver.start(batch=1, work_ns=10**6)
        sender = Sending(ffi, lib, [writing], duration_ns=SECOND_NS // 5)
        sent = sender.run(batch=1024, **SEND)
        wait_until("all read", lambda: receiver.read() == sent["sent_packets"])
        received = receiver.stop()
    assert sent["sent_packets"] > 20
    assert (sent["sent_packets"], 0) == (received["received_packets"], received["late_packets"])
    assert sent["last_ns"] < sender.config.end_ns + 2 * SECOND_NS


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.ENOMEM])
def test_a_ring_that_cannot_be_had_ends_the_loop(rings: tuple[Any, Any], number: int) -> None:
    """With the kernel's reason, and nothing is sent, read or counted; nor without its buffers."""
    fake_ffi, fake_lib = rings
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as giver:
        sender = Sending(fake_ffi, fake_lib, [giver])
        receiver = Receiving(fake_ffi, fake_lib, sock)
        receiver.config.call = lib.UB_RECEIVE_URING
        fake_lib.fake_uring_refuse(number, 0)
        assert -number == sender.result(**SEND)
        assert -number == fake_lib.ub_receive(receiver.config, receiver.stats[0])
        fake_lib.fake_uring_refuse(0, number)
        assert -number == fake_lib.ub_receive(receiver.config, receiver.stats[0])
    assert (0, 0) == (sender.stats.send_calls, receiver.stats[0].receive_calls)


@pytest.mark.parametrize("allocations", range(6))
def test_too_little_memory_is_reported(scripted: tuple[Any, Any], allocations: int) -> None:
    """Where any of what a ring needs cannot be had, by the loop that needs it."""
    fake_ffi, fake_lib = scripted
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as giver:
        sender, receiver = Sending(fake_ffi, fake_lib, [giver]), Receiving(fake_ffi, fake_lib, sock)
        receiver.config.call = lib.UB_RECEIVE_URING
        fake_lib.fake_memory(min(allocations, 4))
        sent = sender.result(**SEND)
        fake_lib.fake_memory(allocations)
        received = fake_lib.ub_receive(receiver.config, receiver.stats[0])
        fake_lib.fake_memory(2**32 - 1)
    assert (-errno.ENOMEM, -errno.ENOMEM) == (sent, received)


# --- what it is refused with ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"wait": lib.UB_WAIT_EPOLL}, {"gro": 1}, {"timestamps": 1}, {"echo_every": 1}],
    ids=str,
)
def test_what_does_not_go_with_it_is_refused(changes: dict[str, int]) -> None:
    """By the loops as by the definition, which names the line."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        for name, value in {**RECEIVE, **changes}.items():
            setattr(receiver.config, name, value)
        assert -errno.EINVAL == lib.ub_receive(receiver.config, receiver.stats[0])
    (name,) = changes
    keys = {refusal.key for refusal in way_to_receive(Receive(call="io_uring")).refuses}
    assert name.partition("_")[0] in {key.partition(".")[2] for key in keys}
