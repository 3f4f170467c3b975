"""Faults: what waits for packets that are to be lost, what is sent, and what a lab can't do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from definition_fixture import both, facts

from udpbench.definition import faults, load
from udpbench.definition.bind import LabContext, settings_for
from udpbench.definition.offers import lacking
from udpbench.errors import InputError
from udpbench.model import LEDGER_STAGES, Experiment, FlowSpec, Lab, Send, WorkerSpec

FLOW = FlowSpec(0, "192.168.254.30", 65400, "192.168.254.1", 4321)


def experiment(**keys: Any) -> Experiment:
    """Return an experiment."""
    return load.load_experiment_data({"question": "?", **keys}, "x")


def settings(lab: Lab, **keys: Any) -> dict[str, list[tuple[str, str, Any]]]:
    """Return role → what a trial's faults set there."""
    (trial,) = experiment(**keys).points
    return {
        host.role: [
            (one.kind, one.target, one.value)
            for one in settings_for(lab, trial, host, LabContext({"sender": 1}, both()))
            if one.path.startswith("faults.")
        ]
        for host in lab.hosts
    }


def test_something_waits_for_each_fault(lab: Lab) -> None:
    """A rule, a program, a trap or a larger MTU, each on the host where packets are to die."""
    found = settings(
        lab, faults={stage: 1 for stage in faults.FAULT_PORTS if stage != "rx_backlog"}
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
    } == found


def test_packets_are_oversized_for_the_receivers_own_mtu(lab: Lab) -> None:
    """The sender's is as much above it as the packets are."""
    found = settings(lab, faults={"tx_device": 1}, settings={"receiver": {"mtu": 4000}})
    assert [("mtu", "send0", 4100)] == found["sender"]


def test_a_fault_is_sent_along_the_first_flow() -> None:
    """To a port of its own, in messages where the trial's are, and one by one where it must be."""
    (trial,) = experiment().points
    trial = replace(
        trial,
        faults={"tx_device": 3, "udp_no_port": 20},
        receive=replace(trial.receive, gro=True),
    )
    worker = WorkerSpec("sender", "sender", 0, 1, (FLOW,), trial.traffic, Send(gso=10))
    ends = (facts("sender"), facts("receiver"))
    device, port = faults.specs(trial, worker, *ends)
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
    ("keys", "said"),
    [
        (
            {"faults": {"link": 1}},
            "faults.link: no packets can be lost there on purpose; known: tx_n",
        ),
        (
            {"faults": {"rx_backlog": 1}},
            "faults.rx_backlog: settings.receiver.link.receive is napi: no packet waits in a backlog",
        ),
        (
            {
                "faults": {"rx_backlog": 1, "rx_xdp": 1},
                "settings": {"receiver": {"link": {"receive": "inline"}}},
            },
            "faults.rx_backlog: a veth with an XDP program is polled",
        ),
        (
            {
                "faults": {"tx_qdisc": 1},
                "settings": {"sender": {"qdisc": {"pfifo": {"limit": 5}}}},
            },
            "faults.tx_qdisc: a device has one root queue, and this fault needs it",
        ),
        (
            {"faults": {"tx_device": 1}, "settings": {"sender": {"mtu": 2000}}},
            "faults.tx_device: this fault needs the sender's MTU",
        ),
        (
            {
                "faults": {"udp_no_port": 1},
                "traffic": {"flows": {"to": "receiver.addresses[1]:64112"}},
            },
            "traffic.flows: port 64112 is of a fault; use ports below 64101",
        ),
    ],
)
def test_what_leaves_no_room_for_a_fault_is_refused(
    lab: Lab, keys: dict[str, Any], said: str
) -> None:
    """Before any host is touched, with what stands in the way."""
    with pytest.raises(InputError) as error:
        faults.impossible([experiment(**keys)], lab)
    assert said in str(error.value)


def test_no_packet_is_lost_on_purpose_outside_the_lab_of_two() -> None:
    """On real hosts and behind a bridge there are others whose packets it might meet."""
    losing = experiment(faults={"udp_no_port": 1})
    for name in ("two-hosts", "two-receivers"):
        with pytest.raises(InputError, match="packets cannot be lost on purpose in lab two-"):
            faults.impossible([losing], load.load_lab(name))


def test_a_trial_without_faults_is_possible_anywhere() -> None:
    """Nothing is said of it."""
    faults.impossible([experiment()], load.load_lab("two-hosts"))


def test_a_user_who_may_not_load_programs_is_told_before_the_run(lab: Lab) -> None:
    """By the receiver, and only where a fault takes one."""
    may = {"sender": {"bpf": False}, "receiver": {"bpf": False}}
    said = "receiver: faults: rx_xdp, rx_tc: this kernel has no BPF program for this user"
    (told,) = lacking(experiment(faults={"rx_tc": 1}).points, lab, may)
    assert told.startswith(said)
    assert [] == list(lacking(experiment(faults={"rx_ip": 1}).points, lab, may))


def test_the_machine_is_changed_for_two_stages_alone() -> None:
    """For a moment each; all others leave it as it is."""
    found = {stage: faults.momentary(stage) for stage in faults.FAULT_PORTS}
    changed = {stage: one.target for stage, one in found.items() if one is not None}
    assert {
        "rx_backlog": "net.core.netdev_max_backlog",
        "udp_memory": "net.ipv4.udp_mem",
    } == changed


def test_ports_of_faults_follow_the_packets_order() -> None:
    """Every stage with a fault is a stage."""
    assert list(faults.FAULT_PORTS) == [one for one in LEDGER_STAGES if one in faults.FAULT_PORTS]
