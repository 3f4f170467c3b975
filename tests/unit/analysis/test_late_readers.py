"""Why a socket's buffer was full: of readers simulated by the millisecond, with the truth by ablation.

A simulation draws a load, a buffer, a reader's work and what holds it up, and counts what a host would
count. The truth is the loss that remains if a cause is taken away, from the same load.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from analysis.test_diagnosis import changed
from udpbench.analysis.judge import judge
from udpbench.analysis.reader_time import LoadedCpu, ReaderTime
from udpbench.model.experiment import Attach
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Process, Sample, ThreadUse, TrialRecord
from udpbench.model.result import rest_of
from udpbench.units import show_percent

OFFERED = 39424
"""Packets of the stored record, in its one second."""
NAPI = 0.1442
"""Share of the reader's CPU that its NAPI thread takes in the stored record."""
MS_NS = 10**6
NAMES = {
    "stopped": {"standstill"},
    "asleep": {"reader_sleeps"},
    "robbed": {"steal", "others_cpu"},
    "capacity": {"reader_work", "reader_system", "shared_cpu"},
    "buffer": {"small_buffer"},
}


@dataclass(frozen=True)
class Life:
    """What is drawn: a load in one second, and what a reader does with it."""

    work_us: float
    buffer_packets: int
    bursts: int = 1
    """In how many equal bursts of a tenth of their interval all packets come; 0: evenly."""
    pause_us: float = 0.0
    """A program sleeps so long after each datagram."""
    robbed: float = 0.0
    """Share of each 20 ms that the hypervisor takes."""
    stopped_ms: tuple[int, int] = (0, 0)


@dataclass
class Counted:
    """What the host counts."""

    read: float = 0.0
    dropped: float = 0.0
    running_ms: float = 0.0
    runnable_ms: float = 0.0
    asleep_ms: float = 0.0
    stopped_ms: float = 0.0
    left: float = 0.0
    """In its buffer at the end of the load."""
    course: tuple[tuple[float, float], ...] = ()
    """Dropped and read until the end of each 100 ms."""


def live(life: Life) -> Counted:
    """Return what is counted of a life."""
    counted, queue, course = Counted(), 0.0, []
    for ms in range(1000):
        if life.bursts:
            at = ms % (1000 // life.bursts)
            width = max(1000 // life.bursts // 10, 1)
            came = OFFERED / (life.bursts * width) if at < width else 0.0
        else:
            came = OFFERED / 1000
        robbed = 1.0 if (ms % 20) < 20 * life.robbed else 0.0
        stopped = life.stopped_ms[0] <= ms < life.stopped_ms[1]
        queue += came
        able_ms = 0.0 if stopped or robbed else 1 - NAPI
        each_ms = (life.work_us + life.pause_us) / 1000
        read = min(queue, able_ms / each_ms)
        used_ms = read * life.work_us / 1000
        queue -= read
        counted.read += read
        counted.running_ms += used_ms
        counted.asleep_ms += read * life.pause_us / 1000
        if stopped:
            counted.stopped_ms += 1
        elif queue or read:
            counted.runnable_ms += robbed + (0.0 if robbed else NAPI * min(used_ms / (1 - NAPI), 1))
        over = max(queue - life.buffer_packets, 0.0)
        queue -= over
        counted.dropped += over
        course.append((counted.dropped, counted.read))
    counted.left = queue
    counted.read += queue
    counted.course = tuple(course[99::100])
    return counted


def without(life: Life, cause: str) -> Life:
    """Return a life with a cause taken away; of a buffer, with a large one."""
    changes: dict[str, dict[str, object]] = {
        "stopped": {"stopped_ms": (0, 0)},
        "asleep": {"pause_us": 0.0},
        "robbed": {"robbed": 0.0},
        "capacity": {"work_us": 0.1},
        "buffer": {"buffer_packets": 10**6},
    }
    return replace(life, **changes[cause])  # type: ignore[arg-type]


def recorded(life: Life) -> TrialRecord:
    """Return the record of a life."""
    counted = live(life)
    dropped = round(counted.dropped)
    read = OFFERED - dropped
    stopped_ns = round(counted.stopped_ms * MS_NS)
    counts = {
        "received_packets": read,
        "read_packets": read,
        "user_ns": round(counted.running_ms * MS_NS),
        "system_ns": 0,
        "runnable_ns": round(counted.runnable_ms * MS_NS),
        "standstill_ns": stopped_ns,
        "standstills": int(stopped_ns > 0),
    }
    plain = changed("slow-work")
    (phase,) = plain.phases
    (reader,) = (each for each in phase.stats if each.role == "receiver")
    (inode,) = reader.socket_inodes
    moves = {
        "snmp.Udp.RcvbufErrors": dropped,
        "snmp.Udp.InErrors": dropped,
        "snmp.Udp.InDatagrams": read,
        f"socket.{inode}.drops": dropped,
    }
    idle_ms = 1000 - counted.running_ms - 1000 * NAPI
    steal_ms = 1000 * life.robbed
    times = {"idle": max(idle_ms - steal_ms, 0.0), "steal": steal_ms}
    machine = {f"cpu.0.{name}_ns": round(ms * MS_NS) for name, ms in times.items()}
    record = changed("slow-work", readers=counts, counters={"receiver": moves, "machine": machine})
    (phase,) = record.phases
    stats = phase.stats
    if life.pause_us:
        thread = ThreadUse(
            *("server", counts["user_ns"], counts["runnable_ns"], SECOND_NS),
            looks={"S": 8, "R": 2},
            calls={"clock_nanosleep": 8},
        )
        stats = tuple(
            replace(
                each,
                counts={k: v for k, v in each.counts.items() if k in ("received_packets",
                        "read_packets", "first_ns", "last_ns", "first_packets")},
                threads=(thread,), process_cpu_ns=counts["user_ns"], process_load_ns=SECOND_NS,
            )
            if each.role == "receiver" else each
            for each in stats
        )  # fmt: skip
        trial = replace(record.trial, receive=replace(record.trial.receive, command=("server",)))
        record = replace(record, trial=trial)
    start_ns = phase.start_ns["receiver"]
    series = tuple(
        Sample(
            reader.worker,
            start_ns + 100 * MS_NS * (number + 1),
            {"dropped_packets": round(dropped), "received_packets": round(read)},
        )
        for number, (dropped, read) in enumerate(counted.course)
    )
    begin = Sample(reader.worker, start_ns, {"dropped_packets": 0, "received_packets": 0})
    return replace(record, phases=(replace(phase, stats=stats),), series=(begin, *series))


def draw(chance: random.Random) -> Life:
    """Return a life of any kind."""
    kinds = ("capacity", "stopped", "asleep", "robbed", "buffer", "two")
    kind = chance.choice(kinds)
    room = chance.choice((100, 400, 1600))
    light_us = chance.uniform(2, 12)
    if kind == "capacity":
        return Life(chance.uniform(26, 60), room, 0)
    if kind == "stopped":
        begin = chance.randint(100, 500)
        return Life(light_us, room, 0, stopped_ms=(begin, begin + chance.randint(150, 400)))
    if kind == "asleep":
        return Life(chance.uniform(1, 10), room, 0, pause_us=chance.uniform(60, 600))
    if kind == "robbed":
        return Life(chance.uniform(8, 18), room, 0, robbed=chance.uniform(0.4, 0.8))
    if kind == "buffer":
        return Life(light_us, chance.choice((20, 100, 400)), chance.choice((2, 5, 10)))
    return Life(chance.uniform(15, 40), room, 0, robbed=chance.uniform(0.2, 0.6))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(4))
def test_the_cause_of_a_late_reader_is_what_ablation_says(seed: int) -> None:
    """Certain is never wrong; the first cause is among those without which a third less is lost."""
    chance = random.Random(seed)
    wrong, certain, cases = [], 0, 0
    while cases < 100:
        life = draw(chance)
        lost = live(life).dropped
        if lost < 0.02 * OFFERED:
            continue
        cases += 1
        lives = {cause: live(without(life, cause)) for cause in NAMES}
        # A buffer that would have to grow for ever does not help.
        left = {c: (x.dropped + (x.left if c == "buffer" else 0)) / lost for c, x in lives.items()}
        first = judge(recorded(life)).diagnosis[0]
        helpful = {name for c, names in NAMES.items() if left[c] < 0.65 for name in names}
        alone = {name for c, names in NAMES.items() if left[c] < 0.15 for name in names}
        if first.certainty == "certain":
            certain += 1
            if first.name not in alone:
                wrong.append((life, left, first.name, first.certainty, first.share))
        elif first.name not in helpful:
            wrong.append((life, left, first.name, first.certainty, first.share))
    assert [] == wrong
    assert certain >= 60


@pytest.mark.parametrize(("share", "sure"), [(0.15, "likely"), (0.4, "certain")])
def test_a_hypervisor_takes_the_readers_cpu(share: float, sure: str) -> None:
    """Certain from a fifth of it on."""
    first = judge(recorded(Life(20, 100, 0, robbed=share))).diagnosis[0]
    assert ("steal", sure) == (first.name, first.certainty)


def with_processes(record: TrialRecord, processes: Callable[[Process], Process]) -> TrialRecord:
    """Return a record whose processes, and a further one that did not run, are others."""
    (phase,) = record.phases
    further = Process(77, "hog", 0, "other", (0,))
    after = {
        host: replace(each, processes=tuple(map(processes, (*each.processes, further))))
        for host, each in phase.after.items()
    }
    return replace(record, phases=(replace(phase, after=after),))


@pytest.mark.parametrize(("hog_ms", "sure"), [(30, "certain"), (80, "likely")])
def test_a_hypervisor_beside_another_program_is_likely(hog_ms: int, sure: str) -> None:
    """Even if the program took too little to be named; it may have been the one that mattered."""
    record = with_processes(
        recorded(Life(20, 100, 0, robbed=0.4)),
        lambda each: replace(each, cpu_ns=hog_ms * MS_NS) if each.pid == 77 else each,
    )
    first = judge(record).diagnosis[0]
    assert ("steal", sure) == (first.name, first.certainty)


def shortened(record: TrialRecord, times: int) -> TrialRecord:
    """Return the same load and what was spent on it, but so many times as fast."""
    record = with_processes(record, lambda each: replace(each, cpu_ns=each.cpu_ns // times))
    (phase,) = record.phases
    spent = ("user_ns", "system_ns", "runnable_ns")
    stats = tuple(
        replace(
            each,
            counts={
                **{k: n // times if k in spent else n for k, n in each.counts.items()},
                "last_ns": each.counts["first_ns"]
                + (each.counts["last_ns"] - each.counts["first_ns"]) // times,
            },
        )
        for each in phase.stats
    )
    after = {}
    for host, snapshot in phase.after.items():
        ticks = {name: n for name, n in snapshot.counters.items() if name.endswith(".user_ns")}
        begun = phase.before[host].counters
        ticks = {name: begun[name] + (n - begun[name]) // times for name, n in ticks.items()}
        after[host] = replace(snapshot, counters={**snapshot.counters, **ticks})
    return replace(record, phases=(replace(phase, stats=stats, after=after),))


@pytest.mark.parametrize(("times", "sure"), [(1, "certain"), (10, "likely")])
def test_others_are_certain_only_if_the_load_lasts(times: int, sure: str) -> None:
    """For a tenth of a second nobody knows whether they had the CPU just then."""
    first = judge(shortened(recorded(Life(20, 100, 0, robbed=0.5)), times)).diagnosis[0]
    assert ("steal", sure) == (first.name, first.certainty)


def test_what_a_buffer_cannot_hold_of_a_burst_is_not_others_fault() -> None:
    """However long others had the CPU afterwards: a reader could have read no more meanwhile."""
    (phase,) = changed("burst").phases
    (end_ns,) = (each.counts["last_ns"] for each in phase.stats if each.role == "receiver")
    counts = {"last_ns": end_ns + 20 * MS_NS, "runnable_ns": 20 * MS_NS}
    counters = {"machine": {"cpu.0.idle_ns": 160 * MS_NS}}
    record = changed("burst", readers=counts, counters=counters)
    record = with_processes(
        record, lambda each: replace(each, cpu_ns=260 * MS_NS) if each.pid == 77 else each
    )
    result = judge(record)
    first, second = result.diagnosis
    assert ("small_buffer", "others_cpu") == (first.name, second.name)
    assert second.packets < 0.4 * (result.lost_packets or 0)
    assert f" {show_percent(second.share or 0)}: likely because other programs took" in rest_of(
        (first, second)
    )


@pytest.mark.parametrize("attach", [None, Attach(port=4321)])
def test_a_program_that_sleeps(attach: Attach | None) -> None:
    """Says what it served of what came, for how long it sleeps, and in which call; no setting helps."""
    record = recorded(Life(5, 400, 0, pause_us=500))
    if attach is not None:
        receive = replace(record.trial.receive, command=None, attach=attach)
        record = replace(record, trial=replace(record.trial, receive=receive))
    first = judge(record).diagnosis[0]
    assert ("reader_sleeps", "certain", ()) == (first.name, first.certainty, first.sets)
    assert "2.1 kpps of 38.6 kpps: the program sleeps 99 % of the time" in first.sentence
    assert "(in clock_nanosleep)" in first.sentence


@pytest.mark.parametrize(("idle", "cause"), [(False, "shared_cpu"), (True, "reader_sleeps")])
def test_what_a_program_starts_is_its_own_work(idle: bool, cause: str) -> None:
    """It waits for them; beside the queue's thread they leave no time of its CPU."""
    record = recorded(Life(5, 400, 0, pause_us=500))
    (phase,) = record.phases
    stats = tuple(
        replace(each, threads=tuple(replace(t, calls={"wait4": 8}) for t in each.threads))
        for each in phase.stats
    )
    before, after = (each["machine"].counters for each in (phase.before, phase.after))
    softirq = {"cpu.0.softirq_ns": before.get("cpu.0.softirq_ns", 0) + 500 * MS_NS}
    full = {"cpu.0.idle_ns": before["cpu.0.idle_ns"]}
    times = after if idle else {**after, **softirq, **full}
    machine = replace(phase.after["machine"], counters=times)
    phase = replace(phase, stats=stats, after={**phase.after, "machine": machine})
    first = judge(replace(record, phases=(phase,))).diagnosis[0]
    assert cause == first.name
    assert ("(in wait4)" in first.sentence) is idle


def test_a_call_without_a_name_is_not_mentioned() -> None:
    """That it sleeps is said all the same."""
    record = recorded(Life(5, 400, 0, pause_us=500))
    (phase,) = record.phases
    stats = tuple(
        replace(each, threads=tuple(replace(t, calls={"other": 8}) for t in each.threads))
        for each in phase.stats
    )
    first = judge(replace(record, phases=(replace(phase, stats=stats),))).diagnosis[0]
    assert "the program sleeps 99 % of the time" in first.sentence
    assert "(in " not in first.sentence


def test_a_reader_that_stood_still() -> None:
    """For how long; a buffer that holds it is not blamed."""
    first = judge(recorded(Life(5, 400, 0, stopped_ms=(300, 598)))).diagnosis[0]
    assert ("standstill", "certain", 1.0) == (first.name, first.certainty, first.share)
    assert "receiver.receiver0 stood still for 0.298 s while packets waited" in first.what


def test_work_for_which_no_cpu_suffices() -> None:
    """However large its buffer: nothing that is set would help."""
    limits = judge(recorded(Life(40, 1600, 0))).diagnosis
    assert ("reader_work", "certain") == (limits[0].name, limits[0].certainty)
    assert "small_buffer" not in {each.name for each in limits}


def test_a_queue_that_was_never_empty_refutes_a_burst() -> None:
    """Also of a reader most of whose calls return nothing, as with io_uring."""
    idle = ReaderTime((), None, 0.3, 0.0, 0.0, 0.7, 0.0, 100, 300)
    assert idle.shares_out(True)["buffer"] == 300
    full = replace(idle, always_full=True)
    assert (0, 300) == (full.shares_out(True)["buffer"], full.shares_out(True)["capacity"])
    assert full.shares_out(False)["buffer"] == 300


@pytest.mark.parametrize(("queued_bytes", "name"), [(0, "small_buffer"), (4096, "shared_cpu")])
def test_a_queue_that_is_empty_at_every_look_is_one_that_was_emptied(
    queued_bytes: int, name: str
) -> None:
    """What comes between two looks overflows a small buffer, and is read before the next."""
    record = recorded(Life(5, 20, 10))
    series = tuple(
        replace(each, counts={**each.counts, "queued_bytes": queued_bytes})
        for each in record.series
    )
    assert name == judge(replace(record, series=series)).diagnosis[0].name


def test_what_an_unpinned_reader_waited_for_is_others_only_as_far_as_they_ran() -> None:
    """The rest is the load's own: the sender and the queue have the CPUs, too."""
    waiting = ReaderTime((), None, 0.6, 0.0, 0.0, 0.0, 0.4, 100, 50)
    thread = LoadedCpu("receiver", "machine", None, 0.6, 0.6, 0.0)
    alone = replace(waiting, cpu=thread)
    assert (0, 50) == (alone.robbed, alone.shares_out(True)["capacity"])
    assert 0.3 == replace(waiting, cpu=replace(thread, others=0.3)).robbed
    assert 0.4 == waiting.robbed
