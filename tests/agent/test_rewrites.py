"""Where rules of a firewall may send packets: what nft and iptables-save print, as they print it."""

from __future__ import annotations

from typing import Any

import pytest

from udpbench.agent.rewrites import FlowMarks, Rewrites, of_iptables, of_nft

OURS = FlowMarks("in0", ("10.0.1.1",), (4321,))


def nft(*expressions: dict[str, Any], **items: Any) -> Rewrites:
    """Return what is read of a ruleset with a single rule."""
    rule = {"family": "ip", "table": "nat", "chain": "pre", "handle": 7, "expr": list(expressions)}
    return of_nft([{"rule": rule}, *({key: value} for key, value in items.items())], OURS)


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
            ELSEWHERE,
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
        ("-A PREROUTING -j DNAT --to-destination [fd00::9]:53", Rewrites(("fd00::9",))),
        ("-A POSTROUTING -j SNAT --to-source fd00::8", Rewrites(sources=("fd00::8",))),
        ("-A POSTROUTING ! -o docker0 -j MASQUERADE", Rewrites(sources=("",))),
        ("-A POSTROUTING -j SNAT --to-source 10.8.8.8", Rewrites(sources=("10.8.8.8",))),
        ("-A PREROUTING -p udp -j CT --notrack", Rewrites()),
    ],
)
def test_rules_of_iptables_are_read_likewise(line: str, expected: Rewrites) -> None:
    """As docker lays them, too."""
    assert expected == of_iptables(f"*nat\n{line}\nCOMMIT\n", OURS)


@pytest.mark.parametrize(
    "target",
    [
        "REDIRECT --to-ports 99",
        "TEE --gateway 10.9.9.9",
        "NFQUEUE",
        "DNAT --to-destination 10.9.9.1-10.9.9.9",
        "DNAT --to-destination 10.9.9.1-10.9.9.9:53",
        "DNAT --to-destination fd00::1-fd00::9",
    ],
)
def test_targets_that_are_not_followed_are_named(target: str) -> None:
    """A range of backends is one of them."""
    line = f"-A PREROUTING -p udp -j {target}"
    assert (f"iptables rule {line}",) == of_iptables(line, OURS).unread
