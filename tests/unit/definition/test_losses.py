"""Losses: what waits for packets that are to be lost, what is sent, and what a lab can't do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from definition_fixture import both, facts
from golden import Golden

from udpbench.definition import load, losses
from udpbench.definition.binding.bind import LabContext, settings_for
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
    device, port = losses.loss_specs(trial, worker, *ends)
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
    assert list(losses.LOSS_PORTS) == [
        stage for stage in LEDGER_STAGES if stage in losses.LOSS_PORTS
    ]
