"""Kind ``flow_hash``: header fields that choose the RX queue, ``receive0/udp4``; "sdfn", "sd".

The letters are those of ethtool -N rx-flow-hash. Some drivers refuse with exit status 0: only
reading back tells.
"""

from __future__ import annotations

from udpbench.agent import ethtool
from udpbench.agent.host import Host

FLOWS = ("udp4", "udp6", "tcp4", "tcp6")


def read(host: Host, target: str) -> str:
    """Return the letters in ethtool's order."""
    interface, flow = _split(target)
    text = ethtool.show(host, "-n", interface, "rx-flow-hash", flow)
    return ethtool.parse_flow_hash(text)


def write(host: Host, target: str, value: str) -> None:
    """Ask for these fields."""
    interface, flow = _split(target)
    ethtool.change(host, "-N", interface, ["rx-flow-hash", flow, value])


def same(wanted: str, got: str) -> bool:
    """Compare as sets of fields."""
    return set(wanted) == set(got)


def _split(target: str) -> tuple[str, str]:
    interface, _, flow = target.partition("/")
    if flow not in FLOWS:
        raise ValueError(f"{target} names none of {', '.join(FLOWS)}; write for example eth0/udp4")
    return interface, flow
