"""Worker processes with real sockets on the loopback interface, seen through the agent's pool.

Only receivers run here: a sender's packets need a lab (tests/lab/test_agent.py).
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from udpbench.agent.host.socket_owners import holders_in_words, port_inodes
from udpbench.agent.host.system import Host
from udpbench.agent.workers import process_client
from udpbench.agent.workers.orders import WorkersOrder
from udpbench.agent.workers.pool import Pool
from udpbench.agent.workers.process_client import Limits
from udpbench.cpu_lists import format_cpu_list
from udpbench.errors import DeadlineExceeded, SafetyError, WorkerFailed
from udpbench.model.experiment import Answers, Receive, Send, Traffic
from udpbench.model.limits import SECOND_NS
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.protocol import PhaseOrder, encode, write_line

DEADLINE_S = 5.0
WHY = "; find out what ended it: `dmesg` there shows if memory ran out"
TAG = 0xFEED0001


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Make a pool that leaves no process behind, and is not patient."""
    pool = Pool(Host(), "right", Limits(answer_ns=SECOND_NS // 2, close_ns=SECOND_NS // 2))
    yield pool
    pool.close()


def receiver(port: int, index: int = 0, **changed: Any) -> WorkerSpec:
    """Return a receiver of flows 0 and 1 on a port."""
    flows = tuple(FlowSpec(n, "127.0.0.1", 65400 + n, "127.0.0.1", port) for n in (0, 1))
    spec = WorkerSpec(
        "receiver", "right", index, None, flows, Traffic(), receive=Receive(), bind_ports=(port,)
    )
    return replace(spec, **changed)


def sender(**changed: Any) -> WorkerSpec:
    """Return a sender to a port where nobody listens; the tests let it send nothing."""
    flow = FlowSpec(0, "127.0.0.1", 0, "127.0.0.1", 9)
    return replace(
        WorkerSpec("sender", "left", 0, None, (flow,), Traffic(), send=Send()), **changed
    )


def phase(tag: int = TAG, **changed: Any) -> PhaseOrder:
    """Return a phase that starts now."""
    return replace(PhaseOrder("measured", tag, time.monotonic_ns(), SECOND_NS), **changed)


def datagram(flow: int, sequence: int, tag: int = TAG, size: int = 32) -> bytes:
    """Return a datagram as native/udpbench.h describes it."""
    header = struct.pack("!IH", tag, flow) + sequence.to_bytes(6, "big") + bytes(6)
    return header.ljust(size, b"\0")


def give(port: int, datagrams: list[bytes]) -> None:
    """Send datagrams to a port of the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as giver:
        for content in datagrams:
            giver.sendto(content, ("127.0.0.1", port))


def until(what: str, condition: Callable[[], Any]) -> Any:
    """Return the condition's value once it is true; fail at the deadline with its last value."""
    deadline = time.monotonic() + DEADLINE_S
    value = condition()
    while not value:
        assert time.monotonic() < deadline, f"{what}: still {value!r}"
        value = condition()
    return value


def count(pool: Pool, field: str) -> int:
    """Return a count, summed over the workers."""
    return sum(stats.counts[field] for stats in pool.sample(0).stats)


def gone(pid: int) -> bool:
    """Say whether a process has ended, reaped or not."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - one line
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second: it ended between open and read
        return True


@pytest.mark.parametrize("workers_as", ["threads", "processes"])
def test_a_stopped_worker_is_seen_with_what_waits(
    pool: Pool, port: int, workers_as: Literal["threads", "processes"]
) -> None:
    """Its thread, its queue, and that no filter is in its way."""
    receive = Receive(workers_as=workers_as)
    (prepared,) = pool.prepare([receiver(port, receive=receive)], "lo")
    assert prepared.thread is not None
    assert (workers_as == "processes") == (prepared.thread == prepared.pid)
    pool.start(phase(duration_ns=60 * SECOND_NS))
    os.kill(prepared.pid, signal.SIGSTOP)

    def ticked() -> bool:
        pool.tick()
        (use,) = pool._sampler.uses().get("right.receiver0", (None,))
        return use is not None and use.looks.get("T", 0) >= 3

    until("seen stopped", ticked)
    give(port, [datagram(0, n) for n in range(20)])
    pool._queues._due_ns = 0
    pool.tick()
    os.kill(prepared.pid, signal.SIGCONT)
    pool.stop()
    until("done", lambda: pool.sample(0).state == "done")
    reply = pool.sample(0)
    (stats,) = reply.stats
    waited = max(sample.counts.get("queued_bytes", 0) for sample in reply.samples)
    assert waited >= 20 * 32
    assert {0} == {sample.counts.get("dropped_packets", 0) for sample in reply.samples}
    assert False is stats.filtered
    (use,) = stats.threads
    assert use.looks["T"] >= 3
    assert {"running_ns", "elapsed_ns"} <= stats.counts.keys()


def test_a_receiver_counts_what_arrives_by_kind(pool: Pool, port: int) -> None:
    """Own, doubled, foreign, truncated and corrupt datagrams are told apart, and flows as well."""
    prepared = pool.prepare([receiver(port)], "lo")
    pool.start(phase())
    own = [datagram(0, 0), datagram(0, 1), datagram(1, 0)]
    others = [datagram(0, 1), datagram(0, 2, tag=7), datagram(0, 2, size=100)]
    give(port, [*own, *others, datagram(0, 2, size=40), b"hi"])
    until("eight datagrams read", lambda: count(pool, "read_packets") == 8)
    pool.stop()
    until("done", lambda: pool.sample(0).state == "done")

    reply = pool.sample(0)
    stats = reply.stats[0]
    assert {
        "received_packets": 3,
        "duplicate_packets": 1,
        "foreign_packets": 2,
        "truncated_packets": 1,
        "corrupt_packets": 1,
    } == {
        name: stats.counts[name]
        for name in (
            "received_packets",
            "duplicate_packets",
            "foreign_packets",
            "truncated_packets",
            "corrupt_packets",
        )
    }
    assert [(0, 2, 1), (1, 1, 0)] == [(f.flow, f.packets, f.highest_sequence) for f in reply.flows]
    assert (None, 0) == (reply.error, reply.queued_bytes)
    assert (prepared[0].socket_inodes, prepared[0].buffer_bytes) == (
        stats.socket_inodes,
        stats.buffer_bytes,
    )
    assert set(prepared[0].socket_inodes) == set(pool.inodes())
    assert stats.cpus_seen


def test_a_phase_counts_from_zero(pool: Pool, port: int) -> None:
    """The second phase knows nothing of the first: its packets are foreign, its counts its own."""
    pool.prepare([receiver(port)], "lo")
    pool.start(phase())
    give(port, [datagram(0, 0)])
    until("one received", lambda: count(pool, "received_packets") == 1)
    pool.stop()
    until("done", lambda: pool.sample(0).state == "done")
    pool.start(phase(TAG + 1))
    give(port, [datagram(0, 0, tag=TAG + 1), datagram(0, 5)])
    until("two read", lambda: count(pool, "read_packets") == 2)

    assert (1, 1) == (count(pool, "received_packets"), count(pool, "foreign_packets"))
    assert [1, 0] == [flow.packets for flow in pool.sample(0).flows]


def test_workers_of_one_port_share_its_socket(pool: Pool, port: int) -> None:
    """Two workers read one socket; each has its thread, and their counts add up."""
    prepared = pool.prepare([receiver(port), receiver(port, 1)], "lo")
    pool.start(phase())
    give(port, [datagram(0, sequence) for sequence in range(100)])
    until("hundred received", lambda: count(pool, "received_packets") == 100)

    assert ["right.receiver0", "right.receiver1"] == [worker.worker for worker in prepared]
    assert 1 == len({worker.socket_inodes for worker in prepared})
    assert 100 == pool.sample(0).flows[0].packets


def test_a_worker_is_pinned_before_it_opens_its_socket(pool: Pool, port: int) -> None:
    """The affinity read back is the one CPU asked for, and the loop was seen there alone."""
    cpu = max(os.sched_getaffinity(0))
    prepared = pool.prepare([receiver(port, cpu=cpu)], "lo")
    pool.start(phase())
    give(port, [datagram(0, 0)])
    until("one received", lambda: count(pool, "received_packets") == 1)

    assert cpu == prepared[0].cpu
    assert (cpu,) == pool.sample(0).stats[0].cpus_seen


def test_samples_are_numbered_and_given_once_received(pool: Pool, port: int) -> None:
    """``since`` lets go of what came before; the same number again gives the same samples."""
    pool.prepare([receiver(port)], "lo")
    pool.start(phase())
    pool.tick()
    pool.tick()
    first = pool.sample(0)
    again = pool.sample(0)
    rest = pool.sample(first.next)

    assert (3, 3) == (len(first.samples), first.next)
    assert first.samples == again.samples
    assert ((), 3) == (rest.samples, rest.next)
    assert ["right.receiver0"] * 3 == [sample.worker for sample in first.samples]


def test_what_waits_in_the_socket_is_seen(pool: Pool, port: int) -> None:
    """Datagrams that nobody reads yet are queued bytes."""
    pool.prepare([receiver(port)], "lo")
    assert 0 == pool.sample(0).queued_bytes
    give(port, [datagram(0, 0)])

    until("queued", lambda: pool.sample(0).queued_bytes)


def test_a_buffer_is_read_back_doubled(pool: Pool, port: int) -> None:
    """The kernel grants twice what was asked for, as socket(7) says; none asked is the default."""
    receive = Receive(buffer_bytes=8192, force_buffer=False)
    prepared = pool.prepare([receiver(port, receive=receive)], "lo")
    assert 16384 == prepared[0].buffer_bytes

    default = int(Host().read_text("/proc/sys/net/core/rmem_default"))
    prepared = pool.prepare([receiver(port, receive=Receive(buffer_bytes=None))], "lo")
    assert default == prepared[0].buffer_bytes


def test_no_workers_are_no_process(pool: Pool) -> None:
    """``receive.workers: 0`` prepares nothing, and the port stays closed."""
    assert () == pool.prepare([], "lo")
    assert ("none", None) == (pool.sample(0).state, pool.fileno)


def test_everything_that_cannot_be_opened_is_named(pool: Pool, port: int) -> None:
    """A port that is taken and a CPU that is not there are told in one error."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("0.0.0.0", port))  # noqa: S104 - nothing sends to it
        with pytest.raises(WorkerFailed) as caught:
            pool.prepare([receiver(port), receiver(port, 1, cpu=4095)], "lo")
        holder = holders_in_words(Host(), port_inodes(Host(), (port,)))

    cpus = format_cpu_list(sorted(os.sched_getaffinity(0)))
    assert "" == holders_in_words(Host(), port_inodes(Host(), (port,)))
    assert f"{os.getpid()} (user {os.geteuid()})" in caught.value.message
    assert (
        f"right.receiver0: socket 0.0.0.0:{port}: Address already in use by {holder}; "
        "find what uses it (`ss -nap`), or choose another port; "
        f"right.receiver1: CPU 4095: Invalid argument; the agent may run on {cpus}"
    ) == caught.value.message
    assert "none" == pool.sample(0).state


def test_an_address_that_is_not_ours_is_named(pool: Pool) -> None:
    """A sender that cannot bind its source names the whole flow."""
    flow = FlowSpec(0, "192.0.2.1", 65400, "127.0.0.1", 9)
    with pytest.raises(WorkerFailed) as caught:
        pool.prepare([sender(flows=(flow,))], "lo")

    assert (
        "left.sender0: socket 192.0.2.1:65400 → 127.0.0.1:9: Cannot assign requested address; "
        "check `ip address` there"
    ) == caught.value.message


def test_both_roles_in_one_namespace_are_refused(pool: Pool, port: int) -> None:
    """The kernel would send by lo and no network would be measured."""
    with pytest.raises(SafetyError):
        pool.prepare([sender(), receiver(port)], "lo")


def test_a_loop_that_refuses_its_config_fails_the_phase(pool: Pool) -> None:
    """The failure names the worker, the field and what it may be: UDP's length has 16 bits."""
    pool.prepare([sender(traffic=Traffic(size_bytes=65536))], "lo")
    pool.start(phase())
    until("failed", lambda: pool.sample(0).state == "failed")

    error = pool.sample(0).error
    assert error is not None
    assert (
        (
            "left.sender0: the loop refuses its config: "
            "ub_send: datagrams: 65536 bytes; allowed: one or more, each of 0 to 65535 bytes; "
            "report this bug"
        ),
        "WorkerFailed",
        "right",
    ) == (error["message"], error["kind"], error["host"])


def test_a_bug_in_a_worker_ends_its_process_with_its_last_words(pool: Pool, port: int) -> None:
    """A thread that fails unforeseen takes the process along, and the agent tells why."""
    pool.prepare([receiver(port, receive=Receive(wait="nap pigeon"))], "lo")
    pool.start(phase())
    until("failed", lambda: pool.sample(0).state == "failed")

    error = pool.sample(0).error
    assert error is not None
    assert error["message"].startswith("the worker process ended unexpectedly (exit status 1): ")
    assert "ValueError: not a quantity" in error["message"]
    assert error["message"].endswith("; report it if it happens again")


@pytest.mark.parametrize("workers_as", ["threads", "processes"])
def test_senders_await_answers_until_they_are_stopped(
    pool: Pool, port: int, workers_as: str
) -> None:
    """Once all is sent they say so; one without a flow of the phase has nothing to await."""
    parts = {"traffic": Traffic(answers=Answers()), "send": Send(workers_as=workers_as)}
    flows = [FlowSpec(number, "127.0.0.1", 0, "127.0.0.1", port) for number in (0, 1)]
    specs = [sender(index=n, flows=(flows[n],), count_packets=2, **parts) for n in (0, 1)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", port))
        pool.prepare(specs, "lo")
        pool.start(phase(flows=(0,)))
        until("all is sent", lambda: pool.sample(0).state == "listening")
        assert pool.running
        for _ in range(2):
            server.sendto(b"answer", server.recvfrom(100)[1])
        until("both answers", lambda: count(pool, "answered_packets") == 2)
        assert "listening" == pool.sample(0).state
        pool.stop()
        until("done", lambda: pool.sample(0).state == "done")
    assert [2, 0] == [stats.counts["answered_packets"] for stats in pool.sample(0).stats]


def test_a_killed_process_is_a_failure(pool: Pool, port: int) -> None:
    """A worker process that dies is noticed, and nothing can be started with it."""
    prepared = pool.prepare([receiver(port)], "lo")
    os.kill(prepared[0].pid, signal.SIGKILL)
    until("failed", lambda: pool.sample(0).state == "failed")

    assert {
        "kind": "WorkerFailed",
        "message": f"the worker process ended unexpectedly (killed by signal 9){WHY}",
        "host": "right",
    } == pool.sample(0).error
    with pytest.raises(WorkerFailed):
        pool.start(phase())
    assert pool.fileno is None


def test_a_process_that_dies_under_an_order_is_a_failure(pool: Pool, port: int) -> None:
    """A start that meets a dead process says how it ended, not that a pipe broke."""
    prepared = pool.prepare([receiver(port)], "lo")
    os.kill(prepared[0].pid, signal.SIGKILL)
    until("process gone", lambda: gone(prepared[0].pid))

    with pytest.raises(WorkerFailed) as caught:
        pool.start(phase())
    assert (
        f"the worker process ended unexpectedly (killed by signal 9){WHY}" == caught.value.message
    )


def test_workers_at_rest_stand_until_something_differs(pool: Pool, port: int) -> None:
    """Their processes, which run, their CPUs and sockets, and the interface they were made for."""
    cpu = min(os.sched_getaffinity(0))
    assert not pool.stands("lo", {})
    (prepared,) = pool.prepare([receiver(port, cpu=cpu)], "lo")
    assert pool.stands("lo", {})
    assert not pool.stands("eth0", {})
    assert not pool.stands("lo", {"10.0.0.1": "02:00:00:00:00:01"})
    pool.start(phase(duration_ns=60 * SECOND_NS))
    assert not pool.stands("lo", {})
    pool.stop()
    until("done", lambda: pool.sample(0).state == "done")
    assert pool.stands("lo", {})
    assert prepared.thread is not None
    others = os.sched_getaffinity(0) - {cpu}
    os.sched_setaffinity(prepared.thread, others | {cpu})
    assert (not others) == pool.stands("lo", {})
    os.sched_setaffinity(prepared.thread, {cpu})
    os.kill(prepared.pid, signal.SIGSTOP)
    until("stopped", lambda: not pool.stands("lo", {}))
    os.kill(prepared.pid, signal.SIGCONT)
    until("continued", lambda: pool.stands("lo", {}))
    os.kill(prepared.pid, signal.SIGKILL)
    until("dead", lambda: not pool.stands("lo", {}))


def test_a_process_that_was_launched_becomes_the_workers(pool: Pool, port: int) -> None:
    """It is the run's own from its start; a dead one is replaced, and one without use ended."""
    pool.launch()
    (launched,) = pool.pids()
    pool.launch()
    assert {launched} == pool.pids()
    (prepared,) = pool.prepare([receiver(port)], "lo")
    assert launched == prepared.pid
    pool.launch()
    assert {launched} == pool.pids()
    pool.close()
    pool.launch()
    (second,) = pool.pids()
    os.kill(second, signal.SIGKILL)
    until("dead", lambda: gone(second))
    (prepared,) = pool.prepare([receiver(port)], "lo")
    assert second != prepared.pid
    pool.close()
    pool.launch()
    (third,) = pool.pids()
    pool.end()
    assert gone(third)
    assert not pool.pids()


def test_a_stuck_process_is_given_up_and_killed(pool: Pool, port: int) -> None:
    """An answer that does not come in time is told as such, and close does not wait for ever."""
    prepared = pool.prepare([receiver(port)], "lo")
    os.kill(prepared[0].pid, signal.SIGSTOP)

    with pytest.raises(DeadlineExceeded) as caught:
        pool.start(phase())
    assert "timed out after 0.5 s: the worker process is not started" == caught.value.message

    pool.close()
    assert gone(prepared[0].pid)


@pytest.mark.parametrize(
    ("receive", "text"),
    [
        (Receive(), "the worker process wrote what is not a WorkerEvent: "),
        (
            Receive(command=("poem",)),
            "poem: its keeper wrote what is not a ProgramEvent: ",
        ),
    ],
)
def test_a_process_that_reports_no_event_is_a_failure(
    pool: Pool, port: int, receive: Receive, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it wrote is named; it may be another Python's, or print what it should not."""
    verse = "input(); print('verse', flush=True); import sys; sys.stdin.read()"
    command = [sys.executable, "-c", verse]
    monkeypatch.setattr(process_client, "own_command", lambda *_: command)
    monkeypatch.setattr(process_client, "_be_workers", lambda: subprocess.call(command))
    with pytest.raises(WorkerFailed) as caught:
        pool.prepare([receiver(port, receive=receive)], "lo")
    assert f"{text}not JSON: b'verse'; report this bug" == caught.value.message


def test_a_worker_process_takes_no_other_order() -> None:
    """It ends, and its last words say what it was that it got."""
    command = [sys.executable, "-m", "udpbench.agent.workers.process"]
    ended = subprocess.run(command, input=b"{}\n", capture_output=True, check=False, timeout=10)
    assert 1 == ended.returncode
    assert b"ValueError: not a WorkersOrder: WorkersOrder: " in ended.stderr


def test_a_start_needs_workers_at_rest(pool: Pool, port: int) -> None:
    """Neither without workers nor while they run can a phase begin."""
    with pytest.raises(WorkerFailed) as caught:
        pool.start(phase())
    assert "start: no workers; prepare them first" == caught.value.message

    pool.prepare([receiver(port)], "lo")
    pool.start(phase())
    with pytest.raises(WorkerFailed) as caught:
        pool.start(phase())
    assert "start: the workers are not ready: running" == caught.value.message


def test_close_frees_the_port(pool: Pool, port: int) -> None:
    """Once closed, also out of a running loop, process and socket are gone."""
    prepared = pool.prepare([receiver(port)], "lo")
    pool.start(phase())
    pool.close()

    assert gone(prepared[0].pid)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("0.0.0.0", port))  # noqa: S104 - nothing sends to it


def test_a_worker_process_serves_the_agent_that_started_it_alone() -> None:
    """Where the agent died before the process could ask to die with it, it ends by itself."""
    first = write_line(encode(WorkersOrder(1, 0, "lo", {}, (receiver(9),))))
    command = [sys.executable, "-m", "udpbench.agent.workers.process"]
    ended = subprocess.run(command, input=first, capture_output=True, check=False, timeout=10)

    assert (1, b"") == (ended.returncode, ended.stdout)


def test_a_worker_has_the_priority_that_was_asked_for(pool: Pool, port: int) -> None:
    """Its own thread has it, and not the process that speaks with the agent."""
    (ready,) = pool.prepare([receiver(port, receive=Receive(priority="nice 7"))], "lo")
    threads = Path(f"/proc/{ready.pid}/task").iterdir()
    nice = [os.getpriority(os.PRIO_PROCESS, int(thread.name)) for thread in threads]
    assert 1 == nice.count(7)
    assert os.getpriority(os.PRIO_PROCESS, 0) == os.getpriority(os.PRIO_PROCESS, ready.pid)
