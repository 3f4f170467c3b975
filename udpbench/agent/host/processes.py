"""CPU time of processes between the edges of a phase: those of the run, and all others.

Reads every process of the machine only at the two edges, about 20 µs each, outside the interval
between the two readings of CPU times. Judges nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from udpbench.agent.host.cpu_clocks import SOFTWARE, TASK_CLOCK, cpu_ns, open_counter
from udpbench.agent.host.files import lines_of, names, read
from udpbench.agent.host.interrupts import queue_interrupts
from udpbench.agent.host.reading import KTHREADD
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.cpu_lists import parse_cpu_list
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Process, Whose

TICK_NS = SECOND_NS // os.sysconf("SC_CLK_TCK")
COUNT_BYTES = 24
"""A count and two times (PERF_FORMAT_TOTAL_TIME_*)."""
NAME_BYTES = 15
"""Maximum length of a kernel thread's name (TASK_COMM_LEN)."""
SOFTIRQ = "ksoftirqd/"
"""The kernel's threads of this name are counted with interrupts."""

ENDED = "ended programs"
"""Whose parent ignores SIGCHLD: the kernel charges what they used to no process."""
ALL_TASKS = (
    "/sys/fs/cgroup/cpuacct/cpuacct.usage",
    "/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage",
)
"""What all tasks have used, in ns, by cgroup v1; the root of version 2 has ticks alone."""
RAN_COLUMN, INTERRUPT_COLUMNS = 7, (6, 7, 8)
"""Where a CPU in /proc/schedstat has for how long tasks ran on it, in ns, with interrupts meanwhile
and what a hypervisor took; and /proc/stat these, in ticks: irq, softirq and steal."""
LOOKS_MAX = 3
"""At all processes, at one edge."""
CLOCKS_MAX = 256
"""Limit of descriptors, one per thread and CPU; beyond it only process totals are known."""


@dataclass(frozen=True)
class ProcessTimes:
    """One process from /proc/PID/stat."""

    pid: int
    name: str
    parent: int
    started: int
    """In ticks after boot; unique together with the pid."""
    cpu_ns: int
    """User and system time of all its threads."""
    children_ns: int
    """User and system time of its children that have ended."""


@dataclass(frozen=True)
class _Look:
    """What every visible process of the machine has used, and all tasks."""

    processes: dict[int, ProcessTimes]
    exact_ns: dict[int, Optional[int]]
    ran_ns: Optional[int]


class Clocks:
    """CPU time of the run's threads on each CPU, if the kernel permits counting it."""

    def __init__(self, host: Host, pids: Iterable[int], online: Sequence[int]) -> None:
        threads = [(pid, int(name)) for pid in pids for name in names(host, f"/proc/{pid}/task")]
        places = [(pid, thread, cpu) for pid, thread in threads for cpu in online]
        self._files = [
            (pid, cpu, open_counter(SOFTWARE, TASK_CLOCK, thread, cpu))
            for pid, thread, cpu in places[:CLOCKS_MAX]
        ]

    def end(self) -> dict[int, dict[str, int]]:
        """Return process → CPU (text) → time in ns, and close everything."""
        times_ns: dict[int, dict[str, int]] = {}
        for pid, cpu, file in self._files:
            if file is not None:
                by_cpu = times_ns.setdefault(pid, {})
                ns = int.from_bytes(os.read(file, COUNT_BYTES)[:8], sys.byteorder)
                by_cpu[f"{cpu}"] = by_cpu.get(f"{cpu}", 0) + ns
                os.close(file)
        self._files = []
        return times_ns


class Processes:
    """CPU use of processes between two edges; without ``all_of_machine`` only the known ones.

    Not by psutil: it reads each process's file four to six times, so a scan would take longer than
    the interval of CPU times allows; and it offers neither nanosecond clocks nor a thread's time by
    CPU.
    """

    def __init__(self, host: Host, all_of_machine: bool) -> None:
        self._host = host
        self._all_of_machine = all_of_machine
        self._before = _Look({}, {}, None)
        self._known_ns: dict[int, Optional[int]] = {}
        self._waited_ns: dict[int, Optional[int]] = {}
        self._clocks = Clocks(host, (), ())

    def begin(self, known: Mapping[int, Whose]) -> None:
        """Record every process; ``known`` are those of the run and of its interfaces."""
        self._clocks.end()
        self._before = self._look(at_end=False)
        ours = [pid for pid, whose in known.items() if whose == "run"]
        self._clocks = Clocks(self._host, ours, self._online())
        self._known_ns = {pid: cpu_ns(pid) for pid in known}
        polling = [pid for pid, whose in known.items() if whose == "interface"]
        self._waited_ns = {pid: self._runnable_ns(pid) for pid in polling}

    def end(self, known: Mapping[int, Whose]) -> tuple[Process, ...]:
        """Return the use by known processes, and by every other one that used a tick or more."""
        spent = [(pid, _since(self._known_ns.get(pid, 0), cpu_ns(pid))) for pid in known]
        by_cpu, online = self._clocks.end(), set(self._online())
        first, last = self._before, self._look(at_end=True)
        used = [
            replace(
                self._process(
                    pid, read(self._host, f"/proc/{pid}/comm") or "", ns, known[pid], online
                ),
                by_cpu_ns=by_cpu.get(pid, {}),
                runnable_ns=_since(self._waited_ns.get(pid), self._runnable_ns(pid)),
            )
            for pid, ns in spent
            if ns is not None
        ]
        ended_ns, charged_ns = _ended_ns(first, last.processes), 0
        for pid, state in last.processes.items():
            before, exact_before_ns = first.processes.get(pid), first.exact_ns.get(pid)
            if before is None or before.started != state.started:
                before, exact_before_ns = replace(state, cpu_ns=0, children_ns=0), 0
            spent_ns = state.cpu_ns - before.cpu_ns
            children_ns = state.children_ns - before.children_ns - ended_ns.get(pid, 0)
            children_ns = max(children_ns, 0)
            exact_ns = _since(exact_before_ns, last.exact_ns.get(pid))
            charged_ns += children_ns + (spent_ns if exact_ns is None else exact_ns)
            if pid not in known and spent_ns + children_ns >= TICK_NS:
                used.append(self._process(pid, state.name, spent_ns, "other", online, children_ns))
        ran = _since(first.ran_ns, last.ran_ns)
        sees_all = any(each.parent == KTHREADD for each in last.processes.values())
        if sees_all and ran is not None and ran - charged_ns >= TICK_NS:
            used.append(Process(0, ENDED, ran - charged_ns, "other"))
        return tuple(used)

    def _look(self, at_end: bool) -> _Look:
        """Return what all processes have used, with the time of all tasks next to the phase.

        Who is held up while it reads looks again: what others use meanwhile would hide as much of
        what ended programs have used.
        """
        looks: list[tuple[int, _Look]] = []
        while self._all_of_machine and len(looks) < LOOKS_MAX:
            begun_ns, own_ns = time.monotonic_ns(), time.thread_time_ns()
            if at_end:
                pids, ran = _pids(self._host), ran_ns(self._host)
                exact_ns = {pid: cpu_ns(pid) for pid in pids}
                look = _Look(self._scan(), exact_ns, ran)
            else:
                there = self._scan()
                look = _Look(there, {pid: cpu_ns(pid) for pid in there}, ran_ns(self._host))
            own_ns = time.thread_time_ns() - own_ns
            looks.append((time.monotonic_ns() - begun_ns, look))
            if looks[-1][0] < 2 * own_ns or own_ns > TICK_NS:
                break
        return min(looks, key=lambda timed: timed[0])[1] if looks else _Look({}, {}, None)

    def _runnable_ns(self, pid: int) -> Optional[int]:
        """Return how long a thread has waited for a CPU; None if it is not counted."""
        fields = (read(self._host, f"/proc/{pid}/schedstat") or "").split()
        return int(fields[1]) if len(fields) > 2 and fields[2] != "0" else None

    def _process(
        self,
        pid: int,
        name: str,
        spent_ns: int,
        whose: Whose,
        online: set[int],
        children_ns: int = 0,
    ) -> Process:
        cpus = {
            cpu
            for thread in names(self._host, f"/proc/{pid}/task")
            for cpu in self._affinity(thread)
        }
        return Process(
            pid, name, spent_ns, whose, tuple(sorted(cpus)) if cpus < online else (), children_ns
        )

    def _online(self) -> tuple[int, ...]:
        return parse_cpu_list(read(self._host, "/sys/devices/system/cpu/online") or "")

    def _affinity(self, thread: str) -> list[int]:
        try:
            return self._host.affinity(int(thread))
        except OSError:
            return []

    def _scan(self) -> dict[int, ProcessTimes]:
        """Return every visible process of the machine."""
        known = {each.pid: each for each in _every(self._host, TICK_NS)}
        return {
            pid: each if each.parent == KTHREADD else replace(each, name=unmasked(each.name))
            for pid, each in known.items()
        }


def ran_ns(host: Host) -> Optional[int]:
    """Return for how long all CPUs ran tasks, the ended ones' too; None if that is not counted.

    Exactly by cgroup v1; by the scheduler less all interrupts, which makes it a lower bound.
    """
    for path in ALL_TASKS:
        counted = read(host, path)
        if counted is not None:
            return int(counted)
    rows = [line.split() for line in lines_of(read(host, "/proc/schedstat"))]
    ran = [int(row[RAN_COLUMN]) for row in rows if row[0].startswith("cpu")]
    ticks = (read(host, "/proc/stat") or "").partition("\n")[0].split()
    return sum(ran) - TICK_NS * sum(int(ticks[n]) for n in INTERRUPT_COLUMNS) if ran else None


def _since(before_ns: Optional[int], now_ns: Optional[int]) -> Optional[int]:
    return now_ns - before_ns if now_ns is not None and before_ns is not None else None


def _ended_ns(first: _Look, after: Mapping[int, ProcessTimes]) -> dict[int, int]:
    """Return living ancestor → time used before the first edge by descendants that have ended.

    The kernel adds their total to the ancestor's children time when they end. Whole ticks, of
    which each lacks half of one or more, would make that of many much too large.
    """
    before = first.processes
    used_ns: dict[int, int] = {}
    living: dict[int, int] = {}
    """Process that has ended → its nearest ancestor that lives."""
    for process in before.values():
        if process.pid in after:
            continue
        parent = process.parent
        passed = {process.pid}
        # Numbers that were used again while /proc was read can make a loop.
        while parent not in after and parent in before and parent not in passed:
            passed.add(parent)
            parent = living.get(parent, before[parent].parent)
        living.update(dict.fromkeys(passed, parent))
        own_ns = first.exact_ns.get(process.pid)
        own_ns = process.cpu_ns if own_ns is None else own_ns
        used_ns[parent] = used_ns.get(parent, 0) + own_ns + process.children_ns
    return used_ns


def parse_process(text: str, tick_ns: int) -> ProcessTimes:
    """Return the times in /proc/PID/stat; the name may contain parentheses and spaces."""
    pid, _, rest = text.partition(" (")
    name, _, columns = rest.rpartition(") ")
    fields = columns.split()
    user, system, children_user, children_system = map(int, fields[11:15])
    return ProcessTimes(
        pid=int(pid),
        name=name,
        parent=int(fields[1]),
        started=int(fields[19]),
        cpu_ns=(user + system) * tick_ns,
        children_ns=(children_user + children_system) * tick_ns,
    )


def _every(host: Host, tick_ns: int = 0) -> list[ProcessTimes]:
    """Return every visible process."""
    texts = (read(host, f"/proc/{pid}/stat") for pid in _pids(host))
    return [parse_process(text, tick_ns) for text in texts if text]


def _pids(host: Host) -> list[int]:
    return [int(name) for name in names(host, "/proc") if name.isdigit()]


def unmasked(name: str) -> str:
    """Return a program's name, of which none is that of a thread of the kernel."""
    return f"program {name}" if name.startswith(SOFTIRQ) else name


def lineage(host: Host, pid: int) -> Iterator[int]:
    """Yield a process and its ancestors, except process 1."""
    while pid > 1:
        yield pid
        try:
            pid = host.parent(pid)
        except OSError:
            return


def descendants(host: Host, pid: int) -> tuple[int, ...]:
    """Return all living descendants of a process."""
    children: dict[int, list[int]] = {}
    for known in _every(host):
        children.setdefault(known.parent, []).append(known.pid)
    family, waiting = set[int](), [pid]
    while waiting:
        young = children.pop(waiting.pop(), [])
        family.update(young)
        waiting += young
    return tuple(sorted(family - {pid}))


RUNNABLE, STOPPED = ("R",), ("T", "t")
"""States of proc_pid_stat(5): runs or waits for a CPU; stopped by a signal or a debugger."""


def any_in(states: tuple[str, ...], host: Host, pids: Iterable[int]) -> bool:
    """Return whether any thread is in one of these states."""
    texts = (read(host, f"/proc/{pid}/stat") or "" for pid in pids)
    return any(text.rpartition(") ")[2].startswith(states) for text in texts)


def interface_threads(host: Host, interfaces: Iterable[str]) -> list[int]:
    """Return the kernel threads that serve interfaces: of NAPI and of interrupts.

    By name if the kernel has no netdev family (before Linux 6.8).
    """
    pids: list[int] = []
    prefixes: list[str] = []
    for interface in interfaces:
        ways = queue_interrupts(host, interface).values()
        prefixes += [f"irq/{irq}-" for irqs in ways for irq in irqs.values()]
        try:
            pids += [napi.pid for napi in host.napis(interface) if napi.pid]
        except OSError:
            prefixes.append(f"napi/{interface}-"[:NAME_BYTES])
    if prefixes:
        starts, threads = tuple(prefixes), _every(host)  # anybody may call a process so
        pids += [
            each.pid for each in threads if each.parent == KTHREADD and each.name.startswith(starts)
        ]
    return pids
