"""Kind ``pause``: Ethernet flow control of an interface, {autoneg, rx, tx}, each 0 or 1."""

from __future__ import annotations

from udpbench.agent import ethtool
from udpbench.agent.host import Host


def read(host: Host, target: str) -> dict[str, int]:
    """Return what is set, not what was negotiated with the other end."""
    return ethtool.parse_pause(ethtool.show(host, "-a", target))


def write(host: Host, target: str, value: dict[str, int]) -> None:
    """Ask for what is named; the link may flap."""
    missing = ethtool.differing(value, read(host, target))
    if missing:
        ethtool.change(host, "-A", target, ethtool.words_of(missing, missing))


def same(wanted: dict[str, int], got: dict[str, int]) -> bool:
    """Compare as far as something was asked for; true and 1 are one."""
    return all(got.get(key) == int(value) for key, value in wanted.items())
