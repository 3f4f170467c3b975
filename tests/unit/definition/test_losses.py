"""Losses: what waits for packets that are to be lost, what is sent, and what a lab can't do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from definition_fixture import both, facts
from golden import Golden

from udpbench.definition import load, losses
from udpbench.definition.binding.bind import LabContext, Unavailable, settings_for
from udpbench.definition.binding.requirements import lacking
from udpbench.definition.lab_rules import refuse_together
from udpbench.errors import InputError
from udpbench.model.experiment import Experiment, Send
from udpbench.model.lab import Lab
from udpbench.model.limits import LEDGER_STAGES
from udpbench.model.work import FlowSpec, WorkerSpec

FLOW = FlowSpec(0, "192.168.254.30", 65400, "192.168.254.1", 4321)


def experiment(**keys: Any) -> Experiment:
    """Return an experiment."""
    return load.load_experiment_data({"question": "?", **keys}, "x")


def settings(lab: Lab, **keys: Any) -> dict[str, list[tuple[str, str, Any]]]:
    """Return role → what a trial's losses set there."""
    (trial,) = experiment(**keys).points
    return {
        host.part: [
            (setting.kind, setting.target, setting.value)
            for setting in settings_for(lab, trial, host, LabContext({"sender": 1}, both()))
            if setting.path.startswith("losses.")
        ]
        for host in lab.hosts
    }


def test_something_waits_for_each_loss(lab: Lab) -> None:
    """A rule, a program, a trap or a larger MTU, each on the host where packets are to die."""
    by_role = settings(
        lab, losses={stage: 1 for stage in losses.LOSS_PORTS if stage != "rx_backlog"}
    )
    assert {
        "sender": [
            ("firewall", "ipv4/output/drop/udp/64101", True),
            ("trap", "send0", True),
            ("mtu", "send0", 1600),
        ],
        "receiver": [
            ("xdp", "receive0", 64106),
            ("tc_drop", "receive0", 64108),
            ("firewall", "ipv4/input/drop/udp/64110", True),
        ],
    } == by_role


def test_packets_are_oversized_for_the_receivers_own_mtu(lab: Lab) -> None:
    """The sender's is as much above it as the packets are."""
    by_role = settings(lab, losses={"tx_device": 1}, settings={"receiver": {"mtu": 4000}})
    assert [("mtu", "send0", 4100)] == by_role["sender"]


def test_a_loss_is_sent_along_the_first_flow() -> None:
    """To a port of its own, in messages where the trial's are, and one by one where it must be."""
    (trial,) = experiment().points
    trial = replace(
        trial,
        losses={"tx_device": 3, "udp_no_port": 20},
        receive=replace(trial.receive, gro=True),
    )
    worker = WorkerSpec("sender", "sender", 0, 1, (FLOW,), trial.traffic, Send(gso=10))
    ends = (facts("sender"), facts("receiver"))
    device, port = losses.loss_specs(trial, worker, *ends, load.load_lab("local"))
    assert ("tx_device", 3, 1, 1572) == (
        device.stage,
        device.packets,
        device.segments,
        device.size_bytes,
    )
    assert ("udp_no_port", 20, 10, 32, 64112, True) == (
        port.stage,
        port.packets,
        port.segments,
        port.size_bytes,
        port.port,
        port.gro,
    )
    assert (FLOW.source, FLOW.destination) == (port.source, port.destination)


@pytest.mark.parametrize(
    "keys",
    [
        {"losses": {"link": 1}},
        {"losses": {"rx_backlog": 1}},
        {
            "losses": {"rx_backlog": 1, "rx_xdp": 1},
            "settings": {"receiver": {"link": {"receive": "inline"}}},
        },
        {"losses": {"rx_xdp": 1}, "receive": {"call": "af_xdp", "wait": "spin"}},
        {
            "losses": {"tx_qdisc": 1},
            "settings": {"sender": {"qdisc": {"pfifo": {"limit": 5}}}},
        },
        {
            "losses": {"tx_qdisc": 1},
            "settings": {"receiver": {"link": {"rate": "1Gbps"}}},
        },
        {"losses": {"tx_device": 1}, "settings": {"sender": {"mtu": 2000}}},
        {
            "losses": {"udp_no_port": 1},
            "traffic": {"flows": {"to": "receiver.addresses[1]:64112"}},
        },
    ],
)
def test_what_leaves_no_room_for_a_loss_is_refused(
    lab: Lab, keys: dict[str, Any], golden: Golden
) -> None:
    """Before any host is touched, with what stands in the way."""
    with pytest.raises(InputError) as error:
        refuse_together([experiment(**keys)], lab)
    golden.check(str(error.value))


def test_something_waits_for_each_loss_at_a_node() -> None:
    """Rules of the node, MTUs that fall from host to host, and a neighbour that is not looked up."""
    lab = load.load_lab("router")
    by_role = settings(lab, losses=dict.fromkeys(losses.possible_losses(lab), 1))
    assert [("mtu", "send0", 1700)] == by_role["sender"]
    assert [] == by_role["receiver"]
    assert sorted(
        [
            ("firewall", "ipv4/forward/drop/udp/64122", True),
            ("firewall", "ipv4/prerouting/drop/udp/64120", True),
            ("mtu", "in0", 1700),
            ("mtu", "out0", 1600),
            ("sysctl", "net.ipv4.neigh.out0.mcast_solicit", 0),
        ]
    ) == sorted(by_role["middle"])
    (trial,) = experiment(losses={"fwd_neighbour": 1}).points
    known = {name: facts(name) for name in ("sender", "router1", "receiver")}
    context = LabContext(dict.fromkeys(known, 1), known)
    neighbours = {
        setting.target
        for setting in settings_for(lab, trial, lab.middle[0], context)
        if setting.kind == "neighbour" and setting.target.startswith("out0/")
    }
    assert len(neighbours) == 19
    assert "out0/192.168.253.20" not in neighbours
    assert ("fwd_bridge", "fwd_device") == losses.possible_losses(load.load_lab("bridge"))


def test_a_loss_at_a_node_gets_as_far_as_it() -> None:
    """One to a neighbour that is not known goes to an address that the traffic does not."""
    lab = load.load_lab("router")
    (trial,) = experiment().points
    trial = replace(trial, losses=dict.fromkeys(losses.possible_losses(lab), 1))
    worker = WorkerSpec("sender", "sender", 0, 1, (FLOW,), trial.traffic, Send(gso=10))
    ends = (facts("sender"), facts("receiver"))
    specs = {spec.stage: spec for spec in losses.loss_specs(trial, worker, *ends, lab)}
    assert {"fwd_ip": 1} == {stage: spec.hops for stage, spec in specs.items() if spec.hops != 2}
    assert {"fwd_mtu": 1672, "fwd_device": 1572} == {
        stage: spec.size_bytes for stage, spec in specs.items() if spec.whole
    }
    assert "192.168.253.20" == specs["fwd_neighbour"].destination
    assert {1} == {spec.segments for spec in specs.values()}
    wide = replace(worker, flows=(replace(FLOW, destination="192.168.253.20"),))
    with pytest.raises(Unavailable, match="leave it out of traffic"):
        losses.loss_specs(trial, wide, *ends, lab)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("local", {"losses": {"fwd_netfilter": 1}}),
        ("bridge", {"losses": {"fwd_netfilter": 1}}),
        ("router", {"losses": {"fwd_bridge": 1}}),
        ("router", {"losses": {"udp_no_port": 1}}),
        ("router", {"losses": {"fwd_ring": 1}}),
        ("two-routers", {"losses": {"fwd_ip": 1}}),
        ("router", {"losses": {"fwd_mtu": 1}, "settings": {"middle": {"mtu": 1400}}}),
        (
            "router",
            {"losses": {"fwd_ip": 1}, "traffic": {"flows": {"to": "receiver.addresses[1]:64119"}}},
        ),
    ],
)
def test_what_leaves_no_room_for_a_loss_at_a_node_is_refused(
    name: str, keys: dict[str, Any], golden: Golden
) -> None:
    """With the lab that has such a node."""
    with golden.raises(InputError):
        refuse_together([experiment(**keys)], load.load_lab(name))


def test_a_neighbour_that_is_not_known_takes_a_second_address(golden: Golden) -> None:
    """The receiver's only one has the traffic."""
    lab = load.load_lab("router")
    hosts = (*lab.hosts[:-1], replace(lab.hosts[-1], addresses=("192.168.253.1/24",)))
    with golden.raises(InputError):
        refuse_together([experiment(losses={"fwd_neighbour": 1})], replace(lab, hosts=hosts))


def test_no_packet_is_lost_on_purpose_outside_the_lab_of_two(golden: Golden) -> None:
    """On real hosts and behind a bridge there are others whose packets it might meet."""
    losing = experiment(losses={"udp_no_port": 1})
    for name in ("two-hosts", "two-receivers"):
        with golden.raises(InputError):
            refuse_together([losing], load.load_lab(name))


def test_a_trial_without_losses_is_possible_anywhere() -> None:
    """Nothing is said of it."""
    refuse_together([experiment()], load.load_lab("two-hosts"))


def test_a_user_who_may_not_load_programs_is_told_before_the_run(lab: Lab) -> None:
    """By the receiver, and only where a loss takes one."""
    may = {"sender": {"bpf": False}, "receiver": {"bpf": False}}
    reason = "receiver: losses: rx_xdp, rx_tc: this kernel has no BPF program for this user"
    (message,) = lacking(experiment(losses={"rx_tc": 1}).points[0], lab, may)
    assert message.startswith(reason)
    assert [] == list(lacking(experiment(losses={"rx_ip": 1}).points[0], lab, may))


def test_the_machine_is_changed_for_two_stages_alone() -> None:
    """For a moment each; all others leave it as it is."""
    momentary = {stage: losses.momentary_setting(stage) for stage in losses.LOSS_PORTS}
    changed = {stage: setting.target for stage, setting in momentary.items() if setting is not None}
    assert {
        "rx_backlog": "net.core.netdev_max_backlog",
        "udp_memory": "net.ipv4.udp_mem",
    } == changed


def test_ports_of_losses_follow_the_packets_order() -> None:
    """Every stage with a loss is a stage."""
    for ports in (losses.LOSS_PORTS, losses.NODE_PORTS):
        assert list(ports) == [stage for stage in LEDGER_STAGES if stage in ports]
    assert len({*losses.ALL_PORTS.values()}) == len(losses.ALL_PORTS)


def test_losses_of_a_tunnel_that_is_routed_into_are_at_addresses_of_their_own() -> None:
    """Those that its ends do not list: behind the other end, and as a source."""
    lab = load.load_lab("wireguard")
    assert ("fwd_encap", "fwd_decap") == losses.possible_losses(lab)
    (trial,) = experiment(losses={"fwd_encap": 3, "fwd_decap": 4}).points
    flow = replace(FLOW, source="192.168.254.29", destination="192.168.253.1")
    worker = WorkerSpec("sender", "sender", 0, 1, (flow,), trial.traffic, Send())
    ends = (facts("sender"), facts("receiver"))
    encap, decap = losses.loss_specs(trial, worker, *ends, lab)
    assert ("192.168.254.29", "192.168.253.20", False) == (
        encap.source,
        encap.destination,
        encap.whole,
    )
    assert ("192.168.254.30", "192.168.253.1", "", 3) == (
        decap.source,
        decap.destination,
        decap.destination_mac,
        decap.hops,
    )
    wide = replace(worker, flows=(replace(flow, destination="192.168.253.20"),))
    with pytest.raises(Unavailable, match="the tunnel is not to carry packets to"):
        losses.loss_specs(trial, wide, *ends, lab)
    known = {name: facts(name) for name in ("sender", "wg1", "wg2", "receiver")}
    context = LabContext(dict.fromkeys(known, 1), known)
    allowed = [
        setting.value["allowed"]
        for node in lab.middle
        for setting in settings_for(lab, trial, node, context)
        if setting.kind == "wireguard"
    ]
    behind = [f"192.168.253.{n}/32" for n in range(1, 20)]
    assert [*behind, "192.168.252.2/32", "192.168.253.254/32"] == allowed[0]
    assert ["192.168.254.29/32", "192.168.254.1/32", "192.168.252.1/32"] == allowed[1]
