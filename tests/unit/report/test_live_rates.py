"""The numbers behind the live view."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis.build import BASE, START_NS, series, specs, trial

from report.progress import counters, measuring, sampled
from udpbench.analysis.motion import CpuShare
from udpbench.model.experiment import Send
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Sample
from udpbench.model.result import Progress
from udpbench.report.live_rates import (
    Drops,
    Moving,
    Pace,
    QueueRate,
    Watch,
    WorkerRate,
    per_second,
)


def watching(*progress: Progress) -> Watch:
    """Return a watch that has heard all this."""
    watch = Watch()
    for event in progress:
        watch.add(event, 0)
    return watch


def test_a_workers_rate_is_of_its_last_second() -> None:
    """After a fast second and a slow one it is the slow one's."""
    watch = watching(measuring(), *sampled(series([5000, 1000])))
    assert (WorkerRate("right.receiver0", "receiver", 0, 1000.0, 0.0),) == watch.workers
    assert 2 * SECOND_NS == watch.elapsed_ns


def test_senders_come_first() -> None:
    """However the trial lists its workers."""
    backwards = tuple(reversed(specs(trial())))
    sent = series([1], of_worker="left.sender0", field="sent_packets")
    watch = watching(measuring(workers=backwards), *sampled(series([1])), *sampled(sent))
    assert ["left.sender0", "right.receiver0"] == [worker.worker for worker in watch.workers]


def test_before_two_samples_there_is_no_rate() -> None:
    """Nothing is shown as 0 that is not known."""
    watch = watching(measuring(), *sampled(series([1])[:1]))
    assert [None] == [worker.pps for worker in watch.workers]
    assert per_second([Sample("w", 5, {}), Sample("w", 5, {})], "x") is None


def test_drops_are_reported_by_stage_now_and_so_far() -> None:
    """300 lost, 100 of them in the last second; a stage that took nothing is not there."""
    rounds = [
        counters(second, **({"right": {"snmp.Udp.RcvbufErrors": BASE + lost}} if second else {}))
        for second, lost in enumerate((0, 200, 300))
    ]
    watch = watching(
        measuring(),
        *(Progress("sample", "", trial(), 1, 2, snapshots=snapshots) for snapshots in rounds),
    )
    assert (Drops("udp_rcvbuf", 100.0, 300),) == watch.counted.drops
    assert (Moving("right", "snmp.Udp.RcvbufErrors", 100.0),) == watch.counted.moving


def test_what_came_between_two_counters_is_no_drop() -> None:
    """A stage that is a difference must exceed what passes while counters are read; one need not."""
    arriving = {"link.receive0.rx_packets": BASE + 100_000}

    def dropping_stages(**moved: int) -> list[str]:
        right = {**arriving, **{name.replace("_", ".", 2): BASE + n for name, n in moved.items()}}
        rounds = (counters(0), counters(1, right=right))
        shown = [Progress("sample", "", trial(), 1, 2, snapshots=snapshots) for snapshots in rounds]
        return [drop.stage for drop in watching(measuring(), *shown).counted.drops]

    assert [] == dropping_stages(snmp_Udp_InErrors=1990)
    assert ["udp_filter"] == dropping_stages(snmp_Udp_InErrors=2010)
    assert ["udp_no_port"] == dropping_stages(snmp_Udp_NoPorts=1)


def test_drops_of_messages_are_reported_in_packets() -> None:
    """The senders' samples tell how many packets a lost skb was, although they are older."""
    of = trial(send=Send(gso=50))
    rounds = [
        counters(
            second,
            left={"link.send0.tx_dropped": BASE + lost, "link.send0.tx_packets": BASE + 24},
        )
        for second, lost in enumerate((0, 2, 6))
    ]
    counts = {"sent_packets": 1000, "sent_messages": 20}
    sample = Sample("left.sender0", START_NS + SECOND_NS, counts)
    watch = watching(
        measuring(workers=specs(of)),
        Progress("sample", "", of, 1, 2, snapshots=rounds[0]),
        Progress("sample", "", of, 1, 2, samples=(sample,)),
        *(Progress("sample", "", of, 1, 2, snapshots=snapshots) for snapshots in rounds[1:]),
    )
    assert (Drops("tx_device", 200.0, 300),) == watch.counted.drops


def test_counts_of_a_plain_sender_that_differ_are_no_messages() -> None:
    """Packets and messages of a running loop are not read in the same moment."""
    dropped = {"left": {"qdisc.send0.drops": BASE + 7, "qdisc.send0.packets": BASE}}
    shown = [counters(0), counters(1, **dropped)]
    sample = Sample("left.sender0", START_NS, {"sent_packets": 110, "sent_messages": 100})
    watch = watching(
        measuring(),
        Progress("sample", "", trial(), 1, 2, samples=(sample,)),
        *(Progress("sample", "", trial(), 1, 2, snapshots=snapshots) for snapshots in shown),
    )
    assert (Drops("tx_qdisc", 7.0, 7),) == watch.counted.drops


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("veth", "rx_queue_0_xdp_packets"),
        ("ena", "queue_0_rx_cnt"),
        ("bnxt_en", "[0]: rx_ucast_packets"),
    ],
)
def test_queues_and_cpus_are_reported_by_host(driver: str, name: str) -> None:
    """Packets a second of each RX queue, by its driver's name, and how busy each CPU is."""
    queue = f"ethtool.receive0.{name}"
    busy = {"cpu.0.user_ns": BASE + 60, "cpu.0.softirq_ns": BASE + 20, "cpu.0.idle_ns": BASE + 20}
    first = [
        replace(counter, counters={**counter.counters, queue: BASE}) for counter in counters(0)
    ]
    last = counters(1, right={queue: BASE + 500}, machine=busy)
    shown = [
        Progress("sample", "", trial(), 1, 2, snapshots=(*snapshots,))
        for snapshots in (first, last)
    ]
    begun = measuring()
    assert begun.record is not None
    nic = replace(begun.record.facts["right"], driver=driver)
    begun = replace(begun, record=replace(begun.record, facts={**begun.record.facts, "right": nic}))
    counted = watching(begun, *shown).counted
    assert (QueueRate("right rx-0", 500.0, None, None, (0,)),) == counted.queues
    assert {"machine 0": CpuShare(0.8, 0.2)} == counted.cpus


def test_a_phase_begins_from_nothing() -> None:
    """Rates and drops of the warm-up are not those of what follows."""
    watch = watching(measuring(), *sampled(series([5000])), measuring(phase="path"))
    assert ((), 0) == (watch.workers, watch.elapsed_ns)


def test_the_step_is_known_where_no_packets_flow() -> None:
    """What takes its time between phases has a name."""
    watch = watching(Progress("step", "apply", trial(), 1, 2))
    assert ("apply", None, 1, 2) == (watch.step, watch.phase, watch.index, watch.total)


def test_the_time_left_follows_the_plan_and_then_the_trials() -> None:
    """Two trials of 2.5 s each; the first took twice as long, so will the second."""
    watch = Watch([trial(), trial(repetition=2)])
    assert 5 * SECOND_NS == watch.left_ns(0)
    watch.add(Progress("step", "facts", trial(), 1, 2), 0)
    assert 4 * SECOND_NS == watch.left_ns(SECOND_NS)
    watch.add(Progress("trial", "done", trial(), 1, 2), 5 * SECOND_NS)
    assert 5 * SECOND_NS == watch.left_ns(5 * SECOND_NS)


@pytest.mark.parametrize("late_ns", [0, 10 * SECOND_NS])
def test_the_time_left_is_never_below_nothing(late_ns: int) -> None:
    """A trial that takes longer than its plan leaves 0."""
    pace = Pace(SECOND_NS)
    pace.begun(0)
    assert max(0, SECOND_NS - late_ns) == pace.left_ns(late_ns)


def test_a_worker_without_a_pinned_cpu_has_none() -> None:
    """CPU is what was asked for, not a guess."""
    free = tuple(replace(spec, cpu=None) for spec in specs(trial()))
    watch = watching(measuring(workers=free), *sampled(series([1])))
    assert [None] == [worker.cpu for worker in watch.workers]
