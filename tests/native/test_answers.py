"""Answers of a program, as they come back to the sender's sockets."""

from __future__ import annotations

import errno
import socket
import threading
import time
from typing import Any

import pytest
from loops import SECOND_NS, closed_port, counts, guards, receiving_socket, refusal, sending_socket
from waiting import wait_until

from udpbench._native import ffi, lib


class Listening:
    """One listener at a sender's sockets, in a thread."""

    def __init__(self, sockets: list[socket.socket], **changes: Any) -> None:
        self.fds = ffi.new("int32_t[]", [sock.fileno() for sock in sockets])
        self.control, self.ended = ffi.new("struct ub_control *"), ffi.new("struct ub_control *")
        self.sent = ffi.new("struct ub_send_stats *")
        self.stats = ffi.new("struct ub_answers_stats *")
        values = {"sockets": self.fds, "socket_count": len(sockets), "sent": self.sent}
        values |= {"control": self.control, "ended": self.ended}
        values |= {"quiet_ns": 20 * SECOND_NS, "longest_ns": 40 * SECOND_NS, **changes}
        self.config = ffi.new("struct ub_listen_config *", values)
        self.results: list[int] = []
        self.thread = threading.Thread(target=self._listen)

    def _listen(self) -> None:
        self.results.append(lib.ub_answers_listen(self.config, self.stats))

    def finish(self) -> dict[str, int]:
        """Tell that all was read, and return the counts once it has left."""
        self.ended.stop = 1
        self.thread.join(20)
        assert [0] == self.results
        return counts(ffi, self.stats)


def test_every_answer_is_counted_and_the_last_one_ends_it() -> None:
    """Any size, on any socket, more than one call takes; it leaves with an answer for each."""
    with receiving_socket() as server:
        senders = [sending_socket(server.getsockname()) for _ in range(2)]
        listener = Listening(senders)
        listener.sent.sent_packets = 201
        listener.thread.start()
        for number in range(200):
            server.sendto(b"x" * (number % 3), senders[number % 2].getsockname())
        wait_until("200 answers", lambda: listener.stats.answered_packets == 200)
        server.sendto(bytes(1400), senders[0].getsockname())
        began_ns = time.monotonic_ns()
        summary = listener.finish()
        assert time.monotonic_ns() - began_ns < 20 * SECOND_NS
        for sender in senders:
            sender.close()
    assert (201, 199 + 1400, 0) == (
        summary["answered_packets"],
        summary["answered_bytes"],
        summary["answer_errors"],
    )
    assert 0 < summary["answer_first_ns"] <= summary["answer_last_ns"]
    assert 1 <= summary["answer_first_packets"] <= 64


def test_missing_answers_are_awaited_for_a_quiet_time() -> None:
    """And no longer."""
    with receiving_socket() as server, sending_socket(server.getsockname()) as sender:
        listener = Listening([sender], quiet_ns=SECOND_NS // 20)
        listener.sent.sent_packets = 2
        listener.thread.start()
        server.sendto(b"one", sender.getsockname())
        wait_until("an answer", lambda: listener.stats.answered_packets == 1)
        assert 1 == listener.finish()["answered_packets"]


def test_it_does_not_listen_for_ever() -> None:
    """Where answers to nothing go on, it leaves all the same."""
    with receiving_socket() as server, sending_socket(server.getsockname()) as sender:
        listener = Listening([sender], longest_ns=SECOND_NS // 20)
        listener.sent.sent_packets = 2**40
        listener.thread.start()
        listener.ended.stop = 1

        def left() -> bool:
            server.sendto(b"again", sender.getsockname())
            return not listener.thread.is_alive()

        wait_until("left", left)
        assert listener.finish()["answered_packets"] > 0


def test_it_leaves_at_once_where_nothing_was_sent() -> None:
    """A loop that failed sends nothing that could be answered."""
    with receiving_socket() as server, sending_socket(server.getsockname()) as sender:
        listener = Listening([sender])
        listener.sent.sent_packets = 1
        listener.control.stop = 1
        listener.thread.start()
        listener.thread.join(10)
        assert [0] == listener.results


def test_an_error_is_counted_with_its_number() -> None:
    """A refused connection is told to the listener, too; what comes later is read."""
    with sending_socket(closed_port()) as sender:
        listener = Listening([sender], quiet_ns=SECOND_NS // 20)
        listener.sent.sent_packets = 1
        listener.thread.start()
        sender.send(b"anybody?")
        wait_until("an error", lambda: listener.stats.answer_errors > 0)
        summary = listener.finish()
    assert (errno.ECONNREFUSED, 0) == (summary["answer_last_errno"], summary["answered_packets"])


NEEDED = ("control", "ended", "sockets", "socket_count", "sent")


def test_every_guard_names_its_field() -> None:
    """All that C may refuse is refused here, and says of which field."""
    with receiving_socket() as sock:
        listener = Listening([sock])
        absent = {name: 0 if name == "socket_count" else ffi.NULL for name in NEEDED}
        check = lib.ub_answers_listen_check
        refused = {
            name: refusal(ffi, check, listener.config, {name: absent[name]}) for name in NEEDED
        }
        refused["config"] = refusal(ffi, check, ffi.NULL, {})
        ids = ffi.new("struct ub_ids *[]", 1)
        refused["round_trip"] = refusal(ffi, check, listener.config, {"ids": ids})
        beyond = {"ids": ids, "id_at": 65534, "round_trip": ffi.new("struct ub_histogram *")}
        refused["id_at"] = refusal(ffi, check, listener.config, beyond)
        echoes = refusal(ffi, lib.ub_echo_listen_check, listener.config, {})
    assert list(refused) == [text.partition(":")[0] for text in refused.values()]
    assert guards("listener.c") == {*refused.values(), echoes}


@pytest.mark.parametrize("name", NEEDED)
def test_a_listener_without_what_it_needs(name: str) -> None:
    """A config that makes no sense is refused."""
    with receiving_socket() as sock:
        listener = Listening([sock])
        setattr(listener.config, name, 0 if name == "socket_count" else ffi.NULL)
        assert lib.ub_answers_listen(listener.config, listener.stats) == -errno.EINVAL


def test_nowhere_to_count() -> None:
    """Without statistics nothing is read."""
    with receiving_socket() as sock:
        listener = Listening([sock])
        assert lib.ub_answers_listen(listener.config, ffi.NULL) == -errno.EINVAL


def test_a_socket_that_is_none() -> None:
    """A descriptor that cannot be watched is told."""
    with receiving_socket() as sock:
        listener = Listening([sock])
        listener.fds[0] = -1
        assert lib.ub_answers_listen(listener.config, listener.stats) == -errno.EBADF
