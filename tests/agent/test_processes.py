"""Who used CPUs between two edges: from files as the kernel writes them, and from real processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from golden import Golden
from proc_files import stat

from udpbench.agent.host import processes
from udpbench.agent.host.capabilities import napi_threads
from udpbench.agent.host.processes import (
    RUNNABLE,
    Processes,
    ProcessTimes,
    any_in,
    descendants,
    interface_threads,
    lineage,
    parse_process,
)
from udpbench.agent.host.system import Host, NapiInstance
from udpbench.model.record import Process, Whose

TICK_NS = processes.TICK_NS
BUSY = "print(flush=True)\nwhile True: pass"


class Machine(Host):
    """A host of files, on which a thread may run on all CPUs unless it is told otherwise."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.pinned: dict[int, list[int]] = {}
        self.napi: tuple[NapiInstance, ...] | None = ()
        self.put("/sys/devices/system/cpu/online", "0-3")

    def put(self, path: str, text: str) -> None:
        """Write a file."""
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text)

    def add(
        self,
        pid: int,
        *,
        name: str = "cc",
        parent: int = 1,
        ticks: int = 0,
        children: int = 0,
        started: int = 5,
        threads: tuple[int, ...] = (),
    ) -> None:
        """Let a process be there, or stand otherwise than before."""
        text = stat(pid, name, parent=parent, ticks=ticks, children=children, started=started)
        self.put(f"/proc/{pid}/stat", text)
        self.put(f"/proc/{pid}/comm", f"{name}\n")
        self.put(f"/proc/{pid}/cmdline", "")
        for thread in (pid, *threads):
            self.path(f"/proc/{pid}/task/{thread}").mkdir(parents=True, exist_ok=True)

    def end(self, pid: int) -> None:
        """Let a process be gone."""
        self.path(f"/proc/{pid}/stat").unlink()

    def affinity(self, pid: int) -> list[int]:
        """Return the CPUs of a thread."""
        return self.pinned.get(pid, [0, 1, 2, 3])

    def knows_napis(self) -> bool:
        """Return whether the kernel lists them by netlink."""
        return self.napi is not None

    def napis(self, _interface: str) -> tuple[NapiInstance, ...]:
        """Return NAPI's threads, where the kernel tells them."""
        if self.napi is None:
            raise OSError(2, "no netdev family")
        return self.napi


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a host of files."""
    return Machine(tmp_path)


def test_a_process_as_the_kernel_writes_it() -> None:
    """Its name may hold brackets and blanks; times are in ticks, and children's apart."""
    text = "4321 (a (b) c) S 77 4321 4321 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 3 0 98765 1 2 3 4"
    expected = ProcessTimes(4321, "a (b) c", 77, 98765, 2 * 10**9, 500 * 10**6)
    assert expected == parse_process(text, 10**7)


def test_every_process_that_used_a_tick(machine: Machine) -> None:
    """What stood still is left out; what began meanwhile used all it has."""
    machine.add(5, ticks=100)
    machine.add(6, ticks=100)
    table = Processes(machine, all_of_machine=True)
    table.begin({})
    machine.add(5, ticks=130)
    machine.add(7, name="new", ticks=4)
    machine.pinned[7] = [2]
    assert [
        Process(5, "cc", 30 * TICK_NS, "other"),
        Process(7, "new", 4 * TICK_NS, "other", (2,)),
    ] == sorted(table.end({}), key=lambda process: process.pid)


def test_no_program_is_taken_for_a_thread_of_the_kernel(machine: Machine) -> None:
    """Anybody may call a process as a thread whose time is counted with interrupts."""
    machine.add(5, name="ksoftirqd/0", parent=2)
    machine.add(6, name="ksoftirqd/0")
    table = Processes(machine, all_of_machine=True)
    table.begin({})
    machine.add(5, name="ksoftirqd/0", parent=2, ticks=9)
    machine.add(6, name="ksoftirqd/0", ticks=9)
    named = {each.pid: each.name for each in table.end({})}
    assert {5: "ksoftirqd/0", 6: "program ksoftirqd/0"} == named


def test_a_number_that_is_used_again_is_another_process(machine: Machine) -> None:
    """Its start tells it apart."""
    machine.add(5, ticks=100)
    table = Processes(machine, all_of_machine=True)
    table.begin({})
    machine.add(5, ticks=30, started=9)
    assert [Process(5, "cc", 30 * TICK_NS, "other")] == list(table.end({}))


def test_children_that_ended_are_reported_by_who_waited(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less what they had used before, also of those whose own parent ended with them: exactly."""
    monkeypatch.setattr(processes, "cpu_ns", {6: 20 * TICK_NS + 3}.get)
    machine.add(5, name="make", ticks=10, children=100)
    machine.add(6, parent=5, ticks=20)
    machine.add(7, parent=6, ticks=7)
    table = Processes(machine, all_of_machine=True)
    table.begin({})
    machine.end(6)
    machine.end(7)
    machine.add(5, name="make", ticks=10, children=177)
    assert [Process(5, "make", 0, "other", (), 50 * TICK_NS - 3)] == list(table.end({}))


@pytest.mark.parametrize(
    ("more_ticks", "parent", "known", "seen_ticks"),
    [
        (40, 2, "other", [40]),
        (40, 2, "worker", [40]),
        (0.9, 2, "other", []),
        (-90, 2, "other", []),
        (40, 1, "other", []),
    ],
    ids=["ended", "of a run", "an error of reading", "negative", "some are hidden"],
)
def test_what_no_process_is_charged_with_is_of_ended_programs(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    more_ticks: float,
    parent: int,
    known: Whose,
    seen_ticks: list[int],
) -> None:
    """A parent that ignores SIGCHLD hides its children's times, also within the kernel."""
    exact_ns = {3: 0, 5: 70}
    monkeypatch.setattr(processes, "cpu_ns", exact_ns.get)
    machine.add(3, parent=parent)
    machine.add(5)
    machine.put(processes.ALL_TASKS[1], "1000")
    table = Processes(machine, all_of_machine=True)
    whose: dict[int, Whose] = {} if known == "other" else {5: known}
    table.begin(whose)
    exact_ns.update({3: TICK_NS // 2, 5: 70 + 5 * TICK_NS})
    machine.add(5, ticks=5, children=3)
    ran_ns = round((0.5 + 5 + 3 + more_ticks) * TICK_NS)
    machine.put(processes.ALL_TASKS[1], f"{1000 + ran_ns}\n")
    ended = [each for each in table.end(whose) if each.pid == 0]
    assert [Process(0, "ended programs", n * TICK_NS, "other") for n in seen_ticks] == ended


def test_who_is_held_up_while_it_looks_looks_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others use meanwhile hides nothing; if all looks were held up, the shortest counts."""
    begin, end = {9: 2, 1: 5}, {30: 45, 40: 60, 35: 50}  # how long it took → what tasks have used
    took = (*begin, *end)
    clock = iter([n * TICK_NS for each in took for n in (0, each)])
    own = iter([n * TICK_NS // 10 for _ in took for n in (0, 7)])
    now = SimpleNamespace(monotonic_ns=lambda: next(clock), thread_time_ns=lambda: next(own))
    monkeypatch.setattr(processes, "time", now)
    monkeypatch.setattr(processes, "cpu_ns", lambda _: 0)
    ran_ns = iter([n * TICK_NS for n in (*begin.values(), *end.values())])
    monkeypatch.setattr(processes, "ran_ns", lambda _: next(ran_ns))
    machine.add(3, parent=2)
    table = Processes(machine, all_of_machine=True)
    table.begin({})
    assert [Process(0, "ended programs", 40 * TICK_NS, "other")] == list(table.end({}))


def test_how_long_tasks_ran_is_known_by_either_counter(machine: Machine) -> None:
    """The scheduler's has interrupts, too, which are taken off; without one nothing is known."""
    assert processes.ran_ns(machine) is None
    machine.put("/proc/stat", "cpu  9 9 9 9 9 1 2 3 9 9\ncpu0 9 9 9 9 9 1 2 3 9 9\n")
    schedstat = "version 17\ntimestamp 7\ncpu{} 0 0 0 0 0 0 {} 5 6\ndomain0 MC 3 0 0\n"
    machine.put("/proc/schedstat", schedstat.format(0, 10**9) + schedstat.format(1, 10**9))
    assert 2 * 10**9 - 6 * TICK_NS == processes.ran_ns(machine)
    machine.put(processes.ALL_TASKS[0], "77\n")
    assert 77 == processes.ran_ns(machine)


IGNORING = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(flush=True)
for _ in range(25):
    if os.fork() == 0:
        until = time.process_time() + 0.02
        while time.process_time() < until:
            os.stat("/")
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:
        pass
print(flush=True)
input()
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or processes.ran_ns(Host()) is None,
    reason="needs root and a kernel that counts what all tasks use (cgroup v1 or /proc/schedstat)",
)
def test_children_that_nobody_waits_for_are_seen_within_the_kernel_too() -> None:
    """On this machine: 25 that spent 20 ms each, mostly in system calls; less an error of ticks."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", IGNORING], **pipes) as process:
        process.stdout.readline()
        table = Processes(Host(), all_of_machine=True)
        table.begin({})
        process.stdout.readline()
        listed = table.end({})
        process.communicate(b"\n", timeout=10)
    ended_ns = sum(each.cpu_ns for each in listed if each.name == "ended programs")
    assert 40 * TICK_NS < ended_ns, listed


def test_cpus_of_all_threads(machine: Machine) -> None:
    """A process may run where any of its threads may."""
    machine.add(5, threads=(50,))
    machine.pinned.update({5: [1], 50: [3]})
    table = Processes(machine, all_of_machine=True)
    table.begin({})
    machine.add(5, ticks=1)
    assert [(1, 3)] == [process.cpus for process in table.end({})]


def test_without_the_machine_only_what_is_known(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent of one namespace tells its own processes, to the nanosecond."""
    spent = iter([100, 350])
    monkeypatch.setattr("udpbench.agent.host.processes.cpu_ns", lambda _: next(spent))
    machine.add(5)
    machine.add(6, ticks=900)
    table = Processes(machine, all_of_machine=False)
    table.begin({5: "worker"})
    assert [Process(5, "cc", 250, "worker")] == list(table.end({5: "worker"}))


def test_a_known_process_that_ended_is_not_reported(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known of it any more."""
    spent = iter([100, None])
    monkeypatch.setattr("udpbench.agent.host.processes.cpu_ns", lambda _: next(spent))
    table = Processes(machine, all_of_machine=False)
    table.begin({5: "run"})
    assert () == table.end({5: "run"})


def test_whoever_asked_for_a_process(machine: Machine) -> None:
    """Up to the first process, which asks for everything."""
    machine.add(5, parent=4)
    machine.add(4, parent=1)
    assert [5, 4] == list(lineage(machine, 5))
    assert [] == list(lineage(machine, 0))


@pytest.mark.parametrize("error", [psutil.AccessDenied, psutil.NoSuchProcess])
def test_a_process_that_cannot_be_seen(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: type[psutil.Error], golden: Golden
) -> None:
    """It is an OSError, as of any file."""
    machine.add(5)

    def refuse(pid: int) -> None:
        raise error(pid)

    monkeypatch.setattr("psutil.Process", refuse)
    code = errno.EACCES if error is psutil.AccessDenied else errno.ESRCH
    with golden.raises(OSError) as raised:
        machine.parent(5)
    assert code == raised.value.errno


def test_a_name_costs_nothing_of_a_long_command_line(machine: Machine) -> None:
    """Which any process can make as long as it likes; one that has ended meanwhile is left out."""
    machine.add(5, name="fifteen-letters")
    line = machine.path("/proc/5/cmdline")
    line.unlink()
    line.mkdir()  # whoever reads it fails
    machine.path("/proc/6").mkdir()
    assert {5: "fifteen-letters"} == machine.process_names()


def test_each_process_is_looked_at_once_however_deep(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a chain of processes every level has one more; a loop of ids that were reused ends."""
    looks = []

    class Parent(int):
        def __hash__(self) -> int:
            looks.append(int(self))
            return hash(int(self))

    def parse(text: str, tick_ns: int) -> ProcessTimes:
        process = parse_process(text, tick_ns)
        return replace(process, parent=Parent(process.parent))

    monkeypatch.setattr(processes, "parse_process", parse)
    for pid in range(101, 200):
        machine.add(pid, parent=pid - 1)
    machine.add(100, parent=199)
    machine.add(300)
    assert (tuple(range(101, 200)), 101) == (descendants(machine, 100), len(looks))


def test_what_ended_processes_used_is_of_their_next_living_ancestor() -> None:
    """However deep the chain, each is passed once; a loop of ids that were reused ends."""
    looks = []

    class Before(dict[int, ProcessTimes]):
        def __getitem__(self, pid: int) -> ProcessTimes:
            looks.append(pid)
            return super().__getitem__(pid)

    times = ProcessTimes(1, "a", 0, 0, 0, 0)
    chain = {pid: replace(times, pid=pid, parent=pid - 1, cpu_ns=pid) for pid in range(2, 200)}
    loop = {300: replace(times, pid=300, parent=301), 301: replace(times, pid=301, parent=300)}
    before = Before({1: times, **dict(reversed(chain.items())), **loop})
    used_ns = processes._ended_ns(processes._Look(before, {}, None), {1: times})
    assert sum(range(2, 200)) == used_ns[1]
    assert len(looks) < 3 * len(before)


def test_threads_of_interfaces(machine: Machine) -> None:
    """By netlink, else by name; a namesake that is longer is another interface's, or a program."""
    machine.add(30, name="napi/receive0-8", parent=2)
    machine.add(31, name="napi/receive01-", parent=2)
    machine.add(32, name="napi/receive0-9")
    machine.napi = (NapiInstance(8, None, 30), NapiInstance(9, None, None))
    assert [30] == interface_threads(machine, ["receive0"])
    machine.napi = None
    assert [30] == interface_threads(machine, ["receive0"])


class OldKernel(Machine):
    """A machine whose kernel lists no NAPI instances by netlink, as before Linux 6.8."""

    napis = Host.napis

    def index(self, _interface: str) -> int:
        """Return that of lo, whose queues have no NAPI."""
        return 1

    def _listed_napis(self, _interface: str) -> None:
        return None


@pytest.fixture
def old(tmp_path: Path) -> OldKernel:
    """Return one whose receive0 has two RX queues; kthreadd's children are 11, 30, 31, 40 and 99."""
    machine = OldKernel(tmp_path)
    for queue in ("rx-0", "rx-1", "tx-0"):
        machine.path(f"/sys/class/net/receive0/queues/{queue}").mkdir(parents=True)
    machine.put("/proc/2/task/2/children", "11 30 31 40 99 ")
    machine.add(11, name="ksoftirqd/0")
    machine.add(30, name="napi/receive0-8202")
    machine.add(31, name="napi/receive0-8201")
    machine.add(40, name="napi/receive01-8190")
    return machine


def test_napi_instances_by_the_names_of_their_threads(old: OldKernel) -> None:
    """In the order of their ids; the RX queues follow it, and one that has ended is left out."""
    assert (NapiInstance(8201, None, 31), NapiInstance(8202, None, 30)) == old.napis("receive0")
    assert {0: 31, 1: 30} == {queue: n.pid for queue, n in old.queue_napis("receive0").items()}
    assert {} == old.queue_napis("receive0", "tx")
    assert [31, 30] == interface_threads(old, ["receive0"])


def test_a_kernel_without_rx_queues_in_sysfs_has_as_many_as_tx_queues(old: OldKernel) -> None:
    """One for a single CPU shows none (CONFIG_RPS)."""
    for queue in ("rx-0", "rx-1"):
        old.path(f"/sys/class/net/receive0/queues/{queue}").rmdir()
    old.path("/sys/class/net/receive0/queues/tx-1").mkdir()
    assert [31, 30] == [napi.pid for napi in old.napis("receive0")]


@pytest.mark.parametrize(
    "names",
    [
        {30: "napi/receive0-8", 31: "napi/receive0-8"},
        {99: "napi/receive0-8203"},
        {30: "kworker/0:1"},
    ],
    ids=["cut short", "of another namespace", "missing"],
)
def test_names_of_threads_that_fit_no_queues_are_ambiguous(
    old: OldKernel, names: dict[int, str], golden: Golden
) -> None:
    """Before Linux 5.17 they have 15 bytes; another namespace may have a receive0, too."""
    for pid, name in names.items():
        old.add(pid, name=name)
    with golden.raises(OSError) as raised:
        old.napis("receive0")
    assert errno.ENOTUNIQ == raised.value.errno


@pytest.mark.parametrize(
    ("threaded", "netlink", "release", "expected"),
    [
        (False, False, "5.10.0-32-amd64", False),
        (True, False, "5.15.0-91-generic", False),
        (True, False, "5.17.1", True),
        (True, True, "5.14.0-427.el9", True),
    ],
)
def test_threads_of_napi_can_be_told_apart(
    machine: Machine, *, threaded: bool, netlink: bool, release: str, expected: bool
) -> None:
    """By netlink, which a distribution may have added to its kernel, or by whole names."""
    if threaded:
        machine.put("/sys/class/net/lo/threaded", "0")
    machine.napi = () if netlink else None
    assert expected == napi_threads(machine, release)


def test_threads_of_interrupts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with threadirqs or PREEMPT_RT serves an interrupt in a thread, sent packets' too."""
    interrupts = {"rx": {0: 34}, "tx": {0: 35}}
    monkeypatch.setattr("udpbench.agent.host.processes.queue_interrupts", lambda *_: interrupts)
    machine.add(40, name="irq/34-eth3-rx-", parent=2)
    machine.add(42, name="irq/34-eth3-rx-")
    machine.add(41, name="irq/341-eth4-Tx", parent=2)
    machine.add(43, name="irq/35-eth3-tx-", parent=2)
    assert [40, 43] == interface_threads(machine, ["eth3"])


def test_a_real_busy_process_is_found_with_its_cpu() -> None:
    """The kernel's own files, on this machine."""
    cpu = min(os.sched_getaffinity(0))
    table = Processes(Host(), all_of_machine=True)
    table.begin({os.getpid(): "run"})
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.sched_setaffinity(process.pid, {cpu})
        process.stdout.readline()
        deadline = time.monotonic() + 20
        busy: list[Process] = []
        while not busy and time.monotonic() < deadline:
            listed = table.end({os.getpid(): "run"})
            busy = [
                entry
                for entry in listed
                if entry.pid == process.pid and entry.cpu_ns > 10 * TICK_NS
            ]
        process.kill()
    assert [("other", (cpu,))] == [(entry.whose, entry.cpus) for entry in busy]
    assert {"run"} == {entry.whose for entry in listed if entry.pid == os.getpid()}


def test_where_a_thread_of_the_run_ran_is_counted() -> None:
    """To the CPU, where the kernel allows it; each look closes what it had opened."""
    here = os.sched_getaffinity(0)
    open_before = len([*Path("/proc/self/fd").iterdir()])
    table = Processes(Host(), all_of_machine=False)
    try:
        os.sched_setaffinity(0, {min(here)})
        table.begin({os.getpid(): "run"})
        table.begin({os.getpid(): "run"})
        until_ns = time.thread_time_ns() + 50 * 10**6
        while time.thread_time_ns() < until_ns:
            pass
        (own,) = table.end({os.getpid(): "run"})
    finally:
        os.sched_setaffinity(0, here)
    if not own.by_cpu_ns:
        pytest.skip("this kernel counts no task-clock for us (perf_event_paranoid)")
    assert own.by_cpu_ns[f"{min(here)}"] >= 49 * 10**6  # another clock than the thread's
    assert own.by_cpu_ns[f"{min(here)}"] >= 0.9 * own.cpu_ns
    assert open_before == len([*Path("/proc/self/fd").iterdir()])


def test_more_clocks_than_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond them is in the whole time of its process, and on no CPU."""
    monkeypatch.setattr(processes, "CLOCKS_MAX", 0)
    table = Processes(Host(), all_of_machine=False)
    table.begin({os.getpid(): "run"})
    assert [{}] == [process.by_cpu_ns for process in table.end({os.getpid(): "run"})]


def test_a_thread_that_waits_for_a_cpu_is_runnable(tmp_path: Path) -> None:
    """As one that runs; one that sleeps is not, nor one that has ended."""
    machine = Machine(tmp_path)
    machine.put("/proc/7/stat", "7 (napi/x) R-0) S 2 0 0 0")
    assert not any_in(RUNNABLE, machine, (7, 8))
    machine.put("/proc/9/stat", "9 (napi/receive0-5) R 2 0 0 0")
    assert any_in(RUNNABLE, machine, (7, 8, 9))


def test_how_long_a_thread_of_an_interface_waited_for_its_cpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By schedstat; of other processes, or where nobody counts it, it is not known."""
    monkeypatch.setattr(processes, "cpu_ns", lambda _: 0)
    for pid in (30, 31, 32):
        machine.add(pid)
        machine.put(f"/proc/{pid}/schedstat", "7 1000 3" if pid < 32 else "0 0 0")
    scanned = Processes(machine, all_of_machine=False)
    known: dict[int, Whose] = {30: "interface", 31: "run", 32: "interface"}
    scanned.begin(known)
    for pid in (30, 31):
        machine.put(f"/proc/{pid}/schedstat", "7 5000 9")
    waited = {each.pid: each.runnable_ns for each in scanned.end(known)}
    assert {30: 4000, 31: None, 32: None} == waited


def test_of_another_process_a_record_has_name_and_times_alone() -> None:
    """Neither its user, nor its command line, environment or sockets."""
    times = {"cpu_ns", "children_cpu_ns", "by_cpu_ns", "runnable_ns"}
    assert {"pid", "name", "whose", "cpus", *times} == {item.name for item in fields(Process)}
