"""Who used the CPUs of the load besides it: other programs, the run's own processes, a hypervisor.

Owns whose CPU time is whose; ``checks.cpu_checks`` owns the limits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from udpbench.analysis.delta import Deltas
from udpbench.analysis.queue_counters import by_receiver
from udpbench.analysis.rates import IDLE_TIMES, host_of
from udpbench.analysis.readings import Readings, known_sum
from udpbench.cpu_lists import format_cpu_list
from udpbench.model import SECOND_NS, CpuLoad, Process, Whose, WorkerStats

TICK_NS = SECOND_NS // 100
"""/proc/stat counts in units of USER_HZ, which is 100 on every architecture."""
INTERRUPT_TIMES = ("irq", "softirq")
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
        return f"{self.machine}: {'CPU' if len(self.cpus) == 1 else 'CPUs'} {numbers}"


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
    groups = {
        CpuGroup(machine, frozenset(cpus))
        for host, cpus in _load_cpus(readings)
        if (machine := readings.machine_of(host)) in readings.deltas and cpus
    }
    return tuple(sorted(groups, key=lambda group: (group.machine, sorted(group.cpus))))


def _load_cpus(readings: Readings) -> Iterator[tuple[str, Iterable[int]]]:
    """Yield host and CPUs of each worker, RX queue with packets and NAPI thread."""
    for stats in readings.phase.stats:
        yield host_of(stats.worker), _worker_cpus(readings, stats)
    packets = by_receiver(readings)
    for host in readings.roles.receivers:
        facts = readings.record.facts.get(host)
        for queue, cpus in facts.queue_cpus.items() if facts is not None else ():
            if packets.get(host, {}).get(int(queue), 1):
                yield host, cpus
    for host, after in readings.phase.after.items():
        for process in after.processes:
            # Less than a tick is no load: an ARP frame wakes a thread, too.
            if process.whose == "interface" and process.cpu_ns >= TICK_NS:
                yield host, process.cpus or _host_cpus(readings, host)


def _host_cpus(readings: Readings, host: str) -> tuple[int, ...]:
    facts = readings.record.facts.get(host)
    return facts.cpus if facts is not None else ()


def _worker_cpus(readings: Readings, stats: WorkerStats) -> tuple[int, ...]:
    """Return the CPUs that a worker is pinned to, or all of its host."""
    return readings.pinned(stats) or _host_cpus(readings, host_of(stats.worker))


def cpu_loads(readings: Readings) -> tuple[CpuLoad, ...]:
    """Return how busy each CPU of the load was, and what used it; ticks of others are not told."""
    receiving = {
        (readings.machine_of(host), cpu)
        for host, cpus in _load_cpus(readings)
        if host not in readings.roles.senders
        for cpu in cpus
    }
    loads = []
    for machine, cpu in sorted({(g.machine, cpu) for g in cpu_groups(readings) for cpu in g.cpus}):
        delta = readings.deltas[machine]
        idle_ns = _spent_ns(delta, (cpu,), (*IDLE_TIMES, "steal"))
        if idle_ns is None or delta.elapsed_ns <= 0:
            continue
        busy = min(max(1 - idle_ns / delta.elapsed_ns, 0.0), 1.0)
        softirq = (_spent_ns(delta, (cpu,), ("softirq",)) or 0) / delta.elapsed_ns
        uses = {name: ns / delta.elapsed_ns for name, ns in _users(readings, machine, cpu) if ns}
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


def _users(readings: Readings, machine: str, cpu: int) -> Iterator[tuple[str, int]]:
    """Yield each worker on a CPU, and the NAPI threads there, with its time."""
    for stats in readings.phase.stats:
        if stats.cpu == cpu and readings.machine_of(host_of(stats.worker)) == machine:
            yield stats.worker, stats.counts.get("user_ns", 0) + stats.counts.get("system_ns", 0)
    napi = [
        p for p in processes_of(readings, machine) if p.whose == "interface" and p.cpus == (cpu,)
    ]
    yield NAPI_THREAD, sum(process.cpu_ns for process in napi)


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
    delta, processes = readings.deltas[group.machine], processes_of(readings, group.machine)
    idle_ns = _spent_ns(delta, group.cpus, IDLE_TIMES)
    if idle_ns is None or delta.elapsed_ns <= 0 or not processes:
        return None
    time_ns = delta.elapsed_ns * len(group.cpus)
    not_processes_ns = _spent_ns(delta, group.cpus, (*INTERRUPT_TIMES, "steal")) or 0
    busy_ns = time_ns - idle_ns - not_processes_ns
    workers_ns, elsewhere_ns = _worker_times(readings, group, processes)
    napi_here_ns = _process_time(group, processes, "interface", within=True)
    napi_ns = _process_time(group, processes, "interface", within=False)
    rest_ns = max(busy_ns - workers_ns - napi_here_ns, 0)
    own_ns = sum(_time_here(process, group) for process in processes if process.whose == "run")
    perhaps_ns = own_ns + elsewhere_ns + napi_ns - napi_here_ns
    surely_ns = min(_process_time(group, processes, "other", within=True), rest_ns)
    others_ns = max(
        surely_ns, min(rest_ns - perhaps_ns, _most_by_others(readings, group, processes))
    )
    return CpuUse(time_ns, delta.elapsed_ns, others_ns, min(own_ns, rest_ns - others_ns))


def _most_by_others(readings: Readings, group: CpuGroup, processes: Sequence[Process]) -> int:
    """Return the most that other programs may have used on a group.

    Without limit unless an agent sees every process. What is left is the kernel's: entering and
    leaving idle, and interrupts that woke a CPU, are charged to no process. On a virtual machine
    it was 11 % of the CPU of a reader that was woken 29,000 times a second.
    """
    facts = (readings.record.facts.get(host) for host in readings.phase.after)
    seeing = (
        readings.machine_of(own.host) == group.machine and own.capabilities.get(SEES_ALL)
        for own in facts
        if own is not None
    )
    if not any(seeing):
        return sys.maxsize
    others = [process for process in processes if process.whose == "other"]
    ended_ns = sum(process.children_cpu_ns for process in others)
    return _process_time(group, others, "other", within=False) + ended_ns


def _worker_times(readings: Readings, group: CpuGroup, processes: list[Process]) -> tuple[int, int]:
    """Return the time of workers that ran here, and what their processes may have used here."""
    here_ns = 0
    rest_ns = sum(process.cpu_ns for process in processes if process.whose == "worker")
    for stats in readings.phase.stats:
        if readings.machine_of(host_of(stats.worker)) != group.machine:
            continue
        spent_ns = stats.counts.get("user_ns", 0) + stats.counts.get("system_ns", 0)
        cpus = set(_worker_cpus(readings, stats))
        if cpus <= group.cpus:
            here_ns += spent_ns
        if cpus <= group.cpus or not cpus & group.cpus:
            rest_ns -= spent_ns
    return here_ns, max(rest_ns, 0)


def processes_of(readings: Readings, machine: str) -> list[Process]:
    """Return every process of a machine once; one that any agent knows as the run's is the run's.

    Without ksoftirqd, whose time is counted with interrupts.
    """
    delta = readings.deltas[machine]
    every = tuple(int(name.split(".")[1]) for name in delta.matching("cpu.*.idle_ns"))
    by_pid: dict[int, Process] = {}
    for host, after in readings.phase.after.items():
        if readings.machine_of(host) == machine:
            for process in after.processes:
                if process.whose != "other" or process.pid not in by_pid:
                    by_pid[process.pid] = replace(process, cpus=process.cpus or every)
    return [process for process in by_pid.values() if not process.name.startswith("ksoftirqd/")]


def _may_run(process: Process, group: CpuGroup) -> bool:
    return bool(group.cpus & set(process.cpus))


def _process_time(
    group: CpuGroup, processes: Sequence[Process], whose: Whose, *, within: bool
) -> int:
    """Return the time of processes that may run on a group, or only ``within`` it."""
    return sum(
        process.cpu_ns
        for process in processes
        if process.whose == whose
        and _may_run(process, group)
        and (not within or set(process.cpus) <= group.cpus)
    )


def _time_here(process: Process, group: CpuGroup) -> int:
    """Return how long a process may have run on a group: by CPU where counted, else all of it."""
    counted = {int(cpu): ns for cpu, ns in process.by_cpu_ns.items()}
    here_ns = sum(ns for cpu, ns in counted.items() if cpu in group.cpus)
    uncounted_ns = max(process.cpu_ns - sum(counted.values()), 0)
    return here_ns + (uncounted_ns if _may_run(process, group) else 0)


def main_user(readings: Readings, group: CpuGroup, whose: Whose, used_ns: int) -> str:
    """Return the process that used most of a time, preferably one that can run nowhere else."""
    users = [
        (min(ns, used_ns), -len(process.cpus), text)
        for process in processes_of(readings, group.machine)
        if process.whose == whose and _may_run(process, group)
        for ns, text in (
            (process.cpu_ns, f"most by {process.name} (pid {process.pid})"),
            (process.children_cpu_ns, f"most by children of {process.name} (pid {process.pid})"),
        )
        if ns >= TICK_NS
    ]
    return max(users)[2] if users else ""


def _spent_ns(delta: Deltas, cpus: Iterable[int], times: Iterable[str]) -> int | None:
    """Return the sum of some columns of /proc/stat over some CPUs; None where none is known."""
    return known_sum(delta.total(f"cpu.{cpu}.{time}_ns") for time in times for cpu in cpus)
