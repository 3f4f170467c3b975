"""The receiving loop: what each datagram counts as, alone and with company, and when it leaves."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import (
    RECEIVE_ERRORS,
    SECOND_NS,
    TAG,
    Receiving,
    Sending,
    change,
    closed_port,
    datagram,
    drops,
    guards,
    receiving_socket,
    refusal,
    sending_socket,
)
from waiting import wait_for_loopback, wait_until

from udpbench._native import ffi, lib

NAMES = ("received", "duplicate", "late", "ancient", "foreign", "foreign_size", "truncated")
NAMES += ("corrupt",)


def by_kind(stats: dict[str, int]) -> dict[str, int]:
    """Return the counts of datagrams by kind that are not 0."""
    return {name: stats[f"{name}_packets"] for name in NAMES if stats[f"{name}_packets"]}


def receive(datagrams: list[bytes], *, flow_count: int = 1, **changes: Any) -> dict[str, int]:
    """Return what one worker makes of these datagrams."""
    with receiving_socket() as sock:
        return Receiving(ffi, lib, sock, flow_count).receive(datagrams, **changes)


# --- what a datagram counts as -------------------------------------------------------------------

CASES: dict[str, tuple[list[bytes], dict[str, int]]] = {
    "in order": ([datagram(n) for n in range(100)], {"received": 100}),
    "twice": ([datagram(n) for n in (0, 1, 1, 2, 0)], {"received": 3, "duplicate": 2}),
    "late": ([datagram(n) for n in (0, 5, 3, 4, 6)], {"received": 5, "late": 2}),
    "late and twice": (
        [datagram(n) for n in (64, 3, 3, 65, 3)],
        {"received": 3, "late": 1, "duplicate": 2},
    ),
    "across the wrap": (
        [datagram(n) for n in (2**48 - 2, 2**48 - 1, 0, 1, 2**48 - 1)],
        {"received": 4, "duplicate": 1},
    ),
    "below the window": (
        [datagram(n) for n in (0, 1024 * 32 + 1, 1, 1)],
        {"received": 2, "ancient": 2},
    ),
    "another tag": ([datagram(0), datagram(1, tag=TAG + 1)], {"received": 1, "foreign": 1}),
    "another flow": ([datagram(0), datagram(0, flow=1)], {"received": 1, "foreign": 1}),
    "too short for a header": ([b"x" * 17, b""], {"foreign": 2}),
    "not our size": (
        [datagram(0, size_bytes=31), datagram(1, size_bytes=33), datagram(1)],
        {"received": 1, "corrupt": 2},
    ),
    "longer than the room": ([datagram(0, size_bytes=2049), datagram(0)],
                             {"received": 1, "truncated": 1}),
    "a long stranger": ([datagram(0, tag=1, size_bytes=2049)], {"foreign": 1}),
}  # fmt: skip


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize(("datagrams", "expected"), CASES.values(), ids=CASES.keys())
def test_every_datagram_is_told_apart(
    datagrams: list[bytes], expected: dict[str, int], batch: int
) -> None:
    """Every datagram counts as one kind, the same in one batch as one by one."""
    stats = receive(datagrams, batch=batch)
    assert expected == by_kind(stats)
    assert stats["read_packets"] == len(datagrams)
    assert stats["received_bytes"] == 32 * expected.get("received", 0)


def timed(sequence: int, flow: int, time_ns: int, size_bytes: int = 32) -> bytes:
    """Return a datagram that was due at a time since the epoch, with the pattern of `verify`."""
    header = datagram(sequence, flow)[:12] + time_ns.to_bytes(6, "big")
    return header + bytes(range(len(header), size_bytes))


@st.composite
def mixtures(draw: st.DrawFn) -> list[bytes]:
    """Return stretches in order, with repeats, strangers, tails and other times between."""
    datagrams: list[bytes] = []
    for _ in range(draw(st.integers(1, 4))):
        flow, time_ns = draw(st.integers(0, 1)), draw(st.sampled_from([0, 3600 * SECOND_NS]))
        first = draw(st.sampled_from([0, 20, 31, 32, 40, 64, 2**48 - 40]))
        numbers = [(first + n) % 2**48 for n in range(draw(st.integers(1, 70)))]
        datagrams += [timed(number, flow, time_ns) for number in numbers]
        between = st.sampled_from(
            [
                timed(numbers[-1], flow, time_ns),
                timed((numbers[-1] + 1) % 2**48, flow, 3600 * SECOND_NS - time_ns),
                timed((numbers[-1] + 1) % 2**48, flow, time_ns, size_bytes=20),
                timed((numbers[-1] + 1) % 2**48, flow, time_ns, size_bytes=33),
                timed((numbers[-1] + 1) % 2**48, flow, time_ns, size_bytes=47),
                timed((numbers[-1] + 1) % 2**48, 1 - flow, time_ns),
                datagram((numbers[-1] + 1) % 2**48, flow, tag=TAG + 1),
                datagram((numbers[-1] + 1) % 2**48, flow),
                b"",
            ]
        )
        datagrams += draw(st.lists(between, max_size=3))
    return datagrams


@pytest.mark.parametrize("read", [lib.UB_READ_HEADER, lib.UB_READ_VERIFY])
@settings(max_examples=100)
@given(datagrams=mixtures())
def test_datagrams_in_order_count_as_each_by_itself(read: int, datagrams: list[bytes]) -> None:
    """What one call returns comes to the same counts, totals and delays as one call for each."""
    results = []
    for batch in (1, 64):
        histogram = ffi.new("struct ub_histogram *")
        with receiving_socket() as sock:
            receiver = Receiving(ffi, lib, sock, flow_count=2, words=64)
            noted = {"delay": histogram, "epoch_ns": time.monotonic_ns()}
            stats = receiver.receive(datagrams, batch=batch, read=read, sizes=[32, 20, 47], **noted)
            counts = {name: stats[f"{name}_packets"] for name in (*NAMES, "read")}
            delays = (histogram.below_zero, sum(histogram.counts))
            totals = [receiver.totals(flow) for flow in range(2)]
        results.append((counts, stats["received_bytes"], delays, totals))
    assert results[0] == results[1]


def test_a_room_below_the_header_truncates_all() -> None:
    """Where not even the header fits, a datagram is truncated; whose it was cannot be told."""
    assert by_kind(receive([datagram(0), datagram(1)], room_bytes=8)) == {"truncated": 2}


def test_flows_have_windows_of_their_own() -> None:
    """Equal numbers of different flows are different packets, interleaved within a batch too."""
    datagrams = [datagram(n, flow) for n in range(40) for flow in (0, 1, 2)]
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock, flow_count=3)
        stats = receiver.receive(datagrams)
    assert by_kind(stats) == {"received": 120}
    assert [receiver.totals(flow) for flow in range(3)] == [(40, 40)] * 3


def test_totals_tell_packets_and_highest() -> None:
    """A flow's totals are its distinct packets and its highest number plus 1; 0 is none."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock, flow_count=2)
        receiver.receive([datagram(n) for n in (7, 3, 7)])
    assert (receiver.totals(0), receiver.totals(1)) == ((2, 8), (0, 0))


def test_stamps_are_of_our_datagrams_alone() -> None:
    """Strangers set no first or last time; ours do, on the monotonic clock."""
    strange = receive([datagram(0, tag=1)])
    assert (strange["first_ns"], strange["last_ns"]) == (0, 0)
    before_ns = time.monotonic_ns()
    ours = receive([datagram(0), datagram(1)], batch=1)
    assert before_ns <= ours["first_ns"] < ours["last_ns"] <= time.monotonic_ns()
    assert ours["last_cpu"] >= 1


def test_what_came_with_the_first_stamp_is_reported() -> None:
    """Calls of four: the first one's packets and bytes are known, strangers and all not."""
    strange = [datagram(9, tag=1)]
    ours = receive(strange * 4 + strange + [datagram(n) for n in range(10)], batch=4)
    assert (10, 3, 3 * 32) == (ours["received_packets"], ours["first_packets"], ours["first_bytes"])


# --- together with the sender --------------------------------------------------------------------


def test_conservation_with_a_small_buffer() -> None:
    """Sent is received plus dropped by the socket, packet by packet, and the window agrees."""
    with receiving_socket(buffer_bytes=16 * 1024) as sock:
        sender = Sending(ffi, lib, [sending_socket(sock.getsockname())])
        sent = sender.run(count=20_000, batch=1024)
        receiver = Receiving(ffi, lib, sock)
        receiver.start()
        more = Sending(ffi, lib, sender.sockets, sequences=[sender.next[0]]).run(count=20_000)
        sent_packets = sent["sent_packets"] + more["sent_packets"]
        wait_until("all read or dropped", lambda: receiver.read() + drops(sock) == sent_packets)
        stats = receiver.stop()
        lost = drops(sock)
    assert sent_packets == 40_000
    assert lost > 0
    assert by_kind(stats) == {"received": sent_packets - lost}
    assert receiver.totals()[0] == sent_packets - lost


def test_workers_share_a_socket_and_the_windows() -> None:
    """Two workers on one socket see each packet once between them, whoever read it."""
    flows = 3
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock, flows, workers=2)
        receiver.start()
        sockets = [sending_socket(sock.getsockname()) for _ in range(flows)]
        sender = Sending(ffi, lib, sockets, list(range(flows)))
        sent = sender.run(count=60_000, batch=32)["sent_packets"]
        again = Sending(ffi, lib, sockets, list(range(flows)), sequences=[59_000 // flows] * flows)
        again.run(count=300, batch=32)
        total = sent + 300
        wait_until("all read or dropped", lambda: receiver.read() + drops(sock) == total)
        stats = receiver.stop()
        lost = drops(sock)
    distinct = sum(receiver.totals(flow)[0] for flow in range(flows))
    assert stats["read_packets"] == total - lost
    assert distinct == stats["received_packets"]
    assert stats["duplicate_packets"] + stats["received_packets"] == total - lost
    assert (stats["duplicate_packets"] == 300) or lost > 0


# --- slow readers, stop, errors ------------------------------------------------------------------


def test_work_is_spent_on_every_datagram() -> None:
    """A reader with 2 ms of work a datagram takes 2 ms a datagram or longer."""
    began_ns = time.monotonic_ns()
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        with sending_socket(sock.getsockname()) as sender:
            for n in range(40):
                sender.send(datagram(n))
        receiver.start(work_ns=2_000_000, batch=8)
        wait_until("40 read", lambda: receiver.read() == 40)
        took_ns = time.monotonic_ns() - began_ns
        receiver.stop()
    # The last batch is counted before its work is done.
    assert took_ns >= 32 * 2_000_000


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """Let threads that begin now share one CPU."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.usefixtures("one_cpu")
def test_work_is_cpu_time_of_the_thread() -> None:
    """Four readers on one CPU do all their work, one after the other: but for their last batch."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock, workers=4)
        receiver.receive([datagram(n) for n in range(40)], work_ns=5_000_000, batch=1)
    assert sum(receiver.cpu_ns) >= 36 * 5_000_000


def cost_ns(work_ns: int) -> float:
    """Return what a datagram costs a reader of merged messages, all of its work done."""
    with receiving_socket(gro=True) as sock, sending_socket(sock.getsockname()) as giver:
        sent = Sending(ffi, lib, [giver]).run(count=3200, gso_segments=50)["sent_packets"]
        receiver = Receiving(ffi, lib, sock)
        receiver.start(gro=1, room_bytes=65535, work_ns=work_ns, batch=8)
        wait_until("all read", lambda: receiver.read() == sent)
        wait_until("the last work done", lambda: receiver.stats[0].empty_calls > 0)
        receiver.stop()
        return receiver.cpu_ns[0] / sent


@pytest.mark.parametrize(("work_ns", "within"), [(20_000, 0.02), (1000, 0.2)])
def test_work_is_exact(work_ns: int, within: float) -> None:
    """What a datagram costs more with work than without is the work, once other tests let it."""
    worked = plain = float("inf")
    for _ in range(50):
        worked, plain = min(worked, cost_ns(work_ns)), min(plain, cost_ns(0))
        if work_ns == pytest.approx(worked - plain, rel=within):
            return
    pytest.fail(f"{worked - plain:.0f} ns instead of {work_ns}")


def test_stop_ends_work_and_counts_what_was_read() -> None:
    """Stop within a batch of long work leaves at once; what was read counts, the rest stays."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        with sending_socket(sock.getsockname()) as sender:
            for n in range(30):
                sender.send(datagram(n))
        receiver.start(work_ns=SECOND_NS, batch=20)
        wait_until("the first batch", lambda: receiver.read() == 20)
        began = time.monotonic()
        stats = receiver.stop()
        assert time.monotonic() - began < 1
        assert by_kind(stats) == {"received": 20}
        wait_for_loopback()
        left = [sock.recv(2048) for _ in range(10)]
    assert [datagram(n) for n in range(20, 30)] == left


def test_silence_is_counted_and_stop_is_seen() -> None:
    """Calls that time out are counted as empty, and stop is seen after one of them."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        receiver.start()
        wait_until("two empty calls", lambda: receiver.stats[0].empty_calls >= 2)
        began = time.monotonic()
        stats = receiver.stop()
    assert time.monotonic() - began < 1
    assert stats["receive_calls"] == stats["empty_calls"]
    assert (stats["read_packets"], stats["errors"]) == (0, 0)


def test_an_error_is_counted_and_the_loop_goes_on() -> None:
    """A pending ICMP error comes out of one call; later datagrams are read all the same."""
    refused_at = closed_port()
    with receiving_socket() as sock:
        sock.connect(refused_at)
        sock.send(b"nobody is there")
        receiver = Receiving(ffi, lib, sock)
        receiver.start()
        wait_until("the error", lambda: receiver.stats[0].errors == 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind(refused_at)
            sender.sendto(datagram(0), sock.getsockname())
            wait_until("the datagram", lambda: receiver.read() == 1)
        stats = receiver.stop()
    assert stats["last_errno"] == errno.ECONNREFUSED
    assert by_kind(stats) == {"received": 1}


@pytest.mark.parametrize(
    "call", [lib.UB_RECEIVE_RECV, lib.UB_RECEIVE_RECVMMSG], ids=["one", "batch"]
)
@pytest.mark.parametrize("number", RECEIVE_ERRORS, ids=errno.errorcode.get)
def test_every_errno_of_a_socket_is_counted(
    scripted: tuple[Any, Any], number: int, call: int
) -> None:
    """Before and between calls that bring datagrams, each of which comes once all the same."""
    fake_ffi, fake_lib = scripted
    failures = fake_ffi.new("int32_t[]", [number, 0, number, number])
    with receiving_socket() as sock:
        receiver = Receiving(*scripted, sock)
        fake_lib.fake_receive_failures(failures, len(failures))
        stats = receiver.receive([datagram(n) for n in range(20)], call=call, batch=7)
    assert by_kind(stats) == {"received": 20}
    silent = number in (errno.EAGAIN, errno.EINTR)
    assert (stats["errors"], stats["last_errno"]) == ((0, 0) if silent else (3, number))
    assert stats["empty_calls"] >= (3 if number == errno.EAGAIN else 0)


def test_a_signal_is_neither_an_error_nor_silence() -> None:
    """A call that a signal ended is made again, and counts as nothing but a call."""
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: None)
    try:
        with receiving_socket() as sock:
            receiver = Receiving(ffi, lib, sock)
            receiver.start()
            (thread,), (stats,) = receiver.threads, receiver.stats

            def interrupted() -> bool:
                signal.pthread_kill(thread.ident, signal.SIGUSR1)
                return stats.receive_calls > stats.empty_calls + 1

            wait_until("an interrupted call", interrupted)
            assert receiver.stop()["errors"] == 0
    finally:
        signal.signal(signal.SIGUSR1, before)


# --- guards --------------------------------------------------------------------------------------

FAKE_WAY, FAKE_WAY_OF_ALL_WAITS = 900, 901
"""As in fake_kernel.c."""
HISTOGRAM = ffi.new("struct ub_histogram *")
BAD = {
    "call": {"call": 899},
    "merged without a size": {"call": lib.UB_RECEIVE_URING, "gro": 1},
    "wait": {"wait": 5},
    "read": {"read": 5},
    "fault": {"fault": 3},
    "no batch": {"batch": 0},
    "batch beyond UIO_MAXIOV": {"batch": 1025},
    "no room": {"room_bytes": 0},
    "room beyond IP": {"room_bytes": 65537},
    "no datagram": {"sizes": []},
    "no datagrams": {"datagrams": ffi.NULL},
    "size below the header": {"sizes": [17]},
    "size below the header to verify": {"sizes": [17], "read": lib.UB_READ_VERIFY},
    "size beyond UDP": {"sizes": [65536]},
    "another below the header": {"sizes": [32, 17]},
    "another beyond UDP": {"sizes": [0, 65536], "read": lib.UB_READ_COPY},
    "a nap of nothing": {"wait": lib.UB_WAIT_NAP},
    "an automatic nap of nothing": {"wait": lib.UB_WAIT_AUTO},
    "a nap beyond a day": {"wait": lib.UB_WAIT_NAP, "nap_ns": 86400 * 10**9 + 1},
    "a long nap beyond a day": {"nap_most_ns": 86400 * 10**9 + 1},
    "two sockets to block on": {"socket_count": 2},
    "more sockets than can be": {"socket_count": 65537, "wait": lib.UB_WAIT_SPIN},
    "no socket": {"socket_count": 0},
    "no sockets": {"sockets": ffi.NULL},
    "no flow": {"flow_count": 0},
    "more flows than numbers": {"flow_count": 65537},
    "no window": {"window_words": 0},
    "window no power of two": {"window_words": 1000},
    "window too large": {"window_words": 2**25},
    "work beyond a second": {"work_ns": 10**9 + 1},
    "no flow memory": {"flows": ffi.NULL},
    "no control": {"control": ffi.NULL},
    "echoes without headers": {"echo_every": 1, "read": lib.UB_READ_COPY},
    "stamps without headers": {"timestamps": 1, "read": lib.UB_READ_NONE},
    "stamps without a histogram": {"timestamps": 1},
    "stamps without the other": {"timestamps": 1, "stack": HISTOGRAM},
    "a client's packets without streams": {"read": lib.UB_READ_IPERF3},
    "more streams than flows": {
        "read": lib.UB_READ_IPERF3,
        "streams": ffi.new("struct ub_iperf3_stream[2]"),
        "socket_count": 2,
        "wait": lib.UB_WAIT_SPIN,
    },
    "a log without a ring": {"log": ffi.new("struct ub_log *")},
    "a log of what is not copied": {
        "log": ffi.new("struct ub_log *"),
        "read": lib.UB_READ_NONE,
    },
}
"""What is wrong → the config's changes."""


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD.keys())
def test_a_bad_config_is_refused(changes: dict[str, Any]) -> None:
    """Each guard refuses with -EINVAL before anything is read."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        change(ffi, receiver.config, changes)
        assert lib.ub_receive(receiver.config, receiver.stats[0]) == -errno.EINVAL


def test_every_guard_names_its_field(scripted: tuple[Any, Any]) -> None:
    """All that C may refuse is refused here, and says of which field."""
    fake_ffi, fake_lib = scripted
    check = lib.ub_receive_check
    with receiving_socket() as sock, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forever:
        receiver, hanging = Receiving(ffi, lib, sock), Receiving(ffi, lib, forever)
        bad = [(receiver.config, changes) for changes in BAD.values()]
        bad += [(hanging.config, {}), (ffi.NULL, {})]
        refused = {refusal(ffi, check, config, changes) for config, changes in bad}
        waiting = Receiving(fake_ffi, fake_lib, sock)
        changes = {"call": FAKE_WAY, "wait": lib.UB_WAIT_EPOLL}
        refused |= {refusal(fake_ffi, fake_lib.ub_receive_check, waiting.config, changes)}
        assert "" == refusal(ffi, check, receiver.config, {})
    assert guards("receiver.c") | guards("window.c") == refused
    fields = {name for name, _ in ffi.typeof("struct ub_receive_config").fields}
    assert {"config"} == {text.partition(":")[0] for text in refused} - fields


def test_a_way_that_waits_itself_takes_no_other_wait(scripted: tuple[Any, Any]) -> None:
    """A way of receiving says which waits it goes with; nothing of it is prepared otherwise."""
    fake_ffi, fake_lib = scripted
    fake_lib.fake_way(0)
    with receiving_socket() as sock:
        receiver = Receiving(fake_ffi, fake_lib, sock)
        for name in ("EPOLL", "SPIN", "NAP", "AUTO"):
            wait = getattr(lib, f"UB_WAIT_{name}")
            receiver.config.call, receiver.config.wait, receiver.config.nap_ns = FAKE_WAY, wait, 1
            result = fake_lib.ub_receive(receiver.config, receiver.stats[0])
            assert -errno.EINVAL == result
        assert (0, 0) == (fake_lib.fake_way_prepared(), fake_lib.fake_way_released())
        received = receiver.receive([datagram(0), datagram(1)], wait=lib.UB_WAIT_BLOCK)
    assert 2 == received["received_packets"]
    assert (1, 1) == (fake_lib.fake_way_prepared(), fake_lib.fake_way_released())


@pytest.mark.parametrize("read", [lib.UB_READ_HEADER, lib.UB_READ_VERIFY])
def test_a_way_that_cannot_be_prepared_is_released(scripted: tuple[Any, Any], read: int) -> None:
    """What a way got before it failed is given back, its error is the loop's, and nothing is read."""
    fake_ffi, fake_lib = scripted
    fake_lib.fake_way(errno.EPERM)
    with receiving_socket() as sock:
        receiver = Receiving(fake_ffi, fake_lib, sock)
        receiver.config.call, receiver.config.read = FAKE_WAY, read
        assert -errno.EPERM == fake_lib.ub_receive(receiver.config, receiver.stats[0])
    assert (1, 1) == (fake_lib.fake_way_prepared(), fake_lib.fake_way_released())
    assert 0 == receiver.stats[0].receive_calls


def test_a_way_that_was_not_prepared_is_not_released(scripted: tuple[Any, Any]) -> None:
    """What the loop lacks before concerns no way."""
    fake_ffi, fake_lib = scripted
    fake_lib.fake_way(0)
    with receiving_socket() as sock:
        receiver = Receiving(fake_ffi, fake_lib, sock)
        receiver.config.call, receiver.config.read = FAKE_WAY, lib.UB_READ_VERIFY
        fake_lib.fake_memory(0)
        result = fake_lib.ub_receive(receiver.config, receiver.stats[0])
        fake_lib.fake_memory(2**32 - 1)
    assert -errno.ENOMEM == result
    assert (0, 0) == (fake_lib.fake_way_prepared(), fake_lib.fake_way_released())


def test_a_way_is_released_if_the_wait_cannot_be_prepared(scripted: tuple[Any, Any]) -> None:
    """A wait that lacks memory ends the loop; the way before it is released once."""
    fake_ffi, fake_lib = scripted
    fake_lib.fake_way(0)
    with receiving_socket() as sock:
        receiver = Receiving(fake_ffi, fake_lib, sock)
        receiver.config.call, receiver.config.wait = FAKE_WAY_OF_ALL_WAITS, lib.UB_WAIT_EPOLL
        fake_lib.fake_memory(3)  # those of the way
        result = fake_lib.ub_receive(receiver.config, receiver.stats[0])
        fake_lib.fake_memory(2**32 - 1)
    assert -errno.ENOMEM == result
    assert (1, 1) == (fake_lib.fake_way_prepared(), fake_lib.fake_way_released())


def test_nothing_at_all_is_refused() -> None:
    """A missing config or stats struct is refused, not dereferenced."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        assert lib.ub_receive(ffi.NULL, receiver.stats[0]) == -errno.EINVAL
        assert lib.ub_receive(receiver.config, ffi.NULL) == -errno.EINVAL


def test_a_socket_that_could_hang_is_refused() -> None:
    """A socket without SO_RCVTIMEO would never see stop: refused; so is what is no socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forever:
        receiver = Receiving(ffi, lib, forever)
        assert lib.ub_receive(receiver.config, receiver.stats[0]) == -errno.EINVAL
    receiver.sockets[0] = -1
    assert lib.ub_receive(receiver.config, receiver.stats[0]) == -errno.EINVAL
    refused = refusal(ffi, lib.ub_receive_check, receiver.config, {})
    assert "sockets: open ones, with SO_RCVTIMEO set" == refused


NEEDS = {"plain": ({}, 3), "everything": ({"gro": 1, "read": lib.UB_READ_VERIFY, "wait": 1}, 6)}
SHORT = [(more, allocated) for more, needed in NEEDS.values() for allocated in range(needed)]


@pytest.mark.parametrize(("more", "allocations"), SHORT)
def test_too_little_memory_is_reported(
    scripted: tuple[Any, Any], more: dict[str, int], allocations: int
) -> None:
    """Where any of the buffers cannot be had the loop says so and reads nothing."""
    with receiving_socket() as sock:
        receiver = Receiving(*scripted, sock)
        for name, value in more.items():
            setattr(receiver.config, name, value)
        scripted[1].fake_memory(allocations)
        result = scripted[1].ub_receive(receiver.config, receiver.stats[0])
        scripted[1].fake_memory(2**32 - 1)
    assert (result, receiver.stats[0].receive_calls) == (-errno.ENOMEM, 0)


def test_python_runs_while_a_loop_does() -> None:
    """The loops let go of Python's lock: another thread counts on while one of them waits."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        receiver.start()
        ran = threading.Event()
        threading.Thread(target=ran.set).start()
        assert ran.wait(20)
        receiver.stop()
