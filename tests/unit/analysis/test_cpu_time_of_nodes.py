"""The ledger of CPU time of hosts in the middle: whose forwarding is, and what a packet costs there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from golden import Golden

from analysis import build, sampled
from analysis.build import MS
from analysis.sampled import HOG_PID, IDLE, QUIET, SENDS, SOFTIRQ, Seen, samples
from udpbench.analysis.cpu_owners import taken_by
from udpbench.analysis.cpu_time import costs_of_cpu, stacks
from udpbench.analysis.diagnosis import full_node, node_cpu
from udpbench.analysis.evidence import Evidence
from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.readings import readings_of
from udpbench.model.record import Snapshot, TrialRecord
from udpbench.model.result import CpuTime, Ledger, LedgerEntry
from udpbench.report.cpu_figure_data import _boxes
from udpbench.report.path_picture import _costs

INLINE = (*SOFTIRQ, "do_softirq", "__dev_queue_xmit", *SENDS)
"""What a veth hands over while it is sent: a soft interrupt of the sender's CPU."""
RULES = Seen(1, sampled.SENDER_PID, ("nft_do_chain", "nf_hook_slow", "ip_forward", *INLINE), 40)
LEAVES = Seen(1, sampled.SENDER_PID, ("veth_xmit", "dev_hard_start_xmit", "ip_output", *INLINE), 30)
BRIDGES = Seen(1, sampled.SENDER_PID, ("br_forward", "br_handle_frame", *INLINE), 20)
COMES = Seen(1, sampled.SENDER_PID, ("nft_do_chain", "nf_hook_slow", "ip_rcv", *INLINE), 10)
FORWARDED = (RULES, LEAVES, COMES)
FULL = (*QUIET[:-1], Seen(1, 0, IDLE, 1820))


def between(
    record: TrialRecord,
    *nodes: str,
    queue_cpus: Mapping[str, int] | None = None,
    bridges: Mapping[str, tuple[str, ...]] | None = None,
) -> TrialRecord:
    """Return a record whose packets pass nodes of the same machine, with queues on some CPUs."""
    (phase,) = record.phases
    queues = queue_cpus or {}
    names = {"right": "receive0", "left": "send0", **dict.fromkeys(nodes, "in0")}
    facts = {
        name: replace(
            record.facts.get(name) or build.facts(name, interface, "10.0.0.254/24"),
            queue_cpus={"0": (queues[name],)} if name in queues else {},
        )
        for name, interface in names.items()
    }
    edges = [
        {**edge, **{node: Snapshot(node, clock, {"link.in0.rx_packets": 5}) for node in nodes}}
        for clock, edge in ((1, phase.before), (2, phase.after))
    ]
    return replace(
        record,
        phases=(replace(phase, before=edges[0], after=edges[1]),),
        facts={**record.facts, **facts},
        between=dict.fromkeys(nodes, "middle"),
        exits=dict.fromkeys(nodes, "out0"),
        bridges=dict(bridges or {}),
    )


def idle_of(
    record: TrialRecord, busy_ms: Mapping[int, int], softirq_ms: Mapping[int, int] | None = None
) -> TrialRecord:
    """Return a record in which the kernel counted CPUs as busy for so long, with soft interrupts."""
    (phase,) = record.phases
    edges = []
    for snapshot, wall_ms in ((phase.before["machine"], 0), (phase.after["machine"], 2000)):
        counters = dict(snapshot.counters)
        for cpu, busy in busy_ms.items():
            counters[f"cpu.{cpu}.idle_ns"] = (wall_ms - busy) * MS if wall_ms else 0
        for cpu, ms in (softirq_ms or {}).items():
            counters[f"cpu.{cpu}.softirq_ns"] = ms * MS if wall_ms else 0
        edges.append(replace(snapshot, counters=counters))
    phase = replace(
        phase,
        before={**phase.before, "machine": edges[0]},
        after={**phase.after, "machine": edges[1]},
    )
    return replace(record, phases=(phase,))


def known(record: TrialRecord) -> CpuTime:
    """Return where the CPU time of a record went."""
    cpu_time = judge(record).cpu_time
    assert cpu_time is not None
    return cpu_time


def owned(record: TrialRecord, cpu: int = 1) -> dict[tuple[str, str], int]:
    """Return whose time on a CPU was at which stage, in ms as sampled."""
    times: Counter[tuple[str, str]] = Counter()
    for entry in known(record).entries:
        if entry.cpu == cpu:
            times[entry.end, entry.stage] += entry.sampled_ns // MS
    return dict(times)


def on_senders_cpu(*seen: Seen) -> TrialRecord:
    """Return a record whose sender's CPU forwards as well."""
    busy_ms = 100 + sum(each.count for each in seen)
    return idle_of(
        sampled.record(*seen, seen=(*QUIET[:-1], Seen(1, 0, IDLE, 2000 - busy_ms))), {1: busy_ms}
    )


def test_what_is_forwarded_on_a_senders_cpu_is_the_nodes() -> None:
    """Before ip_forward a chain does not tell in which namespace it is, and stays with the end."""
    record = between(on_senders_cpu(*FORWARDED), "router1")
    assert {
        ("sender", "tx_udp"): 100,
        ("router1", "fwd_netfilter"): 40,
        ("router1", "fwd_device"): 30,
        ("sender", "rx_netfilter"): 10,
    } == owned(record)
    (balance,) = (each for each in known(record).balances if each.cpu == 1)
    spent = sum(e.time_ns for e in known(record).entries if e.cpu == 1)
    assert (balance.wall_ns, "") == (pytest.approx(spent + balance.idle_ns), balance.struck)


def test_of_several_nodes_on_one_machine_none_is_guessed() -> None:
    """Which of two routers forwarded, a chain of functions does not say."""
    record = between(on_senders_cpu(*FORWARDED), "router1", "router2")
    assert {"sender", "nodes"} == {end for end, _ in owned(record)}
    (rules,) = (cost for cost in known(record).costs if cost.stage == "fwd_netfilter")
    assert ("nodes", 40_000, None) == (
        *(rules.end, pytest.approx(rules.ns_per_packet), rules.entered_packets),
    )


def test_without_a_node_forwarding_is_of_whose_the_cpu_is() -> None:
    """On a CPU of nobody's it is the link's: who forwards there has no name in the lab."""
    assert {("sender", "tx_udp"): 100, ("sender", "fwd_netfilter"): 40} == owned(
        on_senders_cpu(RULES)
    )
    steered = RULES._replace(cpu=2)
    record = idle_of(sampled.record(steered, Seen(2, 0, IDLE, 1960)), {2: 40})
    assert {("link", "fwd_netfilter"): 40} == owned(record, 2)
    (cost,) = (cost for cost in known(record).costs if cost.end == "link")
    assert (cost.ns_per_packet, pytest.approx(1.0)) == (None, cost.share)


@pytest.mark.parametrize(
    ("bridges", "whose"), [({"host": ("br0", "in0", "out0")}, "host"), ({}, "sender")]
)
def test_a_bridge_is_the_nodes_if_one_has_a_bridge(
    bridges: dict[str, tuple[str, ...]], whose: str
) -> None:
    """Else it is another's, as the bridge that joins several senders."""
    assert {("sender", "tx_udp"): 100, (whose, "bridge"): 20} == owned(
        between(on_senders_cpu(BRIDGES), "host", bridges=bridges)
    )


@pytest.mark.parametrize(
    ("queue_cpus", "whose"),
    [
        ({"router1": 2, "right": 0}, "router1"),
        ({"router1": 2}, "receiver"),  # which takes in there what router1 hands to it
        ({"router1": 2, "right": 2}, "receiver"),
        ({"right": 0}, "receiver"),
    ],
)
def test_a_cpu_that_only_one_node_has_is_its_own(queue_cpus: dict[str, int], whose: str) -> None:
    """By RPS or its interrupts: then it has also what is before ip_forward."""
    seen = [each._replace(cpu=2, pid=0) for each in FORWARDED]
    record = idle_of(sampled.record(*seen, Seen(2, 0, IDLE, 1920)), {2: 80})
    assert {
        ("router1", "fwd_netfilter"): 40,
        ("router1", "fwd_device"): 30,
        (whose, "rx_netfilter"): 10,
    } == owned(between(record, "router1", queue_cpus=queue_cpus), 2)


def test_a_worker_that_may_run_anywhere_leaves_no_cpu_to_a_node() -> None:
    """A sender that is not pinned may have been there."""
    seen = [each._replace(cpu=2, pid=0) for each in FORWARDED]
    record = idle_of(sampled.record(*seen, Seen(2, 0, IDLE, 1920)), {2: 80})
    record = between(record, "router1", queue_cpus={"router1": 2, "right": 0})
    (phase,) = record.phases
    stats = tuple(replace(each, cpu=None) for each in phase.stats)
    specs = tuple(replace(each, cpus=()) for each in record.workers)
    record = replace(record, workers=specs, phases=(replace(phase, stats=stats),))
    assert ("receiver", "rx_netfilter") in owned(record, 2)


def test_a_machine_of_its_own_is_the_nodes() -> None:
    """Every stage on it, also what it receives and what other programs take."""
    record = between(sampled.record(), "gate")
    (phase,) = record.phases
    wall = {"cpu.0.idle_ns": 1900 * MS, "cpu.0.user_ns": 100 * MS, "softnet.cpu0.dropped": 0}
    first, last = (
        Snapshot("gate", clock_ns, dict.fromkeys(wall, 0) if not clock_ns else wall)
        for clock_ns in (0, 2000 * MS)
    )
    seen = (
        Seen(0, 0, ("nf_conntrack_in", "nf_hook_slow", "ip_rcv", *SOFTIRQ), 50),
        Seen(0, 0, ("ip_forward", *SOFTIRQ), 30),
        Seen(0, HOG_PID, None, 20),
        Seen(0, 0, IDLE, 1900),
    )
    phase = replace(
        phase,
        before={**phase.before, "gate": first},
        after={**phase.after, "gate": last},
        cpu_samples={**phase.cpu_samples, "gate": samples(seen)},
    )
    gate = replace(record.facts["gate"], boot_id="another")
    record = replace(record, phases=(phase,), facts={**record.facts, "gate": gate})
    mine = {c.stage: c.ns_per_packet for c in known(record).costs if c.end == "gate"}
    assert {"rx_conntrack": 50_000, "fwd_ip": 30_000, "[hog]": 20_000} == pytest.approx(mine)


def test_a_node_is_divided_by_what_taken_by_it() -> None:
    """As a stage is, by what came to that."""
    record = between(on_senders_cpu(*FORWARDED), "router1")
    costs = {cost.stage: cost for cost in known(record).costs if cost.end == "router1"}
    assert (40_000, 1000) == (
        pytest.approx(costs["fwd_netfilter"].ns_per_packet),
        costs["fwd_netfilter"].entered_packets,
    )


@pytest.mark.parametrize(
    ("lost", "received", "came"),
    [
        ({"tx_qdisc": 100, "router1.fwd_netfilter": 50}, 850, 900),
        ({"tx_qdisc": 100, "router1.fwd_backlog": 600, "router1.fwd_netfilter": 50}, 250, 300),
        ({"tx_qdisc": 100, "router1.fwd_ring": None, "rx_ring": 4}, 891, 900),  # 5 of 900
        ({"tx_qdisc": 100, "router1.fwd_ring": None, "rx_ring": None}, 800, None),
        ({"tx_qdisc": 100}, 900, None),
    ],
)
def test_what_a_node_takes_in(lost: dict[str, int | None], received: int, came: int | None) -> None:
    """What ended neither before nor in its queue; None where stages share more than a percent."""
    entries = [
        LedgerEntry(stage, packets, "", node=stage.partition(".")[0] if "." in stage else None)
        for stage, packets in lost.items()
    ]
    assert came == taken_by(Ledger(1000, received, tuple(entries), 0), "router1")
    assert taken_by(None, "router1") is None


def test_a_node_is_in_every_output() -> None:
    """Metrics by its name, the boxes of the functions between both ends, and the path's picture."""
    record = between(on_senders_cpu(*FORWARDED), "router1")
    result = judge(record)
    assert 40_000 == pytest.approx(result.numbers["cpu_ns[stage=router1.fwd_netfilter]"])
    assert 40_000 == pytest.approx(result.numbers["cpu_ns[stage=fwd_netfilter]"])
    assert result.numbers["cpu_ns"] is not None
    readings = readings_of(record)
    assert readings is not None
    times_ns = stacks(readings)
    assert 40 * MS == sum(ns for path, ns in times_ns.items() if path[1] == "fwd_netfilter")
    ends = [box.name for box in _boxes(times_ns) if box.depth == 0]
    assert ["sender", "router1", "receiver"] == ends
    assert 70_000 == pytest.approx(_costs(result, {"router1"})["router1"])
    assert "router1" not in _costs(result, ())


@pytest.mark.parametrize("name", ["sender", "nodes", "link", "receiver"])
def test_a_node_with_the_name_of_another_is_told_apart(name: str) -> None:
    """A lab may call it so."""
    record = between(on_senders_cpu(*FORWARDED), name)
    assert (f"node {name}", "fwd_netfilter") in owned(record)


@pytest.mark.parametrize(
    ("queue_cpus", "count", "softirq_ms", "names"),
    [
        ({"router1": 2, "right": 0}, 24, 1900, ["node_cpu"]),
        ({"router1": 2, "right": 0}, 24, 1500, ["node_cpu"]),  # others had a fifth of it
        ({"router1": 2, "right": 0}, 24, 0, ["others_cpu"]),
        ({"router1": 2, "right": 0}, 10, 790, []),
        ({}, 24, 1900, []),
    ],
)
def test_a_full_cpu_of_a_node_is_named_with_what_fills_it(
    queue_cpus: dict[str, int], count: int, softirq_ms: int, names: list[str], golden: Golden
) -> None:
    """Not one that has time or that others had, nor where the node shares all of its CPUs."""
    seen = [each._replace(cpu=2, pid=0, count=count * each.count) for each in FORWARDED]
    busy_ms = 80 * count
    record = sampled.record(*seen, Seen(2, 0, IDLE, 2000 - busy_ms))
    record = idle_of(record, {2: busy_ms}, {2: softirq_ms})
    readings = readings_of(between(record, "router1", queue_cpus=queue_cpus))
    assert readings is not None
    case = Evidence(readings, make_ledger(readings), "router1.fwd_backlog", 400)
    limits = tuple(node_cpu(case))
    assert names == [each.name for each in limits]
    assert (not names) == bool(tuple(full_node(case))), (
        "a queue is too short where its CPU has time"
    )
    golden.check([each.sentence for each in limits])
    for stage in ("router1.fwd_netfilter", "udp_rcvbuf", "tx_device"):
        assert not tuple(node_cpu(replace(case, stage=stage)))
    behind = replace(case, readings=replace(readings, wired=True), stage="tx_device")
    assert names == [each.name for each in node_cpu(behind)]


def test_what_a_node_takes_of_a_senders_cpu_has_its_name() -> None:
    """What fills that CPU is not the sender's alone."""
    readings = readings_of(between(on_senders_cpu(*FORWARDED), "router1"))
    assert readings is not None
    costs = costs_of_cpu(readings, make_ledger(readings), "machine", 1)
    assert ["tx_udp", "router1.fwd_netfilter", "router1.fwd_device", "rx_netfilter"] == [*costs]
