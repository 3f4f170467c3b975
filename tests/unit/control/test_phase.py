"""One phase: what is waited for and for how long; ``test_drain`` has its end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

from control.fake import PACKETS, World, facts, only
from control.test_resumed import facts_as
from udpbench.control.path_proof import PathWatch
from udpbench.control.phase import (
    LEAD_EACH_NS,
    LEAD_NS,
    Plan,
    TrialAgents,
    path_plan,
    probe_plan,
    warmup_plan,
)
from udpbench.control.trial_state import Attempt, trial_agents
from udpbench.drivers import DRIVERS, driver_of
from udpbench.errors import SafetyError
from udpbench.model.experiment import Receive, Send, Traffic
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import RecordedError
from udpbench.model.work import FlowSpec, WorkerSpec

T = TypeVar("T")


def test_who_awaits_answers_is_stopped_after_the_receivers(tmp_path: Path) -> None:
    """Once these have read everything; others' senders end by themselves."""
    world = World()
    program = {"command": ["./server"]}
    parts = {"traffic": {"answers": "count", "count": PACKETS}, "receive": program}
    record = only(tmp_path, world, warmup="0s", **parts)
    assert ("done", None) == (record.status, record.error)
    stops = [word for word in world.words if word.startswith("stop")]
    assert ["stop receiver", "stop sender"] * 2 == stops
    plain = World()
    only(tmp_path / "plain", plain, warmup="0s")
    assert ["stop receiver"] * 2 == [word for word in plain.words if word.startswith("stop")]


def test_senders_that_never_end_are_a_deadline(tmp_path: Path) -> None:
    """A sender that still runs three seconds after its end failed."""
    world = World()
    world.hooks["start sender path"] = lambda: setattr(
        world.agents["sender"], "_counts", lambda: ({}, 0)
    )
    record = only(tmp_path, world)
    assert record.error is not None
    assert ("DeadlineExceeded", "sender") == (record.error.kind, record.error.host)
    assert record.error.message.endswith(": senders still running in phase path")


def test_loops_that_do_not_leave_are_a_deadline(tmp_path: Path) -> None:
    """A receiver that runs on after its stop fails the trial."""
    world = World()
    world.hooks["start sender path"] = lambda: setattr(
        world.agents["receiver"], "_stop", lambda: None
    )
    record = only(tmp_path, world)
    expected = "timed out after 5s: loops still running after phase path"
    assert RecordedError("DeadlineExceeded", expected, "receiver") == record.error


def test_a_worker_that_fails_is_raised_as_what_it_was(tmp_path: Path) -> None:
    """An error in a sample ends the phase with the agent's own words."""
    world = World()
    error = {"kind": "WorkerFailed", "message": "signal 9", "host": "receiver"}

    def failing() -> None:
        agent = world.agents["receiver"]
        before = agent._sample
        agent._sample = lambda since: replace(  # type: ignore[method-assign]
            before(since), state="failed", error=error
        )

    world.hooks["start sender measured"] = failing
    record = only(tmp_path, world)
    assert RecordedError(**error) == record.error
    assert ["path", "warmup", "measured"] == [phase.name for phase in record.phases]


def test_processes_are_looked_at_where_the_measured_phase_begins_and_ends(tmp_path: Path) -> None:
    """Every agent is asked, twice a trial: neither in other phases nor while packets flow.

    At the edges of a path phase each is asked what its tunnel's rules counted.
    """
    world = World()
    only(tmp_path, world, duration="3s")
    hosts = ("sender", "receiver", "machine")
    assert [
        f"{edge} {host}" for edge in ("path", "path", "begin", "end") for host in hosts
    ] == world.edges


def test_nodes_in_the_middle_are_asked_twenty_times_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While packets are sent: what a changed node leads elsewhere is what passes between two."""
    world = World()
    asked_ns: list[int] = []
    begun_ns: list[int] = []

    class Asking(PathWatch):
        def check(self) -> None:
            asked_ns.append(world.clock.now_ns())

    def watched(attempt: Attempt) -> TrialAgents:
        return replace(trial_agents(attempt), watch=Asking([]))

    monkeypatch.setattr("udpbench.control.trial_state.trial_agents", watched)
    world.hooks["start sender measured"] = lambda: begun_ns.append(world.clock.now_ns())
    only(tmp_path, world, duration="3s", warmup="0s")
    during = [at_ns for at_ns in asked_ns if 0 <= at_ns - begun_ns[0] <= 3 * SECOND_NS]
    assert max(after - before for before, after in pairwise(during)) <= 70 * 10**6


def test_the_path_is_watched_while_a_host_is_slow_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that its load overruns, for example: senders would go on unwatched."""
    world = World()

    class Changed(PathWatch):
        def check(self) -> None:
            raise SafetyError("routes were changed", "sender")

    def meanwhile(call: Callable[[], T], every_ns: int, work: Callable[[], object]) -> T:
        assert every_ns <= 50 * 10**6
        if "start sender measured" in world.words:
            world.clock.sleep_ns(every_ns)
            monkeypatch.setattr(PathWatch, "check", Changed.check)
            work()
        return call()

    def watched(attempt: Attempt) -> TrialAgents:
        return replace(trial_agents(attempt), watch=PathWatch([]))

    monkeypatch.setattr("udpbench.control.trial_state.trial_agents", watched)
    monkeypatch.setattr(world.clock, "meanwhile", meanwhile)
    record = only(tmp_path, world, duration="3s", warmup="0s")
    assert record.error is not None
    assert ("SafetyError", "sender") == (record.error.kind, record.error.host)


@pytest.mark.parametrize(("counters", "most"), [(0, 50), (2000, 1500)])
def test_a_host_tells_no_more_than_a_phase_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counters: int, most: int
) -> None:
    """All of it is kept: samples, and counters that moved."""
    monkeypatch.setattr("udpbench.control.phase.NUMBERS_PER_WORKER", 0)
    monkeypatch.setattr("udpbench.control.phase.NUMBERS_PER_HOST", most)
    world = World(drop_counters={f"snmp.Udp.{n}": 1 for n in range(counters)})
    record = only(tmp_path, world, duration="4s", warmup="0s")
    assert record.error is not None
    assert "AgentError" == record.error.kind
    text = rf"its agent sent \d+ numbers in one phase, at most {most}; find out what runs there .*"
    assert re.fullmatch(text, record.error.message)


def test_a_start_after_the_common_time_is_a_finding(tmp_path: Path) -> None:
    """A controller that was held up says so, because rates then cover less than the duration."""
    record = only(tmp_path, World(start_takes_ns=50 * 10**6), warmup="0s")
    assert [("phase path", "79900us late"), ("phase measured", "79900us late")] == [
        (finding.where, finding.value) for finding in record.findings
    ]


def test_a_start_that_is_answered_just_after_the_common_time_is_no_finding(
    tmp_path: Path,
) -> None:
    """Two agents that have answered 0.8 ms after their 20 ms: of a second that is no matter."""
    trips_ns = LEAD_NS + 2 * LEAD_EACH_NS + 8 * 10**5
    assert () == only(tmp_path, World(start_takes_ns=trips_ns // 2), warmup="0s").findings


def test_the_common_time_is_in_each_agents_own_clock(tmp_path: Path) -> None:
    """Agents whose clocks differ by an hour get starts that differ by an hour."""
    world = World()
    hour_ns = 3600 * SECOND_NS
    world.hooks["take receiver"] = lambda: far(world, "receiver", hour_ns)
    phase = only(tmp_path, world).phases[-1]
    assert hour_ns == phase.start_ns["receiver"] - phase.start_ns["sender"]
    # Half of the 100 us that a round trip to a fake agent takes is the bound.
    assert [(hour_ns, 50_000)] * 2 == [
        (reading.offset_ns, reading.bound_ns) for reading in phase.clocks["receiver"]
    ]


def test_an_agent_on_this_machine_has_the_controllers_clock(tmp_path: Path) -> None:
    """Whatever a slow reply made of its offset, it is none, and known exactly."""
    world = World()
    world.hooks["take receiver"] = lambda: setattr(world.agents["receiver"], "offset_ns", 77)
    phase = only(tmp_path, world).phases[-1]
    assert [(0, 0)] * 2 == [(clock.offset_ns, clock.bound_ns) for clock in phase.clocks["receiver"]]
    before, after = phase.clocks["receiver"]
    assert before.at_ns < after.at_ns


def test_clocks_are_learnt_anew_for_the_measured_phase(tmp_path: Path) -> None:
    """A lucky reply of long ago says nothing of a clock that has drifted since."""
    world = World()

    def lucky() -> None:
        far(world, "receiver", 0)
        world.agents["receiver"].round_trip_ns = 10

    world.hooks["take receiver"] = lucky
    path, warmup, measured = only(tmp_path, world).phases
    assert [5, 5, 50_000] == [
        phase.clocks["receiver"][0].bound_ns for phase in (path, warmup, measured)
    ]


def far(world: World, host: str, offset_ns: int) -> None:
    """Put an agent on another machine, whose clock is so far ahead."""
    agent = world.agents[host]
    agent.pid, agent.offset_ns = None, offset_ns


@pytest.mark.parametrize(("traffic", "samples"), [({}, 20), ({"count": 10**6}, 50)])
def test_senders_are_not_watched_at_the_polling_interval(
    tmp_path: Path, traffic: dict[str, int], samples: int
) -> None:
    """In ten seconds each agent is asked twice a second, five times with a count, not fifty."""
    series = only(tmp_path, World(), duration="10s", warmup="0s", traffic=traffic).series
    sent = [sample for sample in series if sample.worker == "sender.sender0"]
    assert samples <= len(sent) <= 1.2 * samples


def test_counters_are_watched_once_a_second(tmp_path: Path) -> None:
    """A phase of four seconds: a round before it is shown, and one each second after is kept."""
    world = World(drop_counters={"snmp.Udp.RcvbufErrors": 5, "snmp.Udp.NoPorts": 0})
    record = only(tmp_path, world, duration="4s", warmup="0s")
    shown = [progress.snapshots for progress in world.progress if progress.snapshots]
    mine = [snapshot for snapshot in record.motion if snapshot.host == "receiver"]
    assert [3] * 4 == [len(snapshots) for snapshots in shown]
    assert [{"snmp.Udp.RcvbufErrors"}] * 3 == [set(snapshot.counters) for snapshot in mine]
    assert {"snmp.Udp.RcvbufErrors", "snmp.Udp.NoPorts"} == set(shown[0][1].counters)


RING, CLOSED = "ethtool.receive0.rx_dropped.nic", "snmp.Udp.NoPorts"


@pytest.mark.parametrize(
    ("driver", "rounds", "waits"),
    [("veth", 0, False), ("virtio_net", 0, False), ("ice", 1, False), ("sfc", 1, True)],
)
def test_what_a_card_counts_is_read_again(
    tmp_path: Path, driver: str, rounds: int, waits: bool
) -> None:
    """At once, or two seconds after every phase; what the kernel counts is of the phase's end."""
    world = World(drop_counters={RING: 5, "link.receive0.rx_dropped": 3, CLOSED: 7})
    facts_as(world, driver=driver)
    record = only(tmp_path, world)
    assert ["path", "warmup", "measured"] == [phase.name for phase in record.phases]
    for phase in record.phases:
        before, after = phase.before["receiver"].counters, phase.after["receiver"].counters
        looks = (after[CLOSED] - before[CLOSED]) // 7
        assert 5 * (looks + rounds) == after[RING] - before[RING]
        assert 3 * (looks + rounds) == (
            after["link.receive0.rx_dropped"] - before["link.receive0.rx_dropped"]
        )
        sending_ns = SECOND_NS if phase.name == "measured" else 0
        spent_ns = record.overhead_ns[phase.name] - sending_ns
        assert (spent_ns > 2 * SECOND_NS) == waits
    # A sender's card is read again, too: it counts what it sent.
    assert world.agents["sender"].snapshots == world.agents["receiver"].snapshots > 0
    assert {"sender", "receiver", "machine"} == set(record.phases[-1].after)


def test_a_look_at_one_flow_waits_for_no_card() -> None:
    """Most drivers count what they read from a queue, and there may be hundreds of flows."""
    plan = probe_plan(workers(), 7, driver_of(facts("right", "eth0", ())).queue_packets_late_ns)
    assert (0, (7,)) == (plan.card_ns, plan.flows)
    assert 0 < probe_plan(workers(), 7, DRIVERS["bnxt_en"].queue_packets_late_ns).card_ns


@pytest.mark.parametrize(
    ("interface", "driver", "late_ns"),
    [
        ("lo", None, None),
        ("send0", "veth", None),
        ("eth0", "igb", 0),
        ("eth0", None, 2 * SECOND_NS),
        ("eth0", "sfc", 2 * SECOND_NS),
    ],
)
def test_who_counts_at_once(interface: str, driver: str | None, late_ns: int | None) -> None:
    """The kernel itself does, a card that is asked for it, and a driver that is not known may not."""
    here = replace(facts("receiver", interface, ("10.0.0.1/24",)), driver=driver)
    assert late_ns == driver_of(here).late_ns


FLOW = FlowSpec(0, "10.0.0.1", 65400, "10.0.0.2", 4321)


def workers(flows: int = 1, work_ns: int = 0, rate_pps: int | None = None) -> list[WorkerSpec]:
    """Return one sender and one receiver."""
    spec = WorkerSpec("sender", "left", 0, None, (FLOW,) * flows, Traffic(), Send(), None, rate_pps)
    receive = Receive(work_ns=work_ns)
    return [
        spec,
        WorkerSpec("receiver", "right", 0, None, (FLOW,), Traffic(), None, receive),
    ]


def reader(index: int, cpu: int | None) -> WorkerSpec:
    """Return a slow receiver on a CPU."""
    return replace(workers(work_ns=10**6)[1], index=index, cpu=cpu)


def merged() -> list[WorkerSpec]:
    """Return a sender of GSO messages and a receiver."""
    sender, receiver = workers(rate_pps=100_000)
    return [replace(sender, send=Send(gso=16)), receiver]


@pytest.mark.parametrize(
    ("specs", "count", "rate_pps"),
    [
        (workers(), 100, 2000),
        (workers(flows=50), 200, 4000),
        (workers(flows=500), 1000, 20_000),
        (workers(flows=20, rate_pps=40), 20, 40),
        (workers(flows=20, rate_pps=1), 1, 1),
        (workers(flows=20, work_ns=10**6), 100, 500),
        (workers(flows=20, work_ns=100 * 10**6), 2, 5),
        (workers(flows=20, work_ns=SECOND_NS), 1, 1),
        (merged(), 100, None),
    ],
)
def test_a_path_phase_is_a_few_packets(
    specs: list[WorkerSpec], count: int, rate_pps: int | None
) -> None:
    """Four per flow within limits, one by one, fewer where a low rate or a slow reader wants it."""
    assert Plan("path", 2 * SECOND_NS, count, rate_pps=rate_pps) == path_plan(specs)


@pytest.mark.parametrize(
    ("specs", "count"),
    [
        (workers(), None),
        (workers(work_ns=10**6), 2000),
        ([*workers(work_ns=10**6), reader(1, cpu=None)], 4000),
        ([*workers()[:1], reader(1, cpu=2), reader(2, cpu=2), reader(3, cpu=3)], 4000),
        ([replace(workers()[0], count_packets=100), workers(work_ns=10**6)[1]], 100),
    ],
)
def test_a_warm_up_leaves_no_long_queue(specs: list[WorkerSpec], count: int | None) -> None:
    """A slow reader gets what it can read in twice the warm-up; others what the rate gives."""
    assert Plan("warmup", SECOND_NS, count) == warmup_plan(specs, SECOND_NS)


def test_a_long_phase_goes_to_the_disk_while_it_lasts(tmp_path: Path) -> None:
    """Its record has every sample once and in order, and the folder had them in parts."""
    record = only(tmp_path, World(), duration="200s", warmup="0s")
    clocks = [sample.clock_ns for sample in record.series if sample.worker == "sender.sender0"]
    assert sorted(set(clocks)) == clocks
    assert 400 <= len(clocks)
    (series,) = tmp_path.glob("**/series.jsonl")
    parts = [json.loads(line) for line in series.read_text().splitlines()]
    assert len(record.series) == sum(len(part["samples"]) for part in parts)
    assert len(record.motion) == sum(len(part["snapshots"]) for part in parts)
    assert 500 >= max(len(part["samples"]) for part in parts)


def test_counters_of_a_long_phase_are_read_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is, all counters are read no more often than the limit."""
    monkeypatch.setattr("udpbench.control.phase.WATCHES_MAX", 60)
    motion = only(tmp_path, World(), duration="120s", warmup="0s").motion
    looks = [snapshot for snapshot in motion if snapshot.host == "sender"]
    assert 59 <= len(looks) <= 60
