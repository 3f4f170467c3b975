"""A relay in this process that does known harm to known datagrams; each is counted, exactly."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from loops import HAS_URING, Receiving, Sending, receiving_socket, sending_socket
from waiting import wait_for_loopback

from udpbench._native import ffi, lib

COUNT = 300
SIZE_BYTES = 64
TAG_AT, FLOW_AT, PATTERN_AT = 3, 5, 40

Harm = Callable[[list[bytes]], list[bytes]]


def sent_through(send: dict[str, int], family: int = socket.AF_INET) -> list[bytes]:
    """Return the datagrams that one sender makes, as a relay on its way receives them."""
    with receiving_socket(family=family) as relay, sending_socket(relay.getsockname()) as out:
        stats = Sending(ffi, lib, [out]).run(count=COUNT, sizes=[SIZE_BYTES], **send)
        assert stats["sent_packets"] == COUNT
        wait_for_loopback()
        return [relay.recv(2048) for _ in range(COUNT)]


def flipped(whole: bytes, at: int) -> bytes:
    """Return the datagram with one bit of one byte turned round."""
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def reordered(datagrams: list[bytes]) -> list[bytes]:
    """Put number 10 behind 20, and 100 behind all: two are late."""
    kept = [each for at, each in enumerate(datagrams) if at not in (10, 100)]
    return [*kept[:20], datagrams[10], *kept[20:], datagrams[100]]


HARMS: dict[str, tuple[Harm, dict[str, int]]] = {
    "none": (lambda them: them, {"received": 300}),
    "drops": (lambda them: [each for at, each in enumerate(them) if at % 7], {"received": 257}),
    "duplicates": (
        lambda them: [each for at, each in enumerate(them) for _ in range(1 + (at % 10 == 0))],
        {"received": 300, "duplicate": 30},
    ),
    "reorders": (reordered, {"received": 300, "late": 2}),
    "truncates": (
        lambda them: [each[:50] if at % 3 == 0 else each for at, each in enumerate(them)],
        {"received": 200, "corrupt": 100},
    ),
    "truncates headers": (
        lambda them: [each[:10] if at < 5 else each for at, each in enumerate(them)],
        {"received": 295, "foreign": 5},
    ),
    "pads": (lambda them: [them[0] + b"\0", *them[1:]], {"received": 299, "corrupt": 1}),
    "corrupts payload": (
        lambda them: [flipped(e, PATTERN_AT + at) if at < 20 else e for at, e in enumerate(them)],
        {"received": 280, "corrupt": 20},
    ),
    "moves payload": (
        lambda them: [them[0][:18] + them[0][19:] + them[0][18:19], *them[1:]],
        {"received": 299, "corrupt": 1},
    ),
    "corrupts tags": (
        lambda them: [flipped(e, TAG_AT) if at < 20 else e for at, e in enumerate(them)],
        {"received": 280, "foreign": 20},
    ),
    "corrupts flows": (lambda them: [flipped(them[0], FLOW_AT), *them[1:]],
                       {"received": 299, "foreign": 1}),
    "all at once": (
        lambda them: [them[0], them[0], them[5], them[3], them[7][:30], flipped(them[8], 63), b""],
        {"received": 3, "duplicate": 1, "late": 1, "corrupt": 2, "foreign": 1},
    ),
}  # fmt: skip

UNSEEN_BY_HEADER = {"corrupts payload": 20, "moves payload": 1, "all at once": 1}
"""Harm → datagrams that only `verify` finds, because their header is as it was sent."""

NAMES = ("received", "duplicate", "late", "ancient", "foreign", "foreign_size", "truncated")
NAMES += ("corrupt",)
SENDS = {
    "send": {"call": lib.UB_SEND_SEND},
    "sendmmsg": {"call": lib.UB_SEND_SENDMMSG},
    "gso": {"gso_segments": 25},
}
RECEIVES = [lib.UB_RECEIVE_RECV, lib.UB_RECEIVE_RECVMMSG]
if HAS_URING:
    SENDS["io_uring"] = {"call": lib.UB_SEND_URING}
    RECEIVES.append(lib.UB_RECEIVE_URING)


def arrived(
    datagrams: list[bytes], workers: int = 1, family: int = socket.AF_INET, **changes: int
) -> dict[str, int]:
    """Return the counts that are not 0 of workers that these datagrams reach."""
    with receiving_socket(family=family) as sock:
        receiver = Receiving(ffi, lib, sock, workers=workers)
        stats = receiver.receive(datagrams, sizes=[SIZE_BYTES], **changes)
    return {name: stats[f"{name}_packets"] for name in NAMES if stats[f"{name}_packets"]}


@pytest.mark.drawn(16)
@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS.keys())
@pytest.mark.parametrize(("harm", "expected"), HARMS.values(), ids=HARMS.keys())
def test_harm_is_counted_exactly(
    harm: Harm, expected: dict[str, int], send: dict[str, int]
) -> None:
    """Who verifies tells every kind of harm apart and counts each datagram once."""
    assert expected == arrived(harm(sent_through(send)), read=lib.UB_READ_VERIFY)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize(("harm", "expected"), HARMS.values(), ids=HARMS.keys())
def test_harm_is_counted_by_several_workers_over_either_family(
    harm: Harm, expected: dict[str, int], family: int
) -> None:
    """One flow lands in three workers, one datagram a call; only which were late is by chance."""
    ways = {"read": lib.UB_READ_VERIFY, "call": lib.UB_RECEIVE_RECV}
    arrivals = arrived(harm(sent_through({}, family)), workers=3, family=family, **ways)
    counts = {name: count for name, count in arrivals.items() if name != "late"}
    assert {name: count for name, count in expected.items() if name != "late"} == counts


@pytest.mark.drawn(12)
@pytest.mark.parametrize("call", RECEIVES)
@pytest.mark.parametrize("name", HARMS.keys())
def test_headers_tell_all_but_payloads(name: str, call: int) -> None:
    """Who reads headers takes a changed payload for a whole one, and sees everything else."""
    harm, expected = HARMS[name]
    unseen = UNSEEN_BY_HEADER.get(name, 0)
    expected_counts = dict(expected)
    expected_counts["received"] += unseen
    expected_counts["corrupt"] = expected_counts.get("corrupt", 0) - unseen
    counts = arrived(harm(sent_through({})), read=lib.UB_READ_HEADER, call=call)
    assert {key: value for key, value in expected_counts.items() if value} == counts


@pytest.mark.parametrize("read", [lib.UB_READ_COPY, lib.UB_READ_NONE], ids=["copy", "none"])
@pytest.mark.parametrize(("harm", "expected"), HARMS.values(), ids=HARMS.keys())
def test_lengths_alone_tell_totals(harm: Harm, expected: dict[str, int], read: int) -> None:
    """Without a look at headers, what has our size is received and all else is foreign by size."""
    datagrams = harm(sent_through({}))
    ours = sum(len(each) == SIZE_BYTES for each in datagrams)
    totals = {"received": ours, "foreign_size": len(datagrams) - ours}
    assert {name: count for name, count in totals.items() if count} == arrived(datagrams, read=read)


@pytest.mark.parametrize("call", RECEIVES)
@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lib.UB_READ_HEADER, {"truncated": 300}),
        (lib.UB_READ_VERIFY, {"truncated": 300}),
        (lib.UB_READ_COPY, {"truncated": 300}),
        (lib.UB_READ_NONE, {"received": 300}),
    ],
)
def test_a_short_room_truncates_all_that_is_copied(
    read: int, expected: dict[str, int], call: int
) -> None:
    """A room one byte short cuts every datagram; who copies nothing needs no room."""
    counts = arrived(sent_through({}), read=read, call=call, room_bytes=SIZE_BYTES - 1)
    assert expected == counts
