"""Stages of nodes in the middle: what each counts, whose counters it reads, and how names add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from analysis import build
from analysis.test_ledger import entries
from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.forwarding import ROWS
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.points import metric
from udpbench.analysis.readings import readings_of
from udpbench.model.experiment import Traffic
from udpbench.model.limits import FORWARDING_STAGES, LEDGER_STAGES
from udpbench.model.record import SelfTest, Snapshot, StageProof, TrialRecord

COUNTERS = (
    *("snmp.Ip.InReceives", "snmp.Ip.InDelivers", "snmp.Ip.ForwDatagrams", "snmp.Ip.InHdrErrors"),
    *(
        "snmp.Ip.OutTransmits",
        "snmp.Ip.OutRequests",
        "snmp.Ip.FragFails",
        "netstat.IpExt.InNoRoutes",
    ),
    *("netstat.TcpExt.IPReversePathFilter", "link.in0.rx_otherhost_dropped", "link.in0.rx_dropped"),
    *("link.in0.tx_packets", "link.in0.tx_dropped", "link.out0.tx_packets", "link.out0.tx_dropped"),
    *("qdisc.out0.drops", "qdisc.in0.ingress.drops", "ethtool.in0.rx_queue_0_xdp_drops"),
    *("conntrack.drop", "conntrack.chainlength", "conntrack.insert_failed"),
    *("rules.prerouting.drops", "rules.input.drops"),
)
RECEIVED, FORWARDED = "snmp.Ip.InReceives", "snmp.Ip.ForwDatagrams"
LEFT, SENT = "snmp.Ip.OutTransmits", "link.out0.tx_packets"


def passed(packets: int, **less: int) -> dict[str, int]:
    """Return the moves of a node by which packets passed; ``less`` are lower from there on."""
    return {
        RECEIVED: packets,
        FORWARDED: packets - less.get("forwarded", 0),
        LEFT: packets - less.get("forwarded", 0) - less.get("left", 0),
        SENT: packets - less.get("forwarded", 0) - less.get("left", 0) - less.get("sent", 0),
    }


def routed(
    moves: Mapping[str, Mapping[str, int]],
    lost: int,
    machine: Mapping[str, int] | None = None,
    left: Mapping[str, int] | None = None,
    bridges: Mapping[str, tuple[str, ...]] | None = None,
    **changes: Any,
) -> TrialRecord:
    """Return a record of 1000 packets over routers whose counters moved so, of which some were lost."""
    record = build.lossy(1000, {"machine": machine or {}, "left": left or {}}, lost, **changes)
    (phase,) = record.phases
    before, after, facts = dict(phase.before), dict(phase.after), dict(record.facts)
    for name, moved in moves.items():
        first = dict.fromkeys((*COUNTERS, *moved), 100)
        before[name] = Snapshot(name, 1, first)
        after[name] = Snapshot(
            name, 2, {key: value + moved.get(key, 0) for key, value in first.items()}
        )
        facts[name] = build.facts(name, "in0", "10.0.0.254/24")
    return replace(
        record,
        phases=(replace(phase, before=before, after=after),),
        facts=facts,
        between=dict.fromkeys(moves, "middle"),
        exits=dict.fromkeys(moves, "out0"),
        bridges=dict(bridges or {}),
    )


SEVEN = [
    ("fwd_xdp", passed(993), {"ethtool.in0.rx_queue_0_xdp_drops": 7}, {}),
    ("fwd_backlog", passed(993), {"link.in0.rx_dropped": 7}, {"softnet.cpu0.dropped": 7}),
    ("fwd_tc", passed(993), {"qdisc.in0.ingress.drops": 7}, {}),
    ("fwd_ip", passed(1000, forwarded=7), {"snmp.Ip.InHdrErrors": 7}, {}),
    ("fwd_ip", passed(993), {"link.in0.rx_otherhost_dropped": 7}, {}),
    ("fwd_prerouting", passed(1000, forwarded=7), {}, {}),
    ("fwd_conntrack", passed(1000, forwarded=7), {"conntrack.drop": 7}, {}),
    ("fwd_conntrack", passed(1000, left=7), {"conntrack.chainlength": 7}, {}),
    ("fwd_rp_filter", passed(1000, forwarded=7), {"netstat.TcpExt.IPReversePathFilter": 7}, {}),
    ("fwd_rp_filter", passed(1000, forwarded=7), {}, {"rt_cache.in_martian_src": 7}),
    (
        "fwd_route",
        passed(1000, forwarded=7),
        {"netstat.IpExt.InNoRoutes": 7},
        {"rt_cache.in_no_route": 7},
    ),
    ("fwd_route", passed(1000, forwarded=7), {}, {"rt_cache.in_no_route": 7}),
    ("fwd_mtu", passed(1000, left=7), {"snmp.Ip.FragFails": 7}, {}),
    ("fwd_netfilter", passed(1000, left=7), {}, {}),
    ("fwd_neighbour", passed(1000, sent=7), {}, {}),
    ("fwd_qdisc", passed(1000, sent=7), {"qdisc.out0.drops": 7}, {}),
    ("fwd_device", passed(1000, sent=7), {"link.out0.tx_dropped": 7}, {}),
]


@pytest.mark.parametrize(("stage", "way", "moved", "machine"), SEVEN)
def test_a_counter_explains_its_stage(
    stage: str, way: dict[str, int], moved: dict[str, int], machine: dict[str, int]
) -> None:
    """Seven packets lost at one place of a router are seven at that stage, and the ledger closes."""
    left = {"link.send0.tx_dropped": 7} if stage == "fwd_backlog" else {}
    record = routed({"r": {**way, **moved}}, 7, machine, left)
    assert {f"r.{stage}": 7} == entries(record)
    assert 0 == judge(record).unaccounted


def before_6_8(record: TrialRecord) -> TrialRecord:
    """Return a record whose kernels counted ForwDatagrams behind FORWARD, and no OutTransmits."""
    for phase in record.phases:
        for snapshot in (*phase.before.values(), *phase.after.values()):
            snapshot.counters.pop(LEFT, None)
    return record


@pytest.mark.parametrize(
    ("stage", "way", "moved"),
    [
        ("fwd_ip", {"forwarded": 7}, {"snmp.Ip.InHdrErrors": 7}),
        ("fwd_mtu", {"forwarded": 7}, {"snmp.Ip.FragFails": 7}),
        # In PREROUTING or FORWARD, and by a neighbour or in POSTROUTING.
        ("fwd_prerouting", {"forwarded": 7}, {}),
        ("fwd_neighbour", {"sent": 7}, {}),
        ("fwd_neighbour", {"sent": 7}, {"snmp.Icmp.OutMsgs": 3, "link.in0.tx_packets": 3}),
        ("fwd_device", {"sent": 7}, {"link.out0.tx_dropped": 7}),
    ],
)
def test_before_6_8_what_is_lost_behind_forward_has_one_stage(
    stage: str, way: dict[str, int], moved: dict[str, int]
) -> None:
    """And what is lost up to there; what a node sends of its own is none of it."""
    counters = {"snmp.Icmp.OutMsgs": 0, **passed(1000, **way), **moved}
    record = before_6_8(routed({"r": counters}, 7))
    assert {f"r.{stage}": 7, "r.fwd_netfilter": None} == entries(record)
    assert 0 == judge(record).unaccounted


UNKNOWN_RULES = ("rules.prerouting.drops", "rules.input.drops")


def unruled(record: TrialRecord) -> TrialRecord:
    """Return a record of hosts that do not know what their rules dropped."""
    for phase in record.phases:
        for snapshot in (*phase.before.values(), *phase.after.values()):
            for name in UNKNOWN_RULES:
                snapshot.counters.pop(name, None)
    return record


SHARED = {"rt_cache.in_no_route": 3, "rt_cache.in_martian_src": 2}


def test_what_namespaces_share_is_believed_only_beside_rules_that_count() -> None:
    """Neighbours move the machine's counters, too: else the stages have it together, all of it.

    Of packets in a row without a route the kernel counts the first: those of 3 may be all 7.
    """
    way = passed(1000, forwarded=7)
    ruled = {**way, "rules.prerouting.drops": 7}
    assert {"r.fwd_prerouting": 7} == entries(routed({"r": ruled}, 7, SHARED))
    partly = {**way, "rules.prerouting.drops": 4}
    machine = {"rt_cache.in_no_route": 9}
    assert {"r.fwd_prerouting": 4, "r.fwd_route": 3} == entries(routed({"r": partly}, 7, machine))
    known = unruled(routed({"r": way}, 7, SHARED))
    spans = {"r.fwd_prerouting": (0, 7), "r.fwd_route": (0, 7), "r.fwd_rp_filter": (0, 2)}
    assert spans == limits(known)
    assert 0 == judge(known).unaccounted
    assert 1 == judge(unruled(routed({"r": way}, 8, SHARED))).unaccounted
    assert -1 == judge(unruled(routed({"r": way}, 6, SHARED))).unaccounted


def limits(record: TrialRecord) -> dict[str, tuple[int, int]]:
    """Return the stages that may have lost packets, with the least and the most."""
    ledger = judge(record).ledger
    assert ledger is not None
    return {
        e.stage: (e.packets or 0, e.packets or 0 if e.at_most is None else e.at_most)
        for e in ledger.entries
        if e.packets or e.at_most
    }


def test_rules_that_dropped_others_packets_as_well_decide_nothing() -> None:
    """More than is missing: some of them may be the traffic's."""
    way = {**passed(1000, forwarded=7), "rules.prerouting.drops": 9}
    spans = {"r.fwd_prerouting": (0, 7), "r.fwd_route": (0, 7)}
    assert spans == limits(routed({"r": way}, 7, {"rt_cache.in_no_route": 3}))


def test_a_route_that_nothing_counts_may_have_what_is_missing_of_ipv6() -> None:
    """Where rules do not say what they dropped: a blackhole's packets are none that cannot be."""
    way = {
        "snmp6.Ip6InReceives": 1000,
        "snmp6.Ip6OutForwDatagrams": 993,
        "snmp6.Ip6OutTransmits": 993,
        SENT: 993,
    }
    still = dict.fromkeys(("snmp6.Ip6InDelivers", "snmp6.Ip6InNoRoutes"), 0)
    load = build.trial(traffic=Traffic(family=6))
    elsewhere = {"built_in_lab": False, "wired": True, "of": load}
    record = routed({"r": {**way, **still}}, 7, NONE_FAILED, **elsewhere)
    known = limits(unruled(record))
    assert ((0, 7), (0, 7)) == (known.get("r.fwd_prerouting"), known.get("r.fwd_route"))
    assert 0 == judge(record).unaccounted


def test_what_a_namespace_counts_itself_is_no_neighbours() -> None:
    """A packet that fails rp_filter, or has no route, is in the machine's counters as well."""
    way = passed(1000, forwarded=7)
    own = {"netstat.TcpExt.IPReversePathFilter": 4, "netstat.IpExt.InNoRoutes": 2}
    machine = {"rt_cache.in_martian_src": 4, "rt_cache.in_no_route": 2}
    record = unruled(routed({"r": {**way, **own}}, 7, machine))
    assert {"r.fwd_rp_filter": (4, 4), "r.fwd_route": (2, 2), "r.fwd_prerouting": (1, 1)} == limits(
        record
    )


def test_connection_tracking_before_and_behind_forward_is_told_apart_by_what_it_inserted() -> None:
    """What it could not insert was behind; what a route may have taken is then an interval."""
    way = passed(1000, forwarded=7, left=5)
    tracked = {**way, "conntrack.drop": 12, "conntrack.insert_failed": 5}
    assert {"r.fwd_conntrack": 12} == entries(routed({"r": tracked}, 12))
    either = {
        **passed(1000, forwarded=7, left=7),
        "conntrack.drop": 7,
        "conntrack.insert_failed": 7,
    }
    record = routed({"r": either}, 14, {"rt_cache.in_no_route": 7})
    spans = {"r.fwd_conntrack": (7, 7), "r.fwd_route": (0, 7), "r.fwd_netfilter": (0, 7)}
    assert (spans, 0) == (limits(record), judge(record).unaccounted)


def test_every_stage_of_a_node_has_its_row_in_order() -> None:
    """Their names are those of the vocabulary, between the link and the receiver's ring."""
    assert FORWARDING_STAGES == tuple(row.name for row in ROWS)
    first = LEDGER_STAGES.index("link") + 1
    assert FORWARDING_STAGES == LEDGER_STAGES[first : first + len(ROWS)]
    assert "rx_ring" == LEDGER_STAGES[first + len(ROWS)]


def test_each_node_has_its_own_and_a_bare_name_is_their_sum() -> None:
    """In the path's order, with the node beside the stage."""
    record = routed({"b": passed(1000, left=4), "a": passed(996, left=3)}, 7)
    assert {"b.fwd_netfilter": 4, "a.fwd_netfilter": 3} == entries(record)
    result = judge(record)
    assert (4, 3, 7) == tuple(
        metric(result, name) for name in ("b.fwd_netfilter", "a.fwd_netfilter", "fwd_netfilter")
    )
    assert result.ledger is not None
    nodes = [entry.node for entry in result.ledger.entries if entry.node]
    assert ["b"] * len(ROWS) + ["a"] * len(ROWS) == nodes
    assert {None} == {e.node for e in result.ledger.entries if "." not in e.stage}


def test_a_kernel_that_does_not_count_what_leaves_says_so() -> None:
    """Before Linux 6.8 what FORWARD dropped is in PREROUTING's difference."""
    way = passed(1000, forwarded=7)
    del way[LEFT]
    record = routed({"r": way}, 7)
    (phase,) = record.phases
    for snapshot in (phase.before["r"], phase.after["r"]):
        del snapshot.counters[LEFT]
    known = entries(record)
    assert 7 == known["r.fwd_prerouting"]
    assert (None, None) == (known["r.fwd_netfilter"], known["r.fwd_neighbour"])


def test_on_a_host_that_others_use_a_stage_has_an_upper_limit() -> None:
    """Others' packets move the same counters; veth pairs alone leave nothing to the link."""
    none_failed = {"arp_cache.unresolved_discards": 0, "arp_cache.res_failed": 0}
    moves = {"r": passed(1500, left=9)}
    record = routed(moves, 7, none_failed, built_in_lab=False, wired=True)
    measured = readings_of(record)
    assert measured is not None
    ledger = make_ledger(measured)
    ended = {e.stage: e.at_most or e.packets for e in ledger.entries if e.at_most or e.packets}
    assert ({"r.fwd_netfilter": 7}, 0) == (ended, ledger.unaccounted)


PORTS = {
    "link.in0.rx_packets": 1000,
    "link.out0.tx_packets": 993,
    "link.out0.rx_packets": 5,
    "link.in0.tx_packets": 5,
}


def test_what_a_bridge_did_not_forward_is_its_stage() -> None:
    """Both ways together; its IP layer saw nothing, so that no other stage has any of it."""
    bridges = {"r": ("bridge0", "in0", "out0")}
    assert {"r.fwd_bridge": 7} == entries(routed({"r": PORTS}, 7, bridges=bridges))
    moved = {**PORTS, "link.out0.tx_packets": 990, "link.out0.tx_dropped": 3}
    lost = entries(routed({"r": moved}, 10, bridges=bridges))
    assert {"r.fwd_bridge": 7, "r.fwd_device": 3} == lost
    filtered = {**PORTS, "link.out0.tx_packets": 989, "qdisc.in0.ingress.drops": 4}
    lost = entries(routed({"r": filtered}, 11, bridges=bridges))
    assert {"r.fwd_tc": 4, "r.fwd_bridge": 7} == lost


def test_what_a_bridge_hands_to_the_rules_for_ip_is_counted_once() -> None:
    """With br_netfilter: too long, without an entry, a bad header, and what it cut into pieces."""
    bridges = {"r": ("bridge0", "in0", "out0")}
    moved = {
        **PORTS,
        "snmp.Ip.FragFails": 2,
        "conntrack.drop": 3,
        "snmp.Ip.InHdrErrors": 1,
        "snmp.Ip.FragOKs": 10,
        "snmp.Ip.FragCreates": 20,
        "link.out0.tx_packets": 997,
    }
    lost = entries(routed({"r": moved}, 13, bridges=bridges))
    assert {"r.fwd_bridge": 7, "r.fwd_mtu": 2, "r.fwd_conntrack": 3, "r.fwd_ip": 1} == lost


def test_what_a_bridge_did_not_take_in_for_its_host_is_known_in_a_built_in_lab() -> None:
    """Elsewhere it has further ports, and nothing tells; nor of a bridge as the way in."""
    way = {**passed(993), "link.in0.rx_packets": 1000, "link.docker0.rx_packets": 993}
    way["link.out0.rx_packets"] = 0
    bridges = {"r": ("docker0", "in0")}
    assert {"r.fwd_bridge": 7} == entries(routed({"r": way}, 7, bridges=bridges))
    none_failed = {"arp_cache.unresolved_discards": 0, "arp_cache.res_failed": 0}
    elsewhere = routed({"r": way}, 7, none_failed, built_in_lab=False, bridges=bridges)
    assert entries(elsewhere)["r.fwd_bridge"] is None
    above = routed({"r": passed(1000)}, 0)
    above = replace(above, facts={**above.facts, "r": replace(above.facts["r"], driver="bridge")})
    assert entries(above)["r.fwd_bridge"] is None


def test_what_a_bridge_on_the_way_out_did_not_hand_on_is_its_stage() -> None:
    """IP had given it to the bridge: no neighbour is missing. Without the bridge's own none tells."""
    way = {**passed(1000, sent=10), "qdisc.out0.drops": 3, "link.docker0.tx_packets": 1000}
    lost = entries(routed({"r": way}, 10, bridges={"r": ("docker0", "out0")}))
    assert {"r.fwd_bridge": 7, "r.fwd_qdisc": 3} == lost
    unresolved = {**passed(1000, sent=7), "link.docker0.tx_packets": 993}
    lost = entries(routed({"r": unresolved}, 7, bridges={"r": ("docker0", "out0")}))
    assert {"r.fwd_neighbour": 7} == lost
    uncounted = routed({"r": passed(1000)}, 0, bridges={"r": ("docker0", "out0")})
    assert entries(uncounted)["r.fwd_bridge"] is None


def test_a_difference_is_believed_only_where_a_known_number_was_seen_in_it() -> None:
    """A self-test that saw another number there makes it not observable; another stage stays."""
    record = routed({"r": passed(1000, left=7)}, 7)
    assert {"r.fwd_netfilter": 7} == entries(record)
    kernel = record.facts["r"].kernel

    def tested(stage: str, counted: int) -> TrialRecord:
        proof = StageProof(stage, 4, 100, counted=counted, unaccounted=0)
        return replace(record, selftests={"r": SelfTest(kernel, "", "", "", (proof,))})

    assert {"r.fwd_netfilter": 7} == entries(tested("fwd_netfilter", 100))
    assert entries(tested("fwd_netfilter", 99))["r.fwd_netfilter"] is None
    assert {"r.fwd_netfilter": 7, "r.fwd_prerouting": None} == entries(tested("fwd_prerouting", 99))


FIRST, LAST = ("bridge0", "in0", "vxlan0"), ("bridge0", "vxlan0", "out0")
REQUESTS, DATAGRAMS, DELIVERED = (
    "snmp.Ip.OutRequests",
    "snmp.Udp.InDatagrams",
    "snmp.Ip.InDelivers",
)


def test_what_is_not_led_on_from_a_published_port_ends_at_its_node() -> None:
    """It is delivered there, to no socket; a node that publishes none has no part in others'."""
    moves = {"r": {**passed(993), RECEIVED: 1000, DELIVERED: 7, "snmp.Udp.NoPorts": 7}}
    record = routed(moves, 7)
    assert {"r.fwd_local": 7} != entries(record)
    flows = replace(record.trial.traffic.flows, published="r.addresses[1]:8080")
    traffic = replace(record.trial.traffic, flows=flows)
    record = replace(record, trial=replace(record.trial, traffic=traffic))
    assert {"r.fwd_local": 7} == entries(record)
    assert 0 == judge(record).unaccounted


def begun(**changes: int) -> dict[str, int]:
    """Return the moves of a node where a tunnel begins that a thousand packets entered."""
    names = ("link.in0.rx_packets", "link.vxlan0.tx_packets", REQUESTS, LEFT, SENT)
    more = ("link.bridge0.tx_packets", "link.vxlan0.tx_errors", "link.vxlan0.rx_packets")
    own = dict.fromkeys((*more, "link.vxlan0.rx_errors", "link.vxlan0.rx_frame_errors"), 0)
    counted = {"link.vxlan0.rx_dropped": 0, DATAGRAMS: 0, "snmp.Udp.InErrors": 0}
    keys = {"given": names[1], "made": REQUESTS, "left": LEFT, "sent": SENT}
    moves = {keys[key]: value for key, value in changes.items()}
    return {**own, **counted, **dict.fromkeys(names, 1000), **moves}


def ended(**changes: int) -> dict[str, int]:
    """Return the moves of a node where it ends."""
    keys = {
        "delivered": DELIVERED,
        "datagrams": DATAGRAMS,
        "out": "link.vxlan0.rx_packets",
        "cells": "link.vxlan0.rx_dropped",
        "marked": "link.vxlan0.rx_frame_errors",
        "refused": "link.vxlan0.rx_errors",
        "sent": SENT,
        "tracked": "conntrack.drop",
    }
    moves = {keys[key]: value for key, value in changes.items()}
    whole = (RECEIVED, DELIVERED, DATAGRAMS, "link.vxlan0.rx_packets", SENT)
    none = ("link.bridge0.tx_packets", "link.vxlan0.tx_packets", "link.out0.rx_packets")
    return {
        **begun(given=0, made=0, left=0),
        **dict.fromkeys(none, 0),
        **dict.fromkeys(whole, 1000),
        **moves,
    }


@pytest.mark.parametrize(
    ("stage", "ports", "moves"),
    [
        ("fwd_bridge", FIRST, begun(given=993, made=993, left=993, sent=993)),
        ("fwd_encap", FIRST, begun(made=993, left=993, sent=993)),
        ("fwd_netfilter", FIRST, begun(left=993, sent=993)),
        ("fwd_neighbour", FIRST, begun(sent=993)),
        ("fwd_prerouting", LAST, ended(delivered=993, datagrams=993, out=993, sent=993)),
        (
            "fwd_conntrack",
            LAST,
            ended(delivered=993, datagrams=993, out=993, sent=993, tracked=7),
        ),
        ("fwd_decap", LAST, ended(out=993, sent=993)),
        ("fwd_ecn", LAST, ended(out=993, marked=7, refused=7, sent=993)),
        ("fwd_cells", LAST, ended(cells=7, sent=993)),
        ("fwd_bridge", LAST, ended(sent=993)),
    ],
)
def test_a_counter_explains_its_stage_of_a_tunnel(
    stage: str, ports: tuple[str, ...], moves: dict[str, int]
) -> None:
    """Within the tunnel and around it, at the node where it begins and where it ends."""
    record = routed({"r": moves}, 7, bridges={"r": ports})
    assert {f"r.{stage}": 7} == entries(record)
    assert 0 == judge(record).unaccounted


def test_what_a_tunnel_answers_came_out_of_it_and_in_by_none() -> None:
    """It gives back what is too long as if that came: of these no outer packet was received."""
    moves = {**begun(made=993, left=993, sent=993), "link.vxlan0.rx_packets": 7}
    moves["link.in0.tx_packets"] = 7
    assert {"r.fwd_encap": 7} == entries(routed({"r": moves}, 7, bridges={"r": FIRST}))


def test_what_a_tunnel_did_not_take_is_unknown_where_its_host_sends_more() -> None:
    """What comes out is counted with others', too, and limits what was lost."""
    none_failed = {"arp_cache.unresolved_discards": 0, "arp_cache.res_failed": 0}
    changes = {"built_in_lab": False, "bridges": {"r": FIRST}}
    lost = entries(routed({"r": begun(made=993, left=993, sent=993)}, 7, none_failed, **changes))
    assert lost["r.fwd_encap"] is None


INTO, OUT_OF = ("", "in0", "wg0"), ("", "wg0", "out0")
GIVEN, CAME_OUT = "link.wg0.tx_packets", "link.wg0.rx_packets"
ICMP, HANDSHAKES = "snmp.Icmp.OutMsgs", "rules.output.control"


def through_process(**changes: int) -> dict[str, int]:
    """Return the moves of a node that routes into WireGuard, after six packets aside of its own."""
    return {
        RECEIVED: 1000,
        FORWARDED: 1000,
        GIVEN: 1000,
        CAME_OUT: 0,
        LEFT: 2006,
        SENT: 1006,
        REQUESTS: 1006,
        HANDSHAKES: 2,
        ICMP: 4,
        "rules.input.control": 0,
        DATAGRAMS: 0,
        **dict.fromkeys(("snmp.Udp.InErrors", "snmp.Udp.RcvbufErrors", "link.wg0.tx_dropped"), 0),
        **changes,
    }


def out_of_process(**changes: int) -> dict[str, int]:
    """Return those of the node where it ends, to which two handshakes came as well."""
    return {
        **through_process(
            **{GIVEN: 0, REQUESTS: 0, HANDSHAKES: 0, ICMP: 0, LEFT: 1000, SENT: 1000}
        ),
        RECEIVED: 2002,
        DELIVERED: 1002,
        DATAGRAMS: 1002,
        CAME_OUT: 1000,
        "rules.input.control": 2,
        **changes,
    }


FEWER = {FORWARDED: 993, LEFT: 993, SENT: 993}


@pytest.mark.parametrize(
    ("stage", "ports", "moves"),
    [
        (
            "fwd_tun",
            INTO,
            through_process(
                **{GIVEN: 993, "link.wg0.tx_dropped": 7, REQUESTS: 999, LEFT: 1999, SENT: 999}
            ),
        ),
        ("fwd_encap", INTO, through_process(**{REQUESTS: 999, LEFT: 1999, SENT: 999})),
        ("fwd_netfilter", INTO, through_process(**{LEFT: 1999, SENT: 999})),
        ("fwd_neighbour", INTO, through_process(**{SENT: 999})),
        (
            "fwd_rcvbuf",
            OUT_OF,
            out_of_process(
                **{RECEIVED: 1995, DATAGRAMS: 995, CAME_OUT: 993, **FEWER},
                **{"snmp.Udp.InErrors": 7, "snmp.Udp.RcvbufErrors": 7},
            ),
        ),
        (
            "fwd_rcvbuf",
            OUT_OF,  # and one of the handshakes
            out_of_process(
                **{RECEIVED: 1995, DATAGRAMS: 994, CAME_OUT: 993, **FEWER},
                **{"snmp.Udp.InErrors": 8, "snmp.Udp.RcvbufErrors": 8},
            ),
        ),
        ("fwd_decap", OUT_OF, out_of_process(**{RECEIVED: 1995, CAME_OUT: 993, **FEWER})),
        (
            "fwd_prerouting",
            OUT_OF,
            out_of_process(
                **{RECEIVED: 1995, DELIVERED: 995, DATAGRAMS: 995, CAME_OUT: 993, **FEWER}
            ),
        ),
    ],
)
def test_a_counter_explains_its_stage_of_a_tunnel_in_a_process(
    stage: str, ports: tuple[str, ...], moves: dict[str, int]
) -> None:
    """Each edge has its own; handshakes and answers of ICMP are no packets of the traffic."""
    record = routed({"r": moves}, 7, bridges={"r": ports})
    assert {f"r.{stage}": 7} == entries(record)
    assert 0 == judge(record).unaccounted


QUEUED, INNER = "qdisc.wg0.packets", "rules.prerouting.inner"


def through_kernel(**changes: int) -> dict[str, int]:
    """Return the moves of a node that routes into WireGuard of the kernel.

    Its tx_packets has the two handshakes as well.
    """
    none = {INNER: 0, "qdisc.wg0.drops": 0}
    return {**through_process(**{GIVEN: 1002, QUEUED: 1000}), **none, **changes}


def out_of_kernel(**changes: int) -> dict[str, int]:
    """Return those of the node where it ends, whose rx_packets has both handshakes."""
    none = {QUEUED: 0, "qdisc.wg0.drops": 0}
    return {**out_of_process(**{CAME_OUT: 1002, INNER: 1000}), **none, **changes}


@pytest.mark.parametrize(
    ("stage", "ports", "moves"),
    [
        (
            "fwd_tun",
            INTO,
            through_kernel(
                **{QUEUED: 993, "qdisc.wg0.drops": 7, REQUESTS: 999, LEFT: 1999, SENT: 999}
            ),
        ),
        ("fwd_encap", INTO, through_kernel(**{REQUESTS: 999, LEFT: 1999, SENT: 999})),
        (
            "fwd_netfilter",
            INTO,  # of the outer packets, which the tunnel has as its own loss, too
            through_kernel(**{GIVEN: 995, "link.wg0.tx_dropped": 7, LEFT: 1999, SENT: 999}),
        ),
        ("fwd_neighbour", INTO, through_kernel(**{SENT: 999})),
        ("fwd_decap", OUT_OF, out_of_kernel(**{RECEIVED: 1995, INNER: 993, **FEWER})),
        (
            "fwd_prerouting",
            OUT_OF,
            out_of_kernel(**{RECEIVED: 1995, DELIVERED: 995, DATAGRAMS: 995, INNER: 993, **FEWER}),
        ),
    ],
)
def test_a_counter_explains_its_stage_of_a_tunnel_in_the_kernel(
    stage: str, ports: tuple[str, ...], moves: dict[str, int]
) -> None:
    """Its interface counts outer packets, so its edges are its queue's and a rule's."""
    record = routed({"r": moves}, 7, bridges={"r": ports})
    assert {f"r.{stage}": 7} == entries(record)
    assert 0 == judge(record).unaccounted


DATA_SENT, DATA_CAME = "rules.output.data", "rules.input.data"
NONE_FAILED = {"arp_cache.unresolved_discards": 0, "arp_cache.res_failed": 0}


def through_others(*without: str, **changes: int) -> dict[str, int]:
    """Return the moves of a node that routes into WireGuard of others, who send by it as well.

    ``without`` names what a node that is read only does not have.
    """
    moves = through_kernel(**{DATA_SENT: 1000, DATA_CAME: 0, **changes})
    moves |= {REQUESTS: moves[REQUESTS] + 50, LEFT: moves[LEFT] + 50}
    gone = (HANDSHAKES, "rules.input.control", *without)
    return {name: value for name, value in moves.items() if name not in gone}


def out_of_others(*without: str, **changes: int) -> dict[str, int]:
    """Return those of the node where it ends, to whose other sockets datagrams came."""
    moves = out_of_kernel(**{DATA_SENT: 0, DATA_CAME: 1000, **changes})
    moves |= {name: moves[name] + 30 for name in (RECEIVED, DELIVERED, DATAGRAMS)}
    gone = (HANDSHAKES, "rules.input.control", *without)
    return {name: value for name, value in moves.items() if name not in gone}


@pytest.mark.parametrize(
    ("stage", "ports", "moves"),
    [
        ("fwd_tun", INTO, through_others(**{QUEUED: 993, "qdisc.wg0.drops": 7, DATA_SENT: 993})),
        ("fwd_encap", INTO, through_others(**{DATA_SENT: 993})),
        ("fwd_decap", OUT_OF, out_of_others(**{RECEIVED: 1995, INNER: 993, **FEWER})),
    ],
)
def test_rules_count_a_tunnel_of_others_whatever_else_their_host_sends(
    stage: str, ports: tuple[str, ...], moves: dict[str, int]
) -> None:
    """Each edge by itself, as in a built-in lab."""
    record = routed({"r": moves}, 7, NONE_FAILED, bridges={"r": ports}, built_in_lab=False)
    assert {f"r.{stage}": 7} == entries(replace(record, wired=True))


def test_without_rules_a_tunnel_of_others_has_an_upper_limit_at_its_end() -> None:
    """What came to any socket and not out of it; what it made of its packets is not known."""
    rules = (INNER, DATA_SENT, DATA_CAME)
    limits = {}
    for ports, moves in (
        (INTO, through_others(*rules)),
        (OUT_OF, out_of_others(*rules, **{RECEIVED: 1995, CAME_OUT: 995, **FEWER})),
    ):
        record = routed({"r": moves}, 7, NONE_FAILED, bridges={"r": ports}, built_in_lab=False)
        ledger = judge(replace(record, wired=True)).ledger
        assert ledger is not None
        known = {entry.stage: (entry.packets, entry.at_most) for entry in ledger.entries}
        assert (0, None) == known["r.fwd_tun"] == known["r.fwd_rcvbuf"]
        limits[ports] = known["r.fwd_encap"], known["r.fwd_decap"]
    assert ((7, 7), (0, None)) == limits[INTO], "it alone is not known"
    assert ((None, 7), (0, 7)) == limits[OUT_OF]


def test_without_the_count_of_handshakes_a_process_may_have_lost_anything() -> None:
    """What its rules did not count is not taken for none."""
    for ports, moves in ((INTO, through_process()), (OUT_OF, out_of_process())):
        lost = {name: n for name, n in moves.items() if not name.startswith("rules.")}
        known = entries(routed({"r": lost}, 0, bridges={"r": ports}))
        assert known["r.fwd_encap"] is None
        assert known["r.fwd_decap"] is None
        assert known["r.fwd_rcvbuf"] is None
        assert known["r.fwd_tun"] is None
        assert known["r.fwd_neighbour"] is None
