"""When receivers have drained: what is still waited for after the senders are done, and how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.fake import PACKETS, World, only
from udpbench.control.drain import PROBE_QUIET_NS, QUIET_NS, Drain
from udpbench.model import SECOND_NS, TrialRecord, WorkerStats
from udpbench.protocol import SampleReply


def test_a_slow_reader_may_take_long_while_it_moves(tmp_path: Path) -> None:
    """Nine seconds of draining after the end of the phase are waited for."""

    def reading(since_ns: int) -> tuple[int, int]:
        read = max(0, min(PACKETS, since_ns * 100 // SECOND_NS))
        return read, (PACKETS - read) * 100

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


def test_a_queues_thread_that_never_sleeps_is_not_waited_for(tmp_path: Path) -> None:
    """The phase ends as it does without one, a second later."""
    world = World(reading=lambda _: (PACKETS, 0), polling=lambda _: True)
    assert ("done", PACKETS) == ((record := only(tmp_path, world)).status, read_in(record))


def read_in(record: TrialRecord) -> int:
    """Return what was read in the last phase."""
    return sum(stats.counts.get("received_packets", 0) for stats in record.phases[-1].stats)


def test_a_queue_that_nobody_reads_is_a_deadline(tmp_path: Path) -> None:
    """The message says what was awaited, for how long, where, and what was seen last."""
    record = only(tmp_path, World(reading=lambda _: (10, 768)))
    assert {
        "kind": "DeadlineExceeded",
        "message": "timed out after 5s: receivers not quiet after phase path: "
        "768B still queued and unread",
        "host": "receiver",
    } == record.error


def test_a_batch_of_slow_work_is_no_stall(tmp_path: Path) -> None:
    """Counts stand still while a reader works on what one call returned."""

    def reading(since_ns: int) -> tuple[int, int]:
        return (0, 768) if since_ns < 20 * SECOND_NS else (4, 0)

    record = only(tmp_path, World(reading=reading), receive={"work": "100ms"}, warmup="0s")
    assert "done" == record.status


def test_while_a_slow_reader_drains_counters_are_watched(tmp_path: Path) -> None:
    """What it loses after the senders are done is seen when it happens."""

    def reading(since_ns: int) -> tuple[int, int]:
        read = max(0, min(PACKETS, since_ns * 200 // SECOND_NS))
        return read, (PACKETS - read) * 100

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
    drain = Drain(PROBE_QUIET_NS, 0, needs_first=True, now_ns=0, probed_packets=100)
    counts = {"received_packets": own, "read_packets": read}
    stats = (WorkerStats("right.receiver0", "receiver", None, counts),)
    drain.update([SampleReply("running", None, 0, (), stats, (), 0)], 0)
    assert quiet_ns == drain.quiet_at_ns
