"""The sending loop: what it puts on the wire, what it counts, when it leaves."""

from __future__ import annotations

import errno
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import (
    SECOND_NS,
    SEND_ERRORS,
    SEND_RETRIED,
    SO_ZEROCOPY,
    TAG,
    Receiving,
    Sending,
    closed_port,
    fake,
    guards,
    offers,
    receiving_socket,
    refusal,
    sending_socket,
    slow_sockets,
)
from waiting import wait_for_loopback, wait_until

from udpbench._native import ffi, lib


def sending(to: tuple[str, int], flows: int = 1, **changes: Any) -> Sending:
    """Return a sender over the real kernel."""
    sockets = [sending_socket(to) for _ in range(flows)]
    return Sending(ffi, lib, sockets, list(range(flows)), **changes)


# --- what is on the wire -------------------------------------------------------------------------


@given(
    tag=st.integers(0, 2**32 - 1),
    flow=st.integers(0, 2**16 - 1),
    sequence=st.integers(0, 2**48 - 1),
    time_ns=st.integers(0, 2**48 - 1),
)
def test_header_layout(tag: int, flow: int, sequence: int, time_ns: int) -> None:
    """A header is tag u32, flow u16, sequence u48, time u48, big-endian, 18 bytes and no more."""
    to = ffi.new("uint8_t[20]", b"\xee" * 20)
    lib.ub_header_write(to, tag, flow, sequence, time_ns)
    written = bytes(to)
    fields = [written[0:4], written[4:6], written[6:12], written[12:18]]
    assert [tag, flow, sequence, time_ns] == [int.from_bytes(part, "big") for part in fields]
    assert written[18:] == b"\xee\xee"
    assert lib.UB_HEADER_BYTES == 18


def test_a_header_keeps_the_low_48_bits() -> None:
    """Sequence numbers and times beyond 48 bits wrap and leave their neighbours alone."""
    to = ffi.new("uint8_t[18]")
    lib.ub_header_write(to, 1, 2, 2**48 + 3, 2**48 + 4)
    assert bytes(to) == b"".join(
        [
            (1).to_bytes(4, "big"),
            (2).to_bytes(2, "big"),
            (3).to_bytes(6, "big"),
            (4).to_bytes(6, "big"),
        ]
    )


def test_datagrams_on_the_wire() -> None:
    """Datagrams arrive with tag, flow, consecutive numbers, rising times and a fixed pattern."""
    with receiving_socket() as receiver:
        sender = sending(receiver.getsockname(), sequences=[2**48 - 2])
        stats = sender.run(count=4, sizes=[64])
        wait_for_loopback()
        datagrams = [receiver.recv(2048) for _ in range(4)]
    assert [64] * 4 == [len(each) for each in datagrams]
    assert [TAG] * 4 == [int.from_bytes(each[0:4], "big") for each in datagrams]
    assert [0] * 4 == [int.from_bytes(each[4:6], "big") for each in datagrams]
    numbers = [int.from_bytes(each[6:12], "big") for each in datagrams]
    assert numbers == [2**48 - 2, 2**48 - 1, 0, 1]
    times = [int.from_bytes(each[12:18], "big") for each in datagrams]
    assert times == sorted(times)
    assert times[0] == stats["first_ns"] - sender.config.epoch_ns
    assert bytes(range(18, 64)) == datagrams[0][18:]
    assert sender.next[0] == 2**48 + 2


def test_payloads_of_the_user_are_sent_in_turn() -> None:
    """Each flow sends them in order, byte for byte, whatever a call takes; bytes are counted."""
    texts = [b"one", b"three", b"x"]
    with receiving_socket() as receiver:
        sender = sending(receiver.getsockname(), flows=2)
        stats = sender.run(count=16, batch=5, sizes=texts)
        datagrams = [receiver.recv(2048) for _ in range(16)]
    by_flow = texts * 2 + texts[:2]
    assert sorted(by_flow * 2) == sorted(datagrams)
    assert by_flow[:5] == datagrams[:5]
    assert stats["sent_bytes"] == sum(map(len, datagrams))
    assert list(sender.next) == [8, 8]


# --- how much ------------------------------------------------------------------------------------


def test_count_is_sent_exactly_and_evenly() -> None:
    """A count ends the loop exactly, and flows share it evenly however many calls it takes."""
    with receiving_socket() as receiver:
        sender = sending(receiver.getsockname(), flows=4)
        stats = sender.run(count=1002, batch=64)
    assert stats["attempted_packets"] == stats["sent_packets"] == 1002
    assert stats["sent_bytes"] == 1002 * 32
    assert list(sender.next) == [251, 251, 250, 250]
    assert stats["first_ns"] <= stats["last_ns"] < sender.config.end_ns
    assert stats["last_cpu"] >= 1


@pytest.mark.parametrize(("rate_pps", "first"), [(0, 0), (20, 1)])
def test_what_the_first_call_of_a_paced_sender_sent_is_reported(rate_pps: int, first: int) -> None:
    """It opens the time that rates are over; without a rate the call is part of that time."""
    with receiving_socket() as receiver:
        sender = sending(receiver.getsockname())
        stats = sender.run(count=4, rate_pps=rate_pps, bucket_ns=SECOND_NS)
    assert (4, first) == (stats["sent_packets"], stats["first_packets"])


def test_a_count_below_the_flows_reaches_that_many_flows() -> None:
    """A count smaller than the number of flows sends one packet on that many of them."""
    with receiving_socket() as receiver:
        sender = sending(receiver.getsockname(), flows=4)
        sender.run(count=3)
    assert list(sender.next) == [1, 1, 1, 0]


def test_a_flow_that_was_put_off_still_gets_its_share(scripted: tuple[Any, Any]) -> None:
    """A flow whose call took nothing, or not all, catches up in a later turn."""
    sender = fake(scripted, [-errno.EAGAIN, 2], flows=3)
    sender.run(count=12, batch=4)
    assert list(sender.next) == [4, 4, 4]
    assert offers(scripted) == [(0, 4), (0, 4), (0, 4), (0, 4), (2, 2)]


@pytest.mark.parametrize("pace_sleeps", [0, 1])
def test_pacing_keeps_the_rate(pace_sleeps: int) -> None:
    """The n-th packet goes (n − 1) / rate after the start or later, and the average holds."""
    with receiving_socket() as receiver:
        sender = sending(receiver.getsockname())
        stats = sender.run(count=2001, rate_pps=20_000, pace_sleeps=pace_sleeps)
    took_ns = stats["last_ns"] - sender.config.start_ns
    assert stats["sent_packets"] == 2001
    assert took_ns >= 2000 * SECOND_NS // 20_000 + stats["stalled_packets"] * SECOND_NS // 20_000
    assert took_ns < 2 * SECOND_NS


def test_a_paced_second_holds_rate_times_duration() -> None:
    """What was due before the end is attempted or was swallowed by a stall: nothing else."""
    with receiving_socket() as receiver:
        sender = sending(receiver.getsockname(), duration_ns=SECOND_NS // 5)
        stats = sender.run(rate_pps=40_000, pace_sleeps=1, bucket_ns=SECOND_NS // 5)
    assert stats["attempted_packets"] + stats["stalled_packets"] == 8000
    assert stats["last_ns"] <= sender.config.end_ns + sender.config.bucket_ns + SECOND_NS // 10


def test_debt_is_made_up_after_the_end(scripted: tuple[Any, Any]) -> None:
    """A call that outlasts the end leaves a debt within the bucket, which is still paid."""
    sender = fake(scripted, [(1, 60)], duration_ns=3 * SECOND_NS // 100)
    stats = sender.run(rate_pps=10_000, bucket_ns=SECOND_NS)
    assert (stats["attempted_packets"], stats["stalled_packets"]) == (300, 0)
    assert stats["last_ns"] > sender.config.end_ns


@pytest.mark.parametrize("pace_sleeps", [0, 1])
def test_without_debt_the_end_is_kept(scripted: tuple[Any, Any], pace_sleeps: int) -> None:
    """A paced sender that owes nothing leaves at its end, for no deadline beyond and no bucket."""
    sender = fake(scripted, [], duration_ns=SECOND_NS // 20)
    stats = sender.run(rate_pps=1, bucket_ns=10 * SECOND_NS, pace_sleeps=pace_sleeps)
    assert stats["attempted_packets"] == 1
    assert 0 <= time.monotonic_ns() - sender.config.end_ns < SECOND_NS // 2


def test_an_end_beyond_all_time_is_no_end(scripted: tuple[Any, Any]) -> None:
    """The largest end there is does not wrap round when the bucket is added."""
    stats = fake(scripted, []).run(count=5, rate_pps=10_000, end_ns=2**64 - 1)
    assert stats["sent_packets"] == 5


@pytest.mark.parametrize(
    ("batch", "low", "high"), [(1024, [16, 32, 51], [16, 32, 64]), (20, [16, 20, 20], [16, 20, 20])]
)
def test_the_batch_follows_from_the_rate(
    scripted: tuple[Any, Any], batch: int, low: list[int], high: list[int]
) -> None:
    """What fell due during a call makes up the next ones: 99 or more in 1 ms at 100 kpps.

    A call that takes 20 ms, as without a CPU, would shrink the next ones: such a run tells nothing.
    """
    for _ in range(100):
        sender = fake(scripted, [(1, 1)])
        begun_ns = time.monotonic_ns()
        sender.run(count=300, rate_pps=100_000, bucket_ns=SECOND_NS, batch=batch)
        if time.monotonic_ns() - begun_ns < 15 * SECOND_NS // 1000:
            break
    offered = offers(scripted)[1:4]
    assert offered[0][0] == 1
    assert low <= [messages for _, messages in offered] <= high


def test_a_stall_is_made_up_only_within_the_bucket(scripted: tuple[Any, Any]) -> None:
    """A call that hangs 250 ms at 10 kpps with a bucket of 100 ms gives up 1500 packets or more."""
    sender = fake(scripted, [(1, 250)], duration_ns=4 * SECOND_NS // 10)
    stats = sender.run(rate_pps=10_000, bucket_ns=SECOND_NS // 10)
    assert stats["stalled_packets"] >= 1499
    assert stats["attempted_packets"] + stats["stalled_packets"] == 4000


def test_a_bucket_of_nothing_holds_one_packet(scripted: tuple[Any, Any]) -> None:
    """Without a bucket no call ever offers more than one packet."""
    fake(scripted, [(1, 5)]).run(count=50, rate_pps=10_000, bucket_ns=0)
    assert {count for _, count in offers(scripted)} == {1}


RATES = st.integers(1, 10**9)


@given(rate_pps=RATES, elapsed_ns=st.integers(0, 2**64 - 1))
def test_packets_in_a_time(scripted: tuple[Any, Any], rate_pps: int, elapsed_ns: int) -> None:
    """Packets passed in a time are exact at every rate and for centuries."""
    expected = elapsed_ns * rate_pps // SECOND_NS
    assert expected == scripted[1].ub_pacer_packets(elapsed_ns, rate_pps)


@given(rate_pps=RATES, packets=st.integers(0, 2**40))
def test_time_of_a_packet(scripted: tuple[Any, Any], rate_pps: int, packets: int) -> None:
    """A packet's time is the first nanosecond at which it is due: not one earlier."""
    if packets // rate_pps >= 2**33:
        return
    expected = -(-packets * SECOND_NS // rate_pps)
    assert expected == scripted[1].ub_pacer_elapsed_ns(packets, rate_pps)


# --- what the kernel says ------------------------------------------------------------------------


def test_partial_calls_burn_only_what_was_taken(scripted: tuple[Any, Any]) -> None:
    """What a partial call left is offered again with the same numbers."""
    sender = fake(scripted, [3, 5], sequences=[100])
    stats = sender.run(count=20, batch=10)
    assert offers(scripted) == [(100, 10), (103, 10), (108, 10), (118, 2)]
    assert stats["partial_calls"] == 2
    assert stats["send_calls"] == 4
    assert stats["sent_packets"] == stats["attempted_packets"] == 20
    assert sender.next[0] == 120


RETRIED = {errno.EAGAIN: "eagain", errno.ENOBUFS: "enobufs", errno.EINTR: None}
USED_UP = {errno.EPERM: "eperm", errno.ECONNREFUSED: "econnrefused", errno.EMSGSIZE: "emsgsize"}
ERRORS = ("eagain", "enobufs", "eperm", "econnrefused", "emsgsize", "other_errors")


@pytest.mark.parametrize(("number", "counter"), RETRIED.items())
def test_retried_errors(scripted: tuple[Any, Any], number: int, counter: str | None) -> None:
    """EAGAIN, ENOBUFS and EINTR use up no attempt; the first two are counted."""
    stats = fake(scripted, [-number, -number]).run(count=8, batch=8)
    assert offers(scripted) == [(0, 8), (0, 8), (0, 8)]
    assert stats["attempted_packets"] == stats["sent_packets"] == 8
    assert {name: stats[name] for name in ERRORS if stats[name]} == (
        {counter: 2} if counter else {}
    )


@pytest.mark.parametrize(("number", "counter"), USED_UP.items())
def test_errors_that_use_up_an_attempt(
    scripted: tuple[Any, Any], number: int, counter: str
) -> None:
    """A refused message uses up one attempt of the count, and no sequence number."""
    sender = fake(scripted, [-number, -number])
    stats = sender.run(count=8, batch=8)
    assert offers(scripted) == [(0, 8), (0, 7), (0, 6)]
    assert (stats["attempted_packets"], stats["sent_packets"]) == (8, 6)
    assert {name: stats[name] for name in ERRORS if stats[name]} == {counter: 2}
    assert sender.next[0] == 6


@pytest.mark.drawn(16)
@pytest.mark.parametrize("call", [lib.UB_SEND_SEND, lib.UB_SEND_SENDMMSG], ids=["one", "batch"])
@pytest.mark.parametrize("number", {**SEND_RETRIED, **SEND_ERRORS}, ids=errno.errorcode.get)
def test_every_errno_of_a_socket_is_conserved(
    scripted: tuple[Any, Any], number: int, call: int
) -> None:
    """Each attempt is sent or has its error; one without a counter of its own keeps its number."""
    sender = fake(scripted, [-number, 1, -number])
    stats = sender.run(count=8, batch=4, call=call)
    sent = 8 if number in SEND_RETRIED else 6
    assert (8, sent, sent) == (
        stats["attempted_packets"],
        stats["sent_packets"],
        sender.next[0],
    )
    named = {**RETRIED, **USED_UP}
    counter = named.get(number, "other_errors")
    counted = {name: stats[name] for name in ERRORS if stats[name]}
    assert counted == ({counter: 2} if counter else {})
    assert stats["last_errno"] == (0 if number in named else number)


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.ENOBUFS, errno.EAGAIN, errno.EINTR])
def test_an_error_for_ever_ends_with_the_time(scripted: tuple[Any, Any], number: int) -> None:
    """A kernel that never takes anything holds the loop no longer than until its end."""
    sender = fake(scripted, [(-number, 1)], repeat=True, duration_ns=SECOND_NS // 20)
    stats = sender.run()
    assert stats["sent_packets"] == 0
    assert stats["send_calls"] >= 1
    assert stats["last_ns"] < sender.config.end_ns + SECOND_NS


def test_a_closed_port_refuses_for_real() -> None:
    """The kernel reports a closed port by the next call, which sends nothing."""
    stats = sending(closed_port()).run(count=50, batch=1)
    assert stats["econnrefused"] > 0
    assert stats["sent_packets"] + stats["econnrefused"] == stats["attempted_packets"] == 50


def test_a_payload_beyond_ipv4_is_refused_for_real() -> None:
    """65508 bytes are one more than an IPv4 datagram carries: EMSGSIZE, each an attempt."""
    with receiving_socket() as receiver:
        stats = sending(receiver.getsockname()).run(count=3, sizes=[65508], batch=2)
    assert (stats["emsgsize"], stats["attempted_packets"], stats["sent_packets"]) == (3, 3, 0)


# --- when it leaves ------------------------------------------------------------------------------


def test_nothing_is_sent_before_the_start() -> None:
    """The first call comes at the start or after it."""
    with receiving_socket() as receiver:
        sender = sending(receiver.getsockname())
        start_ns = time.monotonic_ns() + SECOND_NS // 10
        stats = sender.run(count=1, start_ns=start_ns)
    assert stats["first_ns"] >= start_ns


def test_the_end_is_kept_without_a_count() -> None:
    """An unlimited sender leaves at its end, after one call more at most."""
    with receiving_socket() as receiver:
        sender = sending(receiver.getsockname(), duration_ns=SECOND_NS // 20)
        stats = sender.run()
    assert stats["sent_packets"] > 0
    assert sender.config.end_ns <= stats["last_ns"] < sender.config.end_ns + SECOND_NS


def test_a_socket_that_drains_slowly_does_not_hold_a_call(tmp_path: Path) -> None:
    """No message waits for long, and 1024 of them would for 5 s: the end is kept all the same."""
    with slow_sockets(tmp_path / "here") as (reading, writing):
        receiver = Receiving(ffi, lib, reading)
        receiver.start(batch=1, work_ns=5 * 10**6)
        sender = Sending(ffi, lib, [writing], duration_ns=SECOND_NS // 5)
        stats = sender.run(batch=1024)
        receiver.stop()
    assert stats["sent_packets"] > 0
    assert stats["last_ns"] < sender.config.end_ns + 2 * SECOND_NS


def test_calls_become_longer_and_shorter_with_their_time(scripted: tuple[Any, Any]) -> None:
    """Twice as many messages after a short call, and as many as fit into 20 ms after a long one."""
    sender = fake(scripted, [(16, 0), (32, 0), (60, 40), (-errno.EAGAIN, 40)])
    sender.run(count=400, batch=64)
    offered = [messages for _, messages in offers(scripted)]
    assert [16, 32, 64] == offered[:3]
    assert 1 <= offered[3] <= 30
    assert [1, 2, 4, 8, 16, 32, 64] == offered[4:11]


STOPS = {
    "waiting for the start": {"start_ns": 100 * SECOND_NS},
    "unlimited": {},
    "spinning": {"rate_pps": 1},
    "sleeping": {"rate_pps": 1, "pace_sleeps": 1},
}


@pytest.mark.parametrize("changes", STOPS.values(), ids=STOPS.keys())
def test_stop_is_prompt(changes: dict[str, int]) -> None:
    """Stop ends the loop within a second wherever it is, long before its end."""
    with receiving_socket() as receiver:
        sender = sending(receiver.getsockname(), duration_ns=200 * SECOND_NS)
        if "start_ns" in changes:
            changes = {"start_ns": sender.config.start_ns + changes["start_ns"]}
        thread = threading.Thread(target=sender.run, kwargs=changes)
        thread.start()
        if "start_ns" not in changes:
            wait_until("the first call", lambda: sender.stats.first_ns != 0)
        began = time.monotonic()
        sender.control.stop = 1
        thread.join(20)
    assert not thread.is_alive()
    assert time.monotonic() - began < 1
    if "start_ns" in changes:
        assert sender.stats.attempted_packets == 0


# --- guards --------------------------------------------------------------------------------------

BAD: dict[str, dict[str, Any]] = {
    "call": {"call": 4},
    "zerocopy by a ring": {"call": lib.UB_SEND_URING, "zerocopy": 1},
    "no batch": {"batch": 0},
    "batch beyond UIO_MAXIOV": {"batch": 1025},
    "no datagram": {"sizes": []},
    "no datagrams": {"datagrams": ffi.NULL},
    "size beyond UDP": {"sizes": [65536]},
    "another beyond UDP": {"sizes": [32, 65536]},
    "ours and the user's": {"sizes": [32, b"own"]},
    "headers on some": {"sizes": [32, 17]},
    "the user's with GSO": {"sizes": [b"own"], "gso_segments": 2},
    "more segments than can be": {"gso_segments": 1025},
    "GSO of nothing": {"gso_segments": 2, "sizes": [0]},
    "GSO beyond UDP": {"gso_segments": 2, "sizes": [32768]},
    "GSO of a mix": {"gso_segments": 2, "sizes": [32, 31, 30]},
    "tail beyond the others": {"gso_segments": 2, "sizes": [32, 33]},
    "tail below the header": {"gso_segments": 2, "sizes": [32, 17]},
    "tail of nothing": {"gso_segments": 2, "sizes": [17, 0]},
    "zero copy without numbers": {"zerocopy": 1, "zerocopy_next": ffi.NULL},
    "zero copy of nothing": {"zerocopy": 1, "sizes": [0]},
    "zero copy of nothing at times": {"zerocopy": 1, "sizes": [b"own", b""]},
    "frames without a socket for them": {"call": lib.UB_SEND_AF_XDP},
    "no flow": {"flow_count": 0},
    "more flows than numbers": {"flow_count": 65537},
    "no sockets": {"sockets": ffi.NULL},
    "no flow numbers": {"flows": ffi.NULL},
    "no sequences": {"sequences": ffi.NULL},
    "no control": {"control": ffi.NULL},
    "rate beyond reckoning": {"rate_pps": 10**9 + 1},
    "end at the start": {"start_ns": 5, "end_ns": 5},
}


def test_every_guard_names_its_field() -> None:
    """All that C may refuse is refused here, and says of which field."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forever:
        sender, hanging = sending(("127.0.0.1", 9)), Sending(ffi, lib, [forever])
        # Without SO_ZEROCOPY completions would be awaited that never come.
        bad = [(sender.config, changes) for changes in (*BAD.values(), {"zerocopy": 1})]
        bad += [(hanging.config, {}), (ffi.NULL, {})]
        refused = {refusal(ffi, lib.ub_send_check, config, changes) for config, changes in bad}
        assert "" == refusal(ffi, lib.ub_send_check, sender.config, {})
    assert guards("sender.c") | {"xsk: not NULL with af_xdp"} == refused


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD.keys())
def test_a_bad_config_is_refused(changes: dict[str, Any]) -> None:
    """Each guard refuses with -EINVAL, and nothing is sent or counted."""
    with receiving_socket() as receiver:
        sender = sending(receiver.getsockname())
        assert sender.result(**changes) == -errno.EINVAL
    assert sender.stats.send_calls == 0


def test_nothing_at_all_is_refused() -> None:
    """A missing config or stats struct is refused, not dereferenced."""
    sender = sending(("127.0.0.1", 9))
    assert lib.ub_send(ffi.NULL, sender.stats) == -errno.EINVAL
    assert lib.ub_send(sender.config, ffi.NULL) == -errno.EINVAL


def test_a_socket_that_could_hang_is_refused() -> None:
    """A socket without SO_SNDTIMEO could outlast stop and end: refused; so is a closed one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forever:
        assert Sending(ffi, lib, [forever]).result(count=1) == -errno.EINVAL
    sender = sending(("127.0.0.1", 9))
    # Without SO_ZEROCOPY completions would be awaited that never come.
    assert sender.result(count=1, zerocopy=1) == -errno.EINVAL
    sender.keep[0][0] = -1
    assert sender.result(count=1, zerocopy=0) == -errno.EINVAL
    refused = refusal(ffi, lib.ub_send_check, sender.config, {})
    assert "sockets: open ones, with SO_SNDTIMEO set" == refused


NEEDS = {"plain": ({}, 4), "everything": ({"gso_segments": 2, "zerocopy": 1}, 6)}
SHORT = [(more, allocated) for more, needed in NEEDS.values() for allocated in range(needed)]


@pytest.mark.parametrize(("more", "allocations"), SHORT)
def test_too_little_memory_is_reported(
    scripted: tuple[Any, Any], more: dict[str, int], allocations: int
) -> None:
    """Where any of the buffers cannot be had the loop says so and sends nothing."""
    sender = fake(scripted, [])
    sender.sockets[0].setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    scripted[1].fake_memory(allocations)
    result = sender.result(count=1, **more)
    scripted[1].fake_memory(2**32 - 1)
    assert (result, offers(scripted)) == (-errno.ENOMEM, [])
