"""Zero copy: what the kernel still reads is never written again; every completion is counted."""

from __future__ import annotations

import errno
import socket
import time
from typing import Any

import pytest
from loops import (
    SECOND_NS,
    SO_ZEROCOPY,
    Receiving,
    Sending,
    closed_port,
    fake,
    receiving_socket,
    sending_socket,
)
from waiting import wait_until

from udpbench._native import ffi, lib

IP_RECVERR = 11
MSG_ZEROCOPY = 0x4000000
COPIED = 1
CALLS = [lib.UB_SEND_SEND, lib.UB_SEND_SENDMMSG]


def faked(
    scripted: tuple[Any, Any],
    script: list[int | tuple[int, int]],
    completions: list[tuple[int, int, int, int, int]],
    **more: Any,
) -> Sending:
    """Return a sender over a kernel that plays sends and completions (see fake_kernel.c)."""
    fake_ffi, fake_lib = scripted
    sender = fake(scripted, script, **more)
    for sock in sender.sockets:
        sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    listed = fake_ffi.new("struct fake_completion[]", completions)
    fake_lib.fake_completions(listed, len(completions))
    sender.config.zerocopy = 1
    return sender


def calls(scripted: tuple[Any, Any]) -> list[Any]:
    """Return every call the fake kernel saw."""
    fake_ffi, fake_lib = scripted
    log = fake_ffi.new("struct fake_call[4096]")
    count = fake_lib.fake_calls(log)
    return [(log[at].first_sequence, log[at].offered, log[at].place) for at in range(count)]


def test_completions_are_told_apart(scripted: tuple[Any, Any]) -> None:
    """Ranges of completions count each message once, by whether the kernel had to copy it."""
    sender = faked(scripted, [], [(0, 2, 0, 0, 1), (3, 3, COPIED, 0, 1), (4, 9, 0, 2, 1)])
    stats = sender.run(count=10, batch=10)
    assert (stats["zerocopy_messages"], stats["zerocopy_copied_messages"]) == (9, 1)
    assert sender.completions[0] == 10


@pytest.mark.parametrize("call", CALLS)
def test_the_kernel_is_asked_for_zero_copy(scripted: tuple[Any, Any], call: int) -> None:
    """Every call carries MSG_ZEROCOPY, and without the option none does."""
    fake_ffi, fake_lib = scripted
    log = fake_ffi.new("struct fake_call[4096]")
    faked(scripted, [], [(0, 0, 0, 0, 1)]).run(count=1, call=call)
    assert (fake_lib.fake_calls(log), log[0].flags) == (1, MSG_ZEROCOPY)
    fake(scripted, []).run(count=1, call=call)
    assert (fake_lib.fake_calls(log), log[0].flags) == (1, 0)


def test_a_slot_waits_for_its_completion(scripted: tuple[Any, Any]) -> None:
    """With both banks on their way, the third call comes only after the first bank is completed."""
    completions = [(0, 15, 0, 6, 2), (16, 47, 0, 0, 2), (48, 111, 0, 0, 3)]
    sender = faked(scripted, [], completions)
    began = time.monotonic()
    stats = sender.run(count=112, batch=100)
    # Six reads found nothing, with a wait of 50 ms between every two of them.
    assert time.monotonic() - began >= 0.1
    (first, second, third) = calls(scripted)
    assert third[2] == first[2] != second[2]
    assert stats["zerocopy_messages"] == 112


def test_completions_may_come_in_any_order(scripted: tuple[Any, Any]) -> None:
    """A bank whose completions come last is not used before they have come."""
    parts = [(32, 47), (0, 7), (16, 31), (8, 15), (48, 111)]
    completions = [(first, last, 0, 0, 3 if first == 48 else 2) for first, last in parts]
    sender = faked(scripted, [], completions)
    stats = sender.run(count=112, batch=100)
    assert [call[0] for call in calls(scripted)] == [0, 16, 48]
    assert stats["zerocopy_messages"] == 112


def test_what_is_never_completed_is_never_written_again(scripted: tuple[Any, Any]) -> None:
    """Without completions both banks are used once; the loop leaves at its end, and says so."""
    sender = faked(scripted, [], [], duration_ns=SECOND_NS // 10)
    stats = sender.run(batch=100)
    assert [call[0] for call in calls(scripted)] == [0, 16]
    assert stats["sent_messages"] == 48
    assert (stats["zerocopy_messages"], stats["zerocopy_copied_messages"]) == (0, 0)
    assert stats["last_ns"] < sender.config.end_ns + SECOND_NS


def test_stop_does_not_wait_for_completions(scripted: tuple[Any, Any]) -> None:
    """A loop that is told to stop leaves with completions outstanding."""
    sender = faked(scripted, [], [])
    sender.control.stop = 1
    began = time.monotonic()
    sender.run(count=10)
    assert time.monotonic() - began < 0.5


@pytest.mark.parametrize("call", CALLS)
def test_completions_without_memory_are_awaited(scripted: tuple[Any, Any], call: int) -> None:
    """ENOBUFS, the kernel's word for too many unread completions, is retried after reading some."""
    sender = faked(scripted, [1, -errno.ENOBUFS], [(0, 0, COPIED, 1, 2), (1, 1, 0, 0, 3)])
    stats = sender.run(count=2, batch=1, call=call)
    assert (stats["enobufs"], stats["sent_packets"], stats["attempted_packets"]) == (1, 2, 2)
    assert (stats["zerocopy_messages"], stats["zerocopy_copied_messages"]) == (1, 1)


def test_a_refused_message_that_was_built_used_up_a_number(scripted: tuple[Any, Any]) -> None:
    """The completion of a message that the kernel refused is not taken for that of the next one."""
    sender = faked(scripted, [-errno.EPERM, 1], [(0, 0, 0, 0, 1), (1, 1, COPIED, 0, 2)])
    stats = sender.run(count=2, batch=1)
    assert (stats["eperm"], stats["sent_messages"]) == (1, 1)
    assert (stats["zerocopy_messages"], stats["zerocopy_copied_messages"]) == (0, 1)
    assert sender.completions[0] == 2


def test_numbers_wrap(scripted: tuple[Any, Any]) -> None:
    """Completion numbers are 32 bits wide, and a range across the wrap is one range."""
    sender = faked(scripted, [], [(2**32 - 2, 1, 0, 0, 1)])
    sender.completions[0] = 2**32 - 2
    stats = sender.run(count=4)
    assert (stats["zerocopy_messages"], sender.completions[0]) == (4, 2)


def test_a_socket_goes_on_numbering_from_loop_to_loop() -> None:
    """The kernel's numbers go on over phases, and over a refused GSO message that used one up."""
    with receiving_socket() as sock, sending_socket(sock.getsockname(), zerocopy=True) as out:
        sender = Sending(ffi, lib, [out])
        assert sender.run(count=50, zerocopy=1)["zerocopy_copied_messages"] == 50
        refused = sender.run(count=50 + 1024, gso_segments=1024, batch=1)
        assert (refused["other_errors"], refused["last_errno"]) == (1024, errno.EINVAL)
        stats = sender.run(count=7, gso_segments=7)
        assert stats["sent_messages"] == 52
        assert stats["zerocopy_messages"] + stats["zerocopy_copied_messages"] == 52
        assert sender.completions[0] == 53


def test_other_errors_in_the_queue_are_no_completions() -> None:
    """ICMP errors that share the queue with completions are read past and not counted."""
    with sending_socket(closed_port(), zerocopy=True) as out:
        out.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        stats = Sending(ffi, lib, [out]).run(count=40, batch=1, zerocopy=1)
    assert stats["econnrefused"] > 0
    completed = stats["zerocopy_messages"] + stats["zerocopy_copied_messages"]
    assert completed == stats["sent_messages"] == stats["sent_packets"] > 0


@pytest.mark.parametrize("call", CALLS)
def test_nothing_changes_on_the_way(call: int) -> None:
    """Under load with a slow reader every byte of every datagram is as it was sent."""
    with receiving_socket() as sock:
        flows = [sending_socket(sock.getsockname(), zerocopy=True) for _ in range(3)]
        receiver = Receiving(ffi, lib, sock, 3)
        size = {"sizes": [1000]}
        receiver.start(read=lib.UB_READ_VERIFY, work_ns=1000, **size)
        sender = Sending(ffi, lib, flows, [0, 1, 2])
        sent = sender.run(count=3000, batch=7, call=call, zerocopy=1, rate_pps=50_000, **size)
        wait_until("all read", lambda: receiver.read() == 3000)
        received = receiver.stop()
        for each in flows:
            each.close()
    assert sent["zerocopy_messages"] + sent["zerocopy_copied_messages"] == 3000
    assert (received["received_packets"], received["corrupt_packets"]) == (3000, 0)
