"""A process that runs already as the receiver: found, counted by itself, and left as it is."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from test_program import SERVER
from test_workers import give, phase, receiver, until

from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.socket_owners import SocketOwners
from udpbench.agent.host.system import Host
from udpbench.agent.workers import reads
from udpbench.agent.workers.pool import Pool
from udpbench.agent.workers.reads import CountedReader
from udpbench.errors import WorkerFailed
from udpbench.model.experiment import Attach, Receive
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.protocol import encode

SHARING = SERVER.replace(
    "for each, place",
    "[s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1) for s in opened]\nfor each, place",
)
Server = subprocess.Popen[str]
Start = Callable[..., Server]


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Make a pool that counts nothing afterwards."""
    pool = Pool(Host(), "right")
    yield pool
    pool.close()


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers that are there before any trial, and end them."""
    servers: list[Server] = []

    def begin(*places: str, program: str = SERVER, within: tuple[str, ...] = ()) -> Server:
        command = (*within, sys.executable, "-c", program, *places)
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        servers.append(server)
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            assert server.poll() is None
        return server

    yield begin
    for server in servers:
        server.kill()
        server.communicate()


def spec(at: int, to: str = "127.0.0.1", **named: Any) -> WorkerSpec:
    """Return a receiver that is a process which runs already."""
    flow = FlowSpec(0, "127.0.0.1", 65400, to, at)
    return replace(receiver(at), receive=Receive(attach=Attach(**named)), flows=(flow,))


def counts(pool: Pool) -> dict[str, int]:
    """Return the counts of the one worker."""
    return pool.sample(0).stats[0].counts


def test_what_the_process_reads_counts_and_nobody_elses(
    pool: Pool, start: Start, port: int
) -> None:
    """Or, where sockets cannot be told apart, how many others there are; it goes on in any case."""
    server = start(f"127.0.0.1:{port}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        (prepared,) = pool.prepare([spec(port, port=port)], "lo")
        assert (server.pid, 1, None) == (prepared.pid, len(prepared.socket_inodes), prepared.cpu)
        assert {server.pid} == pool.pids()
        pool.start(phase())
        give(other.getsockname()[1], [bytes(32)] * 30)
        assert all(len(other.recv(64)) == 32 for _ in range(30))
        give(port, [bytes(32)] * 50)
        until("fifty read", lambda: counts(pool)["read_packets"] >= 50)
    until("empty", lambda: pool.sample(0).queued_bytes == 0)
    pool.stop()
    assert "done" == pool.sample(0).state
    if "others_sockets" not in counts(pool):
        assert 50 == counts(pool)["received_packets"]
    assert None is pool.close()
    assert None is server.poll()


def test_what_is_read_after_the_last_count_is_received_late(
    pool: Pool, start: Start, port: int
) -> None:
    """A program that lacks a CPU reads the rest of a phase once that is over: none of it is lost."""
    start(f"127.0.0.1:{port}")
    pool.prepare([spec(port, port=port)], "lo")
    pool.start(phase())
    give(port, [bytes(32)] * 5)
    until("five read", lambda: counts(pool)["read_packets"] >= 5)
    pool.stop()
    (stats,) = pool.sample(0).stats
    default = Path("/proc/sys/net/core/rmem_default").read_text()
    assert int(default) == stats.buffer_bytes
    assert "overdue_packets" not in stats.counts or "others_sockets" in stats.counts
    give(port, [bytes(32)] * 3)
    until("three more", lambda: counts(pool).get("overdue_packets", 0) >= 3)
    if "others_sockets" not in stats.counts:
        late = counts(pool)
        assert (8, 3) == (late["received_packets"], late["overdue_packets"])
        assert stats.counts.get("last_ns") == late.get("last_ns")


def test_what_is_read_before_a_late_start_is_of_the_phase(
    pool: Pool, start: Start, port: int
) -> None:
    """A host that had no CPU for the order has read what senders, who were in time, sent already."""
    start(f"127.0.0.1:{port}")
    pool.prepare([spec(port, port=port)], "lo")
    at_ns = time.monotonic_ns()
    give(port, [bytes(32)] * 4)
    until("empty", lambda: pool.sample(0).queued_bytes == 0)
    pool.start(phase(at_ns=at_ns))
    give(port, [bytes(32)] * 2)
    until("six read", lambda: counts(pool)["read_packets"] >= 6)
    pool.stop()
    pool.start(phase(at_ns=time.monotonic_ns() + 60 * 10**9))
    if "others_sockets" not in counts(pool):
        assert 0 == counts(pool)["read_packets"]


def test_what_the_agent_reads_itself_is_not_of_the_program(
    pool: Pool, start: Start, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packet that was to be lost and was not is read by its own socket after the phase."""
    read_packets = [100]
    monkeypatch.setattr(reads, "in_datagrams", lambda *_: read_packets[0])
    monkeypatch.setattr(CountedReader, "_tell_apart", lambda _: None)
    start(f"127.0.0.1:{port}")
    pool.prepare([spec(port, port=port)], "lo")
    pool.start(phase(at_ns=time.monotonic_ns() + 60 * 10**9))
    for so_far in (105, 108):
        read_packets[0] = so_far
        pool.stop()
    pool.leave_out(3)
    assert (5, None) == (counts(pool)["read_packets"], counts(pool).get("overdue_packets"))


@pytest.mark.parametrize("is_at_port", [False, True])
def test_others_sockets_take_no_room(
    is_at_port: bool, pool: Pool, start: Start, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are opened, used and closed, even at the traffic's port."""
    monkeypatch.setattr("udpbench.agent.host.bpf.socket_counts.ENTRIES", 16)
    start(f"127.0.0.1:{port}", f"127.0.0.1:{0}")
    pool.prepare([spec(port, port=port)], "lo")
    pool.start(phase())
    give(port, [bytes(32)] * 5)
    for _ in range(20):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.0.2", port if is_at_port else 0))
            other.sendto(b"", other.getsockname())
        assert "running" == pool.sample(0).state, pool.sample(0).error
    until("five read", lambda: counts(pool)["read_packets"] >= 5)


@pytest.mark.parametrize("named", ["pid", "unit"])
def test_a_process_is_named_by_its_number_or_its_unit(
    pool: Pool, start: Start, port: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its sockets at the traffic's port and addresses take it."""
    server = start(f"127.0.0.1:{port}", f"127.0.0.9:{port}")
    monkeypatch.setattr(SocketOwners, "in_unit", lambda *_: [server.pid])
    value = server.pid if named == "pid" else "dns.service"
    (prepared,) = pool.prepare([spec(port, **{named: value})], "lo")
    assert (server.pid, 1) == (prepared.pid, len(prepared.socket_inodes))


def test_a_socket_of_that_very_address_is_preferred(pool: Pool, start: Start, port: int) -> None:
    """As the kernel does: another process at every address gets nothing."""
    start(f"0.0.0.0:{port}", program=SHARING)
    server = start(f"127.0.0.3:{port}", program=SHARING)
    (prepared,) = pool.prepare([spec(port, "127.0.0.3", port=port)], "lo")
    assert server.pid == prepared.pid


def test_what_cannot_be_measured_is_one_error(
    pool: Pool, start: Start, port: int, golden: Golden
) -> None:
    """No such process, none with a socket, nobody at the port, or somebody elsewhere."""

    def refused(worker: WorkerSpec) -> None:
        with pytest.raises(WorkerFailed) as caught:
            pool.prepare([worker], "lo")
        text = re.sub(r"bound ports: .*", "bound ports: …", str(caught.value))
        golden.check(text, port=port)
        assert frozenset() == pool.pids()

    refused(spec(port, pid=2**22))
    refused(spec(port, unit="no-such-unit"))
    refused(spec(port, port=port))
    with subprocess.Popen(("sleep", "60")) as sleeper:
        refused(spec(port, pid=sleeper.pid))
        sleeper.kill()
    server = start(f"127.0.0.2:{port}")
    refused(spec(port, port=port))
    refused(spec(port, pid=server.pid))


def test_one_of_several_processes_at_a_port_is_refused(
    pool: Pool, start: Start, port: int, golden: Golden
) -> None:
    """It would get a part of the packets; by the port all of them are measured."""
    both = [start(f"127.0.0.1:{port}", program=SHARING) for _ in range(2)]
    with pytest.raises(WorkerFailed) as caught:
        pool.prepare([spec(port, pid=both[0].pid)], "lo")
    golden.check(re.sub(r"[\w.]+ \d+;", "python PID;", str(caught.value)))
    (prepared,) = pool.prepare([spec(port, port=port)], "lo")
    assert (2, {each.pid for each in both}) == (len(prepared.socket_inodes), pool.pids())


def test_a_process_that_may_not_be_seen_is_an_error(
    pool: Pool, start: Start, port: int, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its number, and by its port: of another user, or of nobody but the kernel."""
    server = start(f"127.0.0.1:{port}")
    monkeypatch.setattr(SocketOwners, "holders", lambda *_: ())
    for user in (0, 1000):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        with golden.raises(WorkerFailed, port=port, user=os.getuid()):
            pool.prepare([spec(port, port=port)], "lo")
    monkeypatch.undo()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Host, "listdir", refuse)
    with pytest.raises(WorkerFailed) as caught:
        pool.prepare([spec(port, pid=server.pid)], "lo")
    golden.check(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a namespace")
def test_a_process_in_another_network_is_refused(
    pool: Pool, start: Start, port: int, golden: Golden
) -> None:
    """The lab's packets do not reach it."""
    server = start(f"0.0.0.0:{port}", within=("unshare", "--net"))
    with pytest.raises(WorkerFailed) as caught:
        pool.prepare([spec(port, pid=server.pid)], "lo")
    golden.check(caught.value)


@pytest.mark.parametrize("when", ["before", "under way"])
def test_a_process_that_ends_or_restarts_fails_its_phase(
    pool: Pool, start: Start, port: int, when: str, golden: Golden
) -> None:
    """Another one at the same port is not what was measured."""
    server = start(f"127.0.0.1:{port}")
    pool.prepare([spec(port, port=port)], "lo")
    if when == "under way":
        pool.start(phase())
        assert "running" == pool.sample(0).state
    server.kill()
    server.wait()
    start(f"127.0.0.1:{port}")
    if when == "before":
        with golden.raises(WorkerFailed, port=port):
            pool.start(phase())
    until("failed", lambda: pool.sample(0).state == "failed")
    golden.check((pool.sample(0).error or {})["message"], port=port)


def test_counts_that_are_lost_fail_the_phase(
    pool: Pool, start: Start, port: int, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that stands still would look like packets that were lost."""

    def full(_: object) -> int:
        raise OSError("more than 65536 socket counters: further sockets are not counted")

    start(f"127.0.0.1:{port}")
    pool.prepare([spec(port, port=port)], "lo")
    pool.start(phase())
    monkeypatch.setattr(reads.CountedReader, "_read_so_far", full)
    until("failed", lambda: pool.sample(0).state == "failed")
    golden.check((pool.sample(0).error or {})["message"], port=port)


def test_a_host_that_cannot_tell_sockets_apart_counts_the_others(
    pool: Pool, start: Start, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root, or before Linux 6.15; alone in its namespace a program needs neither."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(reads, "SocketCounts", refuse)
    start(f"127.0.0.1:{port}", f"127.0.0.1:{0}", f"127.0.0.1:{0}")
    pool.prepare([spec(port, port=port)], "lo")
    assert 2 <= counts(pool)["others_sockets"]
    own = {each for each in reads.udp_sockets(Host()).items() if each[1].port == port}
    monkeypatch.setattr(reads, "udp_sockets", lambda _: dict(own))
    pool.prepare([spec(port, port=port)], "lo")
    assert "others_sockets" not in counts(pool)


AGENT = """
import json, signal, sys
from udpbench.agent.host.system import Host
from udpbench.agent.workers.pool import Pool
from udpbench.model.work import WorkerSpec
from udpbench.protocol import decode
pool = Pool(Host(), "right")
pool.prepare([decode(WorkerSpec, json.loads(sys.argv[1]))], "lo")
print("prepared", flush=True)
signal.pause()
"""


def loaded(pid: int) -> list[int]:
    """Return the numbers of the BPF programs that a process keeps."""
    files = Path(f"/proc/{pid}/fdinfo").iterdir()
    return [
        int(number)
        for file in files
        for number in re.findall(r"prog_id:\s*(\d+)", file.read_text())
    ]


def is_loaded(program: int) -> bool:
    """Say whether a BPF program is still there."""
    try:
        bpf.program_name(program)
    except FileNotFoundError:
        return False
    return True


def test_nothing_stays_attached_when_its_agent_dies(start: Start, port: int) -> None:
    """However it dies; the process goes on."""
    server = start(f"127.0.0.1:{port}", f"127.0.0.1:{0}")
    command = [sys.executable, "-c", AGENT, json.dumps(encode(spec(port, port=port)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert b"prepared\n" == agent.stdout.readline()
        programs = loaded(agent.pid)
        agent.send_signal(signal.SIGKILL)
    if programs:
        assert len(programs) >= 2
        until("all gone", lambda: not any(map(is_loaded, programs)))
    assert None is server.poll()
