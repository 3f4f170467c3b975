"""A firewall rule of udpbench as data, whatever program puts it in place; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MARK = "udpbench:"
"""Every comment of a rule of udpbench begins so; the rule's target follows."""
VERDICTS = {
    "input": ("accept", "drop"),
    "output": ("accept", "notrack", "drop"),
    "prerouting": ("notrack", "drop"),
}
"""Tracking begins in prerouting and in output; accepting in prerouting would decide nothing."""
_TARGET = re.compile(r"(ipv4|ipv6)/(input|output|prerouting)/(accept|notrack|drop)/udp/(\d{1,5})")


@dataclass(frozen=True)
class Rule:
    """UDP packets to one port, at one place of the packet's way."""

    target: str
    family: str
    chain: str
    verdict: str
    port: int

    @property
    def comment(self) -> str:
        """What marks it as a rule of udpbench, and which one."""
        return MARK + self.target

    @property
    def raw(self) -> bool:
        """True if it must come before connection tracking."""
        return self.verdict == "notrack" or self.chain == "prerouting"


def parse(target: str) -> Rule:
    """Return the rule that a setting's target names; ValueError if it names none."""
    match = _TARGET.fullmatch(target)
    if match is None or match.group(3) not in VERDICTS[match.group(2)]:
        places = "; ".join(f"{chain}: {', '.join(known)}" for chain, known in VERDICTS.items())
        raise ValueError(
            f"{target} is not a rule; write for example ipv4/input/accept/udp/4321 ({places})"
        )
    family, chain, verdict, port = match.groups()
    return Rule(target, family, chain, verdict, int(port))
