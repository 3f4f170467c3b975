"""Every kind of setting beyond the link itself: card, machine, firewall, ways, and their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from definition_fixture import both, facts, loaded, refused, trial
from golden import Golden

from udpbench.definition import load
from udpbench.definition.binding.bind import (
    LabContext,
    Unavailable,
    bind,
    machine_settings_for,
    settings_for,
)
from udpbench.host_settings import Pfifo, Qdisc, Settings
from udpbench.model.host import Setting
from udpbench.model.lab import BRIDGE, Lab

EVERYTHING: dict[str, Any] = {
    "addresses": ["10.0.0.7/24"],
    "neighbours": ["10.0.0.30 02:00:00:00:00:AA"],
    "routes": ["10.1.0.0/16 via 10.0.0.30", "10.2.0.0/16 via link"],
    "mtu": 9000,
    "txqueuelen": 500,
    "qdisc": {"pfifo": {"limit": 20}},
    "firewall": {"udp": 4321, "accept": True, "notrack": True, "drop": "input", "rules": 9},
    "sysctl": {"net.core.rmem_max": "64MiB"},
    "ethtool": {
        "channels": 2,
        "rings": {"rx": 4096},
        "features": {"gro": True, "ntuple": True},
        "coalesce": {"rx-usecs": 8, "adaptive-rx": 0},
        "pause": {"rx": False},
        "rx-flow-hash": {"udp4": "sdfn"},
        "indirection": "equal 2",
        "ntuple": [{"port": 4321, "queue": 1}],
    },
    "irq": {"cpus": "0-1"},
    "rps": {"cpus": "1"},
    "xps": {"cpus": "0"},
    "rfs": 5000,
    "napi": {"threaded": True, "cpus": "0-1"},
    "cpu": {"governor": "performance", "turbo": False, "latency": "20us"},
}


def plain(settings: tuple[Setting, ...]) -> list[tuple[str, str, Any]]:
    """Return (kind, target, value) of each."""
    return [(setting.kind, setting.target, setting.value) for setting in settings]


@pytest.fixture
def far() -> Lab:
    """Return a lab of real hosts with one address each."""
    lab = load.load_lab("two-hosts")
    (right,) = lab.receivers
    return replace(lab, hosts=(*lab.senders, replace(right, addresses=("10.0.0.1/24",))))


def test_every_key_of_a_real_host_takes_effect_in_its_place(far: Lab) -> None:
    """What takes the link down, or makes the driver forget, comes before what would be lost."""
    chosen = trial(settings={"receiver": EVERYTHING})
    known = {"left": facts("left"), "right": facts("right", rx_queues=4)}
    assert [
        ("sysctl", "net.core.rmem_max", 64 * 2**20),
        ("sysctl", "net.core.rps_sock_flow_entries", 8192),
        ("irqbalance", "irqbalance", False),
        ("governor", "cpus", "performance"),
        ("turbo", "cpus", False),
        ("cpu_latency", "cpus", 20),
        ("channels", "eth2", 2),
        ("rings", "eth2", {"rx": 4096}),
        ("pause", "eth2", {"rx": 0}),
        ("feature", "eth2/rx-ntuple-filter", True),
        ("feature", "eth2/rx-gro", True),
        ("mtu", "eth2", 9000),
        ("txqueuelen", "eth2", 500),
        ("up", "eth2", True),
        ("unclaimed", "eth2/10.0.0.1,10.0.0.7", {}),
        ("address", "eth2/10.0.0.1/24", True),
        ("address", "eth2/10.0.0.7/24", True),
        ("neighbour", "eth2/10.0.0.30", "02:00:00:00:00:aa"),
        ("route", "eth2/10.1.0.0/16", "10.0.0.30"),
        ("route", "eth2/10.2.0.0/16", "link"),
        ("flow_hash", "eth2/udp4", "sdfn"),
        ("indirection", "eth2", "equal 2"),
        ("ntuple", "eth2/udp4/4321", 1),
        ("device", "eth2/threaded", 1),
        ("napi_cpus", "eth2", [[0], [1]]),
        ("coalesce", "eth2", {"rx-usecs": 8, "adaptive-rx": 0}),
        ("irq", "eth2/rx-0", [0]),
        ("irq", "eth2/rx-1", [1]),
        ("rps", "eth2/rx-0", [1]),
        ("rps", "eth2/rx-1", [1]),
        ("xps", "eth2/tx-0", [0]),
        ("xps", "eth2/tx-1", [0]),
        ("rfs", "eth2/rx-0", 4096),
        ("rfs", "eth2/rx-1", 4096),
        ("qdisc", "eth2", {"pfifo": {"limit_packets": 20}}),
        ("firewall", "ipv4/input/accept/udp/4321", True),
        ("firewall", "ipv4/prerouting/notrack/udp/4321", True),
        ("firewall", "ipv4/input/drop/udp/4321", True),
        ("passed_rules", "input/4321", {"rules": 9, "track": False}),
    ] == plain(settings_for(far, chosen, far.receivers[0], LabContext(facts=known)))


def test_in_a_built_in_lab_the_machine_has_its_part(lab: Lab) -> None:
    """A namespace has neither interrupts nor CPUs nor the table of RFS."""
    chosen = trial(settings={"receiver": EVERYTHING})
    context = LabContext(facts=both())
    kinds = ("irqbalance", "governor", "turbo", "cpu_latency", "irq")
    assert [] == [
        setting
        for setting in settings_for(lab, chosen, lab.receivers[0], context)
        if setting.kind in kinds
    ]
    assert [
        ("sysctl", "net.core.rmem_max", 64 * 2**20),
        ("sysctl", "net.core.rps_sock_flow_entries", 8192),
        ("irqbalance", "irqbalance", False),
        ("governor", "cpus", "performance"),
        ("turbo", "cpus", False),
        ("cpu_latency", "cpus", 20),
        ("irq", "receive0/rx-0", [0]),
        ("irq", "receive0/rx-1", [1]),
    ] == plain(machine_settings_for(lab, chosen, context))


def test_a_sender_is_not_tracked_where_its_packets_leave(lab: Lab) -> None:
    """Prerouting is for what arrives; an answer to an own packet would pass it, too."""
    rules = {"udp": 9, "accept": True, "notrack": True, "drop": "none"}
    chosen = trial(settings={"sender": {"firewall": rules}})
    settings = settings_for(lab, chosen, lab.senders[0], LabContext(facts=both()))
    assert [
        ("firewall", "ipv4/output/accept/udp/9", True),
        ("firewall", "ipv4/output/notrack/udp/9", True),
    ] == plain(tuple(setting for setting in settings if setting.kind == "firewall"))


def test_a_rule_that_is_switched_off_is_none(lab: Lab) -> None:
    """A variant may take one rule out of a block."""
    rules = {"udp": 9, "accept": False, "notrack": False, "rules": 0, "track": False}
    chosen = trial(settings={"receiver": {"firewall": rules}})
    settings = settings_for(lab, chosen, lab.receivers[0], LabContext(facts=both()))
    assert [] == [each for each in settings if each.kind in ("firewall", "passed_rules")]


def test_what_packets_pass_lies_where_they_would_be_accepted(lab: Lab) -> None:
    """That is elsewhere at each end; tracking needs no number of rules."""
    rules = {"udp": 9, "track": True}
    chosen = trial(settings={"receiver": {"firewall": rules}, "sender": {"firewall": rules}})
    passed = {"rules": 0, "track": True}
    for host, hook in ((lab.receivers[0], "input"), (lab.senders[0], "output")):
        settings = settings_for(lab, chosen, host, LabContext(facts=both()))
        mine = tuple(setting for setting in settings if setting.kind == "passed_rules")
        assert [("passed_rules", f"{hook}/9", passed)] == plain(mine)


def test_a_table_that_the_user_sizes_is_left_to_him(lab: Lab) -> None:
    """``rfs`` brings the machine's sysctl only where the block does not name it."""
    sysctl = {"net.core.rps_sock_flow_entries": 64}
    chosen = trial(settings={"receiver": {"rfs": 0, "sysctl": sysctl}})
    assert [("sysctl", "net.core.rps_sock_flow_entries", 64)] == plain(
        machine_settings_for(lab, chosen, LabContext(facts=both()))
    )
    settings = settings_for(lab, chosen, lab.receivers[0], LabContext(facts=both()))
    assert [("rfs", "receive0/rx-0", 0)] == plain(
        tuple(setting for setting in settings if setting.kind == "rfs")
    )


@pytest.mark.parametrize(("optional", "queues"), [([], 8), (["ethtool.channels"], 4)])
def test_channels_that_may_be_refused_are_not_counted_on(
    far: Lab, optional: list[str], queues: int
) -> None:
    """What comes after them names the queues that will be there."""
    block = {"ethtool": {"channels": 8}, "rps": {"cpus": "0"}, "optional": optional}
    known = {"left": facts("left"), "right": facts("right", rx_queues=4)}
    chosen = trial(settings={"receiver": block})
    settings = settings_for(far, chosen, far.receivers[0], LabContext(facts=known))
    assert queues == sum(setting.kind == "rps" for setting in settings)


CABLE = {"tbf": {"rate_bps": 10**9, "burst_bytes": 125_000, "limit_bytes": 1_639_000}}


def test_the_rate_of_a_link_is_its_senders_root_queue(lab: Lab) -> None:
    """The bucket is 1 ms of the rate, and at least one GSO packet; the queue 1000 packets."""
    chosen = trial(settings={"receiver": {"link": {"rate": "1Gbps"}}})
    context = LabContext(facts=both())
    assert [("qdisc", "send0", CABLE)] == plain(
        tuple(s for s in settings_for(lab, chosen, lab.senders[0], context) if s.kind == "qdisc")
    )
    assert [] == [
        s for s in settings_for(lab, chosen, lab.receivers[0], context) if s.kind == "qdisc"
    ]
    slow = trial(settings={"receiver": {"link": {"rate": "1Mbps"}}, "sender": {"mtu": 9000}})
    (queue,) = (s for s in settings_for(lab, slow, lab.senders[0], context) if s.kind == "qdisc")
    limits = {"rate_bps": 10**6, "burst_bytes": 65536, "limit_bytes": 65536 + 9_014_000}
    assert {"tbf": limits} == queue.value


def test_in_a_bridged_lab_every_cable_has_the_rate() -> None:
    """Towards a receiver it is the bridge's port that loses what does not fit."""
    senders = load.load_lab("two-senders")
    chosen = trial(settings={"receiver": {"link": {"rate": "1Gbps"}}})
    context = LabContext(facts={host.name: facts(host.name) for host in senders.hosts})
    bridge = settings_for(senders, chosen, BRIDGE, context)
    assert [("qdisc", "port3", CABLE)] == plain(tuple(s for s in bridge if s.kind == "qdisc"))
    for host in senders.senders:
        own = settings_for(senders, chosen, host, context)
        assert [("qdisc", "send0", CABLE)] == plain(tuple(s for s in own if s.kind == "qdisc"))


def test_a_link_with_a_rate_and_a_queue_is_refused_or_skipped(lab: Lab, golden: Golden) -> None:
    """In one file before any host is asked; between an experiment and a lab the trial is skipped."""
    golden.check(
        refused(
            "settings:",
            "  receiver: {link: {rate: 1Gbps}}",
            "  sender: {qdisc: {pfifo: {limit: 9}}}",
        )
    )
    chosen = loaded("settings: {receiver: {link: {rate: 1Gbps}}}").points[0]
    lab = replace(lab, settings={"sender": Settings(qdisc=Qdisc(pfifo=Pfifo(9)))})
    with golden.raises(Unavailable):
        settings_for(lab, chosen, lab.senders[0], LabContext(facts=both()))


@pytest.mark.parametrize(
    ("rings", "has", "reason"),
    [
        (True, {}, "receiver needs an interface with rings that can be set"),
        (False, {"rx": 256}, "receiver needs an interface without rings that can be set"),
        (True, {"rx": 256}, None),
    ],
)
def test_a_need_for_rings(lab: Lab, rings: bool, has: dict[str, int], reason: str | None) -> None:
    """A virtual interface has none."""
    chosen = trial(needs={"receiver": {"rings": rings}})
    known = both()
    hosts = replace(
        lab, hosts=(*lab.senders, replace(lab.receivers[0], addresses=("10.0.0.1/24",)))
    )
    known["receiver"] = replace(known["receiver"], rings=has)
    if reason is None:
        assert bind(chosen, hosts, known).workers
        return
    with pytest.raises(Unavailable) as caught:
        bind(chosen, hosts, known)
    assert reason == str(caught.value)


@pytest.mark.parametrize(
    "block",
    [
        "routes: [10.1.0.0/16]",
        "routes: [10.1.0.5/16 via link]",
        "routes: ['10.1.0.0/16 via fd00::1']",
        "neighbours: [10.0.0.2]",
        "neighbours: ['10.0.2 02:00:00:00:00:02']",
    ],
)
def test_a_way_that_is_none_is_refused(block: str, golden: Golden) -> None:
    """Before any host is asked, with the line."""
    golden.check(refused(f"settings: {{sender: {{{block}}}}}"))
