"""Flows kept for RX queues, and CPUs as seen from the CPU of a queue."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from definition_fixture import both, facts, trial
from golden import Golden
from hypothesis import given, settings
from hypothesis import strategies as st

from udpbench.definition import load
from udpbench.definition.binding.bind import Landed, Unavailable, bind, keep
from udpbench.definition.binding.worker_cpus import queue_cpu, related
from udpbench.model.experiment import Traffic
from udpbench.model.lab import Lab
from udpbench.model.work import FlowSpec, WorkerSpec

# Two nodes of two cores with two threads each, the siblings four apart; the card is on node 1.
NODES = {"0": (0, 1, 4, 5), "1": (2, 3, 6, 7)}
CORES = {str(cpu): (cpu % 4, cpu % 4 + 4) for cpu in range(8)}
QUEUES = {"0": (2,), "1": (3,)}


def on_right(landing: dict[int, int]) -> dict[int, tuple[str, int]]:
    """Return queues as of one receiver."""
    return {flow: ("right", queue) for flow, queue in landing.items()}


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
    assert kept == keep(on_right(landing), workers(*flows), queues)


@pytest.mark.parametrize("per_queue", [1, 16])
def test_all_flows_stay_where_each_worker_fills_half_of_the_queues(per_queue: int) -> None:
    """64 flows of 2 workers on 4 queues, 16 each: every queue has half of one worker's load."""
    landing = {flow: flow // per_queue for flow in range(4 * per_queue)}
    flows = [list(range(2 * per_queue)), list(range(2 * per_queue, 4 * per_queue))]
    assert set(landing) == keep(on_right(landing), workers(*flows), 4)


def test_queues_of_several_receivers_are_filled_evenly_together(golden: Golden) -> None:
    """What a worker sends one receiver it does not send the other, so neither is even by itself."""
    landing = {0: ("one", 0), 1: ("one", 1), 2: ("two", 0), 3: ("two", 1), 4: ("two", 1)}
    assert {0, 1, 2, 3} >= keep(landing, workers([0, 1, 2, 3, 4]), 2)
    with golden.raises(Unavailable):
        keep({0: ("one", 0), 1: ("two", 1), 2: ("two", 1)}, workers([0, 1, 2]), 2)


def test_more_than_the_fullest_queues_are_looked_at() -> None:
    """The fullest two are of one worker alone; a second look takes another one."""
    landing = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
    assert {0, 1, 2, 3} != keep(on_right(landing), workers([0, 1, 2, 3], [4]), 2) >= {4}


def even(kept: Collection[int], landing: dict[int, int], flows: list[list[int]]) -> set[int]:
    """Return the queues of kept flows, having proven that they have even loads."""
    load: dict[int, Fraction] = defaultdict(Fraction)
    for mine in flows:
        own = [landing[flow] for flow in mine if flow in kept]
        assert own, "a worker that sends nothing"
        for queue in own:
            load[queue] += Fraction(1, len(own))
    share = Fraction(len(flows), len(load))
    assert all(abs(part / share - 1) <= Fraction(2, 100) for part in load.values())
    return set(load)


def possible(landing: dict[int, int], flows: list[list[int]], queues: int) -> bool:
    """Say whether any choice of flows is even, by trying each."""
    for number in range(2 ** len(landing)):
        kept = {flow for flow in landing if number >> flow & 1}
        try:
            if len(even(kept, landing, flows)) == queues:
                return True
        except AssertionError:
            continue
    return False


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=4).filter(
        lambda lands: sum(map(len, lands)) <= 9
    ),
    st.integers(1, 4),
)
def test_a_choice_is_even_and_a_refusal_means_that_there_is_none(
    lands: list[list[int]], queues: int
) -> None:
    """However few flows of however many workers land wherever."""
    flat = [queue for mine in lands for queue in mine]
    landing, numbers = dict(enumerate(flat)), iter(range(len(flat)))
    flows = [[next(numbers) for _ in mine] for mine in lands]
    if possible(landing, flows, queues):
        kept = keep(on_right(landing), workers(*flows), queues)
        assert queues == len(even(kept, landing, flows))
    else:
        share = re.escape(f"{flat.count(flat[0])} on queue {flat[0]} (")
        with pytest.raises(Unavailable, match=share):
            keep(on_right(landing), workers(*flows), queues)


@settings(max_examples=30)
@given(st.integers(1, 16), st.integers(1, 4), st.randoms(use_true_random=False))
def test_many_flows_are_chosen_from(count: int, queues: int, random: Random) -> None:
    """64 of them on queues at random; where every worker has one on each, there is a choice."""
    landing = {flow: random.randrange(queues) for flow in range(64)}
    flows = [list(range(64))[k::count] for k in range(count)]
    everywhere = all(len({landing[flow] for flow in mine}) == queues for mine in flows)
    try:
        kept = keep(on_right(landing), workers(*flows), queues)
    except Unavailable:
        assert not everywhere
    else:
        assert queues == len(even(kept, landing, flows))


@pytest.mark.parametrize(
    ("landing", "flows", "queues"),
    [
        ({0: 0, 1: 0}, [[0, 1]], 2),
        ({0: 0, 1: 1, 2: 1}, [[0], [1], [2]], 2),
        ({0: 0, 1: 0, 2: 1}, [[0], [1, 2], []], 3),
        ({0: 0, 1: 0, 2: 0, 3: 1}, [[0], [1], [2], [3]], 2),
        ({}, [[0]], 1),
    ],
)
def test_flows_that_cannot_fill_them_evenly_are_reported_where_they_are(
    landing: dict[int, int], flows: list[list[int]], queues: int, golden: Golden
) -> None:
    """The trial is skipped; more flows would help."""
    with pytest.raises(Unavailable) as caught:
        keep(on_right(landing), workers(*flows), queues)
    golden.check(str(caught.value))


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
        ("same-cpu", (2,), "CPUs in use: 2"),
        ("smt-sibling", (6,), "CPUs in use: 6"),
        ("same-node", (7,), "CPUs in use: 3, 7"),
        ("other-node", (0, 1, 4, 5), "CPUs in use: 0, 1, 4, 5"),
    ],
)
def test_a_cpu_of_the_other_role_is_never_taken(
    relation: str, taken: tuple[int, ...], reason: str
) -> None:
    """Then the trial is skipped, and this is why."""
    host = facts("right", tuple(range(8)), numa_nodes=NODES, siblings=CORES)
    with pytest.raises(Unavailable) as caught:
        related(relation, [2, 3], 1, host, taken)
    assert str(caught.value).endswith(f"relative to CPU 2 of its RX queue: {reason}")


@pytest.mark.parametrize("relation", ["smt-sibling", "same-node", "other-node"])
def test_what_a_machine_has_not_is_reported(relation: str, golden: Golden) -> None:
    """One CPU has neither sibling nor company."""
    with golden.raises(Unavailable):
        related(relation, [0], 1, facts("right", (0,), numa_nodes={"0": (0,)}), ())


def test_a_queue_that_several_cpus_may_serve_is_no_place(golden: Golden) -> None:
    """It is told how to pin it."""
    host = facts("right", queue_cpus={"0": (0, 1), "1": (1,)})
    assert 1 == queue_cpu(host, 1)
    with pytest.raises(Unavailable) as caught:
        queue_cpu(host, 0)
    golden.check(str(caught.value))


def test_until_it_is_known_where_flows_land_a_related_worker_is_not_pinned(lab: Lab) -> None:
    """Then it is, and only the kept flows are left to every worker."""
    known = both((0, 1, 2, 3), numa_nodes={"0": (0, 1, 2, 3)})
    known["receiver"] = replace(known["receiver"], queue_cpus={"1": (1,)})
    chosen = trial(receive={"cpus": "same-node"}, traffic={"flows": {"from": "1-3"}})
    assert [2, None] == [worker.cpu for worker in bind(chosen, lab, known).workers]
    landed = Landed({"receiver": (1,)}, frozenset([0, 2]))
    sender, receiver = bind(chosen, lab, known, landed).workers
    assert (2, 0) == (sender.cpu, receiver.cpu)
    assert [[0, 2], [0, 2]] == [
        [flow.flow for flow in worker.flows] for worker in (sender, receiver)
    ]


def test_two_relations_give_the_receivers_the_first_choice(lab: Lab) -> None:
    """A sender's is seen from the receiver's queue, too, and avoids what the receiver took."""
    known = both((0, 1, 2, 3), numa_nodes={"0": (0, 1, 2, 3)})
    known["receiver"] = replace(known["receiver"], queue_cpus={"0": (0,)})
    chosen = trial(receive={"cpus": "same-node"}, send={"cpus": "same-node"})
    bound = bind(chosen, lab, known, Landed({"receiver": (0,)}))
    assert [2, 1] == [worker.cpu for worker in bound.workers]


def test_workers_that_share_the_queues_cpu_are_reported(lab: Lab, golden: Golden) -> None:
    """As with any other list of CPUs."""
    known = both((0, 1, 2, 3))
    known["receiver"] = replace(known["receiver"], queue_cpus={"0": (0,)})
    chosen = trial(receive={"cpus": "same-cpu", "workers": 2})
    bound = bind(chosen, lab, known, Landed({"receiver": (0,)}))
    golden.check([finding.what for finding in bound.findings])


def test_no_queue_is_no_place(lab: Lab, golden: Golden) -> None:
    """A path phase of which nothing reached a queue tells no CPU."""
    chosen = trial(receive={"cpus": "same-cpu"})
    with golden.raises(Unavailable):
        bind(chosen, lab, both(), Landed({"receiver": ()}))


def test_a_sender_on_another_machine_sees_no_queue(golden: Golden) -> None:
    """A relation is for the host that has the queue."""
    far = load.load_lab("two-hosts")
    known = {
        "left": facts("left", boot_id="one"),
        "right": facts("right", boot_id="other", queue_cpus={"0": (0,)}),
    }
    with golden.raises(Unavailable):
        bind(trial(send={"cpus": "same-cpu"}), far, known, Landed({"right": (0,)}))
