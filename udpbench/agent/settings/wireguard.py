"""The kinds ``wireguard``, an interface of WireGuard with rules that count, and ``tunnel_counts``.

Handshakes and keepalives are outer packets that no inner one is behind: each end counts those that
it sends before any other rule sees them, and those that it gets behind all others. An interface of
the kernel counts them as its own, so what comes out of it is counted by a rule, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from udpbench.agent.host.system import Host
from udpbench.agent.host.wireguard import (
    CONTROL_TABLES,
    DATA_TABLES,
    INNER_TABLE,
    KernelWireGuard,
    chosen,
)
from udpbench.agent.host.wireguard_ends import PORT, device
from udpbench.agent.settings.kind import Command, Kind
from udpbench.agent.settings.own_tables import FAMILY, match, replace_table, rules_of

UDP_HEADER_BYTES = 8
CONTROL_BYTES = {1: 148, 2: 92, 3: 64, 4: 32}
"""Type of a message → its length if it has no inner packet: initiation, response, cookie, data of
length 0 (WireGuard: Next Generation Kernel Network Tunnel, section 5.4)."""
PRIORITIES = {"output": -500, "input": 500, "prerouting": -500}


class WireGuardInterface(Kind):
    """Target ``wg0``, value {"peer": key, "remote": address, "allowed": [network, ...]}, or null.

    The peer's public key in hexadecimal; its own is in no value.
    """

    def read(self, host: Host, target: str) -> Optional[dict[str, Any]]:
        """Return its other end; None if it is no such interface of this agent."""
        own = host.wireguard
        if own is None or not own.runs or own.name != target:
            return None
        return next(iter(own.ends()), None)

    def write(self, host: Host, target: str, value: Optional[dict[str, Any]]) -> None:
        """Make it with its process, give it another end, or end it."""
        if host.wireguard is None:
            host.wireguard = chosen(host)
        tables = {hook: (table, [*_control()]) for hook, table in CONTROL_TABLES.items()}
        if isinstance(host.wireguard, KernelWireGuard):
            tables["prerouting"] = INNER_TABLE, [_comes_out(target)]
        for hook, (table, rules) in tables.items():
            _count(host, hook, table, [] if value is None else rules)
        if value is None:
            host.wireguard.end()
            return
        if not host.wireguard.runs:
            host.wireguard.begin(target)
        host.wireguard.lead(**value)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that deletes it."""
        return ["ip", "link", "del", target] if value is None else None


class TunnelCounts(Kind):
    """Target ``wg0``, value true or null: rules that count at an interface that others made."""

    def read(self, host: Host, target: str) -> Optional[bool]:
        """Return whether they are there; null if not."""
        del target
        return True if rules_of(host, INNER_TABLE) else None

    def write(self, host: Host, target: str, value: Optional[bool]) -> None:
        """Replace the tables, or delete them."""
        port = device(target)[0] if value is not None else 0
        tables = {
            "output": (DATA_TABLES["output"], [*_data("sport", port)]),
            "input": (DATA_TABLES["input"], [*_data("dport", port)]),
            "prerouting": (INNER_TABLE, [_comes_out(target)]),
        }
        for hook, (table, rules) in tables.items():
            _count(host, hook, table, [] if value is None else rules)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that deletes them."""
        del target, value
        tables = (*DATA_TABLES.values(), INNER_TABLE)
        return "; ".join(f"nft delete table {FAMILY} {table}" for table in tables)


def _count(host: Host, hook: str, table: str, rules: Sequence[Mapping[str, Any]]) -> None:
    """Replace a table by one that counts at a hook; without rules it is deleted."""
    chain = {"name": "count", "type": "filter", "hook": hook, "prio": PRIORITIES[hook]}
    replace_table(host, table, chain, rules)


def _comes_out(interface: str) -> dict[str, Any]:
    """Return a rule that counts what comes in by an interface."""
    return {"expr": [match({"meta": {"key": "iifname"}}, "==", interface), {"counter": None}]}


def _control() -> Iterator[dict[str, Any]]:
    """Yield rules that count messages without an inner packet, and nothing else."""
    for expr in _without_packet("dport", PORT):
        yield {"expr": [*expr, {"counter": None}]}


def _data(field: str, port: int) -> Iterator[dict[str, Any]]:
    """Yield rules that count all other messages that an interface sends or gets by its port."""
    for expr in _without_packet(field, port):
        yield {"expr": [*expr, {"accept": None}]}
    ours = match({"payload": {"protocol": "udp", "field": field}}, "==", port)
    yield {"expr": [ours, {"counter": None}]}


def _without_packet(field: str, port: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the comparisons that messages of each kind without an inner packet pass."""
    for kind, size_bytes in CONTROL_BYTES.items():
        compared = (
            ({"payload": {"protocol": "udp", "field": field}}, port),
            ({"payload": {"protocol": "udp", "field": "length"}}, UDP_HEADER_BYTES + size_bytes),
            ({"payload": {"base": "th", "offset": 8 * UDP_HEADER_BYTES, "len": 8}}, kind),
        )
        yield [match(left, "==", right) for left, right in compared]


KINDS: Mapping[str, Kind] = {"wireguard": WireGuardInterface(), "tunnel_counts": TunnelCounts()}
