"""Kind ``firewall``: one rule for one UDP port, ``ipv4/input/accept/udp/4321``; true, or null.

Chains: input, output, prerouting. Verdicts: accept, notrack, drop. A rule carries its target as a
comment, so that only rules of udpbench are ever read, counted or deleted. By iptables and ip6tables
where they are installed (nf_tables or legacy), else by nft. What iptables accepts is still dropped
by another base chain of the same hook, so an accept rule goes to each of those by nft as well.
"""

from __future__ import annotations

import errno
from typing import Union

from udpbench.agent.host import Host
from udpbench.agent.settings import iptables, nft
from udpbench.agent.settings.rules import parse

PARTLY = "in chains of nft, and not of iptables"


def read(host: Host, target: str) -> Union[bool, str, None]:
    """Return true where the rule is, its text where somebody altered it; else what its chain is."""
    rule = parse(target)
    if not _by_iptables(host, rule.family):
        return nft.read(host, rule)
    found = iptables.read(host, rule)
    return PARTLY if found is not True and nft.is_beside(host, rule) else found


def write(host: Host, target: str, value: Union[bool, str, None]) -> None:
    """Insert the rule before all others of its chain, or delete it; null: its empty chain, too."""
    rule = parse(target)
    backend = iptables if _by_iptables(host, rule.family) else nft
    # Chains that nft has beside those of iptables come first, so that whoever dies between leaves
    # something that reads as neither of both.
    if value is True:
        if backend is iptables:
            nft.insert_beside(host, rule)
        backend.insert(host, rule)
    else:
        if backend is iptables:
            nft.delete_beside(host, rule)
        backend.delete(host, rule, with_chain=value is None)


def same(wanted: Union[bool, str, None], got: Union[bool, str, None]) -> bool:
    """Compare; without a rule its chain does not matter, unless it is new and empty."""
    nothing = (None, False, iptables.EMPTY)
    if wanted in nothing and got in nothing:
        return not (wanted is None and got == iptables.EMPTY)
    return wanted == got


def rule_packets(host: Host) -> dict[str, int]:
    """Return the packets that each rule of udpbench in this namespace has counted, by target.

    Empty where there is none, or no program to ask.
    """
    found: dict[str, int] = {}
    for family in ("ipv4", "ipv6"):
        if host.program(iptables.program(family)) is not None:
            found.update(iptables.packets(host, family))
    if host.program("nft") is not None:
        for target, packets in nft.packets(host).items():
            found.setdefault(target, packets)
    return found


def _by_iptables(host: Host, family: str) -> bool:
    if host.program(iptables.program(family)) is not None:
        return True
    if host.program("nft") is None:
        name = iptables.program(family)
        raise OSError(errno.ENOPKG, f"neither {name} nor nft is installed; install one of them")
    return False
