"""Samples of long and short phases, and what processes use meanwhile."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_workers import give

from udpbench.agent.host.cpu_clocks import cpu_ns
from udpbench.agent.host.socket_options import inode
from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_sockets import SocketQueue, open_sockets
from udpbench.agent.workers import samples
from udpbench.agent.workers.samples import TICK_NS, Queues, Series, spread
from udpbench.agent.workers.usage import Usage, resident_bytes
from udpbench.model.limits import DAY_NS, SAMPLES_MAX, SECOND_NS
from udpbench.model.record import Sample
from udpbench.protocol import Prepared

SO_FAR = Sample("left.sender0", 5, {"sent_packets": 7})


@given(st.integers(1, DAY_NS), st.integers(TICK_NS, SECOND_NS))
def test_a_phase_has_a_bounded_number_of_samples(duration_ns: int, tick_ns: int) -> None:
    """However long a phase is, it has at most SAMPLES_MAX samples, and short ones every tick."""
    seldom = Series(duration_ns, None, tick_ns)
    assert -(-duration_ns // (seldom.stride * tick_ns)) <= SAMPLES_MAX
    series = Series(duration_ns, None)
    assert (series.stride == 1) == (duration_ns <= SAMPLES_MAX * TICK_NS)


def test_every_so_many_ticks_are_a_sample() -> None:
    """In twelve minutes every second tick counts, the first included."""
    series = Series(720 * SECOND_NS, None)
    assert [True, False, True, False] == [series.due() for _ in range(4)]


def test_a_short_phase_keeps_every_millisecond() -> None:
    """Milliseconds follow each other from sample to sample, and none is told twice."""
    calls = []

    def milliseconds(worker: int, since: int, ended: bool) -> tuple[int, list[int]]:
        calls.append((worker, since, ended))
        return max(since, 3), [1, 2, 3]

    series = Series(60 * SECOND_NS, milliseconds)
    first, second = series.sample(4, SO_FAR, False), series.sample(4, SO_FAR, True)
    assert (3, (1, 2, 3), None) == (first.first_ms, first.packets_per_ms, first.range_per_ms)
    assert 6 == second.first_ms
    assert [(4, 0, False), (4, 6, True)] == calls
    assert SO_FAR.counts == first.counts


def test_a_long_phase_keeps_least_median_and_most() -> None:
    """Beyond a minute three numbers stand for all milliseconds since the sample before."""
    series = Series(61 * SECOND_NS, lambda *_: (0, [5, 1, 9, 2]))
    sample = series.sample(0, SO_FAR, False)
    assert (0, (), (1, 2, 9)) == (sample.first_ms, sample.packets_per_ms, sample.range_per_ms)


def test_a_sample_without_a_millisecond_has_no_range() -> None:
    """Where none has ended there is nothing to tell, which is not 0."""
    assert None is Series(DAY_NS, lambda *_: (0, [])).sample(0, SO_FAR, False).range_per_ms


def test_nobody_asks() -> None:
    """A phase that nobody keeps tells no milliseconds."""
    assert SO_FAR == Series(SECOND_NS, None).sample(0, SO_FAR, True)


@given(st.lists(st.integers(0, 100), min_size=1))
def test_spread(packets: list[int]) -> None:
    """Least, median and most are packets that were counted, in order."""
    least, median, most = spread(packets)
    assert (min(packets), max(packets)) == (least, most)
    assert median in packets
    assert sum(count <= median for count in packets) * 2 >= len(packets)


# --- usage ---------------------------------------------------------------------------------------


def test_a_process_is_seen_from_outside() -> None:
    """CPU time and its duration within the load, and the mean of the memory samples."""
    busy = "print(flush=True)\nn = 0\nwhile True: n += 1"
    command = [sys.executable, "-c", busy]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # before that it may not be Python yet, and as small as that
        usage = Usage(Host(), [process.pid, process.pid])
        usage.read_cpu(0)
        usage.read_cpu(packets := 1)
        while not usage.under_load(process.pid)[0]:
            usage.read_memory()
            usage.read_cpu(packets := packets + 1)
        memory_bytes = usage.memory_bytes(process.pid)
        spent_ns, over_ns = usage.under_load(process.pid)
        process.kill()
    assert memory_bytes is not None
    assert 2**20 < memory_bytes < 2**30
    assert spent_ns is not None
    assert over_ns is not None
    assert 0 < spent_ns <= over_ns + 10**7


def test_only_what_lies_within_the_load_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks before the first packet and after the last one are of another time."""
    now = iter(range(0, 600, 100))
    monkeypatch.setattr("udpbench.agent.workers.usage.time.monotonic_ns", lambda: next(now))
    spent = iter([1, 5, 25, 45, 95, 99])
    monkeypatch.setattr("udpbench.agent.workers.usage.cpu_ns", lambda _: next(spent))
    usage = Usage(Host(), [7])
    results = []
    for packets in (0, 10, 20, 30, 40, 40):
        usage.read_cpu(packets)
        results.append(usage.under_load(7))
    nothing = (None, None)
    assert [nothing, nothing, nothing, (20, 100), (40, 200), (40, 200)] == results


def test_a_process_that_ended_under_its_load_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it used until then is not known."""
    spent = iter([5, 25, None, None])
    monkeypatch.setattr("udpbench.agent.workers.usage.cpu_ns", lambda _: next(spent))
    usage = Usage(Host(), [7])
    for packets in (10, 20, 30, 40):
        usage.read_cpu(packets)
    assert (None, None) == usage.under_load(7)


def test_the_mean_of_samples(tmp_path: Path) -> None:
    """The mean is of what could be read; without any it is None."""
    statm = tmp_path / "proc" / "5" / "statm"
    statm.parent.mkdir(parents=True)
    usage = Usage(Host(tmp_path), [5])
    assert None is usage.memory_bytes(5)
    for pages in (100, 300):
        statm.write_text(f"900 {pages} 3 0 0 0 0\n")
        usage.read_memory()
    statm.unlink()
    usage.read_memory()
    assert 200 * os.sysconf("SC_PAGE_SIZE") == usage.memory_bytes(5)


@pytest.mark.parametrize("pid", [5, 2**22 + 1])
def test_a_process_that_is_gone(tmp_path: Path, pid: int) -> None:
    """What is not there has no numbers."""
    assert None is resident_bytes(Host(tmp_path), pid)
    assert None is Usage(Host(tmp_path), []).memory_bytes(pid)
    assert (None, None) == Usage(Host(tmp_path), []).under_load(pid)


def test_no_process() -> None:
    """A process id that the kernel cannot give has no clock."""
    assert None is cpu_ns(2**22 + 1)


def bound(port: int) -> socket.socket:
    """Return a socket at a port that holds a few datagrams."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.bind(("127.0.0.1", port))
    return sock


def dropped(sock: socket.socket) -> int:
    """Fill a socket and return how many more datagrams it dropped."""
    known = (inode(sock),)
    (before,) = open_sockets(Host(), known).values()
    give(sock.getsockname()[1], [bytes(1000)] * 20)
    (after,) = open_sockets(Host(), known).values()
    return after.drops - before.drops


def test_queues_and_drops_of_sockets_are_sampled(
    free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared socket's once, drops since the phase began, as soon as a reading was cheap enough."""
    with ExitStack() as stack:
        both = [stack.enter_context(bound(free_port())) for _ in range(2)]
        alone, shared = (inode(each) for each in both)
        dropped(both[1])
        receivers = [
            Prepared(f"r{n}", 1, None, known, None)
            for n, known in enumerate([(alone, shared), (shared,), ()])
        ]
        queues = Queues(Host(), receivers)
        dropped(both[1])
        queues.begin()
        more = dropped(both[1])
        queues._due_ns = 0
        queued = sum(each.queued_bytes for each in open_sockets(Host(), [shared]).values())
        expected = {"r0": {"queued_bytes": queued, "dropped_packets": more}}
        assert expected == queues.read()
        assert 0 < queued < 2**20 > more > 0

        cpu_ns = iter((0, SECOND_NS))
        monkeypatch.setattr(samples.time, "thread_time_ns", lambda: next(cpu_ns))
        queues._due_ns = 0
        assert expected == queues.read()
        monkeypatch.undo()
        assert {} == queues.read()
        dropped(both[1])
        queues.begin()
        assert queues._begin is queues._latest
        assert queues._due_ns > time.monotonic_ns() + (samples.PAUSE - 1) * SECOND_NS
    queues._due_ns = 0
    assert {} == queues.read()


def test_the_count_of_drops_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has 32 bits in the kernel."""
    tables = iter(({5: SocketQueue(0, 2**32 - 2)}, {5: SocketQueue(7, 3)}))
    monkeypatch.setattr(samples, "open_sockets", lambda *_: next(tables))
    queues = Queues(Host(), [Prepared("r0", 1, None, (5,), None)])
    queues._due_ns = 0
    assert {"r0": {"queued_bytes": 7, "dropped_packets": 5}} == queues.read()
