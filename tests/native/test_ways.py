"""Every way of sending against every way of receiving: no datagram is lost, found or made up."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from loops import (
    HAS_URING,
    Receiving,
    Sending,
    drops,
    receiving_socket,
    sending_socket,
)
from waiting import wait_for_loopback, wait_until

from udpbench._native import ffi, lib
from udpbench.ways import WAYS

COUNT = 1003
"""A prime, so that the last GSO message of a flow is shorter than the others."""

CALLS = {"send": lib.UB_SEND_SEND, "sendmmsg": lib.UB_SEND_SENDMMSG}
if HAS_URING:
    CALLS["io_uring"] = lib.UB_SEND_URING
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "mix": {"sizes": [32, 20, 47]},
    "gso": {"gso_segments": 7},
    "gso-tail": {"gso_segments": 7, "sizes": [32, 20]},
    "zerocopy": {"zerocopy": 1},
    "gso-zerocopy": {"gso_segments": 7, "zerocopy": 1},
}
WAITS: dict[str, dict[str, int]] = {
    "block": {},
    "epoll": {"wait": lib.UB_WAIT_EPOLL},
    "spin": {"wait": lib.UB_WAIT_SPIN},
    "nap": {"wait": lib.UB_WAIT_NAP, "nap_ns": 100_000},
    "auto": {"wait": lib.UB_WAIT_AUTO, "nap_ns": 100_000},
}
READS = {
    "header": lib.UB_READ_HEADER,
    "verify": lib.UB_READ_VERIFY,
    "copy": lib.UB_READ_COPY,
    "none": lib.UB_READ_NONE,
}
SENDS = {
    f"{call}-{shape}": {"call": CALLS[call]} | SHAPES[shape]
    for call in CALLS
    for shape in SHAPES
    if call != "io_uring" or "zerocopy" not in shape
}
RECEIVE_CALLS = {"recv": {"call": lib.UB_RECEIVE_RECV}, "recvmmsg": {"call": 0}}
RECEIVES = {
    f"{call}-{'gro' if gro else 'single'}-{wait}": RECEIVE_CALLS[call] | WAITS[wait] | {"gro": gro}
    for call, gro, wait in itertools.product(RECEIVE_CALLS, (0, 1), WAITS)
}
if HAS_URING:
    RECEIVES |= {
        f"io_uring-single-{wait}": {"call": lib.UB_RECEIVE_URING, "gro": 0} | WAITS[wait]
        for wait in ("block", "spin", "nap", "auto")
    }
WHOLE = {name: way for name, way in SENDS.items() if "gso" not in name and "mix" not in name}
SOME_SENDS = {name: SENDS[name] for name in ("send-plain", "sendmmsg-mix", "sendmmsg-gso-tail")}
SOME_RECEIVES = {name: RECEIVES[name] for name in ("recv-single-block", "recvmmsg-gro-epoll")}
SOME_RECEIVES |= {name: way for name, way in RECEIVES.items() if name == "io_uring-single-spin"}


@contextlib.contextmanager
def linked(
    send: dict[str, Any], receive: dict[str, int], *, flows: int = 1, **more: Any
) -> Iterator[tuple[Sending, Receiving]]:
    """Give a sender and a receiver of which the one sends to the other."""
    gro = bool(receive.get("gro"))
    with receiving_socket(gro=gro, **more) as sock:
        receiver = Receiving(ffi, lib, sock, flows)
        sockets = [
            sending_socket(sock.getsockname(), zerocopy=bool(send.get("zerocopy")))
            for _ in range(flows)
        ]
        yield Sending(ffi, lib, sockets, list(range(flows))), receiver
        for each in sockets:
            each.close()


def transfer(
    sender: Sending, receiver: Receiving, send: dict[str, Any], receive: dict[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Send and receive until every datagram is read or dropped by the socket; both counts."""
    room = {"room_bytes": 65535} if receive.get("gro") else {}
    receiver.start(**receive | sizes_of(send) | room)
    sent = sender.run(**{"count": COUNT, "batch": 16} | send)
    wait_until("all read", lambda: receiver.read() == sent["sent_packets"])
    return sent, receiver.stop()


def run_all(senders: list[Sending], changes: dict[str, Any]) -> None:
    """Send on all at once, and wait for the end of the last."""
    threads = [threading.Thread(target=each.run, kwargs=changes) for each in senders]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
        assert not each.is_alive()


def sizes_of(send: dict[str, Any]) -> dict[str, Any]:
    """Return what a receiver must know of a way of sending."""
    return {"sizes": send["sizes"]} if "sizes" in send else {}


def messages(send: dict[str, Any], count: int = COUNT) -> int:
    """Return the messages that so many datagrams of one flow make."""
    return -(-count // send.get("gso_segments", 1))


def payload_bytes(send: dict[str, Any]) -> int:
    """Return the payload of COUNT datagrams of one flow."""
    sizes = send.get("sizes", [32])
    if "gso_segments" in send:
        return COUNT * sizes[0] - messages(send) * (sizes[0] - sizes[-1])
    return sum(sizes[number % len(sizes)] for number in range(COUNT))


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_every_row_of_a_call_names_its_constant_here(role: str) -> None:
    """Each another, and together all that the loops have."""
    named = [getattr(lib, way.constant) for way in WAYS if way.role == role and way.constant]
    assert list(range(len(named))) == sorted(named)


@pytest.mark.drawn(96)
@pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES.keys())
@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS.keys())
def test_every_pair_of_ways_conserves(send: dict[str, Any], receive: dict[str, int]) -> None:
    """Exactly what was sent is received, each once and in order, in as many bytes."""
    with linked(send, receive) as (sender, receiver):
        sent, received = transfer(sender, receiver, send, receive)
        assert drops(receiver.sock) == 0
    assert (sent["attempted_packets"], sent["sent_packets"]) == (COUNT, COUNT)
    assert sent["sent_messages"] == messages(send)
    assert sent["sent_bytes"] == received["received_bytes"] == payload_bytes(send)
    assert received["read_packets"] == received["received_packets"] == COUNT
    assert received["late_packets"] == 0
    assert receiver.totals() == (COUNT, COUNT)
    assert sender.next[0] == COUNT
    # Looped GSO messages reach a GRO socket as they were sent, and others datagram by datagram.
    assert received["read_messages"] == (messages(send) if receive["gro"] else COUNT)
    completed = sent["zerocopy_messages"] + sent["zerocopy_copied_messages"]
    assert completed == (messages(send) if "zerocopy" in send else 0)


@pytest.mark.drawn(72)
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
@pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES.keys())
@pytest.mark.parametrize("send", SOME_SENDS.values(), ids=SOME_SENDS.keys())
def test_every_way_of_reading_conserves(
    send: dict[str, Any], receive: dict[str, int], read: int
) -> None:
    """Whatever is looked at, datagrams and bytes come to the same counts."""
    with linked(send, receive) as (sender, receiver):
        sent, received = transfer(sender, receiver, send, receive | {"read": read})
    assert received["received_packets"] == sent["sent_packets"] == COUNT
    assert received["received_bytes"] == payload_bytes(send)
    numbered = read in (lib.UB_READ_HEADER, lib.UB_READ_VERIFY)
    assert receiver.totals() == ((COUNT, COUNT) if numbered else (0, 0))


@pytest.mark.drawn(16)
@pytest.mark.parametrize("receive", SOME_RECEIVES.values(), ids=SOME_RECEIVES.keys())
@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS.keys())
def test_ways_conserve_over_ipv6(send: dict[str, Any], receive: dict[str, int]) -> None:
    """The loops do not care for the family of their sockets."""
    with linked(send, receive, family=socket.AF_INET6) as (sender, receiver):
        sent, received = transfer(sender, receiver, send, receive | {"read": lib.UB_READ_VERIFY})
    assert received["received_packets"] == sent["sent_packets"] == COUNT
    completed = sent["zerocopy_messages"] + sent["zerocopy_copied_messages"]
    assert completed == (messages(send) if "zerocopy" in send else 0)


@pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES.keys())
def test_a_small_buffer_loses_exactly_what_it_drops(receive: dict[str, int]) -> None:
    """Received and dropped are sent, whatever the way: with GRO a message is dropped whole."""
    send = SENDS["sendmmsg-gso"]
    with linked(send, receive, buffer_bytes=1) as (sender, receiver):
        sent = sender.run(count=COUNT, **send)
        wait_for_loopback()
        read, lost = COUNT - drops(receiver.sock), drops(receiver.sock)
        if receive["gro"]:
            whole = drops(receiver.sock)
            # The last message holds 2 datagrams, and is dropped as the buffer is full by then.
            lost = 7 * whole - 5
            read = COUNT - lost
        receiver.start(**receive, room_bytes=65535)
        wait_until("the rest read", lambda: receiver.read() == read)
        received = receiver.stop()
    assert lost > 0
    assert received["received_packets"] == sent["sent_packets"] - lost


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS.keys())
def test_flows_of_several_threads_are_told_apart(send: dict[str, Any]) -> None:
    """Three senders of two flows each reach two workers on two sockets; every flow is whole."""
    with contextlib.ExitStack() as opened:
        pair = [opened.enter_context(receiving_socket()) for _ in range(2)]
        receiver = Receiving(ffi, lib, pair[0], 6, workers=2)
        both = ffi.new("int32_t[]", [sock.fileno() for sock in pair])
        receives = RECEIVES["recvmmsg-single-epoll"] | sizes_of(send)
        receiver.start(**receives, sockets=both, socket_count=2)
        senders = []
        for thread in range(3):
            sockets = [
                opened.enter_context(sending_socket(to.getsockname(), zerocopy="zerocopy" in send))
                for to in pair
            ]
            senders.append(Sending(ffi, lib, sockets, [2 * thread, 2 * thread + 1]))
        run_all(senders, {"count": COUNT, "batch": 8} | send)
        wait_until("all read", lambda: receiver.read() == 3 * COUNT)
        stats = receiver.stop()
    assert stats["received_packets"] == 3 * COUNT
    expected = [(packets, packets) for packets in (502, 501)] * 3
    assert expected == [receiver.totals(flow) for flow in range(6)]


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("read", [lib.UB_READ_COPY, lib.UB_READ_NONE], ids=["copy", "none"])
@pytest.mark.parametrize("size_bytes", [0, 1, 17])
def test_datagrams_too_small_for_a_header(size_bytes: int, read: int, call: int) -> None:
    """Below 18 bytes there is no header, and datagrams and bytes are counted all the same."""
    with linked({}, {}) as (sender, receiver):
        receiver.start(sizes=[size_bytes], read=read)
        sent = sender.run(count=COUNT, sizes=[size_bytes], call=call)
        wait_until("all read", lambda: receiver.read() == COUNT)
        received = receiver.stop()
    assert sent["sent_packets"] == received["received_packets"] == COUNT
    assert sent["sent_bytes"] == received["received_bytes"] == COUNT * size_bytes
    assert sender.next[0] == COUNT


def test_a_small_datagram_carries_the_pattern_alone() -> None:
    """A datagram of 17 bytes is the pattern from its first byte on."""
    with linked({}, {}) as (sender, receiver):
        sender.run(count=1, sizes=[17])
        wait_for_loopback()
        assert bytes(range(17)) == receiver.sock.recv(64)


@pytest.mark.parametrize("gro", [0, 1])
@pytest.mark.parametrize("send", WHOLE.values(), ids=WHOLE.keys())
def test_the_largest_datagram_arrives_whole(send: dict[str, Any], gro: int) -> None:
    """65507 bytes arrive as they were sent, byte by byte."""
    size: dict[str, Any] = {"sizes": [65507]}
    with linked(send, {"gro": gro}) as (sender, receiver):
        receiver.start(**size, room_bytes=65536, read=lib.UB_READ_VERIFY, gro=gro)
        sent = sender.run(count=20, batch=4, **size, **send)
        wait_until("all read", lambda: receiver.read() == 20)
        received = receiver.stop()
    assert sent["sent_bytes"] == received["received_bytes"] == 20 * 65507
