"""What loops leave beside their counts: histograms, packets per millisecond, stalls, due times."""

from __future__ import annotations

import errno
import time
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from loops import SECOND_NS, TAG, Receiving, Sending, fake, receiving_socket, sending_socket
from waiting import wait_for_loopback, wait_until

from udpbench._native import ffi, lib

HIGHEST = 2**40
LAST = lib.UB_HISTOGRAM_BUCKETS - 1
RATES = st.integers(1, 10**9)


def filled(histogram: Any) -> dict[int, int]:
    """Return bucket → count of the buckets that hold anything."""
    return {bucket: count for bucket, count in enumerate(histogram.counts) if count}


def stalls(of: Any) -> list[tuple[int, int, int]]:
    """Return (from, until, packets) of every stall."""
    return [(stall.from_ns, stall.until_ns, stall.packets) for stall in of.list[0 : of.count]]


def header_time_ns(datagram: bytes) -> int:
    """Return the time in a header, by its definition."""
    return int.from_bytes(datagram[12:18], "big")


# --- the histogram -------------------------------------------------------------------------------


@given(value=st.integers(0, 2**64 - 1))
@example(value=HIGHEST - 1)
@example(value=HIGHEST)
def test_values_beyond_the_range_are_in_the_last_bucket(value: int) -> None:
    """Every value has a bucket, and the last one holds all from its lower edge on."""
    bucket = lib.ub_histogram_bucket(value)
    assert 0 <= bucket <= LAST
    assert (bucket == LAST) == (value >= HIGHEST - HIGHEST // 256)


@given(value=st.integers(0, HIGHEST - 2), more=st.integers(1, 2**20))
def test_buckets_rise_with_their_values(value: int, more: int) -> None:
    """A larger value is never in a lower bucket, and 1/127 more is always in a higher one."""
    bucket = lib.ub_histogram_bucket(value)
    assert bucket <= lib.ub_histogram_bucket(value + more)
    assert bucket == LAST or lib.ub_histogram_bucket(value + value // 127 + 1) > bucket


# --- when packets are due ------------------------------------------------------------------------


def test_the_header_tells_when_a_packet_was_due() -> None:
    """Packets that a stall held up carry the time they were meant for, not that of their call."""
    with receiving_socket() as receiver, sending_socket(receiver.getsockname()) as sock:
        now = time.monotonic_ns()
        sender = Sending(ffi, lib, [sock])
        sender.config.epoch_ns = now - 5000
        sender.config.start_ns = now
        sender.run(count=40, rate_pps=30_000, bucket_ns=SECOND_NS)
        wait_for_loopback()
        times = [header_time_ns(receiver.recv(64)) for _ in range(40)]
    assert [5000 + -(-packet * SECOND_NS // 30_000) for packet in range(40)] == times


def test_segments_of_a_message_have_times_of_their_own() -> None:
    """Each datagram of a GSO message was due at its own time."""
    with receiving_socket() as receiver, sending_socket(receiver.getsockname()) as sock:
        sender = Sending(ffi, lib, [sock])
        sender.run(count=8, rate_pps=7_000, gso_segments=4, bucket_ns=SECOND_NS)
        wait_for_loopback()
        times = [header_time_ns(receiver.recv(64)) for _ in range(8)]
    assert [-(-packet * SECOND_NS // 7_000) for packet in range(8)] == times


@given(rate_pps=RATES, first=st.integers(0, 2**33), steps=st.integers(0, 50))
def test_stepping_is_exact(
    scripted: tuple[Any, Any], rate_pps: int, first: int, steps: int
) -> None:
    """Going from packet to packet gives the very times that a division for each would."""
    fake_lib = scripted[1]
    if (first + steps) // rate_pps >= 2**33:
        return
    due_ns = fake_lib.ub_due_after(first, rate_pps, steps)
    assert -(-(first + steps) * SECOND_NS // rate_pps) == due_ns


# --- the pacing error ----------------------------------------------------------------------------


def test_every_sent_message_has_a_pacing_error() -> None:
    """The histogram holds one entry for each message, none of them early."""
    histogram = ffi.new("struct ub_histogram *")
    with receiving_socket() as receiver, sending_socket(receiver.getsockname()) as sock:
        sender = Sending(ffi, lib, [sock])
        sender.run(count=300, rate_pps=30_000, pacing=histogram)
    assert (300, 0) == (sum(histogram.counts), histogram.below_zero)


def test_the_pacing_error_is_the_delay_of_the_call(scripted: tuple[Any, Any]) -> None:
    """After a call of 30 ms at 1 kpps the next one is up to 30 ms late, by 1 ms a packet."""
    histogram = scripted[0].new("struct ub_histogram *")
    sender = fake(scripted, [(1, 30)])
    sender.run(count=25, rate_pps=1_000, bucket_ns=SECOND_NS, pacing=histogram)
    late = [bucket for bucket, count in filled(histogram).items() for _ in range(count)][-20:]
    assert [lib.ub_histogram_bucket(ms * 10**6) for ms in range(7, 27)] <= late
    assert len(late) == 20


def test_a_message_is_late_by_its_last_datagram(scripted: tuple[Any, Any]) -> None:
    """A GSO message of 10 packets at 1 kpps is not 10 ms late because its first one waited."""
    histogram = scripted[0].new("struct ub_histogram *")
    fake(scripted, []).run(count=20, rate_pps=1_000, gso_segments=10, pacing=histogram)
    assert sum(histogram.counts) == 2
    assert max(filled(histogram)) < lib.ub_histogram_bucket(9 * 10**6)


def test_an_unlimited_rate_has_no_pacing_error() -> None:
    """Without a rate nothing is due, so nothing is late."""
    histogram = ffi.new("struct ub_histogram *")
    with receiving_socket() as receiver, sending_socket(receiver.getsockname()) as sock:
        Sending(ffi, lib, [sock]).run(count=100, pacing=histogram)
    assert sum(histogram.counts) == 0


# --- stalls --------------------------------------------------------------------------------------


def test_a_stall_is_listed_with_its_time(scripted: tuple[Any, Any]) -> None:
    """A call of 250 ms with a bucket of 100 ms gives up what was due in its first 150 ms."""
    listed = scripted[0].new("struct ub_stalls *")
    sender = fake(scripted, [(1, 250)], duration_ns=4 * SECOND_NS // 10)
    stats = sender.run(rate_pps=10_000, bucket_ns=SECOND_NS // 10, stalls=listed)
    (from_ns, until_ns, packets), *later = stalls(listed)
    assert from_ns == 100_000
    assert packets == (until_ns - from_ns) // 100_000 >= 1499
    assert stats["stalled_packets"] == packets + sum(stall[2] for stall in later)


def test_what_is_owed_at_the_end_is_listed(scripted: tuple[Any, Any]) -> None:
    """A kernel that takes nothing any more leaves the rest unsent, with its time."""
    listed = scripted[0].new("struct ub_stalls *")
    sender = fake(scripted, [-errno.EAGAIN], repeat=True, duration_ns=SECOND_NS // 20)
    stats = sender.run(rate_pps=10_000, bucket_ns=SECOND_NS // 100, stalls=listed)
    assert (stats["attempted_packets"], stats["stalled_packets"]) == (0, 500)
    assert (0, SECOND_NS // 20) == (stalls(listed)[0][0], stalls(listed)[-1][1])
    assert sum(packets for _, _, packets in stalls(listed)) == 500


def test_what_count_no_longer_wants_is_no_stall(scripted: tuple[Any, Any]) -> None:
    """Packets that are due after the last one of a count are not given up."""
    listed = scripted[0].new("struct ub_stalls *")
    sender = fake(scripted, [])
    stats = sender.run(count=10, rate_pps=10_000, bucket_ns=SECOND_NS, stalls=listed)
    assert (10, 0, 0) == (stats["sent_packets"], stats["stalled_packets"], listed.count)


def test_a_sender_that_is_stopped_owes_nothing(scripted: tuple[Any, Any]) -> None:
    """Whoever is told to stop has not given anything up."""
    sender = fake(scripted, [], duration_ns=10 * SECOND_NS)
    sender.control.stop = 1
    assert sender.run(rate_pps=10_000)["stalled_packets"] == 0


@given(st.lists(st.integers(1, 1000), max_size=2000))
def test_a_full_list_merges_neighbours(scripted: tuple[Any, Any], each: list[int]) -> None:
    """However many stalls there were: their packets and their first and last time stay."""
    fake_ffi, fake_lib = scripted
    listed = fake_ffi.new("struct ub_stalls *")
    for number, packets in enumerate(each):
        fake_lib.ub_stalls_add(
            listed, {"from_ns": number, "until_ns": number + 1, "packets": packets}
        )
    merged = stalls(listed)
    assert sum(each) == sum(packets for _, _, packets in merged)
    assert len(merged) <= lib.UB_STALLS_MAX
    if each:
        assert (0, len(each)) == (merged[0][0], merged[-1][1])


# --- packets per millisecond ---------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 90_000), st.integers(0, 2**20)), min_size=1, max_size=50))
@example([(0, 3), (59_999, 1), (1, 5)])
@example([(0, 3), (60_000, 1), (1, 5), (60_001, 7)])
def test_packets_per_millisecond(scripted: tuple[Any, Any], steps: list[tuple[int, int]]) -> None:
    """The ring holds each of the latest 60 s, also over pauses longer than itself."""
    fake_ffi, fake_lib = scripted
    ring = fake_ffi.new("struct ub_milliseconds *")
    at_ms, expected = 0, {}
    for later_ms, packets in steps:
        at_ms += later_ms
        expected[at_ms] = expected.get(at_ms, 0) + packets
        fake_lib.ub_milliseconds_add(ring, at_ms * 10**6 + 999_999, packets)
    assert ring.begun == at_ms + 1
    kept = range(max(0, ring.begun - lib.UB_MILLISECONDS), ring.begun)
    counts = ring.packets[0 : lib.UB_MILLISECONDS]
    assert {ms: count for ms, count in expected.items() if ms in kept and count} == {
        ms: counts[ms % lib.UB_MILLISECONDS] for ms in kept if counts[ms % lib.UB_MILLISECONDS]
    }


def test_both_ends_count_every_packet_by_its_millisecond() -> None:
    """Over all milliseconds a sender's and a receiver's counts come to their totals."""
    sent, received = ffi.new("struct ub_milliseconds *"), ffi.new("struct ub_milliseconds *")
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as to:
        receiver = Receiving(ffi, lib, sock)
        sender = Sending(ffi, lib, [to])
        receiver.start(milliseconds=received, epoch_ns=sender.config.start_ns)
        sender.run(count=500, rate_pps=10_000, bucket_ns=SECOND_NS, milliseconds=sent)
        wait_until("all are read", lambda: receiver.read() >= 500)
        receiver.stop()
    assert [500, 500] == [sum(ring.packets) for ring in (sent, received)]
    assert 50 <= sent.begun < 5000


# --- the delay -----------------------------------------------------------------------------------


def with_time(sequence: int, time_ns: int) -> bytes:
    """Return a datagram that was due at a time since the epoch."""
    header = TAG.to_bytes(4, "big") + bytes(2) + sequence.to_bytes(6, "big")
    return (header + (time_ns % 2**48).to_bytes(6, "big")).ljust(32, b"\0")


def test_the_delay_is_from_the_time_in_the_header() -> None:
    """A datagram due 100 ms before the epoch was under way for at least as long."""
    histogram = ffi.new("struct ub_histogram *")
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        epoch_ns = time.monotonic_ns()
        receiver.receive([with_time(0, -(10**8))], delay=histogram, epoch_ns=epoch_ns)
    (bucket,) = filled(histogram)
    assert bucket >= lib.ub_histogram_bucket(10**8)
    assert bucket < lib.ub_histogram_bucket(10**8 + 5 * SECOND_NS)


def test_a_delay_below_zero_is_counted_apart() -> None:
    """A datagram from the future tells that the clocks are apart, and is in no bucket."""
    histogram = ffi.new("struct ub_histogram *")
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        epoch_ns = time.monotonic_ns()
        datagrams = [with_time(0, 3600 * SECOND_NS), with_time(1, 0)]
        receiver.receive(datagrams, delay=histogram, epoch_ns=epoch_ns)
    assert (1, 1) == (histogram.below_zero, sum(histogram.counts))


def test_the_delay_survives_48_bits() -> None:
    """Times wrap after 3.26 days, and a delay over that edge is right."""
    histogram = ffi.new("struct ub_histogram *")
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        epoch_ns = (time.monotonic_ns() - 2**48) % 2**64
        receiver.receive([with_time(0, 2**48 - 1)], delay=histogram, epoch_ns=epoch_ns)
    assert (0, 1) == (histogram.below_zero, sum(histogram.counts))
    assert max(filled(histogram)) < lib.ub_histogram_bucket(60 * SECOND_NS)


def test_strangers_have_no_delay() -> None:
    """What is not of this phase, or has another size, is in no histogram."""
    histogram = ffi.new("struct ub_histogram *")
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        ours = with_time(0, 0)
        receiver.receive([b"\0" * 32, ours + b"longer", b"short"], delay=histogram)
    assert (0, 0) == (histogram.below_zero, sum(histogram.counts))
