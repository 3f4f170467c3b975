"""Kind ``ntuple``: the RX queue of one UDP port, ``receive0/udp4/4321``; null where no rule is.

Only rules that look at a destination port and at nothing else are read or written; the driver
numbers them, and the number is read back from its list. The feature rx-ntuple-filter must be on.
"""

from __future__ import annotations

import errno
import re
from typing import Optional

from udpbench.agent import ethtool
from udpbench.agent.host import Host

FLOWS = {"udp4": "UDP over IPv4", "udp6": "UDP over IPv6"}
_TARGET = re.compile(r"([^/]+)/(udp4|udp6)/(\d{1,5})")


def read(host: Host, target: str) -> Optional[int]:
    """Return the queue of the rule for this port."""
    rule = _find(host, target)
    return rule.queue if rule is not None else None


def write(host: Host, target: str, value: Optional[int]) -> None:
    """Add the rule, or delete it by the number that the driver gave it."""
    interface, flow, port = _split(target)
    rule = _find(host, target)
    if value is None:
        if rule is not None:
            ethtool.change(host, "-N", interface, ["delete", str(rule.location)])
        return
    check(host, target, value, rule.queue if rule is not None else None)
    words = ["flow-type", flow, "dst-port", str(port), "action", str(value)]
    ethtool.change(host, "-N", interface, words)


def check(host: Host, target: str, value: Optional[int], now: Optional[int]) -> None:
    """Refuse to replace a rule."""
    if value is not None and now is not None:
        _, flow, port = _split(target)
        rule = _find(host, target)
        number = rule.location if rule is not None else "of that number"
        raise OSError(errno.EEXIST, f"rule {number} steers {flow} port {port} already")


def _find(host: Host, target: str) -> Optional[ethtool.NtupleRule]:
    interface, flow, port = _split(target)
    for rule in ethtool.parse_ntuple(ethtool.show(host, "-n", interface)):
        if (rule.flow, rule.port, rule.more) == (FLOWS[flow], port, False):
            return rule
    return None


def _split(target: str) -> tuple[str, str, int]:
    found = _TARGET.fullmatch(target)
    if found is None:
        raise ValueError(f"{target} is no rule; write for example receive0/udp4/4321")
    return found.group(1), found.group(2), int(found.group(3))
