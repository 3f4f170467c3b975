"""Labs: what is accepted, and the message for what is not."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from definition_fixture import facts, write
from golden import Golden

from udpbench.control.setting_findings import desired
from udpbench.definition import endpoints, lab_rules, load
from udpbench.definition.binding.bind import LabContext, settings_for
from udpbench.errors import InputError
from udpbench.host_settings import Settings
from udpbench.model.lab import BRIDGE, Connect

LAB = """
sender:
  - {connect: namespace, interface: s0, addresses: [10.0.0.9/24]}
receiver:
  - {name: right, connect: namespace, interface: r0, addresses: [10.0.0.1-2/24], cpus: 2-3}
settings: {receiver: {mtu: 9000}}
"""


def refusal(text: str) -> str:
    """Write a lab, and return the message that refuses it."""
    write(Path.cwd(), text, "lab.yaml")
    with pytest.raises(InputError) as caught:
        load.load_lab("lab.yaml")
    return str(caught.value)


def test_a_lab_has_hosts_by_role() -> None:
    """A host without a name is called after its role; ranges are spelled out."""
    write(Path.cwd(), LAB, "lab.yaml")
    lab = load.load_lab("lab.yaml")
    assert ["sender", "right"] == [host.name for host in lab.hosts]
    assert ("10.0.0.1/24", "10.0.0.2/24") == lab.receivers[0].addresses
    assert ((2, 3), None) == (lab.receivers[0].cpus, lab.senders[0].cpus)
    assert ({"receiver": Settings(mtu_bytes=9000)}, True) == (lab.settings, lab.built_in)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "connect: namespace, interface: s0",
            "connect: local, interface: s0",
            "lab.yaml:5: receiver[1].connect: namespace: a namespace can be joined only to",
        ),
        ("connect: namespace, ", "", "lab.yaml:3: sender[1].connect: the key is missing; add conn"),
        (
            "connect: namespace, interface: s0",
            "connect: {shh: x}, interface: s0",
            "lab.yaml:3: sender[1].connect: unknown key shh; expected: namespace, local; did you mean",
        ),
        (
            "connect: namespace, interface: s0",
            "connect: {ssh: -oProxyCommand=x}, interface: s0",
            "lab.yaml:3: sender[1].connect: ssh is not a single word; expected: namespace, local; write ssh",
        ),
        (
            "connect: namespace, interface: s0",
            "connect: {ssh: x$(touch)}, interface: s0",
            "lab.yaml:3: sender[1].connect: ssh is not [user@]host[:port]; expected: letters, digits and . _ -",
        ),
        (
            "connect: namespace, interface: s0",
            "connect: {become: sudo}, interface: s0",
            "lab.yaml:3: sender[1].connect: ssh is missing; expected: namespace, local; add ssh: use",
        ),
        (
            "connect: namespace, interface: s0",
            "connect: {ssh: x, become: su}, interface: s0",
            "lab.yaml:3: sender[1].connect: become must be sudo; expected: sudo, or namespace, local; or omit",
        ),
        (
            "connect: namespace, interface: s0",
            "connect: docker, interface: s0",
            "lab.yaml:3: sender[1].connect: docker: unknown value; expected: {ssh: …}, {netns: …} or {container: …}, or namespace, local",
        ),
        (
            "interface: s0",
            "interface: a/b",
            "lab.yaml:3: sender[1].interface: a/b: not the name of an interface; expected: letters, digits, . _ -",
        ),
        (
            "interface: s0",
            "interface: abcdefghijklmnopqrstuv",
            (
                "lab.yaml:3: sender[1].interface: abcdefghijklmnopqrstuv: 22 characters are too many "
                "for an interface; expected: letters, digits, . _ - and at most 15 characters, the first a "
                "letter or a digit; see its name in `ip link` there"
            ),
        ),
        (
            "[10.0.0.9/24]",
            "existing",
            "lab.yaml:3: sender[1].addresses: existing: a namespace created for the run has",
        ),
        ("[10.0.0.9/24]", "[]", "lab.yaml:3: sender[1].addresses: a host needs an address; add"),
        (
            "10.0.0.9/24",
            "10.0.0.1/24",
            "lab.yaml:5: receiver[1].addresses: duplicate address 10.0.0.1",
        ),
        (
            "10.0.0.9/24",
            "10.0.1.9/24",
            (
                "lab.yaml:5: receiver[1].addresses: 10.0.0.1 and 1 more are outside the sender's "
                "network; expected: 10.0.1.0/24; use addresses of one network, or add theirs to "
                "settings.sender.routes"
            ),
        ),
        (
            "name: right",
            "name: sender",
            "lab.yaml:5: receiver[1].name: sender: duplicate name sender",
        ),
        ("name: right", "name: 'a b'", "lab.yaml:5: receiver[1].name: a b: not understood; write"),
        ("{receiver: {mtu: 9000}}", "{sender: {link: {}}}", "lab.yaml:6: settings.sender.link: th"),
        ("cpus: 2-3", "settings: {qdisc: {}}", "lab.yaml:5: receiver[1].settings.qdisc: a device"),
        (
            "cpus: 2-3",
            "colour: red",
            "lab.yaml:5: receiver[1].colour: red: unknown key; known: con",
        ),
    ],
)
def test_a_lab_that_cannot_be_is_refused_on_its_line(old: str, new: str, message: str) -> None:
    """Labs are as strict as experiments."""
    assert refusal(LAB.replace(old, new, 1)).startswith(message)


def test_a_receiver_may_be_behind_a_route_of_the_senders() -> None:
    """Then its addresses can be written, which traffic.ttl above 1 demands."""
    routes = "settings: {sender: {routes: [10.0.0.0/24 via 10.0.1.1]}}"
    text = LAB.replace("10.0.0.9/24", "10.0.1.9/24").replace("settings:", f"{routes}  #", 1)
    write(Path.cwd(), text, "lab.yaml")
    assert ("10.0.0.1/24",) == load.load_lab("lab.yaml").receivers[0].addresses[:1]


FAR = """
sender: [{connect: local, interface: s0, addresses: existing}]
receiver:
  - {connect: {ssh: bench@right, become: sudo, python: /opt/python}, interface: r0, addresses: existing}
"""


def test_a_lab_of_real_hosts_says_how_each_is_reached() -> None:
    """One is this host, the other is reached by SSH; none is built in, and addresses stay."""
    write(Path.cwd(), FAR, "lab.yaml")
    lab = load.load_lab("lab.yaml")
    assert (Connect("local"), Connect("ssh", "bench@right", "sudo", "/opt/python")) == (
        lab.senders[0].connect,
        lab.receivers[0].connect,
    )
    assert [(False, (), True)] * 2 == [
        (lab.built_in, host.addresses, host.existing) for host in lab.hosts
    ]


MANY = ", ".join(f"fd00:0:0:0:{n:x}::1-fff/64" for n in range(1, 3001))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("10.0.0.1-2/24", "fd00::0-ffff/64"),
        ("10.0.0.1-2/24", "fd00::1-ffff/64"),
        ("10.0.0.1-2/24", MANY),
        ("cpus: 2-3", f"settings: {{addresses: [{MANY}]}}"),
        ("mtu: 9000", f"addresses: [{MANY}]"),
        ("receiver:", "receiver:\n" + "".join(
            f"  - {{connect: namespace, interface: s{n}, addresses: ['fd00:{n:x}::1-1000/64']}}\n"
            for n in range(5)
        )),
    ],
)  # fmt: skip
def test_a_host_has_so_many_addresses(
    old: str, new: str, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of a range took 11 s, and there may be thousands of lines."""
    looked = []
    known = endpoints._interface_address
    monkeypatch.setattr(
        endpoints, "_interface_address", lambda text: (looked.append(text), known(text))[1]
    )
    message = refusal(LAB.replace(old, new, 1))
    assert len(looked) < 20_000
    golden.check(message.splitlines())


def test_many_points_have_so_many_addresses_together(golden: Golden) -> None:
    """Each is a setting of each point."""
    write(Path.cwd(), LAB.replace("10.0.0.1-2/24", "10.0.0.1-2/24, fd00::1-ffe/64"), "lab.yaml")
    write(Path.cwd(), f"question: Why?\nsweep: {{send.batch: {[*range(1, 301)]}}}\n")
    lab = load.load_lab("lab.yaml")
    with pytest.raises(InputError) as caught:
        lab_rules.refuse_together(load.load_experiments(["x.yaml"]), lab)
    golden.check(str(caught.value).splitlines())


def test_a_range_has_no_networks_edge_inside() -> None:
    """Only its ends are looked at."""
    for text, count in (("10.0.0.1-14/28", 14), ("10.0.0.1-40/28", 0), ("10.0.0.0-3/31", 4)):
        write(Path.cwd(), LAB.replace("10.0.0.9/24", text), "lab.yaml")
        try:
            endpoints.address_count(text)
        except ValueError:
            assert 0 == count
        else:
            assert count == endpoints.address_count(text) == len(endpoints.addresses_of(text))
    assert ("fe80::1%x/64",) == endpoints.addresses_of("fe80::1%x/64")


def test_networks_behind_routes_are_looked_up() -> None:
    """Each address in each of thousands of networks took minutes."""
    routes = ", ".join(f"10.{n >> 8}.{n & 255}.0/24 via 10.0.0.3" for n in range(256, 2256))
    text = LAB.replace("{receiver:", f"{{sender: {{routes: [{routes}]}}, receiver:")
    write(Path.cwd(), text.replace("10.0.0.1-2/24", "10.8.1.1-200/24"), "lab.yaml")
    networks: list[int] = []
    within = IPv4Network.__contains__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            IPv4Network, "__contains__", lambda of, ip: (networks.append(1), within(of, ip))[1]
        )
        assert 200 == len(load.load_lab("lab.yaml").receivers[0].addresses)
    assert len(networks) <= 400


def test_only_one_host_can_be_this_one() -> None:
    """Between two of them packets would take lo, and nobody would notice."""
    expected = (
        "lab.yaml:4: receiver[1].connect: local: sender is this host, too, and packets between them "
        "would pass through lo; expected: one host; reach one of them by ssh"
    )
    assert expected == refusal(re.sub("{ssh.*?}", "local", FAR))


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_hosts_of_a_role_without_names_are_numbered(role: str) -> None:
    """More than two namespaces meet in a bridge; two are joined by a pair."""
    more = f"{role}:\n  - {{connect: namespace, interface: x1, addresses: [10.0.0.77/24]}}"
    text = LAB.replace("name: right, ", "")
    write(Path.cwd(), text.replace(f"{role}:", more, 1), "lab.yaml")
    lab = load.load_lab("lab.yaml")
    names = [host.name for host in lab.hosts if host.part == role]
    assert ([f"{role}1", f"{role}2"], BRIDGE) == (names, lab.joint)
    write(Path.cwd(), text, "lab.yaml")
    assert load.load_lab("lab.yaml").joint is None


@pytest.mark.parametrize("name", ["bridge", "machine"])
def test_the_names_of_own_agents_are_taken(name: str) -> None:
    """Records tell agents apart by name."""
    expected = (
        f"lab.yaml:5: receiver[1].name: {name}: {name} is the name of one of udpbench's own "
        f"agents; "
        "give the host another name"
    )
    assert expected == refusal(LAB.replace("name: right", f"name: {name}"))


def test_a_lab_needs_both_roles(golden: Golden) -> None:
    """A role without a host is an error with a next step."""
    golden.check(refusal("sender: []\nreceiver: []\n").splitlines())


def test_an_unknown_lab_is_refused_with_the_nearest_name() -> None:
    """A name is a path, else a shipped lab."""
    with pytest.raises(InputError) as caught:
        load.load_lab("locl")
    message = "locl: neither a file nor a shipped lab; did you mean local?"
    assert message == str(caught.value)
    with pytest.raises(InputError) as caught:
        load.load_lab("../nothere.yaml")
    expected = "../nothere.yaml: no such file or folder; name an existing one"
    assert expected == str(caught.value)


def test_a_lab_in_two_networks_is_reported_once_for_a_host(golden: Golden) -> None:
    """However many addresses it has there."""
    text = LAB.replace("10.0.0.1-2/24", "10.0.1.1-20/24").replace("10.0.0.1/24", "10.0.1.1-20/24")
    golden.check(refusal(text))


MIDDLE = """
sender:
  - {connect: {netns: red}, interface: eth0, addresses: existing}
middle:
  - {name: router1, connect: {netns: gateway}, interfaces: {in: eth0, out: eth1}}
receiver:
  - {connect: {container: web-1}, interface: eth0, addresses: existing}
"""


def test_a_lab_has_nodes_in_the_middle() -> None:
    """They are hosts that only forward, read only unless it is said; nothing is set on them."""
    write(Path.cwd(), MIDDLE, "lab.yaml")
    lab = load.load_lab("lab.yaml")
    assert ["sender", "router1", "receiver"] == [host.name for host in lab.hosts]
    assert (False, 2, lab.middle) == (lab.built_in, lab.longest_ttl, lab.between)
    (node,) = lab.middle
    assert ("eth0", "eth1", True, False) == (node.interface, node.out, node.existing, node.change)
    assert [Connect("netns", name="red"), Connect("netns", name="gateway")] == [
        host.connect for host in lab.hosts[:2]
    ]
    assert Connect("container", name="web-1") == lab.receivers[0].connect
    assert () == settings_for(lab, None, node, LabContext())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("netns: gateway", "netns: ../x", "netns is not a name; expected: letters, digits"),
        ("netns: gateway", "netns: -x", "netns is not a name"),
        ("netns: gateway", "netns: a, become: sudo", "become beside netns; expected: netns alone"),
        ("{in: eth0, out: eth1}", "{in: eth0}", "not a pair of interfaces; expected: in and out"),
        ("{in: eth0, out: eth1}", "{in: e0, out: e0}", "both are the same interface"),
        ("{in: eth0, out: eth1}", "{in: 'a b', out: e0}", "not the name of an interface"),
        (
            "out: eth1}}",
            "out: eth1}, settings: {mtu: 1400}}",
            "middle[1].settings: router1 is read only; expected: change: true",
        ),
        (
            "out: eth1}}",
            "out: eth1}, addresses: {in: 10.0.0.1/24, out: 10.0.1.1/24}}",
            "middle[1].addresses: router1 is read only, and has its own",
        ),
        (
            "out: eth1}}",
            "out: eth1}, addresses: {in: 10.0.0.1/24}}",
            "not addresses of both interfaces; expected: in and out",
        ),
        (
            "out: eth1}}",
            "out: eth1}, change: true, addresses: {in: 10.0.0.1-9/24, out: 10.0.1.1/24}}",
            "a range of addresses; expected: an address",
        ),
        ("name: router1", "name: sender", "duplicate name sender"),
        (
            "out: eth1}}",
            "out: eth1}, bridge: eth0}",
            "middle[1].bridge: eth0: eth0 is one of the interfaces; name the bridge",
        ),
        (
            "out: eth1}}",
            "out: eth1}, bridge: b, change: true, addresses: {in: 10.0.0.1/24, out: 10.0.1.1/24}}",
            "middle[1].bridge: b: a bridge that is there has its own addresses",
        ),
        (
            "out: eth1}}",
            "out: eth1}, bridge: b, change: true, addresses: {in: [], out: 10.0.1.1/24}}",
            "middle[1].addresses: router1 forwards frames; expected: no addresses; leave them out",
        ),
        (
            "out: eth1}}",
            "out: eth1}, bridge: b, bridged: out}",
            "middle[1].bridged: out: router1 routes to no bridge of its own; write bridge",
        ),
        (
            "out: eth1}}",
            "out: eth1}, tunnel: wg0}",
            "the tunnel that begins at router1 ends at no node; expected: two nodes",
        ),
        (
            "out: eth1}}",
            "out: eth1}, bridge: br0, tunnel: eth1}",
            "middle[1].tunnel: eth1: eth1 is one of its other interfaces; name the VXLAN",
        ),
        (
            "out: eth1}}",
            "out: eth1}, bridge: br0, tunnel: vxlan0}",
            "the tunnel that begins at router1 ends at no node; expected: two nodes",
        ),
        (
            "connect: {netns: gateway}",
            "connect: namespace",
            "a namespace can be joined only to other namespaces",
        ),
    ],
)
def test_what_a_node_in_the_middle_may_not_be(old: str, new: str, message: str) -> None:
    """Each with its place in the file."""
    assert message in refusal(MIDDLE.replace(old, new))


CHAIN = """
sender:
  - {connect: namespace, interface: s0, addresses: [10.0.0.9/24]}
middle:
  - {name: r, connect: namespace, interfaces: {in: a, out: b}, addresses: {in: 10.0.0.1/24, out: 10.0.1.1/24}}
receiver:
  - {connect: namespace, interface: r0, addresses: [10.0.1.2/24]}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("10.0.1.2/24", "10.0.2.2/24", "r and receiver have no network in common"),
        ("in: 10.0.0.1/24", "in: 10.0.3.1/24", "sender and r have no network in common"),
        (
            "receiver:\n",
            "receiver:\n  - {name: x, connect: namespace, interface: r0, addresses: [10.0.1.3/24]}\n",
            "namespaces with nodes in the middle are a chain; expected: one receiver",
        ),
    ],
)
def test_namespaces_with_nodes_in_the_middle_are_a_chain(old: str, new: str, message: str) -> None:
    """Each link has a network of its own."""
    write(Path.cwd(), CHAIN, "lab.yaml")
    assert load.load_lab("lab.yaml").built_in
    assert message in refusal(CHAIN.replace(old, new))


def test_packets_come_no_further_than_the_lab() -> None:
    """A TTL beyond the nodes in the middle is refused; less is permitted, and none is right."""
    write(Path.cwd(), CHAIN, "lab.yaml")
    lab = load.load_lab("lab.yaml")
    for ttl, is_refused in ((1, False), (2, False), (3, True)):
        experiment = load.load_experiment_data({"question": "?", "traffic": {"ttl": ttl}}, "x")
        if not is_refused:
            lab_rules.refuse_together([experiment], lab)
            continue
        with pytest.raises(InputError, match="at most 2, 1 and the nodes in its middle"):
            lab_rules.refuse_together([experiment], lab)


def test_a_bridge_in_the_middle_takes_nothing_off_the_time_to_live() -> None:
    """It needs no addresses, and both hosts beside it are of one network; a namespace behind SSH."""
    text = MIDDLE.replace("out: eth1}}", "out: eth1}, bridge: br0}")
    write(Path.cwd(), text.replace("netns: red", "ssh: root@left, netns: red"), "lab.yaml")
    lab = load.load_lab("lab.yaml")
    assert (1, True) == (lab.longest_ttl, lab.middle[0].bridges)
    assert Connect("ssh", "root@left", name="red") == lab.senders[0].connect


def test_a_bridge_of_a_built_in_lab_has_the_pairs_as_its_ports() -> None:
    """The hosts beside it know each other's MAC; of two in a row, too, and one may route."""
    text = CHAIN.replace(
        "middle:\n",
        "middle:\n  - {name: b1, connect: namespace, interfaces: {in: a, out: b}, bridge: br0}\n"
        "  - {name: b2, connect: namespace, interfaces: {in: a, out: b}, bridge: br0}\n",
    ).replace("addresses: {in: 10.0.0.1", "bridge: docker0, addresses: {in: 10.0.0.1")
    write(Path.cwd(), text, "lab.yaml")
    lab = load.load_lab("lab.yaml")
    assert (2, ["r"]) == (lab.longest_ttl, [node.name for node in lab.routers])
    pids = dict.fromkeys(("sender", "b1", "b2", "r", "receiver"), 1)
    (trial,) = load.load_experiment_data({"question": "?"}, "x").points
    known = {name: facts(name) for name in pids}
    settings = {
        host.name: {
            (each.kind, each.target): each.value
            for each in settings_for(lab, trial, host, LabContext(pids, known))
            if each.kind in ("bridge", "port", "link", "neighbour", "address")
        }
        for host in lab.hosts
    }
    sender, router = "02:75:62:01:00:01", settings["b2"]["link", "b"]["peer_mac"]
    for name in ("b1", "b2"):
        ports = {
            target: value for (kind, target), value in settings[name].items() if kind == "port"
        }
        assert {
            "a": {"bridge": "br0", "station": sender},
            "b": {"bridge": "br0", "station": router},
        } == ports
        assert ("neighbour", "a/10.0.0.1") not in settings[name]
    assert {"bridge": "docker0", "station": sender} == settings["r"]["port", "a"]
    assert ("port", "b") not in settings["r"]
    assert settings["r"]["address", "docker0/10.0.0.1/24"]
    assert sender == settings["r"]["neighbour", "docker0/10.0.0.9"]
    assert router == settings["sender"]["neighbour", "s0/10.0.0.1"]
    pairs = {name: sorted(t for k, t in own if k == "link") for name, own in settings.items()}
    assert {"sender": [], "b1": ["a", "b"], "b2": ["b"], "r": ["b"], "receiver": []} == pairs


TUNNELLED = """
sender:
  - {connect: namespace, interface: s0, addresses: [10.0.0.9/24]}
middle:
  - {name: a, connect: namespace, interfaces: {in: i, out: o}, bridge: b, tunnel: v, addresses: {in: [], out: 10.1.0.1/24}}
  - {name: r, connect: namespace, interfaces: {in: i, out: o}, addresses: {in: 10.1.0.2/24, out: 10.2.0.2/24}}
  - {name: z, connect: namespace, interfaces: {in: i, out: o}, bridge: b, tunnel: v, addresses: {in: 10.2.0.3/24, out: []}}
receiver:
  - {connect: namespace, interface: r0, addresses: [10.0.0.1/24]}
"""


def test_a_router_within_a_tunnel_is_none_of_the_traffic() -> None:
    """Its hop is one of the outer packets, which are as long-lived as they need to be."""
    write(Path.cwd(), TUNNELLED, "lab.yaml")
    lab = load.load_lab("lab.yaml")
    assert (1, ["a", "z"]) == (lab.longest_ttl, [node.name for node in lab.outside])
    names = [node.name for node in lab.hosts]
    context = LabContext(dict.fromkeys(names, 1), {name: facts(name) for name in names})
    (trial,) = load.load_experiment_data({"question": "?"}, "x").points
    settings = {
        node.name: {
            (each.kind, each.target): each.value
            for each in settings_for(lab, trial, node, context)
            if each.kind in ("vxlan", "port", "route", "neighbour", "sysctl")
        }
        for node in lab.hosts
    }
    ends = {"vni": 1, "ttl": 2}
    assert {**ends, "local": "10.1.0.1", "remote": "10.2.0.3"} == settings["a"]["vxlan", "v"]
    assert {**ends, "local": "10.2.0.3", "remote": "10.1.0.1"} == settings["z"]["vxlan", "v"]
    assert "10.1.0.2" == settings["a"]["route", "o/10.2.0.0/24"]
    assert "10.2.0.2" == settings["z"]["route", "i/10.1.0.0/24"]
    assert ("sysctl", "net.ipv4.ip_forward") in settings["r"]
    assert ("neighbour", "s0/10.0.0.1") in settings["sender"]
    sender, receiver = "02:75:62:01:00:01", "02:75:62:02:00:01"
    for node, ports in (("a", {"i": sender, "v": receiver}), ("z", {"v": sender, "o": receiver})):
        assert {("port", name): {"bridge": "b", "station": mac} for name, mac in ports.items()} == {
            key: value for key, value in settings[node].items() if key[0] == "port"
        }


ROUTED = TUNNELLED.replace("bridge: b, ", "").replace("[]", "10.0.0.2/24", 1)
ROUTED = ROUTED.replace("out: []", "out: 10.3.0.3/24").replace("[10.0.0.1/24]", "[10.3.0.1/24]")


def test_a_tunnel_without_a_bridge_is_routed_into() -> None:
    """What is beyond it is routed to its interface; both ends count a hop, those within do not."""
    write(Path.cwd(), ROUTED, "lab.yaml")
    lab = load.load_lab("lab.yaml")
    assert (3, ["a", "z"]) == (lab.longest_ttl, [node.name for node in lab.routers])
    assert [("i", "v"), ("v", "o")] == [lab.ports(node) for node in lab.routers]
    names = [node.name for node in lab.hosts]
    known = {name: facts(name) for name in names}
    context = LabContext(dict.fromkeys(names, 1), known, {"a": "aa", "z": "zz"})
    (trial,) = load.load_experiment_data({"question": "?"}, "x").points
    settings = {
        node.name: {
            (each.kind, each.target): each.value
            for each in settings_for(lab, trial, node, context)
            if each.kind in ("wireguard", "route", "sysctl", "up")
        }
        for node in lab.hosts
    }
    every = ["0.0.0.0/0"]
    to_z = {"peer": "zz", "remote": "10.2.0.3", "allowed": every}
    assert to_z == settings["a"]["wireguard", "v"]
    to_a = {"peer": "aa", "remote": "10.1.0.1", "allowed": every}
    assert to_a == settings["z"]["wireguard", "v"]
    assert "link" == settings["a"]["route", "v/10.3.0.0/24"]
    assert "link" == settings["z"]["route", "v/10.0.0.0/24"]
    assert "10.1.0.2" == settings["a"]["route", "o/10.2.0.0/24"]
    assert "10.0.0.2" == settings["sender"]["route", "s0/10.3.0.0/24"]
    assert settings["a"]["up", "v"]
    assert 1 == settings["z"]["sysctl", "net.ipv4.ip_forward"]


VPN = """
sender:
  - {connect: {netns: red}, interface: eth0, addresses: existing}
middle:
  - {name: near, connect: {netns: near}, interfaces: {in: in0, out: out0}, tunnel: wg0, change: true}
  - {name: far, connect: {netns: far}, interfaces: {in: in0, out: out0}, tunnel: wg0}
receiver:
  - {connect: {netns: blue}, interface: eth0, addresses: existing}
"""


def test_a_tunnel_that_is_there_is_counted_where_its_node_may_be_changed() -> None:
    """By a queue and rules, each optional; nothing else of it is changed, and no key is made."""
    write(Path.cwd(), VPN, "lab.yaml")
    lab = load.load_lab("lab.yaml")
    assert (3, ["near", "far"]) == (lab.longest_ttl, [node.name for node in lab.routers])
    names = [node.name for node in lab.hosts]
    known = {name: facts(name) for name in names}
    (trial,) = load.load_experiment_data({"question": "?"}, "x").points
    clients = [SimpleNamespace(name=name) for name in ("near", "far")]
    agents = cast("Any", SimpleNamespace(hosts=(), middle=clients, machine=None))
    settings = desired(trial, lab, agents, known)
    near = settings["near"]
    assert () == settings["far"]
    assert {
        ("qdisc", "wg0"): {"pfifo": {"limit_packets": 1000}},
        ("tunnel_counts", "wg0"): True,
    } == {(each.kind, each.target): each.value for each in near}
    assert all(each.optional for each in near)


def test_both_ends_of_a_tunnel_are_of_one_kind() -> None:
    """One carries frames, and one packets."""
    write(Path.cwd(), TUNNELLED.replace("bridge: b, ", "", 1), "lab.yaml")
    with pytest.raises(InputError, match="a and z are not ends of one tunnel: one has no bridge"):
        load.load_lab("lab.yaml")


def test_a_tunnel_is_counted_over_ipv4_alone() -> None:
    """Inner and outer packets would share counters of another version unevenly."""
    lab = load.load_lab("vxlan")
    experiment = load.load_experiment_data({"question": "?", "traffic": {"family": 6}}, "six")
    with pytest.raises(InputError, match="tunnels are counted over IPv4, as is what they carry"):
        lab_rules.refuse_together([experiment], lab)
