"""Kind ``up``: whether an interface is up (IFF_UP, not whether it has a carrier)."""

from __future__ import annotations

from udpbench.agent.host import Host
from udpbench.agent.settings import disruption

IFF_UP = 1  # include/uapi/linux/if.h


def read(host: Host, target: str) -> bool:
    """Say whether the interface is up."""
    return bool(host.link(target)["flags"] & IFF_UP)


def write(host: Host, target: str, value: bool) -> None:
    """Take the interface up or down; down it keeps the IPv6 addresses that it was given."""
    index = host.index(target)
    had = [] if value else disruption.given(host, index)
    host.rtnl("link", "set", index=index, state="up" if value else "down")
    disruption.give_back(host, had, [])
