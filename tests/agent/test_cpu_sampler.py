"""The sampler of CPUs: on this kernel, on rings made by hand, and where it is not permitted."""

from __future__ import annotations

import errno
import os
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest
from proc_files import stat

from udpbench.agent.host import cpu_sampler, native
from udpbench.agent.host.cpu_sampler import CpuSampler
from udpbench.agent.host.system import Host
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import CpuSamples

root = pytest.mark.skipif(os.geteuid() != 0, reason="samples the kernel, which only root may")


def spin(duration_ns: int, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
    """Use this CPU, in the kernel and out of it."""
    end_ns = now_ns() + duration_ns
    while now_ns() < end_ns:
        Path("/proc/self/stat").read_text()


def sample(host: Host, duration_ns: int = 200 * 10**6) -> CpuSamples:
    """Return what was seen while this process span for so long, whoever else did."""
    sampler = CpuSampler(host)
    sampler.begin(999)
    sampler.mark("begin", host.clock_ns())
    spin(duration_ns, time.thread_time_ns)
    sampler.mark("end", host.clock_ns())
    return sampler.end()


@root
def test_a_program_that_spins_is_seen() -> None:
    """For its time, by its number and name, and in the kernel functions that it calls."""
    seen = sample(Host())
    assert ("", "cpu-clock") == (seen.why, seen.clock)
    mine: Counter[str] = Counter()
    for pid, node, count in zip(seen.sampled_pids, seen.sampled_nodes, seen.sampled_counts):
        if pid == os.getpid():
            while node >= 0:
                mine[seen.functions[seen.called[node]]] += count
                node = seen.callers[node]
            mine["all"] += count
    assert 60 <= mine["all"] <= 310
    assert mine["do_syscall_64"] + mine["el0_svc"] > mine["all"] // 10
    assert Path("/proc/self/comm").read_text().strip() == seen.programs[str(os.getpid())]
    assert () == seen.missing_anchors
    assert max((*seen.callers, *seen.called, *seen.sampled_nodes)) < 2**20  # no address
    assert all(caller < place for place, caller in enumerate(seen.callers))


@root
def test_all_time_between_the_edges_is_sampled_and_none_beside_them() -> None:
    """Every CPU that is online has as many samples as its time has periods."""
    host = Host()
    sampler = CpuSampler(host)
    sampler.begin(999)
    spin(50 * 10**6)
    begin_ns = host.clock_ns()
    sampler.mark("begin", begin_ns)
    spin(300 * 10**6)
    end_ns = host.clock_ns()
    sampler.mark("end", end_ns)
    spin(50 * 10**6)
    seen = sampler.end()
    by_cpu: Counter[int] = Counter()
    for cpu, time_ns in zip(seen.sampled_cpus, seen.sampled_ns):
        by_cpu[cpu] += time_ns
    for time_ns in by_cpu.values():
        assert time_ns <= end_ns - begin_ns + 2 * seen.period_ns


@root
def test_nothing_is_left_open() -> None:
    """After the end, and where a phase failed before it."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    sampler = CpuSampler(Host())
    sampler.begin(999)
    assert before < len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    sampler.begin(99)
    sampler.close()
    assert before == len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    sample(Host(), 10**6)
    assert before == len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def kernel(tmp_path: Path, **files: str) -> Host:
    """Return a host with files of /proc."""
    given = {"kallsyms": "ffffffff81000000 T _text\n", **files}
    for name, text in given.items():
        path = tmp_path / "proc" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    online = tmp_path / "sys/devices/system/cpu/online"
    online.parent.mkdir(parents=True, exist_ok=True)
    online.write_text("0\n")
    return Host(tmp_path)


OF_A_CPU = "0000000000000000 A fixed_percpu_data\n{} T startup_64\n"
"""Symbols of x86 before Linux 6.15."""


@pytest.mark.parametrize(
    ("code", "files", "expected"),
    [
        (errno.EACCES, {"sys__kernel__perf_event_paranoid": "4"}, "perf_event_paranoid is 4"),
        (errno.EPERM, {}, "perf_event_paranoid is ?"),
        (errno.ENOSYS, {}, "Function not implemented"),
        (None, {"kallsyms": "0000000000000000 T _text\n"}, "hides its addresses"),
        (errno.ENOSYS, {"kallsyms": OF_A_CPU.format(f"{1:016x}")}, "Function not implemented"),
        (None, {"kallsyms": OF_A_CPU.format(f"{0:016x}")}, "hides its addresses"),
    ],
)
def test_why_nothing_can_be_sampled_is_told_in_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: Optional[int],
    files: dict[str, str],
    expected: str,
) -> None:
    """The right that is missing, with the setting that withholds it."""

    def refuse(*_: Any) -> int:
        raise OSError(code, os.strerror(code or 0))

    monkeypatch.setattr(native, "perf_event_open", refuse)
    sampler = CpuSampler(kernel(tmp_path, **files))
    sampler.begin(999)
    seen = sampler.end()
    assert (None, True) == (seen.clock, expected in seen.why)


def test_rings_that_may_not_be_locked_are_told_apart_from_events_that_may_not_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent with CAP_PERFMON lacks CAP_IPC_LOCK then; and the event is closed."""
    opened = os.open("/dev/null", os.O_RDONLY)

    def refuse(*_: Any) -> Any:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(native, "perf_event_open", lambda *_: opened)
    monkeypatch.setattr(cpu_sampler.mmap, "mmap", refuse)
    sampler = CpuSampler(kernel(tmp_path, sys__kernel__perf_event_mlock_kb="516"))
    sampler.begin(999)
    assert (
        "no memory for the samples of CPU 0: Operation not permitted "
        f"(kernel.perf_event_mlock_kb is 516); {cpu_sampler.STEP}"
    ) == sampler.end().why
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened)


def test_a_host_without_symbols_says_so(tmp_path: Path) -> None:
    """A kernel may be built without them."""
    host = kernel(tmp_path)
    (tmp_path / "proc/kallsyms").unlink()
    sampler = CpuSampler(host)
    sampler.begin(999)
    assert "/proc/kallsyms: No such file or directory: the kernel has no symbols to read" == (
        sampler.end().why
    )


# --- rings made by hand ---------------------------------------------------------------------------

KALLSYMS = """\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T ip_rcv
ffffffff81000100 t __udp4_lib_rcv.isra.0
ffffffff81000200 t veth_poll\t[veth]
ffffffff81000300 D data
"""


def sampled(pid: int, time_ns: int, *chain: int, mode: int = 1) -> bytes:
    """Return a PERF_RECORD_SAMPLE that stands for 1000 ns, its chain innermost first."""
    marked = (2**64 - 128, *chain) if chain else ()
    body = struct.pack("=QIIQQQ", (*chain, 0)[0], pid, pid, time_ns, 1000, len(marked))
    body += struct.pack(f"={len(marked)}Q", *marked)
    return struct.pack("=IHH", 9, mode, 8 + len(body)) + body


def lost(number: int) -> bytes:
    """Return a PERF_RECORD_LOST."""
    return struct.pack("=IHHQQ", 2, 0, 24, 0, number)


def named(pid: int, name: bytes) -> bytes:
    """Return a PERF_RECORD_COMM."""
    text = name.ljust(16, b"\0")
    return struct.pack("=IHHII", 3, 0, 16 + len(text), pid, pid) + text


class Ring(cpu_sampler._Ring):
    """A ring of 4 KiB that no kernel fills."""

    def __init__(self, content: bytes, begun: int = 0, most: int = 99) -> None:
        page, size = cpu_sampler.mmap.PAGESIZE, 4096
        memory: Any = bytearray(page + size)
        for place, byte in enumerate(content):
            memory[page + (begun + place) % size] = byte
        struct.pack_into("=Q", memory, 1024, begun + len(content))
        super().__init__((-1,), memory, size, most, tail=begun)

    def close(self) -> None:
        """There is nothing to end."""


def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ring: Ring) -> CpuSamples:
    """Return what is read of a ring between the times 100 and 200."""
    monkeypatch.setattr(cpu_sampler, "_opened", lambda *_: ring)
    monkeypatch.setattr(cpu_sampler.fcntl, "ioctl", lambda *_: 0)
    sampler = CpuSampler(kernel(tmp_path, kallsyms=KALLSYMS))
    monkeypatch.setattr(sampler, "_hidden", lambda: "")
    sampler.begin(999)
    sampler.mark("begin", 100)
    sampler.mark("end", 200)
    return sampler.end()


@pytest.mark.parametrize("begun", [0, 4000, 4096 * 7 + 3000])
def test_a_ring_is_read_wherever_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, begun: int
) -> None:
    """Also where a record, or its head, is on both sides of its end; what is lost is counted."""
    rcv, udp, poll = (0xFFFFFFFF81000000 + offset for offset in (4, 0x110, 0x200))
    content = b"".join(
        (
            sampled(7, 99, rcv),
            sampled(7, 100, udp, rcv + 1, poll + 9),
            named(7, b"reader"),
            lost(3),
            sampled(7, 150, udp, rcv + 1, poll + 9),
            sampled(8, 150, mode=2),
            sampled(8, 150, 1, mode=4),
            sampled(7, 200, rcv),
        )
    )
    seen = read(monkeypatch, tmp_path, Ring(content, begun))
    assert ("veth_poll", "ip_rcv", "__udp4_lib_rcv") == tuple(
        seen.functions[each] for each in seen.called
    )
    assert (-1, 0, 1) == seen.callers
    rows = zip(seen.sampled_pids, seen.sampled_nodes, seen.sampled_counts, seen.sampled_ns)
    assert [(7, 2, 2, 2000), (8, -2, 1, 1000), (8, -1, 1, 1000)] == list(rows)
    assert ({"0": 3}, "reader") == (seen.lost_samples, seen.programs["7"])


def test_no_program_is_taken_for_a_thread_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Anybody may call a process as one whose time is the receiver's."""
    rcv, pids = 0xFFFFFFFF81000004, {7: 2, 8: 1}
    for pid, parent in pids.items():
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        text = stat(pid, "ksoftirqd/0", parent=parent)
        (tmp_path / f"proc/{pid}/stat").write_text(text)
    content = b"".join(named(p, b"ksoftirqd/0") + sampled(p, 150, rcv) for p in (7, 8, 9))
    seen = read(monkeypatch, tmp_path, Ring(content))
    masked = "program ksoftirqd/0"
    assert {"7": "ksoftirqd/0", "8": masked, "9": masked} == dict(seen.programs)


def test_processes_without_end_take_no_more_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Samples beyond those that are kept apart are lost; names are kept of what was sampled."""
    rcv = 0xFFFFFFFF81000004
    content = b"".join(named(pid, b"n") + sampled(pid, 150, rcv) for pid in range(2, 12))
    seen = read(monkeypatch, tmp_path, Ring(content + sampled(3, 150, rcv), most=4))
    assert ((2, 3, 4, 5), (1, 2, 1, 1)) == (seen.sampled_pids, seen.sampled_counts)
    assert {"0": 6} == seen.lost_samples
    sampler = CpuSampler(kernel(tmp_path))
    ring = Ring(b"", most=4)
    sampler._rings[0] = ring
    monkeypatch.setattr(cpu_sampler, "NAMES_SPARE", 3)
    kept = []
    for pid in range(2, 42):
        monkeypatch.setattr(ring, "take", lambda p=pid: named(p, b"n") + sampled(p, 150, rcv))
        sampler._read(ring)
        kept.append(len(sampler._programs))
    assert (4, 11) == (len(ring.seen), max(kept))
    assert {2, 3, 4, 5} <= {*sampler._programs}


def test_a_return_address_is_the_callers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A call may be the last instruction: what follows is the next function's first."""
    udp, rcv = 0xFFFFFFFF81000110, 0xFFFFFFFF81000100
    seen = read(monkeypatch, tmp_path, Ring(sampled(7, 150, udp, rcv)))
    assert ("ip_rcv", "__udp4_lib_rcv") == tuple(seen.functions[each] for each in seen.called)


def test_a_tree_without_room_keeps_anchors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There are few of them, whatever a kernel does."""
    monkeypatch.setattr(cpu_sampler, "NODES_MAX", -1)
    rcv, poll = 0xFFFFFFFF81000004, 0xFFFFFFFF81000209
    seen = read(monkeypatch, tmp_path, Ring(sampled(7, 150, rcv, poll) + sampled(7, 150, poll)))
    assert [("ip_rcv", -1), ("?", -1)] == [
        (seen.functions[f], caller) for f, caller in zip(seen.called, seen.callers)
    ]


def test_what_cpus_did_lately_is_by_stage_or_by_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Soft interrupts by stage, tasks by name; what is idle, or takes little, is left out."""
    symbols = "\n".join(
        f"{0xFFFFFFFF81000000 + 256 * place:x} T {name}"
        for place, name in enumerate(("ip_rcv", "__do_softirq", "do_idle", "do_syscall_64"))
    )
    rcv, soft, idle, call = (0xFFFFFFFF81000004 + 256 * place for place in range(4))
    content = b"".join(
        (
            named(7, b"reader"),
            *(sampled(9, 150, rcv, soft), sampled(0, 150, rcv, soft, idle)),
            *(sampled(0, 150, idle), sampled(0, 150), sampled(7, 150, rcv, call)),
            *(sampled(7, 150, mode=2), sampled(7, 150, mode=2), named(8, b"rare")),
            sampled(8, 150, call),
        )
    )
    monkeypatch.setattr(cpu_sampler, "LEAST_NS", 2000)
    monkeypatch.setattr(cpu_sampler, "_opened", lambda *_: Ring(content))
    monkeypatch.setattr(cpu_sampler.fcntl, "ioctl", lambda *_: 0)
    sampler = CpuSampler(kernel(tmp_path, kallsyms=symbols))
    monkeypatch.setattr(sampler, "_hidden", lambda: "")
    sampler.begin(999)
    assert {"0 rx_ip": 2000, "0 reader": 3000} == sampler.lately()
    assert {} == sampler.lately()
    monkeypatch.setattr(cpu_sampler, "NODES_MAX", 0)
    assert sampler._work is not None
    assert [None, "idle"] == [
        sampler._work.stage_of(struct.pack("=Q", each)) for each in (call, idle)
    ]
    assert 1 == len(sampler._work._known)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  .nohz           : 1\n", True),
        ("  .nohz_mode      : 2\n", True),
        ("  .nohz_mode      : 0\n", False),
        ("", None),
    ],
)
def test_whether_idle_time_is_counted_exactly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: Optional[bool]
) -> None:
    """By the kernel's list of timers, in the words of old and new ones."""
    kernel(tmp_path, timer_list=text)
    assert expected is read(monkeypatch, tmp_path, Ring(b"")).exact_idle


def test_rings_of_many_cpus_share_their_memory() -> None:
    """4 MiB each, up to 64 of them; never less than a quarter of a MiB."""
    assert [2**22, 2**22, 2**21, 2**18] == [
        cpu_sampler._ring_bytes(cpus) for cpus in (1, 64, 65, 4096)
    ]


@pytest.mark.parametrize(("cpus", "timers"), [(1, 3), (128, 3), (129, 1), (512, 1)])
def test_no_two_timers_have_the_same_period(cpus: int, timers: int) -> None:
    """They would come at the same moments of a load; and an agent has files for so many alone."""
    nominal_ns = 1_001_001
    of_cpus = [cpu_sampler.periods_ns(cpu, nominal_ns, cpus) for cpu in range(cpus)]
    assert {timers} == set(map(len, of_cpus))
    periods = sorted(ns for own in of_cpus for ns in own)
    assert 1e-5 < min((b / a - 1 for a, b in zip(periods, periods[1:])), default=1)
    for own in of_cpus:
        assert 0.96 < sum(nominal_ns / ns for ns in own) < 1.04


@root
def test_who_is_woken_by_samples_is_sampled_as_often_as_it_runs() -> None:
    """A sleep may end up to 50 us late, and ends sooner if a timer comes: with a sample, so after it."""
    sampler, host, allowed = CpuSampler(Host()), Host(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    sampler.begin(4987)
    sampler.mark("begin", host.clock_ns())
    before_ns, end_ns = time.process_time_ns(), host.clock_ns() + SECOND_NS
    while host.clock_ns() < end_ns:
        time.sleep(50e-6)
        spin(10**5, time.thread_time_ns)
    ran_ns = time.process_time_ns() - before_ns
    sampler.mark("end", host.clock_ns())
    os.sched_setaffinity(0, allowed)
    seen = sampler.end()
    sampled = zip(seen.sampled_pids, seen.sampled_ns)
    assert 0.6 < sum(ns for pid, ns in sampled if pid == os.getpid()) / ran_ns < 1.2
