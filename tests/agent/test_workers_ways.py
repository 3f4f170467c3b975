"""Ways of receiving as the agent sees them: what cannot be seen, groups, faults, streams."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from test_workers import count, datagram, give, phase, receiver, sender, until

from udpbench.agent.host.system import Host
from udpbench.agent.workers import sockets
from udpbench.agent.workers.orders import loop_order
from udpbench.agent.workers.pool import Pool
from udpbench.agent.workers.process import Workers
from udpbench.agent.workers.process_client import Limits, refuse_impossible, unseen
from udpbench.errors import WorkerFailed
from udpbench.model.experiment import Fault, Receive, Send, Traffic
from udpbench.model.limits import SECOND_NS
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.ways import read_named

COST = {"user_ns", "system_ns", "voluntary_switches", "involuntary_switches"}
OF_HEADERS = {f"{kind}_packets" for kind in ("duplicate", "late", "ancient", "foreign", "corrupt")}


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Make a pool that leaves no process behind, and is not patient."""
    pool = Pool(Host(), "right", Limits(close_ns=SECOND_NS // 2))
    yield pool
    pool.close()


def reading(port: int, index: int = 0, **receive: Any) -> WorkerSpec:
    """Return a receiver of a way."""
    return receiver(port, index, receive=Receive(**receive))


def ended(pool: Pool) -> None:
    """Stop the loops and wait until they have ended."""
    pool.stop()
    until("done", lambda: pool.sample(0).state == "done")


def give_flows(keep: ExitStack, port: int, flows: int, each: int, first: int = 0) -> None:
    """Send packets of flow 0 from so many source ports, so that a group's hash spreads them."""
    for flow in range(flows):
        giver = keep.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        giver.connect(("127.0.0.1", port))
        for n in range(each):
            giver.send(datagram(0, first + flow * each + n))


@pytest.mark.parametrize(
    ("read", "absent"),
    [
        ("header", {"foreign_size_packets"}),
        ("verify", {"foreign_size_packets"}),
        ("copy", OF_HEADERS),
        ("none", {*OF_HEADERS, "truncated_packets"}),
    ],
)
def test_what_a_way_of_reading_cannot_see_is_absent(
    pool: Pool, port: int, read: str, absent: set[str]
) -> None:
    """Neither 0 nor a guess; without headers nothing is known of flows. Costs come at the end."""
    pool.prepare([reading(port, read=read)], "lo")
    pool.start(phase())
    give(port, [datagram(0, 0), datagram(0, 0)])
    until("both read", lambda: count(pool, "read_packets") == 2)
    under_way = set(pool.sample(0).stats[0].counts)
    ended(pool)
    reply = pool.sample(0)
    counts = set(reply.stats[0].counts)
    assert (set(), absent & counts, COST) == (absent & under_way, set(), COST & counts - under_way)
    assert read_named(read).sees_header == (reply.flows != ())
    assert {name for sample in reply.samples for name in sample.counts}.isdisjoint(absent)


def test_the_path_is_read_by_its_headers_and_without_faults() -> None:
    """But for datagrams that are too small to have one."""
    blind = reading(4321, read="none")
    small = replace(blind, traffic=Traffic(size_bytes=17))
    orders = {
        (spec.role, spec.traffic.size_bytes, name): (order.read, order.faulty)
        for spec in (blind, small, sender())
        for name in ("path", "warmup", "measured")
        for order in [loop_order(spec, phase(phase=name))]
    }
    assert {
        ("receiver", 32, "path"): ("header", False),
        ("receiver", 32, "warmup"): ("none", False),
        ("receiver", 32, "measured"): ("none", True),
        ("receiver", 17, "path"): ("none", False),
        ("receiver", 17, "warmup"): ("none", False),
        ("receiver", 17, "measured"): ("none", True),
        ("sender", 32, "path"): ("header", False),
        ("sender", 32, "warmup"): ("header", False),
        ("sender", 32, "measured"): ("header", True),
    } == orders
    tcp = Traffic(protocol="tcp")
    assert frozenset() == unseen(replace(sender(), traffic=tcp), "none")
    of_datagrams = {"foreign_size_packets", "standstills", "standstill_ns"}
    assert OF_HEADERS | of_datagrams == unseen(replace(blind, traffic=tcp), "header")


@pytest.mark.parametrize("workers_as", ["threads", "processes"])
@pytest.mark.parametrize("wait", ["block", "epoll", "spin", "nap 100us", "busy-poll 50us", "auto"])
def test_members_of_a_group_have_a_socket_each(
    pool: Pool, port: int, wait: str, workers_as: str
) -> None:
    """The kernel's hash gives each some flows; their windows are shared, their counts add up."""
    specs = [
        reading(port, k, sockets="reuseport", wait=wait, workers_as=workers_as) for k in (0, 1)
    ]
    prepared = pool.prepare(specs, "lo")
    assert 2 == len({worker.socket_inodes for worker in prepared})
    pool.start(phase())
    with ExitStack() as keep:
        give_flows(keep, port, flows=32, each=4)
        until("all read", lambda: count(pool, "received_packets") == 128)
    ended(pool)
    shares = [stats.counts["received_packets"] for stats in pool.sample(0).stats]
    assert [True, True] == [0 < share < 128 for share in shares]
    assert 128 == pool.sample(0).flows[0].packets


def test_a_worker_that_takes_turns_reads_several_ports(
    pool: Pool, port: int, free_port: Callable[[], int]
) -> None:
    """One socket for each of its ports."""
    other = free_port()
    spec = replace(reading(port, wait="epoll"), bind_ports=(port, other))
    (prepared,) = pool.prepare([spec], "lo")
    assert 2 == len(prepared.socket_inodes)
    pool.start(phase())
    give(port, [datagram(0, 0)])
    give(other, [datagram(0, 1)])
    until("both read", lambda: count(pool, "received_packets") == 2)


def test_a_worker_that_hangs_keeps_its_socket(pool: Pool, port: int) -> None:
    """Its share stays unread, is no reason to wait, and is told at the end; others read theirs."""
    fault = Fault(1, 0, "hang")
    prepared = pool.prepare(
        [reading(port, k, sockets="reuseport", fault=fault) for k in (0, 1)], "lo"
    )
    pool.start(phase())
    with ExitStack() as keep:
        give_flows(keep, port, flows=32, each=4)
        until("the other is done", lambda: pool.sample(0).queued_bytes == 0)
        until("some read", lambda: count(pool, "received_packets") > 0)
    assert 2 == len(pool.inodes())
    ended(pool)
    hung, other = pool.sample(0).stats
    left, messages = hung.counts["purged_packets"], hung.counts["purged_messages"]
    assert (128, left) == (left + other.counts["received_packets"], messages)
    assert (0, True) == (hung.counts["received_packets"], left > 0)
    assert "purged_packets" not in other.counts
    assert set(prepared[0].socket_inodes) < set(pool.inodes())


@pytest.mark.parametrize("workers_as", ["threads", "processes"])
def test_a_worker_that_exits_leaves_its_group(pool: Pool, port: int, workers_as: str) -> None:
    """Once it is gone the others get everything."""
    fault = Fault(2, 0, "exit")
    specs = [
        reading(port, k, sockets="reuseport", fault=fault, workers_as=workers_as) for k in (0, 1)
    ]
    pool.prepare(specs, "lo")
    pool.start(phase())
    until("it has left", lambda: "purged_packets" in pool.sample(0).stats[1].counts)
    with ExitStack() as keep:
        give_flows(keep, port, flows=32, each=4)
        until("all read", lambda: count(pool, "received_packets") == 128)
    assert "running" == pool.sample(0).state
    ended(pool)
    assert [128, 0] == [stats.counts["received_packets"] for stats in pool.sample(0).stats]


def test_a_fault_strikes_in_the_measured_phase_alone(pool: Pool, port: int) -> None:
    """Before it the worker reads like any other."""
    pool.prepare([reading(port, fault=Fault(1, 0, "hang"))], "lo")
    pool.start(phase(phase="warmup"))
    give(port, [datagram(0, 0)])
    until("read", lambda: count(pool, "received_packets") == 1)
    ended(pool)
    assert "purged_packets" not in pool.sample(0).stats[0].counts


def test_a_socket_that_others_read_keeps_its_packets(pool: Pool, port: int) -> None:
    """Who shares a socket and exits takes nothing from it."""
    pool.prepare([reading(port, k, fault=Fault(1, 0, "exit")) for k in (0, 1)], "lo")
    pool.start(phase())
    until("it has left", lambda: "purged_packets" in pool.sample(0).stats[0].counts)
    give(port, [datagram(0, n) for n in range(50)])
    until("all read", lambda: count(pool, "received_packets") == 50)
    ended(pool)
    assert 0 == pool.sample(0).stats[0].counts["purged_packets"]


def test_ipv6_is_received(pool: Pool, port: int) -> None:
    """On every IPv6 address of the host, and on none of IPv4."""
    pool.prepare([replace(reading(port), traffic=Traffic(family=6))], "lo")
    pool.start(phase())
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as giver:
        giver.sendto(datagram(0, 0), ("::1", port))
    until("read", lambda: count(pool, "received_packets") == 1)


def streams(role: str, port: int, workers: int, flows: int) -> list[WorkerSpec]:
    """Return workers of TCP streams between two ports of the loopback interface."""
    all_flows = tuple(FlowSpec(n, "127.0.0.1", 0, "127.0.0.1", port) for n in range(flows))
    tcp = Traffic(protocol="tcp", size_bytes=100)
    if role == "sender":
        spec = WorkerSpec("sender", "left", 0, None, all_flows, tcp, Send(), count_packets=50)
        return [spec]
    return [
        WorkerSpec(
            "receiver", "right", k, None, all_flows, tcp, Send(), Receive(), bind_ports=(port,)
        )
        for k in range(workers)
    ]


def test_streams_are_shared_out_and_counted_by_their_bytes(port: int) -> None:
    """Three streams over two workers, in two phases; what is written is what is read."""
    receivers, senders = Pool(Host(), "right"), Pool(Host(), "left")
    try:
        receivers.prepare(streams("receiver", port, 2, 3), "lo")
        senders.prepare(streams("sender", port, 1, 3), "lo")
        for _ in range(2):
            receivers.start(phase())
            senders.start(phase())
            until("sent", lambda: senders.sample(0).state == "done")
            until("read", lambda: count(receivers, "received_bytes") == 5000)
            ended(receivers)
            assert (50, 5000) == (count(senders, "sent_packets"), count(senders, "sent_bytes"))
        assert [True, True] == [
            stats.counts["received_bytes"] > 0 for stats in receivers.sample(0).stats
        ]
        assert () == receivers.sample(0).flows
    finally:
        senders.close()
        receivers.close()


def test_a_stream_that_does_not_come_fails_the_worker(pool: Pool, port: int) -> None:
    """The trial ends with the worker's name and the reason."""
    pool.prepare(streams("receiver", port, 1, 1), "lo")
    pool.start(phase())
    until("failed", lambda: pool.sample(0).state == "failed")
    error = pool.sample(0).error
    assert error is not None
    text = (
        "right.receiver0: the loop ended with Connection timed out (errno 110); check what changed"
    )
    assert error["message"].startswith(text)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (
            [sender(flows=()), sender(flows=(), index=1)],
            "left.sender0, left.sender1: no flow to send or receive; lower `workers`",
        ),
        ([sender(send=None)], "left.sender0: a sender without `send`"),
        ([receiver(4321, receive=None)], "right.receiver0: a receiver without `receive`"),
        ([sender(send=Send(gso="max"))], "left.sender0: gso: max must be a number by now"),
    ],
)
def test_impossible_workers_are_refused(specs: list[WorkerSpec], words: str) -> None:
    """Workers with nothing to do, or without their half of the experiment, name themselves."""
    with pytest.raises(WorkerFailed) as caught:
        refuse_impossible(specs)

    assert words == caught.value.message


def test_the_last_member_of_a_group_attaches_its_program(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the CPUs of all members in their order."""
    programs: list[list[int | None]] = []
    monkeypatch.setattr(sockets, "steer_by_cpu", lambda _, cpus: programs.append(cpus))
    specs = [replace(reading(port, k, sockets="reuseport-cpu"), cpu=k + 3) for k in (0, 1)]
    fd = os.memfd_create("test")
    workers = Workers(specs, fd, "lo", {})
    os.close(fd)
    with ExitStack() as keep:
        for spec, expected in zip(specs, ([], [[3, 4]])):
            keep.enter_context(workers.open(spec)[0])
            assert expected == programs
