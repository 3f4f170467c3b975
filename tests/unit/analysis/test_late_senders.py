"""Why senders, and who polls for them, were late: stopped, robbed, or held up by a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from analysis import build
from udpbench.analysis.judge import judge
from udpbench.model.experiment import Send
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Process, Stall, TrialRecord

MS = 10**6
STALL = Stall(200 * MS, 500 * MS, 300)
"""In a load of a second at 1,000 packets per second."""
HOG = Process(77, "hog", 300 * MS, "other", (1,))


def stalled(
    *,
    running_ms: int = 700,
    runnable_ms: int | None = 0,
    steal_ms: int = 0,
    hogs: tuple[Process, ...] = (),
    pace: Any = "spin",
    changed: str = "",
    rate: int = 1000,
    stalls: tuple[Stall, ...] = (STALL,),
    buffer_bytes: int | None = None,
) -> TrialRecord:
    """Return a trial whose sender, on time otherwise, offered nothing for 300 ms."""
    spent = {"running_ns": running_ms * MS}
    spent |= {"runnable_ns": runnable_ms * MS} if runnable_ms is not None else {}
    spent |= {"elapsed_ns": SECOND_NS, "user_ns": running_ms * MS, "system_ns": 0}
    counts = build.sender_counts(700, **spent)
    sender = build.worker("sender", counts, stalls=stalls, buffer_bytes=buffer_bytes)
    receiver = build.worker("receiver", build.receiver_counts(700, user_ns=0, system_ns=0))
    used_ms = {
        cpu: sum(each.cpu_ns // MS for each in hogs if each.cpus == (cpu,)) for cpu in (0, 1)
    }
    busy_ms = running_ms + steal_ms + used_ms[1]
    machine = {"cpu.1.idle_ns": (2000 - busy_ms) * MS, "cpu.1.steal_ns": steal_ms * MS}
    machine |= {"cpu.0.idle_ns": (2000 - used_ms[0]) * MS}
    moves = {"machine": machine, "left": {f"changed.{changed}": 1} if changed else {}}
    of = build.paced(rate, send=Send(pace=pace))
    record = build.record(700, of=of, moves=moves, workers=(sender, receiver))
    (phase,) = record.phases
    own = Process(21, "python", running_ms * MS, "worker", (1,))
    processes = {"left": (own,), "right": (), "machine": hogs}
    after = {host: replace(each, processes=processes[host]) for host, each in phase.after.items()}
    return replace(record, phases=(replace(phase, after=after),))


def causes(record: TrialRecord) -> list[tuple[str, str]]:
    """Return what limits a trial, and how certain that is."""
    return [(each.name, each.certainty) for each in judge(record).diagnosis]


@pytest.mark.parametrize("pace", ["spin", "sleep"])
def test_a_sender_that_was_stopped(pace: Any) -> None:
    """Nobody had its CPU; that it was less than full does not mean that it waited for its queue."""
    (first, *others) = causes(stalled(pace=pace))
    assert ("stopped_sender", "certain") == first
    assert not {"sender_queue", "sender_cpu", "steal"} & {name for name, _ in others}


def test_a_sender_whose_cpu_others_had() -> None:
    """By their time on it, whether it is known that it waited or not."""
    for runnable_ms in (None, 300):
        taken = stalled(hogs=(HOG,), runnable_ms=runnable_ms)
        assert "others_cpu" == causes(taken)[0][0]


@pytest.mark.parametrize("pace", ["spin", "sleep"])
def test_others_did_not_have_the_cpu_of_a_sender_that_did_not_wait_for_it(pace: Any) -> None:
    """However much of it they used at other times."""
    elsewhen = stalled(hogs=(HOG,), runnable_ms=0, running_ms=100, pace=pace)
    assert ("stopped_sender", "certain") == causes(elsewhen)[0]


@pytest.mark.parametrize(("rate", "first"), [(2000, "others_cpu"), (100_000, "sender_cpu")])
def test_others_are_no_cause_where_a_whole_cpu_would_not_have_sufficed(
    rate: int, first: str
) -> None:
    """700 packets took a third of it."""
    hog = replace(HOG, cpu_ns=1260 * MS)
    late = stalled(hogs=(hog,), runnable_ms=300, rate=rate, stalls=())
    assert first == causes(late)[0][0]


@pytest.mark.parametrize(
    ("buffer_bytes", "expected"),
    [
        (None, ("others_cpu", "certain")),
        (200_000, ("others_cpu", "certain")),
        (10**6, ("stopped_sender", "certain")),
    ],
)
def test_who_has_the_polling_cpu_holds_a_sender_up_if_its_buffer_may_be_full(
    buffer_bytes: int | None, expected: tuple[str, str]
) -> None:
    """Half of 1,000 packets of 32 bytes came meanwhile, each charged with 1,088 bytes at most."""
    hog = replace(HOG, cpu_ns=500 * MS, cpus=(0,))
    on_time = build.series([1000], "left.sender0", "sent_packets")
    held = replace(stalled(hogs=(hog,), buffer_bytes=buffer_bytes), series=on_time)
    assert expected == causes(held)[0]


def test_a_sender_that_waited_for_its_cpu_was_not_stopped() -> None:
    """Who had it is not known."""
    assert "stopped_sender" not in dict(causes(stalled(runnable_ms=300)))


def test_a_hypervisor_that_took_less_than_the_stall_did_not_stop_it() -> None:
    """What it took is among the time in which the sender neither ran nor waited."""
    assert "steal" == causes(stalled(steal_ms=300))[0][0]
    stopped_meanwhile = stalled(steal_ms=250, running_ms=450)
    assert ("stopped_sender", "certain") == causes(stopped_meanwhile)[0]
    assert "stopped_sender" == causes(stalled(steal_ms=150))[0][0]


@pytest.mark.parametrize("changed", ["neighbours", "routes", "links", "queueing", "firewall"])
def test_what_others_changed_while_it_stood_still_comes_first(changed: str) -> None:
    """Both are likely then; a firewall holds nobody up."""
    expected = [("changed", "likely"), ("stopped_sender", "likely")]
    if changed == "firewall":
        expected = [("stopped_sender", "certain")]
    assert expected == causes(stalled(changed=changed))[: len(expected)]


def interrupted(taken_ms: int, lost_packets: int = 300) -> TrialRecord:
    """Return a trial that lost some of 1,000 packets before a CPU that others had for a while."""
    sent = build.series([1000], "left.sender0", "sent_packets")
    got = build.series([1000], "right.receiver0", "received_packets")
    lost = [max(0, min(lost_packets, 100 * (tick - 3))) for tick in range(len(got))]
    got = tuple(
        replace(each, counts={"received_packets": each.counts["received_packets"] - fewer})
        for each, fewer in zip(got, lost, strict=True)
    )
    machine = {"cpu.0.idle_ns": (1900 - taken_ms) * MS, "cpu.1.idle_ns": 1900 * MS}
    spent = {"user_ns": 50 * MS, "system_ns": 50 * MS}
    workers = (
        build.worker("sender", build.sender_counts(1000, **spent)),
        build.worker("receiver", build.receiver_counts(1000 - lost_packets, **spent)),
    )
    dropped = {"machine": machine, "left": {"link.send0.tx_dropped": lost_packets}}
    dropped["right"] = {"snmp.Udp.InDatagrams": 1000 - lost_packets}
    record = build.record(
        1000,
        1000 - lost_packets,
        of=build.paced(1000),
        moves=dropped,
        workers=workers,
        series=sent + got,
    )
    (phase,) = record.phases
    hog = replace(HOG, cpu_ns=taken_ms * MS, cpus=(0,))
    processes = {"left": (), "right": (replace(build.READER, cpu_ns=100 * MS),), "machine": (hog,)}
    after = {host: replace(each, processes=processes[host]) for host, each in phase.after.items()}
    return replace(record, phases=(replace(phase, after=after),))


def test_who_had_the_polling_cpu_for_a_while_is_named() -> None:
    """By its share of the load, which is half of the time between the snapshots here."""
    assert ("others_cpu", "likely") == causes(interrupted(250))[0]
    assert "others_cpu" not in dict(causes(interrupted(100)))


@pytest.mark.parametrize(("waited_ms", "named"), [(250, True), (100, False)])
def test_a_napi_thread_that_waited_while_no_reader_ran_tells_that_others_had_its_cpu(
    waited_ms: int, named: bool
) -> None:
    """Whoever that was: programs that end within a phase are in nobody's list."""
    record = interrupted(0)
    (phase,) = record.phases
    napi = replace(build.NAPI, cpu_ns=50 * MS, runnable_ns=waited_ms * MS)
    right = replace(phase.after["right"], processes=(*phase.after["right"].processes, napi))
    phase = replace(phase, after={**phase.after, "right": right})
    (first, *_) = judge(replace(record, phases=(phase,))).diagnosis
    assert named is (first.name == "others_cpu")
    if named:
        assert "others had the reader's CPU 0 for 0.150 s or more" in first.sentence


def test_what_was_hardly_taken_is_likely_and_at_most() -> None:
    """Less than a tenth of the time between the snapshots may be more of the load."""
    (first, *_) = judge(interrupted(190, 200)).diagnosis
    assert ("others_cpu", "likely") == (first.name, first.certainty)
    assert "for up to 0." in first.sentence
