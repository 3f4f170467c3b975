"""Kind ``mtu``: an interface's largest packet, in bytes of IP."""

from __future__ import annotations

from udpbench.agent.host import Host


def read(host: Host, target: str) -> int:
    """Return the MTU in bytes."""
    return int(host.link(target).get_attr("IFLA_MTU"))


def write(host: Host, target: str, value: int) -> None:
    """Set the MTU in bytes."""
    host.rtnl("link", "set", index=host.index(target), mtu=value)
