"""Labs whose hosts are no namespaces: what is set on them, and which addresses they have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from definition_fixture import facts, trial
from golden import Golden

from udpbench.definition import load
from udpbench.definition.binding.bind import (
    LabContext,
    Unavailable,
    bind,
    machine_settings_for,
    settings_for,
)
from udpbench.definition.binding.host_block import routed_networks
from udpbench.definition.lab_rules import refuse_together
from udpbench.errors import InputError
from udpbench.host_settings import Settings
from udpbench.model.experiment import Experiment
from udpbench.model.host import Facts
from udpbench.model.lab import Lab

FACTS = {
    "left": facts("left", addresses=("172.16.0.9/16", "10.0.0.9/24")),
    "right": facts("right", addresses=("10.0.0.1/24", "10.0.0.2/24")),
}


@pytest.fixture
def far() -> Lab:
    """Return the shipped lab of two hosts."""
    return load.load_lab("two-hosts")


@pytest.fixture
def settled(far: Lab) -> Lab:
    """Return it with hosts that have their addresses already."""
    own = (replace(host, addresses=(), existing=True) for host in far.hosts)
    return replace(far, hosts=tuple(own))


def kinds(lab: Lab, known: dict[str, Facts], **settings: object) -> dict[str, list[str]]:
    """Return host → the kinds of its settings, each once, in order."""
    chosen = trial(settings={"receiver": settings} if settings else {})
    context = LabContext(facts=known)
    return {
        host.name: list(
            dict.fromkeys(setting.kind for setting in settings_for(lab, chosen, host, context))
        )
        for host in lab.hosts
    }


def test_real_hosts_get_addresses_and_come_up_and_nothing_else(far: Lab, settled: Lab) -> None:
    """No pair, no neighbours, no features of a built-in lab; existing addresses are left alone."""
    added = ["up", "unclaimed", "address"]
    assert {"left": added, "right": added} == kinds(far, FACTS)
    assert {"left": ["up"], "right": ["up"]} == kinds(settled, FACTS)


def asking(**keys: object) -> Experiment:
    """Return an experiment."""
    return load.load_experiment_data({"question": "?", **keys}, "hops")


def test_who_names_any_address_is_not_routed_to(far: Lab, settled: Lab) -> None:
    """A receiver's word is no reason to send through a router; what the lab says is one."""
    hops = asking(traffic={"ttl": 2})
    with pytest.raises(InputError) as caught:
        refuse_together([hops], settled)
    expected = (
        "hops: traffic.ttl: 2: right could report any address, and packets would be routed there; "
        "expected: 1 with addresses: existing; write the addresses in lab two-hosts instead of existing"
    )
    assert expected == str(caught.value)
    refuse_together([hops], far)
    refuse_together([asking(traffic={"ttl": 2}, needs={"lab": True})], settled)
    refuse_together([asking()], settled)


def test_gateways_are_for_networks_of_the_labs_routes(far: Lab, settled: Lab) -> None:
    """Where a host names its addresses; written ones may lie behind any."""
    routes = Settings(routes=["10.1.0.0/16 via 10.0.0.1", "10.2.0.0/16 via link"])
    assert None is routed_networks(far, far.senders[0])
    assert () == routed_networks(settled, settled.senders[0])
    named = replace(settled, settings={"sender": routes})
    assert ("10.1.0.0/16", "10.2.0.0/16") == routed_networks(named, named.senders[0])
    listed = replace(settled, hosts=(far.hosts[0], settled.hosts[1]))
    back = [routed_networks(lab, lab.receivers[0]) for lab in (far, listed, settled)]
    assert [None, None, ()] == back, "replies go to the senders"


def test_a_real_host_sets_what_its_machine_shares_itself(far: Lab) -> None:
    """There is no machine agent that would."""
    chosen = trial(settings={"receiver": {"sysctl": {"net.core.rmem_max": 9}}})
    settings = settings_for(far, chosen, far.receivers[0], LabContext(facts=FACTS))
    assert [("net.core.rmem_max", "machine")] == [
        (setting.target, setting.scope) for setting in settings if setting.kind == "sysctl"
    ]
    assert () == machine_settings_for(far, chosen, LabContext())


def test_a_link_is_not_made_between_real_hosts(far: Lab) -> None:
    """The trial is skipped with the reason, instead of measuring something else."""
    with pytest.raises(Unavailable) as caught:
        kinds(far, FACTS, link={"queues": 2})
    expected = (
        "settings.receiver.link: only a built-in lab creates its link; --lab is two-hosts; write "
        "needs: {lab: true}, or leave it out"
    )
    assert expected == str(caught.value)


def test_existing_addresses_are_those_found_there(settled: Lab) -> None:
    """The sender takes the one in the destination's network, not simply its first."""
    bound = bind(trial(traffic={"flows": {"to": "receiver.addresses[2]:7"}}), settled, FACTS)
    assert {("10.0.0.9", "10.0.0.2", 7)} == {
        (flow.source, flow.destination, flow.destination_port)
        for spec in bound.workers
        for flow in spec.flows
    }


def test_an_existing_address_elsewhere_is_reached_from_the_first(settled: Lab) -> None:
    """Whether there is a route, and by which interface, the agent proves."""
    known = {**FACTS, "right": facts("right", addresses=("192.0.2.1/24",))}
    assert "172.16.0.9" == bind(trial(), settled, known).workers[0].flows[0].source


def test_a_host_without_an_existing_address_is_reported(settled: Lab, golden: Golden) -> None:
    """The index that was asked for is named, and how many there are."""
    known = {**FACTS, "right": facts("right")}
    with golden.raises(Unavailable):
        bind(trial(), settled, known)
