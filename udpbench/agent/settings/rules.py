"""A firewall rule of udpbench as data, independent of the program that sets it; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MARK = "udpbench:"
"""Prefix of the comment of every udpbench rule; the rule's target follows."""
VERDICTS = {
    "input": ("accept", "drop"),
    "output": ("accept", "notrack", "drop"),
    "forward": ("accept", "drop"),
    "prerouting": ("notrack", "drop"),
}
"""Connection tracking starts in prerouting and output; accept in prerouting has no effect."""
_TARGET = re.compile(
    r"(ipv4|ipv6)/(input|output|prerouting|forward)/(accept|notrack|drop)/udp/(\d{1,5})"
)


@dataclass(frozen=True)
class Rule:
    """UDP packets to one port, at one hook."""

    target: str
    family: str
    chain: str
    verdict: str
    port: int

    @property
    def comment(self) -> str:
        """Identifies the rule as udpbench's, with its target."""
        return MARK + self.target

    @property
    def raw(self) -> bool:
        """True if it must come before connection tracking."""
        return self.verdict == "notrack" or self.chain == "prerouting"


def parse(target: str) -> Rule:
    """Return the rule named by a setting's target; ValueError if invalid."""
    match = _TARGET.fullmatch(target)
    if match is None or match.group(3) not in VERDICTS[match.group(2)]:
        places = "; ".join(f"{chain}: {', '.join(known)}" for chain, known in VERDICTS.items())
        raise ValueError(
            f"{target} is not a rule; write for example ipv4/input/accept/udp/4321 ({places})"
        )
    family, chain, verdict, port = match.groups()
    return Rule(target, family, chain, verdict, int(port))
