"""Packets by RX queue, and what is told where they take other ones than they were meant to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.build import facts, queued, record, specs, trial
from udpbench.analysis.delta import deltas
from udpbench.analysis.judge import judge
from udpbench.analysis.motion import between
from udpbench.analysis.queue_counters import carrying, queue_packets, queue_uses, sent_flows
from udpbench.analysis.readings import readings_of
from udpbench.model.experiment import Flows, Traffic
from udpbench.model.host import Change, Setting
from udpbench.model.record import Snapshot, TrialRecord


@pytest.mark.parametrize(
    ("driver", "counters", "packets"),
    [
        ("igb", {"rx_queue_0_packets": 7, "rx_queue_11_packets": 0}, {0: 7, 11: 0}),
        ("igb", {"tx_queue_0_packets": 7, "rx_queue_0_bytes": 7}, None),
        ("virtio_net", {"rx_queue_0_packets": 7, "rx_queue_0_xdp_packets": 9}, {0: 7}),
        ("mlx5_core", {"rx0_packets": 7, "rx10_packets": 1, "rx_packets": 8}, {0: 7, 10: 1}),
        ("sfc", {"rx-0.rx_packets": 7}, {0: 7}),
        ("i40e", {"rx-3.packets": 7}, {3: 7}),
        ("ena", {"queue_2_rx_cnt": 7}, {2: 7}),
        ("bnxt_en", {"[1]: rx_ucast_packets": 7}, {1: 7}),
        ("veth", {"rx_queue_0_xdp_packets": 7, "rx_queue_1_xdp_packets": 2}, {0: 7, 1: 2}),
        ("veth", {"rx_queue_0_xdp_packets": 0}, None),
        ("e1000e", {"rx_packets": 7}, None),
        ("hv_netvsc", {"rx_queue_1_packets": 7, "vf_rx_packets": 0}, {1: 7}),
        ("hv_netvsc", {"rx_queue_1_packets": 2, "vf_rx_packets": 9000}, None),
        ("atlantic", {"Queue[1] InPackets": 7, "Queue[1] OutPackets": 9}, {1: 7}),
        ("mlx4_core", {"rx1_packets": 7}, {1: 7}),
        (None, {"rx3_packets": 7}, {3: 7}),
    ],
)
def test_each_drivers_names_are_known(
    driver: str | None, counters: dict[str, int], packets: dict[int, int] | None
) -> None:
    """What XDP saw is only on a veth what its NAPI took in; a card that counts nothing is None."""
    here = facts("right", "receive0", "10.0.0.1/24", driver=driver)
    names = {f"ethtool.receive0.{name}": value for name, value in counters.items()}
    before = Snapshot("right", 0, {**dict.fromkeys(names, 100), "link.receive0.rx_packets": 5})
    after = Snapshot("right", 1, {name: 100 + value for name, value in names.items()})
    assert packets == queue_packets(here, deltas(before, after))


def test_the_kernels_statistics_of_queues_come_before_the_drivers() -> None:
    """Where a driver offers both, and where it has no names of its own (virtio_net since 6.10)."""
    here = facts("right", "receive0", "10.0.0.1/24", driver="virtio_net")
    own = {"ethtool.receive0.rx_queue_0_packets": 5}
    kernels = {"qstats.receive0.rx-0.packets": 7, "qstats.receive0.rx-11.packets": 0}
    moved = {**own, **kernels, "qstats.receive0.tx-0.packets": 9}
    before = Snapshot("right", 0, dict.fromkeys(moved, 0))
    assert {0: 7, 11: 0} == queue_packets(here, deltas(before, Snapshot("right", 1, moved)))


def used(moves: dict[str, dict[str, int]], **changes: object) -> list[tuple[object, ...]]:
    """Return what the queues of a record did whose counters moved so."""
    trial_record = record(moves=moves)
    changed = {
        host: replace(host_facts, **changes.get(host, {}))
        for host, host_facts in trial_record.facts.items()
    }  # type: ignore[arg-type]
    measured = readings_of(replace(trial_record, facts=changed))
    assert measured is not None
    uses = queue_uses(measured)
    return [(f"{u.host} {u.queue}", u.packets, u.drops, u.interrupts, u.cpus) for u in uses]


def test_packets_that_went_past_the_queues_are_not_theirs() -> None:
    """hv_netvsc over a virtual function: what its queues have is broadcasts, or nothing."""
    moved = {"tx_queue_0_packets": 0, "tx_queue_1_packets": 0, "vf_tx_packets": 1000}
    moves = {"left": {f"ethtool.send0.{name}": value for name, value in moved.items()}}
    over_vf = used(moves, left={"driver": "hv_netvsc"})
    assert [] == [use for use in over_vf if use[0].startswith("left tx")]
    moves["left"]["ethtool.send0.vf_tx_packets"] = 0
    its_own = used(moves, left={"driver": "hv_netvsc"})
    assert ["left tx-0", "left tx-1"] == [use[0] for use in its_own if use[0].startswith("left tx")]


def test_a_queue_has_packets_drops_interrupts_and_the_cpu_that_took_them() -> None:
    """A virtio card: packets by the kernel's statistics, interrupts of either way by machine."""
    card = {
        "driver": "virtio_net",
        "queue_irqs": {"0": 34, "1": 36},
        "tx_queue_irqs": {"0": 35},
        "queue_cpus": {"0": (7,), "1": (1,)},
    }
    moves = {
        "qstats.receive0.rx-0.packets": 900,
        "qstats.receive0.rx-1.packets": 100,
        "qstats.receive0.tx-0.packets": 3,
        "ethtool.receive0.rx0_drops": 4,
        "ethtool.receive0.rx1_drops": 0,
    }
    interrupts = {
        "interrupt.34.cpu0": 5,
        "interrupt.34.cpu1": 50,
        "interrupt.35.cpu0": 2,
        "interrupt.36.cpu0": 0,
        "interrupt.99.cpu0": 77,
    }
    uses = used({"right": moves, "machine": interrupts}, right=card)
    assert [
        ("right rx-0", 900, 4, 55, (1, 0)),
        ("right rx-1", 100, 0, 0, (1,)),
        ("right tx-0", 3, None, 2, (0,)),
    ] == uses


@pytest.mark.parametrize("number", ["9" * 5000, "abc", "٣"])
def test_queues_and_cpus_of_absurd_numbers_are_none(number: str) -> None:
    """As an agent that is none may name them."""
    moves = {
        f"qstats.receive0.rx-{number}.packets": 1,
        f"qstats.receive0.rx-{number}.hw-drops": 1,
        f"qdisc.receive0.tx_queue_{number}.packets": 1,
        "qstats.receive0.rx-0.packets": 900,
    }
    interrupts = {f"interrupt.4.cpu{number}": 9, f"interrupt.{number}.cpu0": 9}
    interrupts["interrupt.4.cpu1"] = 5
    card = {"driver": "virtio_net", "queue_irqs": {"0": 4}}
    uses = used({"right": moves, "machine": interrupts}, right=card)
    assert ("right rx-0", 900, None, 5, (1,)) in uses
    assert {"right rx-0", "right tx-0", "left tx-0"} >= {use[0] for use in uses}


def test_a_veth_sends_by_its_queueing_disciplines_and_polls_on_its_threads_cpu() -> None:
    """It has no interrupt; below mq each TX queue has a discipline, and one queue has the root's."""
    left = {"qdisc.send0.packets": 1000, "qdisc.send0.drops": 7}
    below = {"qdisc.send0.tx_queue_0.packets": 400, "qdisc.send0.tx_queue_1.packets": 600}
    below["qdisc.send0.tx_queue_1.drops"] = 7
    rx = ("right rx-0", 993, None, None, (0,))
    right = {"ethtool.receive0.rx_queue_0_xdp_packets": 993}
    assert [("left tx-0", 1000, 7, None, ()), rx] == used({"left": left, "right": right})
    assert [("left tx-0", 400, None, None, ()), ("left tx-1", 600, 7, None, ()), rx] == used(
        {"left": {**left, **below}, "right": right}
    )


def test_a_veth_without_a_discipline_counts_as_a_device() -> None:
    """What its only queue sent is what it sent; of several queues nothing is known, and not 0."""
    left = {"qdisc.send0.packets": 0, "link.send0.tx_packets": 900, "link.send0.tx_dropped": 100}
    assert [("left tx-0", 900, 100, None, ())] == used({"left": left})
    assert [] == used({"left": left}, left={"tx_queues": 2})


def test_a_queue_that_rests_for_a_second_took_none_then() -> None:
    """Its counters move in the phase, so a second in which they do not is a 0."""
    name = "ethtool.receive0.rx_queue_0_xdp_packets"
    trial_record = record(moves={"right": {name: 70}})
    measured = readings_of(trial_record)
    assert measured is not None
    idle = between(trial_record, measured.phase.after, measured.phase.after, within=measured)
    assert [("rx-0", 0)] == [(use.queue, use.packets) for use in queue_uses(idle)]


def test_what_nothing_counts_by_queue_has_no_row() -> None:
    """Not a row of zeros."""
    assert [] == used({}, left={"tx_queues": 2})


@pytest.mark.parametrize(
    ("packets", "flows", "queues"),
    [
        ({0: 500, 1: 5, 2: 495}, 2, (0, 2)),
        ({0: 0}, 1, ()),
        # ARP and LLDP beside the hundred packets of one flow, and beside the five of a low rate.
        ({0: 2, 3: 100}, 1, (3,)),
        ({0: 2, 3: 5}, 1, (3,)),
        # Of 25 flows four packets each, one of them on a queue of its own.
        ({0: 96, 1: 4}, 25, (0, 1)),
        ({0: 100, 1: 2}, 25, (0,)),
        ({0: 48, 1: 2}, 25, (0, 1)),
        # Of a thousand flows a packet each.
        ({0: 985, 1: 15, 2: 2}, 1000, (0, 1)),
        # Where others send more than the trial, it is not known which queue is ours.
        ({0: 3, 1: 3, 2: 3}, 1, (0, 1, 2)),
        # Nobody sends.
        ({0: 3}, 0, (0,)),
    ],
)
def test_a_queue_carries_a_whole_flow_in_the_path_phase(
    packets: dict[int, int], flows: int, queues: tuple[int, ...]
) -> None:
    """Fewer packets are what others send, and no worker is placed by them."""
    assert queues == carrying(packets, flows)


def test_fragments_of_one_flow_may_take_several_queues() -> None:
    """The first one has the ports, which a card may hash; the others have none."""
    chosen = trial(traffic=Traffic(size_bytes=8000, fragment=True))
    workers = specs(chosen)
    assert 7 == sent_flows(workers)
    assert (0, 1) == carrying({0: 100, 1: 500}, sent_flows(workers))
    assert 1 == sent_flows(specs(trial()))


def queue_findings(trial_record: TrialRecord) -> list[str]:
    """Return what is said of queues."""
    return [
        f"{finding.value}; {finding.limit}"
        for finding in judge(trial_record).findings
        if finding.what.startswith(("placement lost", "the card ignores"))
    ]


def test_queues_are_looked_at_only_where_something_follows_from_them() -> None:
    """Any queue will do where nobody asked."""
    assert [] == queue_findings(queued({0: 4, 1: 0}, {0: 0, 1: 1000}))


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({0: 1000, 1: 0}, []),
        ({0: 995, 1: 5}, []),
        ({0: 0, 1: 1000}, ["RX queue 1; RX queue 0"]),
        ({0: 500, 1: 500}, ["RX queue 0, 1; RX queue 0"]),
    ],
)
def test_packets_by_other_queues_than_in_the_path_phase_are_found(
    measured: dict[int, int], expected: list[str]
) -> None:
    """The CPU was chosen for the queue, so the trial is of something else."""
    chosen = trial()
    chosen = replace(chosen, receive=replace(chosen.receive, cpus="same-cpu"))
    assert expected == queue_findings(queued({0: 4, 1: 0}, measured, trial=chosen))


@pytest.mark.parametrize(
    ("path", "measured", "expected"),
    [
        ({0: 100, 1: 2}, {0: 10**6, 1: 9}, []),
        ({0: 100, 1: 30}, {0: 10**6, 1: 9}, []),
        # A burst of few packets, and others' beside them.
        ({0: 100, 1: 0}, {0: 200, 1: 3}, []),
        ({0: 100, 1: 0}, {0: 200, 1: 4}, ["RX queue 0, 1; RX queue 0"]),
        ({0: 100, 1: 0}, {0: 1, 1: 3}, ["RX queue 1; RX queue 0"]),
        # On the queue where others' packets had come.
        ({0: 100, 1: 2}, {0: 10**6, 1: 20_000}, ["RX queue 0, 1; RX queue 0"]),
        ({0: 100, 1: 2}, {0: 9, 1: 10**6}, ["RX queue 1; RX queue 0"]),
    ],
)
def test_what_others_send_in_the_path_phase_moves_no_queue(
    path: dict[int, int], measured: dict[int, int], expected: list[str]
) -> None:
    """A few packets of theirs are much of a path phase, and nothing under load."""
    chosen = trial()
    chosen = replace(chosen, receive=replace(chosen.receive, cpus="same-cpu"))
    assert expected == queue_findings(queued(path, measured, trial=chosen))


def test_a_queue_of_many_that_falls_silent_is_found() -> None:
    """Also where its flows went to queues that carried others before."""
    chosen = trial()
    chosen = replace(chosen, receive=replace(chosen.receive, cpus="same-cpu"))
    trial_record = queued(dict.fromkeys(range(16), 8), dict.fromkeys(range(8), 10**6), trial=chosen)
    sender, receiver = trial_record.workers
    trial_record = replace(
        trial_record, workers=(replace(sender, flows=sender.flows * 32), receiver)
    )
    listed = ", ".join(map(str, range(16)))
    assert [f"RX queue {listed[:22]}; RX queue {listed}"] == queue_findings(trial_record)


UNEVEN = "packets by RX queue 0: {}, 1: {}; 2 queues, evenly within 2.00 %"


@pytest.mark.parametrize(
    ("packets", "expected"),
    [
        ((500_000, 500_000), []),
        ((509_900, 490_100), []),
        ((489_000, 511_000), [UNEVEN.format(489_000, 511_000)]),
        # A call on a flow is of 64 packets, and the last one may have been on either.
        ((510_060, 489_940), []),
    ],
)
def test_queues_are_filled_by_the_rule_of_the_flows_that_were_kept(
    packets: tuple[int, int], expected: list[str]
) -> None:
    """Each carries its share within 2 %."""
    chosen = trial(traffic=Traffic(flows=Flows(queues=2)))
    measured = dict(enumerate(packets))
    assert expected == queue_findings(
        queued({0: 4, 1: 4}, measured, sent=10**6, received=10**6, of=chosen)
    )


@pytest.mark.parametrize(
    ("packets", "moves", "expected"),
    [
        # What was lost on the way may have been meant for the queue that is short of it.
        ((400_000, 500_000), {"left": {"link.send0.tx_dropped": 100_000}}, []),
        ((200_000, 700_000), {"left": {"link.send0.tx_dropped": 100_000}}, [UNEVEN]),
        # What was lost after it had been counted was not.
        (
            (450_000, 550_000),
            {"right": {"socket.77.drops": 100_000, "snmp.Udp.RcvbufErrors": 100_000}},
            [UNEVEN],
        ),
    ],
)
def test_what_no_queue_counted_may_have_been_of_any(
    packets: tuple[int, int], moves: dict[str, dict[str, int]], expected: list[str]
) -> None:
    """Only what is uneven wherever those packets were is said to be."""
    chosen = trial(traffic=Traffic(flows=Flows(queues=2)))
    trial_record = queued(
        {0: 4, 1: 4}, dict(enumerate(packets)), sent=10**6, received=900_000, moves=moves, of=chosen
    )
    assert [text.format(*packets) for text in expected] == queue_findings(trial_record)


INDIRECTION = Change(
    Setting("indirection", "receive0", "equal 1", path="settings.receiver.ethtool.indirection"),
    {"rings": 2, "table": [0, 1]},
    {"rings": 2, "table": [0, 0]},
)
NTUPLE = Change(Setting("ntuple", "receive0/udp4/4321", 1), None, 1)
OTHER_PORT = Change(Setting("ntuple", "receive0/udp4/9", 1), None, 1)


@pytest.mark.parametrize(
    ("change", "measured", "expected"),
    [
        (INDIRECTION, {0: 1000, 1: 0}, []),
        (
            INDIRECTION,
            {0: 600, 1: 400},
            ["400 of 1000 packets arrived on other RX queues; RX queue 0"],
        ),
        (replace(INDIRECTION, refusal="not supported"), {0: 600, 1: 400}, []),
        (NTUPLE, {0: 0, 1: 1000}, []),
        (NTUPLE, {0: 3, 1: 100}, []),
        (NTUPLE, {0: 3, 1: 0}, ["3 of 3 packets arrived on other RX queues; RX queue 1"]),
        (NTUPLE, {0: 1000, 1: 0}, ["1000 of 1000 packets arrived on other RX queues; RX queue 1"]),
        (OTHER_PORT, {0: 1000, 1: 0}, []),
    ],
)
def test_a_card_that_reads_back_and_does_not_act_is_found(
    change: Change, measured: dict[int, int], expected: list[str]
) -> None:
    """A table or a rule that was taken and not refused shows in the packets of each queue."""
    trial_record = queued({0: 4}, measured)
    assert expected == queue_findings(replace(trial_record, changes={"right": (change,)}))
