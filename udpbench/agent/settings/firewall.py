"""Kind ``firewall``: one rule for one UDP port."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, Union

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

    def read(self, host: Host, target: str) -> Union[bool, str, None]:
        """Return true, the rule's text if it was modified, or the state of its chain."""
        rule = parse(target)
        if not _by_iptables(host, rule.family):
            return nft.read(host, rule)
        value = iptables.read(host, rule)
        return PARTLY if value is not True and nft.is_in_other_chains(host, rule) else value

    def write(self, host: Host, target: str, value: Union[bool, str, None]) -> None:
        """Insert the rule at the head of its chain, or delete it; null: and its empty chain."""
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
            backend.delete(host, rule, with_chain=value is None)

    def same(self, requested: Union[bool, str, None], got: Union[bool, str, None]) -> bool:
        """Compare; without a rule the chain is ignored, unless it is new and empty."""
        nothing = (None, False, iptables.EMPTY)
        if requested in nothing and got in nothing:
            return not (requested is None and got == iptables.EMPTY)
        return requested == got

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        return iptables.by_hand(parse(target), bool(value))


KINDS: Mapping[str, Kind] = {"firewall": FirewallRule()}
