"""udpbench's rules in nft, for hosts without iptables: in a table of its own where possible.

In nf_tables an accept ends only one base chain, and every other base chain of the hook still
decides. So an accept rule goes to the head of each of them, marked by its comment; other rules go
to the table ``inet udpbench``, which goes when it is empty (``firewall_tables``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from udpbench.agent.host import programs
from udpbench.agent.host.system import Host
from udpbench.agent.settings.rules import MARK, Rule

TABLE = {"family": "inet", "table": "udpbench"}
FAMILIES = {"ipv4": ("inet", "ip"), "ipv6": ("inet", "ip6")}
PRIORITY_RAW, PRIORITY_FILTER = -300, 0  # include/uapi/linux/netfilter_ipv4.h


@dataclass(frozen=True)
class Chain:
    """A chain of nftables by family, table and name."""

    family: str
    table: str
    chain: str


def read(host: Host, rule: Rule) -> Optional[bool]:
    """Return true if any chain has the rule, else None.

    A chain added later by another process lacks the rule, which must not prevent its deletion.
    """
    return True if _own(programs.ruleset(host), rule) else None


def insert(host: Host, rule: Rule) -> None:
    """Insert the rule at the head of every chain that needs and lacks it."""
    ruleset = programs.ruleset(host)
    there = {_place(own) for own in _own(ruleset, rule)}
    missing = [place for place in _wanted(ruleset, rule) if place not in there]
    commands = [
        command
        for place in missing
        for command in (*_chain_of_ours(place, rule), {"insert": {"rule": _rule(place, rule)}})
    ]
    change(host, commands)


def delete(host: Host, rule: Rule) -> None:
    """Delete the rule by its handles."""
    change(host, _deletions(_own(programs.ruleset(host), rule)))


def insert_in_other_chains(host: Host, rule: Rule) -> None:
    """Insert an accept rule at the head of every base chain not managed by iptables."""
    if _other_chains_matter(host, rule):
        ruleset = programs.ruleset(host)
        places = [place for place in _others(ruleset, rule) if not _of_iptables(place)]
        change(host, [{"insert": {"rule": _rule(place, rule)}} for place in places])


def delete_from_other_chains(host: Host, rule: Rule) -> None:
    """Delete the rule from those chains."""
    if _other_chains_matter(host, rule):
        ours = filter(_in_other_chain, _own(programs.ruleset(host), rule))
        change(host, _deletions([*ours]))


def is_in_other_chains(host: Host, rule: Rule) -> bool:
    """Return whether a chain not managed by iptables has the rule."""
    return _other_chains_matter(host, rule) and any(
        map(_in_other_chain, _own(programs.ruleset(host), rule))
    )


def _other_chains_matter(host: Host, rule: Rule) -> bool:
    """Return whether such chains matter: for an accept rule on a kernel with nf_tables."""
    if rule.verdict != "accept" or host.program("nft") is None:
        return False
    return host.run(*programs.RULESET).status == 0


def _in_other_chain(own: dict[str, Any]) -> bool:
    return not _of_iptables(_place(own))


def _of_iptables(place: Chain) -> bool:
    """Return whether a chain was created by iptables-nft."""
    return place.family in ("ip", "ip6") and place.chain == place.chain.upper()


def packets(host: Host) -> dict[str, int]:
    """Return the packets counted by each udpbench rule, by target."""
    counts: dict[str, int] = {}
    for rule in _of(programs.ruleset(host), "rule"):
        comment = rule.get("comment", "")
        if comment.startswith(MARK):
            target = comment[len(MARK) :]
            counted = sum(part["counter"]["packets"] for part in rule["expr"] if "counter" in part)
            counts[target] = counts.get(target, 0) + counted
    return counts


def change(host: Host, commands: Sequence[Mapping[str, Any]]) -> None:
    """Make all changes or none: nft sends them as one transaction."""
    if commands:
        text = json.dumps({"nftables": [*commands]})
        programs.output(host, "nft", "-j", "-f", "-", stdin=text)


def _of(ruleset: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    return [item[what] for item in ruleset if what in item]


def _is_ours(item: dict[str, Any]) -> bool:
    return (item["family"], item["table"]) == (TABLE["family"], TABLE["table"])


def _own(ruleset: list[dict[str, Any]], rule: Rule) -> list[dict[str, Any]]:
    return [item for item in _of(ruleset, "rule") if item.get("comment") == rule.comment]


def _place(item: dict[str, Any]) -> Chain:
    return Chain(item["family"], item["table"], item["chain"])


def _deletions(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"delete": {"rule": {key: own[key] for key in ("family", "table", "chain", "handle")}}}
        for own in rules
    ]


def _wanted(ruleset: list[dict[str, Any]], rule: Rule) -> list[Chain]:
    """Return the chains that need the rule; our own if there is no other."""
    own = Chain(TABLE["family"], TABLE["table"], f"{rule.chain}_{'raw' if rule.raw else 'filter'}")
    if rule.verdict != "accept":
        return [own]
    return _others(ruleset, rule) or [own]


def _others(ruleset: list[dict[str, Any]], rule: Rule) -> list[Chain]:
    """Return other base chains that the same packets pass."""
    return [
        Chain(chain["family"], chain["table"], chain["name"])
        for chain in _of(ruleset, "chain")
        if chain.get("hook") == rule.chain
        and chain.get("type") == "filter"
        and chain["family"] in FAMILIES[rule.family]
        and not _is_ours(chain)
    ]


def _chain_of_ours(place: Chain, rule: Rule) -> list[dict[str, Any]]:
    """Return commands that create our table and chain if the rule goes there."""
    if (place.family, place.table) != (TABLE["family"], TABLE["table"]):
        return []
    table = {"family": place.family, "name": place.table}
    chain = {
        "family": place.family,
        "table": place.table,
        "name": place.chain,
        "type": "filter",
        "hook": rule.chain,
        "prio": PRIORITY_RAW if rule.raw else PRIORITY_FILTER,
        "policy": "accept",
    }
    return [{"add": {"table": table}}, {"add": {"chain": chain}}]


def _rule(place: Chain, rule: Rule) -> dict[str, Any]:
    port = {"payload": {"protocol": "udp", "field": "dport"}}
    family = {"meta": {"key": "nfproto"}}
    return {
        "family": place.family,
        "table": place.table,
        "chain": place.chain,
        "comment": rule.comment,
        "expr": [
            {"match": {"op": "==", "left": family, "right": rule.family}},
            {"match": {"op": "==", "left": port, "right": rule.port}},
            {"counter": None},
            {rule.verdict: None},
        ],
    }
