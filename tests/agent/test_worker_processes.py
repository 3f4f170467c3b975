"""Workers as a process each: what they share, how each may die, and what it costs in memory."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_workers import WHY, count, datagram, give, gone, phase, receiver, sender, until

from udpbench.agent.host.system import Host
from udpbench.agent.workers import process
from udpbench.agent.workers.memory import Memory
from udpbench.agent.workers.orders import WorkersOrder, loop_order, send_message
from udpbench.agent.workers.pool import Pool
from udpbench.agent.workers.process_client import Limits
from udpbench.agent.workers.usage import shared_bytes
from udpbench.cpu_lists import format_cpu_list
from udpbench.errors import DeadlineExceeded, WorkerFailed
from udpbench.model.experiment import Receive, Send
from udpbench.model.limits import SECOND_NS
from udpbench.model.work import FlowSpec, WorkerSpec

MOMENT_NS, PAST_NS = 7_919, 400_000
"""Steps between moments at which a worker is killed; the parent waits for orders by the last."""
ALONE = Receive(workers_as="processes")


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Make a pool that leaves no process behind, and is not patient."""
    pool = Pool(Host(), "right", Limits(answer_ns=SECOND_NS // 2, close_ns=SECOND_NS // 2))
    yield pool
    pool.close()


def alone(port: int, index: int = 0, **changed: Any) -> WorkerSpec:
    """Return a receiver that is a process of its own."""
    return receiver(port, index, receive=ALONE, **changed)


def parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def holders(inode: int | None, among: list[int]) -> list[int]:
    """Return those processes that have a socket open."""
    return [pid for pid in among if f"socket:[{inode}]" in opened(pid)]


def opened(pid: int) -> set[str]:
    """Return what a process has open; our own list is closed before it is read."""
    names = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.add(fd.readlink().name)
    return names


def test_each_worker_is_a_process_and_all_inherit_the_ports_socket(pool: Pool, port: int) -> None:
    """One socket, held by the workers alone: neither the agent nor their parent keeps it open."""
    prepared = pool.prepare([alone(port), alone(port, 1)], "lo")
    pids = [worker.pid for worker in prepared]
    (shared_parent,) = {parent(pid) for pid in pids}
    ((inode,),) = {worker.socket_inodes for worker in prepared}
    assert 2 == len(set(pids))
    assert os.getpid() == parent(shared_parent)
    assert sorted(pids) == sorted(holders(inode, [os.getpid(), shared_parent, *pids]))
    assert (inode,) == pool.inodes()


def test_windows_and_counts_are_shared(pool: Pool, port: int) -> None:
    """A datagram and its double are told apart whichever process reads them, in every phase."""
    pool.prepare([alone(port), alone(port, 1)], "lo")
    for tag in (7, 8):
        pool.start(phase(tag))
        give(port, [datagram(0, sequence, tag) for sequence in (*range(100), *range(100))])
        until("all read", lambda: count(pool, "read_packets") == 200)
        pool.stop()
        until("done", lambda: pool.sample(0).state == "done")
        assert (100, 100) == (count(pool, "received_packets"), count(pool, "duplicate_packets"))
        assert [(0, 100, 99), (1, 0, None)] == [
            (flow.flow, flow.packets, flow.highest_sequence) for flow in pool.sample(0).flows
        ]


def test_each_process_is_pinned_to_its_own_cpu(pool: Pool, port: int) -> None:
    """The affinity read back is the one CPU asked for, and their parent stays free."""
    cpus = sorted(os.sched_getaffinity(0))
    prepared = pool.prepare([alone(port, k, cpu=cpu) for k, cpu in enumerate(cpus)], "lo")
    assert cpus == [worker.cpu for worker in prepared]
    assert cpus == sorted(os.sched_getaffinity(parent(prepared[0].pid)))


def test_the_memory_of_each_process_is_reported_once_a_phase_is_over(pool: Pool, port: int) -> None:
    """Its own share, so that the parts add up; threads of one process have one number."""
    pool.prepare([alone(port), alone(port, 1)], "lo")
    assert [None, None] == [stats.memory_bytes for stats in pool.sample(0).stats]
    pool.start(phase())
    pool.stop()
    until("done", lambda: pool.sample(0).state == "done")
    shares = [stats.memory_bytes for stats in pool.sample(0).stats]
    assert [True, True] == [share is not None and 2**20 < share < 2**27 for share in shares]

    pool.prepare([receiver(port), receiver(port, 1)], "lo")
    pool.start(phase())
    pool.stop()
    until("done", lambda: pool.sample(0).state == "done")
    assert 1 == len({stats.memory_bytes for stats in pool.sample(0).stats})


def test_memory_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """A process that is gone, or a kernel without the file, has None and not 0."""
    assert None is shared_bytes(Host(tmp_path), 5)
    (tmp_path / "proc/5").mkdir(parents=True)
    (tmp_path / "proc/5/smaps_rollup").write_text("Rss:  900 kB\nPss:   12 kB\n")
    assert 12 * 1024 == shared_bytes(Host(tmp_path), 5)
    (tmp_path / "proc/5/smaps_rollup").write_text("Rss:  900 kB\n")
    assert None is shared_bytes(Host(tmp_path), 5)


@pytest.mark.parametrize("running", [False, True])
def test_a_worker_process_that_dies_is_named(pool: Pool, port: int, running: bool) -> None:
    """The trial fails with the worker's name and signal; the others read on until they are told."""
    prepared = pool.prepare([alone(port), alone(port, 1)], "lo")
    if running:
        pool.start(phase())
    os.kill(prepared[1].pid, signal.SIGKILL)
    until("failed", lambda: pool.sample(0).state == "failed")

    assert {
        "kind": "WorkerFailed",
        "message": f"right.receiver1: the process ended unexpectedly (killed by signal 9){WHY}",
        "host": "right",
    } == pool.sample(0).error
    assert not gone(prepared[0].pid)
    if running:
        give(port, [datagram(0, 0)])
        until("read by the other", lambda: count(pool, "received_packets") == 1)
    pool.close()
    assert gone(prepared[0].pid)


@pytest.mark.parametrize("moment_ns", [0, 200_000])
def test_a_death_is_reported_though_no_signal_is_seen(port: int, moment_ns: int) -> None:
    """As if it came between Python's last look at signals and the wait for an order."""
    assert "died" == report_of_a_death(port, moment_ns, {signal.SIGCHLD})


@pytest.mark.long
def test_each_of_a_thousand_deaths_is_reported(port: int) -> None:
    """At any moment around the wait for an order, on CPUs that others use."""
    with busy_processes(4):
        reports = [report_of_a_death(port, n * MOMENT_NS % PAST_NS) for n in range(1000)]
    assert ["died"] * 1000 == reports


@contextlib.contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Keep this many processes running within the block."""
    words = (sys.executable, "-S", "-c", "while True: pass")
    busy = [subprocess.Popen(words) for _ in range(number)]
    try:
        yield
    finally:
        for program in busy:
            program.kill()
            program.wait()


def report_of_a_death(
    port: int, after_ns: int, blocked: Collection[signal.Signals] = ()
) -> str | None:
    """Kill a worker that is ready; return the event that follows, None without any."""
    spec = alone(port)
    memory = os.memfd_create("workers")
    Memory(memory, [spec])
    orders, to_parent = os.pipe()
    from_parent, answers = os.pipe()
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            for ours, theirs in ((orders, 0), (answers, 1)):
                os.dup2(ours, theirs)
            os.closerange(to_parent, from_parent + 1)
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
            sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False))
            process.main()
        finally:
            os._exit(0)
    for theirs in (orders, answers):
        os.close(theirs)
    send_message(to_parent, WorkersOrder(agent, memory, "lo", {}, (spec,)))
    with os.fdopen(from_parent, "rb") as events:
        ready = json.loads(events.readline())
        moment_ns = time.monotonic_ns() + after_ns
        while time.monotonic_ns() < moment_ns:
            pass
        os.kill(ready["prepared"][0]["pid"], signal.SIGKILL)
        reported = select.select([events], [], [], 3)[0]
        event = json.loads(events.readline())["event"] if reported else None
        os.close(to_parent)
        os.waitpid(pid, 0)
    os.close(memory)
    return event


def test_several_that_die_at_once_are_one_failure(pool: Pool, port: int) -> None:
    """The first is told; a start then says why there is none."""
    prepared = pool.prepare([alone(port, index) for index in range(4)], "lo")
    for worker in prepared:
        os.kill(worker.pid, signal.SIGKILL)
    until("failed", lambda: pool.sample(0).state == "failed")
    with pytest.raises(
        WorkerFailed, match=r"the process ended unexpectedly \(killed by signal 9\)"
    ):
        pool.start(phase())


def test_a_worker_that_dies_under_a_start_is_a_failure(pool: Pool, port: int) -> None:
    """An order to a process that is just gone is lost with it, and the loss is told."""
    prepared = pool.prepare([alone(port), alone(port, 1)], "lo")
    shared_parent = parent(prepared[0].pid)
    os.kill(shared_parent, signal.SIGSTOP)
    os.kill(prepared[0].pid, signal.SIGKILL)
    until("gone", lambda: gone(prepared[0].pid))
    pool._group._order(loop_order(alone(port), phase()))  # type: ignore[union-attr]
    os.kill(shared_parent, signal.SIGCONT)
    until("failed", lambda: pool.sample(0).state == "failed")
    error = pool.sample(0).error
    assert error is not None
    assert error["message"].startswith(
        "right.receiver0: the process ended unexpectedly (killed by signal 9)"
    )


def test_a_bug_in_one_process_comes_with_its_last_words(pool: Pool, port: int) -> None:
    """A loop that fails unforeseen ends its own process, and the agent tells which and why."""
    spec = receiver(port, receive=replace(ALONE, wait="nap pigeon"))
    pool.prepare([spec], "lo")
    pool.start(phase())
    until("failed", lambda: pool.sample(0).state == "failed")
    error = pool.sample(0).error
    assert error is not None
    assert error["message"].startswith(
        "right.receiver0: the process ended unexpectedly (exit status 1): "
    )
    assert "ValueError: not a quantity" in error["message"]
    assert error["message"].endswith("; report it if it happens again")


def test_when_their_parent_dies_its_workers_die_with_it(pool: Pool, port: int) -> None:
    """No process is left that holds the port."""
    prepared = pool.prepare([alone(port), alone(port, 1)], "lo")
    pool.start(phase())
    os.kill(parent(prepared[0].pid), signal.SIGKILL)
    until("failed", lambda: pool.sample(0).state == "failed")
    until("workers gone", lambda: all(gone(worker.pid) for worker in prepared))
    error = pool.sample(0).error
    assert error is not None
    assert f"the worker process ended unexpectedly (killed by signal 9){WHY}" == error["message"]


def test_a_stuck_process_is_killed_with_the_others(pool: Pool, port: int) -> None:
    """Close does not wait for ever for one that does not listen."""
    prepared = pool.prepare([alone(port), alone(port, 1)], "lo")
    os.kill(prepared[0].pid, signal.SIGSTOP)
    pool.close()
    until("workers gone", lambda: all(gone(worker.pid) for worker in prepared))


def test_a_process_that_does_not_get_ready_in_time_is_given_up(port: int) -> None:
    """The limit on preparing holds for forked workers as well."""
    impatient = Pool(Host(), "right", Limits(prepare_ns=1, close_ns=SECOND_NS // 2))
    with pytest.raises(DeadlineExceeded):
        impatient.prepare([alone(port), alone(port, 1)], "lo")
    impatient.close()


def test_everything_that_cannot_be_opened_is_named(pool: Pool, port: int) -> None:
    """A shared port that is taken, and, where that is well, each worker's own trouble."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("0.0.0.0", port))  # noqa: S104 - nothing sends to it
        with pytest.raises(WorkerFailed) as caught:
            pool.prepare([alone(port)], "lo")
    text = f"right.receiver0: socket 0.0.0.0:{port}: Address already in use by "
    assert caught.value.message.startswith(text)
    assert f" {os.getpid()} (user {os.geteuid()})" in caught.value.message

    far = FlowSpec(0, "192.0.2.1", 65400, "127.0.0.1", 9)
    own = Send(workers_as="processes")
    with pytest.raises(WorkerFailed) as caught:
        pool.prepare([sender(flows=(far,), send=own), sender(index=1, cpu=4095, send=own)], "lo")
    cpus = format_cpu_list(sorted(os.sched_getaffinity(0)))
    assert (
        "left.sender0: socket 192.0.2.1:65400 → 127.0.0.1:9: Cannot assign requested address; "
        f"check `ip address` there; left.sender1: CPU 4095: Invalid argument; the agent may run on {cpus}"
    ) == caught.value.message
