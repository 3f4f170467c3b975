"""Where rules of a firewall may send packets: what nft and iptables-save print, as they print it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from udpbench.agent.rewrites import FlowMarks, Rewrites, of_iptables, of_nft, settled

OURS = FlowMarks(("in0",), ("10.0.1.1",), (4321,))


def nft(*expressions: dict[str, Any], **items: Any) -> Rewrites:
    """Return what is read of a ruleset with a single rule."""
    rule = {"family": "ip", "table": "nat", "chain": "pre", "handle": 7, "expr": list(expressions)}
    place = {"family": "ip", "table": "nat"}
    listed = [{key: {**place, **value}} for key, value in items.items()]
    return of_nft([{"rule": rule}, *listed], OURS)


def match(left: dict[str, Any], right: Any, op: str = "==") -> dict[str, Any]:
    """Return a comparison of a rule."""
    return {"match": {"op": op, "left": left, "right": right}}


PORT = {"payload": {"protocol": "udp", "field": "dport"}}
ADDRESS = {"payload": {"protocol": "ip", "field": "daddr"}}
DNAT = {"dnat": {"addr": "10.9.9.9"}}
ELSEWHERE = Rewrites(("10.9.9.9",))


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        (match(PORT, 4321), ELSEWHERE),
        (match(PORT, 53), Rewrites()),
        (match(PORT, {"range": [4000, 5000]}), ELSEWHERE),
        (match(PORT, {"range": [1, 9]}), Rewrites()),
        (match(PORT, {"set": [53, {"range": [4000, 5000]}]}), ELSEWHERE),
        (match(PORT, 53, "!="), ELSEWHERE),
        (match(PORT, "@ports"), ELSEWHERE),
        (match(ADDRESS, "10.0.1.1"), ELSEWHERE),
        (match(ADDRESS, "10.0.1.2"), Rewrites()),
        (match(ADDRESS, {"prefix": {"addr": "10.0.1.0", "len": 24}}), ELSEWHERE),
        (match(ADDRESS, {"set": ["10.0.2.1", "10.0.1.1"]}), ELSEWHERE),
        (match({"payload": {"protocol": "tcp", "field": "dport"}}, 4321), Rewrites()),
        (match({"meta": {"key": "l4proto"}}, "tcp"), Rewrites()),
        (match({"meta": {"key": "l4proto"}}, 17), ELSEWHERE),
        (match({"meta": {"key": "iifname"}}, "eth9"), Rewrites()),
        (match({"meta": {"key": "iifname"}}, "in*"), ELSEWHERE),
        (match({"ct": {"key": "state"}}, "new"), ELSEWHERE),
        (match({"ct": {"key": "mark"}}, 7), ELSEWHERE),
        (match({"meta": {"key": "iifname"}}, "@ifs"), ELSEWHERE),
        (match({"meta": {"key": "iifname"}}, {"set": ["eth8", "in0"]}), ELSEWHERE),
        (match({"meta": {"key": "iifname"}}, "eth9", "!="), ELSEWHERE),
        (match({"meta": {"key": "l4proto"}}, "@protocols"), ELSEWHERE),
        (match({"meta": {"key": "l4proto"}}, {"set": ["tcp", "udp"]}), ELSEWHERE),
        (match({"meta": {"key": "l4proto"}}, "*"), ELSEWHERE),
        (match({"meta": {"key": "l4proto"}}, "udp", "!="), ELSEWHERE),
        (match(ADDRESS, "@addresses"), ELSEWHERE),
        (match(ADDRESS, {"range": ["10.0.0.1", "10.0.2.1"]}), ELSEWHERE),
        (match(ADDRESS, "10.0.1.1", "!="), ELSEWHERE),
        (match(PORT, {"set": [{"elem": {"val": 4321, "comment": "x"}}]}), ELSEWHERE),
        (match({"&": [PORT, 1]}, 53), ELSEWHERE),
        (match({"payload": {**ADDRESS["payload"], "tunnel": "vxlan"}}, "10.0.9.9"), ELSEWHERE),
        (
            match(
                {"payload": {"tunnel": "vxlan", "protocol": "tcp", "field": "dport"}},
                53,
            ),
            ELSEWHERE,
        ),
        (match({"payload": {"base": "th", "offset": 16, "len": 16}}, 53), ELSEWHERE),
        (match({"concat": [ADDRESS, PORT]}, {"concat": ["10.0.1.1", 4321]}), ELSEWHERE),
        (match({"concat": [ADDRESS, PORT]}, {"concat": ["10.0.1.1", 53]}), Rewrites()),
        (match({"concat": [ADDRESS, PORT]}, "@services"), ELSEWHERE),
        (match({"fib": {"result": "type", "flags": ["daddr"]}}, "local"), Rewrites()),
        (match({"fib": {"result": "type", "flags": ["saddr"]}}, "local"), ELSEWHERE),
        (match({"fib": {"result": "type", "flags": ["daddr"]}}, "local", "!="), ELSEWHERE),
    ],
)
def test_a_rule_counts_unless_it_surely_is_for_others(
    comparison: dict[str, Any], expected: Rewrites
) -> None:
    """A port, an address, a protocol or an interface that is not the traffic's leaves it out."""
    assert expected == nft(comparison, DNAT)


def test_every_backend_that_a_map_may_choose_is_read() -> None:
    """Maps in the rule, named maps, and addresses with ports."""
    chosen = {
        "map": {
            "key": {"numgen": {"mode": "inc"}},
            "data": {"set": [[0, "10.0.1.1"], [1, "10.9.9.9"]]},
        }
    }
    assert ("10.0.1.1", "10.9.9.9") == nft({"dnat": {"addr": chosen}}).addresses
    named = {"dnat": {"addr": {"map": {"key": ADDRESS, "data": "@backends"}}}}
    backends = {
        "name": "backends",
        "elem": [["10.0.1.7", "10.9.9.1"], ["10.0.1.8", {"concat": ["10.9.9.2", 53]}]],
    }
    assert ("10.9.9.1", "10.9.9.2") == nft(named, map=backends).addresses
    elsewhere = {**backends, "table": "other"}
    assert nft(named, map=elsewhere).unread, "a table has names of its own"
    assert nft(named, map={**backends, "size": 65535}).unread, "packets may change it"
    unlisted = {**backends, "elem": [["10.0.1.7", "10.9.9.1"], ["10.0.1.8", {"concat": [53]}]]}
    assert (53,) == nft(named, map=unlisted).ports
    ranges = {**backends, "elem": [["10.0.1.8", {"concat": [{"range": ["10.9.9.2", "10.9.9.9"]}]}]]}
    assert nft(named, map=ranges).unread


WAY = "nft rule 7 of ip nat pre: "


@pytest.mark.parametrize(
    ("statement", "unread", "marks"),
    [
        ({"mangle": {"key": ADDRESS, "value": "10.9.9.9"}}, ("mangle",), ()),
        ({"mangle": {"key": {"payload": {"base": "nh"}}, "value": 1}}, ("mangle",), ()),
        ({"mangle": {"key": {"meta": {"key": "mark"}}, "value": 5}}, (), ("mangle",)),
        (
            {"mangle": {"key": {"payload": {"protocol": "ip", "field": "dscp"}}, "value": "cs1"}},
            (),
            ("mangle",),
        ),
        ({"mangle": {"key": {"ct": {"key": "mark"}}, "value": 5}}, (), ()),
        ({"mangle": {"key": {"meta": {"key": "priority"}}, "value": 5}}, (), ()),
        ({"mangle": {"key": {"meta": {"key": "broute"}}, "value": 1}}, ("mangle",), ()),
        ({"mangle": {"key": {"payload": {"protocol": "ip", "field": "ttl"}}, "value": 5}}, (), ()),
        ({"news": None}, ("news",), ()),
        (
            {"snat": {"addr": {"range": ["10.1.1.1", "10.1.1.4"]}}},
            ("snat to what is not listed",),
            (),
        ),
        ({"snat": {"port": 5}}, (), ()),
        (
            {"dnat": {"addr": "10.0.1.1", "port": {"range": [1, 9]}}},
            ("dnat to what is not listed",),
            (),
        ),
        ("jump {\n counter dnat to 10.9.9.9\n}", ("jump",), ()),
        ("update @seen { ip saddr : ip daddr }", (), ()),
        ({"jump": {"target": "gone"}}, ("a chain that is not listed",), ()),
        ({"vmap": {"key": ADDRESS, "data": "@gone"}}, ("a chain that is not listed",), ()),
    ],
)
def test_what_a_statement_does_is_known_or_named(
    statement: Any, unread: tuple[str, ...], marks: tuple[str, ...]
) -> None:
    """As nft 1.0.6 prints them; text is what it has no JSON for."""
    seen = nft(statement)
    assert (tuple(WAY + each for each in unread), tuple(WAY + each for each in marks)) == (
        seen.unread,
        seen.marks,
    )


def test_what_ebtables_does_is_named_as_iptables_shows_it_not() -> None:
    """Its targets may exchange the MAC or the port; its comparisons do nothing."""
    extensions = [{"type": "match", "name": "ip"}, {"type": "target", "name": "dnat"}, None]
    unread = []
    for family in ("bridge", "ip"):
        for each in extensions:
            rule = {"family": family, "table": "nat", "chain": "pre", "handle": 7}
            items = [{"rule": {**rule, "expr": [{"xt": each}]}}]
            unread.append(of_nft(items, OURS).unread)
    where = "nft rule 7 of bridge nat pre: "
    assert [(), (f"{where}dnat",), (f"{where}xt",), (), (), ()] == unread


def test_what_stands_before_a_comparison_is_done_whatever_it_says() -> None:
    """A copy was sent already."""
    assert nft({"dup": {"addr": "10.9.9.9"}}, match(PORT, 53), {"drop": None}).unread


def chains(*rules: tuple[str, list[Any]], **hooks: str) -> list[dict[str, Any]]:
    """Return what nft prints of rules, each in a chain; a chain with a hook begins there."""
    place = {"family": "ip", "table": "nat"}
    names = dict.fromkeys([*hooks, *(chain for chain, _ in rules)])
    listed = [
        {"chain": {**place, "name": name, **({"hook": hooks[name]} if name in hooks else {})}}
        for name in names
    ]
    return listed + [{"rule": {**place, "chain": chain, "expr": expr}} for chain, expr in rules]


@pytest.mark.parametrize("number", ["tcp", 6])
def test_rules_for_the_other_protocol_are_for_others(number: Any) -> None:
    """A load of TCP meets those for TCP, and none for UDP."""
    port = {"payload": {"protocol": "tcp", "field": "dport"}}
    rule = {"family": "ip", "table": "nat", "chain": "pre", "handle": 7}
    by_tcp = replace(OURS, protocol="tcp")
    for matches, tcp in (
        ([match(port, 4321)], True),
        ([match(port, 53)], False),
        ([match({"meta": {"key": "l4proto"}}, number)], True),
        ([match(PORT, 4321)], False),
    ):
        items = [{"rule": {**rule, "expr": [*matches, DNAT]}}]
        assert (ELSEWHERE if tcp else Rewrites()) == of_nft(items, by_tcp)
        assert (Rewrites() if tcp or matches[0] == match(port, 53) else ELSEWHERE) == of_nft(
            items, OURS
        )
    text = f"*nat\n-A PREROUTING -p {number} --dport 4321 -j DNAT --to-destination 10.9.9.9\n"
    assert (ELSEWHERE, Rewrites()) == (of_iptables(text, by_tcp), of_iptables(text, OURS))


SENT_HERE = FlowMarks((), ("10.0.1.1",), (4321,))


@pytest.mark.parametrize("hook", ["output", "postrouting", "prerouting", "input", "forward"])
def test_what_is_sent_here_passes_few_hooks(hook: str) -> None:
    """A host's rules for what it forwards concern no sender."""
    items = chains(("any", [DNAT]), any=hook)
    assert ELSEWHERE == of_nft(items, OURS)
    expected = ELSEWHERE if hook in ("output", "postrouting") else Rewrites()
    assert expected == of_nft(items, SENT_HERE)
    text = (
        f"*nat\n:{hook.upper()} ACCEPT [0:0]\n-A {hook.upper()} -j DNAT --to-destination 10.9.9.9\n"
    )
    assert (ELSEWHERE, expected) == (of_iptables(text, OURS), of_iptables(text, SENT_HERE))


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ([{"jump": {"target": "end"}}], ELSEWHERE),
        ([match(PORT, 53), {"goto": {"target": "end"}}], Rewrites()),
        (
            [
                match({"fib": {"result": "type", "flags": ["daddr"]}}, "local"),
                {"jump": {"target": "end"}},
            ],
            Rewrites(),
        ),
        (
            [{"vmap": {"key": PORT, "data": {"set": [[4321, {"goto": {"target": "end"}}]]}}}],
            ELSEWHERE,
        ),
        (
            [{"vmap": {"key": PORT, "data": {"set": [[53, {"jump": {"target": "end"}}]]}}}],
            Rewrites(),
        ),
        (
            [{"vmap": {"key": PORT, "data": {"set": [["*", {"jump": {"target": "end"}}]]}}}],
            ELSEWHERE,
        ),
    ],
)
def test_a_chain_counts_if_packets_may_come_there(way: list[Any], expected: Rewrites) -> None:
    """By each jump that they may take; a loop, which a kernel would refuse, ends."""
    loop = {"jump": {"target": "end"}}
    items = chains(("out", way), ("end", [DNAT]), ("end", [loop]), out="output")
    assert expected == of_nft(items, SENT_HERE)


def test_a_table_of_the_other_ip_version_is_for_others() -> None:
    """IPv4 packets meet no rule of family ip6."""
    rule = {"family": "ip6", "table": "t", "chain": "c", "expr": [DNAT]}
    assert Rewrites() == of_nft([{"rule": rule}], OURS)
    assert ELSEWHERE == of_nft([{"rule": {**rule, "family": "inet"}}], OURS)


def test_the_device_below_an_interface_is_not_known() -> None:
    """At its hook ``ingress`` a VLAN's packets come in by another."""
    device = match({"meta": {"key": "iifname"}}, "eth0")
    rule = {"family": "netdev", "table": "t", "chain": "c", "expr": [device, {"fwd": {}}]}
    assert of_nft([{"rule": rule}], OURS).unread


def test_rules_see_what_others_have_rewritten() -> None:
    """An address, or a port, that a rule gave them is one of the traffic's at the next."""
    first = "*nat\n-A PREROUTING -d 10.0.1.1/32 -j DNAT --to-destination 10.0.1.2:53\n"
    then = [match(ADDRESS, "10.0.1.2"), match(PORT, 53), DNAT]
    items = chains(("pre", then), pre="prerouting")
    seen = settled([lambda now: of_nft(items, now), lambda now: of_iptables(first, now)], OURS)
    assert {"10.0.1.2", "10.9.9.9"} == {*seen.addresses}


@pytest.mark.parametrize("statement", ["redirect", "tproxy", "dup", "fwd", "queue", "flow"])
def test_what_leads_elsewhere_is_named(statement: str) -> None:
    """Statements that no destination is read from are refused as they stand."""
    assert (f"nft rule 7 of ip nat pre: {statement}",) == nft({statement: None}).unread


def test_a_dnat_to_what_is_not_listed_is_named() -> None:
    """A map that is not in the ruleset, or an expression."""
    unknown = nft({"dnat": {"addr": {"map": {"key": ADDRESS, "data": "@gone"}}}})
    assert ("nft rule 7 of ip nat pre: dnat to what is not listed",) == unknown.unread


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "-A PREROUTING -p udp -m udp --dport 4321 -j DNAT --to-destination 10.9.9.9:53",
            Rewrites(("10.9.9.9",), ports=(53,)),
        ),
        ("-A PREROUTING -j DNAT --to-destination 10.9.9.9", ELSEWHERE),
        (
            "-A DOCKER ! -i docker0 -p tcp -m tcp --dport 80 -j DNAT --to-destination 172.17.0.2:80",
            Rewrites(),
        ),
        ("-A PREROUTING -p udp -m udp --dport 53 -j DNAT --to-destination 10.9.9.9", Rewrites()),
        ("-A PREROUTING -d 10.0.7.0/24 -j DNAT --to-destination 10.9.9.9", Rewrites()),
        ("-A PREROUTING ! -d 10.0.7.0/24 -j DNAT --to-destination 10.9.9.9", ELSEWHERE),
        ("-A PREROUTING -i eth9 -j DNAT --to-destination 10.9.9.9", Rewrites()),
        (
            "-A PREROUTING -j DNAT --to-destination fd75:6265::1:9",
            Rewrites(("fd75:6265::1:9",)),
        ),
        (
            "-A PREROUTING -j DNAT --to-destination [fd00::9]:53",
            Rewrites(("fd00::9",), ports=(53,)),
        ),
        ("-A POSTROUTING -j SNAT --to-source fd00::8", Rewrites(sources=("fd00::8",))),
        ("-A POSTROUTING ! -o docker0 -j MASQUERADE", Rewrites(sources=("",))),
        ("-A POSTROUTING -j SNAT --to-source 10.8.8.8", Rewrites(sources=("10.8.8.8",))),
        ("-A PREROUTING -p udp -j CT --notrack", Rewrites()),
        ("-A PREROUTING -m comment --comment -p -j DNAT --to-destination 10.9.9.9", ELSEWHERE),
        ("-A PREROUTING -m comment --comment -i -j DNAT --to-destination 10.9.9.9", ELSEWHERE),
        (
            "-A PREROUTING -p udp -m multiport --dports 53 -j DNAT --to-destination 10.9.9.9",
            ELSEWHERE,
        ),
        (
            "-A OUTPUT -m addrtype --dst-type LOCAL -j DNAT --to-destination 10.9.9.9",
            Rewrites(),
        ),
        ("-A OUTPUT -m addrtype ! --dst-type LOCAL -j DNAT --to-destination 10.9.9.9", ELSEWHERE),
        ("-A OUTPUT -m set --match-set own dst -j DNAT --to-destination 10.9.9.9", ELSEWHERE),
        ("-A PREROUTING -j LOG", Rewrites()),
    ],
)
def test_rules_of_iptables_are_read_likewise(line: str, expected: Rewrites) -> None:
    """As docker lays them, too."""
    assert expected == of_iptables(f"*nat\n{line}\nCOMMIT\n", OURS)


def test_rules_for_the_nodes_own_addresses_are_for_packets_that_go_there() -> None:
    """As docker publishes a port."""
    here = replace(OURS, local=True)
    of_fib = match({"fib": {"result": "type", "flags": ["daddr"]}}, "local")
    rule = {"family": "ip", "table": "nat", "chain": "pre", "handle": 7, "expr": [of_fib, DNAT]}
    items = [{"rule": rule}]
    assert ELSEWHERE == of_nft(items, here)
    line = "-A PREROUTING -m addrtype --dst-type LOCAL -j DNAT --to-destination 10.9.9.9"
    assert ELSEWHERE == of_iptables(f"*nat\n{line}\nCOMMIT\n", here)


@pytest.mark.parametrize(
    "target",
    [
        "REDIRECT --to-ports 99",
        "TEE --gateway 10.9.9.9",
        "NFQUEUE",
        "DNAT --to-destination 10.9.9.1-10.9.9.9",
        "DNAT --to-destination 10.9.9.1-10.9.9.9:53",
        "DNAT --to-destination fd00::1-fd00::9",
        "DNAT --to-destination 10.9.9.9:1-9",
        "SNAT --to-source 10.1.1.1-10.1.1.4",
        "DNPT --src-pfx fd00::/64 --dst-pfx fd01::/64",
        "WHAT",
    ],
)
def test_targets_that_are_not_followed_are_named(target: str) -> None:
    """A range of backends is one of them."""
    line = f"-A PREROUTING -p udp -j {target}"
    assert (f"iptables rule {line}",) == of_iptables(line, OURS).unread


@pytest.mark.parametrize("target", ["MARK --set-xmark 0x1/0x1", "CONNMARK --restore-mark", "TOS"])
def test_rules_that_give_marks_are_known(target: str) -> None:
    """By a mark a policy rule may route packets elsewhere; saving it in a connection does not."""
    line = f"-A OUTPUT -j {target}"
    assert (f"iptables rule {line}",) == of_iptables(line, OURS).marks
    assert Rewrites() == of_iptables("-A OUTPUT -j CONNMARK --save-mark", OURS)


def test_a_comment_that_looks_like_a_target_is_named() -> None:
    """Which of the two is the target is not known."""
    line = "-A OUTPUT -m comment --comment -j -j DNAT --to-destination 10.9.9.9"
    assert (f"iptables rule {line}",) == of_iptables(line, OURS).unread


def test_dockers_rules_do_not_concern_a_sender() -> None:
    """A published port that is the traffic's, too: only what goes to this host comes there."""
    text = """*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
-A DOCKER ! -i docker0 -p udp -m udp --dport 4321 -j DNAT --to-destination 172.17.0.2:80
COMMIT
"""
    assert Rewrites(sources=("",)) == of_iptables(text, SENT_HERE)
    open_text = text.replace("-m addrtype --dst-type LOCAL ", "")
    assert ("172.17.0.2",) == of_iptables(open_text, SENT_HERE).addresses


def test_many_chains_and_maps_are_read_soon() -> None:
    """Root of a container decides how many there are."""
    place = {"family": "ip", "table": "nat"}
    items: list[dict[str, Any]] = [{"chain": {**place, "name": "pre", "hook": "prerouting"}}]
    for number in range(20_000):
        name = f"c{number}"
        items.append({"chain": {**place, "name": name}})
        items.append({"map": {**place, "name": f"m{number}", "elem": []}})
        items.append(
            {"rule": {**place, "chain": "pre", "handle": 1, "expr": [{"jump": {"target": name}}]}}
        )
    begin_s = time.process_time()
    assert Rewrites() == of_nft(items, OURS)
    chains = [f":c{number} - [0:0]" for number in range(20_000)]
    rules = [f"-A PREROUTING -j c{number}" for number in range(20_000)]
    text = "\n".join(["*nat", ":PREROUTING ACCEPT [0:0]", *chains, *rules, "COMMIT"])
    assert Rewrites() == of_iptables(text, OURS)
    assert time.process_time() - begin_s < 20
