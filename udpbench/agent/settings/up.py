"""Kind ``up``: whether an interface is up (IFF_UP, not whether it has a carrier)."""

from __future__ import annotations

from udpbench.agent.host import Host

IFF_UP = 1  # include/uapi/linux/if.h


def read(host: Host, target: str) -> bool:
    """Say whether the interface is up."""
    return bool(host.link(target)["flags"] & IFF_UP)


def write(host: Host, target: str, value: bool) -> None:
    """Take the interface up or down."""
    host.rtnl("link", "set", index=host.index(target), state="up" if value else "down")
