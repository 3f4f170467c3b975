"""What follows from the RX queues on which the path phase's packets land, in a fake world."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from control.fake import FakeAgent, World, facts, only
from udpbench.analysis.judge import judge
from udpbench.control.path_check import (
    PLACING_TRIES,
    PROBES_PER_FLOW,
    queues_moved,
    refuse_unsent,
)
from udpbench.errors import PathError
from udpbench.model.host import GSO_SEGMENTS, Facts
from udpbench.model.lab import Connect
from udpbench.model.record import Snapshot, WorkerStats

CPUS = (0, 1, 2, 3)


class Card(FakeAgent):
    """An agent whose receiver counts packets by queue, as a veth with NAPI does."""

    world: Queues

    def _facts(self, interface: str) -> Facts:
        host_facts: Facts = super()._facts(interface)
        cpus = self.world.queue_cpus if self.host == "receiver" else {}
        nodes = {"0": CPUS}
        limits = {GSO_SEGMENTS: 128}
        known = replace(host_facts, cpus=CPUS, numa_nodes=nodes, siblings={}, queue_cpus=cpus)
        return replace(known, limits=limits)

    def _prepare(
        self, interface: str, workers: list[dict[str, Any]], routed: list[str] | None
    ) -> list[dict[str, Any]]:
        if self.host == "sender":
            self.world.sockets += 1
        self.world.placed[self.host].append([worker["cpu"] for worker in workers])
        return super()._prepare(interface, workers, routed)

    def _start(self, order: dict[str, Any]) -> None:
        super()._start(order)
        if self.host == "sender":
            self.world.send(
                [flow["flow"] for worker in self.workers for flow in worker["flows"]], order
            )

    def _arriving(self) -> int:
        return 0 if self.world.started[-1][1] == self.world.silent else super()._arriving()

    def _snapshot(self, interface: str, **args: Any) -> Snapshot:
        snapshot: Snapshot = super()._snapshot(interface, **args)
        counted = self.world.counted if self.host == "receiver" else {}
        names = {f"ethtool.receive0.rx_queue_{q}_xdp_packets": n for q, n in counted.items()}
        return replace(snapshot, counters={**snapshot.counters, **names})


@dataclass
class Queues(World):
    """A link of several queues; which one a flow takes may follow from its socket."""

    lands: list[dict[int, int]] = field(default_factory=list)
    """For each time that the sender opened its sockets: flow → queue; the last one stays."""
    queue_cpus: dict[str, tuple[int, ...]] = field(default_factory=lambda: {"0": (0,), "1": (1,)})
    counted: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    silent: list[int] = field(default_factory=list)
    """Flows of which, sent alone, nothing arrives."""
    sockets: int = 0
    placed: dict[str, list[list[int | None]]] = field(
        default_factory=lambda: {"sender": [], "receiver": []}
    )
    """Role → CPUs of its workers, each time they were prepared."""
    started: list[tuple[str, list[int] | None]] = field(default_factory=list)
    """Phase and the flows it was to send."""
    beside: dict[int, list[dict[int, int]]] = field(default_factory=dict)
    """Flow → for each of its probes, queue → what the queue counts beside the probe's packets."""

    def open(self, host: str, _connect: Connect | None = None) -> FakeAgent:
        """Return a channel to an agent with a card."""
        self.say(f"open {host}")
        self.agents[host] = Card(host, self)
        return self.agents[host]

    def send(self, flows: list[int], phase: dict[str, Any]) -> None:
        """Count what a phase sends, flow by flow."""
        self.started.append((phase["phase"], phase["flows"]))
        lands = self.lands[min(self.sockets, len(self.lands)) - 1]
        for flow in flows if phase["flows"] is None else phase["flows"]:
            if lands[flow] in self.counted:
                self.counted[lands[flow]] += phase["count"] or 100
        (probed,) = phase["flows"] if len(phase["flows"] or ()) == 1 else (None,)
        beside = self.beside.get(probed)
        for queue, packets in (beside.pop(0) if beside else {}).items():
            self.counted[queue] += packets


def test_flows_are_kept_that_fill_the_queues_on_the_same_sockets(tmp_path: Path) -> None:
    """Each is looked at by itself; then the path, the warm-up and the trial send those kept."""
    world = Queues(lands=[{0: 0, 1: 0, 2: 1}])
    record = only(tmp_path, world, traffic={"flows": {"from": "1-3", "queues": 2}})
    assert [
        ("path", None),
        ("path", [0]),
        ("path", [1]),
        ("path", [2]),
        ("path", [0, 2]),
        ("warmup", [0, 2]),
        ("measured", [0, 2]),
    ] == world.started
    assert ("done", 1) == (record.status, world.sockets)
    assert [[0, 2], [0, 2]] == [[flow.flow for flow in worker.flows] for worker in record.workers]
    assert ["path", "warmup", "measured"] == [phase.name for phase in record.phases]
    assert [] == [finding for finding in judge(record).findings if "placement" in finding.what]


@pytest.mark.parametrize(
    ("beside", "probes"),
    [
        pytest.param([], 1, id="alone"),
        pytest.param([{0: 3}], 1, id="fewer of others"),
        pytest.param([{0: 14}], 2, id="more of others"),
        pytest.param([{0: 14}, {0: 4}], 3, id="others twice"),
        pytest.param([{0: number} for number in (14, 30, 7, 15, 16)], 5, id="others always"),
        pytest.param([{0: 5}] * 5, 5, id="others as regular"),
        pytest.param([{1: -4}, {1: 4}], 2, id="counted late"),
        pytest.param([{0: 2, 1: -4}, {1: 4}], 2, id="counted late beside others"),
    ],
)
def test_a_flow_is_of_the_queue_that_counts_each_probe(
    tmp_path: Path, beside: list[dict[int, int]], probes: int
) -> None:
    """Others' packets and late counters make a probe unclear; it is repeated until it is not."""
    world = Queues(lands=[{0: 0, 1: 1}], beside={1: beside})
    record = only(tmp_path, world, traffic={"flows": {"from": "1-2", "queues": 2}})
    assert ("done", probes) == (record.status, world.started.count(("path", [1])))
    assert [0, 1] == [flow.flow for flow in record.workers[0].flows]


def test_a_queue_that_counts_messages_is_told_from_one_of_others(tmp_path: Path) -> None:
    """A veth counts a GSO message once, so any number may be the flow's; most likely all packets."""
    beside = [{0: 1}] * PROBES_PER_FLOW
    world = Queues(lands=[{0: 0, 1: 1}], beside={1: beside})
    keys = {"traffic": {"flows": {"from": "1-2", "queues": 2}}, "send": {"gso": 4}}
    record = only(tmp_path, world, **keys)
    assert ("done", PROBES_PER_FLOW) == (record.status, world.started.count(("path", [1])))
    assert [0, 1] == [flow.flow for flow in record.workers[0].flows]


def test_a_queue_that_counts_each_message_alike_is_the_flows(tmp_path: Path) -> None:
    """Others sent just as many packets as arrived."""
    beside = [{0: others, 1: -3} for others in (14, 4, 9, 6, 5)]
    world = Queues(lands=[{0: 0, 1: 1}], beside={1: beside})
    keys = {"traffic": {"flows": {"from": "1-2", "queues": 2}}, "send": {"gso": 4}}
    record = only(tmp_path, world, **keys)
    assert ("done", [0, 1]) == (record.status, [flow.flow for flow in record.workers[0].flows])


def test_a_flow_that_no_queue_counts_is_not_kept(tmp_path: Path) -> None:
    """Its packets arrive, and so it is probed a few times."""
    world = Queues(lands=[{0: 0, 1: 7}])
    record = only(tmp_path, world, traffic={"flows": {"from": "1-2", "queues": 1}})
    assert ("done", PROBES_PER_FLOW) == (record.status, world.started.count(("path", [1])))
    assert [0] == [flow.flow for flow in record.workers[0].flows]


def test_a_flow_of_which_nothing_arrives_is_probed_once(tmp_path: Path) -> None:
    """No queue can count what was lost on the way."""
    world = Queues(lands=[{0: 0, 1: 7}], silent=[1])
    record = only(tmp_path, world, traffic={"flows": {"from": "1-2", "queues": 1}})
    assert ("done", 1) == (record.status, world.started.count(("path", [1])))
    assert [0] == [flow.flow for flow in record.workers[0].flows]


@pytest.mark.parametrize(
    ("keys", "world", "reason"),
    [
        (
            {"traffic": {"flows": {"queues": 2}}},
            Queues(lands=[{0: 0}]),
            "loads 2 RX queues evenly, within 2 %: all of them are 1 on queue 0",
        ),
        (
            {"traffic": {"flows": {"from": "1-65", "queues": 1}}},
            Queues(lands=[dict.fromkeys(range(65), 0)]),
            "65 flows are too many; at most 64",
        ),
        (
            {"receive": {"cpus": "same-cpu"}},
            Queues(lands=[{0: 0}], counted={}),
            "receive0 of receiver counts no packets by RX queue",
        ),
        (
            {"receive": {"cpus": "same-cpu"}},
            Queues(lands=[{0: 0}], queue_cpus={}),
            "no CPU is known to serve RX queue 0 of receive0 on receiver",
        ),
        (
            {"receive": {"cpus": "smt-sibling"}},
            Queues(lands=[{0: 0}]),
            "cpus: smt-sibling: no CPU for worker 0 of receiver",
        ),
    ],
)
def test_what_is_not_available_skips_the_trial(
    tmp_path: Path, keys: dict[str, Any], world: Queues, reason: str
) -> None:
    """The reason says what is missing; nothing was measured."""
    record = only(tmp_path, world, **keys)
    assert "skipped" == record.status
    assert record.error is not None
    assert reason in record.error.message
    assert "measured" not in [name for name, _ in world.started]


def test_receivers_move_to_the_queue_and_senders_stay_on_their_sockets(tmp_path: Path) -> None:
    """A receiver that had no CPU before is prepared again; the path is proven again."""
    world = Queues(lands=[{0: 1}])
    record = only(tmp_path, world, receive={"cpus": "same-cpu"})
    assert {"sender": [[2]], "receiver": [[None], [1]]} == world.placed
    assert ["path", "path", "warmup", "measured"] == [name for name, _ in world.started]
    assert [2, 1] == [worker.cpu for worker in record.workers]
    assert world.words.index("close receiver") < world.words.index("start receiver warmup")


def test_senders_that_move_look_again(tmp_path: Path) -> None:
    """Their new sockets may lead to another queue; once they do not move, that is proven."""
    world = Queues(lands=[{0: 0}, {0: 1}, {0: 1}])
    record = only(tmp_path, world, send={"cpus": "same-cpu"}, receive={"cpus": "any"})
    assert [[None], [0], [1]] == world.placed["sender"]
    assert (1, "done") == (record.workers[0].cpu, record.status)


def test_senders_that_never_settle_are_skipped(tmp_path: Path) -> None:
    """After so many tries it is told how to have one queue."""
    changing = [{0: number % 2} for number in range(PLACING_TRIES + 1)]
    world = Queues(lands=changing)
    record = only(tmp_path, world, send={"cpus": "same-cpu"}, receive={"cpus": "any"})
    assert record.error is not None
    assert ("skipped", True) == (record.status, "link: {queues: 1}" in record.error.message)


def test_a_queue_that_other_cpus_serve_after_the_trial_makes_it_invalid(tmp_path: Path) -> None:
    """Nobody set it, so that only looking at the facts again tells."""
    world = Queues(lands=[{0: 0}])
    world.hooks["verify receiver"] = lambda: setattr(world, "queue_cpus", {"0": (3,), "1": (1,)})
    record = only(tmp_path, world, receive={"cpus": "same-cpu"})
    assert (
        "receiver: placement lost: other CPUs now serve RX queue 0 of receive0 (CPU 0 → 3); "
        "expected: the same CPUs throughout a trial; pin them (settings.receiver.irq pauses "
        "irqbalance), or stop what moves them"
    ) == str(record.findings[-1])
    assert not judge(record).valid


def test_a_queue_that_nobody_serves_any_more_is_unknown() -> None:
    """A NAPI thread that ended has no CPU."""
    before = replace(facts("receiver", "receive0", ()), queue_cpus={"0": (1,)})
    (finding,) = queues_moved(before, replace(before, queue_cpus={}))
    assert "CPU 1 → unknown" == finding.value
    assert [] == queues_moved(before, before)


@pytest.mark.parametrize(
    ("number", "gso", "words"),
    [
        (errno.EIO, True, "send.gso needs an interface that computes checksums"),
        (errno.EIO, False, "Input/output error"),
        (errno.ENETUNREACH, True, "Network is unreachable"),
    ],
)
def test_who_sent_nothing_learns_which_error_its_calls_had(
    number: int, gso: bool, words: str
) -> None:
    """Such as GSO over an interface without checksums, before Linux 6.11."""
    failed = {"sent_packets": 0, "other_errors": 100, "last_errno": number}
    with pytest.raises(PathError, match="no packet could be sent") as raised:
        refuse_unsent([WorkerStats("sender.0", "sender", 1, failed)], gso)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "counts", [{"sent_packets": 0}, {"sent_packets": 1, "other_errors": 99, "last_errno": 5}]
)
def test_who_sent_something_is_no_reason_that_nothing_arrived(counts: dict[str, int]) -> None:
    """Nor is one whose calls did not fail."""
    refuse_unsent([WorkerStats("sender.0", "sender", 1, counts)], gso=True)
