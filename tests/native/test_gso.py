"""Merged datagrams: GSO messages all or nothing, GRO messages split, and each datagram counted."""

from __future__ import annotations

import errno
import socket
import time
from typing import Any

import pytest
from loops import (
    SECOND_NS,
    Receiving,
    Sending,
    fake,
    offers,
    receiving_socket,
    sending_socket,
)
from waiting import wait_for_loopback, wait_until

from udpbench._native import ffi, lib

SO_NO_CHECK = 11
CALLS = [lib.UB_SEND_SEND, lib.UB_SEND_SENDMMSG]
NAMES = ("received", "duplicate", "foreign", "truncated", "corrupt")


def own_socket() -> socket.socket:
    """Return a socket that is connected to itself."""
    sock = receiving_socket()
    sock.connect(sock.getsockname())
    return sock


def sending(to: socket.socket, **more: Any) -> Sending:
    """Return a sender over the real kernel."""
    return Sending(ffi, lib, [sending_socket(to.getsockname())], **more)


# --- sending -------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
def test_every_datagram_of_a_message_has_its_own_header(call: int) -> None:
    """Datagrams of a GSO message are numbered one by one, and the last of each is a tail."""
    with receiving_socket() as sock:
        stats = sending(sock).run(count=8, sizes=[40, 25], gso_segments=3, batch=2, call=call)
        wait_for_loopback()
        datagrams = [sock.recv(2048) for _ in range(8)]
    assert [40, 40, 25, 40, 40, 25, 40, 25] == [len(each) for each in datagrams]
    assert list(range(8)) == [int.from_bytes(each[6:12], "big") for each in datagrams]
    assert {bytes(range(18, 25))} == {each[18:25] for each in datagrams}
    assert (stats["sent_messages"], stats["sent_bytes"]) == (3, 5 * 40 + 3 * 25)


def test_a_message_is_whole_again_after_a_short_one(scripted: tuple[Any, Any]) -> None:
    """A flow's short last message leaves the next flow's first one as long as it should be."""
    fake(scripted, [], flows=2).run(count=20, gso_segments=7, batch=1)
    fake_ffi, fake_lib = scripted
    log = fake_ffi.new("struct fake_call[4096]")
    sizes = [log[at].bytes // 32 for at in range(fake_lib.fake_calls(log))]
    assert sizes == [7, 7, 3, 3]


def test_a_partial_call_burns_whole_messages(scripted: tuple[Any, Any]) -> None:
    """The kernel takes 3 of 4 messages: 21 numbers are burnt, and the rest is offered again."""
    sender = fake(scripted, [3])
    stats = sender.run(count=25, gso_segments=7, batch=4)
    assert offers(scripted) == [(0, 4), (21, 1)]
    assert (stats["sent_packets"], stats["sent_messages"], stats["partial_calls"]) == (25, 4, 1)


ERRORS = {
    errno.EMSGSIZE: "emsgsize",
    errno.EPERM: "eperm",
    errno.ECONNREFUSED: "econnrefused",
    errno.EIO: "other_errors",
    errno.EINVAL: "other_errors",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("number", "counter"), ERRORS.items())
def test_a_refused_message_counts_with_all_its_datagrams(
    scripted: tuple[Any, Any], number: int, counter: str, call: int
) -> None:
    """The kernel takes all datagrams of a message or none: 7 are refused, no number is burnt."""
    sender = fake(scripted, [-number])
    stats = sender.run(count=21, gso_segments=7, batch=8, call=call)
    assert (stats[counter], stats["attempted_packets"], stats["sent_packets"]) == (7, 21, 14)
    assert {sequence for sequence, _ in offers(scripted)} == ({0, 7} if call else {0})
    assert sender.next[0] == 14


def test_a_refused_short_message_counts_with_what_it_has(scripted: tuple[Any, Any]) -> None:
    """The last message of a count holds 3 datagrams, and that many are refused."""
    stats = fake(scripted, [-errno.EIO]).run(count=3, gso_segments=7)
    assert (stats["other_errors"], stats["last_errno"], stats["attempted_packets"]) == (3, 5, 3)


def test_retries_use_up_nothing(scripted: tuple[Any, Any]) -> None:
    """EAGAIN and ENOBUFS count calls, and the message is offered again."""
    stats = fake(scripted, [-errno.EAGAIN, -errno.ENOBUFS]).run(count=7, gso_segments=7)
    assert (stats["eagain"], stats["enobufs"], stats["sent_packets"]) == (1, 1, 7)


REFUSED = {
    "more segments than the kernel's": ({"gso_segments": 1024}, {}, "other_errors", errno.EINVAL),
    "no checksum": ({"gso_segments": 2}, {SO_NO_CHECK: 1}, "other_errors", errno.EINVAL),
    "more bytes than IPv4's": ({"gso_segments": 4, "sizes": [16380]}, {}, "emsgsize", 0),
}


@pytest.mark.parametrize(("send", "options", "counter", "number"), REFUSED.values(), ids=REFUSED)
def test_what_the_kernel_cannot_do_is_refused_for_real(
    send: dict[str, Any], options: dict[int, int], counter: str, number: int
) -> None:
    """A refused GSO send sends nothing, burns nothing and is counted."""
    with receiving_socket() as sock:
        sender = sending(sock)
        for option, value in options.items():
            sender.sockets[0].setsockopt(socket.SOL_SOCKET, option, value)
        segments = send["gso_segments"]
        stats = sender.run(count=2 * segments, **send)
        assert (stats[counter], stats["sent_packets"]) == (2 * segments, 0)
        assert (stats["last_errno"], sender.next[0]) == (number, 0)
        wait_for_loopback()
        with pytest.raises(BlockingIOError):
            sock.recv(1)


# --- pacing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pace_sleeps", [0, 1])
def test_a_message_goes_when_its_last_datagram_is_due(
    scripted: tuple[Any, Any], pace_sleeps: int
) -> None:
    """Tokens are datagrams: 10 messages of 64 at 10 kpps take as long as 640 datagrams do."""
    sender = fake(scripted, [])
    stats = sender.run(count=640, rate_pps=10_000, gso_segments=64, pace_sleeps=pace_sleeps)
    assert (stats["sent_packets"], stats["sent_messages"]) == (640, 10)
    assert stats["first_ns"] - sender.config.start_ns >= 63 * SECOND_NS // 10_000
    assert stats["last_ns"] - sender.config.start_ns >= 639 * SECOND_NS // 10_000


def test_a_bucket_holds_a_message_at_least(scripted: tuple[Any, Any]) -> None:
    """Without a bucket messages are whole all the same, and go one by one."""
    stats = fake(scripted, []).run(count=140, rate_pps=10_000, bucket_ns=0, gso_segments=70)
    assert (stats["sent_messages"], stats["send_calls"]) == (2, 2)


def test_what_is_owed_at_the_end_goes_in_a_short_message(scripted: tuple[Any, Any]) -> None:
    """Rate times duration is attempted, also where it is no multiple of the segments."""
    sender = fake(scripted, [], duration_ns=SECOND_NS // 20)
    stats = sender.run(rate_pps=10_000, bucket_ns=SECOND_NS, gso_segments=64)
    assert stats["attempted_packets"] + stats["stalled_packets"] == 500
    assert stats["sent_messages"] == 8


def test_a_short_last_message_waits_for_no_more_than_itself(scripted: tuple[Any, Any]) -> None:
    """A count that leaves 10 datagrams for the last message sends it when these are due."""
    sender = fake(scripted, [])
    stats = sender.run(count=74, rate_pps=10_000, gso_segments=64)
    assert (stats["sent_packets"], stats["sent_messages"]) == (74, 2)
    assert stats["last_ns"] < sender.config.end_ns


# --- the kernel's limit --------------------------------------------------------------------------


def test_the_limit_is_what_the_kernel_takes() -> None:
    """A message of the limit goes through, and one of a datagram more does not."""
    with own_socket() as sock:
        limit = lib.ub_gso_max(sock.fileno())
        assert limit in (64, 128)
        sock.setsockopt(socket.IPPROTO_UDP, 103, 1)
        assert sock.send(bytes(limit)) == limit
        with pytest.raises(OSError, match="Invalid argument"):
            sock.send(bytes(limit + 1))


def test_the_socket_is_left_without_gso() -> None:
    """After the probe a send is one datagram again."""
    with own_socket() as sock:
        lib.ub_gso_max(sock.fileno())
        assert sock.getsockopt(socket.IPPROTO_UDP, 103) == 0


def test_a_probe_that_cannot_be_made_says_why() -> None:
    """No socket, no UDP, no address, no checksum: the kernel's error comes back."""
    assert lib.ub_gso_max(-1) == -errno.EBADF
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream:
        assert lib.ub_gso_max(stream.fileno()) < 0
    with receiving_socket() as unconnected:
        assert lib.ub_gso_max(unconnected.fileno()) == -errno.EDESTADDRREQ
    with own_socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        assert lib.ub_gso_max(plain.fileno()) == -errno.EINVAL


# --- receiving -----------------------------------------------------------------------------------


def received(room_bytes: int, **changes: int) -> dict[str, int]:
    """Return what a GRO worker with that room makes of 3 messages of 10 datagrams of 32 bytes."""
    with receiving_socket(gro=True) as sock:
        sending(sock).run(count=30, gso_segments=10)
        receiver = Receiving(ffi, lib, sock)
        receiver.start(gro=1, room_bytes=room_bytes, **changes)
        wait_until("all read", lambda: receiver.read() == 30)
        stats = receiver.stop()
    assert stats["read_messages"] == 3
    return {name: stats[f"{name}_packets"] for name in NAMES if stats[f"{name}_packets"]}


HEADERS = [lib.UB_READ_HEADER, lib.UB_READ_VERIFY, lib.UB_READ_COPY]


@pytest.mark.parametrize("call", [lib.UB_RECEIVE_RECV, lib.UB_RECEIVE_RECVMMSG])
@pytest.mark.parametrize("read", HEADERS, ids=["header", "verify", "copy"])
@pytest.mark.parametrize(("room_bytes", "whole"), [(320, 10), (319, 9), (300, 9), (33, 1), (8, 0)])
def test_a_truncated_message_loses_no_datagram(
    room_bytes: int, whole: int, read: int, call: int
) -> None:
    """In a merged read that is cut off, whole datagrams are received and all others truncated."""
    expected = {"received": 3 * whole, "truncated": 3 * (10 - whole)}
    counts = received(room_bytes, read=read, call=call)
    assert {name: count for name, count in expected.items() if count} == counts


@pytest.mark.parametrize("call", [lib.UB_RECEIVE_RECV, lib.UB_RECEIVE_RECVMMSG])
def test_merged_datagrams_are_counted_without_a_copy(call: int) -> None:
    """Who copies nothing counts the datagrams of a merged message by their lengths."""
    assert received(1, read=lib.UB_READ_NONE, call=call) == {"received": 30}


def test_a_merged_stranger_is_foreign_datagram_by_datagram() -> None:
    """Each datagram of a merged message is asked for its own tag."""
    assert received(65535, tag=1) == {"foreign": 30}


def test_a_merged_message_of_another_size_is_corrupt() -> None:
    """Segments of 32 bytes are no datagrams of a run of 31."""
    assert received(65535, sizes=[31]) == {"corrupt": 30}


def test_work_is_spent_on_every_merged_datagram() -> None:
    """A slow reader's work is counted in datagrams, not in messages."""
    began_ns = time.monotonic_ns()
    with receiving_socket(gro=True) as sock:
        sending(sock).run(count=40, gso_segments=10)
        receiver = Receiving(ffi, lib, sock)
        receiver.start(gro=1, room_bytes=65535, work_ns=2_000_000, batch=1)
        wait_until("all read", lambda: receiver.read() == 40)
        # The last message is counted before its work is done.
        assert time.monotonic_ns() - began_ns >= 30 * 2_000_000
        receiver.stop()
