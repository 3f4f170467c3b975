"""A phase while it happens: what was stored as changes becomes readings again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.build import (
    BASE,
    START_NS,
    receiver_counts,
    record,
    sender_counts,
    trial,
    worker,
)
from udpbench.analysis.delta import Deltas
from udpbench.analysis.motion import (
    CpuShare,
    applied,
    cpu_shares,
    intervals,
    rounds_of,
    stage_packets,
)
from udpbench.analysis.readings import Readings, readings_of
from udpbench.model.experiment import Send
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Snapshot, TrialRecord

RCVBUF, DELIVERED = "snmp.Udp.RcvbufErrors", "snmp.Udp.InDatagrams"
SOCKET = "socket.77.drops"


def watched(rcvbuf: tuple[int, ...] = (10, 10, 30)) -> TrialRecord:
    """Return a trial of 2 s: RcvbufErrors by the end of second 1, by second 1 again, and after."""
    moves = {DELIVERED: 970, RCVBUF: rcvbuf[-1], SOCKET: rcvbuf[-1]}
    plain = record(1000, 970, moves={"right": moves})
    motion = []
    for second, total in enumerate(rcvbuf[:-1], start=1):
        changed = dict.fromkeys((RCVBUF, SOCKET), BASE + total) if second == 1 else {}
        motion += [
            Snapshot("left", START_NS + second * SECOND_NS // 2, {}),
            Snapshot("right", START_NS + second * SECOND_NS // 2, changed),
            Snapshot("machine", START_NS + second * SECOND_NS // 2, {}),
        ]
    return replace(plain, motion=tuple(motion))


def measured(of: TrialRecord) -> Readings:
    """Return the readings of the measured phase."""
    readings = readings_of(of)
    assert readings is not None
    return readings


def test_what_moved_is_added_to_what_was_before() -> None:
    """A counter that did not move is as it was; the clock is the later one."""
    before = Snapshot("left", 1, {"a": 1, "b": 2})
    assert Snapshot("left", 9, {"a": 1, "b": 5}) == applied(before, Snapshot("left", 9, {"b": 5}))


def test_rounds_begin_before_the_phase_and_end_after_it() -> None:
    """Two rounds in between make four, each with every counter of every host."""
    of = watched()
    rounds = list(rounds_of(of.phases[0], of.motion))
    assert 4 == len(rounds)
    assert [BASE, BASE + 10, BASE + 10, BASE + 30] == [
        snapshots["right"].counters[RCVBUF] for snapshots in rounds
    ]
    assert {"left", "right", "machine"} == set(rounds[1])


def test_a_round_that_a_failure_cut_short_is_left_out() -> None:
    """Counters of one host alone are no round."""
    of = watched()
    motion = (*of.motion, Snapshot("left", START_NS + 2 * SECOND_NS, {}))
    rounds = list(rounds_of(of.phases[0], motion))
    assert 4 == len(rounds)


def test_each_interval_has_its_own_drops() -> None:
    """Ten were lost in the first half, none in the next, twenty after it; the sum is the ledger."""
    by_interval = tuple(intervals(measured(watched())))
    assert [(0, 500), (500, 1000), (1000, 2000)] == [
        (interval.from_ns // 10**6, interval.to_ns // 10**6) for interval in by_interval
    ]
    assert [10, 0, 20] == [
        stage_packets(interval.readings)["udp_rcvbuf"] for interval in by_interval
    ]


def merged(moved: str, first: int, last: int, **left: int) -> list[int]:
    """Return by second what was lost of 50-packet messages, of which a counter lost so many."""
    workers = (
        worker("sender", sender_counts(1000, sent_messages=20)),
        worker("receiver", receiver_counts(1000)),
    )
    counters = {"link.send0.tx_packets": 20, **left, moved: last}
    plain = record(of=trial(send=Send(gso=50)), workers=workers, moves={"left": counters})
    changed = {"left": {moved: BASE + first}, "right": {}, "machine": {}}
    at_ns = START_NS + SECOND_NS
    motion = tuple(Snapshot(host, at_ns, moves) for host, moves in changed.items())
    stage = "tx_qdisc" if moved.startswith("qdisc") else "tx_device"
    by_interval = tuple(intervals(measured(replace(plain, motion=motion))))
    return [stage_packets(interval.readings)[stage] for interval in by_interval]


def test_drops_of_an_interval_are_packets_and_not_skbs() -> None:
    """A message that crossed whole is its packets; one that was segmented is one by one."""
    assert [100, 150] == merged("link.send0.tx_dropped", 2, 5, **{"link.send0.tx_packets": 15})
    assert [2, 3] == merged("link.send0.tx_dropped", 2, 5, **{"link.send0.tx_packets": 995})


def test_drops_of_a_queue_in_an_interval_are_packets_and_not_skbs() -> None:
    """What it dropped in the whole phase tells how many packets each was."""
    assert [100, 150] == merged("qdisc.send0.drops", 2, 5, **{"qdisc.send0.packets": 750})
    assert [20, 30] == merged("qdisc.send0.drops", 20, 50, **{"qdisc.send0.packets": 950})


def test_a_phase_that_nobody_watched_is_one_interval() -> None:
    """Records from before counters were watched have a before and an after."""
    (only,) = intervals(measured(record()))
    assert (0, 2 * SECOND_NS) == (only.from_ns, only.to_ns)


def test_stages_of_workers_are_not_among_those_of_counters() -> None:
    """No counter tells what was never sent, or what a reader truncated."""
    stages = stage_packets(measured(record()))
    assert set() == {"unsent", "tx_netfilter", "app_truncated"} & set(stages)


def test_a_cpus_share_is_of_its_own_time() -> None:
    """Idle and waiting are not busy; a CPU whose time stood still is not shown."""
    values = {
        "cpu.1.user_ns": 10,
        "cpu.1.softirq_ns": 30,
        "cpu.1.idle_ns": 50,
        "cpu.1.iowait_ns": 10,
        "cpu.2.user_ns": 0,
    }
    values |= {"cpu.abc.idle_ns": 1, f"cpu.{'9' * 5000}.idle_ns": 1}  # of no CPU
    assert {1: CpuShare(0.4, 0.3)} == cpu_shares(Deltas("machine", SECOND_NS, values, ()))


def test_more_counters_over_time_than_can_be_told_soon_are_one_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From before the phase until after it."""
    of = measured(watched())
    monkeypatch.setattr("udpbench.analysis.motion.MOST_DIFFERENCES", 1)
    (whole,) = intervals(of)
    assert (0, 2000) == (whole.from_ns // 10**6, whole.to_ns // 10**6)
