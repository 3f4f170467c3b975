"""Whose time a CPU of the load was: the load's, the run's own, others', or the hypervisor's."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from analysis import build
from analysis.build import LOAD_MS, MS, NAPI, hog, own, shared
from udpbench.analysis import cpu_use
from udpbench.analysis.checks import cpu_checks
from udpbench.analysis.judge import judge
from udpbench.analysis.points import estimate, points
from udpbench.analysis.readings import Readings, readings_of
from udpbench.metrics import TIMED
from udpbench.model.record import Finding, Process, TrialRecord


def measured(record: TrialRecord) -> Readings:
    """Return the readings of the measured phase."""
    readings = readings_of(record)
    assert readings is not None
    return readings


def cpu_findings(record: TrialRecord) -> list[tuple[str, str, str | None]]:
    """Return severity, place and value of what is found of other programs and of our own."""
    return [
        (finding.severity, finding.where, finding.value)
        for finding in cpu_checks.other_processes(measured(record))
    ]


def test_where_the_load_runs() -> None:
    """The CPUs of both workers, of the queue and of its thread; each once."""
    places = cpu_use.cpu_groups(measured(shared(LOAD_MS)))
    assert ["machine: CPU 0", "machine: CPU 1"] == [place.label for place in places]


def test_a_machine_of_its_own_is_quiet() -> None:
    """What the load needs is nobody else's, nor is softirq time."""
    assert [] == cpu_findings(shared(LOAD_MS))
    assert [] == cpu_findings(shared(LOAD_MS, softirq_ms=400))


@pytest.mark.parametrize(
    ("hog_ms", "expected"),
    [
        (20, []),
        (30, [("warning", "machine: CPU 0", "1.50 %, most by hog (pid 77)")]),
        (100, [("warning", "machine: CPU 0", "5.00 %, most by hog (pid 77)")]),
        (110, [("struck", "machine: CPU 0", "5.50 %, most by hog (pid 77)")]),
    ],
)
def test_two_limits(hog_ms: int, expected: list[object]) -> None:
    """More than 1 % is told, more than 5 % strikes out."""
    assert expected == cpu_findings(shared(LOAD_MS + hog_ms, hog(hog_ms)))


def test_what_is_not_the_loads_counts_wherever_it_may_have_run() -> None:
    """A process that is pinned nowhere is found by what the CPU was busy beyond the load."""
    record = shared(LOAD_MS + 400, hog(400, pinned=False))
    assert [("struck", "machine: CPU 0", "20.00 %, most by hog (pid 77)")] == cpu_findings(record)


def test_who_may_run_nowhere_else_is_named() -> None:
    """Another one used more, but perhaps elsewhere."""
    elsewhere = Process(78, "compiler", 1900 * MS, "other")
    away = Process(79, "away", 1900 * MS, "other", (1,))
    record = shared(LOAD_MS + 400, elsewhere, hog(400), away)
    assert [("struck", "machine: CPU 0", "20.00 %, most by hog (pid 77)")] == cpu_findings(record)


def test_processes_that_lived_only_meanwhile() -> None:
    """They are told by who waited for them; without one nobody is named."""
    make = hog(0, name="make", children_cpu_ns=390 * MS)
    ((_, _, value),) = cpu_findings(shared(LOAD_MS + 400, make))
    assert "20.00 %, most by children of make (pid 77)" == value
    ((_, _, value),) = cpu_findings(shared(LOAD_MS + 400))
    assert f"20.00 %, {cpu_checks.UNSEEN}" == value


def seen_whole(record: TrialRecord) -> TrialRecord:
    """Return a record whose agents saw every process of their machine."""
    seeing = {cpu_use.SEES_ALL: True}
    facts = {host: replace(own, capabilities=seeing) for host, own in record.facts.items()}
    return replace(record, facts=facts)


def test_time_of_no_process_is_the_kernels_where_every_process_is_seen() -> None:
    """Waking an idle CPU takes time that no process is charged; no program is blamed for it."""
    record = seen_whole(shared(LOAD_MS + 400, hog(10, pinned=False)))
    assert [] == cpu_findings(record)
    (load, _) = cpu_use.cpu_loads(measured(record))
    assert (0.005, 0.195) == pytest.approx((load.uses["other programs"], load.uses["wake-ups"]))


def test_programs_code_is_nobody_elses_although_no_process_is_charged() -> None:
    """The kernel drops the times of children whose parent ignores SIGCHLD; ticks have them."""
    record = seen_whole(shared(LOAD_MS + 400, hog(10, pinned=False)))
    (phase,) = record.phases
    machine = phase.after["machine"]

    def with_user(user_ms: int) -> TrialRecord:
        counters = {**machine.counters, "cpu.0.user_ns": user_ms * MS, "cpu.0.nice_ns": 0}
        after = {**phase.after, "machine": replace(machine, counters=counters)}
        before = phase.before["machine"]
        started = {**before.counters, "cpu.0.user_ns": 0, "cpu.0.nice_ns": 0}
        began = {**phase.before, "machine": replace(before, counters=started)}
        return replace(record, phases=(replace(phase, before=began, after=after),))

    assert [] == cpu_findings(with_user(260)), "of 200 ms as many may be charged"
    ((severity, _, value),) = cpu_findings(with_user(200 + 390))
    assert ("struck", "7.98 %, most by hog (pid 77)") == (severity, value)


def test_ended_programs_are_named_where_an_agent_has_counted_them() -> None:
    """Then nothing of them is called a wake-up, whatever they spent it on."""
    ended = Process(0, "ended programs", 390 * MS, "other")
    record = seen_whole(shared(LOAD_MS + 400, hog(10, pinned=False), ended))
    expected = ("struck", "machine: CPU 0", "20.00 %, most by ended programs")
    assert [expected] == cpu_findings(record)


def test_programs_are_blamed_for_all_that_they_may_have_used() -> None:
    """Also by children that ended meanwhile, wherever these ran."""
    make = hog(0, name="make", children_cpu_ns=390 * MS)
    record = seen_whole(shared(LOAD_MS + 400, make))
    expected = ("struck", "machine: CPU 0", "19.50 %, most by children of make (pid 77)")
    assert [expected] == cpu_findings(record)


def test_another_run_is_not_taken_for_this_one() -> None:
    """A process of our own name that is not of this run is another's."""
    ((_, _, value),) = cpu_findings(shared(LOAD_MS + 400, hog(400, name="udpbench")))
    assert "20.00 %, most by another udpbench (pid 77)" == value


def test_what_the_run_itself_takes_is_told_apart() -> None:
    """No other program is blamed for it, and nothing is struck out."""
    record = shared(LOAD_MS + 200, own(150), own(50, pid=11))
    expected = ("note", "machine: CPU 0", "up to 10.00 %, most by udpbench (pid 10)")
    assert [expected] == cpu_findings(record)
    assert () == judge(record).struck


def test_where_the_run_itself_ran_is_known_to_the_cpu() -> None:
    """Then what others took is exact, and so is what the run took."""
    away = replace(own(150), by_cpu_ns={"0": 10 * MS, "1": 140 * MS})
    record = shared(LOAD_MS + 60, away, hog(50, pinned=False))
    assert [("warning", "machine: CPU 0", "2.50 %, most by hog (pid 77)")] == cpu_findings(record)
    here = replace(own(150), by_cpu_ns={"0": 150 * MS})
    record = shared(LOAD_MS + 200, here, hog(50, pinned=False))
    assert [
        ("warning", "machine: CPU 0", "2.50 %, most by hog (pid 77)"),
        ("note", "machine: CPU 0", "up to 7.50 %, most by udpbench (pid 10)"),
    ] == cpu_findings(record)


def test_what_is_ours_to_one_agent_is_nobody_elses() -> None:
    """The machine's agent sees the sender's agent as any other process."""
    record = shared(LOAD_MS + 200, replace(own(200), whose="other"))
    (phase,) = record.phases
    left = phase.after["left"]
    after = {**phase.after, "left": replace(left, processes=(*left.processes, own(200)))}
    record = replace(record, phases=(replace(phase, after=after),))
    assert ["note"] == [severity for severity, *_ in cpu_findings(record)]


def test_a_worker_that_is_not_pinned_stands_for_all_cpus_it_may_use() -> None:
    """Busy time of both CPUs less that of everything of ours; shares are of both."""
    record = shared(LOAD_MS + 300, hog(300, pinned=False))
    (phase,) = record.phases
    free = tuple(replace(stats, cpu=None) for stats in phase.stats)
    facts = {name: replace(host_facts, queue_cpus={}) for name, host_facts in record.facts.items()}
    after = {
        host: replace(snapshot, processes=tuple(p for p in snapshot.processes if p is not NAPI))
        for host, snapshot in phase.after.items()
    }
    phase = replace(phase, stats=free, after=after)
    findings = cpu_findings(replace(record, phases=(phase,), facts=facts))
    # The NAPI thread is nobody's here: 300 ms of it and 300 ms of the other, of two times 2 s.
    assert [("struck", "machine: CPUs 0-1", "15.00 %, most by hog (pid 77)")] == findings


def test_ksoftirqd_is_among_the_interrupts() -> None:
    """Its time is softirq time, which is the load's."""
    thread = Process(14, "ksoftirqd/0", 300 * MS, "other", (0,))
    assert [] == cpu_findings(shared(LOAD_MS, thread, softirq_ms=300))


def test_a_limit_finer_than_two_ticks_is_none() -> None:
    """1 % of a second is one tick, so that only the other limit remains; of 0.3 s neither does."""
    assert [] == cpu_findings(shared(LOAD_MS + 40, hog(40), seconds=1))
    (struck,) = cpu_findings(shared(LOAD_MS + 60, hog(60), seconds=1))
    assert "struck" == struck[0]
    brief = shared(LOAD_MS + 400, hog(400), own(100), seconds=2)
    (phase,) = brief.phases
    after = {h: replace(o, clock_ns=build.START_NS + 300 * MS) for h, o in phase.after.items()}
    assert [] == cpu_findings(replace(brief, phases=(replace(phase, after=after),)))


def test_a_record_of_before_has_no_processes() -> None:
    """Nobody looked, so nothing is told."""
    assert [] == cpu_findings(build.record())


@pytest.mark.parametrize(
    ("steal_ms", "severity"), [(20, None), (30, "warning"), (100, "warning"), (110, "struck")]
)
def test_steal_has_the_same_limits(steal_ms: int, severity: str | None) -> None:
    """Each CPU of the load, over the time between the snapshots."""
    findings = list(cpu_checks.hypervisor(measured(shared(LOAD_MS, steal_ms=steal_ms))))
    assert ([severity] if severity else []) == [finding.severity for finding in findings]
    assert all("machine: CPU 0" == finding.where for finding in findings)


# --- what is struck out ----------------------------------------------------------------------------


def test_rates_are_struck_out_and_counts_hold() -> None:
    """The trial is valid; whatever is a rate, a delay or a CPU number is left out."""
    quiet, loud = judge(shared(LOAD_MS)), judge(shared(LOAD_MS + 400, hog(400)))
    assert (True, True) == (quiet.valid, loud.valid)
    assert quiet.delivered_pps is not None
    assert [] == [name for name in TIMED if getattr(loud, name) is not None]
    assert {None} == {worker.pps for worker in loud.workers}
    assert not {"user_ns", "system_ns"} & {name for worker in loud.workers for name in worker.cost}
    kept = ("sent_packets", "received_packets", "lost_packets", "loss_ratio", "ledger")
    assert [getattr(quiet, name) for name in kept] == [getattr(loud, name) for name in kept]


def test_medians_leave_struck_rates_out_and_keep_loss() -> None:
    """A median of rates is of the trials that have one."""
    records = [shared(LOAD_MS), shared(LOAD_MS + 400, hog(400))]
    results = [
        judge(replace(record, trial=build.trial(repetition=number)))
        for number, record in enumerate(records, 1)
    ]
    (point,) = points(results)
    rate, loss = estimate(point, "delivered_pps"), estimate(point, "loss_ratio")
    assert rate is not None
    assert loss is not None
    assert (1, 2) == (rate.n, loss.n)


def test_a_finding_strikes_out_but_does_not_invalidate() -> None:
    """Severities: only ``invalid`` makes a trial so."""
    plain = build.record()
    result = judge(replace(plain, findings=(Finding("struck", "shared"),)))
    assert (True, None) == (result.valid, result.delivered_pps)


def test_how_busy_each_cpu_of_the_load_is_and_with_what() -> None:
    """Workers and NAPI threads by their own time, others by what is left at most."""
    loads = {
        load.cpu: load for load in cpu_use.cpu_loads(measured(shared(LOAD_MS + 100, hog(100))))
    }
    assert [(0, True), (1, False)] == [(cpu, load.receives) for cpu, load in loads.items()]
    uses = loads[0].uses
    assert {"right.receiver0", "NAPI thread", "other programs"} <= set(uses)
    assert pytest.approx(loads[0].busy) == sum(uses.values())
    assert 0.05 == pytest.approx(uses["other programs"])
    assert 0.05 == pytest.approx(loads[0].taken)


def test_what_others_and_the_hypervisor_take_of_a_cpu_adds_up() -> None:
    """Loads of 2 s, 100 ms and 300 ms."""
    (load, _) = cpu_use.cpu_loads(measured(shared(LOAD_MS + 100, hog(100), steal_ms=300)))
    assert 0.2 == pytest.approx(load.taken)


def many(size: int) -> TrialRecord:
    """Return a record of so many CPUs, processes and queues with one interrupt."""
    record = shared(LOAD_MS, *(hog(10, pinned=False, pid=100 + n) for n in range(size)))
    cpus = tuple(range(size))
    counters = {f"cpu.{cpu}.{time}_ns": cpu for cpu in cpus for time in ("idle", "user")}
    counters |= {f"interrupt.4.cpu{cpu}": cpu for cpu in cpus}
    moved = {name: value + 10**7 for name, value in counters.items()}
    (phase,) = record.phases
    before, after = (
        {**at, "machine": replace(at["machine"], counters=own)}
        for at, own in ((phase.before, counters), (phase.after, moved))
    )
    stats = tuple(replace(own, cpu=None) for own in phase.stats)
    queues = {
        "queue_cpus": {str(n): (n, 0) for n in cpus},
        "queue_irqs": {str(n): 4 for n in cpus},
        "cpus": cpus,
    }
    facts: Any = {host: replace(own, **queues) for host, own in record.facts.items()}
    phase = replace(phase, before=before, after=after, stats=stats)
    return replace(record, facts=facts, phases=(phase,))


def calls(size: int) -> int:
    """Return how many functions are called to judge a record of a size."""
    record, count = many(size), 0

    def called(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        judge(record)
    finally:
        sys.setprofile(None)
    return count


def test_work_grows_as_what_hosts_say() -> None:
    """Not as the product of CPUs with counters, processes or queues: twice as much is twice."""
    once, twice = calls(200), calls(400)
    assert twice < 2.4 * once


def test_counters_of_no_cpu_are_no_cpus() -> None:
    """As an agent that is none may name them."""
    record = shared(LOAD_MS + 100, hog(100, pinned=False))
    (phase,) = record.phases
    strange = dict.fromkeys(("cpu.abc.idle_ns", f"cpu.{'9' * 5000}.idle_ns", "cpu.idle_ns"), 1)
    before, after = (
        {**at, "machine": replace(at["machine"], counters={**at["machine"].counters, **strange})}
        for at in (phase.before, phase.after)
    )
    with_them = replace(record, phases=(replace(phase, before=before, after=after),))
    assert cpu_findings(record) == cpu_findings(with_them)
    assert judge(record).cpus == judge(with_them).cpus


def test_more_sets_of_cpus_than_are_kept_apart_count_as_all() -> None:
    """What may run on a CPU is then more, so that others are blamed for less."""
    sets = [(0, 1, 2 + n) for n in range(cpu_use.MOST_SETS + 5)]
    hogs = [hog(10, pid=100 + n, cpus=cpus) for n, cpus in enumerate(sets)]
    times = cpu_use._times(measured(shared(LOAD_MS, *hogs)), "machine")
    kept = {cpus for whose, cpus in times.shares if whose == "other"}
    assert cpu_use.MOST_SETS >= len(kept)
    assert frozenset({0, 1}) in kept
    assert 10 * len(sets) * 10**6 == times.total_ns["other"]
