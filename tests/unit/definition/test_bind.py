"""From trials and facts to workers: flows, shares, CPUs, skips and findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from definition_fixture import both, facts, refused, trial
from golden import Golden

from udpbench.definition import load
from udpbench.definition.binding.bind import Unavailable, UnmetNeeds, bind, require_offers
from udpbench.model.lab import Lab
from udpbench.model.work import FlowSpec


def test_one_worker_each_is_bound_to_a_half_of_the_machine(lab: Lab) -> None:
    """Receiver on CPU 0, sender on CPU 1, one flow, nothing to find."""
    bound = bind(trial(traffic={"rate": "10kpps", "count": "1k"}), lab, both())
    sender, receiver = bound.workers
    flow = FlowSpec(0, "10.0.0.30", 65400, "10.0.0.1", 4321)
    assert ("sender.sender0", 1, (flow,), 10000, 1000) == (
        sender.name,
        sender.cpu,
        sender.flows,
        sender.rate_pps,
        sender.count_packets,
    )
    assert ("receiver.receiver0", 0, (flow,), (4321,), None) == (
        receiver.name,
        receiver.cpu,
        receiver.flows,
        receiver.bind_ports,
        receiver.rate_pps,
    )
    assert () == bound.findings


def test_flows_are_split_in_turn_and_shares_add_up(lab: Lab) -> None:
    """Every combination of source port, address and port, and no packet lost in the division."""
    chosen = trial(
        traffic={
            "rate": "100pps",
            "count": 10,
            "flows": {"from": "100-101", "to": "receiver.addresses[1-2]:1-2"},
        },
        send={"workers": 3},
        receive={"workers": 2},
    )
    bound = bind(chosen, lab, both((0, 1, 2, 3, 4, 5)))
    senders, receivers = bound.workers[:3], bound.workers[3:]
    assert [
        [(0, 100, "10.0.0.1", 1), (1, 101, "10.0.0.1", 2), (2, 100, "10.0.0.2", 2)],
        [(3, 101, "10.0.0.1", 1), (4, 100, "10.0.0.2", 1), (5, 101, "10.0.0.2", 2)],
        [(6, 100, "10.0.0.1", 2), (7, 101, "10.0.0.2", 1)],
    ] == [
        [(f.flow, f.source_port, f.destination, f.destination_port) for f in worker.flows]
        for worker in senders
    ]
    assert [34, 33, 33] == [worker.rate_pps for worker in senders]
    assert [4, 3, 3] == [worker.count_packets for worker in senders]
    assert [3, 4, 5] == [worker.cpu for worker in senders]
    assert [(0, (1,), 8), (1, (2,), 8)] == [
        (worker.cpu, worker.bind_ports, len(worker.flows)) for worker in receivers
    ]


def test_each_worker_may_send_every_flow_under_numbers_of_its_own(lab: Lab) -> None:
    """Two senders of one 4-tuple are told apart by the flow in the header."""
    chosen = trial(traffic={"flows": {"spread": "each"}}, send={"workers": 2})
    bound = bind(chosen, lab, both((0, 1, 2, 3)))
    assert [[0], [1], [0, 1]] == [[flow.flow for flow in w.flows] for w in bound.workers]
    assert 1 == len({replace(flow, flow=0) for flow in bound.workers[2].flows})


def test_unpinned_named_and_lab_cpus(lab: Lab) -> None:
    """``any`` is None, numbers are taken in their order, a lab's own list beats the split."""
    lab = replace(lab, hosts=(*lab.senders, replace(lab.receivers[0], cpus=(3,))))
    chosen = trial(send={"cpus": "any"})
    assert [None, 3] == [w.cpu for w in bind(chosen, lab, both((0, 1, 2, 3))).workers]
    chosen = trial(send={"cpus": "2,0", "workers": 2}, traffic={"flows": {"spread": "each"}})
    assert [2, 0, 3] == [w.cpu for w in bind(chosen, lab, both((0, 1, 2, 3))).workers]


def test_a_closed_port_has_no_receiving_worker(lab: Lab) -> None:
    """``workers: 0`` binds senders only."""
    chosen = trial(receive={"workers": 0}, path_check="explained")
    assert ["sender"] == [worker.role for worker in bind(chosen, lab, both()).workers]


@pytest.mark.parametrize(
    ("cpus", "shares"),
    [((0, 1), ([0], [1])), ((0, 1, 2), ([0, 1], [2])), ((4, 5, 6, 7), ([4, 5], [6, 7]))],
)
def test_hosts_of_one_machine_split_its_cpus(
    lab: Lab, cpus: tuple[int, ...], shares: tuple[list[int], list[int]]
) -> None:
    """The receiver has the lower half and the middle, the sender the upper."""
    flows = {"spread": "each"}
    chosen = trial(
        traffic={"flows": flows},
        send={"workers": len(shares[1])},
        receive={"workers": len(shares[0])},
    )
    bound = bind(chosen, lab, both(cpus))
    assert shares == (
        [w.cpu for w in bound.workers if w.role == "receiver"],
        [w.cpu for w in bound.workers if w.role == "sender"],
    )
    assert () == bound.findings


def test_workers_wrap_round_a_short_list_with_a_finding(lab: Lab, golden: Golden) -> None:
    """Three receiving workers on one CPU are possible, and said."""
    bound = bind(trial(receive={"workers": 3}), lab, both())
    assert [0, 0, 0] == [w.cpu for w in bound.workers if w.role == "receiver"]
    golden.check([str(finding) for finding in bound.findings])


def test_on_one_cpu_both_roles_share_it_with_a_finding(lab: Lab, golden: Golden) -> None:
    """A machine with a single CPU can run the lab, and the reader is told."""
    bound = bind(trial(), lab, both((0,)))
    assert [0, 0] == [worker.cpu for worker in bound.workers]
    golden.check([str(finding) for finding in bound.findings])


@pytest.mark.parametrize(
    ("parts", "changes"),
    [
        ({"needs": {"receiver": {"cpus": 3}}}, {}),
        ({"needs": {"receiver": {"rx_queues": 2}}}, {}),
        ({"needs": {"receiver": {"rx_queues": 2}}}, {"rx_queues": None}),
        ({"needs": {"sender": {"nodes": 2}}}, {}),
        ({"needs": {"sender": {"smt": True}}}, {}),
        ({"needs": {"receiver": {"smt": False}}}, {"siblings": {"0": (0, 1)}}),
        ({"needs": {"lab": False}}, {}),
        ({"needs": {"sender": {"nodes": 2}, "receiver": {"cpus": 3}}}, {}),
        ({"send": {"cpus": "1,7"}}, {}),
        ({"traffic": {"flows": {"to": "receiver.addresses[3]:1"}}}, {}),
        ({"traffic": {"size": "1473B"}}, {}),
        ({"needs": {"receiver": {"driver": "ice"}}}, {}),
        ({"needs": {"sender": {"driver": "ice"}}}, {"driver": None}),
        ({"needs": {"receiver": {"kernel": "6.18.1+"}}}, {}),
        ({"needs": {"receiver": {"kernel": "6.2+"}}}, {"kernel": "custom"}),
    ],
)
def test_what_hosts_cannot_offer_skips_the_trial_with_the_reason(
    lab: Lab, parts: dict[str, Any], changes: dict[str, Any], golden: Golden
) -> None:
    """Needs and symbols that mean nothing here raise Unavailable."""
    with pytest.raises(Unavailable) as caught:
        bind(trial(**parts), lab, both(**changes))
    golden.check(str(caught.value))


def test_a_kernel_of_an_absurd_number_meets_no_need(lab: Lab) -> None:
    """As an agent that is none may call it."""
    with pytest.raises(Unavailable):
        bind(trial(needs={"receiver": {"kernel": "6.2+"}}), lab, both(kernel=f"{'9' * 5000}.1"))


def test_a_built_in_lab_meets_the_need_of_one(lab: Lab) -> None:
    """Needs that are met change nothing."""
    is_so = {"cpus": 1, "rx_queues": 1, "smt": False, "driver": "veth", "kernel": "6.9+"}
    chosen = trial(needs={"lab": True, "receiver": is_so})
    assert 2 == len(bind(chosen, lab, both()).workers)


def test_the_driver_of_a_built_in_lab_is_known_once_it_is_made(lab: Lab, golden: Golden) -> None:
    """That of a host is known before anything is set there."""
    chosen = trial(needs={"receiver": {"driver": "ice"}})
    require_offers(chosen, lab, both(driver=None), {"sender": {}, "receiver": {}})
    real = load.load_lab("two-hosts")
    named = {host.name: facts(host.name) for host in real.hosts}
    with golden.raises(UnmetNeeds):
        require_offers(chosen, real, named, {})


@pytest.mark.parametrize("kernel", ["6.1", "'6'", "'>=6.1'"])
def test_a_need_of_a_kernel_is_a_version_and_later(kernel: str, golden: Golden) -> None:
    """A bare number could mean that version alone."""
    golden.check(refused(f"needs: {{receiver: {{kernel: {kernel}}}}}"))


def test_a_labs_cpus_must_be_there(lab: Lab, golden: Golden) -> None:
    """A lab file written for a larger machine skips its trials here."""
    lab = replace(lab, hosts=(replace(lab.senders[0], cpus=(1, 9)), *lab.receivers))
    with pytest.raises(Unavailable) as caught:
        bind(trial(), lab, both())
    golden.check(str(caught.value))


def test_without_known_cpus_nothing_is_placed(lab: Lab, golden: Golden) -> None:
    """An agent that may run nowhere is a reason, not a division by zero."""
    with pytest.raises(Unavailable) as caught:
        bind(trial(), lab, both(()))
    golden.check(str(caught.value))


def test_a_sender_needs_an_ipv4_address(lab: Lab, golden: Golden) -> None:
    """A host with IPv6 addresses only cannot send IPv4."""
    lab = replace(lab, hosts=(replace(lab.senders[0], addresses=("fd00::1/64",)), *lab.receivers))
    with pytest.raises(Unavailable) as caught:
        bind(trial(), lab, both())
    golden.check(str(caught.value))


def test_addresses_are_counted_within_the_family(lab: Lab) -> None:
    """An IPv6 address in between does not shift the index."""
    addresses = ("fd00::2/64", "10.0.0.1/24")
    lab = replace(lab, hosts=(*lab.senders, replace(lab.receivers[0], addresses=addresses)))
    assert "10.0.0.1" == bind(trial(), lab, both()).workers[0].flows[0].destination
