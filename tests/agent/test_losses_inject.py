"""Which messages a loss is sent in, and what a socket says of its queue."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

import pytest
from golden import Golden
from test_frames import V4
from waiting import wait_for_loopback

from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_sockets import udp_sockets
from udpbench.agent.losses.inject import Sink, Source, messages, queued
from udpbench.agent.losses.udp_memory import HeldMemory, held_pages
from udpbench.errors import AgentError


@pytest.mark.parametrize(
    ("stage", "packets", "segments", "sizes"),
    [
        ("rx_xdp", 3, 1, [1, 1, 1]),
        ("rx_xdp", 100, 50, [50, 50]),
        ("rx_xdp", 101, 50, [50, 50, 1]),
        ("rx_backlog", 3, 1, [4]),
        ("rx_backlog", 32, 50, [32, 2]),
        ("rx_backlog", 124, 1, [32, 32, 32, 32]),
    ],
)
def test_messages_add_up_to_what_is_to_be_lost(
    stage: str, packets: int, segments: int, sizes: list[int]
) -> None:
    """A backlog takes the first packet of each message, so that one more is sent in each."""
    assert sizes == messages(replace(V4, stage=stage, packets=packets, segments=segments))


def test_messages_are_no_longer_than_a_datagram_may_be() -> None:
    """A message holds 21 packets of 3000 bytes, and loses 20 of them."""
    assert [21, 6] == messages(replace(V4, stage="rx_backlog", packets=25, size_bytes=3000))


@pytest.mark.parametrize(("family", "headers_bytes"), [(4, 20 + 8), (6, 40 + 8)])
def test_messages_are_taken_by_a_kernel_that_counts_headers(
    family: int, headers_bytes: int
) -> None:
    """Before Linux 5.16 a message and its headers are no longer than 64 segments."""
    spec = replace(V4, stage="rx_backlog", packets=200, size_bytes=4, family=family)
    longest_bytes = max(messages(spec)) * spec.size_bytes + headers_bytes
    assert longest_bytes <= 64 * spec.size_bytes


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    """Return a socket that is bound to loopback and one that sends to it."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    receiver.setblocking(False)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(receiver.getsockname())
    return receiver, sender


def test_a_queue_is_counted_and_left_as_it_is(pair: tuple[socket.socket, socket.socket]) -> None:
    """Datagrams of any length, and none twice."""
    receiver, sender = pair
    with receiver, sender:
        for length in (1, 1000, 3):
            sender.send(bytes(length))
        wait_for_loopback()
        assert 3 == queued(receiver)
        assert [1, 1000, 3] == [len(receiver.recv(2000, socket.MSG_DONTWAIT)) for _ in range(3)]


def test_what_a_closed_socket_still_held_is_counted_before() -> None:
    """Purged, not read: its datagrams were never received."""
    sink = Sink(replace(V4, stage="udp_purged", port=0))
    assert sink.sock is not None
    port = sink.sock.getsockname()[1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(4):
            sender.sendto(b"x", ("127.0.0.1", port))
    wait_for_loopback()
    assert {"purged_packets": 4} == sink.collect()
    assert sink.inode in udp_sockets(Host()), "its drops can still be read"
    sink.close()


def test_a_datagram_that_is_cut_off_is_truncated_and_not_received() -> None:
    """The room offered is one byte."""
    sink = Sink(replace(V4, stage="app_truncated", port=0))
    assert sink.sock is not None
    port = sink.sock.getsockname()[1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for payload in (b"xx", b"x", b"xxx"):
            sender.sendto(payload, ("127.0.0.1", port))
    wait_for_loopback()
    counts = sink.collect()
    sink.close()
    assert (3, 2, 1) == tuple(
        counts[name] for name in ("read_packets", "truncated_packets", "received_packets")
    )


def test_an_interface_that_is_gone_is_named(golden: Golden) -> None:
    """Not the kernel's words alone."""
    source = Source(Host(), replace(V4, stage="udp_no_port"), "gone0")
    with golden.raises(AgentError):
        source.send([1])


def test_a_filter_lets_nothing_in() -> None:
    """Not one datagram is queued."""
    sink = Sink(replace(V4, stage="udp_filter", port=0))
    assert sink.sock is not None
    port = sink.sock.getsockname()[1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", port))
    wait_for_loopback()
    assert 0 == sink.collect()["read_packets"]
    sink.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a network namespace")
def test_memory_is_held_beyond_the_cpus_reserves_until_it_is_closed() -> None:
    """A limit of UDP's memory that binds later drops what comes next, in any namespace."""
    before, held = held_pages(Host()), HeldMemory(Host())
    held.hold()
    try:
        assert held_pages(Host()) > before
        assert held._socket is not None
        inode = os.fstat(held._socket.fileno()).st_ino
        assert inode not in udp_sockets(Host()), "it is in a namespace of its own"
    finally:
        held.close()
