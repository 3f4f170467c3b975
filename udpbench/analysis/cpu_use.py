"""Who used the CPUs of the load besides it: other programs, the run's own processes, a hypervisor.

Owns whose CPU time is whose; ``checks.cpu_checks`` owns the limits.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt

from udpbench.analysis.delta import Deltas
from udpbench.analysis.queue_counters import loaded_queues
from udpbench.analysis.rates import IDLE_TIMES, host_of
from udpbench.analysis.readings import Readings, known_sum
from udpbench.cpu_lists import format_cpu_list
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Process, Whose, WorkerStats
from udpbench.model.result import CpuLoad

TICK_NS = SECOND_NS // 100
"""/proc/stat counts in units of USER_HZ, which is 100 on every architecture."""
INTERRUPT_TIMES = ("irq", "softirq")
USER_TIMES = ("user", "nice")
ERRORS = 3
"""Standard errors by which ticks may charge programs with more than they used."""
MOST_SETS = 64
"""Different sets of several CPUs of a machine's processes; further ones count as all CPUs."""
OURS = "udpbench"
"""Beginning of the names of our processes, of whichever run."""
OF_CPU = ": CPU "
"""Between a machine and one of its CPUs, in the place of a finding."""
NAPI_THREAD, OTHERS, OWN, KERNEL = "NAPI thread", "other programs", "udpbench", "wake-ups"
SEES_ALL = "kernel_threads"
"""The capability of an agent that sees every process: root's, in the first PID namespace."""


@dataclass(frozen=True)
class CpuGroup:
    """CPUs of one machine on which a part of the load runs: one, or all that it may use."""

    machine: str
    cpus: frozenset[int]

    @property
    def label(self) -> str:
        """Return the group as a reader knows it: ``right: CPU 2``."""
        numbers = format_cpu_list(sorted(self.cpus))
        return f"{self.machine}{OF_CPU if len(self.cpus) == 1 else ': CPUs '}{numbers}"


@dataclass(frozen=True)
class CpuUse:
    """CPU time of a group that was not the load's."""

    time_ns: int
    """Elapsed time of all its CPUs together."""
    elapsed_ns: int
    others_ns: int
    """Other programs', at least: what may have been the run's own is not included."""
    own_ns: int
    """The run's own processes', at most."""


# --- where the load runs -------------------------------------------------------------------------


def cpu_groups(readings: Readings) -> tuple[CpuGroup, ...]:
    """Return the CPUs of every worker, of RX queues with packets, and of NAPI threads, each once.

    A thread that is not pinned stands for all CPUs that it may use.
    """
    groups = {group for _, group in _load_cpus(readings)}
    return tuple(sorted(groups, key=lambda group: (group.machine, sorted(group.cpus))))


def _load_cpus(readings: Readings) -> Iterator[tuple[str, CpuGroup]]:
    """Yield host and CPUs of each worker, RX queue with packets and NAPI thread, if known."""
    for host, cpus in _all_load_cpus(readings):
        machine = readings.machine_of(host)
        if machine in readings.deltas and cpus:
            yield host, CpuGroup(machine, cpus)


def _all_load_cpus(readings: Readings) -> Iterator[tuple[str, frozenset[int]]]:
    for stats in readings.phase.stats:
        yield host_of(stats.worker), _worker_cpus(readings, stats)
    for host, _, cpus in loaded_queues(readings):
        yield host, frozenset(cpus)
    for host, after in readings.phase.after.items():
        for process in after.processes:
            # Less than a tick is no load: an ARP frame wakes a thread, too.
            if process.whose == "interface" and process.cpu_ns >= TICK_NS:
                yield host, frozenset(process.cpus) or readings.cpus_of_hosts.get(host, frozenset())


def _worker_cpus(readings: Readings, stats: WorkerStats) -> frozenset[int]:
    """Return the CPUs that a worker is pinned to, or all of its host."""
    host = host_of(stats.worker)
    return readings.pinned(stats) or readings.cpus_of_hosts.get(host, frozenset())


def cpu_loads(readings: Readings) -> tuple[CpuLoad, ...]:
    """Return how busy each CPU of the load was, and what used it; ticks of others are not told."""
    serving = {group for host, group in _load_cpus(readings) if host not in readings.sender.hosts}
    receiving = {(group.machine, cpu) for group in serving for cpu in group.cpus}
    pinned: dict[tuple[str, int | None], list[WorkerStats]] = defaultdict(list)
    for stats in readings.phase.stats:
        pinned[readings.machine_of(host_of(stats.worker)), stats.cpu].append(stats)
    loads = []
    for machine, cpu in sorted({(g.machine, cpu) for g in cpu_groups(readings) for cpu in g.cpus}):
        delta = readings.deltas[machine]
        idle_ns = _spent_ns(delta, (cpu,), (*IDLE_TIMES, "steal"))
        if idle_ns is None or delta.elapsed_ns <= 0:
            continue
        busy = min(max(1 - idle_ns / delta.elapsed_ns, 0.0), 1.0)
        softirq = (_spent_ns(delta, (cpu,), ("softirq",)) or 0) / delta.elapsed_ns
        users = {stats.worker: _spent_by(stats) for stats in pinned.get((machine, cpu), ())}
        users[NAPI_THREAD] = napi_alone_ns(readings, machine, cpu)
        uses = {name: ns / delta.elapsed_ns for name, ns in users.items() if ns}
        uses |= {"softirq": softirq} if softirq else {}
        group = CpuGroup(machine, frozenset({cpu}))
        use, stolen = cpu_use(readings, group), stolen_ns(readings, group)[0] or 0
        beside = ((OTHERS, use.others_ns), (OWN, use.own_ns)) if use is not None else ()
        for name, ns in beside:
            uses[name] = min(ns / delta.elapsed_ns, max(busy - sum(uses.values()), 0.0))
        uses[KERNEL] = max(busy - sum(uses.values()), 0.0)
        received = (machine, cpu) in receiving
        taken = uses.get(OTHERS, 0.0) + stolen / delta.elapsed_ns
        loads.append(CpuLoad(machine, cpu, busy, received, uses, taken))
    return tuple(loads)


def napi_alone_ns(readings: Readings, machine: str, cpu: int) -> int:
    """Return the time of NAPI threads that may run on a CPU alone."""
    share = _times(readings, machine).shares.get(("interface", frozenset({cpu})))
    return share.cpu_ns if share is not None else 0


def napi_waits_ns(readings: Readings, machine: str, cpu: int) -> int:
    """Return the time for which NAPI threads of a CPU waited for it; 0 if that is not counted."""
    share = _times(readings, machine).shares.get(("interface", frozenset({cpu})))
    return share.runnable_ns if share is not None else 0


def machine_cpus(readings: Readings, machine: str) -> frozenset[int]:
    """Return the CPUs of a machine's hosts."""
    hosts = readings.cpus_of_hosts.items()
    return frozenset().union(
        *(cpus for host, cpus in hosts if readings.machine_of(host) == machine)
    )


@lru_cache(maxsize=4)  # each CPU that others used asks for it
def has_spare_cpu(readings: Readings, machine: str) -> bool:
    """Return whether a machine has a CPU on which nothing of the load may run."""
    of_load = (group.cpus for group in cpu_groups(readings) if group.machine == machine)
    return bool(machine_cpus(readings, machine).difference(*of_load))


@lru_cache(maxsize=4)  # each thread that is not pinned asks for it
def others_anywhere(readings: Readings, machine: str) -> float:
    """Return how many CPUs of a machine other programs used, at least."""
    group = CpuGroup(machine, machine_cpus(readings, machine))
    use = cpu_use(readings, group) if group.cpus else None
    return use.others_ns / use.elapsed_ns if use is not None else 0.0


# --- whose time it was ---------------------------------------------------------------------------


def stolen_ns(readings: Readings, group: CpuGroup) -> tuple[int | None, int]:
    """Return the steal time of a group, None where it is not counted, and the time elapsed."""
    delta = readings.deltas[group.machine]
    return _spent_ns(delta, group.cpus, ("steal",)), delta.elapsed_ns


def cpu_use(readings: Readings, group: CpuGroup) -> CpuUse | None:
    """Return the CPU time of a group that was not the load's; None if it was not read.

    Busy is all that was not idle, because the kernel keeps idle time exactly but charges whole
    ticks to the process that happens to run. Interrupts count as load: no counter says which
    interface they serve. A process that may also run elsewhere may have used all its time here.
    """
    delta, times = readings.deltas[group.machine], _times(readings, group.machine)
    idle_ns = _spent_ns(delta, group.cpus, IDLE_TIMES)
    if idle_ns is None or delta.elapsed_ns <= 0 or not times.has_processes:
        return None
    time_ns = delta.elapsed_ns * len(group.cpus)
    not_processes_ns = _spent_ns(delta, group.cpus, (*INTERRUPT_TIMES, "steal")) or 0
    busy_ns = time_ns - idle_ns - not_processes_ns
    may_ns, within_ns, uncounted_ns = Counter[str](), Counter[str](), 0
    for whose, cpus, share in times.of(group.cpus):
        may_ns[whose] += share.cpu_ns
        if cpus <= group.cpus:
            within_ns[whose] += share.cpu_ns
        if whose == "run":
            uncounted_ns += share.uncounted_ns
    perhaps_here_ns = may_ns[WORKING] - within_ns[WORKING]
    elsewhere_ns = max(times.total_ns["worker"] - times.total_ns[WORKING] + perhaps_here_ns, 0)
    rest_ns = max(busy_ns - within_ns[WORKING] - within_ns["interface"], 0)
    own_ns = uncounted_ns + sum(times.own_ns[cpu] for cpu in group.cpus)
    perhaps_ns = own_ns + elsewhere_ns + may_ns["interface"] - within_ns["interface"]
    most_ns = may_ns["other"] + times.ended_ns if times.sees_all else sys.maxsize
    if times.sees_all:
        user_ns = _spent_ns(delta, group.cpus, USER_TIMES) or 0
        known_ns = times.user_ns(group.cpus) + perhaps_ns + most_ns
        most_ns += max(user_ns - known_ns - round(ERRORS * sqrt(user_ns * TICK_NS)), 0)
    surely_ns = min(within_ns["other"], rest_ns)
    others_ns = max(surely_ns, min(rest_ns - perhaps_ns, most_ns))
    return CpuUse(time_ns, delta.elapsed_ns, others_ns, min(own_ns, rest_ns - others_ns))


WORKING = "thread of a worker"
"""Whose time of threads it is that our loops counted; it is part of that of their processes."""


@dataclass
class _Share:
    """Times of all that is the same one's and may run on the same CPUs."""

    cpu_ns: int = 0
    user_ns: int = 0
    """What threads of workers used of it outside of the kernel."""
    uncounted_ns: int = 0
    """What of the run's processes is not known by CPU."""
    runnable_ns: int = 0
    """For how long an interface's threads waited for a CPU."""
    most: tuple[int, str] = (0, "")
    """The longest time of a process, or of its children, and which it was."""


@dataclass
class _Times:
    """The times of a machine's processes, summed up once for all of its CPUs.

    Each CPU with each process took minutes where a host has thousands of both.
    """

    shares: dict[tuple[str, frozenset[int]], _Share] = field(default_factory=dict)
    on_cpu: dict[int, list[tuple[str, frozenset[int]]]] = field(default_factory=dict)
    """CPU → the keys of what may run there."""
    total_ns: Counter[str] = field(default_factory=Counter)
    own_ns: Counter[int] = field(default_factory=Counter)
    """CPU → what the run's processes used there, where that is counted."""
    has_processes: bool = False
    sees_all: bool = False
    """An agent sees every process. What is left is the kernel's then: entering and leaving idle,
    and interrupts that woke a CPU, are charged to no process. On a virtual machine it was 11 % of
    the CPU of a reader that was woken 29,000 times a second. But none of it is a program's own
    code: that is of children whose parent ignores SIGCHLD, whose times the kernel drops."""
    ended_ns: int = 0
    """What children of other programs used that have ended."""

    def add(self, whose: str, cpus: frozenset[int], spent_ns: int) -> _Share:
        """Add a time; return what it is part of."""
        share = self.shares.get((whose, cpus))
        if share is None:
            share = self.shares[whose, cpus] = _Share()
            for cpu in cpus:
                self.on_cpu.setdefault(cpu, []).append((whose, cpus))
        share.cpu_ns += spent_ns
        self.total_ns[whose] += spent_ns
        return share

    def user_ns(self, cpus: frozenset[int]) -> int:
        """Return what workers' threads that may run on CPUs used outside of the kernel."""
        return sum(share.user_ns for _, _, share in self.of(cpus))

    def of(self, cpus: frozenset[int]) -> Iterator[tuple[str, frozenset[int], _Share]]:
        """Yield what may run on any of the CPUs, each once."""
        lists = [self.on_cpu.get(cpu, ()) for cpu in cpus]
        for key in lists[0] if len(lists) == 1 else {key for keys in lists for key in keys}:
            yield *key, self.shares[key]


@lru_cache(maxsize=4)  # all checks of a phase ask for the same few
def _times(readings: Readings, machine: str) -> _Times:
    """Return the times of a machine's processes; one that any agent knows as the run's is that.

    Without ksoftirqd, whose time is counted with interrupts.
    """
    times, by_pid = _Times(), dict[int, Process]()
    for host, after in readings.phase.after.items():
        if readings.machine_of(host) == machine:
            for process in after.processes:
                if process.whose != "other" or process.pid not in by_pid:
                    by_pid[process.pid] = process
    of_machine = (
        own
        for own in map(readings.record.facts.get, readings.phase.after)
        if own is not None and readings.machine_of(own.host) == machine
    )
    times.sees_all = any(own.capabilities.get(SEES_ALL) for own in of_machine)
    numbered = readings.deltas[machine].numbered("cpu")
    every = frozenset(cpu for cpu, counted in numbered.items() if "idle_ns" in counted)
    several: set[frozenset[int]] = set()
    for process in by_pid.values():
        if process.name.startswith("ksoftirqd/"):
            continue
        times.has_processes = True
        cpus = frozenset(process.cpus) or every
        if len(cpus) > 1 and cpus not in several:
            if len(several) < MOST_SETS:
                several.add(cpus)
            else:
                cpus = every
        share = times.add(process.whose, cpus, process.cpu_ns)
        share.runnable_ns += process.runnable_ns or 0
        called = f"{process.name} (pid {process.pid})" if process.pid else process.name
        if process.whose == "other" and process.name.startswith(OURS):
            called = f"another {called}"  # a reader would take it for this run's
        children = process.children_cpu_ns, f"most by children of {called}"
        share.most = max(share.most, (process.cpu_ns, f"most by {called}"), children)
        if process.whose == "other":
            times.ended_ns += process.children_cpu_ns
        elif process.whose == "run":
            counted_ns = {int(cpu): ns for cpu, ns in process.by_cpu_ns.items()}
            times.own_ns.update(counted_ns)
            share.uncounted_ns += max(process.cpu_ns - sum(counted_ns.values()), 0)
    for stats in readings.phase.stats:
        if readings.machine_of(host_of(stats.worker)) == machine:
            share = times.add(WORKING, _worker_cpus(readings, stats) or every, _spent_by(stats))
            share.user_ns += stats.counts.get("user_ns", 0)
    return times


def _spent_by(stats: WorkerStats) -> int:
    return stats.counts.get("user_ns", 0) + stats.counts.get("system_ns", 0)


def main_user(readings: Readings, group: CpuGroup, whose: Whose, used_ns: int) -> str:
    """Return the process that used most of a time, preferably one that can run nowhere else."""
    users = [
        (min(share.most[0], used_ns), -len(cpus), *share.most)
        for known, cpus, share in _times(readings, group.machine).of(group.cpus)
        if known == whose and share.most[0] >= TICK_NS
    ]
    return max(users)[-1] if users else ""


def _spent_ns(delta: Deltas, cpus: Iterable[int], times: Iterable[str]) -> int | None:
    """Return the sum of some columns of /proc/stat over some CPUs; None where none is known."""
    return known_sum(delta.total(f"cpu.{cpu}.{time}_ns") for time in times for cpu in cpus)
