"""Kinds of a node in the middle: ``path_guard``, which keeps the traffic on its path, and its NAT.

The guard's chain in FORWARD comes after all others: packets of the lab's senders that would leave
by another interface, or for another address than a receiver's, or inside other packets, are
dropped, whoever changed a route or a rule meanwhile. Other packets pass it. It knows interfaces by
their index, whatever they are called by then, and the traffic by its source ports as well, since a
rule may have given it another source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Optional

from udpbench.agent.host.system import Host
from udpbench.agent.settings.kind import Command, Kind
from udpbench.agent.settings.own_tables import FAMILY, match, replace_table, rules_of

GUARD, NAT, PUBLISHED = "udpbench_path", "udpbench_nat", "udpbench_published"
LAST = {"name": "guard", "type": "filter", "hook": "forward", "prio": 300}
"""After filter (0) and security (50)."""
BEHIND = {"name": "source", "type": "nat", "hook": "postrouting", "prio": 100}
AHEAD = {"name": "destination", "type": "nat", "hook": "prerouting", "prio": -100}
TCP, UDP, ETHERNET, OLD_IPIP = 6, 17, 143, 94
"""Protocols of IP. The latter has no use but that nft 1.0.6 fails to list what follows a single."""
_KEYS = {"saddr": "from", "daddr": "to", "sport": "ports"}


class PathGuard(Kind):
    """Target ``in0``, value {"out": "out0", "from": [address, ...], "to": [...], "ports": "65400"}.

    The latter are source ports, as of ``traffic.flows.from``; or null.
    """

    def read(self, host: Host, target: str) -> Optional[dict[str, Any]]:
        """Return what it permits; null if there is none."""
        value: dict[str, Any] = {"out": "", "from": [], "to": [], "ports": ""}
        begin = _comment(f"{target}>")
        rules = [r for r in rules_of(host, GUARD) if r.get("comment", "").startswith(begin)]
        for rule in rules:  # nft shows by the index what the interface is called by now
            value["out"] = rule["comment"][len(begin) :]
        for compared in (
            part["match"] for rule in rules for part in rule["expr"] if "match" in part
        ):
            meta, payload = (compared["left"].get(part, {}) for part in ("meta", "payload"))
            key = _KEYS.get(meta.get("key", payload.get("field")))
            if key == "ports":
                value["ports"] = _ports(compared["right"])
            elif key is not None:
                value[key] = sorted({*value[key], *_listed(compared["right"])})
        return value if rules else None

    def write(self, host: Host, target: str, value: Optional[dict[str, Any]]) -> None:
        """Replace the table, or delete it."""
        replace_table(host, GUARD, LAST, _rules(target, value) if value is not None else ())

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that removes it."""
        del target, value
        return ["nft", "delete", "table", FAMILY, GUARD]


def _comment(target: str) -> str:
    return f"udpbench:{target}"


def _ports(right: Any) -> str:
    return "-".join(map(str, right["range"])) if isinstance(right, dict) else str(right)


def _listed(right: Any) -> list[str]:
    return [str(each) for each in right["set"]] if isinstance(right, dict) else [str(right)]


def _rules(target: str, value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rules, each of one IP version; one without senders of that version has none."""
    rules: list[dict[str, Any]] = []
    comment = _comment(f"{target}>{value['out']}")
    for protocol, is_6 in (("ip", False), ("ip6", True)):
        senders, receivers = (
            [text for text in value[key] if (":" in text) == is_6] for key in ("from", "to")
        )
        if not senders:
            continue
        rules += _encapsulated(target, comment, is_6, senders)
        source, to = ({"payload": {"protocol": protocol, "field": f}} for f in ("saddr", "daddr"))
        comes = match({"meta": {"key": "iif"}}, "==", target)
        first, _, last = value["ports"].partition("-")
        ports = {"range": [int(first), int(last)]} if last else int(first)
        ours = [
            [match(source, "==", {"set": senders})],
            [
                match({"meta": {"key": "nfproto"}}, "==", "ipv6" if is_6 else "ipv4"),
                match({"meta": {"key": "l4proto"}}, "==", {"set": [TCP, UDP]}),
                match({"payload": {"protocol": "th", "field": "sport"}}, "==", ports),
            ],
        ]
        wrong = [match({"meta": {"key": "oif"}}, "!=", value["out"])]
        if receivers:
            wrong.append(match(to, "!=", {"set": receivers}))
        rules += [
            {
                "comment": comment,
                "expr": [comes, *own, each, {"counter": None}, {"drop": None}],
            }
            for own in ours
            for each in wrong
        ]
    return rules


def _encapsulated(
    target: str, comment: str, is_6: bool, senders: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield what drops the senders' packets inside others, which have the node's own source.

    A route with ``encap seg6`` makes them before FORWARD, of either version; the transport header
    is there that of the packet inside, or of the frame (l2encap) that has it after 14 bytes.
    """
    protocol, offset, size = (41, 64, 128) if is_6 else (4, 96, 32)
    inside = [ip_address(text) for text in senders]
    listed = [hex(int(each)) if is_6 else int(each) for each in inside]
    for number, shift in ((protocol, 0), (ETHERNET, 8 * 14)):
        raw = {"payload": {"base": "th", "offset": shift + offset, "len": size}}
        expr = [
            match({"meta": {"key": "iif"}}, "==", target),
            match({"meta": {"key": "l4proto"}}, "==", {"set": [number, OLD_IPIP]}),
            match(raw, "==", {"set": listed}),
        ]
        yield {
            "comment": comment,
            "expr": [*expr, {"counter": None}, {"drop": None}],
        }


class SourceNat(Kind):
    """Target ``out0``, value "masquerade" or null: what leaves has the interface's address."""

    def read(self, host: Host, target: str) -> Optional[str]:
        """Return whether there is such a rule of ours."""
        texts = [rule.get("comment") for rule in rules_of(host, NAT)]
        return "masquerade" if _comment(target) in texts else None

    def write(self, host: Host, target: str, value: Optional[str]) -> None:
        """Replace the table, or delete it."""
        leaves = match({"meta": {"key": "oifname"}}, "==", target)
        rule = {"comment": _comment(target), "expr": [leaves, {"masquerade": None}]}
        replace_table(host, NAT, BEHIND, () if value is None else (rule,))

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that removes it."""
        del target, value
        return ["nft", "delete", "table", FAMILY, NAT]


class DestinationNat(Kind):
    """Target ``docker0``, where packets leave, value {"8080": "172.17.0.2:4321"} or null.

    The rules are those that docker lays: what comes in elsewhere, to any address of the host.
    """

    def read(self, host: Host, target: str) -> Optional[dict[str, str]]:
        """Return where each port of ours leads; null if there is none."""
        rules = [r for r in rules_of(host, PUBLISHED) if r.get("comment") == _comment(target)]
        ends = {}
        for expr in (rule["expr"] for rule in rules):
            (port,) = (
                part["match"]["right"]
                for part in expr
                if "match" in part and "payload" in part["match"]["left"]
            )
            (end,) = (part["dnat"] for part in expr if "dnat" in part)
            address = f"[{end['addr']}]" if end["family"] == "ip6" else end["addr"]
            ends[str(port)] = f"{address}:{end['port']}"
        return ends or None

    def write(self, host: Host, target: str, value: Optional[dict[str, str]]) -> None:
        """Replace the table, or delete it."""
        rules = [_leading_to(target, int(port), end) for port, end in (value or {}).items()]
        replace_table(host, PUBLISHED, AHEAD, rules)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that removes it."""
        del target, value
        return ["nft", "delete", "table", FAMILY, PUBLISHED]


def _leading_to(target: str, port: int, end: str) -> dict[str, Any]:
    """Return the rule that leads a port of the host's own addresses to an address and port."""
    address, _, to_port = end.rpartition(":")
    is_6 = address.startswith("[")
    family = {"meta": {"key": "nfproto"}}
    elsewhere = {"meta": {"key": "iifname"}}
    own = {"fib": {"result": "type", "flags": ["daddr"]}}
    dnat = {"family": "ip6" if is_6 else "ip", "addr": address.strip("[]"), "port": int(to_port)}
    return {
        "comment": _comment(target),
        "expr": [
            match(family, "==", "ipv6" if is_6 else "ipv4"),
            match(elsewhere, "!=", target),
            match(own, "==", "local"),
            match({"payload": {"protocol": "udp", "field": "dport"}}, "==", port),
            {"counter": None},
            {"dnat": dnat},
        ],
    }


KINDS: Mapping[str, Kind] = {
    "nat": SourceNat(),
    "published": DestinationNat(),
    "path_guard": PathGuard(),
}
