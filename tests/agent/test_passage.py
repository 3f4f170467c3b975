"""What a node says may lead packets elsewhere: rules of every program that makes them, programs."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Optional

import pytest
from settings_world import fake_host

from udpbench.agent import passage as passage_module
from udpbench.agent.host import (
    genetlink,
    ip_tunnels,
    programs,
    tracked,
    tun_devices,
    vxlan,
    wireguard_ends,
)
from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.reading import Done
from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_diag import SocketList
from udpbench.agent.passage import led_away, passage
from udpbench.agent.route_proof import prove, prove_connected
from udpbench.agent.settings.own_tables import rules_of
from udpbench.errors import SafetyError
from udpbench.model.experiment import Send, Traffic
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.protocol import Hop, Passage, Tunnel

DNAT = "*nat\n-A PREROUTING -p udp -m udp --dport 4321 -j DNAT --to-destination {}\nCOMMIT\n"
BY_IPTABLES = {"xt": {"type": "target", "name": "DNAT"}}
"""All that nft's JSON has of such a rule, as nft 1.0.6 prints it."""


class Router(Host):
    """A host with two interfaces and no routes, whose programs print what the test wants."""

    printed: dict[str, str]
    rules = 0
    xdp: Optional[int] = None
    tcx = 0
    kind = ""

    def run(self, *command: str, stdin: str = "") -> Done:  # noqa: ARG002 - Host's signature
        """Print, or not be installed."""
        if command[0] not in self.printed:
            raise OSError(errno.ENOPKG, f"{command[0]} is not installed")
        return Done(0, self.printed[command[0]], "")

    def program(self, name: str) -> Optional[Path]:
        """Return where it is, if it is installed."""
        return Path(name) if name in self.printed else None

    def firewall_rules(self) -> int:
        """Return how many rules there are."""
        return self.rules

    def index(self, interface: str) -> int:
        """Return a number."""
        return {"in0": 2, "out0": 3, "br0": 4, "low0": 5, "low1": 6}[interface]

    def link(self, interface: str) -> dict[str, Any]:
        """Return no kind of interface."""
        return Message(ifname=interface, kind=self.kind if interface == "out0" else "")

    def rtnl(self, *words: str, **fields: Any) -> Any:  # noqa: ARG002 - Host's signature
        """Have neither addresses, neighbours nor rules."""
        return []

    def xdp_program(self, interface: str) -> Optional[int]:
        """Return that of the way in."""
        return self.xdp if interface == "in0" else None

    def tcx_programs(self, interface: str) -> Optional[int]:
        """Return those of the way out."""
        return self.tcx if interface == "out0" else 0


class Message(dict[str, Any]):
    """A link's message without attributes but its kind."""

    def get_attr(self, name: str) -> Any:
        """Have no other."""
        if name == "IFLA_LINKINFO":
            return self if self["kind"] else None
        return self["kind"] if name == "IFLA_INFO_KIND" else None


@pytest.fixture
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Router:
    """Return a router without rules, programs or filters."""
    monkeypatch.setattr(genetlink, "dump", lambda *_: [])
    monkeypatch.setattr(genetlink, "dump_whole", lambda *_: [])
    monkeypatch.setattr(bpf, "tcx_programs", lambda *_: 0)
    fake_host(tmp_path)
    host = Router(tmp_path)
    host.printed = {}
    return host


def look(host: Router) -> Passage:
    """Return what it says of packets to a receiver."""
    return passage(host, "in0", "out0", (), (4321,))


PORT = {"payload": {"protocol": "udp", "field": "dport"}}


def ruleset(*expressions: dict[str, Any]) -> str:
    """Return what nft prints of a rule in each IP version."""
    place = {"table": "nat", "chain": "PREROUTING", "handle": 2, "expr": list(expressions)}
    rules = [{"rule": {"family": family, **place}} for family in ("ip", "ip6")]
    return json.dumps({"nftables": [{"metainfo": {}}, *rules]})


def test_a_router_without_rules_leads_nowhere_else(router: Router) -> None:
    """No program is asked, as none may be installed."""
    assert ((), (), ()) == (look(router).rewrites, look(router).sources, look(router).unread)


def ports_of(host: Router, *names: str) -> None:
    """Make interfaces the ports of a bridge."""
    net = host.root / "sys/class/net"
    (net / "br0/brif").mkdir(parents=True)
    for name in names:
        (net / name / "brport").mkdir(parents=True, exist_ok=True)
        (net / name / "brport/bridge").symlink_to("../../br0")
        (net / "br0/brif" / name).touch()


def test_frames_of_a_bridge_with_both_interfaces_never_get_to_ip(router: Router) -> None:
    """It has no other port, to which it might flood them."""
    ports_of(router, "in0", "out0")
    hops = passage(router, "in0", "out0", [("10.0.0.1", "10.0.0.2")], (4321,))
    assert ((), ("br0", "in0", "out0"), ()) == (hops.hops, hops.bridge, hops.unread)


def test_another_port_of_a_bridge_is_named(router: Router) -> None:
    """Where it forwards frames, not where it routes what it takes in."""
    ports_of(router, "in0", "out0", "eth9")
    assert ("eth9, another port of br0,",) == look(router).unread


def test_what_comes_in_by_a_port_is_routed_from_its_bridge(router: Router) -> None:
    """Where the way out is no port of it."""
    ports_of(router, "in0", "eth9")
    assert (("br0", "in0"), ()) == (look(router).bridge, look(router).unread)
    assert () == passage(router, "", "out0", (), (4321,)).bridge


class Vxlan(Message):
    """A VXLAN interface, with its attributes and the kernel's other ones."""

    def get_attr(self, name: str) -> Any:
        """Return its name, or what describes it."""
        if name == "IFLA_INFO_DATA":
            return {"attrs": list(self["data"].items())}
        return self["ifname"] if name == "IFLA_IFNAME" else super().get_attr(name)


class Entry(dict[str, Any]):
    """An entry of its table."""

    get_attr = dict.get


PLAIN = {
    "IFLA_VXLAN_ID": 7,
    "IFLA_VXLAN_LOCAL": "10.1.0.1",
    "IFLA_VXLAN_GROUP": "10.1.0.2",
    "IFLA_VXLAN_PORT": 4789,
    "IFLA_VXLAN_LEARNING": 0,
}


@pytest.mark.parametrize(
    ("data", "entry", "why"),
    [
        ({}, {"NDA_DST": "10.1.0.2"}, ()),
        ({}, {"ifindex": 9, "NDA_DST": "10.1.0.9"}, ()),
        ({}, {"NDA_DST": "10.1.0.9"}, ("with other ends: 10.1.0.9",)),
        ({}, {"NDA_NH_ID": 5}, ("with other ends: nexthop 5",)),
        ({"IFLA_VXLAN_LEARNING": 1}, {}, ("whose ends are learnt from packets (learning)",)),
        (
            {"IFLA_VXLAN_COLLECT_METADATA": 1},
            {},
            ("whose ends are chosen by rules (external)",),
        ),
        ({"IFLA_VXLAN_RSC": 1}, {}, ("which routes by itself (rsc)",)),
        ({"IFLA_VXLAN_VNIFILTER": 1}, {}, ("of several networks (vnifilter)",)),
        ({"IFLA_VXLAN_GROUP": None}, {}, ("without both ends in IPv4 (local, remote)",)),
        ({"IFLA_VXLAN_GROUP": "fd00::2"}, {}, ("without both ends in IPv4 (local, remote)",)),
    ],
)
def test_a_tunnel_with_a_single_other_end_is_followed(
    router: Router,
    monkeypatch: pytest.MonkeyPatch,
    data: dict[str, Any],
    entry: dict[str, Any],
    why: tuple[str, ...],
) -> None:
    """What may lead out of it elsewhere is named."""
    link = Vxlan(ifname="out0", kind="vxlan", data={**PLAIN, **data})
    monkeypatch.setattr(router, "link", lambda name: link if name == "out0" else Message(kind=""))
    entries = [Entry({"ifindex": 3, **entry})]
    monkeypatch.setattr(router, "rtnl", lambda *words, **_: entries if words[0] == "fdb" else [])
    seen = look(router)
    assert tuple(f"out0, a tunnel (vxlan) {text}," for text in why) == seen.unread
    assert seen.tunnel is not None
    assert (7, "10.1.0.1", 4789) == (seen.tunnel.vni, seen.tunnel.local, seen.tunnel.port)


TO, NEXT = "10.0.1.1", "02:00:00:00:00:09"


@pytest.mark.parametrize(
    ("data", "table", "why", "leaves"),
    [
        ({}, {}, (), "10.1.0.2"),
        ({"IFLA_VXLAN_LEARNING": 1}, {vxlan.ANY: ["10.1.0.2"]}, (), "10.1.0.2"),
        ({}, {vxlan.ANY: ["10.1.0.3", "10.1.0.2"]}, ("10.1.0.2, 10.1.0.3",), "10.1.0.2, 10.1.0.3"),
        ({}, {vxlan.ANY: ["10.1.0.2", "10.1.0.3"], NEXT: ["10.1.0.3"]}, (), "10.1.0.3"),
        ({}, {"02:00:00:00:00:07": ["10.1.0.7"]}, (), "10.1.0.2"),
        ({"IFLA_VXLAN_GROUP": "239.1.1.1"}, {}, ("239.1.1.1",), "239.1.1.1"),
        ({"IFLA_VXLAN_GROUP": "239.1.1.1"}, {NEXT: ["10.1.0.3"]}, (), "10.1.0.3"),
        ({"IFLA_VXLAN_GROUP": None}, {NEXT: [5]}, ("nexthop 5",), "nexthop 5"),
    ],
)
def test_a_senders_tunnel_leads_to_a_single_end(
    router: Router,
    monkeypatch: pytest.MonkeyPatch,
    data: dict[str, Any],
    table: dict[str, list[Any]],
    why: tuple[str, ...],
    leaves: str,
) -> None:
    """For the next hop's MAC: to others it may lead elsewhere. Its outer packets have a way, too."""
    link = Vxlan(ifname="out0", kind="vxlan", data={**PLAIN, **data})
    monkeypatch.setattr(router, "link", lambda name: link if name == "out0" else Message(kind=""))
    monkeypatch.setattr(router, "name_of", lambda _: "low0")
    entries = [
        Entry({"ifindex": 3, "NDA_LLADDR": mac, ("NDA_NH_ID" if end == 5 else "NDA_DST"): end})
        for mac, ends in table.items()
        for end in ends
    ]
    answers = {
        "fdb": entries,
        "route": [Entry(type=1, RTA_OIF=3)],
        "neigh": [Entry(ifindex=3, state=2, NDA_DST=TO, NDA_LLADDR=NEXT)],
    }
    monkeypatch.setattr(router, "rtnl", lambda *words, **_: answers.get(words[0], []))
    monkeypatch.setattr(passage_module, "unfollowed", lambda *_: [])
    monkeypatch.setattr(passage_module, "by_interface", lambda *_: [])
    text = f"out0, a tunnel (vxlan) with several ends for {TO}:"
    assert tuple(f"{text} {ends}" for ends in why) == led_away(router, "out0", (TO,), (4321,))
    way = passage(router, "", "out0", (("10.0.1.9", TO),), (4321,))
    assert ((NEXT, leaves),) == way.stations
    followed = [] if "n" in leaves else leaves.split(", ")
    assert followed == [hop.destination for hop in way.outer]


OUTER_MAC = "02:00:00:00:00:0a"


def into_vxlan(
    router: Router, monkeypatch: pytest.MonkeyPatch, bound: Optional[int] = None
) -> dict[str, list[Any]]:
    """Have a sender's VXLAN, whose outer packets leave by low0; return what netlink answers."""
    data = {**PLAIN, "IFLA_VXLAN_LINK": bound}
    links = {"out0": Vxlan(ifname="out0", kind="vxlan", data=data)}
    monkeypatch.setattr(router, "link", lambda name: links.get(name) or Message(kind=""))
    monkeypatch.setattr(router, "name_of", {3: "out0", 5: "low0", 6: "low1"}.get)
    ways = {TO: Entry(type=1, RTA_OIF=3), "10.1.0.2": Entry(type=1, RTA_OIF=5)}
    answers: dict[str, list[Any]] = {
        "neigh": [
            Entry(ifindex=3, state=2, NDA_DST=TO, NDA_LLADDR=NEXT),
            Entry(ifindex=5, state=2, NDA_DST="10.1.0.2", NDA_LLADDR=OUTER_MAC),
        ],
    }

    def rtnl(*words: str, **asked: Any) -> list[Any]:
        if words[0] == "route":
            return [Entry(type=1, RTA_OIF=asked["oif"]) if "oif" in asked else ways[asked["dst"]]]
        return answers.get(words[0], [])

    monkeypatch.setattr(router, "rtnl", rtnl)
    monkeypatch.setattr(passage_module, "unfollowed", lambda *_: [])
    monkeypatch.setattr(passage_module, "by_interface", lambda *_: [])
    return answers


def test_the_next_hop_of_a_senders_outer_packets_is_known(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever answers ARP in its place gets all that the tunnel carries."""
    answers = into_vxlan(router, monkeypatch)
    way = passage(router, "", "out0", (("10.0.1.9", TO),), (4321,))
    assert [("low0", OUTER_MAC)] == [(hop.interface, hop.mac) for hop in way.outer]
    answers["neigh"][1]["NDA_LLADDR"] = "02:00:00:00:00:66"
    way = passage(router, "", "out0", (("10.0.1.9", TO),), (4321,))
    assert ["02:00:00:00:00:66"] == [hop.mac for hop in way.outer]


OUTSIDE = ", of the outer packets of out0 to 10.1.0.2,"


def test_what_leads_a_senders_outer_packets_away_is_named(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their own port and way out, of which the tunnel's interface knows nothing."""
    into_vxlan(router, monkeypatch)
    assert () == led(router)
    router.rules = 1
    for number, named in ((4789, (f"nft rule 2 of ip nat PREROUTING: dup{OUTSIDE}",)), (4790, ())):
        asked = {"match": {"op": "==", "left": PORT, "right": number}}
        router.printed = {"nft": ruleset(asked, {"dup": {"addr": "10.1.0.66"}})}
        assert named == led(router)
    router.rules = 0

    def dump(kind: int, protocol: int, request: bytes, *_: int) -> list[bytes]:
        return [kind_of(b"mirred")] if kind == 46 and request[:4] == struct.pack("=i", 5) else []

    monkeypatch.setattr(genetlink, "dump", dump)
    assert (f"a tc filter on low0{OUTSIDE}",) == led(router)


def test_marks_of_the_packets_within_lead_outer_ones(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux routes a tunnel's packets by the mark of what they carry, which BPF may have set."""
    into_vxlan(router, monkeypatch)
    rules = [policy_rule(10)]
    monkeypatch.setattr(genetlink, "dump_whole", lambda kind, *_: rules if kind == 34 else [])
    by = "a route by a mark (ip rule)"
    assert (f"{by}{OUTSIDE}",) == led(router)
    router.rules = 1
    inner = {"match": {"op": "==", "left": PORT, "right": 4321}}
    mark = {"mangle": {"key": {"meta": {"key": "mark"}}, "value": 7}}
    router.printed = {"nft": ruleset(inner, mark)}
    assert (by, f"{by}{OUTSIDE}") == led(router)


def test_a_way_of_outer_packets_that_is_not_followed_is_named(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route with several next hops, that of a bound tunnel, another tunnel; or no way at all."""
    into_vxlan(router, monkeypatch)
    monkeypatch.setattr(passage_module, "unfollowed", lambda *_: ["a route with several next hops"])
    assert (f"a route with several next hops{OUTSIDE}",) == led(router)
    into_vxlan(router, monkeypatch, bound=6)
    assert (f"a route by the interface, low1{OUTSIDE}",) == led(router)
    into_vxlan(router, monkeypatch)
    links = {name: Vxlan(ifname=name, kind="vxlan", data=PLAIN) for name in ("out0", "low0")}
    monkeypatch.setattr(router, "link", lambda name: links.get(name) or Message(kind=""))
    assert (f"low0, a tunnel within a tunnel{OUTSIDE}",) == led(router)
    whole = router.rtnl

    def refused(error: int) -> Any:
        def rtnl(*words: str, **asked: Any) -> Any:
            if words[0] == "route" and asked["dst"] == "10.1.0.2":
                raise OSError(error, "refused")
            return whole(*words, **asked)

        return rtnl

    monkeypatch.setattr(router, "rtnl", refused(errno.ENETUNREACH))
    assert () == led(router)
    monkeypatch.setattr(router, "rtnl", refused(errno.EPERM))
    with pytest.raises(OSError, match="refused"):
        led(router)


def test_every_end_is_looked_at_while_no_mac_is_known(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next hop's may be any that the tunnel's table has."""
    answers = into_vxlan(router, monkeypatch)
    answers["neigh"] = []
    answers["fdb"] = [Entry({"ifindex": 3, "NDA_LLADDR": NEXT, "NDA_DST": "10.1.0.3"})]
    types = {TO: 1, "10.1.0.2": 1, "10.1.0.3": 3}
    ways = {to: [Entry(type=kind, RTA_OIF=3 if to == TO else 5)] for to, kind in types.items()}
    plain = router.rtnl
    monkeypatch.setattr(
        router,
        "rtnl",
        lambda *words, **asked: (
            ways[asked["dst"]] if words[0] == "route" else plain(*words, **asked)
        ),
    )
    named = "a route of the type broadcast, of the outer packets of out0 to 10.1.0.3,"
    assert (named,) == led(router)


@pytest.mark.parametrize("key", ["COLLECT_METADATA", "RSC", "VNIFILTER"])
def test_a_senders_tunnel_without_a_table_is_named(
    router: Router, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Rules choose its ends, or the network."""
    into_vxlan(router, monkeypatch)
    link = Vxlan(ifname="out0", kind="vxlan", data={**PLAIN, f"IFLA_VXLAN_{key}": 1})
    monkeypatch.setattr(router, "link", lambda name: link if name == "out0" else Message(kind=""))
    (text,) = led(router)
    assert text.startswith("out0, a tunnel (vxlan) ")


def test_the_port_of_a_bridge_that_leads_to_the_next_hop_is_known(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ports of others are not asked for."""
    router.kind = "bridge"
    monkeypatch.setattr(router, "name_of", lambda index: f"port{index}")
    stations = [(3, NEXT, 7), (3, "02:00:00:00:00:07", 8), (4, NEXT, 9)]
    answers = {
        "fdb": [Entry(ifindex=port, NDA_MASTER=at, NDA_LLADDR=mac) for at, mac, port in stations],
        "route": [Entry(type=1, RTA_OIF=3)],
        "neigh": [Entry(ifindex=3, state=2, NDA_DST=TO, NDA_LLADDR=NEXT)],
    }
    monkeypatch.setattr(router, "rtnl", lambda *words, **_: answers.get(words[0], []))
    monkeypatch.setattr(passage_module, "unfollowed", lambda *_: [])
    monkeypatch.setattr(passage_module, "by_interface", lambda *_: [])
    way = passage(router, "", "out0", (("10.0.1.9", TO),), (4321,))
    assert (((NEXT, "port7"),), ()) == (way.stations, way.outer)


@pytest.mark.parametrize("kind", ["wireguard", "tun", "gretap"])
def test_a_tunnel_as_the_way_out_is_named(router: Router, kind: str) -> None:
    """Its other end may be anywhere."""
    router.kind = kind
    assert (f"out0, a tunnel ({kind}),",) == look(router).unread


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("ovpn", ("out0, a tunnel (ovpn) whose other end is not asked for,",)),
        ("xfrm", ("out0, a tunnel (xfrm) whose other end is not asked for,",)),
        ("macsec", ()),
        ("veth", ()),
    ],
)
def test_a_senders_tunnel_of_another_kind_is_named(
    router: Router, kind: str, why: tuple[str, ...]
) -> None:
    """Its other end might move unseen; a frame of macsec has the MACs that it would have."""
    router.kind = kind
    assert why == led_away(router, "out0", (TO,), (4321,))
    assert why == passage(router, "", "out0", (), (4321,)).unread


def test_a_device_without_a_kind_is_known_by_its_type(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of L2TP, below a bridge as well."""
    monkeypatch.setattr(passage_module, "beneath", lambda *_: ["low0"])
    place = router.root / "sys/class/net/low0"
    place.mkdir(parents=True)
    (place / "uevent").write_text("DEVTYPE=l2tpeth\nINTERFACE=low0\n")
    why = "low0, a tunnel (l2tpeth) whose other end is not asked for,"
    assert (why,) == led_away(router, "out0", (TO,), (4321,))
    assert ("low0, a tunnel (l2tpeth) below out0,",) == look(router).unread


def test_a_senders_tun_device_is_of_a_machine_or_tells_where_it_leads(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process does with packets nobody knows."""
    router.kind = "tun"
    held: dict[str, Any] = {"holder": None, "runs_machine": False, "wireguard_socket": None}
    for name in held:
        monkeypatch.setattr(tun_devices, name, lambda *_, name=name: held[name])
    tells = "that does not tell where its other end is (docs/limits.md, Tunnels),"

    def led() -> tuple[str, ...]:
        return led_away(router, "out0", (TO,), (4321,))

    assert (f"out0, a tunnel of a process (not known) {tells}",) == led()
    held["holder"] = 7
    (router.root / "proc/7").mkdir(parents=True)
    (router.root / "proc/7/comm").write_text("openvpn\n")
    assert (f"out0, a tunnel of a process (openvpn) {tells}",) == led()
    held["runs_machine"] = True
    assert () == led()
    held.update(runs_machine=False, wireguard_socket="/gone")
    (why,) = led()
    assert "whose ends this agent cannot ask for (No such file or directory)," in why
    answer = "listen_port=9\npublic_key=0a\nendpoint=[fd00::2]:7\nallowed_ip=0.0.0.0/0\n"
    monkeypatch.setattr(wireguard_ends, "ask", lambda *_: answer)
    monkeypatch.setattr(passage_module, "_hop", lambda *asked: Hop(*asked[3], "none"))
    route = [Entry(type=1, RTA_OIF=5)]
    monkeypatch.setattr(router, "rtnl", lambda *words, **_: route if words[0] == "route" else [])
    monkeypatch.setattr(router, "name_of", lambda _: "low0")
    assert () == led()
    way = passage(router, "", "out0", (("10.0.1.9", TO),), (4321,))
    assert (9, "fd00::2", 7) == (
        (way.tunnel.listens, way.tunnel.remote, way.tunnel.port) if way.tunnel else None
    )
    assert ("out0, a tunnel (tun),",) == look(router).unread


@pytest.mark.parametrize("rule", ["gre", 47, "47"])
def test_outer_packets_of_a_senders_tunnel_are_proven_by_their_protocol(
    router: Router, monkeypatch: pytest.MonkeyPatch, rule: Any
) -> None:
    """From here to its other end; rules for UDP are for others."""
    into_vxlan(router, monkeypatch)
    monkeypatch.setattr(router, "link", lambda name: Message(kind="gre" if name == "out0" else ""))
    tunnel = Tunnel("out0", 0, None, "10.1.0.2", 0, 0)
    monkeypatch.setattr(ip_tunnels, "facts", lambda _, name: tunnel if name == "out0" else None)
    monkeypatch.setattr(ip_tunnels, "without_end", lambda *_: ())
    monkeypatch.setattr(ip_tunnels, "bound_to", lambda *_: None)
    way = passage(router, "", "out0", (("10.0.1.9", TO),), (4321,))
    assert [("10.1.0.2", "low0", OUTER_MAC)] == [
        (hop.destination, hop.interface, hop.mac) for hop in way.outer
    ]
    compared = {"op": "==", "left": {"meta": {"key": "l4proto"}}}
    item = {"family": "ip", "table": "t", "chain": "o", "handle": 4}
    router.rules = 2
    for right, count in ((rule, 1), ("udp", 0)):
        rules = [{"rule": {**item, "expr": [{"match": {**compared, "right": right}}, {"dup": {}}]}}]
        chain = {"chain": {"family": "ip", "table": "t", "name": "o", "hook": "output"}}
        router.printed = {"nft": json.dumps({"nftables": [chain, *rules]})}
        outer = [text for text in led_away(router, "out0", (TO,), (4321,)) if "outer" in text]
        assert count == len(outer), outer


def test_wireguard_that_is_there_leads_to_its_other_end(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that has no address nothing is followed."""
    router.kind = "wireguard"
    place = router.root / "sys/class/net/out0"
    place.mkdir(parents=True)
    (place / "uevent").write_text("DEVTYPE=wireguard\n")
    end = {"peer": "0a", "remote": "", "allowed": ["0.0.0.0/0"]}
    monkeypatch.setattr(wireguard_ends, "device", lambda _: (51820, (end,)))
    monkeypatch.setattr(router, "rtnl", lambda *_, **__: [])
    monkeypatch.setattr(passage_module, "_hop", lambda *asked: Hop(*asked[3], "none"))
    seen = passage(router, "in0", "out0", (("10.0.1.9", TO),), (4321,))
    text = "out0, a tunnel (wireguard) whose other end has no address yet (endpoint),"
    assert ((text,), 51820) == (seen.unread, seen.tunnel and seen.tunnel.listens)
    assert () == passage(router, "", "out0", (("10.0.1.9", TO),), (4321,)).outer
    end["remote"] = "10.1.0.2"
    monkeypatch.setattr(router, "name_of", lambda _: "low0")
    monkeypatch.setattr(
        router,
        "rtnl",
        lambda *words, **_: [Entry(type=1, RTA_OIF=5)] if words[0] == "route" else [],
    )
    sent = passage(router, "", "out0", (("10.0.1.9", TO),), (4321,))
    assert ((), ["10.1.0.2"]) == (sent.unread, [hop.destination for hop in sent.outer])


def test_rules_of_both_iptables_are_read(router: Router) -> None:
    """Both IP versions: nft's JSON gives no destination for them."""
    router.rules = 2
    router.printed = {
        "nft": ruleset(BY_IPTABLES),
        "iptables-save": DNAT.format("10.9.9.9"),
        "ip6tables-nft-save": DNAT.format("[fd00::9]:53"),
    }
    assert (("10.9.9.9", "fd00::9"), ()) == (look(router).rewrites, look(router).unread)


def test_rules_by_iptables_that_nothing_prints_are_named(router: Router) -> None:
    """A container made them, for example; a host with rules of nft alone needs no iptables."""
    router.rules = 2
    router.printed = {"nft": ruleset(BY_IPTABLES), "iptables-save": DNAT.format("10.9.9.9")}
    why = "the rules of ip6tables in nat (ip6tables-save is not installed): "
    assert (f"{why}install ip6tables-nft-save",) == look(router).unread
    router.printed = {"nft": ruleset({"accept": None})}
    assert () == look(router).unread


@pytest.mark.parametrize(("family", "name"), [("ip", "iptables"), ("ip6", "ip6tables")])
def test_tables_of_the_legacy_kind_are_read_or_named(
    router: Router, family: str, name: str
) -> None:
    """They are not in nf_tables, and the other kind of iptables does not show them."""
    tables = router.root / f"proc/thread-self/net/{family}_tables_names"
    tables.parent.mkdir(parents=True, exist_ok=True)
    tables.write_text("nat\nfilter\n")
    step = f"install {name}-legacy-save"
    why = f"the rules of {name} in filter, nat ({name}-save is not installed): {step}"
    assert (why,) == look(router).unread
    router.printed = {f"{name}-save": "# Warning: legacy tables present\n*filter\nCOMMIT\n"}
    why = f"the rules of {name} in nat ({name}-save does not show them): {step}"
    assert (why,) == look(router).unread
    router.printed[f"{name}-legacy-save"] = "*filter\nCOMMIT\n" + DNAT.format("10.9.9.9")
    assert (("10.9.9.9",), ()) == (look(router).rewrites, look(router).unread)


def test_rules_that_only_root_may_read_are_named(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is not the same as not seen; a kernel without nf_tables has none."""
    for error, unread in (
        (
            PermissionError(1, "Operation not permitted"),
            ("the firewall, whose rules an agent without root cannot read,",),
        ),
        (OSError(22, "Invalid argument"), ()),
    ):

        def refuse(raised: OSError = error) -> int:
            raise raised

        monkeypatch.setattr(router, "firewall_rules", refuse)
        assert unread == look(router).unread


def test_legacy_ebtables_at_a_bridge_are_named(router: Router) -> None:
    """They may rewrite frames, and nothing prints them; who routes without a bridge has none."""
    (router.root / "sys/module/ebtable_nat").mkdir(parents=True)
    assert () == look(router).unread
    ports_of(router, "in0")
    assert "the legacy ebtables (module ebtable_nat)" in look(router).unread


def led(host: Router) -> tuple[str, ...]:
    """Return what may lead packets elsewhere that a host sends itself."""
    return led_away(host, "out0", ("10.0.1.1",), (4321,))


def test_a_senders_own_rules_are_looked_at(router: Router) -> None:
    """OUTPUT rewrites before a route is chosen; PREROUTING is for what others send."""
    router.rules = 2
    router.printed = {"nft": ruleset({"dnat": {"addr": "10.9.9.9"}})}
    assert ("a rule to 10.9.9.9 (DNAT)",) == led(router)
    tables = router.root / "proc/thread-self/net/ip_tables_names"
    tables.parent.mkdir(parents=True, exist_ok=True)
    tables.write_text("nat\n")
    router.printed = {"nft": ruleset(), "iptables-save": DNAT.format("10.9.9.9")}
    assert () == led(router)
    router.printed["iptables-save"] = DNAT.format("10.9.9.9").replace("PREROUTING", "OUTPUT")
    assert ("a rule to 10.9.9.9 (DNAT)",) == led(router)
    assert () == led_away(router, "out0", (), ())


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_rules_and_policies_for_its_protocol_concern_a_sender(
    router: Router, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Those for TCP copy a load of TCP, and none of UDP."""
    own = partial(led_away, router, "out0", (TO,), (4321,))
    router.rules = 1
    port = {"payload": {"protocol": "tcp", "field": "dport"}}
    asked = {"match": {"op": "==", "left": port, "right": 4321}}
    router.printed = {"nft": ruleset(asked, {"dup": {"addr": "10.1.0.66"}})}
    named = ("nft rule 2 of ip nat PREROUTING: dup",)
    assert (named if protocol == "tcp" else ()) == own(protocol)
    router.rules = 0
    any_address, end = bytes(16), socket.inet_aton("10.9.9.9") + bytes(12)
    policy = passage_module._POLICY.pack(any_address, any_address, 2, 0, 0, 6, 1, 0)
    template = passage_module._TEMPLATE.pack(end, 2, any_address, 1)
    policy += genetlink.attribute(passage_module.XFRMA_TMPL, template)
    asked_for = passage_module.XFRM_MSG_GETPOLICY
    monkeypatch.setattr(
        genetlink, "dump_whole", lambda kind, *_: [policy] if kind == asked_for else []
    )
    named = ("an IPsec tunnel for 0.0.0.0/0",)
    assert (named if protocol == "tcp" else ()) == own(protocol)


def connection(to: str, reply: str, port: int, status: int) -> bytes:
    """Return a connection of conntrack as the kernel lists it."""

    def way(source: str, destination: str) -> bytes:
        pair = [
            genetlink.attribute(n, socket.inet_aton(e)) for n, e in ((1, source), (2, destination))
        ]
        number = genetlink.attribute(1, b"\x11")
        ports = [genetlink.attribute(n, struct.pack("!H", port)) for n in (2, 3)]
        return genetlink.nest(1, *pair) + genetlink.nest(2, number, *ports)

    return (
        genetlink.nest(1, way("10.0.1.9", to))
        + genetlink.nest(2, way(reply, "10.0.1.9"))
        + genetlink.attribute(3, struct.pack("!I", status))
    )


def test_a_connection_that_conntrack_remembers_is_followed(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule that made it is gone; those of others, and without another destination, are left."""
    listed = [
        connection(TO, "10.9.9.9", 4321, 0x20),
        connection(TO, "10.9.9.8", 53, 0x20),
        connection("10.0.1.2", "10.9.9.7", 4321, 0x20),
        connection(TO, TO, 4321, 0x10),
    ]
    monkeypatch.setattr(genetlink, "walk", lambda kind, *_: listed if kind == tracked.GET else [])
    assert () == led(router), "nothing is tracked"
    count = router.root / tracked.COUNT[1:]
    count.parent.mkdir(parents=True, exist_ok=True)
    count.write_text("4\n")
    assert ("a rule to 10.9.9.9 (DNAT)",) == led(router)
    monkeypatch.setattr(passage_module, "_hop", lambda *asked: Hop(*asked[3], "none"))
    assert ("10.9.9.9",) == passage(router, "in0", "out0", (("10.0.1.9", TO),), (4321,)).rewrites
    assert () == led_away(router, "out0", (TO,), (4321,), "tcp")

    def refuse(error: int) -> Any:
        def dump(kind: int, *_: Any) -> Any:
            if kind == tracked.GET:
                raise OSError(error, os.strerror(error))
            return []

        return dump

    monkeypatch.setattr(genetlink, "walk", refuse(errno.EINVAL))
    assert ("the connections that are tracked (Invalid argument)",) == led(router)
    monkeypatch.setattr(genetlink, "walk", refuse(errno.EPERM))
    assert () == led(router), "a user without root reads no rules either"


def kind_of(word: bytes) -> bytes:
    """Return the attribute with the kind of a filter, or of its action."""
    return struct.pack("=HH", 4 + len(word) + 1, 1) + word + b"\0"


def test_a_senders_filters_are_looked_at_where_packets_leave(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a class or a discipline within another; what comes in is of no concern."""
    asked: list[int] = []

    def dump(kind: int, protocol: int, request: bytes, *_: int) -> list[bytes]:
        if kind == 38:
            handles = ((3, 0x10000), (3, 0x200000), (2, 0x30000), (3, 0xFFFF0000))
            return [struct.pack("=iIII", *each, 0, 0) for each in handles]
        if kind == 42:
            return [struct.pack("=iIII", 3, 0x10001, 0x10000, 0)]
        asked.append(struct.unpack_from("=iII", request)[2])
        return [kind_of(b"mirred")] if asked[-1] == 0x200000 else []

    monkeypatch.setattr(genetlink, "dump", dump)
    assert ("a tc filter on out0",) == led(router)
    assert [0x10000, 0x10001, 0x200000] == asked
    monkeypatch.setattr(genetlink, "dump", lambda *_: [])
    monkeypatch.setattr(bpf, "tcx_programs", lambda _, hook: hook == bpf.TCX_EGRESS)
    router.xdp = 7
    assert ("a tcx program on out0",) == led(router)


def test_filters_of_what_an_interface_stands_on_are_looked_at(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets of a VLAN, a bridge or a bond pass those of the device below, and of that below it."""
    for upper, lower in (("out0", "low0"), ("low0", "low1")):
        (router.root / f"sys/class/net/{upper}/lower_{lower}").mkdir(parents=True)

    def dump(kind: int, protocol: int, request: bytes, *_: int) -> list[bytes]:
        return [kind_of(b"mirred")] if kind == 46 and request[:4] == struct.pack("=i", 6) else []

    monkeypatch.setattr(genetlink, "dump", dump)
    assert ("a tc filter on low1",) == led(router)
    assert ("a tc filter on low1",) == look(router).unread
    (router.root / "sys/class/net/low0/lower_low1").rmdir()
    assert () == led(router)


def policy_rule(kind: int, tos: int = 0) -> bytes:
    """Return a rule of ``ip rule`` as the kernel lists it."""
    return struct.pack("=BBBBBBBBI", 2, 0, 0, tos, 0, 0, 0, 0, 0) + genetlink.number(kind, 7)


def test_a_rule_by_marks_concerns_a_sender_that_sets_them(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VPNs have such rules; one by ports goes by what every packet has."""
    listed = [policy_rule(10), policy_rule(1, tos=16)]
    monkeypatch.setattr(genetlink, "dump_whole", lambda kind, *_: listed if kind == 34 else [])
    assert () == led(router)
    router.rules = 1
    mark = {"mangle": {"key": {"meta": {"key": "mark"}}, "value": 7}}
    router.printed = {"nft": ruleset(mark)}
    by = ("a route by a mark (ip rule)", "a route by the type of service (ip rule)")
    assert by == led(router)
    router.rules = 0
    listed[:] = [policy_rule(kind) for kind in (20, 22, 23, 24)]
    whats = ("the user", "the protocol", "the source port", "the destination port")
    assert tuple(f"a route by {what} (ip rule)" for what in whats) == led(router)


def test_rules_that_are_not_as_expected_are_named(router: Router) -> None:
    """As another version of nft might print it."""
    router.rules = 1
    router.printed = {"nft": ruleset({"dnat": "10.9.9.9"})}
    (why,) = led(router)
    assert why.startswith("the rules of the firewall, not as expected (")


def test_more_rules_than_are_read_are_no_rules_that_are_known(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some may lead packets away."""

    def too_many(_: object) -> None:
        raise OSError(errno.EFBIG, "more rules than are read")

    router.rules = 1
    monkeypatch.setattr(programs, "ruleset", too_many)
    why = "the rules of nf_tables (more rules than are read): remove some"
    assert (why,) == look(router).unread


def test_rules_without_nft_are_named(router: Router) -> None:
    """Nobody can say where they lead."""
    router.rules = 1
    assert ("the rules of nf_tables (nft is not installed): install nft",) == look(router).unread
    router.printed = {"nft": "not JSON"}
    assert look(router).unread[0].startswith("the rules of nf_tables (Expecting value")


def test_programs_and_filters_are_named(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """At either interface: what they do with a packet is not followed."""
    router.xdp, router.tcx = 7, 1
    assert ("an XDP program on in0", "a tcx program on out0") == look(router).unread
    router.xdp, router.tcx = None, 0
    for kind in (b"mirred", b"ct"):
        monkeypatch.setattr(genetlink, "dump", lambda *_, kind=kind: [b"u32 " + kind_of(kind)])
        assert ("a tc filter on in0", "a tc filter on out0") == look(router).unread
    monkeypatch.setattr(genetlink, "dump", lambda *_: [kind_of(b"u32") + kind_of(b"gact")])
    assert () == look(router).unread, "it drops packets, or passes them"


def test_a_node_without_nft_cannot_be_guarded(router: Router) -> None:
    """What to install, and where."""
    with pytest.raises(OSError, match="nft is not installed; install it on the node"):
        rules_of(router, "udpbench_path")


def test_a_socket_that_was_connected_elsewhere_is_refused() -> None:
    """As by a program of a cgroup: the kernel says where it is connected, not the socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(("127.0.0.9", 4321))
        inode, port = os.fstat(sock.fileno()).st_ino, sock.getsockname()[1]
        for destination, refuses in (("127.0.0.9", False), ("127.0.0.2", True)):
            flow = FlowSpec(0, "127.0.0.1", port, destination, 4321)
            worker = WorkerSpec("sender", "left", 0, None, (flow,), Traffic(), send=Send())
            with pytest.raises(SafetyError) if refuses else nullcontext() as refused:
                prove_connected([worker], {inode})
    assert "a sender's socket was connected to 127.0.0.9, port 4321" in str(refused.value)


def test_without_udp_diag_no_socket_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may lack it."""

    def read(_: SocketList) -> Any:
        raise OSError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(SocketList, "read", read)
    flow = FlowSpec(0, "127.0.0.1", 4000, "127.0.0.2", 4321)
    prove_connected([WorkerSpec("sender", "left", 0, None, (flow,), Traffic(), send=Send())], {1})


@pytest.mark.parametrize(
    ("code", "is_permitted"),
    [(errno.ENETUNREACH, True), (errno.EINVAL, True), (errno.EPERM, False)],
)
def test_a_reply_without_a_route_is_never_sent(
    router: Router, monkeypatch: pytest.MonkeyPatch, code: int, is_permitted: bool
) -> None:
    """A blackhole is none, either; what cannot be asked for is no proof, nor is it of a packet."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Router, "rtnl", refuse)
    flow = FlowSpec(0, "10.0.0.1", 4321, "10.1.0.1", 65400)
    spec = WorkerSpec("sender", "red", 0, None, (flow,), Traffic(), send=Send())
    for back, refused in ((True, not is_permitted), (False, True)):
        raises = pytest.raises(SafetyError, match="no route") if refused else nullcontext()
        with raises:
            prove(router, "out0", [spec], back=back)
