"""Kinds ``firewall``, one rule for one UDP port, and ``firewall_tables``, where rules are made."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, Optional, Union

from udpbench.agent.host.system import Host
from udpbench.agent.settings import iptables, nft
from udpbench.agent.settings.kind import Command, Kind
from udpbench.agent.settings.rules import parse

PARTLY = "in nft chains, not in iptables"


def rule_packets(host: Host) -> dict[str, int]:
    """Return the packets counted by each udpbench rule in this namespace, by target.

    Empty if there is no rule, or neither iptables nor nft.
    """
    counts: dict[str, int] = {}
    for family in ("ipv4", "ipv6"):
        if host.program(iptables.program(family)) is not None:
            counts.update(iptables.packets(host, family))
    if host.program("nft") is not None:
        for target, packets in nft.packets(host).items():
            counts.setdefault(target, packets)
    return counts


def _by_iptables(host: Host, family: str) -> bool:
    if host.program(iptables.program(family)) is not None:
        return True
    if host.program("nft") is None:
        name = iptables.program(family)
        raise OSError(errno.ENOPKG, f"neither {name} nor nft is installed; install one of them")
    return False


class FirewallRule(Kind):
    """One rule for one UDP port, ``ipv4/input/accept/udp/4321``; true, or null.

    Chains: input, output, prerouting. Verdicts: accept, notrack, drop. A rule has its target as a
    comment, so that only udpbench's rules are read, counted or deleted. Uses iptables and
    ip6tables if installed (nf_tables or legacy), else nft. Other base chains of the same hook may
    still drop what iptables accepts, so nft adds accept rules to each of them.
    """

    alters = ("firewall_tables",)

    def read(self, host: Host, target: str) -> Union[bool, str, None]:
        """Return true, the rule's text if it was modified, or null."""
        rule = parse(target)
        if not _by_iptables(host, rule.family):
            return nft.read(host, rule)
        value = iptables.read(host, rule)
        return PARTLY if value is not True and nft.is_in_other_chains(host, rule) else value

    def write(self, host: Host, target: str, value: Union[bool, str, None]) -> None:
        """Insert the rule at the head of its chain, or delete it."""
        rule = parse(target)
        backend = iptables if _by_iptables(host, rule.family) else nft
        # nft chains first, so that a crash in between leaves a state that reads as neither.
        if value is True:
            if backend is iptables:
                nft.insert_in_other_chains(host, rule)
            backend.insert(host, rule)
        else:
            if backend is iptables:
                nft.delete_from_other_chains(host, rule)
            backend.delete(host, rule)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        return iptables.by_hand(parse(target), bool(value))


TABLES = ("filter", "raw")
"""Tables that iptables makes for rules, if by nf_tables."""
OWN = {nft.TABLE["family"]: (nft.TABLE["table"],)}


class FirewallTables(Kind):
    """The nf_tables in which rules are made, and whether each of their chains is empty.

    Value: {"ip filter": {uses, chains: {INPUT: true}}}, or null without nf_tables; the target is
    ipv4 or ipv6. Restored by removing the tables and chains that were not there and are empty: base
    chains that only accept. Tables of the legacy iptables stay until the namespace ends.
    """

    def read(self, host: Host, target: str) -> Optional[dict[str, Any]]:
        """Return the tables that are there."""
        places = {iptables.NFT_FAMILIES[target]: TABLES, **OWN}
        try:
            listed = [table for family in places for table in host.firewall_tables(family)]
        except OSError:
            return None
        return {
            f"{table.family} {table.name}": {"uses": table.uses, "chains": table.chains}
            for table in listed
            if table.name in places[table.family]
        }

    def write(self, host: Host, target: str, value: dict[str, Any]) -> None:
        """Remove what was not there and is empty."""
        for place, (chains, with_table) in _surplus(value, self.read(host, target) or {}).items():
            family, table = place.split()
            host.remove_from_firewall(family, table, chains, with_table)

    def same(self, requested: Any, got: Any) -> bool:
        """Compare what is empty only; rules of other programs come and go."""
        return requested is None or got is None or not _surplus(requested, got)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that lists them, as which are empty only a reader can tell."""
        del value
        return f"see nft list ruleset {iptables.NFT_FAMILIES[target]}"


def _surplus(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[list[str], bool]]:
    """Return table → its empty chains that were not there, and whether it goes with them."""
    surplus = {}
    for place, table in now.items():
        had = before.get(place, {"chains": {}})["chains"]
        chains = [name for name, empty in table["chains"].items() if empty and name not in had]
        with_table = place not in before and table["uses"] == len(chains)
        if chains or with_table:
            surplus[place] = (chains, with_table)
    return surplus


KINDS: Mapping[str, Kind] = {"firewall_tables": FirewallTables(), "firewall": FirewallRule()}
