"""The proof of the path over nodes that answer as told: what is permitted, and each refusal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from analysis import build

from udpbench.control.agents import Agents
from udpbench.control.path_proof import PathWatch, SenderWatch, prove_path
from udpbench.definition.load import load_lab
from udpbench.errors import SafetyError
from udpbench.model.experiment import Answers, Traffic
from udpbench.model.lab import Lab
from udpbench.model.work import FlowSpec, WorkerSpec, replies
from udpbench.protocol import EVERY_PORT, Hop, Passage, Tunnel

TO, FROM = "192.168.253.1", "192.168.254.30"
GATE, GATE_MAC = "192.168.254.1", "02:00:00:00:00:01"


def passage(*hops: Hop, **changes: Any) -> Passage:
    """Return what a node tells."""
    plain = Passage(hops, (), (), None, None, (), ())
    return replace(plain, **changes)


@dataclass
class Node:
    """An agent that tells of a passage."""

    name: str
    interface: str
    out: str
    tells: Passage
    counts: dict[str, int] = field(default_factory=dict)

    def passage(self, interface: str, out: str, pairs: Any, ports: Any, *_: str) -> Passage:
        """Return it."""
        del interface, out, pairs, ports
        return self.tells

    def changed(self) -> dict[str, int]:
        """Return how often it was changed."""
        return dict(self.counts)


SENT = Hop(FROM, TO, "unicast", "send0", GATE, GATE_MAC)
LEFT = Hop(FROM, TO, "unicast", "out0", None, "02:00:00:00:00:09")


def path(sent: Hop = SENT, left: Hop = LEFT, how_much: str = "nothing", **changes: Any) -> bool:
    """Prove the path of the lab ``router``."""
    lab: Lab = load_lab("router")
    facts = {
        name: build.facts(name, interface, address, mac=mac)
        for name, interface, address, mac in (
            ("sender", "send0", f"{FROM}/24", "02:00:00:00:00:08"),
            ("receiver", "receive0", f"{TO}/24", "02:00:00:00:00:09"),
        )
    }
    router = passage(left, addresses=(f"{GATE}/24",), mac=GATE_MAC, pair=(2, 7), out_pair=(3, 9))
    agents = SimpleNamespace(
        senders=[Node("sender", "send0", "", passage(sent, out_pair=(7, 2)))],
        middle=[Node("router1", "in0", "out0", replace(router, **changes))],
        receivers=[Node("receiver", "receive0", "", passage(pair=(9, 3)))],
    )
    flow = SimpleNamespace(source=FROM, destination=TO, destination_port=4321)
    spec = SimpleNamespace(role="sender", host="sender", flows=(flow,), traffic=Traffic())
    return prove_path(lab, cast("Agents", agents), facts, [cast("WorkerSpec", spec)], how_much)


def test_a_path_that_leads_to_the_receiver_is_proven() -> None:
    """Each hop is the next node of the lab; and veth pairs alone join them."""
    assert path()
    assert not path(out_pair=None), "another kind of link"
    assert path(left=replace(LEFT, mac=None)), "nobody has asked for the MAC yet"
    assert path(rewrites=(TO,)), "a rule that chooses a receiver"


BACK = Hop(TO, FROM, "unicast", "receive0", "192.168.253.254", "02:00:00:00:00:0b")
RETURNED = Hop(TO, FROM, "unicast", "in0", None, "02:00:00:00:00:08")


@dataclass
class Both(Node):
    """A node that tells of what comes back, too, and by which interfaces it was asked."""

    back: Passage = field(default_factory=passage)
    asked: list[Any] = field(default_factory=list)

    def passage(
        self, interface: str, out: str, pairs: Any, ports: Any, protocol: str = "udp"
    ) -> Passage:
        """Return that of the direction asked for."""
        del protocol
        if not any(source == TO for source, _ in pairs):
            return self.tells
        self.asked.append((interface, out, pairs, ports))
        return self.back


def replied(back: Hop = BACK, returned: Hop = RETURNED, **changes: Any) -> list[Any]:
    """Prove the path of the lab ``nat`` for echoes, and return what its router was asked of them."""
    facts = {
        name: build.facts(name, interface, address, mac=mac)
        for name, interface, address, mac in (
            ("sender", "send0", f"{FROM}/24", "02:00:00:00:00:08"),
            ("receiver", "receive0", f"{TO}/24", "02:00:00:00:00:09"),
        )
    }
    gave = BACK.gateway or ""
    forth = passage(LEFT, addresses=(f"{GATE}/24",), mac=GATE_MAC, sources=(gave,))
    home = passage(
        *(returned, Hop(TO, gave, "local", "lo")), addresses=(f"{gave}/24",), mac=BACK.mac
    )
    router = Both("router1", "in0", "out0", forth, back=replace(home, **changes))
    agents = SimpleNamespace(
        senders=[Both("sender", "send0", "", passage(SENT))],
        middle=[router],
        receivers=[Both("receiver", "receive0", "", passage(), back=passage(back))],
    )
    flow = FlowSpec(0, FROM, 65400, TO, 4321)
    traffic = Traffic(echo=1)
    workers = [
        WorkerSpec("sender", "sender", 0, None, (flow,), traffic),
        WorkerSpec("receiver", "receiver", 0, None, (flow,), traffic),
    ]
    prove_path(load_lab("nat"), cast("Agents", agents), facts, workers)
    return router.asked


def test_replies_are_proven_on_their_way_back() -> None:
    """Also those to an address that a node gave: that takes them, and hands them on as they were."""
    gave = BACK.gateway
    assert [("out0", "in0", sorted([(TO, FROM), (TO, gave)]), (65400,))] == replied()
    flow = FlowSpec(0, FROM, 65400, TO, 4321)
    for traffic, sends in ((Traffic(), 0), (Traffic(answers=Answers()), 1), (Traffic(echo=2), 1)):
        spec = WorkerSpec("receiver", "receiver", 0, None, (flow,), traffic)
        back = replies([spec, replace(spec, role="sender")])
        assert [("sender", (FlowSpec(0, TO, 4321, FROM, 65400),))] * sends == [
            (each.role, each.flows) for each in back
        ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"back": replace(BACK, gateway="10.9.9.9")}, "receiver: .* 10.9.9.9 is no address of rou"),
        ({"back": replace(BACK, interface="eth9")}, "would leave by eth9, not by receive0"),
        ({"back": replace(BACK, mac="02:00:00:00:00:77")}, "not that of router1"),
        ({"returned": replace(RETURNED, interface="leak0")}, "router1: .* by leak0, not by in0"),
        ({"returned": replace(RETURNED, gateway="10.9.9.9")}, "10.9.9.9 is no address of sender"),
        ({"unread": ("nft rule 2 of ip x f: dup",)}, "router1: nft rule 2 of ip x f: dup may lead"),
        ({"rewrites": ("10.9.9.9",)}, "may send packets to 10.9.9.9, no address of sender"),
    ],
)
def test_replies_that_may_be_led_elsewhere_are_refused(changes: dict[str, Any], why: str) -> None:
    """By the receiver, or by a node on the way back; before anything is sent."""
    with pytest.raises(SafetyError, match=f"as replies might leave the lab: .*{why}"):
        replied(**changes)


def bridged(lab: str = "bridge", **changes: Any) -> bool:
    """Prove the path of a lab whose only node forwards frames."""
    mac = "02:00:00:00:00:09"
    facts = {
        name: build.facts(name, interface, address, mac=mac)
        for name, interface, address in (
            ("sender", "send0", f"{FROM}/24"),
            ("receiver", "receive0", "192.168.254.1/24"),
        )
    }
    plain = {"bridge": ("bridge0", "in0", "out0"), "pair": (2, 7), "out_pair": (3, 9)}
    sent = Hop(FROM, "192.168.254.1", "unicast", "send0", None, mac)
    agents = SimpleNamespace(
        senders=[Node("sender", "send0", "", passage(sent, out_pair=(7, 2)))],
        middle=[Node(load_lab(lab).middle[0].name, "in0", "out0", passage(**{**plain, **changes}))],
        receivers=[Node("receiver", "receive0", "", passage(pair=(9, 3)))],
    )
    flow = SimpleNamespace(source=FROM, destination="192.168.254.1", destination_port=4321)
    spec = SimpleNamespace(role="sender", host="sender", flows=(flow,), traffic=Traffic())
    workers = [cast("WorkerSpec", spec)]
    return prove_path(load_lab(lab), cast("Agents", agents), facts, workers)


def test_a_bridge_is_no_hop() -> None:
    """The sender's next hop is the receiver behind it; veth pairs alone join all three."""
    assert bridged()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"bridge": ()}, "bridge1: its interfaces are not both ports of bridge0"),
        ({"bridge": ("bridge0", "in0")}, "bridge1: its interfaces are not both ports of bridge0"),
        ({"lab": "router"}, "router1: its interfaces are ports of bridge0; write bridge: bridge0"),
        (
            {"unread": ("eth9, another port of bridge0,",)},
            "eth9, another port of bridge0, may lead",
        ),
    ],
)
def test_a_bridge_that_may_lead_elsewhere_is_refused(changes: dict[str, Any], why: str) -> None:
    """Or one that is not as the lab file says."""
    with pytest.raises(SafetyError, match=why):
        bridged(**changes)


NEAR, FAR, FAR_MAC = "192.168.252.1", "192.168.252.2", "02:00:00:00:00:0a"
TUNNEL = Tunnel("vxlan0", 1, NEAR, FAR, 4789, 1)
OUTER = Hop(NEAR, FAR, "unicast", "out0", None, FAR_MAC)
HERE = Hop(NEAR, FAR, "local", "lo", None, None)


@dataclass
class Vtep(Node):
    """An agent at an end of a tunnel, which tells of outer packets, too."""

    outer: Passage = field(default_factory=passage)

    def passage(self, interface: str, out: str, pairs: Any, ports: Any, *_: str) -> Passage:
        """Return that of the pairs asked for."""
        del interface, out
        return self.outer if (pairs, ports) == ([(NEAR, FAR)], (4789,)) else self.tells


def tunnelled(
    tunnel: Tunnel | None = TUNNEL, outer: Hop = OUTER, here: Hop = HERE, **changes: Any
) -> bool:
    """Prove the path of the lab ``vxlan``."""
    mac, to = "02:00:00:00:00:09", "192.168.254.1"
    facts = {
        name: build.facts(name, interface, address, mac=mac)
        for name, interface, address in (
            ("sender", "send0", f"{FROM}/24"),
            ("receiver", "receive0", f"{to}/24"),
        )
    }
    sent = Hop(FROM, to, "unicast", "send0", None, mac)
    first = passage(bridge=("bridge0", "in0", "vxlan0"), pair=(2, 7), tunnel=tunnel)
    last = passage(bridge=("bridge0", "vxlan0", "out0"), out_pair=(5, 8))
    end = passage(here, **{"addresses": (f"{FAR}/24",), "mac": FAR_MAC, "pair": (9, 3), **changes})
    begin = passage(outer, out_pair=(3, 9))
    agents = SimpleNamespace(
        senders=[Node("sender", "send0", "", passage(sent, out_pair=(7, 2)))],
        middle=[
            Vtep("vtep1", "in0", "out0", first, outer=begin),
            Vtep("vtep2", "in0", "out0", last, outer=end),
        ],
        receivers=[Node("receiver", "receive0", "", passage(pair=(8, 5)))],
    )
    flow = SimpleNamespace(source=FROM, destination=to, destination_port=4321)
    spec = SimpleNamespace(role="sender", host="sender", flows=(flow,), traffic=Traffic())
    workers = [cast("WorkerSpec", spec)]
    return prove_path(load_lab("vxlan"), cast("Agents", agents), facts, workers)


def test_a_tunnel_is_proven_by_its_outer_packets() -> None:
    """They get to its other end, hop by hop; and veth pairs alone join all."""
    assert tunnelled()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tunnel": None}, "vtep1: vxlan0 is no VXLAN interface with both ends"),
        ({"tunnel": replace(TUNNEL, remote=None)}, "is no VXLAN interface with both ends"),
        ({"tunnel": replace(TUNNEL, name="vxlan9")}, "vtep1: vxlan9, another tunnel, may lead"),
        ({"outer": replace(OUTER, interface="leak0")}, "would leave by leak0, not by out0"),
        ({"outer": replace(OUTER, mac="02:00:00:00:00:ff")}, "not that of vtep2"),
        ({"addresses": ()}, f"its next hop {FAR} is no address of vtep2"),
        ({"here": replace(HERE, kind="unicast")}, "where the tunnel of vtep1 ends, is unicast"),
        ({"rewrites": ("10.9.9.2",)}, "vtep2: a rule may send packets to 10.9.9.2"),
        ({"unread": ("a tcx program on in0",)}, "vtep2: a tcx program on in0 may lead"),
    ],
)
def test_a_tunnel_that_may_end_elsewhere_is_refused(changes: dict[str, Any], why: str) -> None:
    """Or that is not as the lab file says."""
    with pytest.raises(SafetyError, match=why):
        tunnelled(**changes)


WG = Tunnel("wg0", 0, NEAR, FAR, 51820, 0, 51820)
INNER = Hop(FROM, TO, "unicast", "wg0", None, None)


def into_tunnel(
    tunnel: Tunnel | None = WG,
    inner: Hop = INNER,
    outer: Hop = OUTER,
    taken: Tunnel | None = WG,
    nested: Tunnel | None = None,
) -> bool:
    """Prove the path of the lab ``wireguard``."""
    ends = (("sender", "send0", f"{FROM}/24"), ("receiver", "receive0", f"{TO}/24"))
    facts = {
        name: build.facts(name, interface, address, mac=GATE_MAC)
        for name, interface, address in ends
    }
    sent = Hop(FROM, TO, "unicast", "send0", GATE, GATE_MAC)
    gate = {"addresses": (f"{GATE}/24",), "mac": GATE_MAC, "pair": (2, 7)}
    first = passage(inner, tunnel=tunnel, **gate)
    last = passage(Hop(FROM, TO, "unicast", "out0", None, GATE_MAC), out_pair=(5, 8))
    end = passage(HERE, addresses=(f"{FAR}/24",), mac=FAR_MAC, pair=(9, 3))

    @dataclass
    class Router(Vtep):
        def passage(self, interface: str, out: str, pairs: Any, ports: Any, *_: str) -> Passage:
            if (interface, out, pairs) == ("", "wg0", ()):
                return passage(tunnel=taken)
            return self.outer if (pairs, ports) == ([(NEAR, FAR)], (51820,)) else self.tells

    agents = SimpleNamespace(
        senders=[Node("sender", "send0", "", passage(sent, out_pair=(7, 2)))],
        middle=[
            Router(
                "wg1", "in0", "out0", first, outer=passage(outer, out_pair=(3, 9), tunnel=nested)
            ),
            Router("wg2", "in0", "out0", last, outer=end),
        ],
        receivers=[Node("receiver", "receive0", "", passage(pair=(8, 5)))],
    )
    flow = SimpleNamespace(source=FROM, destination=TO, destination_port=4321)
    spec = SimpleNamespace(role="sender", host="sender", flows=(flow,), traffic=Traffic())
    lab = load_lab("wireguard")
    return prove_path(lab, cast("Agents", agents), facts, [cast("WorkerSpec", spec)])


def test_what_is_routed_into_a_tunnel_is_proven_by_its_outer_packets() -> None:
    """It has a single other end, so that no next hop is asked for; its interface is."""
    assert into_tunnel()
    for changes, why in (
        ({"tunnel": None}, "wg1: wg0 is no WireGuard interface with both ends"),
        ({"inner": replace(INNER, interface="leak0")}, "would leave by leak0, not by wg0"),
        ({"outer": replace(OUTER, interface="leak0")}, "would leave by leak0, not by out0"),
        ({"tunnel": replace(WG, remote=None)}, "without wg1 and wg2 in the lab file what is betw"),
        ({"taken": replace(WG, listens=9)}, "wg2: wg0 does not listen on port 51820, to which wg0"),
        ({"taken": None}, "wg2: wg0 does not listen on port 51820, to which wg0 of wg1 sends"),
        ({"nested": TUNNEL}, "wg1: out0, another tunnel, may lead packets elsewhere"),
    ):
        with pytest.raises(SafetyError, match=why):
            into_tunnel(**cast("dict[str, Any]", changes))


@pytest.mark.parametrize("kind", ["none", "blackhole", "unreachable", "prohibit"])
def test_packets_that_end_at_a_node_leave_it_by_no_way(kind: str) -> None:
    """The ledger counts them; nothing is refused."""
    assert path(left=Hop(FROM, TO, kind))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"left": replace(LEFT, interface="eth9")}, "router1: .* would leave by eth9, not by out0"),
        ({"left": replace(LEFT, interface=None)}, "would leave by no interface"),
        (
            {"left": replace(LEFT, gateway="10.9.9.9")},
            "next hop 10.9.9.9 is no address of receiver",
        ),
        ({"left": replace(LEFT, mac="02:00:00:00:00:77")}, "has the MAC 02:00:00:00:00:77 there"),
        ({"left": replace(LEFT, kind="broadcast")}, "broadcast address"),
        ({"left": replace(LEFT, kind="a route with several next hops")}, "several next hops"),
        (
            {"sent": replace(SENT, gateway=None)},
            f"sender: .* next hop {TO} is no address of router1",
        ),
        ({"rewrites": ("10.9.9.9",)}, "a rule may send packets to 10.9.9.9, no address of"),
        ({"unread": ("a tc filter on in0",)}, "router1: a tc filter on in0 may lead packets"),
    ],
)
def test_a_path_that_may_lead_elsewhere_is_refused(changes: dict[str, Any], why: str) -> None:
    """With the node and the flow, and nothing is sent."""
    with pytest.raises(SafetyError, match=why):
        path(**changes)


def test_a_mac_that_the_first_packets_made_known_is_compared() -> None:
    """A stranger on the link may have answered before the node did."""
    watch = PathWatch([], partial(path, sent=replace(SENT, mac="02:00:00:00:00:66")))
    with pytest.raises(
        SafetyError, match="has the MAC 02:00:00:00:00:66 there, not that of router1"
    ):
        watch.learn()
    PathWatch([]).learn()


FLOODS = ((GATE_MAC, EVERY_PORT),)


def test_a_bridge_that_floods_gets_no_load_over_nodes() -> None:
    """Before the first packet nobody need have spoken; a change of its table is looked at again."""
    assert path(stations=FLOODS)
    again = partial(path, stations=FLOODS, how_much="no more")
    node = Node("router1", "in0", "out0", passage())
    watch = PathWatch([cast("Any", node)], again)
    with pytest.raises(SafetyError, match=f"router1: a bridge .* not know where {GATE_MAC} is"):
        watch.learn()
    watch.begin()
    node.counts["changed.stations"] = 1
    with pytest.raises(SafetyError, match=r"no more was sent, .* and floods every packet"):
        watch.check()
    watch.prove_again = path
    watch.check()
    node.counts["changed.routes"] = 1
    with pytest.raises(SafetyError, match="routes were changed there"):
        watch.check()


def test_a_change_on_the_path_is_an_error_of_its_host() -> None:
    """Whatever decides where packets go; a queueing discipline does not."""
    node = Node("router1", "in0", "out0", passage(), {"changed.routes": 3, "changed.queueing": 1})
    watch = PathWatch([cast("Any", node)])
    watch.begin()
    node.counts["changed.queueing"] = 2
    watch.check()
    for name in ("routes", "redirects", "filters"):
        node.counts[f"changed.{name}"] = 4
        with pytest.raises(SafetyError, match=f"router1: {name} were changed there") as error:
            watch.check()
        assert "router1" == error.value.host
        watch.begin()


@pytest.mark.parametrize(
    ("way", "stays"),
    [
        ({}, True),
        ({"hops": (replace(SENT, mac=None),)}, True),
        ({"hops": (replace(SENT, mac="02:00:00:00:00:77"),)}, False),
        ({"hops": (replace(SENT, gateway="10.9.9.9"),)}, False),
        ({"hops": ()}, False),
        ({"unread": ("a tc filter on send0",)}, False),
        ({"rewrites": ("10.9.9.9",)}, False),
        ({"sources": ("",)}, False),
        ({"stations": ((SENT.mac, "port1"),)}, True),
        ({"stations": ((SENT.mac, "port2"),)}, False),
        ({"stations": ((SENT.mac, EVERY_PORT),)}, False),
        ({"outer": (replace(OUTER, mac=None),)}, True),
        ({"outer": (replace(OUTER, mac="02:00:00:00:00:77"),)}, False),
        ({"outer": (replace(OUTER, interface="eth9"),)}, False),
        ({"outer": ()}, False),
    ],
)
def test_a_change_at_a_sender_stops_it_if_its_packets_go_elsewhere(
    way: dict[str, Any], stays: bool
) -> None:
    """Where no node is known. A MAC that was forgotten is known, and a change is looked at once."""
    flow = SimpleNamespace(source=FROM, destination=TO, destination_port=4321)
    spec = cast(
        "WorkerSpec",
        SimpleNamespace(role="sender", host="sender", flows=(flow,), traffic=Traffic()),
    )
    sender, idle = (Node(name, "send0", "", passage(SENT)) for name in ("sender", "idle"))
    watch = SenderWatch([cast("Any", each) for each in (sender, idle)], [spec])
    sender.tells = passage(replace(SENT, mac=None), outer=(replace(OUTER, mac=None),))
    watch.begin()
    watch.check()
    sender.tells = passage(SENT, stations=FLOODS, outer=(OUTER,))
    with pytest.raises(SafetyError, match=r"sender: no more was sent, .* not know where"):
        watch.learn()
    sender.tells = passage(SENT, stations=((str(SENT.mac), "port1"),), outer=(OUTER,))
    watch.learn()
    sender.tells = replace(sender.tells, **way)
    watch.check()
    sender.counts["changed.firewall"] = 1
    if not stays:
        with pytest.raises(SafetyError, match="firewall were changed there"):
            watch.check()
        return
    watch.check()
    sender.tells = replace(sender.tells, hops=(replace(SENT, mac="02:00:00:00:00:77"),))
    watch.check()
    sender.counts["changed.neighbours"] = 1
    with pytest.raises(SafetyError, match="neighbours were changed there"):
        watch.check()
