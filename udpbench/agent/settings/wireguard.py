"""The kind ``wireguard``: an interface of WireGuard, and rules that count what is no data.

Handshakes and keepalives are outer packets that no inner one is behind: each end counts those that
it sends before any other rule sees them, and those that it gets behind all others. An interface of
the kernel counts them as its own, so what comes out of it is counted by a rule, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from udpbench.agent.host.system import Host
from udpbench.agent.host.wireguard import (
    CONTROL_TABLES,
    INNER_TABLE,
    PORT,
    KernelWireGuard,
    chosen,
)
from udpbench.agent.settings.kind import Command, Kind
from udpbench.agent.settings.own_tables import match, replace_table

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
            chain = {"name": "count", "type": "filter", "hook": hook, "prio": PRIORITIES[hook]}
            replace_table(host, table, chain, [] if value is None else rules)
        if value is None:
            host.wireguard.end()
            return
        if not host.wireguard.runs:
            host.wireguard.begin(target)
        host.wireguard.lead(**value)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that deletes it."""
        return ["ip", "link", "del", target] if value is None else None


def _comes_out(interface: str) -> dict[str, Any]:
    """Return a rule that counts what comes in by an interface."""
    return {"expr": [match({"meta": {"key": "iifname"}}, "==", interface), {"counter": None}]}


def _control() -> Iterator[dict[str, Any]]:
    """Yield rules that count messages without an inner packet, and nothing else."""
    for kind, size_bytes in CONTROL_BYTES.items():
        compared = (
            ({"payload": {"protocol": "udp", "field": "dport"}}, PORT),
            ({"payload": {"protocol": "udp", "field": "length"}}, UDP_HEADER_BYTES + size_bytes),
            ({"payload": {"base": "th", "offset": 8 * UDP_HEADER_BYTES, "len": 8}}, kind),
        )
        expr = [match(left, "==", right) for left, right in compared]
        yield {"expr": [*expr, {"counter": None}]}


KINDS: Mapping[str, Kind] = {"wireguard": WireGuardInterface()}
