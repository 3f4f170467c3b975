"""Ids by which an answer belongs to a datagram: written, awaited, and used again in time."""

from __future__ import annotations

import errno
import time
from array import array
from typing import Any

import pytest
from loops import (
    SECOND_NS,
    Sending,
    counts,
    fake,
    guards,
    receiving_socket,
    refusal,
    sending_socket,
)
from test_answers import Listening
from waiting import wait_until

from udpbench._native import ffi, lib

IDS = 65536
TEXTS = (b"abcdefghijklmnopqrst", b"ABCDEFGHIJKLMNOPQRSTU")


class Asking:
    """Payloads with ids for the flows of a sender: what C is given, and what keeps it alive."""

    def __init__(self, of: Any, flows: int = 1, at: int = 3, id_ns: int = SECOND_NS) -> None:
        self.of = of
        self.each = [of.new("struct ub_ids *") for _ in range(flows)]
        self.ids = of.new("struct ub_ids *[]", self.each)
        self.fields = {"sizes": TEXTS, "ids": self.ids, "id_at": at, "id_ns": id_ns}

    def use(self, at_ns: int, first: int = 0) -> None:
        """Have all ids from one on been used at a time, and answered."""
        words = array("Q", [at_ns << 1]) * (IDS - first)
        self.of.memmove(self.each[0].used + first, words, 8 * len(words))

    def awaited(self, flow: int = 0) -> list[int]:
        """Return the ids of a flow that await an answer."""
        used = ffi.unpack(self.each[flow].used, IDS)
        return [number for number, word in enumerate(used) if word & 1]


def with_id(text: bytes, number: int, at: int = 3) -> bytes:
    """Return a payload with its id."""
    return text[:at] + number.to_bytes(2, "big") + text[at + 2 :]


def test_each_payload_gets_the_next_id_of_its_flow() -> None:
    """At its offset, big-endian, and nothing else is changed; the user's own bytes stay."""
    asking, before = Asking(ffi, flows=2), [bytes(bytearray(text)) for text in TEXTS]
    asking.each[1].next = IDS - 1
    with receiving_socket() as server:
        senders = [sending_socket(server.getsockname()) for _ in range(2)]
        sender = Sending(ffi, lib, senders, [0, 1])
        sender.run(count=8, batch=3, **asking.fields)
        payloads: dict[Any, list[bytes]] = {}
        for _ in range(8):
            text, source = server.recvfrom(100)
            payloads.setdefault(source, []).append(text)
        by_flow = [payloads[each.getsockname()] for each in senders]
        for each in senders:
            each.close()
    turns = [TEXTS[number % 2] for number in range(4)]
    assert [with_id(text, number) for number, text in enumerate(turns)] == by_flow[0]
    wrapped = [IDS - 1, 0, 1, 2]
    assert [with_id(text, n) for n, text in zip(wrapped, turns, strict=True)] == by_flow[1]
    assert ([0, 1, 2, 3], [0, 1, 2, IDS - 1]) == (asking.awaited(0), asking.awaited(1))
    assert (4, IDS + 3) == (asking.each[0].next, asking.each[1].next)
    assert before == list(TEXTS)


def test_an_answer_belongs_to_its_datagram_once() -> None:
    """By flow and id; what comes twice, cut off, or to another flow is counted alone."""
    asking, trips = Asking(ffi, flows=2), ffi.new("struct ub_histogram *")
    with receiving_socket() as server:
        senders = [sending_socket(server.getsockname()) for _ in range(2)]
        Sending(ffi, lib, senders[:1], [0]).run(count=5, **asking.fields)
        listener = Listening(senders, ids=asking.ids, id_at=3, round_trip=trips)
        listener.sent.sent_packets = 5
        listener.thread.start()
        home, other = (each.getsockname() for each in senders)
        questions = [server.recv(100) for _ in range(5)]
        strange = [(questions[0], home), (b"cut", home), (with_id(TEXTS[0], 9), home)]
        answers = [(text, home) for text in reversed(questions[:4])]
        for text, to in (*answers, *strange, (questions[4], other)):
            server.sendto(text, to)
        wait_until("8 answers", lambda: listener.stats.answered_packets == 8)
        summary = listener.finish()
        for each in senders:
            each.close()
    assert (8, 4) == (summary["answered_packets"], summary["unmatched_packets"])
    assert ([4], 4, 0) == (asking.awaited(), sum(trips.counts), trips.below_zero)


def test_a_round_trip_counts_from_when_the_datagram_was_due() -> None:
    """Until the answer is read."""
    asking, trips = Asking(ffi), ffi.new("struct ub_histogram *")
    with receiving_socket() as server, sending_socket(server.getsockname()) as sender:
        sending = Sending(ffi, lib, [sender])
        sending.run(count=1, rate_pps=10, **asking.fields)
        due_ns = sending.config.start_ns
        assert due_ns == asking.each[0].used[0] >> 1
        wait_until("50 ms", lambda: time.monotonic_ns() > due_ns + SECOND_NS // 20)
        server.sendto(server.recv(100), sender.getsockname())
        listener = Listening([sender], ids=asking.ids, id_at=3, round_trip=trips)
        listener.sent.sent_packets = 1
        listener.thread.start()
        listener.finish()
    assert 1 == sum(list(trips.counts)[lib.ub_histogram_bucket(SECOND_NS // 20) :])


def test_an_id_is_not_used_again_before_its_time(scripted: tuple[Any, Any]) -> None:
    """A flow whose ids are all in use waits, and sends on as they become free."""
    asking = Asking(scripted[0], id_ns=SECOND_NS // 5)
    sender = fake(scripted, [])
    asking.use(sender.config.start_ns)
    stats = sender.run(count=3, **asking.fields)
    assert (3, True) == (stats["sent_packets"], stats["id_waits"] > 0)
    assert stats["first_ns"] >= sender.config.start_ns + SECOND_NS // 5


def test_the_end_comes_before_an_id_is_free(scripted: tuple[Any, Any]) -> None:
    """Then nothing is sent, and nothing hangs."""
    asking = Asking(scripted[0], id_ns=3600 * SECOND_NS)
    sender = fake(scripted, [], duration_ns=SECOND_NS // 20)
    asking.use(sender.config.start_ns)
    assert 0 == sender.run(**asking.fields)["sent_packets"]


def test_only_free_ids_are_offered(scripted: tuple[Any, Any]) -> None:
    """A call stops at the first one that is in use, answered or not: all later ones are, too."""
    asking = Asking(scripted[0], id_ns=3600 * SECOND_NS)
    sender = fake(scripted, [], duration_ns=SECOND_NS // 2)
    asking.use(sender.config.start_ns, first=4)
    assert 4 == sender.run(batch=64, **asking.fields)["sent_packets"]


@pytest.mark.parametrize("script", [[2, 1], [-errno.EAGAIN, 3], [-errno.ENOBUFS, -errno.EINTR, 3]])
def test_an_id_that_was_not_sent_is_the_next_one(
    scripted: tuple[Any, Any], script: list[int]
) -> None:
    """After a call that took some or none."""
    asking = Asking(scripted[0])
    fake(scripted, script).run(count=3, batch=3, **asking.fields)
    assert ([0, 1, 2], 3) == (asking.awaited(), asking.each[0].next)


def test_a_datagram_that_was_refused_awaits_no_answer(scripted: tuple[Any, Any]) -> None:
    """It used up an attempt, and no id."""
    asking = Asking(scripted[0])
    stats = fake(scripted, [-errno.EPERM]).run(count=3, batch=3, **asking.fields)
    assert (1, 2) == (stats["eperm"], stats["sent_packets"])
    assert ([0, 1], 2) == (asking.awaited(), asking.each[0].next)


def test_every_guard_names_its_field() -> None:
    """All that is refused of ids, when sending and when listening."""
    asking = Asking(ffi)
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as to:
        sender = Sending(ffi, lib, [to])
        bad = [
            {"ids": asking.ids},
            {**asking.fields, "id_at": len(TEXTS[0]) - 1},
            {**asking.fields, "id_at": 2**32 - 1},
        ]
        refused = {refusal(ffi, lib.ub_send_check, sender.config, changes) for changes in bad}
        assert "" == refusal(ffi, lib.ub_send_check, sender.config, asking.fields)
        for changes in bad:
            assert -errno.EINVAL == Sending(ffi, lib, [to]).result(**changes)
    assert guards("ids.c") == refused


def test_memory_that_is_short_is_reported(scripted: tuple[Any, Any]) -> None:
    """Room for ids, when listening."""
    fake_ffi, fake_lib = scripted
    asking = Asking(fake_ffi)
    with receiving_socket() as sock:
        fields = {"sockets": fake_ffi.new("int32_t[]", [sock.fileno()]), "socket_count": 1}
        pieces = [fake_ffi.new("struct ub_control *", {"stop": 1}) for _ in range(2)]
        sent, stats = (
            fake_ffi.new("struct ub_send_stats *"),
            fake_ffi.new("struct ub_answers_stats *"),
        )
        trips = fake_ffi.new("struct ub_histogram *")
        fields |= {"control": pieces[0], "ended": pieces[1], "sent": sent, "ids": asking.ids}
        config = fake_ffi.new("struct ub_listen_config *", {**fields, "round_trip": trips})
        fake_lib.fake_memory(0)
        assert -errno.ENOMEM == fake_lib.ub_answers_listen(config, stats)
        fake_lib.fake_memory(2**32 - 1)
        assert 0 == fake_lib.ub_answers_listen(config, stats)
    assert 0 == counts(fake_ffi, stats)["answered_packets"]
