"""Where else a firewall may send packets of the traffic: destinations of its rules, read from text.

Pure: parses what nft and iptables-save print. A rule is left out only if it surely is for others; a
rule that cannot be understood is named.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from ipaddress import ip_address, ip_network
from typing import Any, Optional

from udpbench.agent.host.files import lines_of
from udpbench.frozen import dataclass

HARMLESS = (
    *("match", "counter", "accept", "drop", "continue", "return", "reject", "log", "limit", "last"),
    *("quota", "notrack", "set", "map", "meter", "secmark", "masquerade", "xt"),
    *("ct count", "ct helper", "ct timeout", "ct expectation"),
)
"""Statements of nft that leave a packet's way alone; what ``xt`` is, iptables-save says."""
AS_TEXT = ("add @", "update @", "delete @")
"""The same that nft 1.0.6 has no JSON for; ``jump {`` is another."""
UNROUTED = ("dscp", "ecn", "ttl", "hoplimit", "checksum")
"""Fields that a rule may set; of these only dscp has a part in routing."""
UNROUTED_META = ("priority", "nftrace", "secmark")
"""The same of what a packet has with it; broute has a bridge's frame routed."""
HARMLESS_TARGETS = (
    *("ACCEPT", "DROP", "RETURN", "REJECT", "LOG", "NFLOG", "ULOG", "NOTRACK", "TRACE", "TCPMSS"),
    *("TCPOPTSTRIP", "TTL", "HL", "ECN", "CLASSIFY", "CHECKSUM", "SECMARK", "CONNSECMARK"),
    *("AUDIT", "LED", "IDLETIMER", "RATEEST", "SET", "CONNMARK"),
)
"""The same of iptables; a target that is not listed is not followed."""
SERVING = ("TOS", "DSCP")
MARKING = ("MARK", "HMARK", *SERVING)
RESTORED = frozenset(("--restore-mark", "--map-mark"))
"""Options of CONNMARK and SET that give packets a mark."""
SHOWN = ("ip", "ip6")
"""Families of which iptables-save says what a rule's ``xt`` does; not ebtables' own."""
HARMLESS_CT = "--notrack"
SENT = ("output", "postrouting", "egress")
"""Hooks that packets pass which are sent here."""
PROTOCOLS = {"udp": 17, "tcp": 6, "gre": 47, "ipencap": 4, "ipv6": 41}
"""Those that traffic may have, and packets into which a tunnel puts it."""
ALIASES = {"ipencap": ("ipip", "ipv4")}
"""What lists of protocols call them elsewhere."""
OTHERS = ("icmp", "icmpv6", "sctp", "dccp", "arp", "igmp", *PROTOCOLS)
LISTED_IN = ("ip", "ip6", "inet")
"""Families whose rules see the interface by which packets came in, not a device below it."""


@dataclass(frozen=True)
class FlowMarks:
    """What packets of the traffic look like at a node."""

    interfaces: tuple[str, ...]
    """By which they come in; a VRF's, too. Empty: they are sent here."""
    destinations: tuple[str, ...]
    ports: tuple[int, ...]
    protocol: str = "udp"
    local: bool = False
    """Whether a destination may be an address of the node itself."""


@dataclass(frozen=True)
class Rewrites:
    """What a firewall may do with the destination of packets."""

    addresses: tuple[str, ...] = ()
    """Every backend that a rule may choose."""
    sources: tuple[str, ...] = ()
    """Every source that a rule may give them; empty text: the address of the way out."""
    unread: tuple[str, ...] = ()
    """Rules that may lead packets elsewhere in a way that is not followed."""
    marks: tuple[str, ...] = ()
    """Rules that may give them a mark or a type of service, by which others may route them."""
    ports: tuple[int, ...] = ()
    services: tuple[str, ...] = ()
    """Those that may give them a type of service, by which a route may be chosen."""


Look = Callable[[FlowMarks], Rewrites]


def settled(looks: Collection[Look], ours: FlowMarks) -> Rewrites:
    """Return what all do, also with packets that one of them has already rewritten."""
    while True:
        parts = [look(ours) for look in looks]
        whole = Rewrites(
            *(
                tuple(dict.fromkeys(each for part in parts for each in getattr(part, name)))
                for name in (each.name for each in fields(Rewrites))
            )
        )
        further = replace(
            ours,
            destinations=tuple(dict.fromkeys([*ours.destinations, *whole.addresses])),
            ports=tuple(dict.fromkeys([*ours.ports, *whole.ports])),
        )
        if further == ours:
            return whole
        ours = further


class _Seen:
    """What was read of a firewall so far, in its order."""

    def __init__(self) -> None:
        self.addresses: dict[str, None] = {}
        self.sources: dict[str, None] = {}
        self.unread: dict[str, None] = {}
        self.marks: dict[str, None] = {}
        self.ports: dict[int, None] = {}
        self.services: dict[str, None] = {}

    def rewrites(self) -> Rewrites:
        """Return it."""
        return Rewrites(
            tuple(self.addresses),
            tuple(self.sources),
            tuple(self.unread),
            tuple(self.marks),
            tuple(self.ports),
            tuple(self.services),
        )


Place = tuple[str, str, str]
"""Family, table, and the name of a chain or a map."""


def of_nft(items: Collection[Mapping[str, Any]], ours: FlowMarks) -> Rewrites:
    """Return what the rules of ``nft -j list ruleset`` may do with packets of the traffic."""
    seen = _Seen()
    maps: dict[tuple[str, str], dict[str, Any]] = {}
    for listed in (item["map"] for item in items if "map" in item):
        family, table, name = _place(listed, "name")
        maps.setdefault((family, table), {})[name] = _elements(listed)
    hooks = {
        _place(item["chain"], "name"): item["chain"].get("hook")
        for item in items
        if "chain" in item
    }
    rules: dict[Place, list[Mapping[str, Any]]] = {}
    for rule in (item["rule"] for item in items if "rule" in item):
        rules.setdefault(_place(rule, "chain"), []).append(rule)
    # A chain that is not listed may be one that begins anywhere.
    waiting = [
        place
        for place in rules
        if place not in hooks
        or (hooks[place] is not None and (ours.interfaces or hooks[place] in SENT))
    ]
    known = {*waiting}
    for place in waiting:
        for rule in rules.get(place, ()):
            for target in _of_rule(rule, maps.get(place[:2], {}), ours, seen):
                chain = (*place[:2], target)
                if chain not in hooks and chain not in rules:
                    seen.unread[f"{_where(rule)}: a chain that is not listed"] = None
                elif chain not in known:
                    known.add(chain)
                    waiting.append(chain)
    return seen.rewrites()


def _place(item: Mapping[str, Any], name: str) -> Place:
    return item.get("family", ""), item.get("table", ""), item.get(name, "")


def _where(rule: Mapping[str, Any]) -> str:
    return f"nft rule {rule.get('handle')} of {rule['family']} {rule['table']} {rule['chain']}"


def _of_rule(
    rule: Mapping[str, Any], own: Mapping[str, Any], ours: FlowMarks, seen: _Seen
) -> Iterator[str]:
    """Note what a rule does, in its order; yield the chains where it may go on.

    ``own`` are the elements of its table's maps by name.
    """
    family, _, _ = _place(rule, "chain")
    versions = {"ip6" if ":" in to else "ip" for to in ours.destinations}
    if family in ("ip", "ip6") and versions and family not in versions:
        return
    for statement in rule.get("expr", ()):
        if isinstance(statement, str):
            if not statement.startswith(AS_TEXT):
                seen.unread[f"{_where(rule)}: {statement.split()[0]}"] = None
            continue
        if not _may_match(statement.get("match"), ours, family):
            return
        for name, does in statement.items():
            if name in ("jump", "goto"):
                yield str(does["target"])
            elif name == "vmap":
                yield from _verdicts(does, own, ours, family)
            elif name == "snat" and does and "addr" in does:
                given = list(_literals(does["addr"], own))
                seen.sources.update(dict.fromkeys(each for each in given if _is_address(each)))
                if None in given:
                    seen.unread[f"{_where(rule)}: snat to what is not listed"] = None
            elif name == "snat":
                continue
            elif name == "dnat":
                _note_backends(does or {}, own, f"{_where(rule)}: dnat", seen)
            elif name == "mangle":
                _note_change(does.get("key"), f"{_where(rule)}: {name}", seen)
            elif name == "xt" and family not in SHOWN and not _is_match(does):
                seen.unread[f"{_where(rule)}: {(does or {}).get('name', name)}"] = None
            elif name not in HARMLESS:
                seen.unread[f"{_where(rule)}: {name}"] = None
            if name == "masquerade":
                seen.sources[""] = None


def _is_match(extension: Optional[Mapping[str, Any]]) -> bool:
    """Return whether an extension of iptables only compares; old releases of nft do not say."""
    return (extension or {}).get("type") == "match"


def _elements(listed: Mapping[str, Any]) -> Any:
    """Return a map's elements; None for one that packets may change, which is not notified.

    That has a size; nft 1.0.6 does not print the flag ``dynamic``.
    """
    return None if "size" in listed else listed.get("elem")


def _verdicts(
    vmap: Mapping[str, Any], maps: Mapping[str, Any], ours: FlowMarks, family: str
) -> Iterator[str]:
    """Yield the chains that a verdict map may choose."""
    data = vmap.get("data")
    entries = maps.get(data[1:]) if isinstance(data, str) else (data or {}).get("set")
    if entries is None:
        yield f"of {data}"  # of no name that a chain may have
        return
    for key, verdict in entries:
        asked = {"op": "==", "left": vmap.get("key"), "right": key}
        if isinstance(verdict, dict) and _may_match(asked, ours, family):
            for name in ("jump", "goto"):
                if name in verdict:
                    yield str(verdict[name]["target"])


def _note_backends(
    dnat: Mapping[str, Any], maps: Mapping[str, Any], where: str, seen: _Seen
) -> None:
    listed = list(_literals(dnat.get("addr"), maps))
    seen.addresses.update(dict.fromkeys(each for each in listed if isinstance(each, str)))
    seen.ports.update(dict.fromkeys(each for each in listed if isinstance(each, int)))
    port = dnat.get("port")
    if isinstance(port, int):
        seen.ports[port] = None
    if None in listed or not isinstance(port, (int, type(None))):
        seen.unread[f"{where} to what is not listed"] = None


def _note_change(key: Any, where: str, seen: _Seen) -> None:
    """Note what a rule sets of a packet: nothing of its way, a mark, or what is not followed."""
    key = key if isinstance(key, dict) else {}
    payload, meta = key.get("payload") or {}, key.get("meta") or {}
    if payload.get("field") == "dscp" or meta.get("key") == "mark":
        seen.marks[where] = None
        seen.services.update({where: None} if payload else {})
    elif (
        payload.get("field") not in UNROUTED
        and meta.get("key") not in UNROUTED_META
        and "ct" not in key
    ):
        seen.unread[where] = None


def _literals(part: Any, maps: Mapping[str, Any]) -> Iterator[Any]:
    """Yield every address and port that an expression may give; None for what is not listed."""
    if isinstance(part, str) and part.startswith("@"):
        yield from _literals(maps.get(part[1:]), {})
    elif isinstance(part, str):
        yield part if _is_address(part) else None
    elif isinstance(part, dict) and "map" in part:
        yield from _literals(part["map"].get("data"), maps)
    elif isinstance(part, dict) and "set" in part:
        yield from _literals(part["set"], maps)
    elif isinstance(part, dict) and "concat" in part:
        for each in part["concat"]:
            yield from [each] if isinstance(each, int) else _literals(each, {})
    elif isinstance(part, list) and part:
        for entry in part:
            yield from _literals(entry[-1] if isinstance(entry, list) else entry, maps)
    else:
        yield None


def _is_address(text: Any) -> bool:
    if not isinstance(text, str):
        return False
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _may_match(match: Optional[Mapping[str, Any]], ours: FlowMarks, family: str) -> bool:
    """Return whether packets of the traffic may pass a comparison; true if it is not understood."""
    if match is None or match.get("op") not in ("==", "in"):
        return True
    left, right = match.get("left"), match.get("right")
    if not isinstance(left, dict) or right == "*":
        return True
    if isinstance(left.get("concat"), list):
        values = right.get("concat") if isinstance(right, dict) else None
        if not isinstance(values, list) or len(values) != len(left["concat"]):
            return True
        parts = ({"op": "==", "left": a, "right": b} for a, b in zip(left["concat"], values))
        return all(_may_match(part, ours, family) for part in parts)
    return all(_may_be(kind, left[kind] or {}, right, ours, family) for kind in left)


def _may_be(kind: str, asked: Any, right: Any, ours: FlowMarks, family: str) -> bool:
    """Return the same of a field of packets, and of what it is compared with."""
    if not isinstance(asked, dict) or "tunnel" in asked:
        return True  # of a packet inside
    is_literal = isinstance(right, str) and not right.startswith("@")
    if kind == "fib" and asked == {"result": "type", "flags": ["daddr"]}:
        return bool(right != "local") or ours.local
    if kind == "meta" and asked.get("key") == "l4proto":
        return right in _called(ours.protocol) if is_literal or isinstance(right, int) else True
    if kind == "meta" and asked.get("key") == "iifname" and family in LISTED_IN:
        return right in ours.interfaces if is_literal and "*" not in right else True
    if kind != "payload":
        return True
    protocol, name = asked.get("protocol"), asked.get("field")
    if protocol in OTHERS and protocol != ours.protocol:
        return False
    if name == "dport" and protocol in (ours.protocol, "th"):
        return any(_has(right, port) for port in ours.ports)
    if name == "daddr" and protocol in ("ip", "ip6"):
        return any(_has_address(right, text) for text in ours.destinations)
    return True


def _called(protocol: str) -> tuple[object, ...]:
    """Return all that a protocol is called in rules."""
    number = PROTOCOLS[protocol]
    return (protocol, *ALIASES.get(protocol, ()), number, str(number))


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
    seen = _Seen()
    for lines in _tables(lines_of(text)):
        custom = {line[1:].split()[0] for line in lines if line.startswith(":") and " - " in line}
        rules: dict[str, list[str]] = {}
        for line in lines:
            if line.startswith("-A "):
                rules.setdefault(line.split()[1], []).append(line)
        waiting = [
            name
            for name in rules
            if name not in custom and (ours.interfaces or name.lower() in SENT)
        ]
        known = {*waiting}
        for name in waiting:
            for line in rules.get(name, ()):
                target = _of_line(line, custom, ours, seen)
                if target is not None and target not in known:
                    known.add(target)
                    waiting.append(target)
    return seen.rewrites()


def _tables(lines: Iterable[str]) -> list[list[str]]:
    """Return the lines of each table: chains of one name may be in several."""
    tables: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("*"):
            tables.append([])
        tables[-1].append(line)
    return tables


def _of_line(line: str, custom: Collection[str], ours: FlowMarks, seen: _Seen) -> Optional[str]:
    """Note what a rule does; return the chain where it may go on."""
    words = shlex.split(line)
    targets = [n for n, word in enumerate(words) if word in ("-j", "-g")]
    if not targets or not _may_pass(words, ours):
        return None
    target = words[targets[0] + 1] if targets[0] + 1 < len(words) else ""
    given = _after(words, "--to-destination") or _after(words, "--to-source") or ""
    address, port = _without_ports(given)
    if len(targets) > 1:  # a comment may be written as an option
        seen.unread[f"iptables rule {line}"] = None
    elif target in custom:
        return target
    elif target == "DNAT" and _is_address(address) and (not port or port.isdigit()):
        seen.addresses[address] = None
        seen.ports.update({int(port): None} if port else {})
    elif target == "MASQUERADE" or (target == "SNAT" and _is_address(address)):
        seen.sources[address] = None
    elif target in MARKING or not RESTORED.isdisjoint(words):
        seen.marks[f"iptables rule {line}"] = None
        seen.services.update({f"iptables rule {line}": None} if target in SERVING else {})
    elif target not in HARMLESS_TARGETS and not (target == "CT" and HARMLESS_CT in words):
        seen.unread[f"iptables rule {line}"] = None
    return None


def _without_ports(text: str) -> tuple[str, str]:
    """Return address, or range, and ports of ``10.0.0.1:53``, ``fd00::1`` or ``[fd00::1]:53``."""
    if text.startswith("["):
        address, _, port = text[1:].partition("]")
        return address, port[1:]
    if text.count(":") > 1:
        return text, ""
    address, _, port = text.partition(":")
    return address, port


def _after(words: list[str], option: str) -> Optional[str]:
    """Return what follows an option; None without it, or if it is negated."""
    at = words.index(option) if option in words[:-1] else 0
    return words[at + 1] if at and words[at - 1] != "!" else None


def _head(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield what a rule compares before all extensions, whose own words may look the same."""
    at = 2
    while at + 1 < len(words) and words[at] not in ("-m", "-j", "-g"):
        negated = words[at] == "!"
        if not negated:
            yield words[at], words[at + 1]
        at += 3 if negated else 2


def _may_pass(words: list[str], ours: FlowMarks) -> bool:
    head = dict(_head(words))
    protocol, interface, to = (head.get(option) for option in ("-p", "-i", "-d"))
    port = _after(words, "--dport")
    if protocol not in (None, *_called(ours.protocol), "all"):
        return False
    if interface not in (None, *ours.interfaces) and not str(interface).endswith("+"):
        return False
    if to is not None and not any(_has_address(to, text) for text in ours.destinations):
        return False
    if _after(words, "--dst-type") == "LOCAL" and not ours.local:
        return False
    if port is None:
        return True
    low, _, high = port.partition(":")
    if not low.isdigit() or not (high or low).isdigit():
        return True
    return any(int(low) <= own <= int(high or low) for own in ours.ports)
