"""When receivers have drained: what is still waited for after the senders are done, and how long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from golden import Golden

from control.fake import PACKETS, World, only
from udpbench.control import drain as drain_module
from udpbench.control.drain import (
    DRAIN_NS,
    FLIGHT_NS,
    KNOWN_QUIET_NS,
    PROBE_QUIET_NS,
    QUIET_NS,
    Drain,
)
from udpbench.control.wait import POLL_NS
from udpbench.errors import AgentError
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import RecordedError, TrialRecord, WorkerStats
from udpbench.protocol import SampleReply, Stranger

MINUTE_NS = 60 * SECOND_NS
SKB = 768
"""What the kernel counts for a small datagram in a queue."""


def test_a_slow_reader_may_take_long_while_it_moves(tmp_path: Path) -> None:
    """Nine seconds of draining after the end of the phase are waited for."""

    def reading(since_ns: int) -> tuple[int, int]:
        read = max(0, min(PACKETS, since_ns * 100 // SECOND_NS))
        return read, (PACKETS - read) * SKB

    world = World(reading=reading)
    record = only(tmp_path, world, warmup="0s")
    received = sum(stats.counts.get("received_packets", 0) for stats in record.phases[-1].stats)
    assert ("done", PACKETS) == (record.status, received)


def test_the_first_packet_of_a_path_phase_may_be_late(tmp_path: Path) -> None:
    """A ring whose CPU is busy holds it for a second, and no socket shows that."""

    def reading(since_ns: int) -> tuple[int, int]:
        return (PACKETS if since_ns >= SECOND_NS else 0), 0

    record = only(tmp_path, World(reading=reading), duration="2s", warmup="0s")
    assert ("done", None) == (record.status, record.error)


def test_a_queues_thread_without_a_cpu_is_waited_for(tmp_path: Path) -> None:
    """What lies in a veth's ring shows in no counter; its thread comes half a second later."""
    late_ns = SECOND_NS + SECOND_NS // 2

    def reading(since_ns: int) -> tuple[int, int]:
        return (PACKETS if since_ns >= late_ns else PACKETS - 200), 0

    world = World(reading=reading, polling=lambda since_ns: since_ns < late_ns)
    record = only(tmp_path, world, duration="1s", warmup="0s")
    assert ("done", PACKETS) == (record.status, read_in(record))


def test_what_such_a_thread_brings_at_last_is_read_to_its_end(tmp_path: Path) -> None:
    """The reader lacks a CPU, too: what its queue gets late is not lost, and none is missing."""
    late_ns = SECOND_NS + SECOND_NS // 2

    def reading(since_ns: int) -> tuple[int, int]:
        if since_ns >= late_ns + SECOND_NS:
            return PACKETS, 0
        return PACKETS - 200, 200 * SKB if since_ns >= late_ns else 0

    world = World(reading=reading, polling=lambda since_ns: since_ns < late_ns)
    record = only(tmp_path, world, duration="1s", warmup="0s")
    assert ("done", PACKETS) == (record.status, read_in(record))


def test_a_queues_thread_that_never_sleeps_is_not_waited_for(tmp_path: Path) -> None:
    """The phase ends as it does without one, a second later."""
    world = World(reading=lambda _: (PACKETS, 0), polling=lambda _: True)
    assert ("done", PACKETS) == ((record := only(tmp_path, world)).status, read_in(record))


def read_in(record: TrialRecord) -> int:
    """Return what was read in the last phase."""
    return sum(stats.counts.get("received_packets", 0) for stats in record.phases[-1].stats)


def test_a_queue_that_nobody_reads_is_a_deadline(tmp_path: Path) -> None:
    """The message says what was awaited, for how long, where, and what was seen last."""
    record = only(tmp_path, World(reading=lambda _: (10, SKB)))
    assert (
        RecordedError(
            "DeadlineExceeded",
            "timed out after 5s: receivers not quiet after phase path: "
            "768B still queued and unread",
            "receiver",
        )
        == record.error
    )


def test_a_program_that_does_not_read_yet_has_a_key_for_that(tmp_path: Path) -> None:
    """Its packets are not lost: they wait in its socket."""
    world = World(reading=lambda _: (10, SKB), printed="")
    record = only(tmp_path, world, receive={"command": ["./server"]})
    assert record.error is not None
    assert record.error.message.endswith(
        "768B still queued and unread; the program has bound its socket and does not read it: have "
        "it read, or name in receive.ready the line that it prints once it does"
    )


def test_a_queue_that_hardly_ever_moves_is_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gigabyte, they say, of which a packet is read each three seconds: it would never end."""
    monkeypatch.setattr(drain_module, "DRAIN_NS", MINUTE_NS)

    def reading(since_ns: int) -> tuple[int, int]:
        return since_ns // (3 * SECOND_NS), 10**9

    world = World(reading=reading)
    begun_ns = world.clock.now_ns()
    record = only(tmp_path, world, duration="1s", warmup="0s")
    assert (
        RecordedError(
            "DeadlineExceeded",
            "timed out after 1min: receivers not quiet after phase path: 1000000000B still "
            "queued, read at 0pps; find out what slows the reader down there, or use a smaller "
            "receive buffer",
            "receiver",
        )
        == record.error
    )
    assert MINUTE_NS <= world.clock.now_ns() - begun_ns < MINUTE_NS + 5 * SECOND_NS


def test_own_packets_that_never_end_are_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would hold up a measured phase in which strangers are told apart."""
    monkeypatch.setattr(drain_module, "DRAIN_NS", MINUTE_NS)
    world = World()
    rising = lambda since_ns: (since_ns // (SECOND_NS // 10), 0)  # noqa: E731
    world.hooks["start receiver measured"] = lambda: setattr(world, "reading", rising)
    record = only(tmp_path, world, duration="1s", warmup="0s")
    assert record.error is not None
    assert record.error.message.startswith("timed out after 1min: receivers not quiet after")


def test_slow_work_that_was_asked_for_may_take_longer() -> None:
    """Twice what all packets take that were sent, and that a socket can hold."""

    def limit_ns(sent_packets: int, work_ns: int) -> int:
        drain = Drain(
            QUIET_NS, 0, work_ns=work_ns, needs_first=False, now_ns=7, sent_packets=sent_packets
        )
        assert drain.end_ns == 7 + drain.limit_ns
        return drain.limit_ns

    assert DRAIN_NS == limit_ns(10**6, 0)
    assert DRAIN_NS + 2000 * SECOND_NS == limit_ns(10**6, 10**6)
    assert limit_ns(2**62, 10**6) == limit_ns(2**40, 10**6)


def test_a_batch_of_slow_work_is_no_stall(tmp_path: Path) -> None:
    """Counts stand still while a reader works on what one call returned."""

    def reading(since_ns: int) -> tuple[int, int]:
        return (0, 4 * SKB) if since_ns < 20 * SECOND_NS else (4, 0)

    record = only(tmp_path, World(reading=reading), receive={"work": "100ms"}, warmup="0s")
    assert "done" == record.status


def test_while_a_slow_reader_drains_counters_are_watched(tmp_path: Path) -> None:
    """What it loses after the senders are done is seen when it happens."""

    def reading(since_ns: int) -> tuple[int, int]:
        read = max(0, min(PACKETS, since_ns * 200 // SECOND_NS))
        return read, (PACKETS - read) * SKB

    record = only(tmp_path, World(reading=reading), warmup="0s")
    assert 4 == sum(snapshot.host == "receiver" for snapshot in record.motion)


@pytest.mark.parametrize(
    ("own", "read", "quiet_ns"),
    [(100, 100, PROBE_QUIET_NS), (99, 99, QUIET_NS), (60, 100, QUIET_NS), (0, 0, QUIET_NS)],
)
def test_a_probe_is_short_only_if_all_its_own_packets_arrived(
    own: int, read: int, quiet_ns: int
) -> None:
    """Others may still be on their way, and would count as the next flow's."""
    drain = Drain(PROBE_QUIET_NS, 0, needs_first=True, now_ns=0, sent_packets=100, probes=True)
    counts = {"received_packets": own, "read_packets": read}
    stats = (WorkerStats("right.receiver0", "receiver", None, counts),)
    drain.update([SampleReply("running", None, 0, (), stats, (), 0)], 0)
    assert quiet_ns == drain.quiet_at_ns


Counted = tuple[int, int | None, int]
"""Own packets read, foreign ones (None: not told apart), and bytes queued."""


def drained(
    at: Callable[[int], Counted], *, own_alone: bool = True, sent: int = 100_000
) -> tuple[str, int]:
    """Return how receivers that count so at each time end, and when."""
    drain = Drain(QUIET_NS, 0, needs_first=False, now_ns=0, sent_packets=sent, own_alone=own_alone)
    for now_ns in range(0, 3600 * SECOND_NS, POLL_NS):
        own, foreign, queued_bytes = at(now_ns)
        counts = {"received_packets": own, "read_packets": own + (foreign or 0)}
        if foreign is not None:
            counts["foreign_packets"] = foreign
        stats = (WorkerStats("right.receiver0", "receiver", None, counts),)
        drain.update([SampleReply("running", None, 0, (), stats, (), queued_bytes)], now_ns)
        if now_ns >= drain.quiet_at_ns:
            return "quiet", now_ns
        if drain.is_strange:
            return f"strange {drain.pps(now_ns)}pps", now_ns
        if now_ns >= drain.stalled_at_ns:
            return "stalled", now_ns
    return "never", 0


@pytest.mark.parametrize("foreign", [0, None])
@pytest.mark.parametrize("own_alone", [True, False])
def test_a_long_queue_of_a_slow_reader_is_read_to_its_end(
    foreign: int | None, own_alone: bool
) -> None:
    """However long that takes, and whether or not foreign packets are told apart."""

    def at(now_ns: int) -> Counted:
        read = min(100_000, now_ns // (20 * 10**5))
        return read, foreign, (100_000 - read) * SKB

    quiet_ns = QUIET_NS if foreign is None else KNOWN_QUIET_NS
    what, when_ns = drained(at, own_alone=own_alone)
    assert "quiet" == what
    assert quiet_ns <= when_ns - 200 * SECOND_NS < quiet_ns + POLL_NS


@pytest.mark.parametrize(("own_alone", "told_apart"), [(True, False), (False, True)])
@pytest.mark.parametrize("queued_bytes", [0, 10 * SKB])
def test_packets_that_no_queue_held_are_strange(
    own_alone: bool, told_apart: bool, queued_bytes: int
) -> None:
    """A stranger at 100 pps ends the wait ten seconds after the senders, less one to hear him."""

    def at(now_ns: int) -> Counted:
        strange = now_ns * 100 // SECOND_NS
        return (500, strange, queued_bytes) if told_apart else (500 + strange, None, queued_bytes)

    what, when_ns = drained(at, own_alone=own_alone)
    assert "strange 100pps" == what
    assert FLIGHT_NS < when_ns < FLIGHT_NS + SECOND_NS // 4


@pytest.mark.parametrize(
    ("received", "dropped", "foreign", "ends_once", "quiet_ns"),
    [
        (1000, 0, 0, True, KNOWN_QUIET_NS),
        (900, 100, 0, True, KNOWN_QUIET_NS),
        (900, 99, 0, True, QUIET_NS),
        (900, 100, 5, True, QUIET_NS),
        (1000, 0, 0, False, QUIET_NS),
        (1000, 0, None, True, QUIET_NS),
    ],
)
def test_a_drain_is_short_once_the_end_of_every_packet_is_known(
    received: int, dropped: int, foreign: int | None, ends_once: bool, quiet_ns: int
) -> None:
    """Read, or dropped by a socket that nobody else sends to; not if they are copied or sent back."""
    drain = Drain(
        *(QUIET_NS, 0), needs_first=False, now_ns=0, sent_packets=1000, ends_once=ends_once
    )
    counts = {"received_packets": received, "read_packets": received + (foreign or 0)}
    known = {} if foreign is None else {"foreign_packets": foreign}
    stats = (WorkerStats("right.receiver0", "receiver", None, {**counts, **known}),)
    reply = SampleReply("running", None, 0, (), stats, (), 0, dropped)
    drain.update([reply], 0)
    assert quiet_ns == drain.quiet_at_ns


def test_a_slow_reader_of_strangers_ends_once_its_queue_turned_over() -> None:
    """A stranger faster than the reader keeps its buffer full of 5000 datagrams of 1 ms."""
    what, when_ns = drained(lambda now_ns: (now_ns // 10**6, None, 5000 * SKB))
    assert "strange 1000pps" == what
    assert FLIGHT_NS + 5 * SECOND_NS < when_ns < FLIGHT_NS + 8 * SECOND_NS


@pytest.mark.parametrize("told_apart", [True, False])
def test_nothing_is_awaited_of_a_queue_once_all_that_was_sent_was_read(told_apart: bool) -> None:
    """What is left in the slow reader's buffer is the stranger's."""

    def at(now_ns: int) -> Counted:
        read = now_ns // 10**6
        return (500, read, 5000 * SKB) if told_apart else (500 + read, None, 5000 * SKB)

    what, when_ns = drained(at, own_alone=False, sent=500)
    assert "strange 1000pps" == what
    assert FLIGHT_NS <= when_ns <= FLIGHT_NS + 2 * POLL_NS


def test_a_stranger_does_not_hold_up_whose_packets_are_told_apart() -> None:
    """Not by what he sends, nor by what of it is in the queue at each look."""
    what, when_ns = drained(lambda now_ns: (500, now_ns * 100 // SECOND_NS, 3 * SKB))
    assert "quiet" == what
    assert QUIET_NS <= when_ns <= 3 * QUIET_NS


def test_own_packets_behind_strangers_in_a_queue_are_read() -> None:
    """A second of foreign datagrams lies before the last hundred of ours."""

    def at(now_ns: int) -> Counted:
        foreign, own = min(1000, now_ns // 10**6), max(0, min(100, now_ns // 10**6 - 1000))
        return 500 + own, foreign, (1100 - foreign - own) * SKB

    assert ("quiet", SECOND_NS + SECOND_NS // 10 + QUIET_NS) == drained(at)


def test_own_packets_that_a_line_holds_back_are_waited_for() -> None:
    """Fifteen seconds of them come out of a slow line, and no socket shows that."""
    own = drained(lambda now_ns: (min(1500, now_ns * 100 // SECOND_NS), 0, 0))
    assert ("quiet", 15 * SECOND_NS + QUIET_NS) == own


STRANGER = Stranger("10.0.0.9", 40000, 100)


def steady(since_ns: int) -> int:
    """Return how many packets a stranger at 100 pps has sent."""
    return max(0, since_ns) * 100 // SECOND_NS


@pytest.mark.parametrize(
    ("phase", "blind"),
    [("path", False), ("path", True), ("warmup", False), ("warmup", True), ("measured", True)],
)
def test_a_stranger_is_an_error_that_names_him(
    tmp_path: Path, phase: str, blind: bool, golden: Golden
) -> None:
    """Ten seconds after the senders, in each phase that he holds up or would spoil."""
    world = World(heard=[(STRANGER,)])

    def begin() -> None:
        world.strangers, world.blind = steady, blind

    world.hooks[f"start receiver {phase}"] = begin
    record = only(tmp_path, world)
    assert record.error is not None
    assert ("DeadlineExceeded", "receiver") == (record.error.kind, record.error.host)
    golden.check(record.error.message)
    sending_ns = {"path": 0, "warmup": SECOND_NS // 5, "measured": SECOND_NS}[phase]
    waited_ns = record.overhead_ns[phase] - sending_ns
    assert 10 * SECOND_NS <= waited_ns < 11 * SECOND_NS
    assert phase == record.phases[-1].name, "what was read of it is kept"


def test_a_stranger_in_a_measured_phase_is_a_finding_where_he_is_told_apart(
    tmp_path: Path,
) -> None:
    """It ends as it does without him, with our counts exact, and nobody listens."""
    world = World()
    world.hooks["start receiver measured"] = lambda: setattr(world, "strangers", steady)
    record = only(tmp_path, world)
    assert ("done", PACKETS) == (record.status, read_in(record))
    assert record.overhead_ns["measured"] < 2 * SECOND_NS
    assert "hear_strangers receiver" not in world.words


def test_a_stranger_who_ends_is_waited_for(tmp_path: Path) -> None:
    """Before the measured phase; or while he is listened for, and nobody is heard."""
    soon = World(strangers=lambda since_ns: steady(min(since_ns, 5 * SECOND_NS)))
    assert "done" == only(tmp_path / "soon", soon, duration="6s", warmup="0s").status
    late = World(strangers=lambda since_ns: steady(min(since_ns, FLIGHT_NS + 10**8)), heard=[()])
    late.hooks["start receiver measured"] = lambda: setattr(late, "strangers", None)
    assert "done" == only(tmp_path / "late", late, warmup="0s").status
    assert ["hear_strangers receiver"] * 2 == [w for w in late.words if w.startswith("hear")]


def test_what_a_line_holds_back_of_receivers_without_headers_is_waited_for(tmp_path: Path) -> None:
    """Nobody is heard, and no more arrive than were sent."""

    def reading(since_ns: int) -> tuple[int, int]:
        return max(0, min(PACKETS, since_ns * 50 // SECOND_NS - 500)), 0

    def begin() -> None:
        world.reading, world.blind = reading, True

    world = World(heard=[()])
    world.hooks["start receiver measured"] = begin
    record = only(tmp_path, world, warmup="0s", duration="11s")
    assert ("done", PACKETS) == (record.status, read_in(record))
    assert "hear_strangers receiver" in world.words


@pytest.mark.parametrize(
    ("heard", "others"),
    [
        ((), 0),
        ((), 3),
        (AgentError("listening for strangers needs CAP_NET_RAW", "receiver"), 0),
        (tuple(Stranger(f"10.0.0.{n}", 40000 + n, n) for n in range(1, 6)), 0),
    ],
)
def test_whoever_sends_what_was_not_sent_is_an_error(
    tmp_path: Path, heard: tuple[Stranger, ...] | AgentError, others: int, golden: Golden
) -> None:
    """Whether nobody is heard, or nobody can be, or many are: more arrive than were sent."""
    world = World(strangers=steady, heard=[heard], blind=True)

    def begin() -> None:
        agent = world.agents["receiver"]
        before = agent._received
        agent._received = lambda own, since_ns: {  # type: ignore[method-assign]
            **before(own, since_ns),
            **({"others_sockets": others} if others else {}),
        }

    world.hooks["start receiver path"] = begin
    record = only(tmp_path, world)
    assert record.error is not None
    golden.check(record.error.message)


def test_what_af_xdp_takes_is_heard_once_it_is_closed(tmp_path: Path) -> None:
    """No packet socket sees it before; what was read of the phase is kept first."""
    world = World(strangers=steady, heard=[(STRANGER,)])
    record = only(tmp_path, world, receive={"call": "af_xdp", "wait": "spin"})
    end = [word for word in world.words if word.split()[0] in ("stop", "close", "hear_strangers")]
    assert ["stop receiver", "stop sender", "close receiver", *["hear_strangers receiver"] * 2] == (
        end[:5]
    )
    assert record.error is not None
    assert "10.0.0.9 port 40000" in record.error.message
    assert 0 < read_in(record)
