"""Ports of a node's own address: what they stand for, and what does not go with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from definition_fixture import facts, refused, trial
from golden import Golden

from udpbench.definition import load
from udpbench.definition.binding.bind import LabContext, Unavailable, bind, settings_for
from udpbench.definition.endpoints import PublishedPorts, parse_published, parse_published_port
from udpbench.model.lab import Lab

TO = {"to": "receiver.addresses[1]:80-81", "published": "router1.addresses[1]:8080-8081"}


def on(lab: Lab, flows: dict[str, Any], **changes: Any) -> Any:
    """Return the workers of a trial, whose node has addresses of its own."""
    known = {host.name: facts(host.name, (0, 1)) for host in lab.hosts}
    known["router1"] = replace(known["router1"], addresses=("10.0.0.9/24", "fd00::9/64"))
    traffic = {"flows": flows, **changes}
    return bind(trial(traffic=traffic, receive={"workers": 2}), lab, known).workers


def test_senders_send_to_the_node_and_receivers_have_what_its_rules_make_of_it() -> None:
    """Each port leads to the one in the same place; a flow has one number at both ends."""
    workers = on(load.load_lab("router"), TO)
    sender, receiver = workers[0], workers[-1]
    ends = [(f.flow, f.destination, f.destination_port) for f in sender.flows]
    assert [(0, "10.0.0.9", 8080), (1, "10.0.0.9", 8081)] == ends
    address = load.load_lab("router").receivers[0].addresses[0].partition("/")[0]
    arriving = [(f.flow, f.destination, f.destination_port) for f in receiver.flows]
    assert [(0, address, 80), (1, address, 81)] == arriving
    assert {80, 81} == {port for spec in workers[1:] for port in spec.bind_ports}


def test_reasons_are_counted_at_both_ports() -> None:
    """A packet that a node drops has the port of the node until a rule rewrites it."""
    lab = load.load_lab("router")
    chosen = trial(traffic={"flows": TO}, receive={"workers": 2}, explain=True)
    known = LabContext(facts={host.name: facts(host.name, (0, 1)) for host in lab.hosts})
    counted = settings_for(lab, chosen, lab.receivers[0], known)
    assert [[80, 81, 8080, 8081]] == [s.value for s in counted if s.kind == "explain"]


def test_a_published_port_is_of_a_node_and_an_address() -> None:
    """As written."""
    assert PublishedPorts("r.1", 2, (8080,)) == parse_published("r.1.addresses[2]:8080")


@pytest.mark.parametrize(
    ("lab", "published", "why"),
    [
        ("router", "gateway.addresses[1]:8080-8081", "gateway is no node in the middle of router"),
        ("local", "router1.addresses[1]:8080-8081", "of local, which has none"),
        ("router", "router1.addresses[2]:8080-8081", "IPv4 address 2 of router1, which has 1"),
    ],
)
def test_a_lab_without_such_a_node_or_address_skips_the_trial(
    lab: str, published: str, why: str
) -> None:
    """With what it has."""
    chosen = load.load_lab(lab)
    if lab == "local":
        known = {host.name: facts(host.name, (0, 1)) for host in chosen.hosts}
        with pytest.raises(Unavailable, match=why):
            bind(
                trial(traffic={"flows": {**TO, "published": published}}, receive={"workers": 2}),
                chosen,
                known,
            )
        return
    with pytest.raises(Unavailable, match=why):
        on(chosen, {**TO, "published": published})


def test_a_tunnels_end_publishes_no_port() -> None:
    """There a datagram without a socket is one that the tunnel did not take."""
    lab = load.load_lab("router")
    hosts = [replace(h, tunnel="vxlan0") if h.name == "router1" else h for h in lab.hosts]
    with pytest.raises(Unavailable, match="router1 begins or ends a tunnel"):
        on(replace(lab, hosts=tuple(hosts)), TO)


@pytest.mark.parametrize(
    "text",
    [
        "traffic: {flows: {published: '10.0.0.1:8080'}}",
        "traffic: {flows: {published: 'router1.addresses[0]:8080'}}",
        "traffic: {flows: {published: 'router1.addresses[1]:0'}}",
        "traffic: {flows: {published: 'router1.addresses[1]:8080-8081'}}",
        (
            "traffic: {flows: {to: 'receiver.addresses[1-2]:4321', "
            "published: 'router1.addresses[1]:8080'}}"
        ),
        "traffic: {protocol: tcp, flows: {published: 'router1.addresses[1]:8080'}}",
        (
            "traffic: {flows: {published: 'router1.addresses[1]:8080'}}\nreceive: {workers: 0}\n"
            "path_check: explained"
        ),
        "traffic: {flows: {published: 'router1.addresses[1]:8080'}}\nlosses: {rx_ip: 10}",
        "settings: {middle: {publish: [8080]}}",
        "settings: {middle: {publish: ['8080:0']}}",
        "settings: {middle: {publish: ['8080:4321', '8080:4322']}}",
        "settings: {receiver: {publish: ['8080:4321']}}",
    ],
)
def test_what_is_no_published_port_is_refused(text: str, golden: Golden) -> None:
    """With what to write instead."""
    golden.check("\n".join(refused(text)))


def context_of(lab: Lab) -> LabContext:
    """Return what is known of a lab's hosts."""
    return LabContext(facts={host.name: facts(host.name, (0, 1)) for host in lab.hosts})


@pytest.mark.parametrize(("family", "end"), [(4, "172.17.0.2:{}"), (6, "[fd75:6265::2]:{}")])
def test_a_node_publishes_ports_of_the_receiver(family: int, end: str) -> None:
    """Those of its first address, at the bridge to which the node routes; an experiment may name others."""
    assert (8080, 4321) == parse_published_port("8080:4321")
    lab = load.load_lab("published-port")
    (node,) = lab.middle
    for given, expected in ((None, {8080: 4321}), (["80:1", "81:2"], {80: 1, 81: 2})):
        chosen = trial(
            traffic={"family": family}, settings={"middle": {"publish": given}} if given else {}
        )
        settings = settings_for(lab, chosen, node, context_of(lab))
        ends = {str(port): end.format(to) for port, to in expected.items()}
        assert [("docker0", ends)] == [
            (s.target, s.value) for s in settings if s.kind == "published"
        ]


def test_a_receiver_without_an_address_of_the_family_has_no_published_port() -> None:
    """Nothing could be led to it."""
    lab = load.load_lab("published-port")
    hosts = [replace(h, addresses=h.addresses[:1]) if h.receives else h for h in lab.hosts]
    settings = settings_for(
        replace(lab, hosts=tuple(hosts)),
        trial(traffic={"family": 6}),
        lab.middle[0],
        context_of(lab),
    )
    assert [] == [each for each in settings if each.kind == "published"]


def test_a_bridge_on_the_way_out_has_the_addresses_and_the_port() -> None:
    """IP routes to the bridge; the pair of the receiver ends at its port."""
    lab = load.load_lab("published-port")
    (node,) = lab.middle
    assert ("eth0", "docker0", ("veth1",)) == (node.entry, node.exit, lab.ports(node))
    settings = settings_for(lab, trial(), node, context_of(lab))
    targets = {
        kind: [setting.target for setting in settings if setting.kind == kind]
        for kind in ("port", "address", "link", "neighbour")
    }
    assert {
        "port": ["veth1"],
        "address": ["eth0/192.168.254.1/24", "docker0/172.17.0.1/16"],
        "link": ["eth0", "veth1"],
    } == {kind: targets[kind] for kind in ("port", "address", "link")}
    assert {"eth0", "docker0"} == {text.partition("/")[0] for text in targets["neighbour"]}
