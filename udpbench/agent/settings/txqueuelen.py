"""Kind ``txqueuelen``: an interface's transmit queue length, the default limit of its qdiscs."""

from __future__ import annotations

from udpbench.agent.host import Host


def read(host: Host, target: str) -> int:
    """Return the length in packets."""
    return int(host.link(target).get_attr("IFLA_TXQLEN"))


def write(host: Host, target: str, value: int) -> None:
    """Set the length in packets."""
    host.rtnl("link", "set", index=host.index(target), txqlen=value)
