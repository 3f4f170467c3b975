"""Flows kept for RX queues, and CPUs as seen from the CPU of a queue."""

from __future__ import annotations

from dataclasses import replace

import pytest
from definition_fixture import both, facts, trial

from udpbench.definition import load
from udpbench.definition.bind import Landed, Unavailable, bind, keep
from udpbench.definition.relations import queue_cpu, related
from udpbench.model import FlowSpec, Lab, Traffic, WorkerSpec

# Two nodes of two cores with two threads each, the siblings four apart; the card is on node 1.
NODES = {"0": (0, 1, 4, 5), "1": (2, 3, 6, 7)}
CORES = {str(cpu): (cpu % 4, cpu % 4 + 4) for cpu in range(8)}
QUEUES = {"0": (2,), "1": (3,)}


def workers(*flows: list[int]) -> list[WorkerSpec]:
    """Return sending workers, each with these flows."""
    return [
        WorkerSpec(
            "sender",
            "left",
            k,
            None,
            tuple(FlowSpec(n, "10.0.0.9", n, "10.0.0.1", 9) for n in numbers),
            Traffic(),
        )
        for k, numbers in enumerate(flows)
    ]


@pytest.mark.parametrize(
    ("landing", "flows", "queues", "kept"),
    [
        # Every worker has equally many flows on each queue, the fullest queues first.
        ({0: 0, 1: 1, 2: 0, 3: 1}, [[0, 1, 2, 3]], 2, {0, 1, 2, 3}),
        ({0: 0, 1: 0, 2: 0, 3: 1}, [[0, 1, 2, 3]], 1, {0, 1, 2}),
        ({0: 0, 1: 0, 2: 0, 3: 1}, [[0, 1, 2, 3]], 2, {0, 3}),
        ({0: 0, 1: 1, 2: 0, 3: 1}, [[0, 1], [2, 3]], 2, {0, 1, 2, 3}),
        # Where one has none on a queue, each worker has a queue of its own.
        ({0: 0, 1: 1}, [[0], [1]], 2, {0, 1}),
        ({0: 0, 1: 1, 2: 0, 3: 0}, [[0, 1], [2, 3]], 2, {1, 2, 3}),
        # A flow that did not arrive is on no queue.
        ({0: 5}, [[0, 1]], 1, {0}),
    ],
)
def test_flows_are_kept_so_that_queues_have_the_same_load(
    landing: dict[int, int], flows: list[list[int]], queues: int, kept: set[int]
) -> None:
    """As many as possible."""
    assert kept == keep(landing, workers(*flows), queues)


@pytest.mark.parametrize(
    ("landing", "flows", "queues", "there"),
    [
        ({0: 0, 1: 0}, [[0, 1]], 2, "2 on queue 0"),
        ({0: 0, 1: 1, 2: 1}, [[0], [1], [2]], 2, "1 on queue 0, 2 on queue 1"),
        ({0: 0, 1: 0, 2: 1}, [[0], [1, 2], []], 3, "2 on queue 0, 1 on queue 1"),
        ({0: 0, 1: 0, 2: 0, 3: 1}, [[0], [1], [2], [3]], 2, "3 on queue 0, 1 on queue 1"),
        ({}, [[0]], 1, "none arrived"),
    ],
)
def test_flows_that_cannot_fill_them_evenly_are_told_where_they_are(
    landing: dict[int, int], flows: list[list[int]], queues: int, there: str
) -> None:
    """The trial is skipped; more flows would help."""
    with pytest.raises(Unavailable) as caught:
        keep(landing, workers(*flows), queues)
    assert f"evenly: {there}; widen traffic.flows.from or to" in str(caught.value)


@pytest.mark.parametrize(
    ("relation", "count", "taken", "chosen"),
    [
        ("same-cpu", 1, (), (2,)),
        ("same-cpu", 3, (), (2, 3, 2)),
        ("smt-sibling", 2, (), (6, 7)),
        ("same-node", 1, (), (7,)),
        ("same-node", 2, (), (7, 6)),
        ("other-node", 3, (0,), (1, 4, 5)),
    ],
)
def test_a_relation_is_seen_from_the_cpu_of_the_workers_queue(
    relation: str, count: int, taken: tuple[int, ...], chosen: tuple[int, ...]
) -> None:
    """Worker k from the k-th queue; of the node another core; never one that is a queue's."""
    host = facts("right", tuple(range(8)), numa_nodes=NODES, siblings=CORES)
    assert chosen == related(relation, [2, 3], count, host, taken)


@pytest.mark.parametrize(
    ("relation", "taken", "reason"),
    [
        ("same-cpu", (2,), "those there, 2, are in use"),
        ("smt-sibling", (6,), "those there, 6, are in use"),
        ("same-node", (7,), "those there, 3, 7, are in use"),
        ("other-node", (0, 1, 4, 5), "those there, 0, 1, 4, 5, are in use"),
    ],
)
def test_a_cpu_of_the_other_role_is_never_taken(
    relation: str, taken: tuple[int, ...], reason: str
) -> None:
    """Then the trial is skipped, and this is why."""
    host = facts("right", tuple(range(8)), numa_nodes=NODES, siblings=CORES)
    with pytest.raises(Unavailable) as caught:
        related(relation, [2, 3], 1, host, taken)
    assert str(caught.value).endswith(f"seen from CPU 2 of its RX queue: {reason}")


@pytest.mark.parametrize("relation", ["smt-sibling", "same-node", "other-node"])
def test_what_a_machine_has_not_is_said(relation: str) -> None:
    """One CPU has neither sibling nor company."""
    with pytest.raises(Unavailable, match="there is none"):
        related(relation, [0], 1, facts("right", (0,), numa_nodes={"0": (0,)}), ())


def test_a_queue_that_several_cpus_may_serve_is_no_place() -> None:
    """It is told how to pin it."""
    host = facts("right", queue_cpus={"0": (0, 1), "1": (1,)})
    assert 1 == queue_cpu(host, 1)
    with pytest.raises(Unavailable) as caught:
        queue_cpu(host, 0)
    assert (
        "RX queue 0 of x0 on right may be served by any of the CPUs 0, 1; pin it: "
        "settings.receiver.irq, napi.cpus or rps with one CPU each"
    ) == str(caught.value)


def test_until_it_is_known_where_flows_land_a_related_worker_is_not_pinned(lab: Lab) -> None:
    """Then it is, and only the kept flows are left to every worker."""
    known = both((0, 1, 2, 3), numa_nodes={"0": (0, 1, 2, 3)})
    known["receiver"] = replace(known["receiver"], queue_cpus={"1": (1,)})
    chosen = trial(receive={"cpus": "same-node"}, traffic={"flows": {"from": "1-3"}})
    assert [2, None] == [one.cpu for one in bind(chosen, lab, known).workers]
    landed = Landed({"receiver": (1,)}, frozenset([0, 2]))
    sender, receiver = bind(chosen, lab, known, landed).workers
    assert (2, 0) == (sender.cpu, receiver.cpu)
    assert [[0, 2], [0, 2]] == [[flow.flow for flow in one.flows] for one in (sender, receiver)]


def test_two_relations_give_the_receivers_the_first_choice(lab: Lab) -> None:
    """A sender's is seen from the receiver's queue, too, and avoids what the receiver took."""
    known = both((0, 1, 2, 3), numa_nodes={"0": (0, 1, 2, 3)})
    known["receiver"] = replace(known["receiver"], queue_cpus={"0": (0,)})
    chosen = trial(receive={"cpus": "same-node"}, send={"cpus": "same-node"})
    bound = bind(chosen, lab, known, Landed({"receiver": (0,)}))
    assert [2, 1] == [one.cpu for one in bound.workers]


def test_workers_that_share_the_queues_cpu_are_told(lab: Lab) -> None:
    """As with any other list of CPUs."""
    known = both((0, 1, 2, 3))
    known["receiver"] = replace(known["receiver"], queue_cpus={"0": (0,)})
    chosen = trial(receive={"cpus": "same-cpu", "workers": 2})
    bound = bind(chosen, lab, known, Landed({"receiver": (0,)}))
    assert ["workers share CPUs"] == [finding.what for finding in bound.findings]


def test_no_queue_is_no_place(lab: Lab) -> None:
    """A path phase of which nothing reached a queue tells no CPU."""
    chosen = trial(receive={"cpus": "same-cpu"})
    with pytest.raises(Unavailable, match="no RX queue of receiver carries traffic"):
        bind(chosen, lab, both(), Landed({"receiver": ()}))


def test_a_sender_on_another_machine_sees_no_queue() -> None:
    """A relation is for the host that has the queue."""
    far = load.load_lab("two-hosts")
    known = {
        "left": facts("left", boot_id="one"),
        "right": facts("right", boot_id="other", queue_cpus={"0": (0,)}),
    }
    with pytest.raises(Unavailable, match=r"left is another machine than the RX queues"):
        bind(trial(send={"cpus": "same-cpu"}), far, known, Landed({"right": (0,)}))
