"""The ledger of CPU time: every nanosecond of the load's CPUs at a stage of the packets' way.

Owns at which stage a sample is and whether a CPU's times add up; ``cpu_stages`` says which stage a
function belongs to, ``cpu_owners`` whose time it is. What balances is compared before anything is
scaled, and a CPU that does not is struck.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

from udpbench.analysis.cpu_owners import RECEIVER, SENDER, owners_of, packets_of
from udpbench.analysis.cpu_use import TICK_NS, cpu_groups
from udpbench.analysis.delta import Deltas
from udpbench.analysis.rates import IDLE_TIMES, host_of
from udpbench.analysis.readings import Readings
from udpbench.cpu_stages import (
    BRIDGED,
    FORWARDING,
    IDLE,
    INTERRUPT,
    PROGRAM,
    STAGES,
    UNATTRIBUTED,
    anchor_of,
    stage_below,
)
from udpbench.model.limits import LEDGER_STAGES, stage_of
from udpbench.model.record import CpuSamples
from udpbench.model.result import CpuBalance, CpuEntry, CpuTime, Ledger, StageCost
from udpbench.units import show_percent

WITHIN, ERRORS = 0.03, 3
"""Part of the busy time, and standard errors, by which samples and the kernel may differ."""
MOST_UNATTRIBUTED = 0.02
"""Part of the busy time."""
EDGES = 3
"""Samples that may be missing at the edges of a phase: one of each timer (agent's cpu_sampler)."""
Z = 1.96
"""Standard errors to each side of a 95 % interval."""
PASSED = ("tx_", "rx_", FORWARDING[:3])
"""How packets' stages begin."""
LEAST_SHARE = 0.01
"""Part of its time at packets' stages, from which on a CPU is one of the load."""
DEEPEST = 127
"""Functions of a chain: as many as the kernel gives (kernel.perf_event_max_stack)."""
USER_KIND, OTHER_KIND = "user", "other"
HYPERVISOR = "hypervisor"
FEW = 0.01
"""Part of an end's busy time, below which other programs are not told apart."""
OTHERS = "[other programs]"
ENTERS = {
    **dict.fromkeys(("tx_application", "tx_syscall", "tx_udp", "tx_copy", "tx_ip"), "tx_policy"),
    **dict.fromkeys(("tx_netfilter", "tx_conntrack"), "tx_netfilter"),
    **dict.fromkeys(("tx_tc", "tx_qdisc"), "tx_qdisc"),
    **dict.fromkeys(("tx_xsk", "tx_device"), "tx_device"),
    "bridge": "link",
    "fwd_ip": "fwd_mtu",
    **dict.fromkeys(("fwd_netfilter", "fwd_conntrack"), "fwd_netfilter"),
    **dict.fromkeys(("fwd_tc", "fwd_qdisc"), "fwd_qdisc"),
    "fwd_device": "fwd_device",
    **dict.fromkeys(("rx_poll", "rx_xdp"), "rx_xdp"),
    **dict.fromkeys(("rx_gro", "rx_core", "rx_backlog"), "rx_backlog"),
    "rx_tc": "rx_tc",
    "rx_ip": "rx_ip",
    **dict.fromkeys(("rx_netfilter", "rx_conntrack"), "rx_netfilter"),
    "rx_udp": "udp_checksum",
    **dict.fromkeys(("rx_wakeup", "rx_syscall", "rx_read", "rx_copy"), "app_truncated"),
    "rx_application": "app_truncated",
}
"""Stage → the ledger's, before which packets must not have ended to come to it."""
_NUMBERED = re.compile(r"(?<=kworker/).*|(?<=[a-z]/)[0-9:]+.*")
"""What tells kernel threads of one name apart."""


@dataclass(frozen=True)
class _Node:
    """What is known of a function and all that called it."""

    stage: str | None
    kind: str | None
    interrupt: bool
    """Its time belongs to no task."""


def cpu_time_of(readings: Readings, ledger: Ledger | None) -> CpuTime | None:
    """Return where the CPU time went; None if nothing was sampled."""
    clocks = {each.clock for each in readings.phase.cpu_samples.values() if each.clock}
    if not clocks:
        return None
    entries, balances = balanced(readings)
    costs = _costs(readings, ledger, entries, balances)
    return CpuTime(" and ".join(sorted(clocks)), costs, entries, balances)


@lru_cache(maxsize=4)  # a check asks for them, too
def balanced(readings: Readings) -> tuple[tuple[CpuEntry, ...], tuple[CpuBalance, ...]]:
    """Return the entries of the load's CPUs, and whether these add up."""
    entries: list[CpuEntry] = []
    balances: list[CpuBalance] = []
    for machine, samples in readings.phase.cpu_samples.items():
        for balance, own in _of_machine(readings, machine, samples):
            balances.append(balance)
            entries += own
    return tuple(entries), tuple(balances)


# --- whose a sample is ---------------------------------------------------------------------------


def _nodes(samples: CpuSamples) -> list[_Node]:
    """Return what each node of the tree is; a caller that is not before it counts as none."""
    nodes: list[_Node] = []
    shared: dict[_Node, _Node] = {}
    nowhere = _Node(None, None, False)
    for place, (caller, called) in enumerate(zip(samples.callers, samples.called, strict=False)):
        above = nodes[caller] if 0 <= caller < place else nowhere
        name = samples.functions[called] if called < len(samples.functions) else ""
        anchor = anchor_of(name)
        kind = "bpf" if name.startswith(PROGRAM) else anchor.kind if anchor is not None else None
        interrupt = above.interrupt or kind == INTERRUPT
        node = _Node(stage_below(name, above.stage), kind or above.kind, interrupt)
        nodes.append(shared.setdefault(node, node))  # a record may have many of the same
    return nodes


def _roles(readings: Readings, machine: str) -> tuple[dict[int, str], set[int]]:
    """Return process → the side whose packets it works on, and the run's own processes."""
    sides: dict[int, str] = {}
    own: set[int] = set()
    for host, after in readings.phase.after.items():
        if readings.machine_of(host) != machine:
            continue
        side = "tx" if host in readings.sender.hosts else "rx"
        for process in after.processes:
            if process.whose == "run":
                own.add(process.pid)
            elif process.whose == "worker":
                sides[process.pid] = side
            elif process.whose == "interface":
                sides.setdefault(process.pid, "rx")
    for stats in readings.phase.stats:
        if stats.pid is not None and readings.machine_of(host_of(stats.worker)) == machine:
            sides[stats.pid] = "tx" if stats.role == "sender" else "rx"
    return sides, own - sides.keys()


def _attributed(
    readings: Readings, machine: str, samples: CpuSamples
) -> dict[int, dict[tuple[str, str], list[int]]]:
    """Return CPU → stage and kind → samples and their time."""
    times: dict[int, dict[tuple[str, str], list[int]]] = defaultdict(dict)
    for row, stage, kind in _rows(readings, machine, samples):
        counted = times[row.cpu].setdefault((stage, kind), [0, 0])
        counted[0] += row.samples
        counted[1] += row.time_ns
    return times


class _Row(NamedTuple):
    """A row of a machine's samples."""

    cpu: int
    pid: int
    node: int
    samples: int
    time_ns: int


def _rows(readings: Readings, machine: str, samples: CpuSamples) -> Iterator[tuple[_Row, str, str]]:
    """Yield each row of a machine's samples, its stage and its kind."""
    nodes, (sides, own) = _nodes(samples), _roles(readings, machine)
    columns = (
        *(samples.sampled_cpus, samples.sampled_pids, samples.sampled_nodes),
        *(samples.sampled_counts, samples.sampled_ns),
    )
    for row in map(_Row._make, zip(*columns, strict=False)):
        node = nodes[row.node] if 0 <= row.node < len(nodes) else None
        program = samples.programs.get(str(row.pid), "")
        side = sides.get(row.pid) or ("rx" if program.startswith("ksoftirqd/") else "")
        stage = _stage_of(node, row.pid, side, row.pid in own, program)
        yield row, stage, USER_KIND if node is None else node.kind or OTHER_KIND


def _stage_of(node: _Node | None, pid: int, side: str, own: bool, program: str) -> str:
    """Return the stage of a sample; soft interrupts are by their chain, whatever they interrupted.

    ``side``: of the task's packets; empty of a task that has none.
    """
    stage = node.stage if node is not None else "?_application"
    whole = stage is not None and stage[0] != "?"
    if node is not None and node.interrupt and whole:
        return stage or UNATTRIBUTED
    if own:
        return "own"
    if pid and not side:
        return f"[{_NUMBERED.sub('', program).rstrip('/') or 'ended'}]"
    if stage is None:
        return UNATTRIBUTED
    if whole:
        return stage
    if side:
        return side + stage[1:]
    return "schedule" if stage == "?_schedule" else UNATTRIBUTED


Stack = tuple[str, ...]
"""Who has the time, stage, and functions, the innermost last."""


def stacks(readings: Readings) -> dict[Stack, int]:
    """Return the sampled time of the load's CPUs by whose, stage and whole chain of functions.

    In ns, without idle time.
    """
    _, balances = balanced(readings)
    load, owners = {(each.machine, each.cpu) for each in balances}, owners_of(readings)
    times: Counter[Stack] = Counter()
    for machine, samples in readings.phase.cpu_samples.items():
        for row, stage, _ in _rows(readings, machine, samples):
            if (machine, row.cpu) in load and stage != IDLE:
                end = owners.of(machine, row.cpu, stage)
                times[(end, _shown(stage), *_chain(samples, row.node))] += row.time_ns
    return times


def _chain(samples: CpuSamples, node: int) -> list[str]:
    """Return the functions of a node, the innermost last."""
    names: list[str] = []
    nodes = min(len(samples.callers), len(samples.called))
    while 0 <= node < nodes and len(names) < DEEPEST:
        called = samples.called[node]
        names.append(samples.functions[called] if called < len(samples.functions) else "?")
        node = samples.callers[node] if samples.callers[node] < node else -1
    return names[::-1] or ["(user)"]


# --- one CPU -------------------------------------------------------------------------------------


def _of_machine(
    readings: Readings, machine: str, samples: CpuSamples
) -> Iterator[tuple[CpuBalance, list[CpuEntry]]]:
    """Yield the balance and the entries of each CPU of the load.

    A machine that several hosts see has sampled its CPUs for each of them: once counts.
    """
    delta = readings.deltas.get(machine)
    if delta is None or delta.elapsed_ns <= 0 or readings.machine_of(machine) != machine:
        return
    load = {(g.machine, cpu) for g in cpu_groups(readings) for cpu in g.cpus}
    owners = owners_of(readings)
    for cpu, times in sorted(_attributed(readings, machine, samples).items()):
        at_stages = sum(ns for (stage, _), (_, ns) in times.items() if stage[:3] in PASSED)
        if (machine, cpu) not in load and at_stages < LEAST_SHARE * delta.elapsed_ns:
            continue
        balance, missing = _balance(delta, cpu, times, samples)
        entries = [
            CpuEntry(
                *(machine, cpu, owners.of(machine, cpu, stage), _shown(stage)),
                *(kind, count, ns, float(ns)),
            )
            for (stage, kind), (count, ns) in (*times.items(), *missing.items())
            if stage != IDLE and ns
        ]
        yield balance, _scaled(entries, balance, _steal_ns(delta, cpu))


def _shown(stage: str) -> str:
    """Return the name of a stage, which a bridge has on whichever way."""
    return "bridge" if stage == BRIDGED else stage


def _scaled(entries: list[CpuEntry], balance: CpuBalance, steal_ns: int) -> list[CpuEntry]:
    """Return entries that add up to the busy time that the kernel counted, steal as it counted."""
    stolen = [each for each in entries if each.stage == HYPERVISOR]
    others = [each for each in entries if each.stage != HYPERVISOR]
    sampled_ns = sum(each.sampled_ns for each in others)
    scale = max(balance.busy_ns - steal_ns, 0) / sampled_ns if sampled_ns else 0.0
    if steal_ns and not stolen:
        plain = CpuEntry(balance.machine, balance.cpu, RECEIVER, HYPERVISOR, HYPERVISOR, 0, 0, 0)
        stolen = [replace(plain, end=others[0].end)] if others else [plain]
    whole = [replace(each, time_ns=float(steal_ns)) for each in stolen]
    return [*(replace(each, time_ns=each.sampled_ns * scale) for each in others), *whole]


def _steal_ns(delta: Deltas, cpu: int) -> int:
    return delta.values.get(f"cpu.{cpu}.steal_ns") or 0


def _balance(
    delta: Deltas, cpu: int, times: Mapping[tuple[str, str], list[int]], samples: CpuSamples
) -> tuple[CpuBalance, dict[tuple[str, str], list[int]]]:
    """Return a CPU's balance, and the samples that were not taken.

    They are the hypervisor's as far as it took the time, else nobody's. But where a CPU gave no
    sample while it was idle, its timer slept with it, and what was not sampled is idle time.
    """
    wall_ns, period_ns = delta.elapsed_ns, max(samples.period_ns, 1)
    counted = [delta.values.get(f"cpu.{cpu}.{time}_ns") for time in IDLE_TIMES]
    idle_ns = min(sum(ns or 0 for ns in counted), wall_ns)
    sampled: Counter[str] = Counter()
    for (stage, _), (_, ns) in times.items():
        sampled[stage] += ns
    missing_ns = wall_ns - sum(sampled.values())
    missing_ns = missing_ns if missing_ns > EDGES * period_ns else 0
    taken_ns = min(_steal_ns(delta, cpu), missing_ns)
    asleep = not sampled[IDLE] and not samples.lost_samples.get(str(cpu))
    if asleep:
        sampled[IDLE] = missing_ns - taken_ns
        missing_ns = taken_ns
    missing = {
        (stage, stage): [ns // period_ns, ns]
        for stage, ns in ((HYPERVISOR, taken_ns), (UNATTRIBUTED, missing_ns - taken_ns))
    }
    unattributed_ns = sampled[UNATTRIBUTED] + missing_ns - taken_ns
    balance = CpuBalance(
        *(delta.host, cpu, wall_ns, idle_ns, sampled[IDLE], unattributed_ns),
        WITHIN * (wall_ns - idle_ns) + ERRORS * _error_ns(sampled[IDLE], wall_ns, samples),
    )
    struck = _struck(balance, counted[0] is not None, asleep, EDGES * period_ns)
    unsampled_ns = missing_ns - taken_ns
    if struck and unsampled_ns > balance.allowed_ns:
        share = show_percent(unsampled_ns / wall_ns)
        struck += f"; no sample in {share} of the time: it was offline, or its timers were late"
    return replace(balance, struck=struck), missing


def _struck(balance: CpuBalance, known: bool, asleep: bool, least_ns: int) -> str:
    """Return why the numbers of a CPU do not hold; empty if they do."""
    sampled_ns, busy_ns = balance.sampled_busy_ns, balance.busy_ns
    if not known:
        return "its idle time was not read"
    if abs(sampled_ns - busy_ns) > balance.allowed_ns:
        shares = (show_percent(ns / balance.wall_ns) for ns in (sampled_ns, busy_ns))
        why = ": none was taken in its idle task, whose interrupts and wake-ups are busy time"
        hidden = asleep and sampled_ns < busy_ns
        return "samples say {} busy, the kernel {}".format(*shares) + why * hidden
    if balance.unattributed_ns > MOST_UNATTRIBUTED * sampled_ns + least_ns:
        share = show_percent(balance.unattributed_ns / sampled_ns)
        return f"{share} of its busy time is unattributed"
    return ""


def _error_ns(idle_ns: int, wall_ns: int, samples: CpuSamples) -> float:
    """Return the standard error of the difference of both clocks of idle time."""
    share = min(max(idle_ns / wall_ns, 0.0), 1.0)
    spread = share * (1 - share)
    sampled = samples.period_ns * sqrt(wall_ns / max(samples.period_ns, 1) * spread)
    # Two readings in ticks of nanoseconds, or a tick that is charged as a whole.
    kernel = TICK_NS / sqrt(6)
    if not samples.exact_idle:
        kernel += TICK_NS * sqrt(wall_ns / TICK_NS * spread)
    return sqrt(sampled**2 + kernel**2)


def costs_of_cpu(readings: Readings, ledger: Ledger, machine: str, cpu: int) -> dict[str, float]:
    """Return stage → ns of one CPU per packet of its end, most first; empty if it is not known.

    What other programs took is no cost of a packet. A stage of a node in the middle has its name,
    unless the CPU is that node's.
    """
    entries, balances = balanced(readings)
    if not any((b.machine, b.cpu, b.struck) == (machine, cpu, "") for b in balances):
        return {}
    packets = packets_of(readings, ledger)
    plain = SENDER, RECEIVER, owners_of(readings).of(machine, cpu, "")
    costs: dict[str, float] = defaultdict(float)
    for entry in entries:
        here = (entry.machine, entry.cpu) == (machine, cpu)
        divided = packets.get(entry.end)
        if here and entry.stage in STAGES and divided:
            stage = entry.stage if entry.end in plain else f"{entry.end}.{entry.stage}"
            costs[stage] += entry.time_ns / divided
    return dict(sorted(costs.items(), key=lambda cost: -cost[1]))


# --- per packet ----------------------------------------------------------------------------------


def _costs(
    readings: Readings,
    ledger: Ledger | None,
    entries: tuple[CpuEntry, ...],
    balances: tuple[CpuBalance, ...],
) -> tuple[StageCost, ...]:
    """Return what each stage costs a packet of each end and node, in the packets' order."""
    packets = packets_of(readings, ledger)
    struck = {(each.machine, each.cpu) for each in balances if each.struck}
    period_ns = next((e.sampled_ns / e.samples for e in entries if e.samples), 0.0)
    entering, costs = _entering(readings, ledger), []
    ends_of: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        ends_of[entry.stage].add(entry.end)
    for end, divided in packets.items():
        mine = [entry for entry in entries if entry.end == end]
        cpus = {(entry.machine, entry.cpu) for entry in mine}
        whole_ns = sum(entry.time_ns for entry in mine)
        walls = sum(each.wall_ns for each in balances if (each.machine, each.cpu) in cpus)
        ticks = round(walls / period_ns) if period_ns else 0
        for stage, parts in _by_stage(_few_together(mine, FEW * whole_ns)):
            time_ns = sum(part.time_ns for part in parts)
            sampled_ns = sum(part.sampled_ns for part in parts)
            low, high = wilson(sum(part.samples for part in parts), ticks)
            scale = time_ns / sampled_ns if sampled_ns else 0.0
            each_ns = [time_ns, low * walls * scale, high * walls * scale]
            known = not cpus & struck
            of_packet = [ns / divided if divided and known else None for ns in each_ns]
            entered = entering.get(stage) if ends_of[stage] == {end} else None
            per_entered = time_ns / entered if known and entered else None
            kinds: Counter[str] = Counter()
            for part in parts:
                kinds[part.kind] += part.sampled_ns
            shares = {kind: ns / sampled_ns for kind, ns in kinds.most_common() if sampled_ns}
            share = time_ns / whole_ns if whole_ns else 0.0
            costs.append(
                StageCost(
                    *(end, stage, of_packet[0], of_packet[1], of_packet[2]),
                    *(share, entered, per_entered, shares),
                )
            )
    return tuple(costs)


def _few_together(entries: list[CpuEntry], least_ns: float) -> list[CpuEntry]:
    """Return entries with programs that used little under one name."""
    programs: Counter[str] = Counter()
    for entry in entries:
        if entry.stage.startswith("["):
            programs[entry.stage] += round(entry.time_ns)
    few = {name for name, ns in programs.items() if ns < least_ns}
    return [replace(each, stage=OTHERS) if each.stage in few else each for each in entries]


def _by_stage(entries: list[CpuEntry]) -> list[tuple[str, list[CpuEntry]]]:
    """Return stage → its entries, in the packets' order, other programs last."""
    stages: dict[str, list[CpuEntry]] = {}
    for entry in entries:
        stages.setdefault(entry.stage, []).append(entry)
    order = {stage: place for place, stage in enumerate(STAGES)}
    return sorted(stages.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))


def _entering(readings: Readings, ledger: Ledger | None) -> dict[str, int]:
    """Return stage → the packets that came to it: those that did not end before.

    Those of receiving are not told where nodes receive, too, nor those of several nodes.
    """
    if ledger is None:
        return {}
    ended: Counter[str] = Counter()
    for entry in ledger.entries:
        ended[stage_of(entry.stage)] += entry.packets or 0
    left, before = ledger.intended_packets, {}
    for stage in LEDGER_STAGES:
        before[stage] = left
        left -= ended[stage]
    owners, nodes = owners_of(readings), len(readings.exits)
    shared = any(readings.machine_of(host) in owners.forwarding for host in readings.receiver.hosts)
    unknown = (*("rx_",) * shared, *(FORWARDING,) * (nodes > 1))
    return {stage: before[at] for stage, at in ENTERS.items() if not stage.startswith(unknown)}


def wilson(number: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson's score); all of it if nothing was drawn."""
    if total <= 0:
        return 0.0, 1.0
    share = min(number / total, 1.0)
    middle = share + Z**2 / (2 * total)
    spread = Z * sqrt(share * (1 - share) / total + (Z / (2 * total)) ** 2)
    whole = 1 + Z**2 / total
    return max((middle - spread) / whole, 0.0), min((middle + spread) / whole, 1.0)
