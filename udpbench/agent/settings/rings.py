"""Kind ``rings``: descriptors per ring of an interface, {rx, tx, rx-mini, rx-jumbo}.

A driver may round up, as to a power of two or a multiple of eight.
"""

from __future__ import annotations

from typing import Any

from udpbench.agent import ethtool
from udpbench.agent.host import Host


def read(host: Host, target: str) -> dict[str, int]:
    """Return the descriptors of every ring that the device has."""
    text = ethtool.show(host, "-g", target)
    return ethtool.parse_current(text, ethtool.RING_KEYS)


def write(host: Host, target: str, value: dict[str, int]) -> None:
    """Ask for the rings that are named; the link may flap."""
    missing = ethtool.differing(value, read(host, target))
    if missing:
        ethtool.change(host, "-G", target, ethtool.words_of(missing))


def same(wanted: dict[str, int], got: dict[str, int]) -> bool:
    """Compare as far as something was asked for."""
    return all(got.get(key) == value for key, value in wanted.items())


def rounded(wanted: dict[str, int], got: Any) -> bool:
    """Say whether the driver rounded up, by less than a factor of two."""
    return all(value <= got.get(key, -1) < 2 * value for key, value in wanted.items())
