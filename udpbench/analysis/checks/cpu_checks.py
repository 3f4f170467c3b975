"""Checks of CPU time: what other processes, the run itself and a hypervisor took from the load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from udpbench.analysis.cpu_time import balanced
from udpbench.analysis.cpu_use import (
    OF_CPU,
    TICK_NS,
    CpuGroup,
    cpu_groups,
    cpu_use,
    has_spare_cpu,
    main_user,
    stolen_ns,
)
from udpbench.analysis.readings import Readings
from udpbench.analysis.remedies import REMEDIES
from udpbench.cpu_stages import IDLE
from udpbench.model.limits import MAX_PAYLOAD_BYTES, SECOND_NS
from udpbench.model.record import Finding, FindingKind
from udpbench.units import show_ratio

NOTED = 0.01
"""Share of a CPU of the load from which other use is worth a finding."""
STRUCK = 0.05
"""Beyond it rates, delays and CPU numbers are those of a shared CPU."""
STRUCK_OUT = {"struck": "; rates, delays and CPU numbers are struck out", "warning": ""}
LEAST_TICKS = 2
"""A shorter limit is within the error of two readings in ticks."""
HYPERVISOR = (
    "the hypervisor took CPU time from this machine",
    REMEDIES["steal"].text,
)
"""What is wrong, and what to do."""
LATE = 0.1
"""Share of busy time from which on it matters that a timer waits while interrupts are off: of a
datagram that wakes its CPU 21.4 us were sampled where 17.9 had passed, 12.4 of them at `schedule`
(Linux 6.18 in a virtual machine whose timer comes 6 us late; tests/lab/soaker.c)."""
UNSEEN = "by short-lived processes, or by processes that the agent may not see"


def other_processes(readings: Readings) -> Iterator[Finding]:
    """Find other programs, and the run's own processes, on the CPUs of the load."""
    beside = " or keep them on other CPUs"
    for group in cpu_groups(readings):
        use = cpu_use(readings, group)
        if use is None:
            continue
        yield from _limited(
            group,
            use.others_ns / use.time_ns,
            use.elapsed_ns,
            "other programs used CPUs of the load",
            main_user(readings, group, "other", use.others_ns) or UNSEEN,
            f"stop them{beside * has_spare_cpu(readings, group.machine)}, then repeat",
        )
        share = use.own_ns / use.time_ns
        if share > NOTED and _resolved(NOTED, use.elapsed_ns):
            yield Finding(
                "note",
                "the run's own controller or agents used CPUs of the load",
                group.label,
                f"up to {show_ratio(share)}, {main_user(readings, group, 'run', use.own_ns)}",
                f"at most {show_ratio(NOTED)}",
                "leave them a CPU that no worker or queue uses, or run with --quiet",
            )


def hypervisor(readings: Readings) -> Iterator[Finding]:
    """Find a hypervisor that gave CPUs of the load to another machine."""
    for group in cpu_groups(readings):
        steal_ns, elapsed_ns = stolen_ns(readings, group)
        if steal_ns is not None and elapsed_ns > 0:
            yield from _limited(
                group,
                steal_ns / (elapsed_ns * len(group.cpus)),
                elapsed_ns,
                HYPERVISOR[0],
                "",
                HYPERVISOR[1],
                "cpu_time",
            )


def _limited(
    group: CpuGroup,
    share: float,
    elapsed_ns: int,
    message: str,
    user: str,
    next_step: str,
    kind: FindingKind = "",
) -> Iterator[Finding]:
    """Yield a finding by the limit that a share exceeds, unless that is finer than the ticks."""
    limits: tuple[tuple[float, Literal["struck", "warning"]], ...]
    limits = ((STRUCK, "struck"), (NOTED, "warning"))
    for limit, severity in limits:
        if share > limit and _resolved(limit, elapsed_ns):
            value = ", ".join(text for text in (show_ratio(share), user) if text)
            what, limit_text = message + STRUCK_OUT[severity], f"at most {show_ratio(limit)}"
            yield Finding(severity, what, group.label, value, limit_text, next_step, kind)
            return


def _resolved(limit: float, elapsed_ns: int) -> bool:
    return limit * elapsed_ns >= LEAST_TICKS * TICK_NS


def work_not_done(readings: Readings) -> Iterator[Finding]:
    """Find a reader with less CPU time than ``receive.work`` takes on what it received.

    One batch is allowed for: stopping cuts its work short after its datagrams were counted.
    """
    trial = readings.record.trial
    shortest = max(trial.traffic.datagrams.shortest_bytes, 1)
    merged = MAX_PAYLOAD_BYTES // shortest if trial.receive.gro else 1
    batch = trial.receive.messages * merged
    for stats in readings.receiver.workers:
        if trial.receive.work_ns == 0 or "user_ns" not in stats.counts:
            continue
        spent_ns = stats.counts["user_ns"] + stats.counts.get("system_ns", 0)
        worked_ns = (stats.counts.get("received_packets", 0) - batch) * trial.receive.work_ns
        if worked_ns > spent_ns:
            yield Finding(
                "invalid",
                "incomplete work: the reader used less CPU time than receive.work requires",
                stats.worker,
                f"{spent_ns / SECOND_NS:.3f} s of CPU time",
                f"at least {worked_ns / SECOND_NS:.3f} s",
                "check CLOCK_THREAD_CPUTIME_ID on that host",
                "cpu_time",
            )


def cpu_time_unknown(readings: Readings) -> Iterator[Finding]:
    """Find machines whose CPUs could not be sampled, and CPUs whose times do not add up."""
    for machine, samples in readings.phase.cpu_samples.items():
        if not samples.clock:
            what, _, step = samples.why.partition("; ")
            why = "CPU time is not observable"
            yield Finding("warning", why, machine, what, "", step, "cpu_time")
        if samples.missing_anchors:
            yield Finding(
                "note",
                "this kernel lacks functions that begin stages; their time counts to callers",
                machine,
                ", ".join(samples.missing_anchors),
            )
    entries, balances = balanced(readings)
    whole_ns = sum(entry.time_ns for entry in entries if entry.stage != IDLE)
    late_ns = sum(entry.time_ns for entry in entries if entry.stage == "schedule")
    if late_ns > LATE * whole_ns:
        yield Finding(
            "note",
            "a timer samples late what runs with interrupts off: a third of `schedule` may be "
            "time of what ran before it",
            "",
            f"{show_ratio(late_ns / whole_ns)} of the CPU time",
            kind="cpu_time",
        )
    for balance in balances:
        if balance.struck:
            yield Finding(
                "warning",
                "CPU time by stage does not add up, and is struck out",
                f"{balance.machine}{OF_CPU}{balance.cpu}",
                balance.struck,
                "3 % and three standard errors, 2 % unattributed",
                "measure longer, and without other load on the CPU",
                "cpu_time",
            )
