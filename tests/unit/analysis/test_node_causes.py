"""What limits a path at a host in the middle: its queues and rules, what may be tried there, and what not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from golden import Golden

from analysis.test_forwarding import passed, routed
from udpbench.analysis.diagnosis import words_of
from udpbench.analysis.evidence import Evidence
from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.readings import readings_of
from udpbench.host_settings import Settings
from udpbench.model.experiment import Tune
from udpbench.model.host import Change, Setting
from udpbench.model.record import TrialRecord
from udpbench.model.result import Bottleneck
from udpbench.tuning.steps import steps_against

LOST = 300
TABLE = "net.netfilter.nf_conntrack_max"
BACKLOG = "net.core.netdev_max_backlog"


def lost_at(stage: str, *nodes: str) -> TrialRecord:
    """Return a record of 1000 packets, of which the last of some routers lost 300."""
    before, at = list(nodes or ("r",))[:-1], list(nodes or ("r",))[-1]
    machine: dict[str, int] = {}
    way, moved = {
        "fwd_backlog": (passed(1000 - LOST), {"link.in0.rx_dropped": LOST}),
        "fwd_conntrack": (passed(1000, forwarded=LOST), {"conntrack.drop": LOST}),
        "fwd_netfilter": (passed(1000, left=LOST), {}),
        "fwd_mtu": (passed(1000, left=LOST), {"snmp.Ip.FragFails": LOST}),
        "fwd_qdisc": (passed(1000, sent=LOST), {"qdisc.out0.drops": LOST}),
    }[stage]
    if stage == "fwd_backlog":
        machine = {"softnet.cpu0.dropped": LOST}
    left = {"link.send0.tx_dropped": LOST} if stage == "fwd_backlog" and not before else {}
    moves = {**{name: passed(1000) for name in before}, at: {**way, **moved}}
    if stage == "fwd_backlog" and before:
        moves[before[-1]] = {**passed(1000, sent=LOST), "link.out0.tx_dropped": LOST}
    return routed(moves, LOST, machine, left)


def first(record: TrialRecord) -> Bottleneck:
    """Return what limits a trial."""
    return judge(record).diagnosis[0]


def with_facts(record: TrialRecord, node: str, **facts: Any) -> TrialRecord:
    """Return a record whose node has other facts."""
    changed = replace(record.facts[node], **facts)
    return replace(record, facts={**record.facts, node: changed})


def tried(record: TrialRecord) -> dict[str, tuple[str, ...]]:
    """Return what a tune would try against what limits a trial: step → what it sets."""
    steps = steps_against(judge(record).diagnosis, Tune("", "lost_packets", 0), ())
    return {step.name: step.sets for step in steps}


def applied(record: TrialRecord, node: str, kind: str, target: str, value: Any) -> TrialRecord:
    """Return a record in which a setting was in force at a node."""
    change = Change(Setting(kind, target, value), None, value)
    return replace(record, changes={node: (*record.changes.get(node, ()), change)})


@pytest.mark.parametrize("stage", ["fwd_backlog", "fwd_conntrack", "fwd_netfilter", "fwd_qdisc"])
def test_a_node_is_named_with_what_helps_there(stage: str, golden: Golden) -> None:
    """Also where udpbench may not change it, or not it alone."""
    record = lost_at(stage, "r", "s")
    limits = first(record)
    assert (f"s.{stage}", f"s.{stage}") == (limits.name, limits.stage)
    fixed = first(replace(record, read_only=("r", "s")))
    other = first(replace(record, read_only=("r",)))
    golden.check([limits.sentence, fixed.remedy, other.remedy])


def test_what_no_setting_helps_against_has_no_word_of_them(golden: Golden) -> None:
    """A node that is read only could not be helped by changing it."""
    record = replace(lost_at("fwd_mtu"), read_only=("r",))
    golden.check([first(record).sentence])
    assert {} == tried(record)


def test_a_ring_that_is_full_belongs_to_the_next_node(golden: Golden) -> None:
    """The other end of a veth pair counts its drops; elsewhere they are the device's own."""
    sending = passed(1000, sent=LOST) | {"link.out0.tx_dropped": LOST}
    two = replace(routed({"r": sending, "s": passed(700)}, LOST), wired=True)
    limits = first(two)
    assert ("s.fwd_ring", "r.fwd_device") == (limits.name, limits.stage)
    golden.check([limits.sentence])
    assert {"rps": ("settings.middle.rps.cpus=0,1",)} == tried(two)
    assert "unknown" == first(replace(two, wired=False)).name


def test_the_ring_of_the_first_node_is_counted_by_the_sender() -> None:
    """As tx_device."""
    moved = {"link.send0.tx_dropped": LOST}
    record = replace(routed({"r": passed(700)}, LOST, left=moved), wired=True)
    limits = first(record)
    assert ("r.fwd_ring", "tx_device") == (limits.name, limits.stage)


def test_a_node_that_is_read_only_is_never_tried() -> None:
    """Nor others, since the settings of an experiment are for all nodes."""
    record = lost_at("fwd_backlog", "r", "s")
    assert tried(record)
    for fixed in ("r", "s"):
        assert {} == tried(replace(record, read_only=(fixed,)))


def test_a_backlog_is_lengthened_for_what_came() -> None:
    """From what is in force, else the kernel's 1000; no load needs more than itself."""
    steps = {
        f"backlog={size}": (f"settings.middle.sysctl.{BACKLOG}={size}",) for size in (1024, 8192)
    }
    steps["rps"] = ("settings.middle.rps.cpus=0,1",)
    record = lost_at("fwd_backlog")
    assert steps == tried(record)
    assert {**steps, "accept-first": ACCEPTED} == tried(with_facts(record, "r", firewall_rules=50))
    longer = tried(applied(record, "r", "sysctl", BACKLOG, 5000))
    assert ["backlog=8192", "backlog=65536", "rps"] == [*longer]
    elsewhere = {"receiver": Settings(sysctl={BACKLOG: 5})}
    of_an_end = replace(record, trial=replace(record.trial, settings=elsewhere))
    assert ["rps"] == [*tried(of_an_end)], "the machine has one backlog"


ACCEPTED = ("settings.middle.firewall.udp=4321", "settings.middle.firewall.accept=true")
UNTRACKED = ("settings.middle.firewall.udp=4321", "settings.middle.firewall.notrack=true")


def test_a_table_of_connections_is_enlarged_or_left_out() -> None:
    """Its size is known of the node; a node that translates addresses has to track."""
    record = lost_at("fwd_conntrack")
    assert {"notrack": UNTRACKED} == tried(record), "of an unknown size none is larger"
    sized = with_facts(record, "r", limits={TABLE: 64})
    larger = {"conntrack=128": (f"settings.middle.sysctl.{TABLE}=128",)}
    assert {**larger, "notrack": UNTRACKED} == tried(sized)
    assert larger == tried(applied(sized, "r", "nat", "out0", "masquerade"))
    readings = readings_of(replace(sized, built_in_lab=False))
    case = Evidence(readings, make_ledger(readings), "r.fwd_conntrack", LOST)
    words = words_of(case)
    assert ("128", None) == (words["node_table"], words.get("untracked_port")), (
        "rules may translate"
    )


def test_a_rule_that_drops_is_passed_by() -> None:
    """Unless others changed the rules meanwhile."""
    assert {"accept-first": ACCEPTED} == tried(lost_at("fwd_netfilter"))


def test_a_queue_is_lengthened_for_what_came() -> None:
    """From a pfifo's limit, else from 1000."""
    record = lost_at("fwd_qdisc")
    names = ["pfifo=1024", "pfifo=8192"]
    assert names == [*tried(record)]
    assert ("settings.middle.qdisc={pfifo: {limit: 1024}}",) == tried(record)["pfifo=1024"]
    long = applied(record, "r", "qdisc", "out0", {"pfifo": {"limit_packets": 3000}})
    assert ["pfifo=4096", "pfifo=32768"] == [*tried(long)]


def test_a_longer_ring_is_that_of_the_card() -> None:
    """As far as it has one; interrupts and RPS on all of the node's CPUs."""
    moved = {"link.send0.tx_dropped": LOST}
    record = replace(routed({"r": passed(700)}, LOST, left=moved), wired=True)
    carded = with_facts(record, "r", rings={"rx": 256, "rx-max": 4096})
    assert ("settings.middle.ethtool.rings.rx=4096",) == tried(carded)["ring=4096"]
    longest = with_facts(record, "r", rings={"rx": 4096, "rx-max": 4096}, queue_irqs={"0": 34})
    assert ["irq", "rps"] == [*tried(longest)]
    assert [] == [*tried(with_facts(record, "r", cpus=(1,)))], "there is no other CPU"


@pytest.mark.parametrize(("dropped", "disagree"), [(LOST, []), (LOST + 1, ["rx_backlog"])])
def test_a_backlog_of_a_node_is_no_other_device(dropped: int, disagree: list[str]) -> None:
    """All namespaces of a machine count in one place: what a node dropped there is known."""
    record = lost_at("fwd_backlog")
    (phase,) = record.phases
    machine = phase.after["machine"]
    begun = phase.before["machine"].counters["softnet.cpu0.dropped"]
    counters = {**machine.counters, "softnet.cpu0.dropped": begun + dropped}
    after = {**phase.after, "machine": replace(machine, counters=counters)}
    result = judge(replace(record, phases=(replace(phase, after=after),)))
    whose = [each.where for each in result.findings if each.what == "counters disagree"]
    assert disagree == whose
