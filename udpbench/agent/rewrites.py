"""Where else a firewall may send packets of the traffic: destinations of its rules, read from text.

Pure: parses what nft and iptables-save print. A rule is left out only if it surely is for others; a
rule that cannot be understood is named.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any, Optional

from udpbench.agent.host.files import lines_of
from udpbench.frozen import dataclass

AWAY = ("redirect", "tproxy", "dup", "fwd", "queue", "flow", "synproxy")
"""Statements of nft that lead packets elsewhere, or past the rules that follow."""
TARGETS_AWAY = ("REDIRECT", "TPROXY", "TEE", "NFQUEUE", "NETMAP", "SYNPROXY", "CT")
"""The same of iptables; CT with a helper may expect others."""
HARMLESS_CT = "--notrack"


@dataclass(frozen=True)
class FlowMarks:
    """What packets of the traffic look like at a node."""

    interface: str
    destinations: tuple[str, ...]
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Rewrites:
    """What a firewall may do with the destination of packets."""

    addresses: tuple[str, ...] = ()
    """Every backend that a rule may choose."""
    sources: tuple[str, ...] = ()
    """Every source that a rule may give them; empty text: the address of the way out."""
    unread: tuple[str, ...] = ()
    """Rules that may lead packets elsewhere in a way that is not followed."""


def of_nft(items: Collection[Mapping[str, Any]], ours: FlowMarks) -> Rewrites:
    """Return what the rules of ``nft -j list ruleset`` may do with packets of the traffic."""
    addresses: dict[str, None] = {}
    sources: dict[str, None] = {}
    unread: dict[str, None] = {}
    maps = {item["map"]["name"]: item["map"].get("elem") for item in items if "map" in item}
    for rule in (item["rule"] for item in items if "rule" in item):
        where = f"nft rule {rule.get('handle')} of {rule['family']} {rule['table']} {rule['chain']}"
        expressions = rule.get("expr", [])
        if not all(_may_match(each.get("match"), ours) for each in expressions):
            continue
        for statement in expressions:
            for name in AWAY:
                if name in statement:
                    unread[f"{where}: {name}"] = None
            if "masquerade" in statement:
                sources[""] = None
            if "snat" in statement:
                given = _literals((statement["snat"] or {}).get("addr"), maps)
                sources.update(dict.fromkeys(each or "" for each in given))
            if "dnat" in statement:
                listed = list(_literals((statement["dnat"] or {}).get("addr"), maps))
                addresses.update(dict.fromkeys(each for each in listed if each is not None))
                if None in listed or not listed:
                    unread[f"{where}: dnat to what is not listed"] = None
    return Rewrites(tuple(addresses), tuple(sources), tuple(unread))


def _literals(part: Any, maps: Mapping[str, Any]) -> Iterator[Optional[str]]:
    """Yield every address that an expression may give; None for what is not listed."""
    if isinstance(part, str) and part.startswith("@"):
        yield from _literals(maps.get(part[1:]), {})
    elif isinstance(part, str):
        yield part if _is_address(part) else None
    elif isinstance(part, dict) and "map" in part:
        yield from _literals(part["map"].get("data"), maps)
    elif isinstance(part, dict) and "set" in part:
        yield from _literals(part["set"], maps)
    elif isinstance(part, dict) and "concat" in part:
        yield from (each for each in part["concat"] if isinstance(each, str) and _is_address(each))
    elif isinstance(part, list) and part:
        for entry in part:
            yield from _literals(entry[-1] if isinstance(entry, list) else entry, maps)
    else:
        yield None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _may_match(match: Optional[Mapping[str, Any]], ours: FlowMarks) -> bool:
    """Return whether packets of the traffic may pass a comparison; true if it is not understood."""
    if match is None or match.get("op") not in ("==", "in"):
        return True
    left, right = match.get("left"), match.get("right")
    if not isinstance(left, dict):
        return True
    payload, meta = left.get("payload") or {}, left.get("meta") or {}
    field = (payload.get("protocol"), payload.get("field"))
    if field[0] in ("tcp", "icmp", "icmpv6", "sctp", "dccp", "arp", "igmp"):
        return False
    if meta.get("key") == "l4proto" and isinstance(right, (str, int)):
        return right in ("udp", 17)
    if meta.get("key") == "iifname" and isinstance(right, str) and "*" not in right:
        return right == ours.interface
    if field[1] == "dport" and field[0] in ("udp", "th"):
        return any(_has(right, port) for port in ours.ports)
    if field[1] == "daddr" and field[0] in ("ip", "ip6"):
        return any(_has_address(right, text) for text in ours.destinations)
    return True


def _has(right: Any, port: int) -> bool:
    if isinstance(right, int):
        return right == port
    if isinstance(right, dict) and isinstance(right.get("range"), list):
        low, high = right["range"]
        return not isinstance(low, int) or not isinstance(high, int) or low <= port <= high
    if isinstance(right, dict) and isinstance(right.get("set"), list):
        return any(_has(each, port) for each in right["set"])
    return True


def _has_address(right: Any, text: str) -> bool:
    if isinstance(right, dict) and isinstance(right.get("prefix"), dict):
        right = f"{right['prefix'].get('addr')}/{right['prefix'].get('len')}"
    if isinstance(right, dict) and isinstance(right.get("set"), list):
        return any(_has_address(each, text) for each in right["set"])
    if not isinstance(right, str):
        return True
    try:
        return ip_address(text) in ip_network(right, strict=False)
    except ValueError:
        return True


def of_iptables(text: str, ours: FlowMarks) -> Rewrites:
    """Return what the rules of ``iptables-save`` may do with packets of the traffic."""
    addresses: dict[str, None] = {}
    sources: dict[str, None] = {}
    unread: dict[str, None] = {}
    for line in lines_of(text):
        if not line.startswith("-A "):
            continue
        words = shlex.split(line)
        target = _after(words, "-j") or _after(words, "-g")
        if target is None or not _may_pass(words, ours):
            continue
        if target == "DNAT":
            given = _without_ports(_after(words, "--to-destination") or "")
            if _is_address(given):
                addresses[given] = None
            else:
                unread[f"iptables rule {line}"] = None
        elif target in ("MASQUERADE", "SNAT"):
            given = _without_ports(_after(words, "--to-source") or "")
            sources[given if _is_address(given) else ""] = None
        elif target in TARGETS_AWAY and HARMLESS_CT not in words:
            unread[f"iptables rule {line}"] = None
    return Rewrites(tuple(addresses), tuple(sources), tuple(unread))


def _without_ports(text: str) -> str:
    """Return the address, or range, of ``10.0.0.1:53``, ``fd00::1`` or ``[fd00::1]:53``."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text if text.count(":") > 1 else text.partition(":")[0]


def _after(words: list[str], option: str) -> Optional[str]:
    """Return what follows an option; None without it, or if it is negated."""
    at = words.index(option) if option in words[:-1] else 0
    return words[at + 1] if at and words[at - 1] != "!" else None


def _may_pass(words: list[str], ours: FlowMarks) -> bool:
    protocol, interface = _after(words, "-p"), _after(words, "-i")
    to, port = _after(words, "-d"), _after(words, "--dport")
    if protocol not in (None, "udp", "17", "all"):
        return False
    if interface not in (None, ours.interface) and not str(interface).endswith("+"):
        return False
    if to is not None and not any(_has_address(to, text) for text in ours.destinations):
        return False
    if port is None:
        return True
    low, _, high = port.partition(":")
    if not low.isdigit() or not (high or low).isdigit():
        return True
    return any(int(low) <= own <= int(high or low) for own in ours.ports)
