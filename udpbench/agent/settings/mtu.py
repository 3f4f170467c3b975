"""Kind ``mtu``: an interface's largest packet, in bytes of IP.

Below 1280 the kernel takes IPv6 from an interface, with addresses that nothing would give back; and
a VLAN or macvlan on an interface goes down with its MTU, but not up again. Both are refused.
"""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address
from typing import Any, Optional

from udpbench.agent.host import Host

IPV6_MIN_MTU_BYTES = 1280  # RFC 8200, section 5
FOLLOWERS = ("vlan", "macvlan", "macvtap")
"""Kinds of interface that are lowered with the one they stand on (NETDEV_CHANGEMTU)."""


def read(host: Host, target: str) -> int:
    """Return the MTU in bytes."""
    return int(host.link(target).get_attr("IFLA_MTU"))


def write(host: Host, target: str, value: int) -> None:
    """Set the MTU in bytes."""
    host.rtnl("link", "set", index=host.index(target), mtu=value)


def check(host: Host, target: str, value: int, now: int) -> None:
    """Refuse to take IPv6 addresses, or the MTU of an interface that stands on this one."""
    index = host.index(target)
    lost = ipv6_addresses(host, index)
    if value < IPV6_MIN_MTU_BYTES <= now and lost:
        what = f"below {IPV6_MIN_MTU_BYTES} B {target} would lose {', '.join(lost)}"
        raise OSError(errno.EBUSY, f"{what}; choose at least {IPV6_MIN_MTU_BYTES} B")
    lowered = [
        f"{upper.get_attr('IFLA_IFNAME')} ({upper.get_attr('IFLA_MTU')} B)"
        for upper in host.rtnl("link", "dump")
        if upper.get_attr("IFLA_LINK") == index
        and upper.get_attr("IFLA_LINK_NETNSID") is None
        and _kind(upper) in FOLLOWERS
        and upper.get_attr("IFLA_MTU") > value
    ]
    if lowered:
        what = f"{', '.join(lowered)} on {target} would stay at {value} B afterwards"
        raise OSError(errno.EBUSY, f"{what}; set that one lower first, by hand")


def _kind(message: Any) -> Optional[str]:
    info = message.get_attr("IFLA_LINKINFO")
    return info.get_attr("IFLA_INFO_KIND") if info is not None else None


def ipv6_addresses(host: Host, index: Optional[int] = None) -> list[str]:
    """Return an interface's IPv6 addresses, or all, but for those that the kernel makes itself."""
    fields = {} if index is None else {"index": index}
    messages = host.rtnl("addr", "dump", family=socket.AF_INET6, **fields)
    found = [ip_address(message.get_attr("IFA_ADDRESS")) for message in messages]
    return [str(one) for one in found if not (one.is_link_local or one.is_loopback)]
