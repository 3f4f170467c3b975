"""Several hosts of a role: their flows, shares, CPUs, and the bridge that joins them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from definition_fixture import facts, trial
from golden import Golden

from udpbench.control import agents as control_lab
from udpbench.definition import lab_rules, load
from udpbench.definition.binding.bind import LabContext, Unavailable, bind, settings_for
from udpbench.definition.binding.card import TSO_FEATURES
from udpbench.host_settings import Settings, VethPair
from udpbench.model.experiment import Flows, Traffic
from udpbench.model.host import Facts
from udpbench.model.lab import BRIDGE, Lab


@pytest.fixture
def senders() -> Lab:
    """Return the shipped lab of two senders, with two receive addresses only."""
    lab = load.load_lab("two-senders")
    right = replace(lab.receivers[0], addresses=lab.receivers[0].addresses[:2])
    return replace(lab, hosts=(*lab.senders, right))


@pytest.fixture
def receivers() -> Lab:
    """Return the shipped lab of two receivers, with two addresses each."""
    lab = load.load_lab("two-receivers")
    short = tuple(replace(host, addresses=host.addresses[:2]) for host in lab.receivers)
    return replace(lab, hosts=lab.senders + short)


def machine(lab: Lab, cpus: tuple[int, ...]) -> dict[str, Facts]:
    """Return the facts of a lab's hosts on a machine with these CPUs."""
    return {host.name: facts(host.name, cpus) for host in lab.hosts}


def test_flow_numbers_are_unique_over_all_senders(senders: Lab) -> None:
    """Each sender has its own source address and every flow a number of its own."""
    chosen = trial(traffic={"flows": {"to": "receiver.addresses[1-2]:1"}}, send={"workers": 2})
    left0, left1, middle0, middle1, right = bind(chosen, senders, machine(senders, (0, 1))).workers
    assert [
        ("left.sender0", [(0, "192.168.254.30", "192.168.254.1")]),
        ("left.sender1", [(1, "192.168.254.30", "192.168.254.2")]),
        ("middle.sender0", [(2, "192.168.254.31", "192.168.254.1")]),
        ("middle.sender1", [(3, "192.168.254.31", "192.168.254.2")]),
    ] == [
        (worker.name, [(flow.flow, flow.source, flow.destination) for flow in worker.flows])
        for worker in (left0, left1, middle0, middle1)
    ]
    assert [0, 1, 2, 3] == [flow.flow for flow in right.flows]


def test_rate_and_count_are_totals_over_all_workers_of_all_senders(senders: Lab) -> None:
    """The parts add up to what was asked for."""
    chosen = trial(
        traffic={"rate": "103pps", "count": 7, "flows": {"from": "1-2"}}, send={"workers": 2}
    )
    workers = bind(chosen, senders, machine(senders, (0, 1))).workers[:4]
    assert [26, 26, 26, 25] == [worker.rate_pps for worker in workers]
    assert [2, 2, 2, 1] == [worker.count_packets for worker in workers]


def test_addresses_are_of_each_receiver(receivers: Lab) -> None:
    """``addresses[1-2]`` are two of the one and two of the other; each sees its own flows alone."""
    chosen = trial(traffic={"flows": {"to": "receiver.addresses[1-2]:9"}})
    left, middle, right = bind(chosen, receivers, machine(receivers, (0, 1))).workers
    assert [0, 1, 2, 3] == [flow.flow for flow in left.flows]
    assert ["192.168.254.1", "192.168.254.2"] == [flow.destination for flow in middle.flows]
    assert ["192.168.254.101", "192.168.254.102"] == [flow.destination for flow in right.flows]
    assert ["middle.receiver0", "right.receiver0"] == [middle.name, right.name]


@pytest.mark.parametrize(
    ("cpus", "placed"),
    [
        ((0, 1, 2, 3), {"left": 2, "middle": 3, "right": 0}),
        ((0, 1, 2, 3, 4, 5, 6, 7), {"left": 4, "middle": 6, "right": 0}),
    ],
)
def test_hosts_of_a_role_split_its_cpus(
    senders: Lab, cpus: tuple[int, ...], placed: dict[str, int]
) -> None:
    """With a CPU for each there is nothing to find."""
    bound = bind(trial(), senders, machine(senders, cpus))
    assert (placed, ()) == ({worker.host: worker.cpu for worker in bound.workers}, bound.findings)


def test_hosts_that_share_a_cpu_are_reported(receivers: Lab, golden: Golden) -> None:
    """Two receivers on the lower half of two CPUs wrap round, with a finding."""
    bound = bind(trial(), receivers, machine(receivers, (0, 1)))
    assert {"left": 1, "middle": 0, "right": 0} == {
        worker.host: worker.cpu for worker in bound.workers
    }
    golden.check([str(finding) for finding in bound.findings])


def test_more_flows_than_a_header_has_numbers_for_skip_the_trial(
    senders: Lab, golden: Golden
) -> None:
    """Each sender alone would have numbers enough."""
    chosen = trial(traffic={"flows": {"from": "1-40000"}})
    with pytest.raises(Unavailable) as caught:
        bind(chosen, senders, machine(senders, (0, 1)))
    golden.check(str(caught.value))


def test_flows_are_counted_before_any_is_made(senders: Lab, golden: Golden) -> None:
    """A stored run may ask for more than fit into memory."""
    flows = Flows("1-65535", "receiver.addresses[1-65536]:1-65535")
    chosen = replace(trial(), traffic=Traffic(flows=flows))
    with golden.raises(Unavailable):
        bind(chosen, senders, machine(senders, (0, 1)))


# --- settings ------------------------------------------------------------------------------------


def bridge(lab: Lab, cpus: tuple[int, ...] = (0, 1), **parts: Any) -> list[tuple[str, str, Any]]:
    """Return (kind, target, value) of every setting of the bridge's agent."""
    pids = {host.name: 1001 + n for n, host in enumerate(lab.hosts)}
    settings = settings_for(lab, trial(**parts), BRIDGE, LabContext(pids, machine(lab, cpus)))
    return [(setting.kind, setting.target, setting.value) for setting in settings]


def pair(n: int, interface: str, peer_mac: str, queues: int = 1) -> tuple[str, str, Any]:
    """Return the setting of the n-th host's pair."""
    value = {
        "peer": interface,
        "peer_pid": 1000 + n,
        "peer_mac": peer_mac,
        "mac": f"02:75:62:03:00:0{n}",
        "queues": queues,
    }
    return ("link", f"port{n}", value)


LEFT, MIDDLE, RIGHT = "02:75:62:01:00:01", "02:75:62:01:00:02", "02:75:62:02:00:01"


def test_the_bridge_has_a_port_for_each_host(senders: Lab) -> None:
    """Pairs first, then the bridge, all quiet before anything is up; each port knows one station."""
    assert [
        pair(1, "send0", LEFT),
        pair(2, "send0", MIDDLE),
        pair(3, "receive0", RIGHT, queues=2),
        ("bridge", "bridge0", True),
        *[
            ("sysctl", f"net.ipv6.conf.{name}.disable_ipv6", 1)
            for name in ("bridge0", "port1", "port2", "port3")
        ],
        *[("feature", f"port3/{name}", False) for name in TSO_FEATURES],
        *[
            ("port", f"port{n}", {"bridge": "bridge0", "station": mac})
            for n, mac in ((1, LEFT), (2, MIDDLE), (3, RIGHT))
        ],
        *[("up", name, True) for name in ("port1", "port2", "port3", "bridge0")],
    ] == bridge(senders, (0, 1, 2, 3))


def test_a_hosts_mtu_is_its_ports_too(senders: Lab) -> None:
    """A bridge drops what is longer than a port takes, and counts nothing."""
    settings = {"receiver": {"mtu": 9000}, "sender": {"mtu": 4000}}
    assert [("port1", 4000), ("port2", 4000), ("port3", 9000)] == [
        (target, value)
        for kind, target, value in bridge(senders, settings=settings)
        if kind == "mtu"
    ]


def test_without_napi_the_ports_keep_their_features(receivers: Lab) -> None:
    """Each receiver's own link decides for its own port."""
    hosts = (replace(receivers.receivers[0], settings=Settings(link=VethPair(receive="inline"))),)
    lab = replace(receivers, hosts=(*receivers.senders, *hosts, *receivers.receivers[1:]))
    assert {"port3"} == {
        target.partition("/")[0] for kind, target, _ in bridge(lab) if kind == "feature"
    }


def test_hosts_of_a_bridge_make_no_pair_and_know_each_other(senders: Lab) -> None:
    """The bridge's agent makes all pairs; a sender keeps its features, for its port has no NAPI."""
    context = LabContext({}, machine(senders, (0, 1)))
    listed = {
        host.name: [
            (setting.kind, setting.target, setting.value)
            for setting in settings_for(senders, None, host, context)
        ]
        for host in senders.hosts
    }
    assert [
        ("sysctl", "net/ipv6/conf/send0/disable_ipv6", 1),
        ("up", "send0", True),
        ("address", "send0/192.168.254.31/24", True),
        ("neighbour", "send0/192.168.254.1", RIGHT),
        ("neighbour", "send0/192.168.254.2", RIGHT),
    ] == listed["middle"]
    assert [
        ("neighbour", "receive0/192.168.254.30", LEFT),
        ("neighbour", "receive0/192.168.254.31", MIDDLE),
    ] == [entry for entry in listed["right"] if entry[0] == "neighbour"]
    assert "link" not in {kind for kind, *_ in listed["right"]}


def test_two_hosts_need_no_bridge() -> None:
    """They keep their direct pair."""
    lab = load.load_lab("local")
    assert (None, lab.hosts) == (lab.joint, lab.nodes)


def test_the_names_of_own_agents_are_those_of_control() -> None:
    """A lab may not call a host like an agent that control starts beside its hosts."""
    assert lab_rules.OWN_AGENTS == (BRIDGE.name, control_lab.MACHINE)
