"""Kind ``passed_rules``: what datagrams of one port pass that decides nothing, and takes its time.

A table of nft with one chain at a hook: rules of which none matches, and one that asks connection
tracking, without which a network namespace does not track.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from udpbench.agent.host.system import Host
from udpbench.agent.settings.kind import Command, Kind
from udpbench.agent.settings.own_tables import FAMILY, match, replace_table, rules_of

TABLE = "udpbench_passed"
PORT = {"payload": {"protocol": "udp", "field": "dport"}}
NEVER: Mapping[str, Any] = {"expr": [match(PORT, "==", 0)]}
"""Like any rule for another port; no datagram has this one."""
TRACK: Mapping[str, Any] = {"expr": [match({"ct": {"key": "state"}}, "in", "invalid")]}


class PassedRules(Kind):
    """Target ``input/4321``, value {"rules": 100, "track": true}, or null."""

    def read(self, host: Host, target: str) -> Optional[dict[str, Any]]:
        """Return what the datagrams pass; null if there is no such table of ours."""
        listed = rules_of(host, TABLE)
        if not any(rule.get("comment") == _comment(target) for rule in listed):
            return None
        parts = (part.get("match", {}) for rule in listed for part in rule["expr"])
        track = any("ct" in each.get("left", {}) for each in parts)
        return {"rules": len(listed) - 1 - track, "track": track}

    def write(self, host: Host, target: str, value: Optional[Mapping[str, Any]]) -> None:
        """Replace the table, or delete it."""
        hook, _, port = target.partition("/")
        chain = {"name": "passed", "type": "filter", "hook": hook, "prio": 0}
        others = {
            "comment": _comment(target),
            "expr": [match(PORT, "!=", int(port)), {"accept": None}],
        }
        rules: list[Mapping[str, Any]] = []
        if value is not None:
            rules = [others, *[TRACK] * value["track"], *[NEVER] * value["rules"]]
        replace_table(host, TABLE, chain, rules)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that removes it."""
        del target, value
        return ["nft", "delete", "table", FAMILY, TABLE]


def _comment(target: str) -> str:
    return f"udpbench:{target}"


KINDS: Mapping[str, Kind] = {"passed_rules": PassedRules()}
