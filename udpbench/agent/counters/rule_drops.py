"""How many packets the rules of a network namespace dropped, if each that may drop counts them.

Pure but for ``rule_drops``: parses what nft prints. A rule that cannot be understood may drop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Optional

from udpbench.agent.host import programs
from udpbench.agent.host.files import read
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.wireguard import CONTROL_TABLES, DATA_TABLES, INNER_TABLE

HOOKS = ("prerouting", "input")
VERSIONS = {"ip": "rules", "ip6": "rules6"}
"""Version of IP, as nft calls its family → how names of its counts begin."""
LEGACY_TABLES = "/proc/thread-self/net/{}_tables_names"
CALLS = "bridge-nf-call-{}tables", "nf_call_{}tables"
"""The switch of all bridges, and that of a single one."""
DROPPING = ("drop", "reject")
HARMLESS = (
    *("accept", "continue", "return", "log", "notrack", "mangle", "dnat", "snat", "masquerade"),
    *("redirect", "jump", "goto"),
)
"""Statements that drop nothing, and that every packet passes."""
CHOOSING = ("match", "limit", "quota")
Chain = tuple[str, str, str]
"""Family, table and name."""


def rule_drops(host: Host, interface: str) -> dict[str, int]:
    """Return ``rules.prerouting.drops`` and ``rules.input.drops``; without what is not counted.

    Of IPv6 they begin with ``rules6``. With ``rules.output.control`` and ``rules.input.control``
    where a tunnel of WireGuard is, and ``rules.prerouting.inner`` where that is the kernel's.

    Of packets that IP has received: a bridge that calls PREROUTING itself hands on what passed it,
    and IP calls it no more (net/bridge/br_netfilter_hooks.c: ip_sabotage_in).
    """
    try:
        return dict(_named(host, interface))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _named(host: Host, interface: str) -> Iterator[tuple[str, int]]:
    legacy = {each: (read(host, LEGACY_TABLES.format(each)) or "").split() for each in VERSIONS}
    if all(legacy.values()):
        return
    items = programs.ruleset(host) if host.firewall_rules() else []
    yield from ((f"rules.{name}", packets) for name, packets in _counted_by_own(items))
    for version, name in VERSIONS.items():
        drops = {} if legacy[version] else dict(counted(items, version))
        if drops and _bridge_calls(host, interface, version):
            drops["prerouting"] = 0
        yield from ((f"{name}.{hook}.drops", packets) for hook, packets in drops.items())


def tunnel_counts(host: Host) -> dict[str, int]:
    """Return ``rules.output.data``, ``rules.input.data`` and ``rules.prerouting.inner``.

    Where a tunnel of WireGuard is that was there already, and rules count it.
    """
    try:
        items = programs.ruleset(host) if host.firewall_rules() else []
        return {f"rules.{name}": packets for name, packets in _counted_by_own(items)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _counted_by_own(items: Collection[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """Yield hook and what is counted there with how many packets a table of ours counted."""
    tables = {f"{hook}.control": table for hook, table in CONTROL_TABLES.items()}
    tables |= {f"{hook}.data": table for hook, table in DATA_TABLES.items()}
    for name, table in {**tables, "prerouting.inner": INNER_TABLE}.items():
        rules = [rule for rule in _of(items, "rule", "ip") if rule["table"] == table]
        counters = [each["counter"] for rule in rules for each in rule["expr"] if "counter" in each]
        if counters:
            yield name, sum(counter["packets"] for counter in counters)


def _bridge_calls(host: Host, interface: str, version: str) -> bool:
    """Return whether packets come in by a bridge that calls the rules for IP."""
    bridge = host.link_target(f"/sys/class/net/{interface}/brport/bridge")
    if bridge is None:
        return False
    every, single = (name.format(version) for name in CALLS)
    switches = f"/proc/sys/net/bridge/{every}", f"/sys/class/net/{bridge}/bridge/{single}"
    return any((read(host, path) or "0").strip() != "0" for path in switches)


def counted(items: Collection[Mapping[str, Any]], version: str = "ip") -> Iterator[tuple[str, int]]:
    """Yield each hook of which all drops are counted, and how many packets those are."""
    chains = {_place(each, "name"): each for each in _of(items, "chain", version)}
    rules: dict[Chain, list[Mapping[str, Any]]] = {}
    for rule in _of(items, "rule", version):
        rules.setdefault(_place(rule, "chain"), []).append(rule)
    passed = {
        hook: _reachable(hook, chains, rules)
        for hook in {chain.get("hook") for chain in chains.values()} | {*HOOKS}
        if hook
    }
    for hook in HOOKS:
        elsewhere = {place for other, its in passed.items() if other != hook for place in its}
        drops = [
            _drops(rule, version, counts=place not in elsewhere)
            for place in passed[hook]
            for rule in rules.get(place, ())
        ]
        policies = {chains[place].get("policy") for place in passed[hook] if place in chains}
        known = [number for number in drops if number is not None]
        if "drop" not in policies and len(known) == len(drops):
            yield hook, sum(known)


def _of(items: Collection[Mapping[str, Any]], what: str, version: str) -> list[Mapping[str, Any]]:
    listed = [item[what] for item in items if what in item]
    return [item for item in listed if item["family"] in (version, "inet")]


def _place(item: Mapping[str, Any], name: str) -> Chain:
    return item["family"], item["table"], item[name]


def _reachable(
    hook: str, chains: Mapping[Chain, Any], rules: Mapping[Chain, list[Mapping[str, Any]]]
) -> list[Chain]:
    """Return the chains that packets at a hook may pass."""
    waiting = [place for place, chain in chains.items() if chain.get("hook") == hook]
    for place in waiting:
        for statement in (each for rule in rules.get(place, ()) for each in rule["expr"]):
            for name in ("jump", "goto"):
                target = (statement.get(name) or {}) if isinstance(statement, dict) else {}
                further = (*place[:2], str(target.get("target")))
                if target and further not in waiting:
                    waiting.append(further)
    return waiting


def _drops(rule: Mapping[str, Any], version: str, counts: bool) -> Optional[int]:
    """Return how many packets a rule dropped; None if that is not counted.

    A counter says it that stands right before the verdict, of a rule for UDP or for its IP alone:
    what else comes in is no loss of the traffic.
    """
    packets: Optional[int] = None
    ours = rule["family"] == version
    for statement in rule["expr"]:
        if not isinstance(statement, dict):
            return None  # nft 1.0.6 has no JSON for it
        ((name, does),) = statement.items()
        if name == "counter":
            packets = does["packets"]
        elif name in DROPPING:
            return packets if ours and counts else None
        elif name in CHOOSING or (name == "xt" and does.get("type") == "match"):
            packets = None
            ours = ours or (name == "match" and _is_ours(does, version))
        elif name not in HARMLESS:
            return None
    return 0


def _is_ours(match: Mapping[str, Any], version: str) -> bool:
    """Return whether only packets of a version of IP, or of UDP, pass a comparison."""
    left = match["left"]
    asked = (left.get("payload") or {}).get("protocol"), (left.get("meta") or {}).get("key")
    if match["op"] != "==":
        return False
    return asked[0] in ("udp", version) or (asked[1] == "l4proto" and match["right"] in ("udp", 17))
