"""The sockets of workers: options as the kernel has them, groups, and what is left in one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from udpbench.agent import sockets
from udpbench.agent.capabilities import tried
from udpbench.agent.host import Host
from udpbench.agent.loops import gso_max

SENDING = {
    "protocol": "udp",
    "family": 4,
    "fragment": False,
    "ttl": 3,
    "zerocopy": False,
    "echo_every": 0,
    "buffer_bytes": None,
    "force_buffer": True,
}
RECEIVING = {
    "protocol": "udp",
    "family": 4,
    "sockets": "shared",
    "gro": False,
    "timestamps": False,
    "echo_every": 0,
    "wait": "block",
    "wait_ns": 0,
    "buffer_bytes": None,
    "force_buffer": True,
}
LOOPBACK = {4: "127.0.0.1", 6: "::1"}


@pytest.fixture
def keep() -> Iterator[ExitStack]:
    """Close every socket of a test."""
    with ExitStack() as stack:
        yield stack


def receiving(keep: ExitStack, port: int = 0, **changed: Any) -> socket.socket:
    """Return a receiving socket."""
    made = sockets.receiving_socket({**RECEIVING, **changed}, port)
    keep.enter_context(made)
    return made


def sending(keep: ExitStack, port: int, family: int = 4, **changed: Any) -> socket.socket:
    """Return a sending socket to a port of the loopback interface."""
    address = LOOPBACK[family]
    flow = {"source": address, "source_port": 0, "destination": address, "destination_port": port}
    made = sockets.sending_socket({**SENDING, "family": family, **changed}, flow)
    keep.enter_context(made)
    return made


def group(keep: ExitStack, kind: str, members: int) -> list[socket.socket]:
    """Return the members of a reuseport group, in the order in which they were bound."""
    first = receiving(keep, sockets=kind)
    port = first.getsockname()[1]
    return [first, *(receiving(keep, port, sockets=kind) for _ in range(members - 1))]


def got(of: socket.socket) -> int:
    """Return how many packets wait in a socket, and read them."""
    return sockets.unread(of).packets


@pytest.mark.parametrize(
    ("family", "level", "options"),
    [
        (4, socket.IPPROTO_IP, {socket.IP_TTL: 3, sockets.IP_RECVERR: 0}),
        (6, socket.IPPROTO_IPV6, {socket.IPV6_UNICAST_HOPS: 3, sockets.IPV6_RECVERR: 0}),
    ],
)
def test_a_sender_has_what_was_asked_for(
    keep: ExitStack, family: int, level: int, options: dict[int, int]
) -> None:
    """Hops, errors and fragments by the names of either family."""
    port = receiving(keep, family=family).getsockname()[1]
    discover = {4: sockets.IP_MTU_DISCOVER, 6: sockets.IPV6_MTU_DISCOVER}[family]
    for fragment, expected in ((False, sockets.PMTUDISC_PROBE), (True, sockets.PMTUDISC_DONT)):
        made = sending(keep, port, family, fragment=fragment, zerocopy=True)
        wanted = {**options, discover: expected}
        assert wanted == {option: made.getsockopt(level, option) for option in wanted}
        assert 1 == made.getsockopt(socket.SOL_SOCKET, sockets.SO_ZEROCOPY)


def test_a_receiver_has_what_was_asked_for(keep: ExitStack) -> None:
    """Merged datagrams, busy polling in whole microseconds, a group, one family alone."""
    plain = receiving(keep)
    assert (0, 0, 0) == (
        plain.getsockopt(sockets.SOL_UDP, sockets.UDP_GRO),
        plain.getsockopt(socket.SOL_SOCKET, sockets.SO_BUSY_POLL),
        plain.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT),
    )
    asked = {"gro": True, "wait": "busy-poll", "wait_ns": 1500, "sockets": "reuseport"}
    full = receiving(keep, family=6, **asked)
    assert (1, 2, 1, 1) == (
        full.getsockopt(sockets.SOL_UDP, sockets.UDP_GRO),
        full.getsockopt(socket.SOL_SOCKET, sockets.SO_BUSY_POLL),
        full.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT),
        full.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY),
    )


@pytest.mark.parametrize("family", [4, 6])
def test_a_receiver_that_echoes_learns_where_it_was_sent_to(keep: ExitStack, family: int) -> None:
    """Bound to every address, it could not tell from which one to answer."""
    asked = {
        4: (socket.IPPROTO_IP, sockets.IP_PKTINFO),
        6: (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO),
    }[family]
    made = [receiving(keep, family=family, echo_every=n, ttl=1) for n in (0, 10)]
    assert [0, 1] == [one.getsockopt(*asked) for one in made]


def test_errors_name_addresses_of_either_family(keep: ExitStack) -> None:
    """An IPv6 address stands in brackets before its port."""
    port = receiving(keep, family=6).getsockname()[1]
    with pytest.raises(OSError, match=rf"socket \[::\]:{port}: Address already in use"):
        receiving(keep, port, family=6)
    flow = {"source": "fd00::1", "source_port": 5, "destination": "::1", "destination_port": 9}
    with pytest.raises(OSError, match=r"socket \[fd00::1\]:5 → \[::1\]:9: "):
        sockets.sending_socket({**SENDING, "family": 6}, flow)


@pytest.mark.parametrize(
    ("cpus", "program"),
    [
        (
            [2, 5],
            [(0x15, 0, 1, 2), (6, 0, 0, 0), (0x15, 0, 1, 5), (6, 0, 0, 1), (6, 0, 0, 2**32 - 1)],
        ),
        ([2, 2], [(0x15, 0, 1, 2), (6, 0, 0, 0), (6, 0, 0, 2**32 - 1)]),
        ([None, None], [(0x94, 0, 0, 2), (0x16, 0, 0, 0)]),
    ],
)
def test_a_program_names_the_member_for_a_cpu(
    cpus: list[int], program: list[tuple[int, int, int, int]]
) -> None:
    """By a comparison each, the first of a CPU; unpinned members by a remainder."""
    load_cpu = (0x20, 0, 0, 0xFFFFF024)
    found = sockets.cpu_program(cpus)  # type: ignore[arg-type]
    assert sorted(program[:-1]) == sorted(found[1:-1])
    assert (load_cpu, program[-1]) == (found[0], found[-1])


@pytest.fixture
def on_cpu() -> Iterator[list[int]]:
    """Yield the CPUs there are, and put this thread back on all of them."""
    before = os.sched_getaffinity(0)
    yield sorted(before)
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize("kind", ["reuseport-cpu", "incoming-cpu"])
def test_a_member_gets_what_its_cpu_receives(keep: ExitStack, on_cpu: list[int], kind: str) -> None:
    """On the loopback interface the sender's CPU receives, so that it chooses the socket."""
    if kind == "incoming-cpu" and not tried(Host())["incoming_cpu"]:
        pytest.skip("this kernel chooses no UDP socket by SO_INCOMING_CPU; Linux 6.2 does")
    members = group(keep, kind, len(on_cpu))
    backwards = list(reversed(on_cpu))
    for member, cpu in zip(members, backwards):
        if kind == "incoming-cpu":
            sockets.prefer_cpu(member, cpu)
    if kind == "reuseport-cpu":
        sockets.steer_by_cpu(members[-1], list(backwards))
    for number, cpu in enumerate(backwards):
        os.sched_setaffinity(0, {cpu})
        for _ in range(8):
            sending(keep, members[0].getsockname()[1]).send(b"x")
        assert [8 * (number == n) for n in range(len(members))] == [got(one) for one in members]


def test_a_worker_without_a_cpu_prefers_none(keep: ExitStack) -> None:
    """It says what is missing."""
    with pytest.raises(OSError, match="incoming-cpu needs a worker that is pinned to a CPU"):
        sockets.prefer_cpu(receiving(keep), None)


def test_what_waits_is_counted_in_packets_and_messages(keep: ExitStack) -> None:
    """A merged message holds several; empty datagrams are packets, too."""
    merged, plain = receiving(keep, gro=True), receiving(keep)
    for receiver in (merged, plain):
        sender = sending(keep, receiver.getsockname()[1])
        sender.setsockopt(sockets.SOL_UDP, sockets.UDP_SEGMENT, 10)
        sender.send(b"x" * 35)
        sender.send(b"")
    assert (sockets.Unread(2, 5), sockets.Unread(5, 5)) == (
        sockets.unread(merged),
        sockets.unread(plain),
    )
    assert sockets.Unread() == sockets.unread(plain)


@pytest.mark.parametrize("family", [4, 6])
def test_what_waits_is_counted_whatever_else_is_told_with_it(keep: ExitStack, family: int) -> None:
    """A stamp and an address beside the size of merged packets leave room for it."""
    asked = {"gro": True, "timestamps": True, "echo_every": 10, "ttl": 1}
    merged = receiving(keep, family=family, **asked)
    sender = sending(keep, merged.getsockname()[1], family)
    sender.setsockopt(sockets.SOL_UDP, sockets.UDP_SEGMENT, 10)
    sender.send(b"x" * 35)
    assert sockets.Unread(1, 4) == sockets.unread(merged)


def test_a_closed_member_leaves_its_group(keep: ExitStack) -> None:
    """What it held is counted, and what comes afterwards goes to the others."""
    leaving, staying = group(keep, "reuseport", 2)
    port = leaving.getsockname()[1]
    for _ in range(40):
        sending(keep, port).send(b"x")
    left = sockets.closed(leaving)
    assert 40 == left.packets + got(staying)
    assert 0 < left.packets < 40
    for _ in range(40):
        sending(keep, port).send(b"x")
    assert 40 == got(staying)


def test_streams_are_taken_from_a_listener(keep: ExitStack) -> None:
    """As many as asked for; one that does not come is an error and no wait for ever."""
    listener = receiving(keep, protocol="tcp")
    port = listener.getsockname()[1]
    ends = [sending(keep, port, protocol="tcp") for _ in range(2)]
    streams = sockets.accepted(listener, 2)
    for stream in streams:
        keep.enter_context(stream)
    assert {end.getsockname() for end in ends} == {one.getpeername() for one in streams}
    assert [True, True] == [one.getblocking() for one in streams]
    with pytest.raises(OSError, match="timed out"):
        sockets.accepted(listener, 1)


@pytest.mark.parametrize("family", [4, 6])
def test_the_limit_of_segments_is_found_at_an_own_address(family: int) -> None:
    """64 or, since Linux 6.9, 128; an address that is not ours has none."""
    assert gso_max(LOOPBACK[family]) in (64, 128)
    with pytest.raises(OSError, match="assign"):
        gso_max({4: "192.0.2.1", 6: "2001:db8::1"}[family])


def test_a_listener_whose_option_is_refused_is_closed() -> None:
    """The kernel's reason comes with the address."""
    with pytest.raises(OSError, match=r"socket 0\.0\.0\.0:0: Invalid argument"):
        sockets.receiving_socket({**RECEIVING, "wait": "busy-poll", "wait_ns": -(10**9)}, 0)
